"""QueueDeclarations: a leading broker declares queues, and gives them their ids."""

from __future__ import annotations

from typing import Any

from understudy.broker.amqp.field_table import encode_table
from understudy.broker.core.queues.priority_queue import queue_class
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.queues.replication_level import ReplicationLevel
from understudy.broker.core.turn.clock import Clock
from understudy.broker.core.turn.open_batch import OpenBatch
from understudy.broker.core.turn.role import Role
from understudy.broker.log import record
from understudy.broker.log.live_offsets import LiveOffsets
from understudy.broker.log.position import ID_EPOCH_SHIFT


class QueueDeclarations:
    """One per core.

    Attributes:
        default_level: of queues that do not say how much of them is replicated; None: nothing is, this broker is alone.
    """

    def __init__(self, batch: OpenBatch, clock: Clock, role: Role) -> None:
        self.default_level: ReplicationLevel | None = None
        self._state = batch.state
        self._batch = batch
        self._clock = clock
        self._role = role
        self._sequence = 0
        self._local_id = 0

    def replicate(self, level: ReplicationLevel | None) -> None:
        """Give queues ``level`` that do not say how much of them is replicated."""
        self.default_level = level

    def next_id(self) -> int:
        self._sequence += 1
        return self._role.epoch << ID_EPOCH_SHIFT | self._sequence

    def _next_local_id(self) -> int:
        """An id for a queue that the log does not declare: epoch 0, so it can never be taken for one that it does."""
        self._local_id += 1
        return self._local_id

    def declare(
        self,
        vhost: str,
        name: str,
        *,
        durable: bool,
        auto_delete: bool,
        arguments: dict[str, Any],
        level: ReplicationLevel,
        owner: Any,
    ) -> Queue:
        """Declare a new queue. With an ``owner`` (a connection) it is exclusive, and of level NONE."""
        state = self._state
        if not level.declared_in_log:
            queue = queue_class(arguments)(
                self._next_local_id(),
                vhost,
                name,
                durable=durable,
                auto_delete=auto_delete,
                arguments=arguments,
                live=LiveOffsets(),  # none of it is read from the journal again: it keeps no segment of it
                level=level,
                owner=owner,
                overfull=state.overfull.append,
                withholds=state.withhold.append,
            )
            state.topology.add_local(queue)
        else:
            flags = (record.DURABLE if durable else 0) | (record.AUTO_DELETE if auto_delete else 0)
            if not level.messages_in_log:
                flags |= record.DEFINITION_ONLY
            queue_id = self.next_id()
            self._batch.append_record(
                record.encode_queue_declare(queue_id, vhost, name, flags, encode_table(arguments))
            )
            queue = state.queues[queue_id]
            queue.activate(0, self._role.epoch << ID_EPOCH_SHIFT)
        queue.used(self._clock.running_ms)
        return queue
