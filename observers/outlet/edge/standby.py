"""OutletStandby: beside a backup. It asks its broker to keep what the primary's outlet has not sent yet, and sends nothing.

After a failover this broker's outlet goes on where the other has ended, so this broker's journal has to reach back to there.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from understudy.broker.config import KafkaConfig, OutletConfig
from understudy.broker.errors import UnderstudyError
from understudy.broker.server.files.file_storage import FileStorage
from understudy.observers.outlet.edge.command import say
from understudy.observers.outlet.edge.hold import OutletHold
from understudy.observers.outlet.edge.job import OutletJob
from understudy.observers.outlet.edge.kafka import KafkaOutlet

LOOK_S: Final = 5.0
STEP_S: Final = 0.1


class OutletStandby:
    """One time of standing by.

    Args:
        data: of this broker.
        kafka, settings: where positions stand.
        hold: name of the file that asks the broker.
    """

    def __init__(self, data: Path, kafka: KafkaConfig, settings: OutletConfig, hold: str) -> None:
        self._data = data
        self._kafka = kafka
        self._settings = settings
        self._name = hold
        self._stopping = False
        self._needed = 1
        self._said = ""

    def stop(self) -> None:
        """End soon."""
        self._stopping = True

    async def run(self) -> None:
        """Until `stop`. What Kafka or the journal says against it is said once, and tried again."""
        while not self._stopping:
            try:
                await self._look()
                self._said = ""
            except UnderstudyError as error:
                if str(error) != self._said:
                    self._said = str(error)
                    say(f"standing by: {error}")
            self._ask_to_keep()
            for _ in range(round(LOOK_S / STEP_S)):
                if not self._stopping:
                    await asyncio.sleep(STEP_S)

    async def _look(self) -> None:
        """See how far the primary's outlet has come. What was seen last holds as long as Kafka is away."""
        target = OutletJob(self._data, self._kafka, self._settings).target
        sink = KafkaOutlet(self._kafka, target)
        try:
            found = await sink.read_position()
        finally:
            await sink.close()
        if found is not None:
            self._needed = found.needed

    def _ask_to_keep(self) -> None:
        storage = FileStorage(self._data, read_only=True)
        try:
            OutletHold(self._data, storage, self._name).ask(self._needed)
        finally:
            storage.close()
