"""A CUT or a catch-up in a journal that begins with a gap: records that went with segments, and that a later checkpoint states."""

from __future__ import annotations

import attrs
import pytest

from tests.unit.core.core_kit import publish
from tests.unit.core.life.recovery_kit import KeptCore, bodies, recovered
from understudy.broker.core.life.meta import Meta
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.core.life.recovery import Recovery
from understudy.broker.core.limits import Limits
from understudy.broker.log import frame, journal_gate, record
from understudy.broker.transactions.outcomes import Outcome
from understudy.replicator import group_notes, wire
from understudy.replicator.receiving.broker_replicator import BrokerReplicator


def test_a_cut_of_topology_leaves_the_places_that_are_held_for_queues_of_the_gap() -> None:
    """``late`` is declared and cut away, before a checkpoint has named ``q``: the messages of ``q`` are not lost with that."""
    core = KeptCore()
    client = core.client()
    first = core.node.checkpoint()
    core.queue(client, "q")  # its declaration went with a dropped segment
    begun = len(core.journal.frames)
    client.publish("q", b"one")
    core.sync()
    client.publish("q", b"two")
    core.sync()
    kept = core.journal.frames[begun:]
    naming = core.node.checkpoint()
    end = core.node.state.log.end
    ended = len(core.journal.frames)
    core.queue(client, "late")
    tail = core.journal.frames[ended:]
    assert bodies(recovered([first, *kept, naming])) == {"q": [b"one", b"two"]}
    assert bodies(recovered([first, *kept, *tail, frame.encode_cut(end), naming])) == {"q": [b"one", b"two"]}


@attrs.frozen
class Gap:
    """Frames of a journal in which the declaration of ``q`` went with a dropped segment.

    Attributes:
        first: the checkpoint that it begins with, which knows nothing.
        before, after: batches with messages of ``q``, the latter behind the place of which ``older`` speaks.
        older: a checkpoint that names ``q``, and comes when more than it states is applied.
        deleting: a batch that deletes ``q``, at the place where ``after`` begins.
        base: a BASE at that place.
    """

    first: bytes
    before: list[bytes]
    after: list[bytes]
    older: bytes
    deleting: bytes
    base: bytes
    end: int

    @classmethod
    def made(cls) -> Gap:
        core = KeptCore()
        client = core.client()
        first = core.node.checkpoint()
        core.queue(client, "q")

        def published(*bodies: bytes) -> list[bytes]:
            begun = len(core.journal.frames)
            for body in bodies:
                core.client().send(publish("q", body))
                core.sync()
            return core.journal.frames[begun:]

        before = published(b"one")
        state = core.node.state
        end = state.log.end
        assert state.log.applied == end
        (queue_id,) = state.queues
        deletion = record.encode_queue_delete(queue_id, False)
        return cls(
            first=first,
            before=before,
            older=core.node.checkpoint(),
            base=wire.encode_base(wire.BASE_NEW, Meta.of(state).encode()),
            deleting=frame.encode_batch(state.log.epoch, end + 1, 1, end, [deletion], 0),
            end=end,
            after=published(b"two", b"three", b"four"),
        )


def test_what_was_cut_behind_the_gap_is_not_done_when_the_gap_is_filled() -> None:
    """The deletion of ``q`` was cut away; the checkpoint that fills the gap is older than what is applied when it is read."""
    gap = Gap.made()
    cut = [gap.deleting, frame.encode_cut(gap.end)]
    whole = bodies(recovered([gap.first, *gap.before, *gap.after, gap.older]))
    assert whole["q"][:2] == [b"one", b"two"]
    assert bodies(recovered([gap.first, *gap.before, *cut, *gap.after, gap.older])) == whole


def test_what_the_log_held_before_a_base_is_not_done_behind_it() -> None:
    """The same with a catch-up: the deletion stood in the old log, which ended with BASE; the gap was of the old log, too."""
    gap = Gap.made()
    restart = [
        frame.encode_cut(0, journal_gate.RESTART + gap.end.to_bytes(8, "big")),
        frame.encode_note(group_notes.PIECE, gap.base),
    ]
    without = recovered([gap.first, *gap.before, *restart, *gap.after, gap.older], with_ha())
    assert bodies(without) == {"q": [b"one", b"two", b"three"]}
    whole = recovered([gap.first, *gap.before, gap.deleting, *restart, *gap.after, gap.older], with_ha())
    assert bodies(whole) == bodies(without)


@pytest.mark.parametrize("offset_in_gap", [0, 1, 2])
def test_a_log_that_is_cut_within_the_gap_has_a_shorter_gap(offset_in_gap: int) -> None:
    """Behind the gap stands a dead tail. What is left of the gap is stated by a checkpoint of the place where the tail was cut.

    It was taken to be as long as before, so that only a checkpoint far behind would have filled it. (Seed 793.)
    """
    core = KeptCore()
    state = core.node.state
    queues = ["first", "second"]
    core.queue(core.client(), "before")
    state.applying.outcomes.committed(1, "n", state.log.applied)
    first = core.node.checkpoint()
    begin = state.log.applied
    for queue in queues[:offset_in_gap]:  # they stood in a segment that was dropped
        core.queue(core.client(), queue)
    naming = core.node.checkpoint()
    end = state.log.applied
    assert end == begin + offset_in_gap
    barrier = record.BARRIER_RECORD
    dead = frame.encode_batch(
        state.log.epoch, end + 5, 1, begin, [barrier], 0
    )  # of a tail, whose beginning was dropped too
    alive = frame.encode_batch(state.log.epoch + 1, end + 1, 1, end, [barrier], 0)
    frames = [first, dead, frame.encode_cut(end), alive, *([naming] if offset_in_gap else [])]
    found = recovered(frames).state
    assert sorted(queue.name for queue in found.queues.values()) == ["before", *queues[:offset_in_gap]]
    assert found.applying.outcomes.named("n") is Outcome.COMMITTED
    assert found.log.end == end + 1


def test_what_is_applied_while_the_gap_is_not_passed_is_known_when_it_is_cut_away() -> None:
    """A bar waits when the gap begins, is applied by what a dead batch behind the gap states, and both that and the gap are cut."""
    core = KeptCore()
    state = core.node.state
    core.queue(core.client(), "before")
    first = core.node.checkpoint()
    begin, epoch = state.log.applied, state.log.epoch
    barrier = record.BARRIER_RECORD
    tail = frame.encode_batch(epoch, begin + 1, 2, begin, [record.encode_outcome("n", 2, 0), barrier], 0)
    dead = frame.encode_batch(epoch, begin + 11, 1, begin + 1, [barrier], 0)
    alive = frame.encode_batch(epoch + 1, begin + 2, 1, begin + 2, [barrier], 0)
    for frames in (
        [first, tail, frame.encode_cut(begin + 1), alive],
        [first, tail, dead, frame.encode_cut(begin + 1), alive],
    ):
        found = recovered(frames).state
        assert found.log.applied == begin + 2
        assert found.applying.outcomes.named("n") is Outcome.ROLLED_BACK


def test_a_cut_between_two_gaps_leaves_the_first_one_as_long_as_it_is() -> None:
    core = KeptCore()
    state = core.node.state
    core.queue(core.client(), "before")
    first = core.node.checkpoint()
    begin = state.log.applied
    core.queue(core.client(), "in the gap")
    naming = core.node.checkpoint()
    end, epoch, barrier = state.log.applied, state.log.epoch, record.BARRIER_RECORD
    between = frame.encode_batch(epoch, end + 1, 3, begin, [barrier] * 3, 0)
    dead = frame.encode_batch(epoch, end + 20, 1, begin, [barrier], 0)
    alive = frame.encode_batch(epoch + 1, end + 3, 1, end, [barrier], 0)
    found = recovered([first, between, dead, frame.encode_cut(end + 2), alive, naming]).state
    assert sorted(queue.name for queue in found.queues.values()) == ["before", "in the gap"]


def with_ha() -> BrokerNode:
    """A core whose recovery knows the notes of the plugin."""
    node = BrokerNode("b1", Limits(), bytes)
    node.recovery = Recovery(node.state, BrokerReplicator(node.state).replay_note, None)
    return node


def test_an_outcome_that_was_forgotten_in_the_gap_stays_forgotten() -> None:
    """The first checkpoint has it, the trim went with a segment. Its name was used anew: it means that transaction now."""
    core = KeptCore()
    state = core.node.state
    client = core.client()
    core.queue(client, "q")
    state.applying.outcomes.committed(1, "n", state.log.applied)
    first = core.node.checkpoint()
    core.broker.batch.append_record(record.encode_outcomes_trimmed(state.log.applied, 1))
    core.sync()
    begun = len(core.journal.frames)
    core.broker.batch.append_record(record.encode_rollback(2, 0, "n", ""))
    core.sync()
    kept = core.journal.frames[begun:]
    found = recovered([first, *kept, core.node.checkpoint()]).state
    assert found.applying.outcomes.encode() == state.applying.outcomes.encode()
    assert found.applying.outcomes.named("n") is Outcome.ROLLED_BACK
    assert found.applying.outcomes.of_id(1, 9) is Outcome.EXPIRED


def test_an_outcome_of_an_older_use_does_not_hide_a_later_one() -> None:
    """Likewise, and the name is used behind the checkpoint that fills the gap, which is older than what is applied."""
    core = KeptCore()
    state = core.node.state
    core.queue(core.client(), "q")
    state.applying.outcomes.committed(1, "n", state.log.applied)
    first = core.node.checkpoint()
    core.broker.batch.append_record(record.encode_outcomes_trimmed(state.log.applied, 1))
    core.sync()
    begun = len(core.journal.frames)
    core.queue(core.client(), "other")
    naming = core.node.checkpoint()
    core.broker.batch.append_record(record.encode_rollback(2, 0, "n", ""))
    core.sync()
    core.queue(core.client(), "another")
    kept = core.journal.frames[begun:]
    found = recovered([first, *kept, naming]).state
    assert found.log.applied > Meta.decode(naming, frame.NOTE_HEADER_BYTES + 4)[0].offset
    assert found.applying.outcomes.named("n") is Outcome.ROLLED_BACK
