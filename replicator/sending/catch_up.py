"""CatchUp: the primary's side of bringing up one backup that its kept log does not reach.

First the base (everything that is not a message, as it is applied now), what to drop, and the content of all undecided
transactions; only then does the log begin to flow, from the base on, and the queues' pieces between its batches. Transactions and
queues are bounded in flight, so their size is nothing to fear. Nor is the time that it takes: if the log has grown too long
meanwhile, the base is put again, further on, and only what the transactions got since is left to be sent before the log.

A broker that merely restarted gets the same as a *refill*: only what is transient, since its journal kept the rest, and only when
the primary has applied everything that this broker will not be sent again. A refill's transactions, those with transient events, go
at once: the group may be waiting for that broker.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple

from understudy.broker.core.life.meta import Meta
from understudy.broker.core.state import BrokerState
from understudy.broker.core.topology.registry import BINDS
from understudy.broker.log import record
from understudy.broker.log.move_record import Move
from understudy.replicator import wire
from understudy.replicator.id_set import IdSet
from understudy.replicator.sending.replicating_subscription import ReplicatingSubscription, brought_bytes
from understudy.replicator.sending.tx_replicating_subscription import TxReplicatingSubscription

PIECE_BYTES = 256 << 10
IN_FLIGHT_BYTES = 8 * PIECE_BYTES
"""No piece is sent while so much is unacknowledged."""
NOT_SENT = 1 << 62
"""No piece has so high a number."""
SAMPLED_MESSAGES = 1_000
"""Of each queue, the oldest so many stand for all in :func:`bytes_to_bring`."""


class _InFlight(NamedTuple):
    """A piece that is sent and not acknowledged: ``left`` messages of a queue, or events of a transaction with their ``ids``."""

    size_bytes: int
    of: ReplicatingSubscription | None = None
    left: int = 0
    ids: Counter[int] | None = None


class CatchUp:
    """One catch-up on one link.

    Attributes:
        base: the log position after which the log flows to this backup.
        opened: all that must come before the first batch of the log has been sent.
        unsent_transactions: transaction id to the number of the piece that completes it at the backup, NOT_SENT before that is
            sent; gone when it is acknowledged. While one is here the backup does not hold that whole tx-queue.
    """

    def __init__(self, state: BrokerState, held: dict[int, IdSet], refill_after: int | None = None) -> None:
        """Fix what is to be sent.

        Args:
            state: the primary's.
            held: the ids that the backup holds, by queue.
            refill_after: for a refill, the offset after which the backup resumes the log.
        """
        self._state = state
        self.refill = refill = refill_after is not None
        self.base = state.log.applied if refill_after is None else refill_after
        self._sent = 0
        self._acked = 0
        self._in_flight: deque[_InFlight] = deque()
        self._in_flight_bytes = 0
        self._ended_at = 0
        self._ready: deque[bytes] = deque()
        self.unsent_transactions: dict[int, int] = {}
        self._transactions: deque[TxReplicatingSubscription] = deque()
        self._queues: deque[ReplicatingSubscription] = deque()
        self._unsent: dict[int, ReplicatingSubscription] = {}
        self._described = False
        self._held = held
        self._sent_of: dict[int, TxReplicatingSubscription] = {}
        self._ids_held: dict[int, Counter[int]] = {}
        if not refill:
            self._describe(wire.BASE_NEW)
        self._find_transactions()
        self.opened = refill or not self._transactions
        if self.opened:
            self._held = {}

    def _describe(self, form: int) -> None:
        """Put the base, and see what each queue lacks: all of it as it is applied now."""
        self._described = True
        state = self._state
        held = self._held
        kept = [(tx_id, each.sent) for tx_id, each in self._sent_of.items()]
        self._ready.append(wire.encode_base(form, self._meta(), kept, not self.refill and self._lacks_transients()))
        for queue in state.queues.values():
            if not queue.logged or queue.id not in state.topology.image.queues:
                continue
            subscription = ReplicatingSubscription(queue, held.get(queue.id, IdSet()), self.refill)
            if not self.refill:
                extra = subscription.extra_ids()
                if len(extra):
                    self._ready.append(wire.encode_drop(queue.id, extra))
                    held[queue.id] = IdSet([entry_id for entry_id in held[queue.id] if entry_id not in extra])
            if subscription.left:
                self._send_later(subscription)

    def _lacks_transients(self) -> bool:
        """True if an undecided, closed transaction lacks what this broker lost with its restart: no broker gets it."""
        undecided = self._state.transactions.values()
        return any(
            tx.closing is not None and (tx.lost_transients or tx.missing_for(tx.closing, may_lack_transients=False))
            for tx in undecided
        )

    def _meta(self) -> bytes:
        meta = Meta.of(self._state)
        if not self.refill:
            return meta.encode()
        topology = []
        for raw in meta.topology:
            if raw[0] == record.QUEUE_DECLARE and not record.decode_queue_declare(raw, 5, len(raw))[3] & record.DURABLE:
                topology.append(raw)
            elif raw[0] == record.EXCHANGE_DECLARE:
                if not record.decode_exchange_declare(raw, 5, len(raw))[3] & record.DURABLE:
                    topology.append(raw)
            elif raw[0] in BINDS:
                topology.append(raw)
        # The epoch in which this was applied: an EPOCH of a later one, which may come after it, ends what is sent here.
        applied = self._state.log.applied
        starts = ((self._state.log.epochs.epoch_at(applied), applied),)
        return Meta(
            offset=0,
            csn=0,
            starts=starts,
            topology=tuple(topology),
            outcomes=type(meta.outcomes)(),
            message_ids=meta.message_ids,
        ).encode()

    def _find_transactions(self) -> None:
        """See what has to be sent of the undecided transactions before the log can follow from the base on."""
        state = self._state
        sent_of = self._sent_of
        ended = state.log.transients_end(self.base)
        for tx in state.transactions.values():
            closed_at = tx.prepare_offset or tx.outcome_offset
            if self.refill and (0 < closed_at <= self.base or max(tx.transient_at, default=0) <= ended):
                # The log that the backup keeps closes it, by PREPARE, ROLLBACK or EPOCH, or ends what is transient in a branch (so
                # it may have applied that already, and nothing ends it twice), or holds all of it.
                continue
            subscription = sent_of.get(tx.tx_id)
            if subscription is None:
                subscription = TxReplicatingSubscription(state, tx, self.base)
                held = self._ids_held.setdefault(tx.tx_id, Counter())
                held.clear()
                subscription.count_in(held)
            else:
                subscription.reach(self.base)
            if subscription.left:
                if not self.refill:
                    sent_of[tx.tx_id] = subscription
                self._transactions.append(subscription)
                self.unsent_transactions[tx.tx_id] = NOT_SENT

    def moved(self, move: Move) -> None:
        """A message has moved that the backup may not have been sent: then it could put nothing into the queues that it enters.

        What it enters is sent like what a queue held at the base: when the backup has applied the MOVE, or before.
        """
        source = self._unsent.get(move.queue_id)
        if move.has_body or source is None or not source.is_left(move.entry_id):
            return
        for queue_id, entry_id, _ in move.targets:
            queue = self._state.queues.get(queue_id)
            if queue is None:
                continue
            subscription = self._unsent.get(queue_id)
            if subscription is None:
                subscription = ReplicatingSubscription(queue, IdSet(), none_yet=True)
                self._send_later(subscription)
            subscription.add(entry_id)

    def _send_later(self, subscription: ReplicatingSubscription) -> None:
        self._queues.append(subscription)
        self._unsent[subscription.queue.id] = subscription

    def opening(self) -> list[bytes]:
        """Messages to send at once, whatever is in flight: base and drops; of a refill the transactions."""
        messages = []
        while self._ready:
            messages.append(self._count(self._ready.popleft()))
        while self.refill and self._transactions:
            messages.append(self._transaction_piece())
        return messages

    def _count(
        self, message: bytes, of: ReplicatingSubscription | None = None, left: int = 0, ids: Counter[int] | None = None
    ) -> bytes:
        """Count a message as sent."""
        self._sent += 1
        self._in_flight.append(_InFlight(len(message), of, left, ids))
        self._in_flight_bytes += len(message)
        if of is not None:
            of.count_sent(left)
        return message

    def _transaction_piece(self) -> bytes:
        """Send the next piece of the first transaction that has not been sent whole."""
        subscription = self._transactions[0]
        before = subscription.left
        piece = subscription.next_piece(PIECE_BYTES)
        assert piece is not None, f"{subscription.tx.tx_id} has nothing left, and waits to be sent"
        if not subscription.left:
            self._transactions.popleft()
            self.unsent_transactions[subscription.tx.tx_id] = self._sent + 1
        return self._count(piece, subscription, before - subscription.left, subscription.piece_ids)

    def _opening_message(self) -> bytes:
        """The next of what comes before the log."""
        message = self._count(self._ready.popleft()) if self._ready else self._transaction_piece()
        if not self._ready and not self._transactions:
            self._go_on()
        return message

    def _go_on(self) -> None:
        """All that comes before the log is sent: the log follows now, or the base moves on first.

        It moves if more has been applied since than half of what is kept: no batch is to leave the kept log on its way.
        """
        log = self._state.log
        kept = log.kept
        if kept.reaches(self.base, log.closed_end) and kept.size_of(self.base, log.applied) <= kept.limit_bytes // 2:
            self._open()
            return
        self.base = log.applied
        undecided = self._state.transactions
        # Who is sent a base behind an EPOCH does not apply that: what it has ended is sent anew, without what it took away.
        for tx_id, each in list(self._sent_of.items()):
            if tx_id not in undecided or each.outdated:
                each.count_in(Counter())  # what of it is still on its way counts for nobody
                del self._sent_of[tx_id]
        self._queues.clear()
        self._unsent.clear()
        self._describe(wire.BASE_AGAIN)
        self._find_transactions()
        for tx_id, piece in self.unsent_transactions.items():
            if piece == NOT_SENT and tx_id not in undecided:
                self.unsent_transactions[tx_id] = self._sent + 1  # the base, which is without it

    def _open(self) -> None:
        """The log may flow."""
        self.opened = True
        self._held = {}
        self._sent_of = {}
        for tx_id, piece in self.unsent_transactions.items():
            if piece == NOT_SENT:  # what it has behind the base comes with the log
                self.unsent_transactions[tx_id] = self._sent

    def next_message(self) -> bytes | None:
        """The next piece, if one may be sent now; CAUGHT_UP after the last."""
        if not self.opened and self._ready:
            return self._opening_message()  # a base, and what to drop: all at once, the sooner the log follows
        if self._ended_at or self._in_flight_bytes >= IN_FLIGHT_BYTES:
            return None
        if not self.opened:
            return self._opening_message()
        if not self._described:
            # The backup's journal kept no transient record, the ones that we have not applied ourselves neither.
            if self._state.log.applied < self.base:
                return None
            self._describe(wire.BASE_OF_REFILL)
        if self._ready:
            return self._count(self._ready.popleft())
        while self._queues:
            subscription = self._queues[0]
            before = subscription.left
            piece = subscription.next_piece(PIECE_BYTES)
            if piece is not None:
                return self._count(piece, subscription, before - subscription.left)
            self._queues.popleft()
            del self._unsent[subscription.queue.id]
        self._ended_at = self._sent + 1
        return self._count(bytes((wire.CAUGHT_UP,)))

    def acknowledged(self, count: int) -> list[int]:
        """The backup holds the first ``count`` pieces durably; returns transactions that it now holds whole."""
        if count > self._sent:
            raise wire.WireError(f"{count} pieces are acknowledged, {self._sent} were sent")
        for _ in range(count - self._acked):
            piece = self._in_flight.popleft()
            self._in_flight_bytes -= piece.size_bytes
            if piece.of is not None:
                piece.of.count_sent(-piece.left)
                if piece.ids is not None and isinstance(piece.of, TxReplicatingSubscription):
                    piece.of.ids_held.update(piece.ids)
        self._acked = max(self._acked, count)
        whole = [tx_id for tx_id, piece in self.unsent_transactions.items() if piece <= self._acked]
        for tx_id in whole:
            del self.unsent_transactions[tx_id]
            self._ids_held.pop(tx_id, None)
        return whole

    def lacks(self, tx_id: int) -> bool:
        """True if the backup does not hold all of a transaction that closes now, but for what follows it in the log."""
        if not self.opened:
            self.unsent_transactions.setdefault(tx_id, NOT_SENT)
        return tx_id in self.unsent_transactions

    @property
    def finished(self) -> bool:
        """Everything is sent and held."""
        return self._ended_at > 0 and self._acked >= self._ended_at

    def ids_held(self, tx_id: int) -> Mapping[int, int]:
        """By queue, how many ids of that transaction the backup is known to hold, from now on; of what came with the log none."""
        return self._ids_held.setdefault(tx_id, Counter())

    def _unheld(self) -> Iterable[ReplicatingSubscription]:
        """Queues and transactions that the backup does not hold whole, in the order in which they are sent."""
        sent = [piece.of for piece in self._in_flight if piece.of is not None]
        return dict.fromkeys([*sent, *self._transactions, *self._queues])

    def blockers(self) -> list[tuple[str, int]]:
        """(queue name, messages that are still to be held), for status."""
        return [(each.queue.name, each.left + each.unacknowledged) for each in self._unheld() if not _is_tx(each)]

    def open_transactions(self) -> list[tuple[int, int]]:
        """(transaction id, events that are still to be held), for status."""
        return [(each.queue.id, each.left + each.unacknowledged) for each in self._unheld() if _is_tx(each)]


def _is_tx(subscription: ReplicatingSubscription) -> bool:
    return isinstance(subscription, TxReplicatingSubscription)


def bytes_to_bring(state: BrokerState) -> int:
    """About how many bytes the catch-up of a backup that holds nothing would bring. The time it takes is bounded a queue."""
    total = 0
    for queue in state.queues.values():
        count = len(queue.entries)
        if queue.logged and count:
            sample = [brought_bytes(entry) for entry in islice(queue.entries.values(), SAMPLED_MESSAGES)]
            total += sum(sample) * count // len(sample)
    return total + sum(tx.size_bytes for tx in state.transactions.values())
