"""A coroutine that SIGTERM and SIGHUP cancel, as Ctrl-C does: it stops its brokers before the process ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_until_signalled(
    main: Callable[[], Coroutine[Any, Any, T]], loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> T:
    """Run ``main`` to its end.

    Raises:
        asyncio.CancelledError: SIGTERM or SIGHUP came.
        KeyboardInterrupt: Ctrl-C came.
    """

    async def signalled() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, task.cancel)
        return await main()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(signalled())
