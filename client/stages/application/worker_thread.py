"""WorkerThread: a worker in a thread of a program that has no event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from understudy.client.stages.application.worker import Worker, give_threads
from understudy.client.stages.errors import leaves_of

if TYPE_CHECKING:  # it imports this module
    from understudy.client.stages.application.application import Stages


class WorkerThread:
    """Runs all stages of an application until `stop`. Made by `Stages.run_in_thread`, which starts it.

    Args:
        options: as `Worker` takes them.

    Raises:
        ConfigurationError: the application is declared wrongly.
    """

    def __init__(self, stages: Stages, **options: Any) -> None:
        stages.check()
        self._stages = stages
        self._options = options
        self._worker: Worker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._error: BaseException | None = None
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"understudy-stages-{stages.name}", daemon=True)
        self._thread.start()
        self._begun.wait()

    @property
    def alive(self) -> bool:
        """False once the worker has ended, by `stop` or by an error."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Let each slot finish what it has in hand, and wait for that.

        Raises:
            ConfigurationError: the worker has ended by it, for example since the database cannot be used.
        """
        if self._loop is not None and self._worker is not None and self.alive:
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                self._loop.call_soon_threadsafe(self._worker.stop)
        self._thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseExceptionGroup as group:
            leaves = leaves_of(group)
            self._error = leaves[0] if len(leaves) == 1 else group
        except BaseException as error:  # noqa: BLE001  # raised again by stop
            self._error = error
        finally:
            self._begun.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        give_threads(self._loop, self._stages)
        self._worker = Worker(self._stages, **self._options)
        self._begun.set()
        await self._worker.run()
