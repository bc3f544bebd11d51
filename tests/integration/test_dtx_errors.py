"""Every row of the table of errors in docs/dtx.md that `test_dtx.py` does not have, and what is left behind by a closed channel.

Each of these codes closes a channel, although some of them (503, 530) are known from AMQP 0-9-1 as codes that close connections.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika.exceptions
import pika.frame
import pytest

from tests.integration.broker_process import running_broker, wait_until
from tests.integration.dtx_channel import CLASS_ID, END, OK, RBROLLBACK, RECOVER, SELECT, START, DtxChannel, Xid
from tests.integration.dtx_workbench import MAX_ID_BYTES, Workbench, move, publish, refused, take
from tests.integration.handshake import HANDSHAKE
from understudy.broker.server.process.memory_watch import ram_bytes

pytestmark = pytest.mark.integration

MAX_BRANCHES = 65_536
MEMORY_LIMIT_BYTES = 150 << 20
END_OK = struct.pack(">BHIHHHB", 1, 1, 6, CLASS_ID, 31, OK, 0xCE)
RECOVER_OK = struct.pack(">HH", CLASS_ID, 71)

VERBS: dict[str, Callable[[DtxChannel, Xid], object]] = {
    "start": DtxChannel.start,
    "join": lambda channel, xid: channel.start(xid, join=True),
    "prepare": DtxChannel.prepare,
    "commit": DtxChannel.commit,
    "commit-one-phase": lambda channel, xid: channel.commit(xid, one_phase=True),
    "rollback": DtxChannel.rollback,
    "forget": DtxChannel.forget,
    "get-timeout": DtxChannel.get_timeout,
    "set-timeout": lambda channel, xid: channel.set_timeout(xid, 10),
    "complete": lambda channel, xid: channel.complete(xid, commit=True),
}


def ended(bench: Workbench, *messages: str) -> tuple[DtxChannel, Xid, str]:
    """A branch that has published these messages to a new queue; who worked on it, its name and the queue."""
    worker, xid = bench.dtx(), bench.xid()
    queue = bench.queue("q")
    assert worker.start(xid) == OK
    for message in messages:
        publish(worker.channel, queue, message)
    assert worker.end(xid) == OK
    return worker, xid, queue


def method_frame(method: tuple[type, type], *values: Any) -> bytes:
    """As it goes to the broker, on channel 1."""
    marshalled: bytes = pika.frame.Method(1, method[0](*values)).marshal()
    return marshalled


# -- 406 ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["tx_select", "confirm_delivery"])
def test_select_in_another_mode(bench: Workbench, mode: str) -> None:
    channel = bench.channel()
    getattr(channel, mode)()
    with refused(406):
        bench.form(channel).select()


@pytest.mark.parametrize("mode", ["tx_select", "confirm_delivery"])
def test_another_mode_after_select(bench: Workbench, mode: str) -> None:
    with refused(406):
        getattr(bench.dtx().channel, mode)()


def test_select_again(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    assert worker.start(xid) == OK
    publish(worker.channel, bench.queue("q"), "m")
    worker.select()
    assert worker.end(xid) == OK
    assert worker.commit(xid, one_phase=True) == OK


def test_a_publish_that_names_a_transaction(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    queue = bench.queue("q")
    assert worker.start(xid) == OK
    publish(worker.channel, queue, "a")
    with refused(406, "x-understudy-tx"):
        publish(worker.channel, queue, "b", headers={"x-understudy-tx": "name"})
        worker.end(xid)
    assert bench.tm().prepare(xid) == RBROLLBACK
    assert bench.tm().rollback(xid) == OK
    assert bench.available(queue) == 0


# -- 409 ------------------------------------------------------------------------------------------------------------------


def test_end_twice(bench: Workbench) -> None:
    worker, xid, queue = ended(bench, "m")
    with refused(409):
        worker.end(xid)
    assert bench.tm().commit(xid, one_phase=True) == OK, "it had been ended, so the end of the channel was not its end"
    assert bench.available(queue) == 1


@pytest.mark.parametrize("verb", ["join", "set-timeout", "commit-one-phase", "forget"])
def test_of_a_prepared_branch(bench: Workbench, verb: str) -> None:
    worker, xid, queue = ended(bench, "m")
    assert worker.prepare(xid) == OK
    with refused(409):
        VERBS[verb](bench.dtx(), xid)
    assert worker.commit(xid) == OK
    assert bench.drain(queue) == ["m"]


@pytest.mark.parametrize("verb", ["commit", "complete", "forget"])
@pytest.mark.parametrize("working", [False, True], ids=["ended", "working"])
def test_of_a_branch_that_is_not_prepared(bench: Workbench, verb: str, working: bool) -> None:
    worker, xid, queue = ended(bench, "m")
    if working:
        assert worker.start(xid, join=True) == OK
    with refused(409):
        VERBS[verb](bench.tm(), xid)
    if working:
        assert worker.end(xid) == OK
    assert worker.commit(xid, one_phase=True) == OK
    assert bench.drain(queue) == ["m"]


def test_prepare_while_one_of_two_channels_works_on_it(bench: Workbench) -> None:
    worker, xid, _ = ended(bench, "m")
    second = bench.dtx()
    assert second.start(xid, join=True) == OK
    for verb in ("prepare", "commit-one-phase", "rollback"):
        with refused(409):
            VERBS[verb](bench.tm(), xid)
    assert second.end(xid) == OK
    assert worker.prepare(xid) == OK
    assert worker.rollback(xid) == OK


def test_rollback_by_the_channel_that_works_on_it(bench: Workbench) -> None:
    """The asking channel is closed by that, and so the branch fails."""
    worker, xid = bench.dtx(), bench.xid()
    a, b = bench.queue("a", "m"), bench.queue("b")
    assert worker.start(xid) == OK
    move(worker, a, b)
    with refused(409):
        worker.rollback(xid)
    assert bench.tm().prepare(xid) == RBROLLBACK
    assert bench.counts(a, b) == (1, 0)


# -- 503, 530 -------------------------------------------------------------------------------------------------------------


def test_resume_of_what_was_only_ended(bench: Workbench) -> None:
    worker, xid, _ = ended(bench, "m")
    with refused(503):
        worker.start(xid, resume=True)
    assert bench.tm().rollback(xid) == OK


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "rolled-back"])
def test_start_of_what_an_operator_has_completed(bench: Workbench, commit: bool) -> None:
    worker, xid, _ = ended(bench, "m")
    assert worker.prepare(xid) == OK
    assert worker.complete(xid, commit=commit) == OK
    with refused(530):
        bench.dtx().start(xid)
    assert worker.forget(xid) == OK
    assert worker.start(xid) == OK
    assert worker.end(xid) == OK


def test_a_connection_survives_what_closes_channels(bench: Workbench) -> None:
    """Even the codes that close a connection elsewhere."""
    connection = bench.connect()
    xid = bench.xid()
    worker = bench.dtx(connection)
    assert worker.start(xid) == OK
    with refused(503):
        bench.tm(connection).start(xid)
    with refused(530):
        bench.dtx(connection).start(xid)
    with refused(542):
        bench.tm(connection).prepare(Xid(0, b"", b"b"))
    with refused(409):
        bench.tm(connection).prepare(xid)
    assert worker.end(xid) == OK
    assert worker.rollback(xid) == OK


# -- 542 ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_ids_of_wrong_lengths(bench: Workbench, verb: str) -> None:
    connection = bench.connect()
    too_long = b"x" * (MAX_ID_BYTES + 1)
    for global_id, branch_id in ((b"", b"b"), (too_long, b"b"), (b"g", too_long)):
        with refused(542):
            VERBS[verb](bench.dtx(connection), Xid(0, global_id, branch_id))


def test_end_with_ids_of_wrong_lengths(bench: Workbench) -> None:
    worker, xid = bench.dtx(), bench.xid()
    assert worker.start(xid) == OK
    with refused(542):
        worker.end(xid._replace(global_id=b""))
    assert bench.tm().prepare(xid) == RBROLLBACK


@pytest.mark.parametrize("timeout_s", [3_601, (1 << 32) - 1])
def test_a_timeout_that_is_too_long(bench: Workbench, timeout_s: int) -> None:
    worker, xid, _ = ended(bench, "m")
    with refused(542):
        bench.tm().set_timeout(xid, timeout_s)
    assert worker.rollback(xid) == OK


# -- 506 ------------------------------------------------------------------------------------------------------------------


# Against one broker only: what is refused, and when, is no matter of the group.


def test_little_space(tmp_path: Path) -> None:
    """Nothing is published in a branch any more. What is prepared can be decided, and what only takes messages away be prepared."""
    with running_broker(tmp_path) as broker:
        before = Workbench(broker.port, "test_before")
        a, b = before.queue("a", "1", "2", "3"), before.queue("b")
        committed, rolled_back = before.xid(), before.xid()
        for xid in (committed, rolled_back):
            worker = before.dtx()
            before.swapped(worker, xid, a, b)
            assert worker.prepare(xid) == OK
        before.close()
        assert broker.stop() == 0
        broker.start_with_little_space()
        wait_until("little space", lambda: broker.status()["refuses_work"])

        bench = Workbench(broker.port, "test_after")
        publisher, refused_xid, reader, read = bench.dtx(), bench.xid(), bench.dtx(), bench.xid()
        assert publisher.start(refused_xid) == OK
        with refused(506, "disk space"):
            publish(publisher.channel, b, "refused")
            publisher.end(refused_xid)
        assert bench.tm().prepare(refused_xid) == RBROLLBACK, "its channel is closed"
        assert reader.start(read) == OK
        message, tag = take(reader, a)
        assert message == "3"
        reader.channel.basic_ack(tag)
        assert reader.end(read) == OK
        assert reader.prepare(read) == OK
        assert reader.commit(read) == OK
        assert bench.tm().commit(committed) == OK
        assert bench.tm().rollback(rolled_back) == OK
        assert bench.drain(b) == ["1"]
        assert bench.drain(a) == ["2"]
        bench.close()


def fill(channel: Any, queue: str) -> None:
    """Until the broker takes no more."""
    for _ in range(1_000):
        channel.basic_publish("", queue, bytes(1 << 20))
        time.sleep(0.02)  # the broker looks once a second


def test_little_memory(tmp_path: Path) -> None:
    """Work published before the memory ran short is refused at prepare, and is neither prepared nor rolled back by that."""
    with running_broker(tmp_path, f"[limits]\nmemory_ratio = {MEMORY_LIMIT_BYTES / ram_bytes():.6f}\n") as broker:
        bench = Workbench(broker.port, "test_little_memory")
        a, b, filler = bench.queue("a", "1"), bench.queue("b"), bench.queue("filler")
        worker, prepared = bench.dtx(), bench.xid()
        bench.swapped(worker, prepared, a, b)
        assert worker.prepare(prepared) == OK
        two_phases, one_phase = bench.xid(), bench.xid()
        for xid, message in ((two_phases, "2"), (one_phase, "3")):
            assert worker.start(xid) == OK
            publish(worker.channel, b, message)
            assert worker.end(xid) == OK
        channel = bench.channel()
        channel.confirm_delivery()
        with pytest.raises(pika.exceptions.NackError):
            fill(channel, filler)
        with refused(506, "limits.memory_ratio"):
            bench.tm().prepare(two_phases)
        with refused(506, "limits.memory_ratio"):
            bench.tm().commit(one_phase, one_phase=True)
        assert bench.tm().commit(prepared) == OK
        assert bench.in_doubt() == []
        assert channel.queue_purge(filler).method.message_count > 0
        wait_until("work is taken again", lambda: not broker.status()["refuses_work"])
        assert bench.tm().prepare(two_phases) == OK
        assert bench.tm().commit(one_phase, one_phase=True) == OK
        assert bench.tm().commit(two_phases) == OK
        assert bench.drain(b) == ["1", "3", "2"]
        bench.close()


def test_a_branch_that_grows_too_large(tmp_path: Path) -> None:
    with running_broker(tmp_path, "[tx]\nmax_bytes = 65536\n") as broker:
        bench = Workbench(broker.port, "test_large")
        worker, xid, queue = bench.dtx(), bench.xid(), bench.queue("q")
        assert worker.start(xid) == OK
        with refused(506, "65536"):
            for _ in range(4):
                worker.channel.basic_publish("", queue, bytes(32_768))
            worker.end(xid)
        assert bench.tm().prepare(xid) == RBROLLBACK
        assert bench.available(queue) == 0
        bench.close()


def test_too_many_branches(tmp_path: Path) -> None:
    """Sent without waiting for answers, or it would take minutes."""
    with running_broker(tmp_path) as broker:
        frames = [HANDSHAKE, method_frame(SELECT)]
        for number in range(MAX_BRANCHES):
            xid = (0, b"g", b"%d" % number)
            frames += [method_frame(START, *xid, False, False), method_frame(END, *xid, False, False)]
        last = method_frame(RECOVER, b"")  # its answer is the last one
        with socket.create_connection(("127.0.0.1", broker.port), timeout=60) as sock:
            sock.sendall(b"".join(frames) + last)
            got = b""
            while RECOVER_OK not in got[-100:]:
                piece = sock.recv(1 << 16)
                assert piece, f"closed: {got[-300:]!r}"
                got += piece
        assert got.count(END_OK) == MAX_BRANCHES
        bench = Workbench(broker.port, "test_too_many_branches")
        with refused(506, str(MAX_BRANCHES)):
            bench.dtx().start(bench.xid())
        tm = bench.tm()
        assert tm.rollback(Xid(0, b"g", b"0")) == OK
        worker = bench.dtx()
        assert worker.start(Xid(0, b"g", b"new")) == OK
        assert worker.end(Xid(0, b"g", b"new")) == OK
        bench.close()
