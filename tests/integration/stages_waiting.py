"""Waiting for what stages do in other processes, with a bound and a name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

TIMEOUT_S = 60.0


async def until(what: str, probe: Callable[[], Awaitable[object]]) -> None:
    """Wait until ``probe`` gives something true.

    Raises:
        AssertionError: not within `TIMEOUT_S`; names ``what``.
    """
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while not await probe():  # noqa: ASYNC110  # the other process sets no event
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not within {TIMEOUT_S} s: {what}") from None


async def until_found(what: str, probe: Callable[[], object]) -> None:
    """The same for a ``probe`` that blocks: each call runs in a thread."""
    await until(what, lambda: asyncio.to_thread(probe))
