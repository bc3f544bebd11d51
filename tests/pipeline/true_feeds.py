"""A feed of a simulated group in which much is missing, and nothing that is evidence: it must be proved."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.pipeline.base_feeds import Feed, confirmed, read_feed, recorded
from tests.simulator.scenario import Scenario, calls, named
from understudy.broker.core import broker
from understudy.pipeline.tallies.look import PARTED_BYTES
from understudy.pipeline.tallies.reigns import TOLD_OF


def feed_of_a_fatal_turn(seed: int) -> Feed:
    """The first primary dies in the midst of a turn, and stays away; the next one is told of large messages alone."""
    with TemporaryDirectory() as folder, recorded(seed, Path(folder)) as group, pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker, "APPLIED_AT_ONCE", 2 * TOLD_OF)  # whatever the seed says: one turn answers many
        admin = group.hand()
        admin(calls.declare, "orders")
        admin(calls.confirm_select)
        admin(confirmed, 2, queue="orders")
        first = group.hand(transactional=True)
        first.publish("orders", b"x", properties=named("first"))
        first.committed("first")
        _a_fatal_turn(group)
        large = group.hand()
        for _ in range(TOLD_OF + 2):
            large.publish("orders", bytes(PARTED_BYTES))
        group.run_ms(2_000)
        group.recorder.finish()
        return read_feed(Path(folder))


def _a_fatal_turn(group: Scenario) -> None:
    """The primary answers many commits and sends what it decided: it writes neither that batch nor the facts of that turn."""
    primary = group.primary
    hands = [group.hand(transactional=True) for _ in range(TOLD_OF + 2)]
    for number, hand in enumerate(hands):
        hand.publish("orders", b"x", properties=named(f"many-{number}"))
    group.hold_disk(primary)
    for number, hand in enumerate(hands):
        hand.commit(f"many-{number}")
    transactions = primary.node.state.transactions
    group.until("all are prepared", lambda: sum(tx.prepare is not None for tx in transactions.values()) == len(hands))
    group.run_ms(50)
    facts, gather = primary.facts, primary.node.gather
    assert facts is not None
    write, stopped = facts.turn_over, list[bool]()

    def gather_all(flush: bool) -> bool:
        """Clients whose commits are answered in this turn wait for nothing that it brings. Others might."""
        if sum(fact.name == "told" for fact in facts._facts.waiting) >= TOLD_OF:
            group.hold_disk(primary)
            group.world.at(0, primary.pause)
            stopped.append(True)
        return gather(flush or bool(stopped))

    primary.node.gather = gather_all  # type: ignore[method-assign]
    facts.turn_over = lambda: None if stopped else write()  # type: ignore[method-assign]
    group.free_disk(primary)
    group.until("the turn is over", lambda: primary.paused)
    group.run_ms(50)
    successor, log = group.backups[0], primary.node.state.log
    assert successor.node.state.log.durable == log.end > log.durable, "its last batch is on other disks alone"
    group.crash(primary, hard=False)
    facts._facts.take()  # it does not come back to write them
    group.promote(successor)
