"""Distributed transactions as a client of another broker knows them: the cases of Qpid's dtx.py, for AMQP 0-9-1 (docs/dtx.md).

The names are those of that suite, so that what is missing can be seen. Its cases that could not fail are real ones here, and where
it leaves a method's other half open (the same xid again, what the second channel sees) that half is asked for too.

Errors, operators, and what is said about isolation and lifetimes stand in files of their own beside this one. Every test runs
against one broker without the plugin, a group of one and a group of three (H-52); the `bench` compares the brokers afterwards.
"""

from __future__ import annotations

import pytest

from tests.integration.broker_process import wait_until
from tests.integration.dtx_channel import OK, PREPARED, RBROLLBACK, RBTIMEOUT, InDoubt, Xid
from tests.integration.dtx_workbench import Workbench, move, publish, refused, take

pytestmark = pytest.mark.integration

DEFAULT_TIMEOUT_S = 60


def test_simple_commit(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    a, b = bench.queue("a", "m"), bench.queue("b")
    bench.swapped(worker, xid, a, b)
    assert bench.counts(a, b) == (0, 0)
    assert worker.commit(xid, one_phase=True) == OK
    assert bench.drain(a) == []
    assert bench.drain_with_flags(b) == [("m", False)]


def test_simple_prepare_commit(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    a, b = bench.queue("a", "m"), bench.queue("b")
    bench.swapped(worker, xid, a, b)
    assert worker.prepare(xid) == OK
    assert bench.counts(a, b) == (0, 0)
    assert worker.commit(xid) == OK
    assert bench.drain(a) == []
    assert bench.drain_with_flags(b) == [("m", False)]


def test_simple_rollback(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    a, b = bench.queue("a", "m"), bench.queue("b")
    bench.swapped(worker, xid, a, b)
    assert bench.counts(a, b) == (0, 0)
    assert worker.rollback(xid) == OK
    assert bench.drain_with_flags(a) == [("m", True)]
    assert bench.drain(b) == []


def test_simple_prepare_rollback(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    a, b = bench.queue("a", "m"), bench.queue("b")
    bench.swapped(worker, xid, a, b)
    assert worker.prepare(xid) == OK
    assert bench.counts(a, b) == (0, 0)
    assert worker.rollback(xid) == OK
    assert bench.drain_with_flags(a) == [("m", True)]
    assert bench.drain(b) == []


def test_select_required(bench: Workbench) -> None:
    with refused(503, "dtx.select"):
        bench.tm().start(bench.xid())


def test_start_already_known(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    assert worker.start(xid) == OK
    with refused(530):
        bench.dtx().start(xid)
    assert worker.end(xid) == OK
    with refused(530):
        bench.dtx().start(xid)
    assert worker.prepare(xid) == OK
    with refused(530):
        bench.dtx().start(xid)
    assert worker.rollback(xid) == OK
    assert worker.start(xid) == OK, "nobody knows it any more"
    assert worker.end(xid) == OK


@pytest.mark.parametrize("how", ["one-phase", "two-phase", "rolled-back"])
def test_forget_xid_on_completion(bench: Workbench, how: str) -> None:
    worker, xid = bench.dtx(), bench.xid()
    a, b = bench.queue("a", "m"), bench.queue("b")
    bench.swapped(worker, xid, a, b)
    if how == "one-phase":
        assert worker.commit(xid, one_phase=True) == OK
    elif how == "two-phase":
        assert (worker.prepare(xid), worker.commit(xid)) == (OK, OK)
    else:
        assert worker.rollback(xid) == OK
    with refused(404):
        bench.tm().rollback(xid)
    assert worker.start(xid) == OK
    assert worker.end(xid) == OK
    assert worker.rollback(xid) == OK
    assert bench.counts(a, b) == ((1, 0) if how == "rolled-back" else (0, 1))


def test_start_join_and_resume(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    with refused(503):
        worker.start(xid, join=True, resume=True)
    with refused(404):
        bench.tm().rollback(xid)


@pytest.mark.parametrize("connections", [1, 2])
def test_start_join(bench: Workbench, connections: int) -> None:
    first, xid = bench.dtx(), bench.xid()
    second = bench.dtx(first.channel.connection if connections == 1 else None)
    one, two = bench.queue("one", "a"), bench.queue("two", "b")
    assert first.start(xid) == OK
    assert second.start(xid, join=True) == OK
    assert move(first, one, two) == "a"
    assert move(second, two, one) == "b"
    assert first.end(xid) == OK
    assert second.end(xid) == OK
    assert bench.counts(one, two) == (0, 0)
    assert first.commit(xid, one_phase=True) == OK
    assert (bench.drain(one), bench.drain(two)) == (["b"], ["a"])


def test_suspend_resume(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    one, two = bench.queue("one", "a"), bench.queue("two", "b")
    assert worker.start(xid) == OK
    assert move(worker, one, two) == "a"
    assert worker.end(xid, suspend=True) == OK
    assert worker.start(xid, resume=True) == OK
    assert move(worker, two, one) == "b"
    assert worker.end(xid) == OK
    assert worker.commit(xid, one_phase=True) == OK
    assert (bench.drain(one), bench.drain(two)) == (["b"], ["a"])


def test_suspend_start_end_resume(bench: Workbench) -> None:
    worker, xid, other = bench.dtx(), bench.xid(), bench.xid()
    one, two, three = bench.queue("one", "a"), bench.queue("two", "b"), bench.queue("three")
    assert worker.start(xid) == OK
    assert move(worker, one, two) == "a"
    assert worker.end(xid, suspend=True) == OK
    assert worker.start(other) == OK
    publish(worker.channel, three, "c")
    assert worker.end(other) == OK
    assert worker.prepare(other) == OK
    assert worker.start(xid, resume=True) == OK
    assert move(worker, two, one) == "b"
    assert worker.end(xid) == OK
    assert worker.rollback(other) == OK
    assert worker.commit(xid, one_phase=True) == OK
    assert (bench.drain(one), bench.drain(two), bench.drain(three)) == (["b"], ["a"], [])


def test_end_suspend_and_fail(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    a, b = bench.queue("a", "m"), bench.queue("b")
    assert worker.start(xid) == OK
    move(worker, a, b)
    with refused(503):
        worker.end(xid, suspend=True, fail=True)
    assert bench.counts(a, b) == (1, 0), "it has failed all the same"
    assert bench.tm().rollback(xid) == OK
    assert bench.drain(a) == ["m"]


def test_end_unknown_xid(bench: Workbench) -> None:
    with refused(409):
        bench.dtx().end(bench.xid())


def test_end(bench: Workbench) -> None:
    """Work after the end is done at once, and is not part of the branch."""
    worker, xid = bench.dtx(), bench.xid()
    queue = bench.queue("q")
    assert worker.start(xid) == OK
    publish(worker.channel, queue, "one")
    assert worker.end(xid) == OK
    publish(worker.channel, queue, "two")
    worker.channel.queue_declare(queue, passive=True)
    assert bench.available(queue) == 1
    message, tag = take(worker, queue)
    assert message == "two"
    worker.channel.basic_ack(tag)
    worker.channel.connection.close()
    assert bench.available(queue) == 0
    assert bench.tm().commit(xid, one_phase=True) == OK
    assert bench.drain(queue) == ["one"]


def test_invalid_commit_one_phase_true(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    a, b = bench.queue("a", "m"), bench.queue("b")
    bench.swapped(worker, xid, a, b)
    assert worker.prepare(xid) == OK
    with refused(409):
        worker.commit(xid, one_phase=True)
    assert bench.tm().rollback(xid) == OK
    assert bench.counts(a, b) == (1, 0)


def test_invalid_commit_one_phase_false(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    a, b = bench.queue("a", "m"), bench.queue("b")
    bench.swapped(worker, xid, a, b)
    with refused(409):
        worker.commit(xid)
    assert bench.tm().rollback(xid) == OK
    assert bench.counts(a, b) == (1, 0)


@pytest.mark.parametrize("suspended", [False, True], ids=["working", "suspended"])
@pytest.mark.parametrize("verb", ["commit", "rollback", "prepare"])
def test_invalid_not_ended(bench: Workbench, verb: str, suspended: bool) -> None:
    """Three cases of that suite: test_invalid_commit_not_ended, test_invalid_rollback_not_ended, test_invalid_prepare_not_ended."""
    worker, xid = bench.dtx(), bench.xid()
    queue = bench.queue("q")
    assert worker.start(xid) == OK
    publish(worker.channel, queue, "m")
    if suspended:
        assert worker.end(xid, suspend=True) == OK
    with refused(409):
        if verb == "commit":
            bench.tm().commit(xid, one_phase=True)
        else:
            getattr(bench.tm(), verb)(xid)
    assert worker.end(xid) == OK, "who asked in vain has changed nothing"
    assert worker.commit(xid, one_phase=True) == OK
    assert bench.drain(queue) == ["m"]


def test_implicit_end(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    a, b = bench.queue("a", "m"), bench.queue("b")
    assert worker.start(xid) == OK
    move(worker, a, b)
    worker.channel.close()
    tm = bench.tm()
    assert tm.prepare(xid) == RBROLLBACK
    assert tm.rollback(xid) == OK
    assert bench.drain_with_flags(a) == [("m", True)]
    assert bench.drain(b) == []


def test_get_timeout(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    assert worker.start(xid) == OK
    assert worker.get_timeout(xid) == DEFAULT_TIMEOUT_S
    assert worker.set_timeout(xid, 200) == OK
    assert bench.tm().get_timeout(xid) == 200
    assert worker.set_timeout(xid, 0) == OK
    assert worker.get_timeout(xid) == DEFAULT_TIMEOUT_S
    assert worker.set_timeout(xid, 3600) == OK
    assert worker.get_timeout(xid) == 3600
    assert worker.end(xid) == OK
    assert worker.rollback(xid) == OK


def test_set_timeout(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    a, b = bench.queue("a", "m"), bench.queue("b")
    assert worker.start(xid) == OK
    move(worker, a, b)
    assert worker.set_timeout(xid, 3) == OK  # and it is remembered for as long again
    assert bench.counts(a, b) == (0, 0)
    wait_until("its time is over", lambda: bench.available(a) == 1)
    assert bench.drain_with_flags(a) == [("m", True)]
    assert bench.available(b) == 0
    assert worker.end(xid) == RBTIMEOUT
    assert worker.rollback(xid) == RBTIMEOUT
    with refused(404):
        worker.rollback(xid)


def test_set_timeout_too_high(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    assert worker.start(xid) == OK
    assert worker.end(xid) == OK
    with refused(542, "3601"):
        bench.tm().set_timeout(xid, 3601)
    assert bench.tm().get_timeout(xid) == DEFAULT_TIMEOUT_S
    assert worker.rollback(xid) == OK


def test_recover(bench: Workbench) -> None:
    worker = bench.dtx()
    queue = bench.queue("q")
    xids = [bench.xid() for _ in range(9)]
    prepared = [xids[number - 1] for number in (2, 5, 6, 8)]
    for xid in xids:
        assert worker.start(xid) == OK
        publish(worker.channel, queue, xid.branch_id.decode())
        assert worker.end(xid) == OK
        assert (worker.prepare(xid) if xid in prepared else worker.rollback(xid)) == OK
    assert bench.in_doubt() == [InDoubt(PREPARED, xid) for xid in prepared]
    for number, xid in enumerate(prepared, 1):
        assert bench.tm().rollback(xid) == OK
        assert bench.in_doubt() == [InDoubt(PREPARED, xid) for xid in prepared[number:]]
    assert bench.available(queue) == 0


def test_bad_resume(bench: Workbench) -> None:
    with refused(503):
        bench.tm().start(bench.xid(), resume=True)
    with refused(503):
        bench.dtx().start(bench.xid(), resume=True)


def test_prepare_unknown(bench: Workbench) -> None:
    with refused(404):
        bench.tm().prepare(bench.xid())


@pytest.mark.parametrize("one_phase", [False, True])
def test_commit_unknown(bench: Workbench, one_phase: bool) -> None:
    with refused(404):
        bench.tm().commit(bench.xid(), one_phase=one_phase)


def test_rollback_unknown(bench: Workbench) -> None:
    with refused(404):
        bench.tm().rollback(bench.xid())


def test_get_timeout_unknown(bench: Workbench) -> None:
    with refused(404):
        bench.tm().get_timeout(bench.xid())


# -- what that suite does not ask -----------------------------------------------------------------------------------------


def test_start_join_unknown(bench: Workbench) -> None:
    with refused(404):
        bench.dtx().start(bench.xid(), join=True)


def test_set_timeout_unknown(bench: Workbench) -> None:
    with refused(404):
        bench.tm().set_timeout(bench.xid(), 10)


def test_forget_unknown(bench: Workbench) -> None:
    with refused(404):
        bench.tm().forget(bench.xid())


def test_complete_unknown(bench: Workbench) -> None:
    with refused(404):
        bench.tm().complete(bench.xid(), commit=True)


@pytest.mark.parametrize("one_phase", [False, True])
def test_commit_of_a_branch_that_can_only_be_rolled_back(bench: Workbench, one_phase: bool) -> None:
    worker, xid = bench.dtx(), bench.xid()
    a, b = bench.queue("a", "m"), bench.queue("b")
    assert worker.start(xid) == OK
    move(worker, a, b)
    worker.channel.close()
    assert bench.tm().commit(xid, one_phase=one_phase) == RBROLLBACK
    assert bench.counts(a, b) == (1, 0)
    with refused(404):
        bench.tm().commit(xid, one_phase=one_phase)


def test_end_fail(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    a, b = bench.queue("a", "m"), bench.queue("b")
    assert worker.start(xid) == OK
    move(worker, a, b)
    assert worker.end(xid, fail=True) == RBROLLBACK
    assert bench.counts(a, b) == (1, 0)
    assert worker.prepare(xid) == RBROLLBACK
    assert worker.rollback(xid) == OK
    with refused(404):
        worker.rollback(xid)


def test_resume_of_what_is_suspended_elsewhere(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    assert worker.start(xid) == OK
    assert worker.end(xid, suspend=True) == OK
    with refused(503):
        bench.dtx().start(xid, resume=True)
    with refused(503):
        bench.dtx(worker.channel.connection).start(xid, resume=True)
    assert worker.start(xid, resume=True) == OK
    assert worker.end(xid) == OK
    with refused(503):
        worker.start(xid, resume=True)
    assert bench.tm().rollback(xid) == OK


def test_end_of_another_branch(bench: Workbench) -> None:
    worker, xid, other = bench.dtx(), bench.xid(), bench.xid()
    assert worker.start(other) == OK
    assert worker.end(other) == OK
    assert worker.start(xid) == OK
    with refused(503):
        worker.end(other)
    tm = bench.tm()
    assert tm.prepare(other) == OK
    assert tm.rollback(other) == OK
    assert tm.rollback(xid) == OK


@pytest.mark.parametrize("again", ["other", "same", "join"])
def test_start_while_the_channel_works_on_a_branch(bench: Workbench, again: str) -> None:
    worker, xid = bench.dtx(), bench.xid()
    queue = bench.queue("q")
    assert worker.start(xid) == OK
    publish(worker.channel, queue, "m")
    with refused(503):
        worker.start(bench.xid() if again == "other" else xid, join=again == "join")
    assert bench.tm().prepare(xid) == RBROLLBACK, "its channel is closed"
    assert bench.available(queue) == 0


@pytest.mark.parametrize("phases", [1, 2])
def test_no_read_only_vote(bench: Workbench, phases: int) -> None:
    """A branch without work is like any other; another one that has only read, too."""
    worker, empty, reader = bench.dtx(), bench.xid(), bench.xid()
    queue = bench.queue("q", "m")
    assert worker.start(empty) == OK
    assert worker.end(empty) == OK
    assert worker.start(reader) == OK
    _, tag = take(worker, queue)
    assert worker.end(reader) == OK
    if phases == 2:
        assert worker.prepare(empty) == OK
        assert worker.prepare(reader) == OK
        assert bench.in_doubt() == [InDoubt(PREPARED, xid) for xid in (empty, reader)]
    for xid in (empty, reader):
        assert worker.commit(xid, one_phase=phases == 1) == OK
    assert bench.in_doubt() == []
    worker.channel.basic_nack(tag)
    worker.channel.queue_declare(queue, passive=True)
    assert bench.drain(queue) == ["m"]


def test_recover_of_nothing(bench: Workbench) -> None:
    assert bench.tm().recover_pages() == [b""]
    assert bench.tm().recover_pages(Xid(0, b"x", b"y").octets()) == [b""]
