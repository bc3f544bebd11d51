"""TxReplicatingSubscription: the primary's end of one tx-queue's catch-up to one backup (tx catch-up)."""

from __future__ import annotations

from collections import Counter

from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.state import BrokerState
from understudy.broker.log import record
from understudy.broker.log.record import Target
from understudy.broker.message import Message
from understudy.broker.transactions.body_parts import PartedBody, Place
from understudy.broker.transactions.tx_buffer import TxBuffer
from understudy.replicator import snapshot, wire
from understudy.replicator.id_set import IdSet
from understudy.replicator.sending.replicating_subscription import ReplicatingSubscription
from understudy.replicator.tx_queue import tx_queue_name


class TxReplicatingSubscription(ReplicatingSubscription):
    """Sends the events of an undecided transaction that stand in the log at or before the catch-up's base, and its DTX_PREPARE.

    The records are encoded again and come out with the same bytes, so the backup's digest is the one that PREPARE states.

    Attributes:
        sent: how many events have been sent.
        ids_held: by queue, how many ids of messages enqueued and dequeued are in pieces that the backup holds.
        piece_ids: the same of the piece that was made last.
    """

    def __init__(self, state: BrokerState, tx: TxBuffer, base: int) -> None:
        name = tx_queue_name(tx.tx_id)
        tx_queue = Queue(tx.tx_id, "", name, durable=True, auto_delete=True, arguments={}, live=state.live)
        super().__init__(tx_queue, IdSet())
        self.tx = tx
        # As they are now: an EPOCH behind the base may end the transient ones, and the backup applies that EPOCH itself, unless
        # the base is put again behind it (`outdated`).
        self._events, self._transient_at = tx.events, tx.transient_at
        self.sent = 0
        self.ids_held: Counter[int] = Counter()
        self.piece_ids: Counter[int] = Counter()
        self._at = 0
        self._scanned = 0
        self._logged = 0
        self._prepared = self._prepare_sent = False
        self._read: tuple[PartedBody, memoryview] | None = None
        self.reach(base)

    def count_in(self, ids_held: Counter[int]) -> None:
        """Count in ``ids_held`` what the backup holds."""
        self.ids_held = ids_held

    def reach(self, base: int) -> None:
        """The base is at ``base`` now: what the transaction got up to there is to be sent too."""
        events = self._events
        at = self._scanned
        while at < len(events) and events[at][0] <= base:
            self._logged += events[at][0] > 0
            at += 1
        self._scanned = at
        branch = self.tx.branch
        self._prepared = branch is not None and branch.offset <= base

    @property
    def outdated(self) -> bool:
        """An EPOCH that is applied now has ended some of what is sent."""
        return self._events is not self.tx.events

    @property
    def left(self) -> int:
        return self._logged - self.sent + (self._prepared and not self._prepare_sent)

    def next_piece(self, limit_bytes: int) -> bytes | None:
        """The next records of the tx-queue, or None when all have been sent."""
        records: list[tuple[int, bytes]] = []
        size = 0
        ids: Counter[int] = Counter()
        self.piece_ids = ids
        while self._at < self._scanned and size < limit_bytes:
            offset, message, content = self._events[self._at]
            self._at += 1
            if not offset:
                continue  # concerns only queues whose messages are not in the log
            parts = self.tx.parts
            if parts is not None and offset in parts.places:
                raw = self._parted(offset, message, content, parts.places[offset])
                if message is not None:
                    ids.update(target[0] for target in content)
            elif message is None:
                for queue_id, entry_ids in content:
                    ids[queue_id] += len(entry_ids)
                raw = record.encode_tx_dequeue(self.tx.tx_id, content)
            else:
                ids.update(target[0] for target in content)
                head = record.encode_tx_enqueue(self.tx.tx_id, content, message, offset in self._transient_at)
                raw = head + message.properties + message.content()
            records.append((offset, raw))
            size += len(raw)
        self.sent += len(records)
        branch = self.tx.branch
        if branch is not None and self._prepared and not self._prepare_sent and self.sent == self._logged:
            self._prepare_sent = True
            records.append((branch.offset, record.encode_dtx_prepare(self.tx.tx_id, branch)))
        return snapshot.encode_transaction_piece(wire.TRANSACTION, records) if records else None

    def _parted(self, offset: int, message: Message | None, targets: list[Target], place: Place) -> bytes:
        """The record at ``offset``: a part of a body, or a message whose body stands in parts."""
        tx, transient = self.tx, offset in self._transient_at
        body, start, end = place
        if message is None:
            head = record.encode_body_part(tx.tx_id, body.number, start, end - start, transient)
            if self._read is None or self._read[0] is not body:
                self._read = (body, body.octets())  # a spilled one is read once, and not for each part
            return head + self._read[1][start:end]
        self._read = None
        head, tail = record.encode_tx_enqueue_parted(tx.tx_id, targets, message, transient, body.number, tx.own)
        return head + message.properties + tail
