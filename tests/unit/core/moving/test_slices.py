"""Purges and deletions of long queues: each turn works on few messages, and what a client sees is as if there were one turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.core.core_kit import Client, Core, publish
from tests.unit.core.life.compaction_kit import JournaledCore, restarted
from tests.unit.core.moving.speaker import Speaker
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_GET,
    BASIC_GET_OK,
    BASIC_NACK,
    BASIC_REJECT,
    DTX_END,
    DTX_PREPARE,
    DTX_ROLLBACK,
    DTX_SELECT,
    DTX_START,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    QUEUE_DELETE,
    QUEUE_DELETE_OK,
    QUEUE_PURGE,
    QUEUE_PURGE_OK,
    TX_COMMIT,
    TX_SELECT,
    encode_method,
)
from understudy.broker.core.moving import purging
from understudy.broker.core.queues import put_off
from understudy.broker.core.queues.entry_index import EntryIndex
from understudy.broker.core.queues.queue import Queue
from understudy.broker.log import frame, record
from understudy.broker.log.live_offsets import LiveOffsets
from understudy.broker.log.return_record import Returned
from understudy.testing.disk import MemoryStorage

SLICE = 3
SLICES = 2
LONG = 20
PASSIVE: tuple[Any, ...] = (True, False, False, False, False, {})


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(put_off, "SLICE", SLICE)
    monkeypatch.setattr(put_off, "SLICES", SLICES)


class Bench:
    """A core with a queue, whose turns are ended one by one."""

    def __init__(self, arguments: dict[str, Any] | None = None, *, exclusive: bool = False) -> None:
        self.journal: list[bytes] = []
        self.core = Core(journal=self)
        self.client, self.other = self.core.client(channels=2), self.core.client()
        self.core.queue(self.other, "dead")
        self.core.queue(self.client, "q", arguments, exclusive=exclusive)

    def append(self, frame: bytes) -> None:
        self.journal.append(bytes(frame))

    def begin_anew(self, checkpoint: bytes) -> None:
        raise AssertionError("no catch-up is expected")

    def sync_now(self) -> None:
        pass

    @property
    def queue(self) -> Queue:
        found = self.core.node.state.topology.registry.find_queue("/", "q")
        assert found is not None
        return found

    def fill(self, count: int = LONG) -> None:
        self.client.send(*[publish("q", b"%02d" % number) for number in range(count)])
        self.core.sync()
        self.client.heard()

    def ask(self, client: Client, key: int, *args: Any, channel: int = 1) -> None:
        """The method is taken; no turn ends."""
        client.connection.receive(encode_method(channel, key, *args))

    def turn(self) -> bool:
        """One turn, and the disk; returns whether another one follows at once."""
        node = self.core.node
        node.answer()
        node.gather(True)
        again = node.after_turn() or bool(node.state.put_off.waiting)
        node.state.put_off.tick()
        node.durable_to(node.gate.appended)
        return again

    def said(self, client: Client, key: int) -> list[tuple[Any, ...]]:
        return [event[2] for event in client.events() if event[1] == key]

    def count(self) -> int:
        """As the other client sees it."""
        self.ask(self.other, QUEUE_DECLARE, "q", *PASSIVE)
        self.turn()
        self.turn()
        ((_, count, _),) = self.said(self.other, QUEUE_DECLARE_OK)
        return int(count)

    def dequeues(self) -> list[tuple[int, list[int]]]:
        """(Reason, ids) of each DEQUEUE in the journal."""
        return [
            (reason, [entry_id for _, ids in groups for entry_id in ids])
            for batch in self.journal
            if batch.startswith(frame.BATCH_MAGIC)
            for kind, at, end in record.records_of(batch, frame.BATCH_HEADER_BYTES)
            if kind == record.DEQUEUE
            for reason, groups in [record.decode_dequeue(batch, at)]
        ]


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Returns how many messages were looked at, or freed, since it was called last."""
    done = [0]

    def counted(owner: type, name: str) -> None:
        real = getattr(owner, name)

        def count(*args: Any) -> Any:
            done[0] += 1
            return real(*args)

        monkeypatch.setattr(owner, name, count)

    counted(EntryIndex, "pop")
    counted(EntryIndex, "pop_last")
    counted(LiveOffsets, "release")

    def since() -> int:
        count, done[0] = done[0], 0
        return count

    return since


def held(bench: Bench, count: int) -> list[int]:
    """Tags of messages that the client has got and not settled."""
    for _ in range(count):
        bench.ask(bench.client, BASIC_GET, "q", False)
        bench.turn()
    return [args[0] for args in bench.said(bench.client, BASIC_GET_OK)]


@pytest.mark.parametrize("ask", [(QUEUE_PURGE, "q", False), (QUEUE_DELETE, "q", False, False, False)])
def test_no_turn_works_on_more_than_a_slice(work: Callable[[], int], ask: tuple[Any, ...]) -> None:
    bench = Bench()
    bench.fill()
    work()
    bench.ask(bench.client, *ask)
    turns = most = total = 0
    quiet = 0
    while quiet < 3:
        quiet = 0 if bench.turn() else quiet + 1
        turns += 1
        done = work()
        most, total = max(most, done), total + done
    assert (
        most <= 2 * 2 * SLICE
    )  # a turn that applies has two slices; each message is taken out of the index, and released
    assert total == 2 * LONG
    assert turns >= LONG // SLICE
    assert not bench.core.node.state.live.total_octets()


def test_a_purge_is_one_record_and_others_go_on_meanwhile() -> None:
    bench = Bench()
    bench.fill()
    first = bench.queue.last_id - LONG + 1
    bench.ask(bench.client, QUEUE_PURGE, "q", False)
    assert bench.turn()
    assert bench.count() == 0
    bench.ask(bench.other, BASIC_GET, "q", True)
    bench.other.connection.receive(publish("q", b"later"))
    bench.turn()
    assert bench.other.heard() == ["basic.get-empty"]
    assert not bench.dequeues()
    assert not bench.said(bench.client, QUEUE_PURGE_OK)
    while bench.turn():
        pass
    bench.core.sync()
    assert bench.said(bench.client, QUEUE_PURGE_OK) == [(LONG,)]
    assert bench.dequeues() == [(record.PURGED, list(range(first, first + LONG)))]
    assert bench.count() == 1


def test_counts_are_right_while_a_purge_is_taken_out() -> None:
    bench = Bench()
    bench.fill()
    held(bench, 2)
    bench.ask(bench.client, QUEUE_PURGE, "q", False)
    queue = bench.queue
    while not queue.leaving:
        bench.turn()
    while queue.leaving:
        seen = queue.statistics()
        assert (seen.ready, seen.acquired, seen.dequeued, seen.enqueued) == (0, 2, LONG - 2, LONG)
        assert queue.held == 2
        bench.turn()
    assert len(queue.entries) == queue.acquired == 2
    assert queue.purged == 0


def test_what_is_handed_out_or_in_a_transaction_stays() -> None:
    bench = Bench()
    bench.fill()
    first, second, third = held(bench, 3)
    bench.ask(bench.client, BASIC_NACK, third, False, True)  # at its place again: the ids are in no order
    bench.ask(bench.client, TX_SELECT)
    bench.ask(bench.client, BASIC_ACK, first, False)
    bench.ask(bench.client, QUEUE_PURGE, "q", False)
    bench.core.sync()
    assert bench.said(bench.client, QUEUE_PURGE_OK) == [(LONG - 2,)]
    ((_, ids),) = bench.dequeues()
    assert ids == sorted(ids)
    bench.ask(bench.client, TX_COMMIT)
    bench.core.sync()
    assert len(bench.queue.entries) == 1
    bench.ask(bench.client, BASIC_REJECT, second, True)
    bench.ask(bench.client, TX_COMMIT)
    bench.core.sync()
    assert bench.count() == 1


def test_a_second_purge_takes_what_came_meanwhile() -> None:
    bench = Bench()
    bench.fill()
    bench.ask(bench.client, QUEUE_PURGE, "q", False)
    bench.turn()
    bench.other.connection.receive(b"".join(publish("q", b"y") for _ in range(5)))
    bench.turn()
    bench.turn()
    bench.ask(bench.other, QUEUE_PURGE, "q", False)
    bench.core.sync()
    assert bench.said(bench.client, QUEUE_PURGE_OK) == [(LONG,)]
    assert bench.said(bench.other, QUEUE_PURGE_OK) == [(5,)]
    assert not bench.queue.entries
    assert [len(ids) for _, ids in bench.dequeues()] == [LONG, 5]


@pytest.mark.parametrize("turns", [0, 1, 3, 9, 12])
def test_a_queue_may_be_deleted_and_declared_anew_while_it_is_purged(turns: int) -> None:
    bench = Bench()
    bench.fill()
    bench.ask(bench.client, QUEUE_PURGE, "q", False)
    for _ in range(turns):
        bench.turn()
    bench.ask(bench.other, QUEUE_DELETE, "q", False, True, False)
    bench.ask(bench.other, QUEUE_DECLARE, "q", False, True, False, False, False, {})
    bench.other.connection.receive(publish("q", b"new"))
    for _ in range(3):  # each method waits for the answer to the one before it
        bench.core.sync()
    assert bench.said(bench.other, QUEUE_DELETE_OK) == [(0,)]
    assert bench.said(bench.client, QUEUE_PURGE_OK) == [(LONG,)]
    assert bench.count() == 1
    assert len(bench.queue.entries) == 1


def test_what_was_handed_out_of_a_deleted_queue_is_gone_at_once() -> None:
    """A message of a deleted queue is no dead letter, whatever becomes of it."""
    bench = Bench({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    bench.fill()
    acked, rejected, requeued, _ = held(bench, 4)
    bench.ask(bench.other, QUEUE_DELETE, "q", False, False, False)
    while not bench.said(bench.other, QUEUE_DELETE_OK):
        bench.turn()
    bench.ask(bench.client, BASIC_ACK, acked, False)
    bench.ask(bench.client, BASIC_REJECT, rejected, False)
    bench.ask(bench.client, BASIC_REJECT, requeued, True)
    bench.core.sync()
    assert not bench.dequeues()
    state = bench.core.node.state
    dead = state.topology.registry.find_queue("/", "dead")
    assert dead is not None
    assert not dead.entries
    assert not state.live.total_octets()
    assert not bench.client.heard()


def test_a_queue_outside_the_log_is_purged_without_a_record() -> None:
    bench = Bench(exclusive=True)
    bench.fill()
    bench.ask(bench.client, QUEUE_PURGE, "q", False)
    bench.core.sync()
    assert bench.said(bench.client, QUEUE_PURGE_OK) == [(LONG,)]
    queue = bench.queue
    assert (len(queue.entries), queue.acquired, queue.purged, queue.depth) == (0, 0, 0, 0)


def test_nothing_is_handed_out_that_counts_as_gone_when_a_broker_is_promoted() -> None:
    bench = Bench()
    bench.fill()
    state = bench.core.node.state
    queue = bench.queue
    queue.active = False  # as on a backup
    kept, *ids = list(queue.entries)
    state.applying.apply_dequeue([(queue.id, ids)])
    assert state.put_off.waiting
    assert queue.depth == 1
    queue.activate(0, 0)
    assert [entry.id for entry in queue.ready] == [kept]
    assert (queue.acquired, queue.depth) == (0, 1)
    state.put_off.finish()
    assert list(queue.entries) == [kept]


def test_what_an_earlier_primary_has_taken_out_is_gone_at_once() -> None:
    """Its record is applied when this broker leads already, and has made every message ready."""
    bench = Bench()
    bench.fill()
    queue = bench.queue
    kept, *ids = list(queue.entries)
    bench.core.node.state.applying.apply_dequeue([(queue.id, ids)])
    assert list(queue.entries) == [kept]
    assert (queue.depth, queue.acquired) == (1, 0)
    assert held(bench, 2) == [1]


def test_a_tick_allows_few_slices() -> None:
    """So a heap of freed bodies is looked at before it is large."""
    bench = Bench()
    bench.fill()
    bench.ask(bench.client, QUEUE_DELETE, "q", False, False, False)
    node = bench.core.node
    node.gather(True)
    node.durable_to(node.gate.appended)
    node.answer()
    live = node.state.live
    each = live.total_octets() // (LONG - SLICE)  # the first slice is done
    for slices in (SLICES, 2 * SLICES):
        while node.after_turn():
            pass
        assert not node.after_turn()
        assert live.total_octets() == max(0, LONG - SLICE - SLICE * slices) * each
        node.tick(node.broker.clock.now_ms + 50, node.broker.clock.wall_ms + 50)


def test_the_client_of_a_purge_may_go() -> None:
    bench = Bench()
    bench.fill()
    bench.ask(bench.client, QUEUE_PURGE, "q", False)
    bench.turn()
    bench.client.connection.lost("test")
    bench.core.sync()
    assert not bench.queue.entries
    assert len(bench.dequeues()) == 1


def test_a_second_purge_is_not_answered_before_the_record_of_the_first() -> None:
    """Its client has heard that the queue is empty: that may not come to nothing with the first purge."""
    bench = Bench()
    bench.fill()
    bench.ask(bench.client, QUEUE_PURGE, "q", False)
    bench.turn()
    bench.ask(bench.other, QUEUE_PURGE, "q", False)
    answer: list[tuple[Any, ...]] = []
    while not answer:
        bench.turn()
        answer = bench.said(bench.other, QUEUE_PURGE_OK)
    assert answer == [(0,)]
    assert [len(ids) for _, ids in bench.dequeues()] == [LONG]


@pytest.mark.parametrize("arguments", [None, {"x-max-priority": 3}])
def test_what_a_branch_puts_back_while_a_purge_is_under_way_stays(arguments: dict[str, Any] | None) -> None:
    """The branch is in doubt since before a restart: its message, the second one, had a place among the ready ones then."""
    core = JournaledCore(MemoryStorage())
    speaker = Speaker(core)
    speaker.declare("q", arguments)
    for number in range(LONG):
        speaker.publish("q", b"%02d" % number)
    speaker.call(DTX_SELECT, channel=2)
    speaker.call(DTX_START, 1, b"g", b"b", False, False, channel=2)
    for _ in range(2):
        speaker.call(BASIC_GET, "q", False, channel=2)
    speaker.client.send(encode_method(2, BASIC_ACK, 2, False))
    speaker.call(DTX_END, 1, b"g", b"b", False, False, channel=2)
    speaker.call(DTX_PREPARE, 1, b"g", b"b", channel=2)
    core = restarted(core)
    speaker = Speaker(core)
    queue = core.node.state.topology.registry.find_queue("/", "q")
    assert queue is not None
    _, locked, *_ = queue.entries.values()
    assert (queue.depth, queue.acquired) == (LONG - 1, 1)
    speaker.call(DTX_SELECT, channel=2)
    speaker.client.connection.receive(encode_method(1, QUEUE_PURGE, "q", False))
    core.node.after_turn()
    speaker.client.connection.receive(encode_method(2, DTX_ROLLBACK, 1, b"g", b"b"))
    core.node.gather(True)
    job = core.journal.begin_sync()
    assert job is not None
    job.run()
    core.journal.finish_sync(job)
    core.node.durable_to(core.port.durable_frames())
    core.node.answer()
    assert (queue.depth, queue.purged) == (1, LONG - 1)
    core.sync()
    assert list(queue.entries) == [locked.id]
    assert (queue.depth, queue.acquired, queue.purged) == (1, 0, 0)


def test_nothing_is_taken_out_of_a_queue_behind_its_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deletion comes between two slices of ids that are encoded."""
    monkeypatch.setattr(purging, "ENCODED", 1)
    bench = Bench()
    bench.fill()
    bench.ask(bench.client, QUEUE_PURGE, "q", False)
    for _ in range(LONG // SLICE + 3):
        bench.turn()
    assert not bench.dequeues()
    bench.ask(bench.other, QUEUE_DELETE, "q", False, False, False)
    bench.core.sync()
    assert bench.said(bench.client, QUEUE_PURGE_OK) == [(LONG,)]
    assert not bench.dequeues()


def test_a_message_has_one_place_after_returns_of_an_earlier_primary() -> None:
    """Two RETURN records that withhold it, the second of which is applied when this broker leads: a purge finds no old place."""
    bench = Bench()
    bench.fill()
    queue = bench.queue
    first = next(iter(queue.entries))
    queue.know(first, Returned(hand_outs=1, due_ms=5))
    queue.activate(0, 0)
    queue.come_back(first, Returned(hand_outs=2, due_ms=9))
    queue.release(queue.entries[first])
    entry = queue.take()
    assert entry is queue.entries[first]
    bench.ask(bench.client, QUEUE_PURGE, "q", False)
    queue.put_back(entry)
    bench.core.sync()
    assert list(queue.entries) == [first]
    assert (queue.depth, queue.acquired, queue.purged) == (1, 0, 0)
