"""Queue of a group of brokers, as far as the status of a state server knows one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from understudy.xa.core.errors import LogLostError, LogOwnedError
from understudy.xa.core.status.queue_log import GROUP, LogMessage


@attrs.define
class ModelQueue:
    """Queue that a group of brokers keeps.

    Attributes:
        owner: whose channel has the exclusive consumer.
        on_change: called before and after each commit.
        syncs: commits.
    """

    messages: list[LogMessage] = attrs.field(factory=list)
    owner: object = None
    there: bool = False
    on_change: Callable[[], None] = attrs.field(default=lambda: None)
    syncs: int = 0

    def after_crash(self) -> Iterator[ModelQueue]:
        """The queue after the end of its owner: the group of brokers keeps what it has committed."""
        yield ModelQueue(list(self.messages), there=self.there)


@attrs.define
class ModelLog:
    """One server's access.

    Attributes:
        faults: number of an `add` to whether its transaction was committed before the connection was lost.
    """

    queue: ModelQueue
    faults: dict[int, bool] = attrs.field(factory=dict)
    name: str = "queue q"
    made: bool = False
    adds: int = 0
    ticks: int = 0

    def read(self) -> list[LogMessage]:
        if self.queue.owner not in (None, self.name):
            raise LogOwnedError("in use")
        self.queue.owner = self.name
        self.made = self.made or not self.queue.there
        self.queue.there = True
        return list(self.queue.messages)

    def add(self, group: bytes, *, replacing: bool) -> None:
        self.adds += 1
        committed = self.faults.get(self.adds)
        if self.queue.owner != self.name:
            raise LogLostError("cut off")
        if committed is not False:
            self.queue.on_change()
            self.queue.messages = [*([] if replacing else self.queue.messages), LogMessage(GROUP, group)]
            self.queue.syncs += 1
            self.queue.on_change()
        if committed is not None:
            self.queue.owner = None
            raise LogLostError("lost")

    def tick(self) -> None:
        self.ticks += 1
        if self.queue.owner != self.name:
            raise LogLostError("cut off")

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass
