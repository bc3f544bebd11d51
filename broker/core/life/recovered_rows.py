"""RecoveredRows: batches of a recovery that are taken and applied at once, and not record by record.

A `RowBatch` is one entry of ``Log.pending``, though it spans many offsets. The log knows of no such entry: one is split before a
stable position, a cut or a note falls into the midst of it, and none is left when the recovery ends.
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
        return True

    def split_at(self, offset: int) -> None:
        """No rows go on behind ``offset`` that begin at it or before."""
        waiting = self._waiting
        while waiting and waiting[0].last <= offset:
            waiting.popleft()
        if waiting and waiting[0].first <= offset:
            self.split_any_at(offset)

    def split_any_at(self, offset: int) -> None:
        """The same, also of rows that are stable and wait for a decision."""
        pending = self._state.log.pending
        split: list[Pending] = []
        for each in pending:
            rows = each[2]
            if each[1] is Change.ROWS and rows.first <= offset < rows.last:
                split += [(part.first, Change.ROWS, part) for part in rows.split(offset)]
            else:
                split.append(each)
        self._wait_anew(split)

    def cut(self, offset: int) -> None:
        """The log is about to be cut behind ``offset``; rows before that may wait for a decision."""
        self.split_any_at(offset)
        while self._waiting and self._waiting[-1].first > offset:
            self._waiting.pop()

    def spread(self) -> None:
        """Let the records of all rows wait one by one."""
        spread: list[Pending] = []
        for each in self._state.log.pending:
            if each[1] is Change.ROWS:
                spread += each[2].changes(self._bodies)
            else:
                spread.append(each)
        self._wait_anew(spread)

    def _wait_anew(self, changes: list[Pending]) -> None:
        pending = self._state.log.pending
        pending.clear()
        pending.extend(changes)
        self._waiting = deque(rows for _, change, rows in changes if change is Change.ROWS)

    def _apply(self, rows: RowBatch) -> None:
        state, bodies = self._state, self._bodies
        if state.applying.deduplicates:  # since a record before it
            for _, change, argument in rows.changes(bodies):
                apply = state.applying.apply_enqueue if change is ENQUEUE else state.applying.apply_dequeue
                apply(argument)
            return
        for queue_id, of_queue in rows.queues.items():
            queue = state.queues.get(queue_id)
            if queue is not None:
                queue.enqueue_rows(of_queue, bodies)
            state.paging.note_left(len(of_queue.ids))
        for _, groups in rows.dequeues:
            state.applying.apply_dequeue(groups)
