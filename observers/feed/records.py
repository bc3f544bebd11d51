"""RecordEvents: records of the log to events, one function a kind.

Record kinds that this program does not know raise, as everywhere: a feed that passed over them would be believed. Enqueues and
dequeues are most of what there is, so their bodies are never copied and their events are made without detours; measure with
``python -m tests.unit.observers.feed.feed_speed``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from understudy.broker.log import record
from understudy.broker.log.exchange_bind_record import decode_exchange_bind
from understudy.broker.log.move_record import decode_move_place
from understudy.broker.log.return_record import decode_return
from understudy.broker.transactions.dtx_branch import Owner
from understudy.observers import events_schema as schema
from understudy.observers.events_schema import SCHEMA_VERSION, Event
from understudy.observers.feed.context import COMMITTED, NO_QUEUE, ROLLED_BACK, FeedTx, plain_text
from understudy.observers.feed.event_stream import EventStream, runs_of

_EPOCH_REASON: Final = "its primary was replaced before it was closed"
_OWNERS: Final = {owner.value: owner.name.lower() for owner in Owner}


class RecordEvents:
    """Says its events to ``to``.

    Attributes:
        takers: by kind of record: called with the buffer, where the record's content begins and ends in it, and its offset.
    """

    def __init__(self, to: EventStream) -> None:
        self._to = to
        self.takers: Final[dict[int, Callable[[bytes, int, int, int], None]]] = {
            record.EPOCH: self._epoch,
            record.QUEUE_DECLARE: self._queue_declare,
            record.QUEUE_DELETE: self._queue_delete,
            record.EXCHANGE_DECLARE: self._exchange_declare,
            record.EXCHANGE_DELETE: self._exchange_delete,
            record.BIND: self._bind,
            record.UNBIND: self._unbind,
            record.EXCHANGE_BIND: self._exchange_bind,
            record.EXCHANGE_UNBIND: self._exchange_unbind,
            record.ENQUEUE: self._enqueue,
            record.DEQUEUE: self._dequeue,
            record.TX_ENQUEUE: self._tx_enqueue,
            record.TX_ENQUEUE_TIMED: self._tx_enqueue,
            record.TX_DEQUEUE: self._tx_dequeue,
            record.TX_BODY_PART: self._body_part,
            record.TX_ENQUEUE_PARTED: self._tx_enqueue_parted,
            record.PREPARE: self._prepare,
            record.COMMIT: self._commit,
            record.ROLLBACK: self._rollback,
            record.OUTCOME: self._outcome,
            record.OUTCOMES_TRIMMED: self._outcomes_trimmed,
            record.BARRIER: self._barrier,
            record.DTX_PREPARE: self._dtx_prepare,
            record.DTX_ROLLBACK: self._dtx_rollback,
            record.DTX_FORGET: self._dtx_forget,
            record.MOVE: self._move,
            record.RETURN: self._return,
            record.ID_TIME: self._id_time,
        }

    # -- messages -----------------------------------------------------------------------------------------------------

    def _enqueue(self, buf: bytes, at: int, end: int, offset: int) -> None:
        targets, at = record.decode_enqueue_targets(buf, at, end)
        self._come("", targets, buf, at, end, offset)

    def _tx_enqueue(self, buf: bytes, at: int, end: int, offset: int) -> None:
        tx_id, targets, at = record.decode_tx_enqueue_targets(buf, at, end)
        tx = self._to.context.transactions.get(tx_id) or self._to.of_tx(tx_id, offset)
        self._come(tx.text, targets, buf, at, end, offset)

    def _tx_enqueue_parted(self, buf: bytes, at: int, end: int, offset: int) -> None:
        tx_id, targets, at = record.decode_tx_enqueue_targets(buf, at, end)
        body = record.decode_message_head(buf, at)[-1]  # it stands in parts: as if it stood here
        end = body + record.decode_parted_tail(buf, end)[2]
        out = self._to.out
        known = len(out)
        self._come(self._to.of_tx(tx_id, offset).text, targets, buf, at, end, offset)
        out[known:] = [
            replace(event, parted=True) if isinstance(event, schema.Enqueue) else event for event in out[known:]
        ]

    def _body_part(self, buf: bytes, at: int, end: int, offset: int) -> None:
        """Open the part's transaction if it is new. The part is no event itself: the message's record tells of it."""
        self._to.of_tx(record.decode_body_part_place(buf, at)[0], offset)

    def _come(self, tx: str, targets: list[record.Target], buf: bytes, at: int, end: int, offset: int) -> None:
        """A message comes to ``targets``: by ids, or in a transaction by places. Most events are made here: no detours."""
        persistent, exchange, routing_key, body = record.decode_message_head(buf, at)
        if not (exchange.isascii() and routing_key.isascii()):
            exchange, routing_key = plain_text(exchange), plain_text(routing_key)
        to = self._to
        context = to.context
        seq = to.seq
        for queue_id, number, deadline_ms in targets:
            vhost, queue, _ = context.queues.get(queue_id, NO_QUEUE)
            seq += 1
            entry_id, place = (0, number) if tx else (number, 0)
            ttl_ms = -1
            if deadline_ms >= record.FROM_COMMIT:
                ttl_ms, deadline_ms = deadline_ms - record.FROM_COMMIT, 0  # noqa: PLW2901
            to.out.append(
                schema.Enqueue(
                    SCHEMA_VERSION,
                    to.group,
                    context.founding,
                    to.broker,
                    to.incarnation,
                    seq,
                    context.epoch,
                    offset,
                    to.at_ms,
                    tx,
                    vhost,
                    queue,
                    queue_id,
                    entry_id,
                    place,
                    end - body,
                    persistent,
                    exchange,
                    routing_key,
                    deadline_ms,
                    ttl_ms,
                )
            )
        to.said_up_to(seq)

    def _dequeue(self, buf: bytes, at: int, end: int, offset: int) -> None:
        reason, groups = record.decode_dequeue(buf, at)
        self._leave("", groups, record.REASON_NAMES.get(reason, str(reason)), offset)

    def _move(self, buf: bytes, at: int, end: int, offset: int) -> None:
        queue_id, entry_id, reason, size, targets, at = decode_move_place(buf, at, end)
        why = record.REASON_NAMES.get(reason, str(reason))
        vhost, queue, _ = self._to.context.queues.get(queue_id, NO_QUEUE)
        self._to.say(schema.Move, offset, vhost, queue, queue_id, entry_id, why, len(targets))
        if queue_id:
            self._leave("", [(queue_id, (entry_id,))], why, offset)
        body = record.decode_message_head(buf, at)[-1]
        self._come("", targets, buf, at, body + size, offset)

    def _return(self, buf: bytes, at: int, end: int, offset: int) -> None:
        for queue_id, entries in decode_return(buf, at):
            vhost, queue, _ = self._to.context.queues.get(queue_id, NO_QUEUE)
            for entry_id, returned in entries:
                self._to.say(schema.Return, offset, vhost, queue, queue_id, entry_id, *returned)

    def _tx_dequeue(self, buf: bytes, at: int, end: int, offset: int) -> None:
        tx_id, groups = record.decode_tx_dequeue(buf, at)
        self._leave(self._to.of_tx(tx_id, offset).text, groups, "", offset)

    def _leave(self, tx: str, groups: list[record.Group], reason: str, offset: int) -> None:
        queues = self._to.context.queues
        for queue_id, ids in groups:
            vhost, queue, _ = queues.get(queue_id, NO_QUEUE)
            if len(ids) == 1:
                self._to.say(schema.Dequeue, offset, tx, vhost, queue, queue_id, ids[0], 1, reason)
                continue
            for first, count in runs_of(ids):
                self._to.say(schema.Dequeue, offset, tx, vhost, queue, queue_id, first, count, reason)

    # -- transactions -------------------------------------------------------------------------------------------------

    def _prepare(self, buf: bytes, at: int, end: int, offset: int) -> None:
        prepare = record.decode_prepare(buf, at)
        context = self._to.context
        tx = self._to.of_tx(prepare.tx_id, offset)
        if not tx.branch:
            self._close(tx, prepare.events, prepare.digest, prepare.durable_events, prepare.durable_digest, offset)
        context.prepare(tx, offset, prepare.csn)
        owner = _OWNERS.get(prepare.kind, str(prepare.kind))
        first_ids = prepare.first_ids
        self._to.say(
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
            self._to.say(schema.Assign, offset, tx.text, prepare.csn, vhost, queue, queue_id, first, count)

    def _close(
        self, tx: FeedTx, events: int, digest: int, durable_events: int, durable_digest: int, offset: int
    ) -> None:
        self._to.say(schema.Close, offset, tx.text, events, f"{digest:08x}", durable_events, f"{durable_digest:08x}")

    def _decided(self, tx_id: int, outcome: int, offset: int) -> str:
        """Note what became of a transaction; how events name it."""
        tx = self._to.context.transactions.get(tx_id)
        if tx is None:
            return self._to.context.tx_text(tx_id)
        self._to.context.decide(tx, outcome, offset)
        return tx.text

    def _commit(self, buf: bytes, at: int, end: int, offset: int) -> None:
        tx_id, csn, time_ms = record.decode_commit(buf, at)
        self._to.say(schema.Commit, offset, self._decided(tx_id, COMMITTED, offset), csn, time_ms)

    def _rollback(self, buf: bytes, at: int, end: int, offset: int) -> None:
        tx_id, time_ms, name, reason = record.decode_rollback(buf, at)
        text = self._decided(tx_id, ROLLED_BACK, offset)
        self._to.say(schema.Rollback, offset, text, plain_text(name), plain_text(reason), time_ms)

    def _dtx_prepare(self, buf: bytes, at: int, end: int, offset: int) -> None:
        tx_id, branch = record.decode_dtx_prepare(buf, at, offset)
        tx = self._to.of_tx(tx_id, offset)
        self._close(tx, branch.events, branch.digest, branch.durable_events, branch.durable_digest, offset)
        self._to.context.close_branch(tx, offset)
        self._to.say(schema.DtxPrepare, offset, tx.text, plain_text(branch.vhost), str(branch.xid), branch.time_ms)

    def _dtx_rollback(self, buf: bytes, at: int, end: int, offset: int) -> None:
        tx_id, time_ms, (vhost, xid) = record.decode_dtx_rollback(buf, at)
        text = self._decided(tx_id, ROLLED_BACK, offset)
        self._to.say(schema.DtxRollback, offset, text, plain_text(vhost), str(xid), time_ms)

    def _dtx_forget(self, buf: bytes, at: int, end: int, offset: int) -> None:
        vhost, xid = record.decode_dtx_forget(buf, at)
        self._to.say(schema.DtxForget, offset, plain_text(vhost), str(xid))

    def _outcome(self, buf: bytes, at: int, end: int, offset: int) -> None:
        name, _, time_ms = record.decode_outcome(buf, at)
        self._to.say(schema.Outcome, offset, plain_text(name), time_ms)

    def _outcomes_trimmed(self, buf: bytes, at: int, end: int, offset: int) -> None:
        self._to.say(schema.OutcomesTrimmed, offset, record.decode_outcomes_trimmed(buf, at)[0])

    def _id_time(self, buf: bytes, at: int, end: int, offset: int) -> None:
        """The time is of the broker's own use: no message comes or goes."""
        self._to.say(schema.Hole, offset, 1)

    def _barrier(self, buf: bytes, at: int, end: int, offset: int) -> None:
        self._to.say(schema.Hole, offset, 1)

    # -- topology and epochs ------------------------------------------------------------------------------------------

    def _epoch(self, buf: bytes, at: int, end: int, offset: int) -> None:
        epoch, primary, lost, time_ms = record.decode_epoch(buf, at)
        self._to.say(schema.Epoch, offset, primary, lost, time_ms, epoch=epoch)
        for tx in self._to.context.end_open(offset):
            self._to.say(schema.Rollback, offset, tx.text, "", _EPOCH_REASON, 0)

    def _queue_declare(self, buf: bytes, at: int, end: int, offset: int) -> None:
        queue_id, vhost, name, flags, _ = record.decode_queue_declare(buf, at, end)
        vhost, name = plain_text(vhost), plain_text(name)
        self._to.context.declare(buf, at, end, offset)
        if flags & record.USED:  # of a queue that was declared before
            self._to.say(schema.Hole, offset, 1)
            return
        durable, auto_delete = bool(flags & record.DURABLE), bool(flags & record.AUTO_DELETE)
        logged = not flags & record.DEFINITION_ONLY
        self._to.say(schema.Declare, offset, "queue", vhost, name, queue_id, "", "", durable, auto_delete, logged)

    def _queue_delete(self, buf: bytes, at: int, end: int, offset: int) -> None:
        queue_id = record.decode_queue_delete(buf, at)
        vhost, name, _ = self._to.context.queues.get(queue_id, NO_QUEUE)
        self._to.say(schema.Delete, offset, "queue", vhost, name, queue_id)

    def _exchange_declare(self, buf: bytes, at: int, end: int, offset: int) -> None:
        vhost, name, kind, flags, _ = record.decode_exchange_declare(buf, at, end)
        if flags & record.USED:
            self._to.say(schema.Hole, offset, 1)
            return
        vhost, name = plain_text(vhost), plain_text(name)
        durable, auto_delete = bool(flags & record.DURABLE), bool(flags & record.AUTO_DELETE)
        self._to.say(schema.Declare, offset, "exchange", vhost, "", 0, name, kind, durable, auto_delete)

    def _exchange_delete(self, buf: bytes, at: int, end: int, offset: int) -> None:
        vhost, name = record.decode_exchange_delete(buf, at)
        self._to.say(schema.Delete, offset, "exchange", plain_text(vhost), "", 0, plain_text(name))

    def _bind(self, buf: bytes, at: int, end: int, offset: int) -> None:
        self._binding(schema.Bind, buf, at, end, offset)

    def _unbind(self, buf: bytes, at: int, end: int, offset: int) -> None:
        self._binding(schema.Unbind, buf, at, end, offset)

    def _binding(self, event: Callable[..., Event], buf: bytes, at: int, end: int, offset: int) -> None:
        vhost, exchange, queue_id, routing_key, _ = record.decode_bind(buf, at, end)
        queue = self._to.context.queues.get(queue_id, NO_QUEUE)[1]
        self._to.say(event, offset, plain_text(vhost), plain_text(exchange), queue, queue_id, plain_text(routing_key))

    def _exchange_bind(self, buf: bytes, at: int, end: int, offset: int) -> None:
        self._to.say(schema.ExchangeBind, offset, *map(plain_text, decode_exchange_bind(buf, at, end)[:4]))

    def _exchange_unbind(self, buf: bytes, at: int, end: int, offset: int) -> None:
        self._to.say(schema.ExchangeUnbind, offset, *map(plain_text, decode_exchange_bind(buf, at, end)[:4]))
