"""Writes the records of a transaction: the persister's side of it.

An enqueue or dequeue is recorded when the client makes it, not at commit, so that a commit writes one small PREPARE
whatever the size of the transaction. Nothing here waits: records go to the open batch.
"""

from __future__ import annotations

from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.state import BrokerState
from understudy.broker.log import record
from understudy.broker.log.record import Group, Prepare, Target
from understudy.broker.message import Message
from understudy.broker.octets.chunks import LARGE_BYTES, named_bytes
from understudy.broker.transactions.body_parts import PartedBody
from understudy.broker.transactions.dtx_branch import BranchName, DtxBranch, Owner
from understudy.broker.transactions.tx_buffer import TxBuffer


class TransactionRecorder:
    """Appends transaction records to the log of one broker, which leads."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._log = state.log
        self._taking = state.taking

    def enqueue(self, tx: TxBuffer, queues: list[Queue], deadlines_ms: list[int], message: Message) -> None:
        """Record that ``message`` is to go to ``queues`` (all of them in the log) if ``tx`` commits."""
        state = self._state
        if len(queues) == 1:  # by far the most frequent
            queue = queues[0]
            targets = [(queue.id, tx.place(queue.id), deadlines_ms[0])]
            transient = not (message.persistent and queue.durable)
            queue.uncommitted += 1
        else:
            message.share()
            place = tx.place
            targets = [
                (queue.id, place(queue.id), deadline) for queue, deadline in zip(queues, deadlines_ms, strict=True)
            ]
            transient = not message.persistent or not any(queue.durable for queue in queues)
            for queue in queues:
                queue.uncommitted += 1
        body = message.body
        if type(body) is not bytes:
            if message.offset:  # that of the first part of its body
                self._enqueue_parted(tx, targets, message, transient)
                return
            body = message.content()
        head = record.encode_tx_enqueue(tx.tx_id, targets, message, transient)
        offset = message.offset = self._log.append(head, message.properties, body)
        if not tx.first_offset:
            state.transactions[tx.tx_id] = tx
        tx.add(offset, message, targets, head, transient)
        if tx.size_bytes > self._taking.tx_memory_bytes:
            self._taking.spill_body(message)

    def begin_body(self, tx: TxBuffer, message: Message) -> PartedBody:
        """The body of ``message`` is recorded in parts now: by :meth:`body_part` until it is all there, then :meth:`enqueue`."""
        message.begin_parts(self._state.log.end + 1)  # `enqueue` tells by the type of the body
        return tx.bodies().begin(message)

    def body_part(self, tx: TxBuffer, body: PartedBody, start: int, size: int) -> int:
        """Record so many octets of ``body`` from ``start`` on. Returns the record's offset."""
        state = self._state
        part = body.octets()[start : start + size]
        head = record.encode_body_part(tx.tx_id, body.number, start, len(part), False)
        if len(part) >= LARGE_BYTES:
            self._log.hold_large()
        offset = self._log.append(head, named_bytes(part))
        if not tx.first_offset:
            state.transactions[tx.tx_id] = tx
        tx.bodies().places[offset] = (body, start, start + len(part))
        tx.add(offset, None, (), head, False)
        return offset

    def _enqueue_parted(self, tx: TxBuffer, targets: list[Target], message: Message, transient: bool) -> None:
        """As :meth:`enqueue`. A message that is a transaction of its own stays in memory."""
        assert tx.parts is not None
        body = tx.parts.at(message.offset)
        head, tail = record.encode_tx_enqueue_parted(tx.tx_id, targets, message, transient, body.number, tx.own)
        if message.size < LARGE_BYTES:
            message.join_body()
        offset = self._log.append(head, message.properties, tail)
        tx.parts.places[offset] = (body, 0, message.size)
        tx.add(offset, message, targets, head, transient)
        if not tx.own and tx.size_bytes > self._taking.tx_memory_bytes:
            self._taking.spill_body(message)

    def dequeue(self, tx: TxBuffer, groups: list[Group]) -> None:
        """Record that these ids leave these queues if ``tx`` commits."""
        state = self._state
        raw = record.encode_tx_dequeue(tx.tx_id, groups)
        offset = self._log.append(raw)
        if not tx.first_offset:
            state.transactions[tx.tx_id] = tx
        tx.add(offset, None, groups, raw, False)

    def prepare(self, tx: TxBuffer, csn: int, time_ms: int) -> int:
        """Close: give each enqueue its replication id and append PREPARE. Returns PREPARE's offset.

        The ids of one queue are consecutive, in the client's order, because nothing else is appended meanwhile.
        """
        state = self._state
        first_ids: dict[int, tuple[int, int]] = {}
        offset = self._log.end + 1
        for queue_id, count in tx.enqueue_counts().items():
            queue = state.queues.get(queue_id)
            if queue is None:  # deleted, and the deletion is stable
                continue
            first_ids[queue_id] = (queue.reserve_ids(count, offset), count)
        for queue_id in tx.unlogged_queues:
            queue = state.queues.get(queue_id)
            if queue is not None:
                queue.bring(offset)
        # Of a branch, what was voted on: since then its transient events may have ended.
        content = tx.branch if tx.branch is not None else tx
        prepare = Prepare(
            tx.tx_id,
            csn,
            tx.name,
            time_ms,
            first_ids,
            content.events if isinstance(content, DtxBranch) else tx.logged_events,
            content.digest,
            content.durable_events,
            content.durable_digest,
            tx.owner,
            (tx.branch.vhost, tx.branch.xid) if tx.branch is not None and tx.owner is Owner.OPERATOR else None,
        )
        if (
            not tx.first_offset
        ):  # it concerns only queues whose messages are not in the log, but its outcome may be asked for
            state.transactions[tx.tx_id] = tx
        # Never transient, though all its events may be: its outcome may be asked for after every broker has restarted, one
        # after the other, and nothing brings outcomes that a log lacks.
        appended = self._log.append(record.encode_prepare(prepare))
        assert appended == offset
        self._taking.close_transaction(tx, prepare, offset)
        return offset

    def prepare_branch(self, tx: TxBuffer, name: BranchName, time_ms: int) -> int:
        """Close a branch for its transaction manager: append DTX_PREPARE. Returns its offset.

        Ids and CSN are given when it is committed: others may commit before it for days.
        """
        state = self._state
        branch = DtxBranch(
            vhost=name[0],
            xid=name[1],
            offset=self._log.end + 1,
            time_ms=time_ms,
            events=tx.logged_events,
            digest=tx.digest,
            durable_events=tx.durable_events,
            durable_digest=tx.durable_digest,
        )
        offset = self._log.append(record.encode_dtx_prepare(tx.tx_id, branch))
        assert offset == branch.offset
        state.transactions[tx.tx_id] = tx
        self._taking.prepare_branch(tx, branch)
        return offset

    def roll_back_for_operator(self, tx: TxBuffer, time_ms: int) -> int:
        """Append DTX_ROLLBACK: an operator has decided. Returns its offset."""
        assert tx.branch is not None
        raw = record.encode_dtx_rollback(tx.tx_id, time_ms, tx.branch.vhost, tx.branch.xid)
        offset = self._taking.append_record(raw)
        assert tx.rolls_back
        return offset

    def rollback(self, tx: TxBuffer, time_ms: int, reason: str) -> int:
        """Append ROLLBACK; its effects come when it is stable. Returns its offset."""
        raw = record.encode_rollback(tx.tx_id, time_ms, tx.name, reason)
        offset = self._taking.append_record(raw)
        assert tx.rolls_back
        return offset
