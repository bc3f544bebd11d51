"""Branches and queues: settlements of every kind, what expires, what is purged or deleted while messages are locked."""

from __future__ import annotations

import time

import pika.exceptions
import pytest

from tests.integration.broker_process import wait_until
from tests.integration.dtx_channel import END, OK, PREPARE, PREPARED, RBROLLBACK, START, InDoubt
from tests.integration.dtx_workbench import Workbench, move, publish, refused, take

pytestmark = pytest.mark.integration

EXPIRES_MS = 500


# -- settlements ----------------------------------------------------------------------------------------------------------


def test_a_requeue_is_no_part_of_the_branch(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    queue = bench.queue("q", "1", "2", "3")
    assert worker.start(xid) == OK
    tags = [take(worker, queue)[1] for _ in range(3)]
    worker.channel.basic_nack(tags[0])
    worker.channel.basic_reject(tags[1], requeue=False)
    worker.channel.basic_nack(tags[2], requeue=False)
    worker.channel.queue_declare(queue, passive=True)
    assert bench.available(queue) == 1
    assert worker.end(xid) == OK
    assert worker.prepare(xid) == OK
    assert bench.available(queue) == 1, "a rejected message that is to be dropped is locked like an acknowledged one"
    assert worker.rollback(xid) == OK
    assert bench.drain_with_flags(queue) == [("1", True), ("2", True), ("3", True)]


def test_recover_is_no_part_of_the_branch(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    queue = bench.queue("q", "1", "2")
    assert worker.start(xid) == OK
    _, first = take(worker, queue)
    take(worker, queue)
    worker.channel.basic_ack(first)
    worker.channel.basic_recover(requeue=True)
    assert bench.available(queue) == 1, "what is acknowledged is the branch's and not the channel's"
    assert worker.end(xid) == OK
    assert worker.rollback(xid) == OK
    assert bench.drain(queue) == ["1", "2"]


def test_all_at_once(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    queue = bench.queue("q", "1", "2", "3")
    assert worker.start(xid) == OK
    for _ in range(3):
        take(worker, queue)
    worker.channel.basic_ack(0, multiple=True)
    assert worker.end(xid) == OK
    assert worker.prepare(xid) == OK
    assert worker.commit(xid) == OK
    worker.channel.close()
    assert bench.available(queue) == 0


def test_acknowledged_twice(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    queue = bench.queue("q", "m")
    assert worker.start(xid) == OK
    _, tag = take(worker, queue)
    worker.channel.basic_ack(tag)
    with refused(406):
        worker.channel.basic_ack(tag)
        worker.end(xid)
    assert bench.tm().prepare(xid) == RBROLLBACK
    assert bench.drain(queue) == ["m"]


@pytest.mark.parametrize("how", ["closed", "timed-out", "failed"])
def test_acknowledged_last_before_the_branch_fails(bench: Workbench, how: str) -> None:
    """And nothing behind it."""
    worker, xid = bench.dtx(), bench.xid()
    queue = bench.queue("q", "1", "2")
    assert worker.start(xid) == OK
    for _ in range(2):
        _, tag = take(worker, queue)
        worker.channel.basic_ack(tag)
    if how == "timed-out":
        assert worker.set_timeout(xid, 1) == OK
        wait_until("its time is over", lambda: bench.available(queue) == 2)
    elif how == "failed":
        assert worker.end(xid, fail=True) == RBROLLBACK
    else:
        worker.channel.close()
    assert bench.drain_with_flags(queue) == [("1", True), ("2", True)]


def test_what_is_not_acknowledged_within_the_branch_stays_with_its_channel(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    queue = bench.queue("q", "1", "2", "3")
    _, before = take(worker, queue)
    assert worker.start(xid) == OK
    _, within = take(worker, queue)
    worker.channel.basic_ack(within)
    assert worker.end(xid) == OK
    assert worker.prepare(xid) == OK
    assert bench.available(queue) == 1
    assert worker.rollback(xid) == OK
    assert bench.available(queue) == 2, "only what was in the branch comes back"
    worker.channel.basic_ack(before)
    worker.channel.close()
    assert bench.drain(queue) == ["2", "3"]


def test_acknowledged_after_the_start_what_was_delivered_before(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    queue = bench.queue("q", "1", "2", "3")
    tags = [take(worker, queue)[1] for _ in range(3)]
    assert worker.start(xid) == OK
    worker.channel.basic_ack(tags[1], multiple=True)
    assert worker.end(xid) == OK
    worker.channel.close()
    assert bench.drain(queue) == ["3"], "the other two are locked by the branch, whatever becomes of the channel"
    assert bench.tm().rollback(xid) == OK
    assert bench.drain(queue) == ["1", "2"]


def test_nobody_waits_for_answers(bench: Workbench) -> None:
    """Everything of two branches sent at once, and something between them that belongs to neither."""
    worker, first, second = bench.dtx(), bench.xid(), bench.xid()
    queue = bench.queue("q")
    impl = worker.channel._impl
    statuses: list[tuple[str, int]] = []
    for _, answer in (START, END, PREPARE):
        impl.callbacks.add(
            impl.channel_number,
            answer,
            lambda frame: statuses.append((frame.method.NAME, *frame.method.values)),
            one_shot=False,
        )
    for xid, message in ((first, "within1"), (second, "within2")):
        impl._send_method(START[0](*xid, False, False))
        publish(worker.channel, queue, message)
        impl._send_method(END[0](*xid, False, False))
        impl._send_method(PREPARE[0](*xid))
        publish(worker.channel, queue, f"after {message}")
    assert worker.commit(second) == OK
    assert worker.commit(first) == OK
    assert statuses == [("dtx.start-ok", OK), ("dtx.end-ok", OK), ("dtx.prepare-ok", OK)] * 2
    assert bench.drain(queue) == ["after within1", "after within2", "within2", "within1"]


# -- what happens to the queue meanwhile ----------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "rolled-back"])
def test_what_is_locked_does_not_expire(bench: Workbench, commit: bool) -> None:
    worker, xid = bench.dtx(), bench.xid()
    a, b = bench.queue("a"), bench.queue("b")
    publish(worker.channel, a, "m", expiration=str(EXPIRES_MS))
    worker.channel.queue_declare(a, passive=True)
    bench.swapped(worker, xid, a, b)
    assert worker.prepare(xid) == OK
    time.sleep(2 * EXPIRES_MS / 1000)
    assert bench.in_doubt() == [InDoubt(PREPARED, xid)]
    assert (worker.commit if commit else worker.rollback)(xid) == OK
    assert bench.drain(a) == [], "back in the queue its time is over"
    assert bench.drain(b) == (["m"] if commit else [])


def test_a_purge_leaves_what_is_locked(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    a, b = bench.queue("a", "1", "2"), bench.queue("b")
    bench.swapped(worker, xid, a, b)
    assert worker.prepare(xid) == OK
    assert bench.channel().queue_purge(a).method.message_count == 1
    assert worker.rollback(xid) == OK
    assert bench.drain(a) == ["1"]


def test_a_queue_with_locked_messages_is_not_empty(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    a, b = bench.queue("a", "m"), bench.queue("b")
    bench.swapped(worker, xid, a, b)
    assert worker.prepare(xid) == OK
    with refused(406):
        bench.channel().queue_delete(a, if_empty=True)
    assert worker.rollback(xid) == OK
    assert bench.drain(a) == ["m"]


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "rolled-back"])
@pytest.mark.parametrize("when", ["working", "ended", "prepared"])
def test_queues_that_are_deleted_meanwhile(bench: Workbench, when: str, commit: bool) -> None:
    """Others of the same names stand in their places: they are not what the branch has worked on."""
    worker, xid = bench.dtx(), bench.xid()
    a, b, c, d = bench.queue("a", "1"), bench.queue("b"), bench.queue("c", "2"), bench.queue("d")

    def delete(now: str) -> None:
        if now == when:
            for queue in (a, b):
                bench.channel().queue_delete(queue)
                bench.channel().queue_declare(queue, durable=True)

    assert worker.start(xid) == OK
    move(worker, a, b)
    move(worker, c, d)
    delete("working")
    assert worker.end(xid) == OK
    delete("ended")
    assert worker.prepare(xid) == OK
    delete("prepared")
    assert (worker.commit if commit else worker.rollback)(xid) == OK
    assert bench.counts(a, b) == (0, 0)
    assert (bench.drain(c), bench.drain(d)) == (([], ["2"]) if commit else (["2"], []))


def test_acknowledged_when_the_queue_was_deleted(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    a, b = bench.queue("a", "m"), bench.queue("b")
    assert worker.start(xid) == OK
    _, tag = take(worker, a)
    bench.channel().queue_delete(a)
    worker.channel.basic_ack(tag)
    publish(worker.channel, b, "n")
    assert worker.end(xid) == OK
    assert worker.prepare(xid) == OK
    assert worker.commit(xid) == OK
    assert bench.drain(b) == ["n"]


def test_an_exclusive_queue_goes_with_its_connection_and_the_branch_stays(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    target = bench.queue("q")
    own = worker.channel.queue_declare("", exclusive=True).method.queue
    publish(worker.channel, own, "m")
    assert worker.start(xid) == OK
    move(worker, own, target)
    publish(worker.channel, own, "never")
    assert worker.end(xid) == OK
    worker.channel.connection.close()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        bench.available(own)
    tm = bench.tm()
    assert tm.prepare(xid) == OK
    assert tm.commit(xid) == OK
    assert bench.drain(target) == ["m"]
