"""The power fails between two things that belong together on a disk."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import attrs

from tests.simulator.checkers.instruments import watching_queues
from tests.simulator.knobs import Knobs
from tests.simulator.scenario import NEVER_MS, Group, Scenario, SimNode, calls, named, publish_confirmed, scenario
from understudy.broker.amqp.properties import encode_properties
from understudy.replicator import wire
from understudy.testing.disk import PowerCutError


def keep_first_sector(node: SimNode) -> None:
    """The power fails while the group that waits is written: its first sector is on the disk, and nothing else of it."""
    job = node.journal.begin_sync()
    assert job is not None
    node.storage.power_cut_in = len(job.steps[0].writes)
    with suppress(PowerCutError):
        job.run()
    node.storage.crash = lambda rng: node.storage.crash_keeping({0})  # type: ignore[method-assign]
    node.crash(hard=True)
    del node.storage.crash


def test_a_base_is_lost_and_the_mark_before_it_is_not() -> None:
    """A joiner's log is to begin anew: of the group that says so only the beginning is on the disk when the power fails. The next
    primary's kept log reaches that broker; but its journal takes all that stands before the mark for dead.
    """
    journal = attrs.evolve(Knobs.draw(1).journal, segment_bytes=20 << 10, alignment_bytes=512)
    with scenario(journal=journal, kept_bytes=1 << 20) as group:
        hand = group.hand()
        for name in ("a", *(f"{number} of a long name" for number in range(20))):
            hand(calls.declare, name)
        hand(publish_confirmed, "a", b"one")
        first, (successor, joiner) = group.primary, group.backups
        fill(group)
        group.run_ms(1_000)
        group.crash(joiner, hard=False)
        group.expelled(joiner)
        fill(group)
        kept = first.node.state.log.kept
        kept.limit_bytes = 1  # it was not there for as long as the other one
        fill(group)
        assert not kept.reaches(joiner.node.state.log.end, first.node.state.log.closed_end)
        joiner.start()
        group.hold_disk(joiner)
        group.until("the base is there", lambda: joiner.extension.replicator.part)
        keep_first_sector(joiner)
        group.free_disk(joiner)
        joiner.start()
        assert joiner.node.state.log.applied > 0
        assert joiner.journal.last_offset == 0
        assert joiner.node.droppable_before(joiner.node.state.log.applied) == 0
        group.crash(first)
        group.promote(successor)
        group.until("listed", lambda: joiner.ha.status.value == "ready")
        fill(group)
        group.run_ms(5_000)
        joiner.crash(hard=True)
        joiner.start()
        assert group.bodies(joiner, "a") == [b"one"]


def test_a_transient_piece_that_is_acknowledged_at_once_lists_nobody() -> None:
    """Its acknowledgement counts for the pieces before it, which are not on the disk. The last piece of all is, when it is said."""
    with scenario(kept_bytes=1, pieces_in_flight=8, piece_bytes=256 << 10, backup_timeout_ms=NEVER_MS) as group:
        hand = group.hand()
        hand(calls.declare, "a")
        hand(calls.tx_select)
        hand.publish("a", b"one", properties=named("tx"))
        primary, joiner = group.primary, group.backups[0]
        group.crash(joiner, hard=False)
        group.expelled(joiner)
        other = group.hand()
        other.publish("a", b"transient", properties=encode_properties(delivery_mode=1))
        group.move_the_kept_log_on()
        joiner.start()
        group.hold_disk(joiner)

        def pieces_held() -> int:
            backup = primary.ha.primary.backups.get(joiner.name) if primary.ha.primary is not None else None
            return backup.catch_up._acked if backup is not None and backup.catch_up is not None else 0

        group.until("a piece is acknowledged", lambda: pieces_held() > 0)
        assert joiner.journal.durable < joiner.journal.appended
        hand.committed("tx")
        group.run_ms(1_000)
        assert joiner.name not in group.members
        group.crash(joiner)
        joiner.start()
        group.ready()
        group.everywhere("a", b"transient", b"one")


def fill(group: Scenario) -> None:
    hand = group.hand()
    hand(calls.declare, "filler")
    for _ in range(40):
        hand(publish_confirmed, "filler", Random(1).randbytes(1_000))
    hand(calls.purge, "filler")
    hand.go()


def test_who_waits_for_a_disk_that_fails_ends_at_once() -> None:
    """As the server does: else it would go on with an epoch that is not on its disk, and acknowledge under it."""
    group = Group(1, brokers=2)
    with watching_queues(), group.cluster.knobs.in_force():
        group.start()
        (backup,) = group.backups
        backup.disk_hangs = True  # nothing else would find out about the failure
        backup.storage.failing_syncs = 1
        link, epoch = backup.ha.backup.link, backup.ha.replicator.epoch_seen
        assert link is not None
        resume = wire.encode_resume(epoch + 1, backup.node.state.log.end, 0)
        backup.run(backup.ha.link_message, link, resume)
        assert not backup.up
