"""LoopThread: an event loop in a thread of its own, for callers without one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Final, TypeVar

from understudy.client.stages.broker.connection import LostError

T = TypeVar("T")

AGAIN_S: Final = 1.0
"""A task that has lost a cancellation is cancelled again after this time."""
TRIES: Final = 5
_CLOSED: Final = "the initiations of the application were closed"


class LoopThread:
    """Runs until `close`. A program that forgets that ends nevertheless.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._closed = False
        self._waiting: set[Future[Any]] = set()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there, and wait for its result. A signal that interrupts the caller cancels it.

        Raises:
            LostError: `close` was called before the end of the coroutine.
        """
        with self._lock:
            if self._closed:
                work.close()
                raise LostError(_CLOSED)
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._waiting.add(future)
        try:
            return future.result()
        except CancelledError as error:
            raise LostError(_CLOSED) from error
        except BaseException:
            future.cancel()
            raise
        finally:
            self._waiting.discard(future)

    def close(self) -> None:
        """Cancel the coroutines whose callers wait; then stop the loop, and wait for its thread."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            ended = asyncio.run_coroutine_threadsafe(_end_others(), self._loop)
        ended.result()
        for each in list(self._waiting):
            each.cancel()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


async def _end_others() -> None:
    """Cancel all tasks of the loop, and wait for their ends: a caller of each may wait for it, too."""
    for _ in range(TRIES):
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if not others:
            return
        for each in others:
            each.cancel()
        await asyncio.wait(others, timeout=AGAIN_S)
