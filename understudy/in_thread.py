"""Blocking calls of asyncio programs. The rooms ``client`` and ``xa`` share this file.

A thread cannot be stopped. So a cancelled call is waited for: what it works with is never used by two threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


async def in_thread(threads: Executor | None, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call in a thread of a pool, with the context variables of the task; None is the pool of the event loop.

    A cancelled task waits for the end of the call.
    """
    # Not by asyncio.to_thread, which would need a task: the end of a loop cancels tasks, and their threads go on.
    run = functools.partial(contextvars.copy_context().run, call, *args, **kwargs)
    running = asyncio.get_running_loop().run_in_executor(threads, run)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await ended(running)
        raise


async def ended(running: asyncio.Future[Any]) -> None:
    """Wait for the end, even if this task is cancelled meanwhile. An error is looked at, and not told."""
    while not running.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([running])
    if not running.cancelled():
        running.exception()
