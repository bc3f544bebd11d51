"""Guarantees of branches between brokers: waiting for others, permissions, what each broker keeps (docs/dtx.md)."""

from __future__ import annotations

import pika.exceptions
import pytest

from tests.integration.broker_process import wait_until
from tests.integration.dtx_channel import (
    COMMIT,
    HEURHAZ,
    OK,
    PREPARE,
    RBROLLBACK,
    RECOVER,
    ROLLBACK,
)
from tests.integration.dtx_group import everywhere_settled, fail_over, in_order, other_primary
from tests.integration.dtx_places import OTHER_VHOST
from tests.integration.dtx_workbench import Workbench, move, publish, refused
from tests.stress.clients import connect_to
from tests.stress.group import Group

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240), pytest.mark.usefixtures("broken_connections")]


@pytest.fixture
def bench(group_bench: Workbench) -> Workbench:
    return group_bench


def test_one_that_was_stopped_has_the_decisions_too(group: Group, bench: Workbench) -> None:
    """Prepared while it was there, decided while it was not, and the other way round; it leads afterwards."""
    a, b = bench.queue("a", "1", "2", "3", "4"), bench.queue("b")
    xids = [bench.xid() for _ in range(4)]
    for xid in xids[:3]:
        worker = bench.dtx()
        bench.swapped(worker, xid, a, b)
        assert worker.prepare(xid) == OK
    stopped = group.backups()[0]
    stopped.kill()
    tm = bench.tm()
    assert tm.commit(xids[0]) == OK
    assert tm.rollback(xids[1]) == OK
    worker = bench.dtx()
    bench.swapped(worker, xids[3], a, b)
    assert worker.prepare(xids[3]) == OK
    group.start(stopped.name)
    group.ready()
    fail_over(group, bench, stopped.name)
    assert bench.in_doubt() == in_order(xids[2:])
    assert bench.counts(a, b) == (1, 1)
    assert bench.tm().commit(xids[2]) == OK
    assert bench.tm().rollback(xids[3]) == OK
    for xid in xids:
        with refused(404):
            bench.tm().rollback(xid)
    everywhere_settled(group)
    assert len(bench.drain(a)) == 2
    assert bench.drain(b) == ["1", "3"]


def test_what_other_brokers_do_not_have_goes_with_the_primary(group: Group, bench: Workbench) -> None:
    """A branch over a replicated queue and one that is not: the former's part is prepared and survives."""
    a, b = bench.queue("a", "m"), bench.queue("b")
    here = f"{bench.name}.here"
    bench.channel().queue_declare(here, arguments={"x-ha-replicate": "none"})
    xids = [bench.xid(), bench.xid()]
    worker = bench.dtx()
    for xid in xids:
        assert worker.start(xid) == OK
        publish(worker.channel, here, "here")
        publish(worker.channel, b, "there")
        assert worker.end(xid) == OK
        assert worker.prepare(xid) == OK
    assert worker.commit(xids[0]) == OK
    assert bench.counts(here, b) == (1, 1)
    taker = bench.dtx()
    taken = bench.xid()
    assert taker.start(taken) == OK
    move(taker, here, b)
    move(taker, a, b)
    assert taker.end(taken) == OK
    assert taker.prepare(taken) == OK
    fail_over(group, bench)
    assert bench.in_doubt() == in_order([xids[1], taken])
    assert bench.counts(a, b) == (0, 1)
    assert bench.tm().commit(xids[1]) == OK
    assert bench.tm().commit(taken) == OK
    assert bench.drain(b) == ["there", "there", "here", "m"]
    everywhere_settled(group)


def test_commit_waits_for_the_group_and_so_does_who_asks_again(group: Group, bench: Workbench) -> None:
    a, b = bench.queue("a", "m"), bench.queue("b")
    worker, xid = bench.dtx(), bench.xid()
    bench.swapped(worker, xid, a, b)
    assert worker.prepare(xid) == OK
    managers = [bench.tm(), bench.tm()]
    stopped = group.backups()[0]
    stopped.pause()
    asked = [tm.send(COMMIT, *xid, False) for tm in managers]
    for tm in managers:
        tm.channel.connection.process_data_events(time_limit=0.5)
    assert not any(pending.answered for pending in asked)
    stopped.resume()
    assert [pending.wait() for pending in asked] == [(OK,), (OK,)]
    assert bench.drain(b) == ["m"]


def test_a_rollback_overtakes_a_prepare_that_waits_for_the_group(group: Group, bench: Workbench) -> None:
    a, b = bench.queue("a", "m"), bench.queue("b")
    worker, xid = bench.dtx(), bench.xid()
    bench.swapped(worker, xid, a, b)
    first, second = bench.tm(), bench.tm()
    stopped = group.backups()[0]
    stopped.pause()
    prepare = first.send(PREPARE, *xid)
    first.channel.connection.process_data_events(time_limit=0.3)
    with refused(409):
        bench.tm().commit(xid)
    rollback = second.send(ROLLBACK, *xid)
    second.channel.connection.process_data_events(time_limit=0.3)
    assert not prepare.answered
    assert not rollback.answered
    stopped.resume()
    assert prepare.wait() in ((OK,), (RBROLLBACK,))
    assert rollback.wait() == (OK,)
    with refused(404):
        bench.tm().commit(xid)
    assert bench.in_doubt() == []
    assert bench.counts(a, b) == (1, 0)
    everywhere_settled(group)


def test_prepare_waits_for_the_minimum(group: Group, bench: Workbench) -> None:
    """Both backups are gone: who has asked is answered when one of them is back."""
    a, b = bench.queue("a", "m"), bench.queue("b")
    worker, xid = bench.dtx(), bench.xid()
    bench.swapped(worker, xid, a, b)
    backups = group.backups()
    for backup in backups:
        backup.kill()
    pending = worker.send(PREPARE, *xid)
    worker.channel.connection.process_data_events(time_limit=1)
    assert not pending.answered
    group.start(backups[0].name)
    assert pending.wait() == (OK,)
    group.start(backups[1].name)
    group.ready()
    fail_over(group, bench, backups[1].name)
    assert bench.in_doubt() == in_order([xid])
    assert bench.tm().commit(xid) == OK
    everywhere_settled(group)
    assert bench.drain(b) == ["m"]


def test_a_name_that_was_completed_and_forgotten_is_free(group: Group, bench: Workbench) -> None:
    """The same xid again: prepared by its manager, or completed once more; what was forgotten does not come back."""
    a, b = bench.queue("a", "1", "2", "3"), bench.queue("b")
    xid = bench.xid()
    for commit in (True, False):
        worker = bench.dtx()
        bench.swapped(worker, xid, a, b)
        assert worker.prepare(xid) == OK
        assert worker.complete(xid, commit=commit) == OK
        assert worker.forget(xid) == OK
    worker = bench.dtx()
    bench.swapped(worker, xid, a, b)
    assert worker.prepare(xid) == OK
    for _ in range(2):
        killed = fail_over(group, bench)
        assert bench.in_doubt() == in_order([xid])
        group.start(killed)
        group.ready()
    group.kill_all()
    group.start()
    group.ready()
    bench.move_to(group.primary().port)
    assert bench.in_doubt() == in_order([xid])
    assert bench.tm().complete(xid, commit=True) == OK
    assert bench.tm().commit(xid) == HEURHAZ
    assert bench.tm().forget(xid) == OK
    everywhere_settled(group)
    assert (bench.drain(a), bench.drain(b)) == (["3"], ["1", "2"])


def test_a_queue_that_is_deleted_while_its_messages_are_locked(group: Group, bench: Workbench) -> None:
    """By another primary than the one that locked them."""
    a, b = bench.queue("a", "1", "2"), bench.queue("b")
    xids = [bench.xid(), bench.xid()]
    for xid in xids:
        worker = bench.dtx()
        bench.swapped(worker, xid, a, b)
        assert worker.prepare(xid) == OK
    killed = fail_over(group, bench)
    bench.channel().queue_delete(a)
    group.start(killed)
    group.ready()
    group.start(fail_over(group, bench))
    group.ready()
    assert bench.in_doubt() == in_order(xids)
    assert bench.tm().rollback(xids[0]) == OK
    assert bench.tm().commit(xids[1]) == OK
    everywhere_settled(group)
    assert bench.drain(b) == ["2"]


def test_branches_stay_in_their_vhosts(group: Group, bench: Workbench) -> None:
    xid = bench.xid()
    queue = f"{bench.name}.q"
    for vhost in ("/", OTHER_VHOST):
        worker = bench.dtx(bench.connect(virtual_host=vhost))
        worker.channel.queue_declare(queue, durable=True)
        assert worker.start(xid) == OK
        publish(worker.channel, queue, f"in {vhost}")
        assert worker.end(xid) == OK
        assert worker.prepare(xid) == OK
    fail_over(group, bench)
    there = bench.tm(bench.connect(virtual_host=OTHER_VHOST))
    assert there.recover() == bench.in_doubt() == in_order([xid])
    assert there.rollback(xid) == OK
    assert there.recover() == []
    assert bench.in_doubt() == in_order([xid])
    assert bench.tm().commit(xid) == OK
    assert bench.drain(queue) == ["in /"]
    assert there.channel.basic_get(queue) == (None, None, None)
    everywhere_settled(group)


def test_a_replaced_primary_says_nothing_about_branches(group: Group, bench: Workbench) -> None:
    """Asked while it sleeps: for what its successor has decided meanwhile, and for what it has prepared."""
    a, b = bench.queue("a", "1", "2"), bench.queue("b")
    worker, decided, unknown = bench.dtx(), bench.xid(), bench.xid()
    bench.swapped(worker, decided, a, b)
    assert worker.prepare(decided) == OK
    managers = [bench.tm() for _ in range(4)]
    old = group.primary()
    old.pause()
    bench.move_to(wait_until("another one leads", lambda: other_primary(group, old.name)))
    assert bench.tm().rollback(decided) == OK
    successors = bench.dtx()
    bench.swapped(successors, unknown, a, b)
    assert successors.prepare(unknown) == OK
    asked = [
        managers[0].send(RECOVER, b""),
        managers[1].send(COMMIT, *unknown, False),
        managers[2].send(COMMIT, *decided, False),
        managers[3].send(COMMIT, *unknown, True),
    ]
    for tm in managers:
        tm.channel.connection.process_data_events()  # it goes to the kernel
    old.resume()
    for pending in asked:
        with pytest.raises((pika.exceptions.ConnectionClosed, pika.exceptions.StreamLostError)):
            pending.wait()
        assert not pending.answered, "before the connection was closed"
    group.ready()
    assert bench.in_doubt() == in_order([unknown])
    assert bench.tm().commit(unknown) == OK
    everywhere_settled(group)
    assert (bench.drain(a), bench.drain(b)) == (["2"], ["1"])


def test_a_backup_that_refuses_clients_tells_who_the_primary_is(group: Group) -> None:
    backup = group.backups()[0]
    text = f"NOT_PRIMARY - {backup.name} is a backup; primary is amqp://127.0.0.1:{group.primary().port}"
    with pytest.raises(pika.exceptions.AMQPConnectionError) as caught:
        connect_to(backup.port)
    assert "(320)" in str(caught.value.args)
    assert text in str(caught.value.args)
