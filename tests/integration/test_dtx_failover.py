"""Branches in doubt outlive every process: a killed primary, all of a group at once, one broker alone (H-05, H-45 to H-47)."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika.exceptions
import pytest

from tests.integration.broker_process import BrokerProcess, running_broker, wait_until
from tests.integration.dtx_channel import (
    COMPLETED_BY_COMMIT,
    COMPLETED_BY_ROLLBACK,
    HEURHAZ,
    OK,
    RBROLLBACK,
    RBTIMEOUT,
    InDoubt,
)
from tests.integration.dtx_group import everywhere_settled, fail_over, in_order, open_transactions, ranked
from tests.integration.dtx_workbench import Workbench, cut, move, publish, refused, take
from tests.stress.group import Group

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240), pytest.mark.usefixtures("broken_connections")]

TIMEOUT_S = 3
"""A branch whose time is over is remembered for as long again (docs/dtx.md): a test must have asked by then."""
PAUSE_S = 0.7
"""Between the starts of two brokers: the first ones look at each other before the last is there."""


@pytest.fixture
def bench(group_bench: Workbench) -> Workbench:
    return group_bench


# -- the primary dies -----------------------------------------------------------------------------------------------------


def test_what_was_prepared_survives_the_primary_and_nothing_else(group: Group, bench: Workbench) -> None:
    messages = [f"m{number}" for number in range(10)]
    a, b = bench.queue("a", *messages, "ended1", "ended2", "working", "suspended"), bench.queue("b")
    xids = [bench.xid() for _ in messages]
    for number, xid in enumerate(xids):
        worker = bench.dtx()
        assert worker.start(xid) == OK
        assert move(worker, a, b) == messages[number]
        publish(worker.channel, b, f"transient{number}", persistent=False)
        assert worker.end(xid) == OK
        assert worker.prepare(xid) == OK
        if number % 3 == 0:
            worker.channel.connection.close()
    unprepared = [bench.xid() for _ in range(4)]
    for xid, suspend in zip(unprepared, (False, False, None, True), strict=True):
        worker = bench.dtx()
        assert worker.start(xid) == OK
        move(worker, a, b)
        if suspend is not None:
            assert worker.end(xid, suspend=suspend) == OK
    assert bench.in_doubt() == in_order(xids)
    assert bench.counts(a, b) == (0, 0)

    killed = fail_over(group, bench)
    assert bench.in_doubt() == in_order(xids)
    for xid in unprepared:
        with refused(404):
            bench.tm().prepare(xid)
    assert bench.drain(a) == ["ended1", "ended2", "working", "suspended"]
    assert bench.available(b) == 0
    tm = bench.tm()
    for xid in xids[::2]:
        assert tm.commit(xid) == OK
    for xid in xids[1::2]:
        assert tm.rollback(xid) == OK
    assert bench.in_doubt() == []
    assert bench.counts(a, b) == (5, 10)

    group.start(killed)
    group.ready()
    everywhere_settled(group)
    for xid in xids:
        with refused(404):
            bench.tm().commit(xid)
    assert bench.drain(a) == messages[1::2]
    assert bench.drain(b) == [name for number in range(0, 10, 2) for name in (messages[number], f"transient{number}")]
    everywhere_settled(group)


def forget_the_beginning(group: Group, bench: Workbench) -> None:
    """The journals begin later now: who joins with nothing cannot be told the log instead of what it has led to."""

    def all_have() -> bool:
        return all(broker.row()["journal"]["dropped_segments"] for broker in group.running())

    for _ in range(2):
        bench.pass_through()
    wait_until("old segments are dropped", all_have)


def test_whoever_leads_and_whoever_joined_late_has_them(group: Group, bench: Workbench) -> None:
    """Every broker that was killed comes back with nothing, so that in the end all have what they know from joining."""
    messages = [f"m{number}" for number in range(8)]
    forget_the_beginning(group, bench)
    a, b = bench.queue("a", *messages), bench.queue("b")
    xids = [bench.xid() for _ in messages]
    for xid in xids:
        worker = bench.dtx()
        bench.swapped(worker, xid, a, b)
        assert worker.prepare(xid) == OK
    group.kill_all()  # what is kept in memory of the log is gone too
    group.start()
    group.ready()
    bench.move_to(group.primary().port)
    left = list(xids)
    first, *others = ranked(group)
    for successor in (*others, first):
        killed = fail_over(group, bench, successor)
        assert bench.in_doubt() == in_order(left)
        assert bench.tm().commit(left.pop(0)) == OK
        assert bench.tm().rollback(left.pop()) == OK
        shutil.rmtree(group[killed].data)
        group.start(killed)
        group.ready()
        brought = re.findall(rf"catch-up begins .*backup={killed} .*transactions=(\d+)", group.primary().log_text())
        assert brought, f"{killed} was told the log from its beginning: this shows nothing"
        assert int(brought[-1]) == len(left)
        assert bench.in_doubt() == in_order(left)
    assert left == xids[3:5]
    assert bench.tm().commit(left[0]) == OK
    assert bench.tm().rollback(left[1]) == OK
    everywhere_settled(group)
    assert bench.drain(a) == messages[4:]
    assert bench.drain(b) == messages[:4]


# -- all of them die ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [("b3", "b1", "b2"), ("b2", "b3", "b1")], ids="-".join)
def test_all_killed_and_started_in_another_order(group: Group, bench: Workbench, order: tuple[str, ...]) -> None:
    """CP-20."""
    messages = [f"m{number}" for number in range(6)]
    a, b = bench.queue("a", *messages), bench.queue("b")
    xids = [bench.xid() for _ in messages]
    for xid in xids:
        worker = bench.dtx()
        bench.swapped(worker, xid, a, b)
        assert worker.prepare(xid) == OK
    tm = bench.tm()
    assert tm.complete(xids[4], commit=False) == OK
    before = bench.in_doubt()
    assert before == sorted(
        [*in_order([*xids[:4], xids[5]]), InDoubt(COMPLETED_BY_ROLLBACK, xids[4])], key=lambda row: row.xid.octets()
    )
    assert tm.commit(xids[5]) == OK  # answered: it is on every disk
    group.kill_all()
    for name in order:
        group.start(name)
        wait_until(f"{name} answers", lambda n=name: group[n].row()["status"] != "down")  # type: ignore[misc]
        time.sleep(PAUSE_S)
    group.ready(*order)
    bench.move_to(group.primary().port)
    assert bench.in_doubt() == [row for row in before if row.xid != xids[5]]
    with refused(404):
        bench.tm().commit(xids[5])
    assert bench.counts(a, b) == (1, 1), "what is prepared is still locked"
    tm = bench.tm()
    assert tm.commit(xids[0]) == OK
    assert tm.rollback(xids[1]) == OK
    assert tm.commit(xids[4]) == HEURHAZ
    assert bench.in_doubt() == [row for row in before if row.xid not in (xids[0], xids[1], xids[5])]
    assert tm.commit(xids[3]) == OK
    assert tm.rollback(xids[2]) == OK
    assert tm.forget(xids[4]) == OK
    everywhere_settled(group)
    assert bench.drain(a) == ["m1", "m2", "m4"]
    assert bench.drain(b) == ["m5", "m0", "m3"]


# -- one broker without the plugin ----------------------------------------------------------------------------------------


def stop(broker: BrokerProcess) -> None:
    assert broker.stop() == 0


@pytest.mark.parametrize("end", [BrokerProcess.kill, stop], ids=["killed", "stopped"])
def test_one_broker_keeps_what_was_prepared(tmp_path: Path, end: Callable[[BrokerProcess], None]) -> None:
    with running_broker(tmp_path) as broker:
        bench = Workbench(broker.port, "h")
        a, b = bench.queue("a", "1", "2", "3", "4"), bench.queue("b")
        bench.channel().queue_declare("h.transient")
        committed, rolled_back, ended, early = (bench.xid() for _ in range(4))
        worker = bench.dtx()
        for xid in (early, committed, rolled_back, ended):
            assert worker.start(xid) == OK
            move(worker, a, b)
            publish(worker.channel, b, "transient", persistent=False)
            publish(worker.channel, "h.transient", "m")
            assert worker.end(xid) == OK
            if xid != ended:
                assert worker.prepare(xid) == OK
        assert worker.commit(early) == OK
        before = bench.in_doubt()
        assert before == in_order([committed, rolled_back])
        end(broker)
        broker.start()

        bench.move_to(broker.port)
        assert bench.in_doubt() == before
        got: list[str] = []
        consumer = bench.connect()
        consumer.channel().basic_consume(a, lambda _, __, about, ___: got.append(about.correlation_id), auto_ack=True)
        wait_until("what was only ended is back", lambda: consumer.process_data_events(time_limit=0.05) or got)
        consumer.process_data_events(time_limit=0.3)
        assert got == ["4"], "the others are locked"
        assert bench.tm().rollback(rolled_back) == OK
        wait_until("the lock is gone", lambda: consumer.process_data_events(time_limit=0.05) or len(got) == 2)
        assert got == ["4", "3"]
        with refused(404):
            bench.tm().prepare(ended)
        assert bench.tm().commit(committed) == OK
        assert bench.drain(b) == ["1", "2"], "what was transient is gone"
        assert bench.in_doubt() == []
        bench.close()


def test_the_journal_is_kept_from_the_first_record_of_a_branch_on(tmp_path: Path) -> None:
    """Segments before the branch are dropped, and those after it once it is decided; its bodies lie in files meanwhile."""
    extra = "[journal]\nsegment_bytes = 65536\nreserve_bytes = 0\n[tx]\nmemory_bytes = 4096\n"
    with running_broker(tmp_path, extra) as broker:

        def dropped() -> int:
            return int(broker.status()["journal"]["dropped_segments"])

        bench = Workbench(broker.port, "i")
        queue = bench.queue("q")
        bench.pass_through()
        worker, xid = bench.dtx(), bench.xid()
        bodies = [bytes([number]) * 20_000 for number in range(10)]
        assert worker.start(xid) == OK
        for body in bodies:
            worker.channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))
        assert worker.end(xid) == OK
        assert worker.prepare(xid) == OK
        bench.pass_through()
        wait_until("what came before is dropped", dropped)
        for _ in range(2):
            bench.pass_through()
            broker.kill()
            broker.start()
            bench.move_to(broker.port)
            assert bench.in_doubt() == in_order([xid])
            assert bench.available(queue) == 0
        bench.pass_through()
        assert dropped() == 0, "it can begin no later"
        assert bench.tm().commit(xid) == OK
        channel = bench.channel()
        assert [channel.basic_get(queue, auto_ack=True)[2] for _ in bodies] == bodies
        bench.pass_through()
        bench.pass_through()
        wait_until("the rest is dropped", dropped)
        bench.close()


# -- sessions, time-outs, operators ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["channel", "connection", "cable"])
def test_the_session_ends(group: Group, bench: Workbench, how: str) -> None:
    """H-46: before prepare the branch is rolled back, on every broker; after prepare it survives, a failover too."""
    a, b = bench.queue("a", "working", "suspended", "prepared"), bench.queue("b")
    worker = bench.dtx()
    working, suspended, prepared = (bench.xid() for _ in range(3))
    assert worker.start(suspended) == OK
    tags = dict(take(worker, a) for _ in range(3))
    worker.channel.basic_ack(tags["suspended"])
    assert worker.end(suspended, suspend=True) == OK
    assert worker.start(prepared) == OK
    worker.channel.basic_ack(tags["prepared"])
    publish(worker.channel, b, "prepared")
    assert worker.end(prepared) == OK
    assert worker.prepare(prepared) == OK
    assert worker.start(working) == OK
    worker.channel.basic_ack(tags["working"])
    publish(worker.channel, b, "working")
    ends: dict[str, Callable[[Any], None]] = {
        "channel": lambda channel: channel.close(),
        "connection": lambda channel: channel.connection.close(),
        "cable": lambda channel: cut(channel.connection),
    }
    ends[how](worker.channel)
    wait_until("what was not prepared is back", lambda: bench.available(a) == 2)
    for xid in (working, suspended):
        assert bench.tm().prepare(xid) == RBROLLBACK
        assert bench.tm().rollback(xid) == OK
    assert bench.in_doubt() == in_order([prepared])
    wait_until("nothing else is open anywhere", lambda: open_transactions(group) == {1})
    group.agree()
    fail_over(group, bench)
    assert bench.in_doubt() == in_order([prepared])
    assert bench.counts(a, b) == (2, 0)
    assert bench.tm().commit(prepared) == OK
    everywhere_settled(group)
    assert sorted(bench.drain(a)) == ["suspended", "working"]
    assert bench.drain(b) == ["prepared"]


def test_time_is_over_on_all_brokers(group: Group, bench: Workbench) -> None:
    """H-45."""
    a, b = bench.queue("a", "prepared", "ended", "working"), bench.queue("b")
    prepared, ended, working = (bench.xid() for _ in range(3))
    worker = bench.dtx()
    for xid in (prepared, ended):
        bench.swapped(worker, xid, a, b)
        assert worker.set_timeout(xid, TIMEOUT_S) == OK
    assert worker.prepare(prepared) == OK
    assert worker.start(working) == OK
    move(worker, a, b)
    assert worker.set_timeout(working, TIMEOUT_S) == OK
    wait_until("all have heard of them", lambda: open_transactions(group) == {3})
    wait_until("the time is over on all brokers", lambda: open_transactions(group) == {1})
    group.agree()
    assert bench.counts(a, b) == (2, 0)
    assert bench.tm().prepare(ended) == RBTIMEOUT
    assert worker.end(working) == RBTIMEOUT
    for xid in (ended, working):
        assert bench.tm().rollback(xid) == RBTIMEOUT
    assert bench.in_doubt() == in_order([prepared])
    fail_over(group, bench)
    time.sleep(TIMEOUT_S + 0.5)  # its successor does not count either
    assert bench.in_doubt() == in_order([prepared])
    assert bench.tm().commit(prepared) == OK
    everywhere_settled(group)
    assert (bench.drain(a), bench.drain(b)) == (["ended", "working"], ["prepared"])


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "rolled-back"])
def test_what_an_operator_decides_is_remembered_by_whoever_leads(group: Group, bench: Workbench, commit: bool) -> None:
    """H-47."""
    forget_the_beginning(group, bench)
    a, b = bench.queue("a", "m"), bench.queue("b")
    worker, xid = bench.dtx(), bench.xid()
    bench.swapped(worker, xid, a, b)
    assert worker.prepare(xid) == OK
    group.kill_all()  # what is kept in memory of the log is gone too
    group.start()
    group.ready()
    first, second, third = ranked(group)
    fail_over(group, bench, second)
    assert bench.tm().complete(xid, commit=commit) == OK
    remembered = [InDoubt(COMPLETED_BY_COMMIT if commit else COMPLETED_BY_ROLLBACK, xid)]
    assert bench.tm().commit(xid) == HEURHAZ
    shutil.rmtree(group[first].data)
    group.start(first)
    group.ready()
    fail_over(group, bench, first)
    assert bench.in_doubt() == remembered
    with refused(530):
        bench.dtx().start(xid)
    assert bench.tm().commit(xid) == HEURHAZ
    assert bench.tm().rollback(xid) == HEURHAZ
    assert bench.counts(a, b) == ((0, 1) if commit else (1, 0))
    assert bench.tm().forget(xid) == OK
    with refused(404):
        bench.tm().commit(xid)
    group.start(second)
    group.ready()
    fail_over(group, bench, third)
    assert bench.in_doubt() == []
    with refused(404):
        bench.tm().forget(xid)
    everywhere_settled(group)
