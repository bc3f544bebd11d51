"""QueueNames: names of queues by id, as a reader of one journal knows them, until no message needs them any more.

A journal that has let go of old segments begins with a checkpoint. Behind that may be a gap: records that were written before the
checkpoint and not applied then. A queue that was declared in the gap has no name here until the next checkpoint. So the names know
whether such a gap is open: an id that is not known is then a question, and otherwise a queue that is not durable, whose
declaration no journal keeps.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from understudy.broker.core.life.meta import Meta
from understudy.broker.log import record
from understudy.observers.outlet.errors import UnknownQueueError


class QueueName(NamedTuple):
    """A queue, the offset of its declaration, and whether it is durable: only messages of such queues are in a journal."""

    vhost: str
    queue: str
    offset: int
    durable: bool


class QueueNames:
    """Of one journal, as far as it was read."""

    def __init__(self) -> None:
        self._names: dict[int, QueueName] = {}
        self._deleted: deque[tuple[int, int]] = deque()
        self._blind_upto = 0

    def blind(self, upto: int) -> None:
        """Records up to offset ``upto`` were not read: a queue may have been declared there."""
        self._blind_upto = max(self._blind_upto, upto)

    def declare(self, buf: bytes, at: int, end: int, offset: int) -> None:
        """A QUEUE_DECLARE, without its head, stands at ``offset``. One of a queue that has a name only marks it as used."""
        queue_id, vhost, name, flags, _ = record.decode_queue_declare(buf, at, end)
        known = self._names.get(queue_id)
        place = offset if known is None else min(offset, known.offset)
        self._names[queue_id] = QueueName(vhost, name, place, bool(flags & record.DURABLE))

    def delete(self, queue_id: int, offset: int) -> None:
        """A QUEUE_DELETE stands at ``offset``. What was enqueued before it still needs the name, until that is applied."""
        self._deleted.append((offset, queue_id))

    def install(self, meta: Meta) -> None:
        """Take the queues that a checkpoint or a base states as applied at its offset."""
        for raw in meta.topology:
            if raw[0] & ~record.TRANSIENT == record.QUEUE_DECLARE:
                self.declare(raw, 5, len(raw), 0)
        if meta.offset >= self._blind_upto:
            self._blind_upto = 0

    def clear(self) -> None:
        """The log begins anew; a base follows."""
        self.__init__()  # type: ignore[misc]  # as new

    def cut(self, offset: int) -> None:
        """Undo what was read behind ``offset``: the log was cut there."""
        while self._deleted and self._deleted[-1][0] > offset:
            self._deleted.pop()
        for queue_id in [each for each, name in self._names.items() if name.offset > offset]:
            del self._names[queue_id]
        self._blind_upto = min(self._blind_upto, offset)

    def applied(self, offset: int) -> None:
        """Everything up to ``offset`` is applied, and what was to be sent of it has its names."""
        while self._deleted and self._deleted[0][0] <= offset:
            self._names.pop(self._deleted.popleft()[1], None)

    def durable(self, queue_id: int, offset: int) -> QueueName | None:
        """The queue of that id, to which the record at ``offset`` brings something; None if it is not durable.

        Raises:
            UnknownQueueError: the journal does not say.
        """
        name = self._names.get(queue_id)
        if name is None:
            if self._blind_upto:
                raise UnknownQueueError(queue_id, offset)
            return None
        return name if name.durable else None
