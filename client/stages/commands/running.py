"""A worker in this process, until a signal: its threads, its pages, and its end within a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from typing import Final

from understudy.client.stages.application.application import Stages
from understudy.client.stages.application.worker import Worker, give_threads
from understudy.client.stages.watching.pages import WorkerPages

LEFT: Final = 3
"""Exit code: a stage did not end in time. No thread of Python can be ended from outside."""
MARGIN_S: Final = 2.0
"""A stage that was cancelled may roll back for so long."""

_log = logging.getLogger("understudy.stages")


def run_here(stages: Stages, only: tuple[str, ...], http: tuple[str, int] | None, stop_s: float) -> None:
    """Run a worker until SIGTERM or SIGINT.

    Args:
        stages: the application.
        only: the names of the stages to run; empty: all.
        http: host and port of its pages.
        stop_s: seconds that a stop leaves to what is in hand. A stage that does not end then ends the process.

    Raises:
        ExceptionGroup: of ConfigurationError: broker, database or port cannot be used.
    """
    worker = Worker(stages, only=only, stop_s=stop_s)
    asyncio.run(_run(worker, stages, http, stop_s))


async def _run(worker: Worker, stages: Stages, http: tuple[str, int] | None, stop_s: float) -> None:
    loop = asyncio.get_running_loop()
    give_threads(loop, stages)
    last = threading.Timer(stop_s + MARGIN_S, _leave)
    last.daemon = True

    def stop() -> None:
        if not last.is_alive():
            last.start()
        worker.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    async with contextlib.AsyncExitStack() as stack:
        if http is not None:
            pages = WorkerPages(stages.name, worker.watch, stages.database)
            port = await stack.enter_async_context(pages.served(*http))
            _log.info("stages: pages at http://%s:%d/status", http[0], port)
        await worker.run()
    last.cancel()


def _leave() -> None:
    _log.error("stages: a stage has not ended in time; the process ends, and its message is handed out again")
    logging.shutdown()
    os._exit(LEFT)
