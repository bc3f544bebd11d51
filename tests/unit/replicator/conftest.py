"""The event loops on which links are tried."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from tests.unit.replicator.direct_driver_kit import LIMIT_S, Run


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    factory = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop

    def run_on(main: Callable[[], Awaitable[None]]) -> None:
        async def limited() -> None:
            async with asyncio.timeout(LIMIT_S):
                await main()

        with asyncio.Runner(loop_factory=factory) as runner:
            problems: list[dict[str, Any]] = []
            runner.get_loop().set_exception_handler(lambda _, context: problems.append(context))
            runner.run(limited())
            assert problems == []

    return run_on
