"""Guarantees of branches: isolation, ownership, lifetime, names (docs/dtx.md, Names, What holds)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pika.exceptions
import pytest

from tests.integration.broker_process import wait_until
from tests.integration.dtx_channel import (
    OK,
    PREPARED,
    RBROLLBACK,
    RBTIMEOUT,
    RECOVER_OK_OVERHEAD,
    InDoubt,
    Xid,
    read_in_doubt,
)
from tests.integration.dtx_places import OTHER_VHOST
from tests.integration.dtx_workbench import MAX_ID_BYTES, Workbench, cut, move, publish, refused

pytestmark = pytest.mark.integration

LEAST_FRAME_MAX = 4_096
TIMEOUT_S = 4
"""A branch whose time is over is remembered for as long again (docs/dtx.md): a test must have asked by then."""

ENDS: dict[str, Callable[[Any], None]] = {
    "channel-closed": lambda channel: channel.close(),
    "connection-closed": lambda channel: channel.connection.close(),
    "connection-lost": lambda channel: cut(channel.connection),
}
WAYS_TO_END = pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)


def test_the_broker_says_that_it_is_there(bench: Workbench) -> None:
    assert bench.connect()._impl.server_capabilities["understudy.dtx"] is True


# -- isolation ------------------------------------------------------------------------------------------------------------


def test_before_start_and_after_end_a_dtx_channel_is_like_any_other(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    queue = bench.queue("q")
    publish(worker.channel, queue, "before")
    assert worker.start(xid) == OK
    worker.channel.queue_declare(queue, passive=True)  # waits until what was published is there
    assert bench.drain(queue) == ["before"]
    publish(worker.channel, queue, "within")
    assert worker.end(xid, suspend=True) == OK
    publish(worker.channel, queue, "suspended")
    assert worker.start(xid, resume=True) == OK
    worker.channel.queue_declare(queue, passive=True)
    assert bench.drain(queue) == ["suspended"]
    assert worker.end(xid) == OK
    assert worker.rollback(xid) == OK
    assert bench.drain(queue) == []


def test_a_prefetch_slot_is_free_when_the_branch_is_ended(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    queue = bench.queue("q", "1", "2", "3")
    got: list[str] = []

    def on_message(channel: Any, method: Any, properties: Any, _: bytes) -> None:
        got.append(properties.correlation_id)
        channel.basic_ack(method.delivery_tag)

    connection = worker.channel.connection
    assert worker.start(xid) == OK
    worker.channel.basic_qos(prefetch_count=1)
    worker.channel.basic_consume(queue, on_message)
    wait_until("the first is delivered", lambda: connection.process_data_events(time_limit=0.05) or got)
    connection.process_data_events(time_limit=0.3)
    assert got == ["1"], "what is acknowledged within the branch keeps its slot"
    assert worker.end(xid) == OK
    wait_until("all are delivered", lambda: connection.process_data_events(time_limit=0.05) or len(got) == 3)
    assert worker.rollback(xid) == OK
    wait_until("the first is back", lambda: connection.process_data_events(time_limit=0.05) or len(got) == 4)
    assert got == ["1", "2", "3", "1"]
    worker.channel.queue_declare(queue, passive=True)
    assert bench.available(queue) == 0


def test_operations_of_several_channels_stand_in_the_order_of_their_arrival(bench: Workbench) -> None:
    first, second, xid = bench.dtx(), bench.dtx(), bench.xid()
    queue = bench.queue("q")
    assert first.start(xid) == OK
    assert second.start(xid, join=True) == OK
    expected = [str(number) for number in range(20)]
    for number, message in enumerate(expected):
        worker = (first, second)[number % 2]
        publish(worker.channel, queue, message)
        worker.channel.queue_declare(queue, passive=True)  # so the broker has read it
    assert second.end(xid) == OK
    assert first.end(xid) == OK
    assert bench.tm().commit(xid, one_phase=True) == OK
    assert bench.drain(queue) == expected


def test_an_error_within_the_branch_fails_it(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    a, b = bench.queue("a", "m"), bench.queue("b")
    assert worker.start(xid) == OK
    move(worker, a, b)
    with refused(404, "no.such.exchange"):
        worker.channel.basic_publish("no.such.exchange", "x", b"")
        worker.end(xid)
    assert bench.tm().prepare(xid) == RBROLLBACK
    assert bench.counts(a, b) == (1, 0)


# -- lifetimes ------------------------------------------------------------------------------------------------------------


@WAYS_TO_END
@pytest.mark.parametrize("state", ["working", "suspended", "joined"])
def test_a_branch_does_not_survive_who_works_on_it(bench: Workbench, end: Callable[[Any], None], state: str) -> None:
    """H-46, not prepared. One of several channels suffices."""
    worker, xid = bench.dtx(), bench.xid()
    a, b = bench.queue("a", "m"), bench.queue("b")
    assert worker.start(xid) == OK
    move(worker, a, b)
    if state == "suspended":
        assert worker.end(xid, suspend=True) == OK
    other = bench.dtx()
    if state == "joined":
        assert other.start(xid, join=True) == OK
        publish(other.channel, b, "n")
    end(worker.channel)
    wait_until("its messages are back", lambda: bench.available(a) == 1)
    if state == "joined":
        publish(other.channel, b, "never")
        assert other.end(xid) == RBROLLBACK
    assert bench.tm().prepare(xid) == RBROLLBACK
    assert bench.tm().rollback(xid) == OK
    assert bench.drain_with_flags(a) == [("m", True)]
    assert bench.drain(b) == []


@WAYS_TO_END
@pytest.mark.parametrize("state", ["ended", "prepared"])
def test_an_ended_branch_survives_who_worked_on_it(bench: Workbench, end: Callable[[Any], None], state: str) -> None:
    """H-46, prepared; ended is enough as long as the broker lives."""
    worker, xid = bench.dtx(), bench.xid()
    a, b = bench.queue("a", "m"), bench.queue("b")
    bench.swapped(worker, xid, a, b)
    if state == "prepared":
        assert worker.prepare(xid) == OK
    end(worker.channel)
    assert bench.counts(a, b) == (0, 0)
    tm = bench.tm()
    assert tm.prepare(xid) == OK
    assert bench.counts(a, b) == (0, 0)
    assert tm.commit(xid) == OK
    assert (bench.drain(a), bench.drain(b)) == ([], ["m"])


def test_prepare_again(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    a, b = bench.queue("a", "m"), bench.queue("b")
    bench.swapped(worker, xid, a, b)
    for _ in range(3):
        assert worker.prepare(xid) == OK
    assert bench.tm().prepare(xid) == OK
    assert bench.in_doubt() == [InDoubt(PREPARED, xid)]
    assert worker.commit(xid) == OK
    assert bench.counts(a, b) == (0, 1)


def test_whose_time_is_over_is_told_so(bench: Workbench) -> None:
    """PREPARE may be asked first or not: two branches, whose time is over together."""
    worker, asked, committed = bench.dtx(), bench.xid(), bench.xid()
    a, b = bench.queue("a", "1", "2"), bench.queue("b")
    for xid in (asked, committed):
        bench.swapped(worker, xid, a, b)
        assert worker.set_timeout(xid, TIMEOUT_S) == OK
    wait_until("their time is over", lambda: bench.available(a) == 2)
    assert bench.tm().prepare(asked) == RBTIMEOUT
    for xid in (asked, committed):
        tm = bench.tm()
        assert tm.commit(xid, one_phase=True) == RBTIMEOUT
        with refused(404):
            tm.commit(xid, one_phase=True)


def test_a_consumer_is_not_handed_the_messages_of_its_failed_branch_again_and_again(bench: Workbench) -> None:
    """Acknowledgements there cannot be accepted: put back at once, the messages came back at once, thousands of times a second."""
    worker, xid = bench.dtx(), bench.xid()
    queue = bench.queue("q", "m")
    deliveries = 0

    def on_message(channel: Any, method: Any, _: Any, __: bytes) -> None:
        nonlocal deliveries
        deliveries += 1
        channel.basic_ack(method.delivery_tag)

    connection = worker.channel.connection
    assert worker.start(xid) == OK
    assert worker.set_timeout(xid, TIMEOUT_S) == OK
    worker.channel.basic_consume(queue, on_message)
    until = time.monotonic() + TIMEOUT_S + 1.5
    while time.monotonic() < until:
        connection.process_data_events(time_limit=0.1)
    assert worker.end(xid) == RBTIMEOUT
    assert 1 <= deliveries < 10
    assert bench.tm().rollback(xid) == RBTIMEOUT


def test_what_nobody_asks_for_is_forgotten(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    assert worker.start(xid) == OK
    assert worker.set_timeout(xid, 1) == OK
    assert worker.end(xid) == OK

    def forgotten() -> bool:
        try:
            bench.tm().get_timeout(xid)
        except pika.exceptions.ChannelClosedByBroker as error:
            return bool(error.reply_code == 404)
        return False

    wait_until("it is forgotten", forgotten)
    assert worker.start(xid) == OK
    assert worker.end(xid) == OK


def test_nobody_works_on_a_branch_that_has_failed(bench: Workbench) -> None:
    """A worker that joins or resumes the branch is refused, and works on nothing."""
    workers = {"join": bench.dtx(), "resume": bench.dtx()}
    xids = {how: bench.xid() for how in workers}
    a, b = bench.queue("a", "1", "2"), bench.queue("b")
    for how, worker in workers.items():
        assert worker.start(xids[how]) == OK
        move(worker, a, b)
        assert worker.set_timeout(xids[how], TIMEOUT_S) == OK
        assert worker.end(xids[how], suspend=how == "resume") == OK
    wait_until("their time is over", lambda: bench.available(a) == 2)
    for how, worker in workers.items():
        assert worker.start(xids[how], join=how == "join", resume=how == "resume") == RBTIMEOUT
        publish(worker.channel, b, how)
        worker.channel.queue_declare(b, passive=True)
        assert bench.drain(b) == [how]
        with refused(409):
            worker.end(xids[how])
        assert bench.tm().rollback(xids[how]) == RBTIMEOUT
    assert sorted(bench.drain(a)) == ["1", "2"]


def test_a_prepared_branch_has_no_time_out(bench: Workbench) -> None:
    worker, early, late = bench.dtx(), bench.xid(), bench.xid()
    a, b = bench.queue("a", "1", "2"), bench.queue("b")
    for xid in (early, late):
        bench.swapped(worker, xid, a, b)
        assert worker.set_timeout(xid, 1) == OK
    assert worker.prepare(early) == OK
    wait_until("the other one's time is over", lambda: bench.available(a) == 1)
    worker.channel.connection.sleep(1.5)  # a little longer than its own would have been
    assert bench.in_doubt() == [InDoubt(PREPARED, early)]
    assert bench.drain(a) == ["2"]
    assert worker.commit(early) == OK
    assert bench.drain(b) == ["1"]


# -- names ----------------------------------------------------------------------------------------------------------------


def test_any_bytes_name_a_branch(bench: Workbench) -> None:
    worker = bench.dtx()
    queue = bench.queue("q")
    # The bench does not know these: they are decided here.
    xids = [
        Xid(format_id, global_id, branch_id)
        for format_id in (0, (1 << 32) - 1)
        for global_id in (b"\0", b"\xff" * MAX_ID_BYTES)
        for branch_id in (bytes(range(MAX_ID_BYTES)), bytes(MAX_ID_BYTES), b"\xce%00:/")
    ]
    for number, xid in enumerate(xids):
        assert worker.start(xid) == OK
        publish(worker.channel, queue, str(number))
        assert worker.end(xid) == OK
        assert worker.prepare(xid) == OK
    found = [row for row in bench.tm().recover() if row.xid in xids]
    assert found == [InDoubt(PREPARED, xid) for xid in sorted(xids, key=Xid.octets)]
    for number, xid in enumerate(xids):
        assert (worker.commit(xid) if number % 2 else worker.rollback(xid)) == OK
    assert bench.drain(queue) == [str(number) for number in range(len(xids)) if number % 2]


def test_another_vhost_is_another_branch(bench: Workbench) -> None:
    here, xid = bench.dtx(), bench.xid()
    there = bench.dtx(bench.connect(virtual_host=OTHER_VHOST))
    queue = bench.queue("q")
    there.channel.queue_declare(queue, durable=True)
    for worker, message in ((here, "here"), (there, "there")):
        assert worker.start(xid) == OK
        publish(worker.channel, queue, message)
        assert worker.end(xid) == OK
    assert there.prepare(xid) == OK
    assert bench.in_doubt() == []
    assert here.commit(xid, one_phase=True) == OK
    with refused(404):
        bench.tm().commit(xid)
    assert there.recover() == [InDoubt(PREPARED, xid)]
    assert there.commit(xid) == OK
    assert there.channel.basic_get(queue, auto_ack=True)[1].correlation_id == "there"
    assert bench.drain(queue) == ["here"]


def test_recover_in_pages_that_fit_a_frame(bench: Workbench) -> None:
    """The list does not grow beyond what the connection has agreed on."""
    worker = bench.dtx()
    xids = [bench.xid()._replace(branch_id=b"%064d" % number) for number in range(100)]
    for xid in xids:
        assert worker.start(xid) == OK
        assert worker.end(xid) == OK
        assert worker.prepare(xid) == OK
    small = bench.tm(bench.connect(frame_max=LEAST_FRAME_MAX))
    pages = small.recover_pages()
    assert len(pages) > 2
    assert max(map(len, pages)) <= LEAST_FRAME_MAX - RECOVER_OK_OVERHEAD
    rows = [row for page in pages for row in read_in_doubt(page)]
    assert [row for row in rows if row.xid in xids] == [InDoubt(PREPARED, xid) for xid in xids]
    (first, *others) = small.recover_pages(xids[49].octets())
    assert read_in_doubt(first)[0] == InDoubt(PREPARED, xids[50])
    assert len(others) < len(pages) - 1
    finisher = bench.form(worker.channel)
    for xid in xids:
        assert finisher.rollback(xid) == OK
