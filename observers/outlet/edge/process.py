"""``python -m understudy.observers.outlet.edge.process``: the outlet as a broker runs it, until its standard input ends.

The first line there is what to do (`outlet.edge.plugin.job_line`); each later one is ``lead`` or ``stand by``. A thread reads them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from pathlib import Path
from typing import Any, Final

import msgspec

from understudy.broker.config import structure
from understudy.broker.errors import UnderstudyError
from understudy.broker.server.files.private_files import keep_private
from understudy.observers.edge.side_process import stand_back
from understudy.observers.outlet.edge.command import exit_code, say
from understudy.observers.outlet.edge.job import OutletJob
from understudy.observers.outlet.edge.standby import OutletStandby
from understudy.observers.outlet.sending.progress import COUNTS, STANDING_BY, OutletProgress

HOLD_NAME: Final = "outlet"
LEAD: Final = "lead"
TELL_S: Final = 1.0
STOP_S: Final = 10.0
"""So long a Kafka transaction may take to end when the broker ceases to lead, or has ended."""


class OutletProcess:
    """The outlet's process: the broker's wishes, and the work that follows from them.

    Args:
        data: the broker's data directory.
        tables: its sections [kafka] and [outlet].
    """

    def __init__(self, data: Path, tables: dict[str, Any]) -> None:
        self._data = data
        self._config = structure(tables, file="the broker's configuration")
        self._leads = self._ends = False
        self._job: OutletJob | OutletStandby | None = None
        self._work: asyncio.Task[Any] | None = None
        self._before = dict.fromkeys(COUNTS, 0)

    def told(self, word: str) -> None:
        """The broker says ``lead`` or ``stand by``; "": it has ended."""
        leads = word == LEAD
        self._ends = self._ends or not word
        if leads is self._leads and not self._ends:
            return
        self._leads = leads
        if self._job is not None and self._work is not None:
            self._job.stop()
            asyncio.get_running_loop().call_later(STOP_S, self._work.cancel)  # it may wait for a Kafka that is away

    async def tell(self) -> None:
        """Say each second, on standard output, how far the outlet is. A broker that does not listen is not waited for."""
        os.set_blocking(sys.stdout.fileno(), False)
        while True:
            with contextlib.suppress(OSError):  # the pipe is full, or its reader is gone
                os.write(sys.stdout.fileno(), msgspec.json.encode(self._progress()) + b"\n")
            await asyncio.sleep(TELL_S)

    def _progress(self) -> OutletProgress:
        """Counts are those of all jobs of this process."""
        job = self._job
        now = job.progress() if isinstance(job, OutletJob) else OutletProgress(state=STANDING_BY)
        return msgspec.structs.replace(now, **{name: getattr(now, name) + self._before[name] for name in COUNTS})

    async def run(self) -> None:
        """Send as long as the broker leads, and stand by as long as it does not.

        Raises:
            UnderstudyError: see `OutletJob.run`.
        """
        kafka, settings = self._config.kafka, self._config.outlet
        while not self._ends:
            if self._leads:
                job = self._job = OutletJob(self._data, kafka, settings, hold=HOLD_NAME, patient=True)
                work = self._work = asyncio.create_task(job.run(say, follow=True))
            else:
                standby = self._job = OutletStandby(self._data, kafka, settings, HOLD_NAME)
                work = self._work = asyncio.create_task(standby.run())
            with contextlib.suppress(asyncio.CancelledError):
                await work
            if isinstance(self._job, OutletJob):
                for name in COUNTS:
                    self._before[name] += getattr(self._job.counts, name)
            self._job = self._work = None


async def _main(first: bytes) -> None:
    found = msgspec.json.decode(first, type=dict[str, Any])
    process = OutletProcess(Path(found.pop("data")), found)
    loop = asyncio.get_running_loop()

    def listen() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(process.told, line.strip())
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            loop.call_soon_threadsafe(process.told, "")

    threading.Thread(target=listen, daemon=True).start()
    telling = asyncio.create_task(process.tell())
    try:
        await process.run()
    finally:
        telling.cancel()


def main() -> int:
    """Run it; returns the exit code (`outlet.edge.command`)."""
    keep_private()
    stand_back()
    try:
        asyncio.run(_main(sys.stdin.readline().encode()))
    except UnderstudyError as error:
        say(str(error))
        return exit_code(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
