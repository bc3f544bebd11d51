"""A repaired journal of a member: what its replicator says of itself, and which notes end that."""

from __future__ import annotations

from understudy.broker.core.state import BrokerState
from understudy.broker.log import frame, journal_gate
from understudy.broker.log.journal_gate import JournalGate
from understudy.broker.log.repaired_note import RepairedNote
from understudy.replicator.receiving.broker_replicator import BrokerReplicator

NOTE = RepairedNote(epoch=9, kept=40, lost=70, of_group=True)
RESTART = frame.encode_cut(0, journal_gate.RESTART + bytes(8))[frame.NOTE_HEADER_BYTES :]


class Port:
    """A journal that keeps the notes."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.synced = 0

    def append(self, data: bytes) -> None:
        self.frames.append(data)

    def sync_now(self) -> None:
        self.synced = len(self.frames)

    def begin_anew(self, checkpoint: bytes) -> None:
        raise AssertionError("not here")


def replayed(*notes: RepairedNote) -> BrokerReplicator:
    replicator = BrokerReplicator(BrokerState(0))
    for note in notes:
        replicator.replay_note(journal_gate.REPAIRED, note.encode())
    return replicator


def flags(replicator: BrokerReplicator) -> tuple[bool, bool]:
    return replicator.part, replicator.repaired


def test_it_holds_no_state_of_its_group_and_has_seen_the_epochs_behind_the_damage() -> None:
    replicator = replayed(NOTE)
    assert flags(replicator) == (True, True)
    assert (replicator.epoch_seen, replicator.of_a_group) == (9, True)
    assert replicator.sync().part


def test_a_checkpoint_keeps_that() -> None:
    again = BrokerReplicator(BrokerState(0))
    again.replay_extras(replayed(NOTE).extras(), 0)
    assert flags(again) == (True, True)
    assert again.epoch_seen == 9


def test_after_a_catch_up_was_begun_it_is_no_base_any_more() -> None:
    replicator = replayed(NOTE)
    replicator.replay_note(frame.KIND_CUT, RESTART)
    assert flags(replicator) == (True, False)
    again = BrokerReplicator(BrokerState(0))
    again.replay_extras(replicator.extras(), 0)
    assert flags(again) == (True, False)


def test_a_catch_up_that_was_cut_in_its_midst_is_no_base() -> None:
    """The damage stood in the journal of a broker that was being filled, whether its catch-up began there or in a checkpoint."""
    filling = BrokerReplicator(BrokerState(0))
    filling.replay_note(frame.KIND_CUT, RESTART)
    again = BrokerReplicator(BrokerState(0))
    again.replay_extras(filling.extras(), 0)
    for replicator in (filling, again):
        replicator.replay_note(journal_gate.REPAIRED, NOTE.encode())
        assert flags(replicator) == (True, False)
        assert replicator.epoch_seen == 9


def test_a_later_repair_takes_nothing_back() -> None:
    assert flags(replayed(NOTE, NOTE._replace(of_group=False))) == (True, True)


def test_an_operator_ends_it_durably() -> None:
    replicator, port = replayed(NOTE), Port()
    replicator.recovered(JournalGate(port))
    replicator.lead_repaired()
    assert flags(replicator) == (False, False)
    assert port.synced == len(port.frames) == 1
    kind, payload = frame.verify_note(port.frames[0])
    assert kind == journal_gate.REPAIRED
    after = replayed(NOTE, RepairedNote.decode(payload))
    assert (flags(after), after.epoch_seen) == ((False, False), 9)
    assert flags(replayed(NOTE, RepairedNote.decode(payload), NOTE)) == (True, True)


def test_a_journal_of_a_broker_that_ran_alone_belongs_to_no_group() -> None:
    replicator = replayed(NOTE._replace(of_group=False))
    assert flags(replicator) == (False, False)
    assert (replicator.epoch_seen, replicator.of_a_group) == (9, False)
