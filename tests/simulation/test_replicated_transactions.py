"""Transactions on three brokers (some on one too): the transaction rows of the ancestor's ha_tests.py (docs/testing.md)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.steps_kit import fill
from tests.simulator.damage import damage as damage_copy
from tests.simulator.knobs import least_in_sync
from tests.simulator.scenario import (
    NEVER_MS,
    PERSISTENT,
    Closed,
    Hand,
    Lost,
    Order,
    Program,
    Scenario,
    SimClient,
    SimNode,
    calls,
    named,
    scenario,
)
from understudy.broker.security import Permissions, User
from understudy.ha.status import BrokerStatus

SEEDS = [1, 2, 3]
HOW = pytest.mark.parametrize("hard", [False, True])
ON_ONE_AND_ON_THREE = pytest.mark.parametrize("brokers", [1, 3])
"""H-52: the same suite on a group of one broker."""


def move(group: Scenario, name: str = "tx") -> Hand:
    """x, y and z move from a to b in a transaction that is open still; every broker holds all of it, and shows nothing."""
    hand = group.hand(transactional=True)
    for body in hand.take("a", 3):
        hand.publish("b", body, properties=named(name))
    group.until("mirrored", lambda: all(group.events(node) >= 4 for node in group.nodes if node.up and not node.paused))
    return hand


@ON_ONE_AND_ON_THREE
@pytest.mark.parametrize("seed", SEEDS)
def test_commit(seed: int, brokers: int) -> None:
    """tx_simple_commit: nothing is seen before the commit, all of it after, on every broker; then it is drained outside."""
    with scenario(seed, brokers=brokers, min_insync=least_in_sync(brokers)) as group:
        plain = fill(group)
        hand = move(group)
        group.run_ms(500)
        for node in group.nodes:
            assert (group.bodies(node, "a"), group.bodies(node, "b")) == ([b"x", b"y", b"z"], [b"0", b"1", b"2"])
        hand.committed("tx")
        group.everywhere("a")
        group.everywhere("b", b"0", b"1", b"2", b"x", b"y", b"z")
        left = [b"0", b"1", b"2", b"x", b"y", b"z"]
        while left:
            assert plain.take("b") == [left.pop(0)]
            group.everywhere("b", *left)
        assert not any(node.node.state.transactions for node in group.nodes)


@ON_ONE_AND_ON_THREE
@pytest.mark.parametrize("seed", SEEDS)
def test_rollback(seed: int, brokers: int) -> None:
    """tx_simple_rollback."""
    with scenario(seed, brokers=brokers, min_insync=least_in_sync(brokers)) as group:
        fill(group)
        hand = move(group)
        hand(calls.rollback)
        group.until("over", lambda: not any(node.node.state.transactions for node in group.nodes))
        group.everywhere("a", b"x", b"y", b"z")
        group.everywhere("b", b"0", b"1", b"2")
        assert group.fate("tx") == "rolled back"


def test_rollback_ok_waits_until_every_queue_has_let_go() -> None:
    """A backup does not say that it has the ROLLBACK: neither has the primary let go, nor is the client told."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        fill(group)
        hand = move(group)
        queue = next(q for q in group.primary.node.state.queues.values() if q.name == "b")
        slow = group.backups[0]
        group.hold_disk(slow)
        order = hand.begin(calls.rollback)
        group.run_ms(1_000)
        assert not order.over
        assert queue.uncommitted == 3
        group.free_disk(slow)
        group.until("it is told", lambda: order.over)
        assert order.error is None
        assert queue.uncommitted == 0


@ON_ONE_AND_ON_THREE
@pytest.mark.parametrize("hard", [False, True])
def test_the_primary_restarts_in_the_midst(hard: bool, brokers: int) -> None:
    """tx_simple_failure, tx_simple_failover: it is rolled back everywhere, and the client learns that."""
    with scenario(brokers=brokers, min_insync=least_in_sync(brokers)) as group:
        fill(group)
        hand = move(group)
        before = group.primary
        group.crash(before, hard=hard)
        before.start()
        order = hand.commit("tx")
        group.until("the client knows", lambda: order.over)
        assert isinstance(order.error, Lost)
        group.ready()
        group.everywhere("a", b"x", b"y", b"z")
        group.everywhere("b", b"0", b"1", b"2")
        assert group.fate("tx") == "rolled back"
        again = move(group, "again")  # a transaction that was certainly rolled back is safe to repeat
        again.committed("again")
        group.everywhere("b", b"0", b"1", b"2", b"x", b"y", b"z")


@pytest.mark.parametrize("moment", ["open", "closed"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_backup_leaves(moment: str, which: int) -> None:
    """tx_join_leave: a member that dies is removed from the set, and the commit succeeds on the rest."""
    with scenario() as group:
        fill(group)
        hand = move(group)
        leaving = group.backups[which]
        if moment == "open":
            group.crash(leaving)
            order = hand.commit("tx")
        else:
            group.cut(group.primary, leaving)
            order = hand.commit("tx")
            group.until("closed", lambda: group.has_prepare(group.primary))
            group.run_ms(200)
            assert not order.over, "decided without a listed member"
            assert leaving.name in group.members
            group.crash(leaving)
        group.until("answered", lambda: order.over)
        assert order.error is None
        assert leaving.name not in group.members
        group.everywhere("b", b"0", b"1", b"2", b"x", b"y", b"z")
        group.heal()
        group.ready()
        group.everywhere("b", b"0", b"1", b"2", b"x", b"y", b"z")


@pytest.mark.parametrize("way", ["new", "resume", "catch-up"])
@pytest.mark.parametrize("moment", ["before the first event", "between events", "after the last event", "closed"])
def test_a_backup_joins(moment: str, way: str) -> None:
    """tx_join_leave, the TxTracker scenario: it joins at any step, is ready though the transaction is open, and holds all of it.

    At the end it is the one that is promoted.
    """
    with scenario(kept_bytes=1 << 20 if way == "resume" else 1) as group:
        fill(group)
        joiner, stays = group.backups
        before = group.world.happened["catch-up begins"]
        if way == "new":
            group.crash(joiner)
            joiner.wipe()
        else:
            group.away(joiner)
        group.expelled(joiner)
        hand = group.hand(transactional=True)
        steps: list[Callable[[Hand], None]] = [
            take_all,
            lambda hand: publish(hand, b"x"),
            lambda hand: publish(hand, b"y", b"z"),
        ]
        done = {"before the first event": 0, "between events": 2}.get(moment, 3)
        for step in steps[:done]:
            step(hand)
        group.move_the_kept_log_on()
        order = Order(calls.commit)
        if moment == "closed":
            group.cut(stays, group.primary)  # its yes is not heard
            order = hand.commit("tx")
            group.until("closed", lambda: group.has_prepare(group.primary))
        joiner.resume()
        joiner.start_if_down()
        group.until("it is listed", lambda: joiner.name in group.members)
        if moment == "closed":
            assert group.has_prepare(joiner)
            assert not order.over
            group.mend()
        else:
            group.until("ready", lambda: joiner.ha.status is BrokerStatus.READY)
            assert group.events(joiner) == group.events(group.primary) == (0, 0, 2, 4)[done]
            for step in steps[done:]:
                step(hand)
            order = hand.commit("tx")
        assert group.world.happened["catch-up begins"] == before + (way != "resume")
        group.until("answered", lambda: order.over)
        assert order.error is None
        group.everywhere("b", b"0", b"1", b"2", b"x", b"y", b"z")
        group.replace_primary(joiner)
        group.until("active", lambda: group.cluster.primary() is joiner)
        group.everywhere("a")
        group.everywhere("b", b"0", b"1", b"2", b"x", b"y", b"z")


def take_all(hand: Hand) -> None:
    hand.take("a", 3)


def publish(hand: Hand, *bodies: bytes) -> None:
    hand.publish("b", *bodies, properties=named("tx"))


def test_many_commits_wait_and_block_nobody() -> None:
    """tx_block_threads: ten commits wait for a backup; whoever asks for something else is answered at once."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        plain = fill(group)
        hands = [group.hand(transactional=True) for _ in range(10)]
        for number, hand in enumerate(hands):
            hand.publish("a", b"%d" % number)
        silent = group.backups[0]
        group.cut(silent, group.primary)
        orders = [hand.commit() for hand in hands]
        group.run_ms(1_000)
        assert not any(order.over for order in orders)
        began_us = group.world.now_us
        assert plain(calls.get, "b")[4] == b"0"
        assert group.hand()(calls.get, "a")[4] == b"x"
        assert group.world.now_us - began_us < 200_000
        group.mend()
        group.until("all are answered", lambda: all(order.over and order.error is None for order in orders))
        group.until("everywhere", lambda: all(len(group.bodies(node, "a")) == 13 for node in group.nodes))


def swap(client: SimClient) -> Program:
    """tx.py's work: all six messages are taken and others published, and nothing of that is committed."""
    for queue, count in (("a", 4), ("b", 1), ("c", 1)):
        for _ in range(count):
            yield from calls.get(client, queue)
    calls.ack(client, 0, multiple=True)
    for number in range(1, 5):
        client.publish("amq.topic", "c.new", PERSISTENT, b"TxMessage %d" % number)
    client.publish("amq.direct", "b", PERSISTENT, b"TxMessage 6")
    client.publish("", "a", PERSISTENT, b"TxMessage 7")
    for queue in ("a", "b", "c"):
        event = yield from calls.get(client, queue)
        assert event is None


def tx_suite(group: Scenario) -> Hand:
    hand = group.hand(transactional=True)
    for queue in ("a", "b", "c"):
        hand(calls.declare, queue)
    hand(calls.bind, "b", "amq.direct", "b")
    hand(calls.bind, "c", "amq.topic", "c.#")
    before = group.hand()
    for number in range(1, 5):
        before.publish("a", b"Message %d" % number)
    before.publish("b", b"Message 6", exchange="amq.direct")
    before.publish("c.x", b"Message 7", exchange="amq.topic")
    group.everywhere("c", b"Message 7")
    hand(swap)
    return hand


MESSAGES = [b"Message %d" % number for number in range(1, 5)]
TX_MESSAGES = [b"TxMessage %d" % number for number in range(1, 5)]


@ON_ONE_AND_ON_THREE
@pytest.mark.parametrize("end", ["commit", "auto_rollback", "rollback"])
def test_the_tx_suite(end: str, brokers: int) -> None:
    """other_tx_tests: the three tests of tx.py, and what they leave behind on every broker."""
    with scenario(brokers=brokers, min_insync=least_in_sync(brokers)) as group:
        hand = tx_suite(group)
        if end == "commit":
            hand.committed()
            expected = {"a": [b"TxMessage 7"], "b": [b"TxMessage 6"], "c": TX_MESSAGES}
        else:
            expected = {"a": MESSAGES, "b": [b"Message 6"], "c": [b"Message 7"]}
            if end == "rollback":
                hand(calls.rollback)
                hand(calls.recover)  # deliveries stay unacknowledged after a rollback; this releases them
        hand.go()
        for queue, bodies in expected.items():
            group.everywhere(queue, *bodies)
        if brokers == 1:
            group.crash(group.primary)
        else:
            group.replace_primary(group.backups[1])
        group.heal()
        group.ready()
        checker = group.hand(transactional=True)
        for queue, bodies in expected.items():
            assert checker.take(queue, len(bodies)) == bodies
            assert checker(calls.get, queue) is None
        checker.committed()
        for queue in expected:
            group.everywhere(queue)


@ON_ONE_AND_ON_THREE
def test_overlapping_acknowledgements(brokers: int) -> None:
    """broker_0_8/tx.py: of nine deliveries 3 and 6 are acknowledged alone, then all up to 9; all in one transaction."""
    with scenario(brokers=brokers, min_insync=least_in_sync(brokers)) as group:
        hand = group.hand(transactional=True)
        hand(calls.declare, "a")
        group.hand().publish("a", *[b"%d" % number for number in range(1, 10)])
        group.until("there", lambda: len(group.bodies(group.primary, "a")) == 9)
        tags = [hand(calls.get, "a")[2][0] for _ in range(9)]
        calls.ack(hand.client, tags[2])
        calls.ack(hand.client, tags[5])
        calls.ack(hand.client, tags[8], multiple=True)
        hand.committed()
        group.everywhere("a")


@ON_ONE_AND_ON_THREE
@pytest.mark.parametrize("count", [1, 3])
def test_enqueued_in_a_transaction_and_dequeued_outside(count: int, brokers: int) -> None:
    """tx_enq_notx_deq (QPID-5966): every broker has counted as many in as out, and nothing is left."""
    with scenario(brokers=brokers, min_insync=least_in_sync(brokers)) as group:
        plain = group.hand()
        plain(calls.declare, "a")
        hand = group.hand(transactional=True)
        hand.publish("a", *[b"%d" % number for number in range(count)])
        hand.committed()
        group.everywhere("a", *[b"%d" % number for number in range(count)])
        for node in group.nodes:
            queue = group.queue(node, "a")
            assert queue is not None
            assert (queue.statistics().enqueued, queue.statistics().dequeued) == (count, 0)
        plain.take("a", count)
        group.everywhere("a")
        for node in group.nodes:
            queue = group.queue(node, "a")
            assert queue is not None
            assert (queue.statistics().enqueued, queue.statistics().dequeued) == (count, count)
            assert (queue.uncommitted, queue.acquired) == (0, 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_unknown_outcome(seed: int) -> None:
    """tx_unknown_failover: a backup is stopped, the commit waits, the primary is bounced: the client does not know, and asks."""
    with scenario(seed, backup_timeout_ms=NEVER_MS) as group:
        fill(group)
        hand = move(group)
        stopped, other = group.backups
        stopped.pause()
        order = hand.commit("tx")
        group.until("the other has voted", lambda: group.prepare_durable(other))
        group.run_ms(100)
        assert not order.over
        before = group.primary
        group.crash(before)
        before.start()
        stopped.resume()
        group.until("the connection is lost", lambda: order.over)
        assert isinstance(order.error, Lost)
        group.ready()
        outcome = group.fate("tx")
        moved = outcome == "committed"
        assert outcome in ("committed", "rolled back")
        group.everywhere("a", *([] if moved else [b"x", b"y", b"z"]))
        group.everywhere("b", b"0", b"1", b"2", *([b"x", b"y", b"z"] if moved else []))
        assert not any(node.node.state.transactions for node in group.nodes)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_group_of_one_broker(end: str) -> None:
    """tx_no_backups."""
    with scenario(brokers=1, min_insync=1) as group:
        fill(group)
        hand = move(group)
        if end == "commit":
            hand.committed("tx")
            expected: tuple[list[bytes], list[bytes]] = ([], [b"0", b"1", b"2", b"x", b"y", b"z"])
        else:
            hand(calls.rollback)
            expected = ([b"x", b"y", b"z"], [b"0", b"1", b"2"])
        for _ in range(2):
            group.everywhere("a", *expected[0])
            group.everywhere("b", *expected[1])
            group.crash(group.primary)
            group.nodes[0].start()
            group.ready()


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_backup_refuses(seed: int, which: int) -> None:
    """tx_backup_fail: one explicit no, of either backup: the client is told 406, nothing stays, who said no is expelled."""
    with scenario(seed) as group:
        fill(group)
        hand = move(group)
        refusing = group.backups[which]
        damage(group, refusing)
        with pytest.raises(Closed, match="rolled back: broker") as caught:
            hand.committed("tx")
        assert caught.value.code == 406
        group.until("expelled", lambda: refusing.name not in group.members)
        group.ready()
        group.everywhere("a", b"x", b"y", b"z")
        group.everywhere("b", b"0", b"1", b"2")
        assert group.fate("tx") == "rolled back"


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("comes_back", ["at once", "later", "later, and its machine lost power"])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_disk_of_a_backup_fails_at_prepare(seed: int, comes_back: str, which: int) -> None:
    """tx_backup_fail: it says nothing and ends; the commit is decided without it, or when it is back."""
    with scenario(seed) as group:
        fill(group)
        hand = move(group)
        first, failing = group.primary, group.backups[which]
        group.until("its disk is quiet", lambda: failing._job is None)
        if comes_back != "at once":
            failing.start_if_down = lambda: None  # type: ignore[method-assign]
        order = hand.commit("tx")
        group.until("it has taken PREPARE", lambda: group.has_prepare(failing))
        assert not group.prepare_durable(failing)
        failing.storage.failing_syncs = 1
        group.until("it ends", lambda: not failing.up)
        assert group.world.faults["fsync-error"] == 1
        assert not order.over
        assert first.node.state.log.stable < first.node.state.log.end, "it has not acknowledged PREPARE"
        group.until("answered", lambda: order.over)
        assert order.error is None
        if comes_back == "at once":
            assert failing.up
        else:
            assert failing.name not in group.members
            assert len(group.members) == 2
            if comes_back != "later":
                failing.storage.crash(failing.rng)
            del failing.start_if_down
            failing.start()
        group.ready()
        assert group.primary is first
        group.until("all know", lambda: not any(node.node.state.transactions for node in group.nodes))
        assert group.fate("tx") == "committed"
        group.replace_primary(failing)
        group.everywhere("a")
        group.everywhere("b", b"0", b"1", b"2", b"x", b"y", b"z")


@HOW
@pytest.mark.parametrize("silent_one", ["is heard again", "leads", "dies, and the primary too"])
@pytest.mark.parametrize("which", [0, 1])
def test_one_backup_refuses_and_the_other_is_silent(which: int, silent_one: str, hard: bool) -> None:
    """H-21, of the matrix of votes: one no, one silence. It fails; the client is told so when the silent one holds that, too."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        fill(group)
        hand = move(group)
        first, refusing, silent = group.primary, group.backups[which], group.backups[1 - which]
        damage(group, refusing)
        group.cut(silent, first)
        order = hand.commit("tx")
        group.until("the no is heard", lambda: is_refused(group, first))
        group.until("the other has ROLLBACK, and says so to nobody", lambda: is_refused(group, silent))
        group.until("who refused is expelled", lambda: refusing.name not in group.members)
        group.crash(refusing)
        group.run_ms(500)
        assert group.members == tuple(sorted((first.name, silent.name)))
        assert not order.over, "ROLLBACK is not stable"
        assert group.bodies(first, "b") == [b"0", b"1", b"2"]
        if silent_one == "is heard again":
            group.mend()
            group.until("answered", lambda: order.over)
            assert isinstance(order.error, Closed)
            assert order.error.code == 406
        else:
            if silent_one != "leads":
                group.crash(silent, hard=hard)
                silent.start()
            group.replace_primary(silent, hard=hard)
            group.until("answered", lambda: order.over)
            assert order.lost
        group.heal()
        group.ready()
        assert group.fate("tx") == "rolled back"
        group.everywhere("a", b"x", b"y", b"z")
        group.everywhere("b", b"0", b"1", b"2")


def is_refused(group: Scenario, node: SimNode) -> bool:
    """ROLLBACK stands in its log."""
    tx = group.transaction(node)
    return tx is not None and tx.outcome_offset > 0 and tx.rolls_back


def test_both_backups_refuse() -> None:
    """The set may not go below its minimum: one of them is expelled, the other stays, and work goes on."""
    with scenario() as group:
        fill(group)
        hand = move(group)
        for node in group.backups:
            damage(group, node)
        with pytest.raises(Closed, match="rolled back: broker"):
            hand.committed("tx")
        assert len(group.members) >= 2
        group.ready()
        move(group, "again").committed("again")
        group.everywhere("b", b"0", b"1", b"2", b"x", b"y", b"z")


def test_who_refused_is_promoted() -> None:
    """Its no stands in its log, and nobody was told anything: it writes ROLLBACK when it leads."""
    with scenario(backup_timeout_ms=NEVER_MS) as group:
        fill(group)
        hand = move(group)
        first, refusing = group.primary, group.backups[0]
        damage(group, refusing)
        group.cut(refusing, first)
        order = hand.commit("tx")
        group.until("refused", lambda: bool(refusing.extension.replicator.no_votes))
        group.run_ms(100)
        assert not order.over
        group.replace_primary(refusing)
        group.until("answered", lambda: order.over)
        assert order.lost
        group.heal()
        group.ready()
        group.everywhere("a", b"x", b"y", b"z")
        group.everywhere("b", b"0", b"1", b"2")
        assert group.fate("tx") == "rolled back"


def damage(group: Scenario, node: SimNode) -> None:
    """Its copy of the open transaction is not what the primary has."""
    tx = group.transaction(node)
    assert tx is not None
    damage_copy(tx)


MINIMAL = User(
    name="guest",
    permissions={"/": Permissions(configure="", write="^(amq\\.default|b)$", read="^a$")},
    vhosts=frozenset({"/"}),
)


@ON_ONE_AND_ON_THREE
def test_least_permissions_are_enough_to_move_a_message(brokers: int) -> None:
    """auth: read one queue, write to the default exchange, nothing else."""
    with scenario(brokers=brokers, min_insync=least_in_sync(brokers)) as group:
        fill(group)
        hand = group.hand(transactional=True)
        assert hand.client.session is not None
        hand.client.session.connection.user = MINIMAL
        hand.publish("b", *hand.take("a"))
        hand.committed()
        group.everywhere("a", b"y", b"z")
        group.everywhere("b", b"0", b"1", b"2", b"x")


@ON_ONE_AND_ON_THREE
def test_what_is_forbidden_rolls_the_transaction_back(brokers: int) -> None:
    """auth: what the user may not do closes the channel with 403, and nothing of the transaction stays on any broker."""
    with scenario(brokers=brokers, min_insync=least_in_sync(brokers)) as group:
        fill(group)
        hand = move(group)
        assert hand.client.session is not None
        hand.client.session.connection.user = MINIMAL

        def forbidden(client: SimClient) -> Program:
            client.publish("amq.fanout", "", PERSISTENT, b"forbidden")
            yield from calls.commit(client)

        with pytest.raises(Closed) as caught:
            hand(forbidden)
        assert caught.value.code == 403
        group.until("over", lambda: not any(node.node.state.transactions for node in group.nodes))
        group.everywhere("a", b"x", b"y", b"z")
        group.everywhere("b", b"0", b"1", b"2")
