"""RecordTaking: decodes records into what waits to be applied; the content of open transactions is kept at the newest record.

A broker that leads appends records; one that follows, or a recovery, takes them from batches; both wait in ``Log.pending`` until
the stable position has passed. Nothing of an open transaction can be seen by a client; a cut takes it back from the records that
stay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from understudy.broker.core.state.applying import Applying
from understudy.broker.core.state.held import Held
from understudy.broker.core.state.raw_records import plain, separate
from understudy.broker.core.state.state_topology import OF_REGISTRY, StateTopology
from understudy.broker.log import frame, record
from understudy.broker.log.kept_log import Batch
from understudy.broker.log.message_runs import TxRun, decode_run, decode_tx_run
from understudy.broker.log.move_record import decode_move
from understudy.broker.log.pending import COMMIT, DEQUEUE, ENQUEUE, PREPARE, Change, Pending
from understudy.broker.log.record import Prepare
from understudy.broker.log.return_record import decode_return
from understudy.broker.message import Message, MovedMessage, Spill, SpilledBody
from understudy.broker.octets.chunks import LARGE_BYTES
from understudy.broker.transactions.dtx_branch import Completion, DtxBranch
from understudy.broker.transactions.tx_buffer import TxBuffer

ALL_BYTES: Final = 1 << 63

_Taker = Callable[[bytes, int, int, int, bool], None]
_RunReader = Callable[[bytes, int, int], tuple[TxRun | list[Pending], int, int] | None]
_Step = tuple[int, _Taker | None, int, int, int, TxRun | list[Pending] | None]
"""Kind with its transient bit, the function that takes such a record (None for HOLEs), where it begins and ends in its batch, its
offset (that of the last HOLE); or, in place of a record, a run of them that is read."""


class RecordTaking:
    """One per state. Its queues, transactions and log are the state's.

    Attributes:
        holes: this log was received with places whose transient records the sender had not kept either, or begins behind
            such a place.
        tx_memory_bytes: of one transaction; bodies beyond it are spilled as they come.
        on_prepare: are told of each PREPARE that is taken, and each DTX_PREPARE, before it may be acknowledged: the vote.
    """

    def __init__(
        self,
        state: Held,
        applying: Applying,
        topology: StateTopology,
        spill: Spill | None,
        tx_memory_bytes: int,
    ) -> None:
        """``spill``: where bodies of large transactions go; None: they stay in memory."""
        self.log = state.log
        self.queues = state.queues
        self.transactions = state.transactions
        self.holes = False
        self.tx_memory_bytes = tx_memory_bytes if spill is not None else ALL_BYTES
        self.on_prepare: list[Callable[[TxBuffer], None]] = []
        self._spill = spill
        self._bodies: SpilledBody | None = None
        self._applying = applying
        self._topology = topology
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
        self._run_readers: dict[int, _RunReader] = {record.ENQUEUE: decode_run, record.TX_ENQUEUE: decode_tx_run}

    # -- batches of others, and records ---------------------------------------------------------------------------

    def note_holes(self, holes: bool) -> None:
        """The log begins anew, behind a place whose records the sender had not kept if ``holes``."""
        self.holes = holes

    def receive_batch(self, data: bytes) -> None:
        """Append a closed batch that continues the log; records that are held already are passed over.

        Raises:
            UnknownKindError: a record kind that this program does not know: the peer (or who wrote the journal) is newer.
            UnknownExchangeTypeError: the same.
            RecordError, struct.error, ValueError: a length is wrong, or what a record says cannot be read.

        Whatever is raised, nothing of the batch has been taken.
        """
        epoch, offset, count = frame.BATCH_PLACE.unpack_from(data, frame.BATCH_PLACE_AT)
        held = self.log.end
        steps = self._steps(data, offset, count, held)
        self.log.receive(Batch(offset, offset + count - 1, epoch, data))
        try:
            self._take_steps(data, steps, held)
        except Exception:
            self.cut(held)
            self._topology.rebuild_registry(keep_places=True)
            raise

    def _take_steps(self, data: bytes, steps: list[_Step], held: int) -> None:
        """Take the records of a batch that stand behind ``held``."""
        log = self.log
        is_bytes = data.__class__ is bytes
        for kind, take, at, end, offset, run in steps:
            if run is not None:
                if isinstance(run, TxRun):
                    self._take_run(data, at, run)
                else:
                    log.pending.extend(run)
            elif take is None:
                self.holes = True
                log.note_hole(offset)
            elif offset > held:
                if is_bytes:
                    take(data, at, end, offset, kind > 0x7F)
                else:
                    take(separate(data[at:end]), 0, end - at, offset, kind > 0x7F)

    def _steps(self, data: bytes, offset: int, count: int, held: int) -> list[_Step]:
        """Return what to take of a batch of ``count`` records that begins at ``offset``. Raises before any is taken."""
        steps: list[_Step] = []
        at = frame.BATCH_HEADER_BYTES
        size = len(data)
        runs = self._run_readers if data.__class__ is bytes else {}
        behind = offset + count
        while at < size:
            read = runs.get(data[at])
            found = read(data, at, offset) if read is not None and offset > held else None
            if found is not None:
                run, end, length = found
                steps.append((0, None, at, end, offset, run))
                offset += length
                at = end
                continue
            kind, length = record.HEAD.unpack_from(data, at)
            end = at + 5 + length
            take = self._takers.get(kind & 0x7F)
            if take is None:
                if kind != record.HOLE:
                    raise record.UnknownKindError(kind & 0x7F, f"at byte {at} of a batch")
                offset += int.from_bytes(data[at + 5 : at + 9], "big") - 1
            steps.append((kind, take, at, end, offset, None))
            offset += 1
            at = end
        if at != size or offset != behind:
            there = count + offset - behind
            raise record.RecordError(f"batch states {count} records in {size} bytes; found {there} in {at}")
        return steps

    def append_record(self, raw: bytes) -> int:
        """Leading: append a whole record that is rare enough to be decoded again; returns its offset."""
        offset = self.log.append(raw)
        self._takers[raw[0] & 0x7F](raw, 0, len(raw), offset, raw[0] > 0x7F)
        return offset

    def check_known(self, raw: bytes, place: str) -> None:
        """Raises :class:`UnknownKindError` if ``raw``, a whole record that does not come with its batch, cannot be taken."""
        if raw[0] & 0x7F not in self._takers:
            raise record.UnknownKindError(raw[0] & 0x7F, place)

    def take_record(self, raw: bytes, offset: int) -> None:
        """Take one whole record that stands in the log at ``offset`` but does not come with its batch."""
        self._takers[raw[0] & 0x7F](raw, 0, len(raw), offset, raw[0] > 0x7F)

    def _take_enqueue(self, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        targets, message = record.decode_enqueue(buf, at + 5, end)
        message.offset = offset
        self.log.pending.append((offset, ENQUEUE, (message, targets)))

    def leave_bodies(self, bodies: SpilledBody | None) -> None:
        """Copy no body of an ENQUEUE from now on: ``bodies`` gives it back. None: copy them.

        For a recovery: all that it is shown stands in the journal.
        """
        self._bodies = bodies
        self._takers[record.ENQUEUE] = self._take_enqueue if bodies is None else self._take_enqueue_alone
        if bodies is None:
            self._run_readers[record.ENQUEUE] = decode_run
        else:
            self._run_readers.pop(record.ENQUEUE, None)

    def _take_enqueue_alone(self, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        """As :meth:`_take_enqueue`, without the body."""
        targets, message = record.decode_enqueue(buf, at + 5, end, self._bodies)
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
            self._applying.note_moved()
        if tx.size_bytes > self.tx_memory_bytes:
            self.spill_body(message)
        queues = self.queues
        for target in targets:
            queue = queues.get(target[0])
            if queue is not None:
                queue.uncommitted += 1

    def _take_run(self, buf: bytes, at: int, run: TxRun) -> None:
        """Take the TX_ENQUEUEs of ``run``, which begins at ``at``: as :meth:`_take_tx_enqueue` does."""
        tx = self.transaction(run.tx_id)
        if tx.size_bytes + run.octets > self.tx_memory_bytes:
            for offset, _, _ in run.events:
                end = at + 5 + record.HEAD.unpack_from(buf, at)[1]
                self._take_tx_enqueue(buf, at, end, offset, False)
                at = end
            return
        tx.add_all(run.events, run.heads, run.octets)
        for queue_id, count in run.counts.items():
            queue = self.queues.get(queue_id)
            if queue is not None:
                queue.uncommitted += count

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
            self._applying.note_moved()
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
            self._topology.unregister_transients(epoch)

    def _take_outcome(self, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        name = record.decode_outcome(buf, at + 5)[0]
        self.log.pending.append((offset, Change.OUTCOME, (name, offset)))

    def _take_trimmed(self, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        self.log.pending.append((offset, Change.OUTCOMES_TRIMMED, record.decode_outcomes_trimmed(buf, at + 5)))

    def _take_barrier(self, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        pass

    def _take_topology(self, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        raw = buf[at:end]
        self._topology.register(plain(raw))
        self.log.pending.append((offset, Change.TOPOLOGY, raw))

    def cut(self, offset: int) -> None:
        """Drop everything after ``offset``: this log's tail is not that of the broker that leads. Nothing applied is touched."""
        changed = any(at > offset and change in OF_REGISTRY for at, change, _ in self.log.pending)
        self.log.cut(offset)
        for tx in list(self.transactions.values()):
            self._applying.release(tx.cut(offset))
            if not tx.events and tx.closing is None:
                del self.transactions[tx.tx_id]
        if changed:
            self._topology.rebuild_registry(keep_places=True)

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
        self._applying.note_csn(prepare.csn)
        self.log.pending.append((offset, PREPARE, tx))

    def prepare_branch(self, tx: TxBuffer, branch: DtxBranch) -> None:
        """Note the DTX_PREPARE at ``branch.offset``. Nothing is applied there: when the log is, the branch counts as prepared."""
        tx.prepared(branch)
