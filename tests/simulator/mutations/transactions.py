"""Bugs of transactions: torn, seen early, decided by the wrong one, or forgotten."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from tests.simulator.mutations.mutation import Bug, mutation
from understudy.broker.core.clients.transacting import Session, Transacting
from understudy.broker.core.commits.recorder import TransactionRecorder
from understudy.broker.core.life.meta import Meta
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.requests import outcome_answers
from understudy.broker.core.state import BrokerState
from understudy.broker.core.state.applying import Applying
from understudy.broker.core.state.record_taking import RecordTaking
from understudy.broker.core.state.state_topology import StateTopology
from understudy.broker.errors import PreconditionFailedError
from understudy.broker.log.record import Group, decode_tx_dequeue, encode_outcome
from understudy.broker.message import Message
from understudy.broker.transactions import outcome_query
from understudy.broker.transactions.outcomes import Outcome, Outcomes
from understudy.broker.transactions.tx_buffer import TxBuffer
from understudy.replicator.receiving.broker_replicator import BrokerReplicator


@mutation("G1", "G2", "G5", required=True)
def half_a_transaction(bug: Bug) -> None:
    """A backup that applies a transaction leaves its last event out."""
    real = Applying._commit

    def commit(self: Applying, tx: TxBuffer) -> None:
        if not self.deciding and len(tx.events) > 1:
            bug.strike()
            self.release([tx.events.pop()])
        real(self, tx)

    bug.replace(Applying, "_commit", commit)


@mutation("G1", "G3")
def dequeues_released_by_commit(bug: Bug) -> None:
    """A commit puts back what its transaction has acknowledged, instead of taking it away."""
    real = Applying._commit

    def commit(self: Applying, tx: TxBuffer) -> None:
        enqueues = [event for event in tx.events if event[1] is not None]
        for _, _, groups in [event for event in tx.events if event[1] is None]:
            bug.strike()
            for queue_id, ids in groups:
                queue = self.queues.get(queue_id)
                held = [] if queue is None else [queue.entries[i] for i in ids if i in queue.entries]
                for entry in held:
                    assert queue is not None
                    queue.put_back(entry)
        tx.events = enqueues
        real(self, tx)

    bug.replace(Applying, "_commit", commit)


@mutation("G1", "G2", "G3", "G5")
def plain_dequeue_misses_what_a_transaction_brought(bug: Bug) -> None:
    """A backup does not find a message by its id outside transactions if it came within one: it keeps it (QPID-5966)."""
    real = Applying.apply_dequeue
    real_commit = Applying._commit
    brought: set[Message] = set()

    def commit(self: Applying, tx: TxBuffer) -> None:
        real_commit(self, tx)
        if not self.deciding:
            brought.update(tx.messages())

    def apply_dequeue(self: Applying, groups: list[Group]) -> None:
        if self.deciding:
            real(self, groups)
            return
        for queue_id, ids in groups:
            queue = self.queues.get(queue_id)
            for entry_id in ids if queue is not None else ():
                assert queue is not None
                entry = queue.entries.get(entry_id)
                if entry is not None and entry.message in brought:
                    bug.strike()
                else:
                    queue.remove(entry_id)

    bug.replace(Applying, "_commit", commit)
    bug.replace(Applying, "apply_dequeue", apply_dequeue)


@mutation("G1", "G2", "G3", "G5")
def dequeue_comes_by_two_paths(bug: Bug) -> None:
    """A backup takes a message away when the dequeue comes in an open transaction, and again with the commit (QPID-5974)."""
    real = RecordTaking._take_tx_dequeue

    def take_tx_dequeue(self: RecordTaking, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
        real(self, buf, at, end, offset, transient)
        bug.strike()
        self._applying.apply_dequeue(decode_tx_dequeue(buf, at + 5)[1])

    bug.replace(RecordTaking, "_take_tx_dequeue", take_tx_dequeue)


@mutation("G1", "G3")
def open_work_is_seen(bug: Bug) -> None:
    """What an open transaction publishes is put into its queues at once."""
    real = TransactionRecorder.enqueue

    def enqueue(
        self: TransactionRecorder, tx: TxBuffer, queues: list[Queue], deadlines_ms: list[int], message: Message
    ) -> None:
        real(self, tx, queues, deadlines_ms, message)
        for queue, deadline_ms in zip(queues, deadlines_ms, strict=True):
            bug.strike()
            queue.enqueue(queue.next_id(), message, deadline_ms)

    bug.replace(TransactionRecorder, "enqueue", enqueue)


@mutation("G1", "G3")
def open_at_promotion_is_committed(bug: Bug) -> None:
    """A promotion applies the transactions that its predecessor left open, instead of rolling them back."""
    real = StateTopology._apply_epoch

    def apply_epoch(self: StateTopology, argument: tuple[list[TxBuffer], int, int]) -> None:
        for tx in argument[0]:
            for _, message, content in tx.events:
                for item in content:
                    queue = self.queues.get(item[0])
                    if queue is None:
                        continue
                    bug.strike()
                    if message is not None:
                        queue.enqueue(queue.last_id + 1, message, item[2])
                        continue
                    for entry_id in item[1]:
                        queue.remove(entry_id)
        real(self, argument)

    bug.replace(StateTopology, "_apply_epoch", apply_epoch)


@mutation("G2", "G4")
def closed_at_promotion_is_aborted(bug: Bug) -> None:
    """A promotion rolls back every undecided transaction, closed ones too (note 004; a commit-ok may have been given)."""
    real = BrokerReplicator.standing_no_votes

    def standing_no_votes(self: BrokerReplicator) -> list[TxBuffer]:
        refused = real(self)
        closed = [tx for tx in self._state.transactions.values() if tx.closed_undecided]
        bug.strikes += len(closed) - len(refused)
        return closed

    bug.replace(BrokerReplicator, "standing_no_votes", standing_no_votes)


@mutation("G8", "G4")
def outcomes_are_forgotten(bug: Bug) -> None:
    """Neither a checkpoint nor a catch-up brings the outcomes of transactions that are over."""
    real = Meta.install

    def install(self: Meta, state: BrokerState, later: Sequence[bytes] = ()) -> None:
        real(self, state, later)
        bug.strikes += len(state.applying.outcomes)
        state.applying.outcomes = Outcomes()

    bug.replace(Meta, "install", install)


@mutation("G8")
def names_are_not_barred(bug: Bug) -> None:
    """A name that was answered "rolled back" may still commit."""
    real = Transacting._check_name_is_free

    def check_name_is_free(self: Transacting, session: Session) -> None:
        try:
            real(self, session)
        except PreconditionFailedError:
            bug.strike()

    bug.replace(Transacting, "_check_name_is_free", check_name_is_free)


@mutation("G8")
def outcome_answered_at_once(bug: Bug) -> None:
    """An unknown name is answered "rolled back" before the record that bars it is stable."""
    real = outcome_answers._ask

    def ask(broker: Any, question: Any) -> None:
        name = question.subject
        known = (
            outcome_query.is_own_id(name)
            or broker.state.applying.outcomes.named(name) is not None
            or broker.transactions.named(name) is not None
            or name in broker.state.applying.outcomes.forgotten
        )
        if known or name in broker.name_bars.offsets:
            real(broker, question)
            return
        bug.strike()
        raw = encode_outcome(name, Outcome.ROLLED_BACK, broker.clock.wall_ms)
        broker.name_bars.offsets[name] = broker.batch.append_record(raw)
        waiting, broker.log.pending = broker.log.pending, deque()
        question.reply.send(
            Outcome.ROLLED_BACK.text
        )  # to a queue that no log keeps: with nothing before it, it goes there now
        broker.log.pending = waiting

    bug.replace(outcome_answers, "_ask", ask)


TOO_FAR = 500


@mutation("G8")
def a_trim_forgets_too_many_outcomes(bug: Bug) -> None:
    """Outcomes that were to be kept are forgotten, on every broker alike."""
    real = Outcomes.trim

    def trim(self: Outcomes, upto_offset: int, low_water: int) -> None:
        ids = self._ids_upto(upto_offset + TOO_FAR)
        bug.strikes += len(ids) - len(self._ids_upto(upto_offset))
        real(self, upto_offset + TOO_FAR, max([low_water, *ids]))

    bug.replace(Outcomes, "trim", trim)


@mutation("G9")
def a_commit_number_is_used_twice(bug: Bug) -> None:
    """Every other transaction has the commit number of the one before."""
    real = TransactionRecorder.prepare
    odd = False

    def prepare(self: TransactionRecorder, tx: TxBuffer, csn: int, time_ms: int) -> int:
        nonlocal odd
        odd = not odd
        if odd and csn > 1:
            bug.strike()
            csn -= 1
        return real(self, tx, csn, time_ms)

    bug.replace(TransactionRecorder, "prepare", prepare)
