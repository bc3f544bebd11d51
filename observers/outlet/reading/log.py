"""OutletLog: frames of one broker's journal to units, each a committed transaction or a message outside of transactions.

It follows the rules of ``broker.core.state``, as `FeedContext` keeps them: a transaction is applied at the place of its PREPARE,
once its COMMIT is known to be stable, and nothing behind that place is applied before. Only what is applied is yielded: it is never
cut away. The counts and digests that PREPARE states tell whether all of a transaction is here (`OpenTransactions`): a half of
one is an error, and never a unit.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import Final, NamedTuple

from understudy.broker.core.life.meta import Meta
from understudy.broker.log import frame, record
from understudy.broker.log.move_record import decode_move
from understudy.broker.log.position import EpochHistory, Position
from understudy.broker.message import Message, Spill
from understudy.broker.transactions.tx_buffer import TxBuffer
from understudy.observers.feed.context import FeedContext, FeedTx
from understudy.observers.outlet.errors import (
    IncompleteTransactionError,
    MissingRecordsError,
    OutletGapError,
    RewrittenLogError,
)
from understudy.observers.outlet.reading.names import QueueNames
from understudy.observers.outlet.reading.transactions import Applied, OpenTransactions, Taker
from understudy.observers.outlet.reading.units import Outgoing, Unit

_U32: Final = Struct(">I")


class _Enqueued(NamedTuple):
    """An ENQUEUE, or a MOVE, that is not applied yet. ``bodiless``: a MOVE that has no body and says only how large it is."""

    epoch: int
    offset: int
    targets: list[record.Target]
    message: Message
    bodiless: bool = False


class OutletLog:
    """One journal.

    Args:
        sent: everything at or before this position of the log was sent already.
        spill: where bodies of large transactions go; None: they stay in memory.
        accept_gaps: what is missing is passed over, and noted. A log that was rewritten is an error nevertheless.

    Attributes:
        names: of queues.
        history: where epochs begin.
        covered_from: from this offset on every record up to the end was read.
        passed_over: what was missing and accepted, as text.
        csn: of the last transaction that was applied.
    """

    def __init__(self, sent: Position, spill: Spill | None = None, *, accept_gaps: bool = False) -> None:
        self._transactions = OpenTransactions(spill)
        self.names = QueueNames()
        self.history = EpochHistory()
        self.covered_from = 1
        self.passed_over: list[str] = []
        self.csn = 0
        self._sent = sent
        self._done = sent.offset
        self._accept_gaps = accept_gaps
        self._enqueued: deque[_Enqueued] = deque()
        self._units: list[Unit] = []
        self._epoch = 0
        self._takers: dict[int, Taker] = {
            **self._transactions.takers,
            record.QUEUE_DECLARE: self.names.declare,
            record.QUEUE_DELETE: self._take_queue_delete,
            record.ENQUEUE: self._take_enqueue,
            record.MOVE: self._take_move,
        }
        for kind in _WITHOUT_MESSAGES:
            self._takers[kind] = _pass

    @property
    def context(self) -> FeedContext:
        """Positions and open transactions."""
        return self._transactions.context

    # -- what is known ------------------------------------------------------------------------------------------------

    def take_passed_over(self) -> list[str]:
        """The missing records that were accepted since the last call."""
        found, self.passed_over = self.passed_over, []
        return found

    def take_units(self) -> list[Unit]:
        """Units that were applied since the last call and are behind the position; in log order."""
        units, self._units = self._units, []
        return units

    @property
    def applied(self) -> Position:
        """Everything at or before it is applied, or was sent before; units are taken first."""
        if self.context.applied <= self._sent.offset:
            return self._sent
        return Position(self.history.epoch_at(self.context.applied), self.context.applied)

    @property
    def needed(self) -> int:
        """The offset of the oldest record with something that may be a unit later."""
        begun = [tx.first for tx in self.context.transactions.values()]
        if self._enqueued:
            begun.append(self._enqueued[0].offset)
        return min(begun, default=self.applied.offset + 1)

    # -- batches ------------------------------------------------------------------------------------------------------

    def batch(self, data: bytes) -> None:
        """A BATCH frame.

        Raises:
            UnknownKindError: a newer program has written a record of it; nothing has been taken.
            OutletGapError: what is applied now is not all here.
        """
        epoch, first, count = frame.BATCH_PLACE.unpack_from(data, frame.BATCH_PLACE_AT)
        records = self._checked_records(data, first)
        self.advance(frame.header_of_verified(data).stable)
        context = self.context
        held = context.end
        if first > held + 1:
            self.covered_from = first
            self.names.blind(first - 1)
        context.begin_epoch(epoch)
        self._epoch = epoch
        if epoch > self.history.newest:
            self.history.begin(epoch, first)
        context.reach(max(held, first + count - 1))
        for offset, taker, at, end in records:
            if offset > held:
                taker(data, at, end, offset)

    def _checked_records(self, data: bytes, offset: int) -> list[tuple[int, Taker, int, int]]:
        """Offset, function, begin and end of each record of a batch that begins at ``offset``; raises before any is taken."""
        found: list[tuple[int, Taker, int, int]] = []
        takers = self._takers
        for kind, at, end in record.records_of(data, frame.BATCH_HEADER_BYTES):
            if kind == record.HOLE:
                offset += int(_U32.unpack_from(data, at)[0])
                continue
            taker = takers.get(kind & ~record.TRANSIENT)
            if taker is None:
                raise record.UnknownKindError(kind & ~record.TRANSIENT, f"at offset {offset}")
            if not kind & record.TRANSIENT or kind == record.QUEUE_DECLARE | record.TRANSIENT:
                found.append((offset, taker, at, end))
            offset += 1
        return found

    def take_records(self, records: list[tuple[int, bytes]]) -> None:
        """Records of one transaction with their offsets, which a catch-up brings beside the log.

        Raises:
            UnknownKindError: a newer program has written one; nothing has been taken.
        """
        for offset, raw in records:
            kind = raw[0] & ~record.TRANSIENT
            if kind not in self._takers:
                raise record.UnknownKindError(kind, f"of a transaction, at offset {offset},")
        for offset, raw in records:
            if not raw[0] & record.TRANSIENT:
                self._takers[raw[0]](raw, 5, len(raw), offset)

    # -- records ------------------------------------------------------------------------------------------------------

    def _take_enqueue(self, buf: bytes, at: int, end: int, offset: int) -> None:
        if offset > self._sent.offset:
            targets, message = record.decode_enqueue(buf, at, end)
            self._enqueued.append(_Enqueued(self._epoch, offset, targets, message))

    def _take_move(self, buf: bytes, at: int, end: int, offset: int) -> None:
        """A message that is not persistent is in no journal, wherever it moves."""
        if offset > self._sent.offset:
            move = decode_move(buf, at, end)
            message = move.message
            if message.persistent:
                bodiless = message.size < move.size_bytes
                if bodiless:
                    message.leave_body_out(move.size_bytes)
                self._enqueued.append(_Enqueued(self._epoch, offset, move.targets, message, bodiless))

    def _take_queue_delete(self, buf: bytes, at: int, end: int, offset: int) -> None:
        self.names.delete(record.decode_queue_delete(buf, at), offset)

    # -- the log is cut, or begins anew -------------------------------------------------------------------------------

    def cut(self, offset: int) -> None:
        """Drop what stands behind ``offset``: it is no part of the log any more, and none of it was applied."""
        self._transactions.cut(offset)
        self.history.cut(offset)
        self.names.cut(offset)
        while self._enqueued and self._enqueued[-1].offset > offset:
            self._enqueued.pop()
        self.covered_from = min(self.covered_from, offset + 1)

    def restart(self, meta: Meta, kept: dict[int, int]) -> None:
        """The log begins anew behind a base, with the transactions ``kept``; others come beside the log.

        Raises:
            MissingRecordsError: what is before the base was not sent.
        """
        self._transactions.restart(meta, kept)
        self.history = EpochHistory(list(meta.starts))
        self._epoch = self.history.newest
        self.context.begin_epoch(self._epoch)
        self.names.clear()
        self.names.install(meta)
        self._enqueued.clear()
        self.covered_from = meta.offset + 1
        self._check_covered()

    def checkpoint(self, meta: Meta) -> None:
        """The journal states everything that is no message, as it was applied then.

        Raises:
            OutletGapError: see `advance`.
        """
        context = self.context
        if context.end and not (meta.offset or meta.starts):
            self.forget()  # the broker has let go of its log, and of all messages
            return
        if not context.end:  # what was before it has been dropped
            self.history = EpochHistory(list(meta.starts))
            self._epoch = self.history.newest
            context.begin_behind(meta.offset, self._epoch)
            self.covered_from = meta.offset + 1
            self._check_covered()
        self.advance(meta.offset)
        self.names.install(meta)

    def forget(self) -> None:
        """Forget what was read: the log that comes does not continue it."""
        self._transactions.forget()
        self.history = EpochHistory()
        self.names.clear()
        self._enqueued.clear()
        self.covered_from = 1

    # -- applying -----------------------------------------------------------------------------------------------------

    def advance(self, stable: int) -> None:
        """The log is known to be stable up to offset ``stable``.

        Raises:
            OutletGapError: what is applied now is not all here. Nothing of it is a unit then.
        """
        context = self.context
        if stable <= context.stable and context.applied >= min(context.stable, context.end):
            return
        applied = self._transactions.advance(stable)
        self._check_covered()
        self._apply_upto(applied)
        self.names.applied(context.applied)

    def _apply_upto(self, transactions: list[Applied]) -> None:
        """Make units of ``transactions``, and of the messages between them, up to what is applied."""
        for tx, buffer in transactions:
            self._apply_enqueued(tx.prepare)
            self.csn = max(self.csn, tx.csn)
            if tx.prepare > self._sent.offset:
                try:
                    self._add(self._unit_of(tx, buffer))
                except OutletGapError as error:
                    self._pass_over(error)
        self._apply_enqueued(self.context.applied)

    def _apply_enqueued(self, upto: int) -> None:
        enqueued = self._enqueued
        while enqueued and enqueued[0].offset <= upto:
            each = enqueued.popleft()
            try:
                messages = self._outgoing(each.offset, each.message, each.targets, each.bodiless)
            except OutletGapError as error:
                self._pass_over(error)
                continue
            self._add(Unit(epoch=each.epoch, offset=each.offset, first=each.offset, messages=messages))

    def _outgoing(
        self, offset: int, message: Message, targets: list[record.Target], bodiless: bool = False
    ) -> tuple[Outgoing, ...]:
        """``message`` in the durable ones of its queues; ``targets`` as of an ENQUEUE, with replication ids."""
        found = ((self.names.durable(queue_id, offset), entry_id) for queue_id, entry_id, _ in targets)
        return tuple(Outgoing(name.vhost, name.queue, entry_id, message, bodiless) for name, entry_id in found if name)

    def _unit_of(self, tx: FeedTx, buffer: TxBuffer) -> Unit:
        prepare, closing = buffer.prepare, buffer.closing
        assert prepare is not None
        assert closing is not None
        problem = buffer.missing_for(closing, may_lack_transients=True)
        if problem:
            raise IncompleteTransactionError(tx.text, tx.prepare, problem)
        messages: list[Outgoing] = []
        ids = prepare.first_ids
        for offset, message, targets in buffer.events:
            if message is not None:  # a queue without an id was deleted before PREPARE
                given = [(queue, ids[queue][0] + place, limit) for queue, place, limit in targets if queue in ids]
                messages += self._outgoing(offset, message, given)
        return Unit(
            epoch=tx.prepare_epoch,
            offset=tx.prepare,
            csn=prepare.csn,
            tx="" if buffer.own else tx.text,
            name=prepare.name or (str(buffer.branch.xid) if buffer.branch is not None else ""),
            time_ms=prepare.time_ms,
            messages=tuple(messages),
            unsent=closing.events - closing.durable_events,
            first=tx.first,
        )

    def _add(self, unit: Unit) -> None:
        if unit.messages:
            self._units.append(unit)

    def _check_covered(self) -> None:
        """See that everything between what was sent and what is applied now was read."""
        context, sent = self.context, self._sent
        if self._done <= sent.offset:
            rewritten = [start for start in self.history.starts() if start[0] > sent.epoch and start[1] <= sent.offset]
            if rewritten:
                epoch, first = rewritten[0]
                raise RewrittenLogError(sent, epoch, Position(self.history.epoch_at(first - 1), first - 1))
        if context.applied <= self._done:
            return
        if self.covered_from > self._done + 1:
            self._pass_over(MissingRecordsError(self._done, self.covered_from))
        self._done = context.applied

    def _pass_over(self, error: OutletGapError) -> None:
        if not self._accept_gaps:
            raise error
        self.passed_over.append(str(error))


def _pass(buf: bytes, at: int, end: int, offset: int) -> None:
    """A record that brings no message."""


_WITHOUT_MESSAGES: Final = (
    record.EXCHANGE_DECLARE,
    record.EXCHANGE_DELETE,
    record.BIND,
    record.UNBIND,
    record.EXCHANGE_BIND,
    record.EXCHANGE_UNBIND,
    record.DEQUEUE,
    record.OUTCOME,
    record.OUTCOMES_TRIMMED,
    record.BARRIER,
    record.DTX_FORGET,
    record.RETURN,
    record.ID_TIME,
)
