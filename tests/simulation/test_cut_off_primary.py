"""A primary that has been replaced, and does not know it, tells nothing from memory that its successor would not (G6).

An answer that has a record of its own waits for the group; these have none, and wait for a barrier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.simulator.branch_steps import X
from tests.simulator.scenario import NEVER_MS, PERSISTENT, Hand, Program, Scenario, SimClient, calls, scenario
from understudy.broker.amqp.methods import BASIC_ACK


@contextmanager
def beside_a_cut_off_primary(*bodies: bytes) -> Iterator[tuple[Scenario, Hand, Hand]]:
    """(group, who is connected to the ex-primary, who to its successor); ``bodies`` stand in queue old."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        setup = group.hand()
        setup(calls.declare, "old")
        setup(calls.declare_exchange, "x", "direct")
        setup(calls.bind, "old", "x", "k")
        setup.publish("old", *bodies)
        group.everywhere("old", *bodies)
        old, successor = group.primary, group.backups[0]
        stranger = group.hand()
        stranger(calls.declare, "old")
        group.run_ms(300)
        group.cluster.store.cut_off.add(old.name)
        for backup in group.backups:
            group.cut_both(old, backup)
        old.node.broker.pauses.count_from(0)  # it goes on all the time: only the scenario stops it
        group.promote(successor)
        group.until("and serves", lambda: group.cluster.primary() is successor)
        client = group.hand()
        while client.client.session is None or client.client.session.node is not successor:
            client.go()
            client = group.hand()
        assert old.ha.primary is not None
        yield group, stranger, client


def told(group: Scenario, hand: Hand, call: Callable[..., Program], *args: Any, **how: Any) -> bool:
    """True if the ex-primary answers."""
    order = hand.begin(call, *args, **how)
    group.run_ms(1_000)
    return order.over and not order.lost


def confirmed(client: SimClient, queue: str) -> Program:
    yield from calls.confirm_select(client)
    client.publish("", queue, PERSISTENT, b"confirmed")
    yield from client.wait(BASIC_ACK)


def test_it_confirms_no_message_that_its_successor_would_keep() -> None:
    with beside_a_cut_off_primary() as (group, stranger, client):
        client(calls.declare, "new")
        assert not told(group, stranger, confirmed, "new")


def test_it_commits_no_message_that_its_successor_would_keep() -> None:
    with beside_a_cut_off_primary() as (group, stranger, client):
        client(calls.declare, "new")
        stranger(calls.tx_select)
        stranger.publish("new", b"committed")
        assert not told(group, stranger, calls.commit)


Change = tuple[Callable[..., Program], tuple[Any, ...]]


@pytest.mark.parametrize(
    ("done", "asked"),
    [
        ((calls.delete, ("old",)), (calls.declare, ("old",))),
        ((calls.delete, ("old",)), (calls.bind, ("old", "x", "k"))),
        ((calls.delete_exchange, ("x",)), (calls.declare_exchange, ("x", "direct"))),
        ((calls.unbind, ("old", "x", "k")), (calls.bind, ("old", "x", "k"))),
        ((calls.bind, ("old", "x", "other")), (calls.unbind, ("old", "x", "other"))),
        ((calls.declare, ("new",)), (calls.unbind, ("new", "x", "k"))),
        ((calls.declare, ("new",)), (calls.delete, ("new",))),
        ((calls.declare_exchange, ("y", "direct")), (calls.delete_exchange, ("y",))),
    ],
    ids=lambda change: change[0].__name__,
)
def test_it_says_of_no_name_what_its_successor_has_changed(done: Change, asked: Change) -> None:
    with beside_a_cut_off_primary() as (group, stranger, client):
        client(done[0], *done[1])
        assert not told(group, stranger, asked[0], *asked[1])


def test_it_finds_no_queue_that_its_successor_has_deleted() -> None:
    with beside_a_cut_off_primary() as (group, stranger, client):
        client(calls.delete, "old")
        assert not told(group, stranger, calls.declare, "old", passive=True)


def test_it_purges_nothing() -> None:
    with beside_a_cut_off_primary() as (group, stranger, client):
        client.publish("old", b"there")
        assert not told(group, stranger, calls.purge, "old")


def test_it_does_not_say_that_there_is_no_branch_to_join() -> None:
    with beside_a_cut_off_primary() as (group, stranger, client):
        stranger(calls.dtx_select)
        client(calls.dtx_select)
        client(calls.dtx_start, X)
        client.publish("old", b"of the branch")
        client(calls.dtx_end, X)
        assert not told(group, stranger, calls.dtx_start, X, join=True)
        client(calls.dtx_rollback, X)


def test_what_it_still_hands_out_counts_for_nothing() -> None:
    """The ex-primary says redelivered=0, or that the queue is empty, against its successor: G9 is of earlier deliveries."""
    with beside_a_cut_off_primary(b"first", b"second") as (group, stranger, client):
        event = client(calls.get, "old")
        assert (event[4], event[2][1]) == (b"first", True)
        calls.ack(client.client, event[2][0])
        client.publish("old", b"third")
        assert client(calls.declare, "old", passive=True)[1] == 2
        for body in (b"first", b"second"):
            event = stranger(calls.get, "old")
            assert (event[4], event[2][1]) == (body, False)
            calls.ack(stranger.client, event[2][0])
        assert stranger(calls.get, "old") is None
        group.heal()
        group.ready()
        group.everywhere("old", b"second", b"third")


@pytest.mark.parametrize("by_consumer", [False, True])
def test_after_a_pause_it_marks_what_its_successor_may_have_handed_out(by_consumer: bool) -> None:
    """The resumed primary hands something out before it hears of the higher epoch, and before its first tick."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        setup = group.hand()
        setup(calls.declare, "q")
        setup.publish("q", b"first", b"second")
        group.everywhere("q", b"first", b"second")
        old, successor = group.primary, group.backups[0]
        stranger = group.hand()
        stranger(calls.declare, "q")
        group.run_ms(300)
        old.pause()
        wanted = stranger.begin(*((calls.consume, "q", "c") if by_consumer else (calls.get, "q")))
        group.promote(successor)
        group.until("and serves", lambda: group.cluster.primary() is successor)
        client = group.hand()
        event = client(calls.get, "q")
        assert (event[4], event[2][1]) == (b"first", True)
        old.resume()
        group.until("it is answered", lambda: wanted.over)
        given = stranger.client.deliveries[0] if by_consumer else wanted.value
        assert (given[4], given[2][2 if by_consumer else 1]) == (b"first", True)


def test_after_a_pause_it_marks_nothing_for_good() -> None:
    """The primary was not replaced, and learns that from a barrier: messages that were never handed out are not marked."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        setup = group.hand()
        setup(calls.declare, "q")
        setup.publish("q", b"first", b"second")
        group.everywhere("q", b"first", b"second")
        primary = group.primary
        primary.pause()
        wanted = setup.begin(calls.get, "q")
        group.run_ms(2_000)
        primary.resume()
        group.until("it is answered", lambda: wanted.over)
        assert (wanted.value[4], wanted.value[2][1]) == (b"first", True)
        group.run_ms(500)
        event = setup(calls.get, "q")
        assert (event[4], event[2][1]) == (b"second", False)
        assert group.primary is primary
