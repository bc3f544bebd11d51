"""FeedTranslation: frames of one broker's journal to events, in order.

One function a kind of record or note. Record kinds that this program does not know raise, as everywhere: a feed that passed over
them would be believed. Enqueues and dequeues are most of what there is, so their bodies are never copied and their events are made
without detours; measure with ``python -m tests.unit.observers.feed_speed``.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from understudy.broker.core.meta import Meta
from understudy.broker.core.state import BrokerState
from understudy.broker.log import frame, journal_gate, record
from understudy.broker.log.segment import SegmentHeader
from understudy.broker.transactions.dtx_branch import Owner
from understudy.observers import events_schema as schema
from understudy.observers.events_schema import SCHEMA_VERSION, Event
from understudy.observers.feed_context import COMMITTED, NO_QUEUE, ROLLED_BACK, FeedContext, FeedTx, plain_text
from understudy.replicator import snapshot, wire
from understudy.replicator.broker_replicator import BrokerReplicator

_U32: Final = Struct(">I")
_U64: Final = Struct(">Q")
_SEEN: Final = Struct(">IQ")
_NO: Final = Struct(">QQ")
_EPOCH_REASON: Final = "its primary was replaced before it was closed"
_OWNERS: Final = {owner.value: owner.name.lower() for owner in Owner}


def incarnation_of(header: SegmentHeader, since: int) -> str:
    """The incarnation of the events of a segment, for readers that have read everything from segment ``since`` on.

    What a reader has not read may change how many events a record makes (whether it opens a transaction, for example). So what
    began later is numbered by itself; all that began at the same segment count the same.
    """
    return f"j{header.number}-{header.salt:x}{f'@{since}' if since > 1 else ''}"


class FeedTranslation:
    """One broker's journal.

    Args:
        context: what is known so far; changed in place.

    Attributes:
        incarnation, seq: of the last event.
        at_ms: of the group that is being read.
        sync: number of that group.
        previous: incarnation and count of events of the segment before; ("", 0) if that was not read.
    """

    def __init__(self, context: FeedContext | None = None) -> None:
        self.context = context if context is not None else FeedContext()
        self.group = self.broker = ""
        self.incarnation = ""
        self.seq = 0
        self.at_ms = 0
        self.sync = 0
        self._out: list[Event] = []
        self._takers: dict[int, Callable[[bytes, int, int, int], None]] = {
            record.EPOCH: self._epoch,
            record.QUEUE_DECLARE: self._queue_declare,
            record.QUEUE_DELETE: self._queue_delete,
            record.EXCHANGE_DECLARE: self._exchange_declare,
            record.EXCHANGE_DELETE: self._exchange_delete,
            record.BIND: self._bind,
            record.UNBIND: self._unbind,
            record.ENQUEUE: self._enqueue,
            record.DEQUEUE: self._dequeue,
            record.TX_ENQUEUE: self._tx_enqueue,
            record.TX_ENQUEUE_TIMED: self._tx_enqueue,
            record.TX_DEQUEUE: self._tx_dequeue,
            record.PREPARE: self._prepare,
            record.COMMIT: self._commit,
            record.ROLLBACK: self._rollback,
            record.OUTCOME: self._outcome,
            record.OUTCOMES_TRIMMED: self._outcomes_trimmed,
            record.BARRIER: self._barrier,
            record.DTX_PREPARE: self._dtx_prepare,
            record.DTX_ROLLBACK: self._dtx_rollback,
            record.DTX_FORGET: self._dtx_forget,
        }
        self._notes: dict[int, Callable[[bytes], None]] = {
            frame.KIND_CUT: self._cut,
            journal_gate.EPOCH_SEEN: self._epoch_seen,
            journal_gate.NO: self._no,
            journal_gate.NO_ENDED: self._no_ended,
            journal_gate.CHECKPOINT: self._checkpoint,
            journal_gate.FOUNDING: self._founding,
            journal_gate.PIECE: self._piece,
        }
        self._pieces: dict[int, Callable[[bytes], None]] = {
            wire.BASE: self._base,
            wire.DROP: self._drop,
            wire.TRANSACTION: self._transaction_piece,
            wire.QUEUE: self._queue_piece,
            wire.CAUGHT_UP: self._caught_up,
        }

    # -- what is shown ------------------------------------------------------------------------------------------------

    def take_events(self) -> list[Event]:
        """The events since the last call."""
        out, self._out = self._out, []
        return out

    def begin_segment(self, header: SegmentHeader) -> None:
        """A segment is read from its beginning, or on: then nothing is said."""
        self.group, self.broker = header.identity.group_id, header.identity.broker_id
        context = self.context
        context.since = context.since or header.number
        incarnation = incarnation_of(header, context.since)
        if incarnation == self.incarnation:
            return
        previous, count = self.incarnation, self.seq
        self.incarnation, self.seq = incarnation, 0
        self._say(schema.Segment, context.end, header.number, previous, count)

    def gap(self, reason: str, last: int, first: int) -> None:
        """Segments between these two cannot be read. It is this reader's own fact, so it has no number."""
        context = self.context
        position = (context.epoch, context.end)
        fields = (self.group, context.founding, self.broker, "", 0, *position, self.at_ms)
        self.context = FeedContext()
        self.incarnation = ""
        self.at_ms = 0
        self._out.append(schema.Gap(SCHEMA_VERSION, *fields, reason, *position, last, first))
        self.seq = 0

    def batch(self, data: bytes) -> None:
        """A BATCH frame."""
        epoch, first, count = frame.BATCH_PLACE.unpack_from(data, frame.BATCH_PLACE_AT)
        stable = frame.header_of_verified(data).stable
        context = self.context
        if stable > context.stable:
            self._advance(stable)
        context.epoch = epoch
        held = context.end
        last = first + count - 1
        context.end = last
        offset = first
        at = frame.BATCH_HEADER_BYTES
        size = len(data)
        takers = self._takers
        head = record.HEAD.unpack_from
        while at < size:
            kind, length = head(data, at)
            start = at + 5
            at = start + length
            if kind == record.HOLE:
                (holes,) = _U32.unpack_from(data, start)
                offset += holes
                self._say(schema.Hole, offset - 1, holes)
                continue
            if offset > held:
                taker = takers.get(kind & 0x7F)
                if taker is None:
                    raise record.UnknownKindError(kind & 0x7F, f"at offset {offset}")
                taker(data, start, at, offset)
            offset += 1
        new = max(first, held + 1) if held >= first else first
        self._say(schema.Append, last, new, last - new + 1, stable, self.sync)

    def note(self, kind: int, payload: bytes) -> None:
        """A NOTE frame."""
        taker = self._notes.get(kind)
        if taker is None:
            raise journal_gate.UnknownNoteError(
                f"the journal holds notes of kind {kind}, which this program does not know: run the newer one"
            )
        taker(payload)

    # -- saying -------------------------------------------------------------------------------------------------------

    def _say(self, event: Callable[..., Event], offset: int, *fields: object, epoch: int = 0) -> None:
        context = self.context
        self.seq = seq = self.seq + 1
        self._out.append(
            event(
                SCHEMA_VERSION,
                self.group,
                context.founding,
                self.broker,
                self.incarnation,
                seq,
                epoch or context.epoch,
                offset,
                self.at_ms,
                *fields,
            )
        )

    def _advance(self, stable: int) -> None:
        context = self.context
        was = context.applied
        for tx in context.advance(stable):
            self._say(schema.Apply, tx.prepare, context.stable, 0, tx.text, tx.csn, tx.decided, epoch=tx.prepare_epoch)
        if context.applied > was:
            self._say(schema.Apply, context.applied, context.stable, was)

    def _of_tx(self, tx_id: int, offset: int) -> FeedTx:
        """The transaction that a record is of; its first record opens it."""
        tx = self.context.transactions.get(tx_id)
        if tx is None:
            tx = self.context.begin(tx_id, offset)
            self._say(schema.Open, offset, tx.text)
        return tx

    # -- messages -----------------------------------------------------------------------------------------------------

    def _enqueue(self, buf: bytes, at: int, end: int, offset: int) -> None:
        targets, at = record.decode_enqueue_targets(buf, at, end)
        persistent, exchange, routing_key, body = record.decode_message_head(buf, at)
        if not (exchange.isascii() and routing_key.isascii()):
            exchange, routing_key = plain_text(exchange), plain_text(routing_key)
        context = self.context
        seq = self.seq
        for queue_id, entry_id, deadline_ms in targets:
            vhost, queue, _ = context.queues.get(queue_id, NO_QUEUE)
            seq += 1
            self._out.append(
                schema.Enqueue(
                    SCHEMA_VERSION,
                    self.group,
                    context.founding,
                    self.broker,
                    self.incarnation,
                    seq,
                    context.epoch,
                    offset,
                    self.at_ms,
                    "",
                    vhost,
                    queue,
                    queue_id,
                    entry_id,
                    0,
                    end - body,
                    persistent,
                    exchange,
                    routing_key,
                    deadline_ms,
                )
            )
        self.seq = seq

    def _tx_enqueue(self, buf: bytes, at: int, end: int, offset: int) -> None:
        tx_id, targets, at = record.decode_tx_enqueue_targets(buf, at, end)
        persistent, exchange, routing_key, body = record.decode_message_head(buf, at)
        if not (exchange.isascii() and routing_key.isascii()):
            exchange, routing_key = plain_text(exchange), plain_text(routing_key)
        context = self.context
        text = (context.transactions.get(tx_id) or self._of_tx(tx_id, offset)).text
        seq = self.seq
        for queue_id, place, deadline_ms in targets:
            vhost, queue, _ = context.queues.get(queue_id, NO_QUEUE)
            seq += 1
            ttl_ms = -1
            if deadline_ms >= record.FROM_COMMIT:
                ttl_ms, deadline_ms = deadline_ms - record.FROM_COMMIT, 0  # noqa: PLW2901
            self._out.append(
                schema.Enqueue(
                    SCHEMA_VERSION,
                    self.group,
                    context.founding,
                    self.broker,
                    self.incarnation,
                    seq,
                    context.epoch,
                    offset,
                    self.at_ms,
                    text,
                    vhost,
                    queue,
                    queue_id,
                    0,
                    place,
                    end - body,
                    persistent,
                    exchange,
                    routing_key,
                    deadline_ms,
                    ttl_ms,
                )
            )
        self.seq = seq

    def _dequeue(self, buf: bytes, at: int, end: int, offset: int) -> None:
        reason, groups = record.decode_dequeue(buf, at)
        self._leave("", groups, record.REASON_NAMES.get(reason, str(reason)), offset)

    def _tx_dequeue(self, buf: bytes, at: int, end: int, offset: int) -> None:
        tx_id, groups = record.decode_tx_dequeue(buf, at)
        self._leave(self._of_tx(tx_id, offset).text, groups, "", offset)

    def _leave(self, tx: str, groups: list[record.Group], reason: str, offset: int) -> None:
        queues = self.context.queues
        for queue_id, ids in groups:
            vhost, queue, _ = queues.get(queue_id, NO_QUEUE)
            if len(ids) == 1:
                self._say(schema.Dequeue, offset, tx, vhost, queue, queue_id, ids[0], 1, reason)
                continue
            for first, count in _runs(ids):
                self._say(schema.Dequeue, offset, tx, vhost, queue, queue_id, first, count, reason)

    # -- transactions -------------------------------------------------------------------------------------------------

    def _prepare(self, buf: bytes, at: int, end: int, offset: int) -> None:
        prepare = record.decode_prepare(buf, at)
        context = self.context
        tx = self._of_tx(prepare.tx_id, offset)
        if not tx.branch:
            self._close(tx, prepare.events, prepare.digest, prepare.durable_events, prepare.durable_digest, offset)
        context.prepare(tx, offset, prepare.csn)
        owner = _OWNERS.get(prepare.kind, str(prepare.kind))
        first_ids = prepare.first_ids
        self._say(
            schema.Prepare,
            offset,
            tx.text,
            prepare.csn,
            plain_text(prepare.name),
            owner,
            len(first_ids),
            prepare.time_ms,
        )
        for queue_id, (first, count) in first_ids.items():
            vhost, queue, _ = context.queues.get(queue_id, NO_QUEUE)
            self._say(schema.Assign, offset, tx.text, prepare.csn, vhost, queue, queue_id, first, count)

    def _close(
        self, tx: FeedTx, events: int, digest: int, durable_events: int, durable_digest: int, offset: int
    ) -> None:
        self._say(schema.Close, offset, tx.text, events, f"{digest:08x}", durable_events, f"{durable_digest:08x}")

    def _decided(self, tx_id: int, outcome: int, offset: int) -> str:
        """Note what became of a transaction; how events name it."""
        tx = self.context.transactions.get(tx_id)
        if tx is None:
            return self.context.tx_text(tx_id)
        self.context.decide(tx, outcome, offset)
        return tx.text

    def _commit(self, buf: bytes, at: int, end: int, offset: int) -> None:
        tx_id, csn, time_ms = record.decode_commit(buf, at)
        self._say(schema.Commit, offset, self._decided(tx_id, COMMITTED, offset), csn, time_ms)

    def _rollback(self, buf: bytes, at: int, end: int, offset: int) -> None:
        tx_id, time_ms, name, reason = record.decode_rollback(buf, at)
        text = self._decided(tx_id, ROLLED_BACK, offset)
        self._say(schema.Rollback, offset, text, plain_text(name), plain_text(reason), time_ms)

    def _dtx_prepare(self, buf: bytes, at: int, end: int, offset: int) -> None:
        tx_id, branch = record.decode_dtx_prepare(buf, at, offset)
        tx = self._of_tx(tx_id, offset)
        self._close(tx, branch.events, branch.digest, branch.durable_events, branch.durable_digest, offset)
        tx.branch = offset
        self._say(schema.DtxPrepare, offset, tx.text, plain_text(branch.vhost), str(branch.xid), branch.time_ms)

    def _dtx_rollback(self, buf: bytes, at: int, end: int, offset: int) -> None:
        tx_id, time_ms, (vhost, xid) = record.decode_dtx_rollback(buf, at)
        text = self._decided(tx_id, ROLLED_BACK, offset)
        self._say(schema.DtxRollback, offset, text, plain_text(vhost), str(xid), time_ms)

    def _dtx_forget(self, buf: bytes, at: int, end: int, offset: int) -> None:
        vhost, xid = record.decode_dtx_forget(buf, at)
        self._say(schema.DtxForget, offset, plain_text(vhost), str(xid))

    def _outcome(self, buf: bytes, at: int, end: int, offset: int) -> None:
        name, _, time_ms = record.decode_outcome(buf, at)
        self._say(schema.Outcome, offset, plain_text(name), time_ms)

    def _outcomes_trimmed(self, buf: bytes, at: int, end: int, offset: int) -> None:
        self._say(schema.OutcomesTrimmed, offset, record.decode_outcomes_trimmed(buf, at)[0])

    def _barrier(self, buf: bytes, at: int, end: int, offset: int) -> None:
        self._say(schema.Hole, offset, 1)

    # -- topology and epochs ------------------------------------------------------------------------------------------

    def _epoch(self, buf: bytes, at: int, end: int, offset: int) -> None:
        epoch, primary, lost, time_ms = record.decode_epoch(buf, at)
        self._say(schema.Epoch, offset, primary, lost, time_ms, epoch=epoch)
        for tx in self.context.end_open(offset):
            self._say(schema.Rollback, offset, tx.text, "", _EPOCH_REASON, 0)

    def _queue_declare(self, buf: bytes, at: int, end: int, offset: int) -> None:
        queue_id, vhost, name, flags, _ = record.decode_queue_declare(buf, at, end)
        vhost, name = plain_text(vhost), plain_text(name)
        self.context.queues[queue_id] = (vhost, name, offset)
        durable, auto_delete = bool(flags & record.DURABLE), bool(flags & record.AUTO_DELETE)
        logged = not flags & record.DEFINITION_ONLY
        self._say(schema.Declare, offset, "queue", vhost, name, queue_id, "", "", durable, auto_delete, logged)

    def _queue_delete(self, buf: bytes, at: int, end: int, offset: int) -> None:
        queue_id = record.decode_queue_delete(buf, at)
        vhost, name, _ = self.context.queues.get(queue_id, NO_QUEUE)
        self._say(schema.Delete, offset, "queue", vhost, name, queue_id)

    def _exchange_declare(self, buf: bytes, at: int, end: int, offset: int) -> None:
        vhost, name, kind, flags, _ = record.decode_exchange_declare(buf, at, end)
        vhost, name = plain_text(vhost), plain_text(name)
        durable, auto_delete = bool(flags & record.DURABLE), bool(flags & record.AUTO_DELETE)
        self._say(schema.Declare, offset, "exchange", vhost, "", 0, name, kind, durable, auto_delete)

    def _exchange_delete(self, buf: bytes, at: int, end: int, offset: int) -> None:
        vhost, name = record.decode_exchange_delete(buf, at)
        self._say(schema.Delete, offset, "exchange", plain_text(vhost), "", 0, plain_text(name))

    def _bind(self, buf: bytes, at: int, end: int, offset: int) -> None:
        self._binding(schema.Bind, buf, at, end, offset)

    def _unbind(self, buf: bytes, at: int, end: int, offset: int) -> None:
        self._binding(schema.Unbind, buf, at, end, offset)

    def _binding(self, event: Callable[..., Event], buf: bytes, at: int, end: int, offset: int) -> None:
        vhost, exchange, queue_id, routing_key, _ = record.decode_bind(buf, at, end)
        queue = self.context.queues.get(queue_id, NO_QUEUE)[1]
        self._say(event, offset, plain_text(vhost), plain_text(exchange), queue, queue_id, plain_text(routing_key))

    # -- notes --------------------------------------------------------------------------------------------------------

    def _cut(self, payload: bytes) -> None:
        offset, mark = frame.decode_cut(payload)
        stable = journal_gate.JournalGate.restarted_at(mark)
        context = self.context
        if stable is None:
            was = context.end
            context.cut(offset)
            self._say(schema.Cut, offset, was, "rejoin")
        else:
            self._advance(stable)
            self._say(schema.Cut, 0, context.end, "catch_up")

    def _epoch_seen(self, payload: bytes) -> None:
        if len(payload) != _SEEN.size:
            raise journal_gate.NoteFormatError("note of the ha plugin", 1, 2, 2)
        epoch, founding = _SEEN.unpack(payload)
        self._meet(founding)
        self._say(schema.EpochSeen, self.context.end, epoch=epoch)

    def _meet(self, founding: int) -> None:
        if founding:
            self.context.founding = f"{founding:x}"

    def _founding(self, payload: bytes) -> None:
        self._meet(_U64.unpack(payload)[0])
        self._say(schema.Founding, self.context.end)

    def _no(self, payload: bytes) -> None:
        tx_id, offset = _NO.unpack_from(payload, 0)
        reason = payload[_NO.size :].decode("utf-8", "replace")
        self._say(schema.Vote, self.context.end, self.context.tx_text(tx_id), "failed", offset, reason)

    def _no_ended(self, payload: bytes) -> None:
        tx_id, offset = _NO.unpack_from(payload, 0)
        self._say(schema.Vote, self.context.end, self.context.tx_text(tx_id), "ended", offset)

    def _checkpoint(self, payload: bytes) -> None:
        (extras_size,) = _U32.unpack_from(payload, 0)
        meta, _ = Meta.decode(payload, 4 + extras_size)
        if extras_size:
            plugin = BrokerReplicator(BrokerState(0))
            plugin.replay_extras(payload, 4)
            self._meet(plugin.founding)
        context = self.context
        if context.end and not (meta.offset or meta.starts):
            self._let_go()
        elif not context.end:  # what was before it has been dropped
            context.end = meta.offset
            context.epoch = meta.starts[-1][0] if meta.starts else 0
            context.stable = context.applied = meta.offset
        self._advance(meta.offset)
        self.context.install(meta)
        self._say(schema.Checkpoint, meta.offset, len(self.context.queues), meta.csn)

    def _let_go(self) -> None:
        """`Journal.begin_anew`: a checkpoint of nothing, behind a log that had something."""
        context = self.context
        self._say(schema.Cut, 0, context.end, "let_go")
        self.context = FeedContext(since=context.since, founding=context.founding, epoch=context.epoch)

    # -- pieces of a catch-up -----------------------------------------------------------------------------------------

    def _piece(self, payload: bytes) -> None:
        taker = self._pieces.get(payload[0])
        if taker is None:
            raise wire.UnknownMessageError(payload[0])
        taker(payload)

    def _base(self, message: bytes) -> None:
        meta, at = Meta.decode(message, 2)
        kept = wire.decode_kept(message, at) if wire.base_form(message) == wire.BASE_AGAIN else {}
        context = self.context
        context.restart(meta, kept)
        if meta.starts:
            context.epoch = meta.starts[-1][0]
        self._say(schema.Piece, meta.offset, "base", "", "", 0, 0, len(context.queues), "", meta.csn)

    def _drop(self, message: bytes) -> None:
        queue_id, ids = wire.decode_drop(message)
        self._ids_of_queue("drop", queue_id, list(ids))

    def _queue_piece(self, message: bytes) -> None:
        queue_id, _, entries = snapshot.decode_queue_piece(message)
        self._ids_of_queue("queue", queue_id, [entry[0] for entry in entries])

    def _ids_of_queue(self, what: str, queue_id: int, ids: list[int]) -> None:
        vhost, queue, _ = self.context.queues.get(queue_id, NO_QUEUE)
        for first, count in _runs(ids):
            self._say(schema.Piece, self.context.end, what, vhost, queue, queue_id, first, count)

    def _transaction_piece(self, message: bytes) -> None:
        records = snapshot.decode_transaction_piece(message)
        if not records:
            return
        tx_id = int.from_bytes(records[0][1][5:13], "big")
        text = self.context.tx_text(tx_id)
        self._say(schema.Piece, self.context.end, "transaction", "", "", 0, 0, len(records), text)
        for offset, raw in records:
            taker = self._takers.get(raw[0] & ~record.TRANSIENT)
            if taker is None:
                raise record.UnknownKindError(raw[0] & ~record.TRANSIENT, f"of a transaction, at offset {offset},")
            taker(raw, 5, len(raw), offset)

    def _caught_up(self, message: bytes) -> None:
        self._say(schema.Piece, self.context.end, "caught_up")


def _runs(ids: tuple[int, ...] | list[int]) -> list[tuple[int, int]]:
    """(first, count) of each run of consecutive ids, in the order of the record."""
    runs: list[tuple[int, int]] = []
    first = last = -1
    for each in ids:
        if each == last + 1 and first >= 0:
            last = each
            continue
        if first >= 0:
            runs.append((first, last - first + 1))
        first = last = each
    if first >= 0:
        runs.append((first, last - first + 1))
    return runs
