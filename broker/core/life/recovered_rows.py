"""RecoveredRows: batches of a recovery that are taken and applied at once, and not record by record.

A `RowBatch` is one entry of ``Log.pending``, though it spans many offsets. The log knows of no such entry: before a stable
position or a note falls into the midst of one, its records are put in its place.
"""

from __future__ import annotations

from collections import deque

from understudy.broker.core.state import BrokerState
from understudy.broker.log.frame import BatchHeader
from understudy.broker.log.kept_log import Batch
from understudy.broker.log.paged_bodies import PagedBodies
from understudy.broker.log.pending import ENQUEUE, Change, Pending
from understudy.broker.log.row_batch import RowBatch, decode_rows


class RecoveredRows:
    """Of one recovery."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._waiting: deque[RowBatch] = deque()
        self._pending = 0
        state.log.applies(Change.ROWS, self._apply)

    @property
    def _bodies(self) -> PagedBodies:
        bodies = self._state.paging.bodies
        assert bodies is not None, "bodies are left in a journal that gives none back"
        return bodies

    def take(self, header: BatchHeader, batch: bytes) -> bool:
        """Take a whole batch whose bodies are left, if it continues the log and has rows. Returns whether it is taken."""
        state = self._state
        log = state.log
        first = header.first_offset
        if first != log.end + 1 or state.applying.deduplicates:
            return False
        rows = decode_rows(batch, first, header.count)
        if rows is None:
            return False
        log.receive(Batch(first, rows.last, header.epoch, batch))
        log.pending.append((first, Change.ROWS, rows))
        self._waiting.append(rows)
        self._pending += 1
        return True

    def split_at(self, stable: int) -> None:
        """The log is about to be applied up to ``stable``: it has no rows that go on behind it."""
        waiting = self._waiting
        while waiting and waiting[0].last <= stable:
            waiting.popleft()
        if waiting and waiting[0].first <= stable:
            self.spread()

    def spread(self) -> None:
        """Let the records of all rows wait one by one."""
        self._waiting.clear()
        if not self._pending:
            return
        self._pending = 0
        pending = self._state.log.pending
        spread: list[Pending] = []
        for each in pending:
            if each[1] is Change.ROWS:
                spread += [(offset, ENQUEUE, argument) for offset, argument in each[2].messages(self._bodies)]
            else:
                spread.append(each)
        pending.clear()
        pending.extend(spread)

    def _apply(self, rows: RowBatch) -> None:
        self._pending -= 1
        state, bodies = self._state, self._bodies
        if state.applying.deduplicates:  # since a record before it
            for _, argument in rows.messages(bodies):
                state.applying.apply_enqueue(argument)
            return
        for queue_id, of_queue in rows.queues.items():
            queue = state.queues.get(queue_id)
            if queue is not None:
                queue.enqueue_rows(of_queue, bodies)
        state.paging.note_left(rows.last - rows.first + 1)
