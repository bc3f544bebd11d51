"""Bugs of durability: something is said, or taken for stable, before it is on the disks that it must be on."""

from __future__ import annotations

from typing import Any

from tests.simulator.mutations.mutation import Bug, mutation
from understudy.broker.core.broker import Broker
from understudy.broker.core.clients.publishing import Publishing
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.core.life.recovery import Recovery
from understudy.broker.core.state.record_taking import RecordTaking
from understudy.broker.log import frame, journal_gate, journal_recovery, record
from understudy.broker.log.frame import BatchHeader
from understudy.broker.transactions.tx_buffer import TxBuffer, TxState
from understudy.ha.leading.primary import Primary
from understudy.replicator.receiving.broker_replicator import BrokerReplicator
from understudy.testing.disk import MemoryFile


@mutation("G4", "G6", required=True)
def stable_before_acknowledged(bug: Bug) -> None:
    """The primary takes for stable what it has fsynced itself, before the backups have acknowledged it."""
    real = Primary.stable_offset

    def stable_offset(self: Primary) -> int:
        stable = real(self)
        if self.in_sync.enough and self._log.durable > stable:
            bug.strike()
            self._stable = stable = self._log.durable
        return stable

    bug.replace(Primary, "stable_offset", stable_offset)


@mutation("G4")
def answered_before_acknowledged(bug: Bug) -> None:
    """commit-ok and confirms go out when the primary has fsynced; all else waits for the backups, as it should."""
    real = Broker.advance

    def advance(self: Broker) -> None:
        if self.role.answering:
            answers = self.completions.waiting
            waiting = list(answers)
            answers.clear()
            answers.extend(item for item in waiting if not tells_early(self, *item))
        real(self)

    def tells_early(self: Broker, offset: int, release: Any, argument: Any) -> bool:
        if not self.log.applied < offset <= self.log.durable:
            return False
        if isinstance(argument, TxBuffer):
            if argument.decided is not None and not argument.outcome_offset:
                bug.strike()
                decided, argument.decided = argument.decided, None
                state, argument.state = argument.state, TxState.COMMITTED
                decided(argument)
                argument.state = state
            return False
        if isinstance(getattr(release, "__self__", None), Publishing):
            bug.strike()
            release(argument)
            return True
        return False

    bug.replace(Broker, "advance", advance)


@mutation("G4")
def acknowledged_before_fsync(bug: Bug) -> None:
    """A backup acknowledges what it has received and not fsynced."""
    real = BrokerReplicator.acknowledge

    def acknowledge(self: BrokerReplicator) -> None:
        log = self._state.log
        durable = log.durable
        if log.end > durable:
            bug.strike()
        log.durable = log.end
        real(self)
        log.durable = durable

    bug.replace(BrokerReplicator, "acknowledge", acknowledge)


@mutation("G4")
def primary_does_not_wait_for_its_disk(bug: Bug) -> None:
    """The primary takes for stable what its backups hold and it has not fsynced itself."""
    real = Primary.stable_offset

    def stable_offset(self: Primary) -> int:
        log = self._log
        durable = log.durable
        if log.closed_end > durable:
            bug.strike()
        log.durable = log.closed_end
        stable = real(self)
        log.durable = durable
        return stable

    bug.replace(Primary, "stable_offset", stable_offset)


@mutation("G3", "G1", "G2")
def applied_before_stable(bug: Bug) -> None:
    """A backup applies records when they come, not when they are stable."""
    real = BrokerReplicator.apply_told

    def apply_told(self: BrokerReplicator) -> None:
        end = self._state.log.end
        if self.linked and end > max(self._told, self._state.log.stable):
            bug.strike()
            self._told = end
        real(self)

    bug.replace(BrokerReplicator, "apply_told", apply_told)


@mutation("G4", "G5", "G6", "JournalDamagedError")
def recovered_and_not_synced(bug: Bug) -> None:
    """What a restart reads from the page cache is taken for durable, though no fsync has made it so."""
    real = journal_recovery._repair
    real_sync = MemoryFile.sync

    def repair(*args: Any) -> None:
        def sync(self: MemoryFile) -> None:
            bug.strike()

        MemoryFile.sync = sync  # type: ignore[method-assign]
        try:
            real(*args)
        finally:
            MemoryFile.sync = real_sync  # type: ignore[method-assign]

    bug.replace(journal_recovery, "_repair", repair)


@mutation("G1", "G4", "G5")
def log_collected_too_early(bug: Bug) -> None:
    """Segments go as soon as a checkpoint has passed them, whatever still lives in them."""
    real = BrokerNode.droppable_before

    def droppable_before(self: BrokerNode, checkpoint_offset: int) -> int:
        if real(self, checkpoint_offset) < checkpoint_offset:
            bug.strike()
        return checkpoint_offset

    bug.replace(BrokerNode, "droppable_before", droppable_before)


@mutation("G1", "G2", "G4", "G5", "G8")
def decision_collected_before_its_prepare(bug: Bug) -> None:
    """A COMMIT or ROLLBACK goes with its segment once a checkpoint has passed that, though its PREPARE stays (AMQ-7067)."""
    real_batch, real_note, real_finish = Recovery.on_batch, Recovery.on_note, Recovery.finish
    shown: dict[Recovery, list[tuple[Any, ...]]] = {}
    gone: set[tuple[int, int]] = set()

    def on_batch(self: Recovery, header: BatchHeader, data: bytes) -> None:
        shown.setdefault(self, []).append((header, data))

    def on_note(self: Recovery, kind: int, payload: bytes, place: int = 0) -> None:
        shown.setdefault(self, []).append((kind, payload, place))

    def finish(self: Recovery) -> None:
        frames = shown.pop(self, [])
        gone.update(_decisions_without(frames))
        for each in frames:
            (real_batch if isinstance(each[0], BatchHeader) else real_note)(self, *each)
        gone.clear()
        real_finish(self)

    def without(taker: str) -> None:
        real = vars(RecordTaking)[taker]

        def take(self: RecordTaking, buf: bytes, at: int, end: int, offset: int, transient: bool) -> None:
            if (offset, int.from_bytes(buf[at + 5 : at + 13], "big")) in gone:
                bug.strike()
            else:
                real(self, buf, at, end, offset, transient)

        bug.replace(RecordTaking, taker, take)

    for taker in ("_take_prepare", "_take_commit", "_take_rollback", "_take_dtx_rollback"):
        without(taker)
    bug.replace(Recovery, "on_batch", on_batch)
    bug.replace(Recovery, "on_note", on_note)
    bug.replace(Recovery, "finish", finish)


DECISIONS = (record.COMMIT, record.ROLLBACK, record.DTX_ROLLBACK)


def _decisions_without(frames: list[tuple[Any, Any]]) -> set[tuple[int, int]]:
    """(offset, transaction id) of what decides, in a segment before the newest one, and what it decides was closed in an older one.

    Of a branch the PREPARE belongs to the decision.
    """
    segment, offset = 0, 0
    closed: dict[int, int] = {}
    decided: list[tuple[int, int, int]] = []
    for first, second in frames:
        if not isinstance(first, BatchHeader):
            segment += first == journal_gate.CHECKPOINT
            continue
        offset = first.first_offset
        for kind, at, end in record.records_of(second, frame.BATCH_HEADER_BYTES):
            if kind == record.HOLE:
                offset += int.from_bytes(second[at:end], "big")
                continue
            tx_id = int.from_bytes(second[at : at + 8], "big")
            if kind in (record.PREPARE, record.DTX_PREPARE) and tx_id not in closed:
                closed[tx_id] = segment
            elif kind in (record.PREPARE, *DECISIONS) and closed.get(tx_id, segment) < segment:
                decided.append((segment, offset, tx_id))
            offset += 1
    return {(offset, tx_id) for at, offset, tx_id in decided if at < segment}
