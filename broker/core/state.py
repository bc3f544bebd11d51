"""BrokerState: what one broker holds, and the only code that changes it by records.

A primary appends records and a backup (or a recovery) takes them from batches; both end in the same ``_apply_*`` functions,
in log order, when the stable position has passed. There is one exception to "applied when stable", and it is none: the
content of open transactions (``transactions``) and the registry are kept at the newest record, since nothing of them can
be seen by a client; a cut takes that back from the records that stay.

Order of a transaction: it is applied at the place of its PREPARE in the log. A primary decides there (``deciding``), a
backup waits there for the COMMIT or ROLLBACK that the primary appended. So every broker's queues change in log order,
which is replication-id order (G9).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any, Final

from understudy.broker.amqp.errors import MalformedFrameError
from understudy.broker.amqp.field_table import FieldTable, decode_table
from understudy.broker.core.queues.arrival import ANY_CONSUMER, Arrival
from understudy.broker.core.queues.deduplication import DeduplicationRule
from understudy.broker.core.queues.entry import Entry
from understudy.broker.core.queues.id_windows import IdWindows
from understudy.broker.core.queues.messages_again import MessagesAgain
from understudy.broker.core.queues.priority_queue import queue_class
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.queues.queue_arguments import FROM_FORMAT_5
from understudy.broker.core.queues.replication_level import ReplicationLevel
from understudy.broker.core.topology.exchanges import Binding, ExchangeBinding, exchange_class
from understudy.broker.core.topology.policies import Policies
from understudy.broker.core.topology.registry import BINDS, Registry, TopologyImage, is_another_exchange
from understudy.broker.log import frame, record
from understudy.broker.log.exchange_bind_record import decode_exchange_bind
from understudy.broker.log.kept_log import Batch
from understudy.broker.log.live_offsets import LiveOffsets
from understudy.broker.log.log import Log
from understudy.broker.log.move_record import Move, decode_move
from understudy.broker.log.pending import COMMIT, DEQUEUE, ENQUEUE, PREPARE, Change, Pending
from understudy.broker.log.position import ID_EPOCH_SHIFT
from understudy.broker.log.record import Group, Prepare, Target, deadline_at
from understudy.broker.log.return_record import ReturnGroup, decode_return
from understudy.broker.message import DelayedMessage, Message, MovedMessage, Spill
from understudy.broker.octets.chunks import LARGE_BYTES
from understudy.broker.transactions.dtx_branch import BranchName, Completion, DtxBranch
from understudy.broker.transactions.outcomes import Outcomes
from understudy.broker.transactions.tx_buffer import TxBuffer, TxState

ALL_EPOCHS = 1 << 32
ALL_OFFSETS = 1 << 64
OF_REGISTRY: Final = (Change.TOPOLOGY, Change.MISSING, Change.EPOCH)
"""Changes that the registry shows before they are applied."""
ALL_BYTES = 1 << 63
TX_MEMORY_BYTES = 16 << 20
EMPTY_TABLE = b"\x00\x00\x00\x00"

_Taker = Callable[[bytes, int, int, int, bool], None]
_PlacedRecord = tuple[int, _Taker | None, int, int]
"""Kind with its transient bit, the function that takes it (None for a HOLE), where it begins and ends in its batch."""


class BrokerState:
    """Log, registry, queues, transactions and outcomes of one broker.

    Attributes:
        deciding: this broker is the primary: a stable PREPARE without a ROLLBACK is committed by it.
        scheduled: queues that got something to hand out since the last dispatch (primary).
        arrived: messages with a deadline that came into queues since `MessageExpiry.note_arrivals` (primary).
        overfull: queues that hold more than they may (primary).
        withhold: queues that withhold something since `Delays.look` (primary).
        owed: transactions that are applied and whose COMMIT is not: id to CSN. Whoever becomes primary without that record in
            its log writes it again, since others may wait for it.
        refused: ids of transactions of which this broker lacks something: it applies no COMMIT of them, whoever has decided it,
            and waits to be caught up.
        holes: this log was received with places whose transient records the sender had not kept either, or begins behind
            such a place.
        refilled_exchanges: those that a refill has brought, and the epoch in which its primary had them: older EPOCHs may follow.
        again: notes of messages that the journal holds twice for a while.
        id_windows: ids of messages that came, where duplicates are dropped.
        deduplicates: records have to be noted there.
        has_moved: a message may be here that has moved (`MovedMessage`).
        completions: branches that an operator has completed and nobody has forgotten.
        tx_memory_bytes: of one transaction; bodies beyond it are spilled as they come.
        on_prepare: are told of each PREPARE that a backup takes, and each DTX_PREPARE, before it may be acknowledged: the vote.
        on_applied_tx: are told of each transaction that was applied or discarded, in the order of this list.
        on_moved: are told of each MOVE that has been applied.
        on_requeued: are told of each message that is at its place in a queue again and may be handed out (primary).
    """

    def __init__(
        self,
        kept_bytes: int = 64 << 20,
        spill: Spill | None = None,
        tx_memory_bytes: int = TX_MEMORY_BYTES,
        policies: Policies | None = None,
    ) -> None:
        self.log = Log(kept_bytes)
        self.registry = Registry(policies)
        self.image = TopologyImage()
        self.queues: dict[int, Queue] = {}
        self.transactions: dict[int, TxBuffer] = {}
        self.outcomes = Outcomes()
        self.completions: dict[BranchName, Completion] = {}
        self.live = LiveOffsets()
        self.again = MessagesAgain()
        self.csn = 0
        self.deciding = False
        self.dropped_by_delete = 0
        self.owed: dict[int, int] = {}
        self.refused: Container[int] = ()
        self.holes = self.has_moved = self.deduplicates = False
        self.id_windows = IdWindows()
        self.tx_memory_bytes = tx_memory_bytes if spill is not None else ALL_BYTES
        self._spill = spill
        self.scheduled: list[Queue] = []
        self.arrived: list[Arrival] = []
        self.overfull: list[Queue] = []
        self.withhold: list[Queue] = []
        self.refilled_exchanges: dict[tuple[str, str], int] = {}
        self.on_prepare: list[Callable[[TxBuffer], None]] = []
        self.on_applied_tx: list[Callable[[TxBuffer], None]] = []
        self.on_moved: list[Callable[[Move], None]] = []
        self.on_requeued: list[Callable[[Queue, Entry], None]] = []
        self._takers: dict[int, _Taker] = {
            record.EPOCH: self._take_epoch,
            record.QUEUE_DECLARE: self._take_topology,
            record.QUEUE_DELETE: self._take_topology,
            record.EXCHANGE_DECLARE: self._take_topology,
            record.EXCHANGE_DELETE: self._take_topology,
            record.BIND: self._take_topology,
            record.UNBIND: self._take_topology,
            record.EXCHANGE_BIND: self._take_topology,
            record.EXCHANGE_UNBIND: self._take_topology,
            record.ENQUEUE: self._take_enqueue,
            record.DEQUEUE: self._take_dequeue,
            record.TX_ENQUEUE: self._take_tx_enqueue,
            record.TX_ENQUEUE_TIMED: self._take_timed_tx_enqueue,
            record.TX_DEQUEUE: self._take_tx_dequeue,
            record.TX_BODY_PART: self._take_body_part,
            record.TX_ENQUEUE_PARTED: self._take_tx_enqueue_parted,
            record.PREPARE: self._take_prepare,
            record.COMMIT: self._take_commit,
            record.ROLLBACK: self._take_rollback,
            record.OUTCOME: self._take_outcome,
            record.OUTCOMES_TRIMMED: self._take_trimmed,
            record.BARRIER: self._take_barrier,
            record.DTX_PREPARE: self._take_dtx_prepare,
            record.DTX_ROLLBACK: self._take_dtx_rollback,
            record.DTX_FORGET: self._take_dtx_forget,
            record.MOVE: self._take_move,
            record.RETURN: self._take_return,
            record.ID_TIME: self._take_id_time,
        }
        appliers: dict[Change, Callable[[Any], Any]] = {
            Change.ENQUEUE: self.apply_enqueue,
            Change.DEQUEUE: self.apply_dequeue,
            Change.MOVE: self.apply_move,
            Change.RETURN: self.apply_return,
            Change.ID_TIME: self._apply_id_time,
            Change.TOPOLOGY: self._apply_topology,
            Change.MISSING: self._apply_missing,
            Change.MESSAGE_IDS: self._apply_message_ids,
            Change.PREPARE: self.apply_prepare,
            Change.COMMIT: self._apply_commit,
            Change.ROLLBACK: self._apply_rollback,
            Change.EPOCH: self._apply_epoch,
            Change.DTX_ROLLBACK: self._apply_dtx_rollback,
            Change.DTX_FORGET: self._apply_dtx_forget,
            Change.OUTCOME: self._apply_outcome,
            Change.OUTCOMES_TRIMMED: self._apply_trimmed,
        }
        for change, apply in appliers.items():
            self.log.applies(change, apply)

    # -- taking batches (backup, recovery) --------------------------------------------------------------------------

    def receive_batch(self, data: bytes) -> None:
        """Append a closed batch that continues the log; records that are held already are passed over.

        Raises:
            UnknownKindError: a record kind that this program does not know: the peer (or who wrote the journal) is newer.
            UnknownExchangeTypeError: the same.
            RecordError, struct.error, ValueError: a length is wrong, or what a record says cannot be read.

        Whatever is raised, nothing of the batch has been taken.
        """
        epoch, offset, count = frame.BATCH_PLACE.unpack_from(data, frame.BATCH_PLACE_AT)
        records = self._checked_records(data, count)
        held = self.log.end
        self.log.receive(Batch(offset, offset + count - 1, epoch, data))
        try:
            self._take_records(data, records, offset, held)
        except Exception:
            self.cut(held)
            self.rebuild_registry(keep_places=True)
            raise

    def _take_records(self, data: bytes, records: list[_PlacedRecord], offset: int, held: int) -> None:
        """Decode the records of a batch that begins at ``offset``, and take those behind ``held``."""
        log = self.log
        is_bytes = data.__class__ is bytes
        for kind, take, at, end in records:
            if take is None:
                offset += int.from_bytes(data[at + 5 : at + 9], "big")
                self.holes = True
                log.note_hole(offset - 1)
                continue
            if offset > held:
                if is_bytes:
                    take(data, at, end, offset, kind > 0x7F)
                else:
                    take(_separate(data[at:end]), 0, end - at, offset, kind > 0x7F)
            offset += 1

    def _checked_records(self, data: bytes, count: int) -> list[_PlacedRecord]:
        """Kind, function, begin and end of each record of a batch; no function for a HOLE. Raises before any is taken."""
        records: list[_PlacedRecord] = []
        at = frame.BATCH_HEADER_BYTES
        size = len(data)
        takers = self._takers
        head = record.HEAD.unpack_from
        holes = 0
        while at < size:
            kind, length = head(data, at)
            end = at + 5 + length
            take = takers.get(kind & 0x7F)
            if take is None:
                if kind != record.HOLE:
                    raise record.UnknownKindError(kind & 0x7F, f"at byte {at} of a batch")
                holes += int.from_bytes(data[at + 5 : at + 9], "big") - 1
            records.append((kind, take, at, end))
            at = end
        found = len(records) + holes
        if at != size or found != count:
            raise record.RecordError(f"batch states {count} records in {size} bytes; found {found} in {at}")
        return records

    def append_record(self, raw: bytes) -> int:
        """Primary: append a whole record that is rare enough to be decoded again; returns its offset."""
        offset = self.log.append(raw)
        self._takers[raw[0] & 0x7F](raw, 0, len(raw), offset, raw[0] > 0x7F)
        return offset

    def check_known(self, raw: bytes, place: str) -> None:
        """Raises :class:`UnknownKindError` if ``raw``, a whole record that does not come with its batch, cannot be taken."""
        if raw[0] & 0x7F not in self._takers:
            raise record.UnknownKindError(raw[0] & 0x7F, place)

    def take_record(self, raw: bytes, offset: int) -> None:
        """Take one whole record that stands in the log at ``offset`` but does not come with its batch (a catch-up)."""
        self._takers[raw[0] & 0x7F](raw, 0, len(raw), offset, raw[0] > 0x7F)

    def declare_missing(self, topology: Iterable[bytes], epoch: int, upto: int, message_ids: bytes = b"") -> None:
        """Register what this broker lost with its restart, as the primary of ``epoch`` had it when it had applied up to ``upto``.

        All of it stands at that place: what this broker still has to apply up to there is done to older ones of these names, and
        this log has holes where the newer ones were declared. Queues are there at once for what comes to them, without a name.
        So do ``message_ids`` (`IdWindows.encode`).

        Raises:
            RecordError, struct.error, ValueError, IndexError: one of them cannot be read; nothing has been registered.
        """
        missing = list(map(_plain, topology))
        for raw in missing:
            _check_readable(raw)
        known = set(self.queues)
        place = min(upto, self.log.end)
        waiting: list[Pending] = [(place, Change.MISSING, (raw, epoch)) for raw in missing]
        if message_ids:
            waiting.append((place, Change.MESSAGE_IDS, message_ids))
        if place <= self.log.applied:
            for raw in missing:
                self._apply_missing((raw, epoch))
            if message_ids:
                self._apply_message_ids(message_ids)
        else:
            pending = self.log.pending
            before = [each for each in pending if each[0] <= place]
            behind = [each for each in pending if each[0] > place]
            pending.clear()
            pending.extend((*before, *waiting, *behind))
        self.rebuild_registry(keep_places=True)  # what the log brought for these queues meanwhile was passed over
        self._count_uncommitted(self.queues.keys() - known)

    def refill_waits(self) -> bool:
        """True if a missing thing is not in its place yet: the image of what is applied is without it."""
        return any(change is Change.MISSING for _, change, _ in self.log.pending)

    def _count_uncommitted(self, new: Iterable[int]) -> None:
        """Transactions may have come before these queues."""
        for queue_id in new:
            events = [
                content for tx in self.transactions.values() for _, message, content in tx.events if message is not None
            ]
            self.queues[queue_id].uncommitted = sum(target[0] == queue_id for content in events for target in content)

    def _take_enqueue(self, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        targets, message = record.decode_enqueue(buf, at + 5, end)
        message.offset = offset
        self.log.pending.append((offset, ENQUEUE, (message, targets)))

    def _take_dequeue(self, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        self.log.pending.append((offset, DEQUEUE, record.decode_dequeue(buf, at + 5)[1]))

    def _take_move(self, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        move = decode_move(buf, at + 5, end)
        move.message.offset = offset
        self.log.pending.append((offset, Change.MOVE, move))

    def _take_return(self, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        self.log.pending.append((offset, Change.RETURN, decode_return(buf, at + 5)))

    def _take_id_time(self, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        self.log.pending.append((offset, Change.ID_TIME, (offset, record.decode_id_time(buf, at + 5))))

    def _take_tx_enqueue(self, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        """An enqueue of a transaction; its queues hold the message embargoed from now on."""
        tx_id, targets, message, head_end = record.decode_tx_enqueue(buf, at + 5, end)
        message.offset = offset
        tx = self.transactions.get(tx_id)
        if tx is None:
            tx = self.transaction(tx_id)
        tx.add(offset, message, targets, buf[at:head_end], transient)
        if message.__class__ is MovedMessage:
            self.has_moved = True
        if tx.size_bytes > self.tx_memory_bytes:
            self.spill_body(message)
        queues = self.queues
        for target in targets:
            queue = queues.get(target[0])
            if queue is not None:
                queue.uncommitted += 1

    def _take_timed_tx_enqueue(self, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        self._take_tx_enqueue(buf, at, end, offset, transient)
        self.transaction(int.from_bytes(buf[at + 5 : at + 13], "big")).note_timed()

    def _take_tx_dequeue(self, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        tx_id, groups = record.decode_tx_dequeue(buf, at + 5)
        self.transaction(tx_id).add(offset, None, groups, buf[at:end], transient)

    def _take_body_part(self, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        tx_id, number, start, octets, head_end = record.decode_body_part(buf, at + 5, end)
        tx = self.transaction(tx_id)
        if tx.bodies().gather(offset, number, start, octets):
            tx.add(offset, None, (), buf[at:head_end], transient)

    def _take_tx_enqueue_parted(self, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        parted = record.decode_tx_enqueue_parted(buf, at + 5, end)
        targets = parted.targets
        tx = self.transaction(parted.tx_id)
        tx.note_own(parted.own)
        body = tx.bodies().whole(parted.number, parted.size_bytes)
        if body is None:  # it has gone with a segment, since the message is over; else the vote finds out
            return
        message = parted.message
        body.give_to(message, LARGE_BYTES)
        tx.bodies().places[offset] = (body, 0, message.size)
        tx.add(offset, message, targets, buf[at : parted.head_end], transient)
        if message.__class__ is MovedMessage:
            self.has_moved = True
        if not tx.own and tx.size_bytes > self.tx_memory_bytes:
            self.spill_body(message)
        for target in targets:
            queue = self.queues.get(target[0])
            if queue is not None:
                queue.uncommitted += 1

    def _take_prepare(self, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        prepare = record.decode_prepare(buf, at + 5)
        tx = self.transaction(prepare.tx_id)
        self.close_transaction(tx, prepare, offset)
        if tx.branch is None:  # a branch was voted on when it was prepared
            for told in self.on_prepare:
                told(tx)

    def _take_dtx_prepare(self, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        tx_id, branch = record.decode_dtx_prepare(buf, at + 5, offset)
        tx = self.transaction(tx_id)
        self.prepare_branch(tx, branch)
        for told in self.on_prepare:
            told(tx)

    def _take_dtx_rollback(self, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        tx_id, time_ms, name = record.decode_dtx_rollback(buf, at + 5)
        tx = self.transactions.get(tx_id)
        if tx is not None and not tx.outcome_offset:
            tx.rolls_back_at(offset, "rolled back by an operator")
        completion = Completion(committed=False, offset=offset, time_ms=time_ms)
        self.log.pending.append((offset, Change.DTX_ROLLBACK, (tx_id, name, completion)))

    def _take_dtx_forget(self, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        self.log.pending.append((offset, Change.DTX_FORGET, record.decode_dtx_forget(buf, at + 5)))

    def _take_commit(self, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        tx_id, csn, _ = record.decode_commit(buf, at + 5)
        tx = self.transactions.get(tx_id)
        if tx is not None and not tx.outcome_offset:
            tx.commits_at(offset)
        self.log.pending.append((offset, COMMIT, (tx_id, csn, offset)))

    def _take_rollback(self, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        tx_id, _, name, reason = record.decode_rollback(buf, at + 5)
        tx = self.transactions.get(tx_id)
        if tx is not None and not tx.outcome_offset:
            tx.rolls_back_at(offset, reason)
        self.log.pending.append((offset, Change.ROLLBACK, (tx_id, offset, name)))

    def _take_epoch(self, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        epoch, _, lost, _ = record.decode_epoch(buf, at + 5)
        ended = [tx for tx in self.transactions.values() if tx.closing is None and not tx.outcome_offset]
        for tx in ended:
            tx.rolls_back_at(offset, "its primary was replaced before it was closed")
        self.log.pending.append((offset, Change.EPOCH, (ended, epoch if lost else 0, offset)))
        if lost:
            self.log.note_end_of_transients(offset)
            self._unregister_transients(epoch)

    def _unregister_transients(self, epoch: int) -> None:
        """Unregister what an EPOCH ends, so that it cannot be used, though that is not applied yet."""
        for queue in [q for q in self.queues.values() if self._ends_with(q, epoch)]:
            self.registry.remove_queue(queue)
        for vhost in self.registry.vhosts.values():
            for exchange in [x for x in vhost.exchanges.values() if not x.durable]:
                if self.refilled_exchanges.get((vhost.name, exchange.name), 0) < epoch:
                    self.registry.remove_exchange(vhost.name, exchange.name)

    @staticmethod
    def _ends_with(queue: Queue, epoch: int) -> bool:
        """True if an EPOCH that ends transient things ends this queue.

        A refill brings what the primary holds now, and may overtake older EPOCHs that this broker has yet to apply: those end
        what is older than themselves and nothing else. Ids begin with the epoch in which they were given.
        """
        return queue.level.declared_in_log and not queue.durable and queue.id >> ID_EPOCH_SHIFT < epoch

    def _take_outcome(self, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        name = record.decode_outcome(buf, at + 5)[0]
        self.log.pending.append((offset, Change.OUTCOME, (name, offset)))

    def _take_trimmed(self, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        self.log.pending.append((offset, Change.OUTCOMES_TRIMMED, record.decode_outcomes_trimmed(buf, at + 5)))

    def _take_barrier(self, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        pass

    def _take_topology(self, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        raw = buf[at:end]
        self._register(_plain(raw))
        self.log.pending.append((offset, Change.TOPOLOGY, raw))

    # -- transactions: content ------------------------------------------------------------------------------------

    def transaction(self, tx_id: int) -> TxBuffer:
        """The transaction of that id; its first record opens it."""
        tx = self.transactions.get(tx_id)
        if tx is None:
            tx = self.transactions[tx_id] = TxBuffer(tx_id, may_be_cut=True)
        return tx

    def spill_body(self, message: Message) -> None:
        """Let a body of a large transaction go from memory. Its record is in the log's open batch, or was received."""
        assert self._spill is not None
        message.spill(self._spill)

    def close_transaction(self, tx: TxBuffer, prepare: Prepare, offset: int) -> None:
        """Note the PREPARE that stands at ``offset``."""
        tx.closed(prepare, offset)
        self.csn = max(self.csn, prepare.csn)
        self.log.pending.append((offset, PREPARE, tx))

    def prepare_branch(self, tx: TxBuffer, branch: DtxBranch) -> None:
        """Note the DTX_PREPARE at ``branch.offset``. Nothing is applied there: when the log is, the branch counts as prepared."""
        tx.prepared(branch)

    def _discard(self, tx: TxBuffer) -> None:
        self._release(tx.events)
        self.transactions.pop(tx.tx_id, None)

    def forget_unlogged(self, tx: TxBuffer, reason: str) -> None:
        """An open transaction that never reached the log ends: only embargo counts are to be undone."""
        tx.forgotten(reason)
        self._release(tx.events)

    def _release(self, events: list[Any]) -> None:
        for _, message, content in events:
            if message is not None:
                for target in content:
                    queue = self.queues.get(target[0])
                    if queue is not None:
                        queue.uncommitted -= 1

    # -- applying -------------------------------------------------------------------------------------------------

    def apply_enqueue(self, argument: tuple[Message, list[Target]]) -> None:
        message, targets = argument
        if self.deduplicates:
            self.id_windows.note(self.queues, message.offset, targets, message)
        for queue_id, entry_id, deadline_ms in targets:
            queue = self.queues.get(queue_id)
            if queue is not None:
                queue.enqueue(entry_id, message, deadline_ms)
                if queue.consumers and not queue.scheduled:
                    queue.scheduled = True
                    self.scheduled.append(queue)

    def apply_move(self, move: Move) -> None:
        """A message leaves a queue and enters others in this one step.

        A broker that lacks the message, whose body is not in the record, lacks it in the queues that it enters, too: a catch-up
        brings it there.
        """
        self.has_moved = True
        source = self.queues.get(move.queue_id)
        entry = source.entries.get(move.entry_id) if source is not None else None
        message = move.message
        message.shared = len(move.targets) > 1
        if entry is not None and not move.has_body:
            message.share_body(entry.message)
            assert message.size == move.size_bytes, (
                f"{move.entry_id} moves with {move.size_bytes} octets, not {message.size}"
            )
        if entry is not None or move.has_body:
            self.apply_enqueue((message, move.targets))
            for queue_id, entry_id, deadline_ms in move.targets:
                if deadline_ms and queue_id in self.queues:
                    self.arrives(self.queues[queue_id], entry_id)
        if source is not None:
            source.remove(move.entry_id)
        for told in self.on_moved:
            told(move)

    def apply_dequeue(self, groups: list[Group]) -> None:
        for queue_id, ids in groups:
            queue = self.queues.get(queue_id)
            if queue is not None:
                for entry_id in ids:
                    queue.remove(entry_id)

    def apply_return(self, groups: list[ReturnGroup]) -> None:
        """Messages come back, with how often they have failed. What is not here has left, or a catch-up brings it with that."""
        for queue_id, entries in groups:
            queue = self.queues.get(queue_id)
            if queue is None:
                continue
            for entry_id, returned in entries:
                entry = queue.come_back(entry_id, returned)
                if entry is not None:
                    for told in self.on_requeued:
                        told(queue, entry)
            if queue.consumers and not queue.scheduled:
                queue.scheduled = True
                self.scheduled.append(queue)

    def apply_prepare(self, tx: TxBuffer) -> bool | None:
        """The place of the decision. False: it is not known yet, or not for good.

        A primary commits here, and appends COMMIT. A backup waits until the COMMIT or ROLLBACK that it has received is
        stable itself, and so does a primary for a ROLLBACK: before that the record may be cut away with a tail, and the
        next primary decides anew.
        """
        log = self.log
        if not tx.outcome_offset:
            if not self.deciding:
                return False
            assert tx.prepare is not None
            offset = log.append(record.encode_commit(tx.tx_id, tx.prepare.csn, tx.prepare.time_ms))
            tx.commits_at(offset)
            log.pending.append((offset, COMMIT, (tx.tx_id, tx.prepare.csn, offset)))
        elif tx.outcome_offset > log.stable and not (self.deciding and tx.state is TxState.COMMITTING):
            return False
        if tx.state is TxState.COMMITTING:
            if tx.tx_id in self.refused and not self.deciding:
                return False
            self._commit(tx)
            if tx.prepare is not None and tx.prepare.completes is not None:
                completion = Completion(committed=True, offset=tx.prepare_offset, time_ms=tx.prepare.time_ms)
                self.completions[tx.prepare.completes] = completion
        return None

    def _commit(self, tx: TxBuffer) -> None:  # noqa: C901  # hot: no call to save a line
        """commit_ordered: all queues change in this one step."""
        prepare = tx.prepare
        assert prepare is not None
        first_ids = prepare.first_ids
        queues = self.queues
        scheduled = self.scheduled
        deduplicates = self.deduplicates
        for offset, message, content in tx.events:
            if message is None:
                self._take_out(content)
                continue
            if message.__class__ is DelayedMessage:
                message.due_ms = deadline_at(message.due_ms, prepare.time_ms)
            if deduplicates:
                self.id_windows.note(queues, offset and tx.prepare_offset, content, message, prepare.time_ms)
            for queue_id, place, limit_ms in content:
                queue = queues.get(queue_id)
                if queue is None:  # deleted while the transaction had work on it: the rest is committed
                    self.dropped_by_delete += 1
                    continue
                queue.uncommitted -= 1
                first = first_ids.get(queue_id)
                if first is not None:
                    entry_id = first[0] + place
                elif queue.logged:  # it was deleted before PREPARE, and this log has a hole there
                    self.dropped_by_delete += 1
                    continue
                else:
                    entry_id = queue.next_id()
                if limit_ms:
                    limit_ms = deadline_at(limit_ms, prepare.time_ms)  # noqa: PLW2901  # hot
                    self.arrives(queue, entry_id)
                queue.enqueue(entry_id, message, limit_ms)
                if queue.consumers and not queue.scheduled:
                    queue.scheduled = True
                    scheduled.append(queue)
        if self.deduplicates and tx.first_offset:
            self.id_windows.committed(tx.prepare_offset, tx.first_offset)
        tx.applied()
        self.transactions.pop(tx.tx_id, None)
        self.owed[tx.tx_id] = prepare.csn
        self.outcomes.committed(tx.tx_id, prepare.name, tx.prepare_offset)
        for told in self.on_applied_tx:
            told(tx)

    def _take_out(self, groups: Iterable[Group]) -> None:
        """A transaction that commits takes these messages."""
        for queue_id, ids in groups:
            queue = self.queues.get(queue_id)
            if queue is None:
                self.dropped_by_delete += len(ids)
                continue
            for entry_id in ids:
                queue.remove(entry_id)

    def schedule(self, queue: Queue) -> None:
        """``queue`` may have something for its consumers."""
        if queue.consumers and not queue.scheduled:
            queue.scheduled = True
            self.scheduled.append(queue)

    def arrives(self, queue: Queue, entry_id: int) -> None:
        """A message with a deadline comes into ``queue``: a primary's consumers that wait there may have it in any case."""
        if self.deciding:
            self.arrived.append((queue, entry_id, ANY_CONSUMER))

    def _decided(self, tx: TxBuffer) -> None:
        for told in self.on_applied_tx:
            told(tx)

    def _apply_commit(self, argument: tuple[int, int, int]) -> None:
        tx_id, csn, offset = argument
        self.csn = max(self.csn, csn)
        assert tx_id not in self.transactions, f"transaction {tx_id} has a stable COMMIT and was not applied"
        self.owed.pop(tx_id, None)
        self.outcomes.committed(tx_id, "", offset)

    def _apply_rollback(self, argument: tuple[int, int, str]) -> None:
        tx_id, offset, name = argument
        tx = self.transactions.get(tx_id)
        if tx is not None:
            if not tx.outcome_offset:  # it came to this broker behind its ROLLBACK
                tx.rolls_back_at(offset, "")
            tx.applied()
            self._discard(tx)
            self._decided(tx)
        self.outcomes.rolled_back(tx_id, name, offset)

    def _apply_dtx_rollback(self, argument: tuple[int, BranchName, Completion]) -> None:
        tx_id, name, completion = argument
        self._apply_rollback((tx_id, completion.offset, ""))
        self.completions[name] = completion

    def _apply_dtx_forget(self, name: BranchName) -> None:
        self.completions.pop(name, None)

    def _apply_epoch(self, argument: tuple[list[TxBuffer], int, int]) -> None:
        ended, transients_lost, offset = argument
        self.id_windows.time(offset, 0)
        for tx in ended:
            tx.applied()
            self._discard(tx)
            self._decided(tx)
        if transients_lost:
            for tx in self.transactions.values():
                if tx.branch is not None:  # all others that were there are over
                    self._release(tx.drop_transients(offset))
            self._drop_transients(transients_lost, offset)

    def _drop_transients(self, epoch: int, before: int) -> None:
        """End everything transient that is older than ``epoch`` (see :meth:`_ends_with`), whose EPOCH stands at ``before``."""
        for queue in list(self.queues.values()):
            if self._ends_with(queue, epoch):
                self.image.apply(record.QUEUE_DELETE, record.encode_queue_delete(queue.id, True))
                self.registry.remove_queue(queue)
                queue.clear()
                del self.queues[queue.id]
            elif queue.durable:
                for entry in [
                    e for e in queue.entries.values() if not e.message.persistent and e.id >> ID_EPOCH_SHIFT < epoch
                ]:
                    queue.remove(entry.id)
        self.id_windows.drop_transients(self.queues, before)
        for key, raw in list(self.image.exchanges.items()):
            durable = record.decode_exchange_declare(raw, 5, len(raw))[3] & record.DURABLE
            if not durable and self.refilled_exchanges.get(key, 0) < epoch:
                self.image.apply(record.EXCHANGE_DELETE, record.encode_exchange_delete(*key, True))
                self.id_windows.deleted(key, self.registry.vhost(key[0]).exchanges.get(key[1]))
                self.refilled_exchanges.pop(key, None)

    def forget_transients(self) -> None:
        """End of a recovery: what a checkpoint or a catch-up noted of non-durable things did not outlive the process.

        A delete of such a thing is not journaled, so what was noted may be gone from the group long since. What is still there
        comes with a refill. So it is before any refill, which brings what is there at the end of this log or later: a declaration
        that is not applied yet goes, too, since what took it back may be a hole. (What takes a message away never is one.)
        """
        self.refilled_exchanges.clear()
        pending = self.log.pending
        kept = [
            each
            for each in pending
            if each[1] not in (Change.MISSING, Change.MESSAGE_IDS)
            and not (each[1] is Change.TOPOLOGY and each[2][0] & record.TRANSIENT)
        ]
        pending.clear()
        pending.extend(kept)
        self._drop_transients(ALL_EPOCHS, ALL_OFFSETS)
        known = set(self.queues)
        self.rebuild_registry()
        self._count_uncommitted(self.queues.keys() - known)

    def end_recovery(self) -> None:
        """All of the journal has been shown: no gap may have declared what drops duplicates."""
        windows = self.id_windows
        windows.drop_recorded()
        self.deduplicates = bool(windows.exchanges) or any(queue.window is not None for queue in self.queues.values())

    def _apply_outcome(self, argument: tuple[str, int]) -> None:
        name, offset = argument
        self.outcomes.rolled_back(0, name, offset)

    def _apply_trimmed(self, argument: tuple[int, int]) -> None:
        self.outcomes.trim(*argument)

    def _apply_missing(self, argument: tuple[bytes, int]) -> None:
        raw, epoch = argument
        if raw[0] == record.EXCHANGE_DECLARE:
            self.refilled_exchanges[record.decode_exchange_declare(raw, 5, len(raw))[:2]] = epoch
        self._apply_topology(raw, in_log=False)

    def _apply_id_time(self, argument: tuple[int, int]) -> None:
        self.id_windows.time(*argument)

    def _apply_message_ids(self, message_ids: bytes) -> None:
        """Note ids that this broker has forgotten with its restart, and the primary has not."""
        self.id_windows.merge(self.queues, message_ids)

    def _apply_topology(self, raw: bytes, *, in_log: bool = True) -> None:
        """Change the image by a record of this log, which is the next that is pending, or by what the log lacks."""
        raw = _plain(raw)
        kind = raw[0]
        if self.deduplicates:
            self._apply_windows(kind, raw, self.log.pending[0][0] if in_log else 0)
        if kind in BINDS and not self.image.holds_what_is_bound(raw):
            return  # they were forgotten for a refill, which brings this with them, or never comes; or come themselves with the log
        self.image.apply(kind, raw)
        if kind == record.QUEUE_DELETE:
            queue = self.queues.pop(record.decode_queue_delete(raw, 5), None)
            if queue is not None:
                queue.clear()

    def _apply_windows(self, kind: int, raw: bytes, place: int) -> None:
        """Begin or end the window of an exchange; that of a queue is its own. ``place``: of the record; 0 if this log lacks it."""
        if kind == record.EXCHANGE_DECLARE:
            vhost, name, _, _, arguments = record.decode_exchange_declare(raw, 5, len(raw))
            known = self.image.exchanges.get((vhost, name))
            anew = known is not None and is_another_exchange(known, raw)
            since = place if known is None or anew else 0
            self.id_windows.declared((vhost, name), DeduplicationRule.of(_table(arguments)), anew=anew, since=since)
        elif kind == record.EXCHANGE_DELETE:
            vhost, name = record.decode_exchange_delete(raw, 5)
            self.id_windows.deleted((vhost, name), self.registry.vhost(vhost).exchanges.get(name))

    # -- registry -------------------------------------------------------------------------------------------------

    def add_local(self, queue: Queue) -> None:
        """Have ``queue``, which the log does not declare."""
        self.queues[queue.id] = queue
        self.deduplicates = self.deduplicates or queue.window is not None
        self.registry.add_queue(queue)

    def remove_local(self, queue: Queue) -> None:
        """End ``queue``, which the log does not declare."""
        queue.deleted = True
        self.registry.remove_queue(queue)
        self.queues.pop(queue.id, None)
        queue.clear()

    def lead(self) -> None:
        """Decide from now on: this broker is the primary."""
        self.deciding = True

    def _register(self, raw: bytes) -> None:
        """Change the registry by one topology record (kind without the transient bit)."""
        kind = raw[0]
        end = len(raw)
        registry = self.registry
        if kind == record.QUEUE_DECLARE:
            queue_id, vhost, name, flags, arguments = record.decode_queue_declare(raw, 5, end)
            queue = self.queues.get(queue_id)
            if queue is None or not queue.name:
                place = queue  # held by a recovery for a queue whose name comes now
                alone = bool(flags & record.DEFINITION_ONLY)
                found = _table(arguments)
                queue = self.queues[queue_id] = queue_class(found)(
                    queue_id,
                    vhost,
                    name,
                    durable=bool(flags & record.DURABLE),
                    auto_delete=bool(flags & record.AUTO_DELETE),
                    arguments=found,
                    live=LiveOffsets() if alone else self.live,
                    level=ReplicationLevel.CONFIGURATION if alone else ReplicationLevel.ALL,
                    overfull=self.overfull.append,
                    withholds=self.withhold.append,
                )
                self.deduplicates = self.deduplicates or queue.window is not None
                if place is not None:
                    queue.take_over(place)
            queue.deleted = False
            queue.had_consumer = bool(flags & record.USED)
            registry.add_queue(queue)
        elif kind == record.QUEUE_DELETE:
            queue = self.queues.get(record.decode_queue_delete(raw, 5))
            if queue is not None:
                queue.deleted = True
                registry.remove_queue(queue)
        elif kind == record.EXCHANGE_DECLARE:
            vhost, name, exchange_type, flags, arguments = record.decode_exchange_declare(raw, 5, end)
            declared = registry.add_exchange(vhost, name, exchange_type, flags, _table(arguments))
            if self.id_windows.registered(declared):
                self.deduplicates = True
        elif kind == record.EXCHANGE_DELETE:
            registry.remove_exchange(*record.decode_exchange_delete(raw, 5))
        elif kind in (record.EXCHANGE_BIND, record.EXCHANGE_UNBIND):
            self._register_exchange_binding(kind, raw)
        else:
            vhost, exchange, queue_id, routing_key, arguments = record.decode_bind(raw, 5, end)
            queue = self.queues.get(queue_id)
            if queue is None:
                return
            if kind == record.BIND:
                registry.bind(vhost, exchange, Binding(queue, routing_key, _table(arguments), arguments))
            else:
                registry.unbind(vhost, exchange, (queue_id, routing_key, arguments))

    def _register_exchange_binding(self, kind: int, raw: bytes) -> None:
        registry = self.registry
        vhost, source, destination, routing_key, arguments = decode_exchange_bind(raw, 5, len(raw))
        if kind == record.EXCHANGE_UNBIND:
            registry.unbind(vhost, source, (destination, routing_key, arguments))
            return
        led_to = registry.vhost(vhost).exchanges.get(destination)
        if led_to is not None:
            registry.bind(vhost, source, ExchangeBinding(led_to, routing_key, _table(arguments), arguments))

    def rebuild_registry(self, keep_places: bool = False) -> None:
        """Make the registry anew from the applied image and what is pending; queues that neither knows are dropped.

        With ``keep_places`` those stay that a recovery holds a place for: what names them is still to come.
        """
        self.registry = Registry(self.registry.policies)
        applied = self.image.records()
        pending = [(change, argument) for _, change, argument in self.log.pending if change in OF_REGISTRY]
        topology = applied + [_plain(argument) for change, argument in pending if change is Change.TOPOLOGY]
        topology += [argument[0] for change, argument in pending if change is Change.MISSING]
        declared = {
            record.decode_queue_declare(raw, 5, len(raw))[0] for raw in topology if raw[0] == record.QUEUE_DECLARE
        }
        for queue_id in [
            queue_id
            for queue_id, queue in self.queues.items()
            if queue.level.declared_in_log and queue_id not in declared and (queue.name or not keep_places)
        ]:
            self.queues.pop(queue_id).clear()
        for raw in applied:
            self._register(raw)
        for change, argument in pending:
            if change is Change.TOPOLOGY:
                self._register(_plain(argument))
            elif change is Change.MISSING:
                self._register(argument[0])
            elif argument[1]:
                self._unregister_transients(argument[1])
        there = {(vhost.name, name) for vhost in self.registry.vhosts.values() for name in vhost.exchanges}
        self.id_windows.keep_only(there | self.image.exchanges.keys())

    def pending_bars(self) -> dict[str, int]:
        """Names that an OUTCOME or a ROLLBACK bars which is not applied yet, and its offset.

        A backup learns the name of a transaction that was rolled back while it was open from that record, and not before.
        """
        bars: dict[str, int] = {}
        for offset, change, argument in self.log.pending:
            if change is Change.OUTCOME:
                bars[argument[0]] = offset
            elif change is Change.ROLLBACK and argument[2]:
                bars[argument[2]] = offset
        return bars

    def owed_commits(self) -> list[tuple[int, int]]:
        """(transaction id, CSN) of COMMITs that are owed and do not stand in this log."""
        written = {argument[0] for _, change, argument in self.log.pending if change is Change.COMMIT}
        return [(tx_id, csn) for tx_id, csn in self.owed.items() if tx_id not in written]

    def cut(self, offset: int) -> None:
        """Drop everything after ``offset``: this log's tail is not the primary's. Nothing applied is touched."""
        changed = any(at > offset and change in OF_REGISTRY for at, change, _ in self.log.pending)
        self.log.cut(offset)
        for tx in list(self.transactions.values()):
            self._release(tx.cut(offset))
            if not tx.events and tx.closing is None:
                del self.transactions[tx.tx_id]
        if changed:
            self.rebuild_registry(keep_places=True)

    def prepared_branches(self) -> list[TxBuffer]:
        """Branches whose DTX_PREPARE is applied and whose decision is not."""
        applied = self.log.applied
        return [tx for tx in self.transactions.values() if tx.branch is not None and tx.branch.offset <= applied]

    def takes_in_doubt(self, queue: Queue) -> bool:
        """True if a prepared branch that is not being committed has taken a message of ``queue``: it may return there."""
        return queue.acquired > 0 and any(
            queue_id == queue.id and any(entry_id in queue.entries for entry_id in ids)
            for tx in self.transactions.values()
            if tx.branch is not None and tx.prepare is None
            for _, message, groups in tx.events
            if message is None
            for queue_id, ids in groups
        )

    @property
    def record_format(self) -> int:
        """The format of the log in which what is held here can be told to others.

        A branch, or that one was completed, takes 2; a message in a transaction that lives from its commit on takes 3; a body in
        parts takes 4; a queue that was declared with dead letters, a limit or priorities takes 5, and so does an exchange that
        delays, and a message that has moved, comes late, or came back and was counted. An exchange bound to another takes 6.
        A policy alone takes nothing: what it asks for waits until all brokers of the group read it.
        """
        if self.image.onward or any(vhost.onward for vhost in self.registry.vhosts.values()):
            return record.EXCHANGE_BINDINGS_VERSION
        if (
            self.has_moved
            or self.registry.delaying
            or self.id_windows.exchanges
            or any(map(_takes_format_5, self.queues.values()))
        ):
            return record.MOVES_VERSION
        if any(tx.parts is not None for tx in self.transactions.values()):
            return record.PARTS_VERSION
        if any(tx.timed for tx in self.transactions.values()):
            return record.TIMED_VERSION
        branches = self.completions or any(tx.branch is not None for tx in self.transactions.values())
        return record.BRANCHES_VERSION if branches else record.OLDEST_FORMAT_VERSION

    # -- whole-state operations -----------------------------------------------------------------------------------

    def holds_messages(self) -> bool:
        """True if there is a message in any queue, in a transaction, or on its way there."""
        return bool(self.transactions or self.log.pending) or any(queue.entries for queue in self.queues.values())

    def drop_transactions(self, kept: Container[int] = ()) -> None:
        """Forget all transaction content but of ``kept`` (a catch-up brings it again)."""
        for tx in list(self.transactions.values()):
            if tx.tx_id not in kept:
                self._discard(tx)

    def put_before_log(self) -> None:
        """The log begins anew: what is held stands before it in the journal, whatever offset it had in the old one."""
        start = self.log.start
        live = self.live
        later = [e for queue in self.queues.values() for e in queue.entries.values() if e.message.offset > start]
        for entry in later:  # all are released first: queues may share a message
            live.release(entry.message.offset, entry.message.size)
        for entry in later:
            entry.message.offset = start
            live.add(start, entry.message.size)
        self.again.log_begins_anew()

    def oldest_live_offset(self) -> int:
        """No record before this offset is needed by a queue, a transaction or the tail that is not applied."""
        return self.again.oldest_needed(min(self.live.oldest(self.log.end), self.first_unresolved()))

    def first_unresolved(self) -> int:
        """The first record that has not had its effect: it is not applied, or of a transaction that is not over."""
        opened = [tx.first_offset or tx.closing_offset for tx in self.transactions.values()]
        return min([self.log.applied + 1, *[offset for offset in opened if offset]])


def _takes_format_5(queue: Queue) -> bool:
    """True if records of format 5 may be written for ``queue``, or what it knows of messages came by one."""
    return queue.returns is not None or not FROM_FORMAT_5.isdisjoint(queue.arguments)


def _separate(raw: bytes) -> bytes:
    """One record of a large batch, by itself: a large body is not copied. What has no body has ids or names to its end."""
    has_body = raw[0] & ~record.TRANSIENT in record.WITH_BODY
    return record.LargeRecord.of(memoryview(raw)) if has_body and len(raw) >= LARGE_BYTES else bytes(raw)


def _check_readable(raw: bytes) -> None:
    """Raises for a topology record what registering it would raise, if only a newer program can read it, or nobody."""
    kind, end = raw[0], len(raw)
    if kind == record.QUEUE_DECLARE:
        _table(record.decode_queue_declare(raw, 5, end)[-1])
    elif kind == record.EXCHANGE_DECLARE:
        vhost, name, exchange_type, _, arguments = record.decode_exchange_declare(raw, 5, end)
        if exchange_class(exchange_type, _table(arguments)) is None:
            raise record.UnknownExchangeTypeError(vhost, name, exchange_type)
    elif kind == record.BIND:
        _table(record.decode_bind(raw, 5, end)[-1])
    elif kind == record.EXCHANGE_BIND:
        _table(decode_exchange_bind(raw, 5, end)[-1])


def _table(raw: bytes) -> FieldTable:
    """Arguments, as a record has them."""
    try:
        return decode_table(raw, 0)[0]
    except MalformedFrameError as error:
        raise record.RecordError(f"arguments that cannot be read: {error}") from error


def _plain(raw: bytes) -> bytes:
    """A whole record without its transient bit."""
    return bytes((raw[0] & ~record.TRANSIENT,)) + raw[1:]
