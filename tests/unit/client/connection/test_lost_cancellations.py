"""A library that drops a cancellation, as `asyncio.wait_for` of Python 3.11 may, makes no endless loop of a bounded wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from understudy.client.connection import aio_pika_errors
from understudy.client.connection.errors import ClientError
from understudy.client.runs import session as of_runs
from understudy.client.stages.broker import connection as of_stages
from understudy.client.stages.errors import StagesError


async def _drops_its_cancellation() -> None:
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        raise ConnectionRefusedError("refused") from None


async def _tried_for_ever(errors_as_ours: Callable[[], Any], lost: type[Exception]) -> None:
    for _ in range(3):  # in place of for ever
        with contextlib.suppress(lost):
            async with errors_as_ours():
                await _drops_its_cancellation()


@pytest.mark.parametrize(
    ("errors_as_ours", "lost"),
    [
        (aio_pika_errors.errors_as_ours, ClientError),
        (of_stages.errors_as_ours, StagesError),
        (of_runs.errors_as_ours, of_runs.LostError),
    ],
    ids=["connection", "stages", "demo"],
)
@pytest.mark.asyncio
async def test_a_bounded_wait_ends_though_the_library_drops_the_cancellation(
    errors_as_ours: Callable[[], Any], lost: type[Exception]
) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await _tried_for_ever(errors_as_ours, lost)
