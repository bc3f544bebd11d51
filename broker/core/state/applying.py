"""Applying: what stable records do to queues, transactions and outcomes, on every broker in the same order.

Order of a transaction: it is applied at the place of its PREPARE in the log. The broker that leads decides there
(`Applying.deciding`), others wait there for the COMMIT or ROLLBACK that it appended. So every broker's queues change in log order,
which is replication-id order (G9).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

from understudy.broker.core.queues import put_off
from understudy.broker.core.queues.arrival import ANY_CONSUMER
from understudy.broker.core.queues.entry import Entry
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.state.held import Held
from understudy.broker.log import record
from understudy.broker.log.move_record import Move
from understudy.broker.log.pending import COMMIT, Change
from understudy.broker.log.record import Group, Target, deadline_at
from understudy.broker.log.return_record import ReturnGroup
from understudy.broker.message import DelayedMessage, Message
from understudy.broker.transactions.dtx_branch import BranchName, Completion
from understudy.broker.transactions.outcomes import Outcomes
from understudy.broker.transactions.tx_buffer import TxBuffer, TxState


class Applying:
    """One per state. Its queues, transactions and log are the state's.

    Attributes:
        deciding: this broker leads: a stable PREPARE without a ROLLBACK is committed by it.
        csn: the highest commit sequence number.
        outcomes: of transactions.
        owed: transactions that are applied and whose COMMIT is not: id to CSN. A broker that begins to lead without that record in
            its log writes it again, since others may wait for it.
        completions: branches that an operator has completed and nobody has forgotten.
        refused: ids of transactions of which this broker lacks something: it applies no COMMIT of them, whoever has decided it,
            and waits until it is brought what it lacks.
        has_moved: a message may be here that has moved (`MovedMessage`).
        deduplicates: records have to be noted in the windows of ids.
        on_applied_tx: are told of each transaction that was applied or discarded, in the order of this list.
        on_moved: are told of each MOVE that has been applied.
        on_requeued: are told of each message that is at its place in a queue again and may be handed out (if this broker leads).
    """

    def __init__(self, state: Held) -> None:
        self.log = state.log
        self.queues = state.queues
        self.transactions = state.transactions
        self.id_windows = state.id_windows
        self.put_off = state.put_off
        self.scheduled = state.scheduled
        self.arrived = state.arrived
        self.deciding = self.has_moved = self.deduplicates = False
        self.csn = 0
        self.outcomes = Outcomes()
        self.owed: dict[int, int] = {}
        self.completions: dict[BranchName, Completion] = {}
        self.refused: Container[int] = ()
        self.dropped_by_delete = 0
        self.on_applied_tx: list[Callable[[TxBuffer], None]] = []
        self.on_moved: list[Callable[[Move], None]] = []
        self.on_requeued: list[Callable[[Queue, Entry], None]] = []
        appliers: dict[Change, Callable[[Any], Any]] = {
            Change.ENQUEUE: self.apply_enqueue,
            Change.DEQUEUE: self.apply_dequeue,
            Change.MOVE: self.apply_move,
            Change.RETURN: self.apply_return,
            Change.ID_TIME: self._apply_id_time,
            Change.PREPARE: self.apply_prepare,
            Change.COMMIT: self._apply_commit,
            Change.ROLLBACK: self._apply_rollback,
            Change.DTX_ROLLBACK: self._apply_dtx_rollback,
            Change.DTX_FORGET: self._apply_dtx_forget,
            Change.OUTCOME: self._apply_outcome,
            Change.OUTCOMES_TRIMMED: self._apply_trimmed,
        }
        for change, apply in appliers.items():
            self.log.applies(change, apply)

    # -- what others tell it --------------------------------------------------------------------------------------

    def note_csn(self, csn: int) -> None:
        """A PREPARE or COMMIT of that commit sequence number stands in the log."""
        if csn > self.csn:
            self.csn = csn

    def note_moved(self) -> None:
        """A message may be here that has moved."""
        self.has_moved = True

    def deduplicate(self, needed: bool = True) -> None:
        """Note records in the windows of ids from now on, or no more."""
        self.deduplicates = needed

    def refuse(self, refused: Container[int]) -> None:
        """Apply no COMMIT of the transactions in ``refused``, which its owner changes."""
        self.refused = refused

    def install(
        self, outcomes: Outcomes, owed: Mapping[int, int], completions: Mapping[BranchName, Completion], csn: int
    ) -> None:
        """Hold what a state without messages says."""
        self.outcomes = outcomes
        self.owed = dict(owed)
        self.completions = dict(completions)
        self.note_csn(csn)

    def forget_decisions(self) -> None:
        """The journal has a gap: the next checkpoint states the outcomes and completions from before it."""
        self.outcomes = Outcomes()
        self.completions = {}

    def lead(self) -> None:
        """Decide from now on: this broker leads."""
        self.deciding = True

    # -- messages -------------------------------------------------------------------------------------------------

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

        A broker that lacks the message, whose body is not in the record, lacks it in the queues that it enters, too: a plugin
        brings it there.
        """
        self.has_moved = True
        source = self.queues.get(move.queue_id)
        entry = source.entries.get(move.entry_id) if source is not None else None
        message = move.message
        if len(move.targets) > 1:
            message.share()
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
            if queue is None:
                continue
            if len(ids) > put_off.SLICE:
                self.put_off.add(queue.leave(ids))
                continue
            for entry_id in ids:
                queue.remove(entry_id)

    def apply_return(self, groups: list[ReturnGroup]) -> None:
        """Messages come back, with how often they have failed. What is not here has left, or a plugin brings it with that."""
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

    def arrives(self, queue: Queue, entry_id: int) -> None:
        """A message with a deadline comes into ``queue``: consumers that wait there may have it in any case."""
        if self.deciding:
            self.arrived.append((queue, entry_id, ANY_CONSUMER))

    def _apply_id_time(self, argument: tuple[int, int]) -> None:
        self.id_windows.time(*argument)

    # -- transactions ---------------------------------------------------------------------------------------------

    def apply_prepare(self, tx: TxBuffer) -> bool | None:
        """The place of the decision. False: it is not known yet, or not for good.

        A broker that leads commits here, and appends COMMIT. Another waits until the COMMIT or ROLLBACK that it has received is
        stable itself, and so does one that leads for a ROLLBACK: before that the record may be cut away with a tail, and
        the next epoch decides anew.
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
                message.fall_due(deadline_at(message.due_ms, prepare.time_ms))
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

    def tell_decided(self, tx: TxBuffer) -> None:
        for told in self.on_applied_tx:
            told(tx)

    def _apply_commit(self, argument: tuple[int, int, int]) -> None:
        tx_id, csn, offset = argument
        self.note_csn(csn)
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
            self.discard(tx)
            self.tell_decided(tx)
        self.outcomes.rolled_back(tx_id, name, offset)

    def _apply_dtx_rollback(self, argument: tuple[int, BranchName, Completion]) -> None:
        tx_id, name, completion = argument
        self._apply_rollback((tx_id, completion.offset, ""))
        self.completions[name] = completion

    def _apply_dtx_forget(self, name: BranchName) -> None:
        self.completions.pop(name, None)

    def _apply_outcome(self, argument: tuple[str, int]) -> None:
        name, offset = argument
        self.outcomes.rolled_back(0, name, offset)

    def _apply_trimmed(self, argument: tuple[int, int]) -> None:
        self.outcomes.trim(*argument)

    def discard(self, tx: TxBuffer) -> None:
        self.release(tx.events)
        self.transactions.pop(tx.tx_id, None)

    def forget_unlogged(self, tx: TxBuffer, reason: str) -> None:
        """An open transaction that never reached the log ends: only embargo counts are to be undone."""
        tx.forgotten(reason)
        self.release(tx.events)

    def release(self, events: list[Any]) -> None:
        for _, message, content in events:
            if message is not None:
                for target in content:
                    queue = self.queues.get(target[0])
                    if queue is not None:
                        queue.uncommitted -= 1

    def owed_commits(self) -> list[tuple[int, int]]:
        """(transaction id, CSN) of COMMITs that are owed and do not stand in this log."""
        written = {argument[0] for _, change, argument in self.log.pending if change is Change.COMMIT}
        return [(tx_id, csn) for tx_id, csn in self.owed.items() if tx_id not in written]

    def pending_bars(self) -> dict[str, int]:
        """Names that an OUTCOME or a ROLLBACK bars which is not applied yet, and its offset.

        A broker that follows learns the name of a transaction that was rolled back while it was open from that record, and not
        before.
        """
        bars: dict[str, int] = {}
        for offset, change, argument in self.log.pending:
            if change is Change.OUTCOME:
                bars[argument[0]] = offset
            elif change is Change.ROLLBACK and argument[2]:
                bars[argument[2]] = offset
        return bars
