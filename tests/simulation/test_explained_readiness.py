"""Readiness explains itself: of each backup that is not ready its primary says what is between, and since when."""

from __future__ import annotations

import re
from itertools import pairwise

import attrs

from tests.simulation.half_sent_kit import BODIES as EVENTS
from tests.simulation.half_sent_kit import catch_up_of, is_under_way
from tests.simulator.scenario import MS, Scenario, SimNode, calls, scenario
from understudy.broker.transactions.outcome_query import tx_id_text
from understudy.ha.leading.backup_readiness import BackupReadiness
from understudy.ha.leading.readiness_log import LOG_EVERY_MS
from understudy.ha.showing.events import BackupNotReady
from understudy.ha.status import since_text

BODIES = [b"%02d" % number + bytes(90) for number in range(60)]


def shown(group: Scenario, backup: SimNode) -> BackupReadiness:
    """The one row of ``backup`` on its primary's status page."""
    primary = group.primary.ha.primary
    assert primary is not None
    (row,) = [row for row in primary.readiness() if row.broker == backup.name]
    return row


def test_completions_wait_for_a_listed_backup_without_a_link() -> None:
    with scenario() as group:
        backup = group.backups[0]
        assert shown(group, backup).blockers() == []
        before_ms = group.world.now_ms
        group.crash(backup)
        group.until("its link is lost", lambda: not shown(group, backup).linked)
        row = shown(group, backup)
        assert row.listed
        assert before_ms <= row.since_ms <= group.world.now_ms
        assert row.blockers() == ["its link is lost: completions wait for it"]


def test_a_listed_backup_that_the_set_cannot_do_without_is_shown_as_it_is() -> None:
    with scenario(brokers=2) as group:
        backup = group.backups[0]
        group.crash(backup)
        group.until("the primary has heard of it", lambda: not shown(group, backup).running)
        group.run_ms(5_000)
        assert shown(group, backup).blockers() == [
            "is to leave the in-sync set: its link is lost, and the store says that it is not running",
            "its link is lost, and the store says that it is not running: completions wait for it",
        ]


def test_who_was_expelled_is_shown_and_why_and_since_when() -> None:
    with scenario() as group:
        backup = group.backups[0]
        group.crash(backup)
        group.until("its link is lost", lambda: not shown(group, backup).linked)
        lost_ms = shown(group, backup).since_ms
        group.expelled(backup)
        group.until("the primary has heard of it", lambda: not shown(group, backup).listed)
        group.run_ms(10_000)
        row = shown(group, backup)
        assert row.since_ms == lost_ms
        why = "its link is lost, and the store says that it is not running"
        assert row.blockers() == [
            "it is not linked, and the store says that it is not running",
            f"it was expelled from the in-sync set: {why}",
        ]
        backup.start()
        group.until("it is linked", lambda: shown(group, backup).linked)
        assert shown(group, backup).since_ms > lost_ms
        group.ready()
        assert shown(group, backup).blockers() == []
        group.crash(backup)
        group.until("its link is lost", lambda: not shown(group, backup).linked)
        assert shown(group, backup).expelled == "", "it has been in the set again"


def test_who_never_linked_to_this_primary_is_shown() -> None:
    with scenario(min_insync=1) as group:
        away, successor = group.backups
        group.crash(away)
        group.expelled(away)
        group.replace_primary(successor)
        group.until("it is active", lambda: group.cluster.primary() is successor)
        row = shown(group, away)
        assert 0 < row.since_ms <= group.world.now_ms
        assert row.blockers() == ["it is not linked, and the store says that it is not running"]
        primary = group.primary.ha.primary
        assert primary is not None
        assert [row.broker for row in primary.readiness()] == sorted({*group.cluster.nodes} - {successor.name})


def test_a_joiner_that_cannot_reach_its_primary_is_shown_as_running() -> None:
    with scenario() as group:
        backup = group.backups[0]
        group.cut_both(backup, group.primary)
        group.hand()(calls.declare, "q")
        group.expelled(backup)
        group.until("the primary has heard of it", lambda: not shown(group, backup).listed)
        unlinked, expelled = shown(group, backup).blockers()
        assert unlinked == "it is not linked"
        assert expelled.startswith("it was expelled from the in-sync set: it acknowledged nothing for ")


class SlowCatchUp:
    """A group in which a backup without data is caught up, piece by piece, by a disk that takes almost a second for each.

    What it lacks: 60 messages of queue q, and a transaction with 60 more that stays open.
    """

    def __init__(self, group: Scenario) -> None:
        self.group = group
        self.joiner = joiner = group.backups[0]
        setup = group.hand()
        setup(calls.declare, "q")
        setup.publish("q", *BODIES)
        self.hand = group.hand(transactional=True)
        self.hand.publish("q", *BODIES)
        group.crash(joiner)
        joiner.wipe()
        group.expelled(joiner)
        group.move_the_kept_log_on()
        tx = group.transaction(group.primary)
        assert tx is not None
        self.tx = tx_id_text(tx.tx_id)
        joiner.knobs = attrs.evolve(joiner.knobs, fsync_us=(800 * MS, 900 * MS))
        joiner.start()
        group.until("a catch-up is under way", lambda: bool(shown(group, joiner).tx_queues))

    def told(self) -> list[BackupNotReady]:
        """The reports of this joiner that the primary has written to its log since the catch-up began."""
        return [
            event
            for event in self.group.primary.told
            if isinstance(event, BackupNotReady) and event.backup == self.joiner.name and event.linked
        ]

    def left(self, words: str) -> int:
        """The number of events of the transaction to come, by ``words``, which name queue and transaction."""
        assert "queue 'q': 60 messages to come" in words
        found = re.search(f"transaction {self.tx}: ([0-9]+) events of queue 'understudy.tx.{self.tx}' to come", words)
        assert found is not None, words
        return int(found[1])


def test_a_slow_catch_up_is_explained_on_the_status_page_in_the_store_and_in_the_log() -> None:
    with scenario(kept_bytes=1, piece_bytes=200, pieces_in_flight=1, backup_timeout_ms=20_000) as group:
        slow = SlowCatchUp(group)
        joiner, primary, world = slow.joiner, group.primary, group.world
        row = shown(group, joiner)
        assert row.linked
        assert world.now_ms - 2_000 <= row.since_ms <= world.now_ms
        group.run_ms(2_000)

        page = shown(group, joiner).shown(world.now_ms, primary.wall_ms)
        (transaction,) = page["transactions"]
        assert page["queues"] == [{"queue": "q", "left": 60}]
        assert transaction["tx"] == slow.tx
        assert 0 < slow.left("; ".join(page["blockers"])) == transaction["left"] < 60
        assert page["since"] == since_text(primary.wall_ms - world.now_ms + row.since_ms)

        stored = group.cluster.store.infos[joiner.name]
        assert transaction["left"] <= slow.left(stored.blockers) <= 60, "what is in the store is half a second older"
        assert stored.status == "catchup"
        assert stored.blockers.endswith(f" (since {joiner.ha.since})")
        assert joiner.ha.since in {since_text(primary.wall_ms - ago_ms) for ago_ms in range(2_000, 4_000, 100)}

        assert slow.told() == [], "it has not lasted long"
        told_ms: list[int] = []

        def look() -> bool:
            if len(slow.told()) > len(told_ms):
                told_ms.append(world.now_ms)
            return len(told_ms) == 3

        group.until("it has been told of three times", look)
        lefts = [slow.left(event.blockers) for event in slow.told()]
        assert lefts == sorted({*lefts}, reverse=True), "each says something new"
        assert {event.since for event in slow.told()} == {page["since"]}
        assert told_ms[0] >= row.since_ms + LOG_EVERY_MS
        assert min(later - earlier for earlier, later in pairwise(told_ms)) >= LOG_EVERY_MS

        joiner.knobs = group.cluster.knobs
        group.ready()
        assert shown(group, joiner).blockers() == []
        assert group.cluster.store.infos[joiner.name].blockers == ""
        slow.hand.committed()
        group.everywhere("q", *BODIES, *BODIES)


def test_a_catch_up_that_stands_still_is_told_of_once_and_written_to_the_store_once() -> None:
    with scenario(kept_bytes=1, piece_bytes=200, pieces_in_flight=1, backup_timeout_ms=20_000) as group:
        slow = SlowCatchUp(group)
        group.hold_disk(slow.joiner)
        group.run_ms(2_000)
        stored = group.cluster.store.infos[slow.joiner.name]
        assert slow.left(stored.blockers)
        group.run_ms(15_000)
        assert group.cluster.store.infos[slow.joiner.name] is stored
        (event,) = slow.told()
        assert slow.left(event.blockers) == slow.left(stored.blockers)


def test_a_quick_catch_up_is_not_told_of() -> None:
    with scenario(kept_bytes=1) as group:
        hand = group.hand()
        hand(calls.declare, "q")
        hand.publish("q", *BODIES)
        joiner = group.backups[0]
        group.crash(joiner)
        joiner.wipe()
        group.expelled(joiner)
        primary = group.primary
        joiner.start()
        group.ready()
        group.run_ms(2 * LOG_EVERY_MS)
        assert "catch-up ends" in [event.name for event in primary.told]
        assert not any(isinstance(event, BackupNotReady) and event.linked for event in primary.told)


def test_what_is_sent_and_not_held_is_named_too() -> None:
    """With the product's sizes all of an ordinary catch-up is in flight at once; then the joiner's disk hangs."""
    with scenario(kept_bytes=1, piece_bytes=256 << 10, pieces_in_flight=8, backup_timeout_ms=20_000) as group:
        setup = group.hand()
        setup(calls.declare, "q")
        hand = group.hand(transactional=True)
        hand.publish("q", *[b"%d" % number for number in range(50)])
        joiner = group.backups[0]
        group.away(joiner)
        setup.publish("q", *[b"new %d" % number for number in range(40)])
        group.move_the_kept_log_on()
        joiner.resume()
        group.hold_disk(joiner)
        group.until("its catch-up begins", lambda: catch_up_of(group, joiner) is not None)
        group.run_ms(3_000)
        row = shown(group, joiner)
        assert row.queues == (("q", 40),)
        assert [left for _, _, left in row.tx_queues] == [50]
        assert row.blockers()[:2] == [
            "queue 'q': 40 messages to come",
            f"transaction {row.tx_queues[0][0]}: 50 events of queue {row.tx_queues[0][1]!r} to come",
        ]
        group.free_disk(joiner)
        group.ready()
        assert shown(group, joiner).blockers() == []


def test_ids_of_a_closed_transaction_count_down_as_they_are_held() -> None:
    """H-37: each id that is acknowledged leaves its tracker."""
    with scenario(kept_bytes=1, piece_bytes=200, pieces_in_flight=1, backup_timeout_ms=20_000) as group:
        setup = group.hand()
        setup(calls.declare, "q")
        hand = group.hand(transactional=True)
        hand.publish("q", *EVENTS)
        joiner = group.backups[0]
        group.away(joiner)
        group.move_the_kept_log_on()
        joiner.resume()
        group.until("a part of it has been sent", lambda: is_under_way(group, joiner, 4))
        hand.committed()
        lefts: list[int] = []

        def noted() -> bool:
            rows = shown(group, joiner).transactions
            if rows and rows[0][2] not in lefts[-1:]:
                lefts.append(rows[0][2])
            return not rows

        group.until("it holds all of it", noted)
        assert len(lefts) > 5
        assert lefts == sorted(lefts, reverse=True)
        assert lefts[0] <= len(EVENTS)
        assert lefts[-1] <= 4
        group.ready()
