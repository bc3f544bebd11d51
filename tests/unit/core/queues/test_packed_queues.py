"""Queues whose pages are packed: everything that may happen to a message happens to one that is no object."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.core.core_kit import Client
from tests.unit.core.disk_core import DiskCore, limits
from tests.unit.core.queues.paging_kit import bodies_heard, body, consume, filled, publish
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_GET,
    EXCHANGE_DECLARE,
    QUEUE_BIND,
    QUEUE_DELETE,
    QUEUE_PURGE,
)
from understudy.broker.core.life.compaction import _Pass
from understudy.broker.core.queues.digest import DigestOutrunError, digests_in_slices, queue_digests
from understudy.broker.core.queues.packed_page import PackedPage
from understudy.broker.core.queues.queue import Queue
from understudy.broker.log.body_place import AT_OFFSET, AWAITED
from understudy.replicator.id_set import IdSet
from understudy.replicator.sending.replicating_subscription import ReplicatingSubscription
from understudy.replicator.snapshot import decode_queue_piece

pytestmark = pytest.mark.usefixtures("small_pages")
COUNT = 22
ALL = [body(number) for number in range(COUNT)]


def packed(queue: Queue) -> int:
    """How many messages of ``queue`` are in packed pages."""
    return sum(map(len, queue.entries.packed()))


def deep(arguments: dict[str, Any] | None = None, bounds: Any = None) -> tuple[DiskCore, Client, Queue]:
    """A core whose queue ``q`` holds `COUNT` messages, most of them in packed pages; some come after the sweep."""
    core, client = filled(COUNT - 6, bounds, arguments)
    for _ in range(5):
        core.sweep()
    publish(client, "q", *range(COUNT - 6, COUNT))
    queue = core.named("q")
    assert packed(queue) > COUNT // 3
    return core, client, queue


def gets(client: Client, count: int) -> list[bytes]:
    """The bodies of as many messages as `basic.get` gives, at most so many."""
    for _ in range(count):
        client.method(BASIC_GET, "q", True)
    return bodies_heard(client)


def test_all_is_handed_out_in_order() -> None:
    core, client, queue = deep()
    consume(core, client, prefetch=5)
    heard = []
    for tag in range(1, COUNT + 1):
        core.fetched()
        heard += bodies_heard(client)
        client.method(BASIC_ACK, tag, False)
        core.sync()
    assert heard == ALL
    assert len(queue.entries) == 0
    assert core.node.state.live.total_octets() == 0


def test_a_message_that_comes_back_is_handed_out_before_younger_ones() -> None:
    """When no object is in line but those of pages further behind."""
    _, _, queue = deep()
    taken = [queue.take() for _ in range(len(queue.ready))]
    assert not queue.ready
    last = taken[-1]
    assert last is not None
    queue.put_back(last)
    assert queue.peek() is last
    first = queue.take()
    assert first is last
    second = queue.take()
    assert second is not None
    queue.put_back(first)
    assert queue.take() is first
    queue.put_back(first)
    queue.put_back(second)
    assert (queue.take(), queue.take()) == (first, second)


def test_a_get_walks_through_packed_pages() -> None:
    _, client, queue = deep()
    assert gets(client, COUNT + 1) == ALL
    assert packed(queue) == 0


@pytest.mark.parametrize("many", [False, True], ids=["few", "in slices"])
def test_a_purge_takes_packed_messages(many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if many:
        monkeypatch.setattr("understudy.broker.core.queues.put_off.SLICE", 2)
    core, client, queue = deep()
    before = packed(queue)
    client.method(QUEUE_PURGE, "q", False)
    assert packed(queue) == before, "no object is made for what is purged"
    assert gets(client, 1) == []
    core.sync()
    assert (len(queue.entries), queue.acquired, queue.purged, queue.depth, queue.dequeued) == (0, 0, 0, 0, COUNT)
    assert core.node.state.live.total_octets() == 0
    publish(client, "q", 7)
    assert gets(client, 2) == [body(7)]
    assert len(core.restarted().named("q").entries) == 0


def test_a_page_of_small_bodies_is_packed_when_their_place_is_known() -> None:
    """A sweep passes while the note that brought a message is not durable. The next one packs the page."""
    core, _ = filled(0, limits(least_bytes=1_000))
    publish(core.client(), "q", *range(COUNT))
    queue = core.named("q")
    queue.active = False
    entry = next(queue.entries.values())
    entry.message.put_at(AWAITED)
    for _ in range(5):
        core.sweep()
    others = packed(queue)
    assert others > COUNT // 3
    assert entry.id in queue.entries.pages[entry.id >> 2]
    assert not isinstance(queue.entries.pages[entry.id >> 2], PackedPage)
    entry.message.put_at(AT_OFFSET)
    for _ in range(5):
        core.sweep()
    assert isinstance(queue.entries.pages[entry.id >> 2], PackedPage)


def test_small_bodies_stay_in_a_page_that_is_not_packed() -> None:
    """The next messages of a queue are no packed page, nor those with one that is handed out among them."""
    core, client = filled(0, limits(least_bytes=1_000))
    publish(client, "q", *range(COUNT))
    queue = core.named("q")
    held = queue.entries[list(queue.entries)[-6]]
    queue.hold(held)
    for _ in range(5):
        core.sweep()
    assert 0 < packed(queue) < COUNT - 8
    in_objects = list(queue.entries.objects())
    assert held in in_objects
    assert [entry.id for entry in in_objects if core.is_paged(entry)] == []


def test_a_page_that_was_unpacked_is_purged_nevertheless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message comes late to a packed page after a purge has begun, and stays."""
    monkeypatch.setattr("understudy.broker.core.queues.put_off.SLICE", 2)
    _, _, queue = deep()
    first = next(iter(queue.entries.packed()[0]))
    late = queue.entries[first].message
    queue.remove(first)
    count, lines = queue.purge()
    assert count == COUNT - 1
    queue.enqueue(first, late, 0)
    (page,) = [line for line in lines if isinstance(line, PackedPage) and line.base <= first < line.base + 4]
    taken = queue.purge_page(page, True)
    assert taken == [first + 1, first + 2, first + 3]
    assert queue.entries[first].state != queue.entries[first + 1].state


def test_a_deleted_queue_leaves_nothing() -> None:
    core, client, _ = deep()
    client.method(QUEUE_DELETE, "q", False, False, False)
    core.sync()
    assert core.node.state.live.total_octets() == 0


def test_a_restart_packs_what_it_reads_and_hands_it_out_in_order() -> None:
    core, _, _ = deep()
    before = queue_digests(core.node.state)
    again = core.restarted()
    assert packed(again.named("q")) > COUNT // 3
    assert queue_digests(again.node.state) == before
    client = again.client()
    consume(again, client)
    again.fetched()
    assert bodies_heard(client) == ALL


def test_messages_leave_a_broker_that_follows_without_becoming_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    core, _, queue = deep()
    queue.active = False

    def copied(self: PackedPage, row: int) -> None:
        raise AssertionError(f"message {row} of {self.base} becomes an object")

    monkeypatch.setattr(PackedPage, "_copy", copied)
    for entry_id in list(queue.entries):
        assert queue.remove(entry_id)
        assert not queue.remove(entry_id)
    assert (len(queue.entries), queue.dequeued) == (0, COUNT)
    assert core.node.state.live.total_octets() == 0


def test_a_log_that_begins_anew_finds_packed_bodies() -> None:
    core, client, queue = deep()
    state = core.node.state
    state.leave_log(core.node.gate.append_restart(state.log.stable))
    core.journal.sync_now()
    assert packed(queue) > COUNT // 3
    octets = state.live.total_octets()
    assert gets(client, 1) == [body(0)]
    assert state.live.total_octets() == octets


@pytest.mark.parametrize("in_bytes", [False, True], ids=["messages", "bytes"])
def test_a_limit_drops_the_oldest_though_they_are_packed(in_bytes: bool) -> None:
    size = sum(map(len, ALL))
    core, client, queue = deep({"x-max-length-bytes": size} if in_bytes else {"x-max-length": COUNT})
    publish(client, "q", COUNT)
    core.sync()
    assert queue.limits is not None
    left = [bytes(entry.message.content()) for entry in queue.entries.values()]
    assert left[-1] == body(COUNT)
    assert left[0] != body(0)
    assert queue.limits.ready_bytes == sum(map(len, left))


def test_packed_messages_expire_in_their_time() -> None:
    core, client, queue = deep(
        {"x-message-ttl": 1_000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    )
    core.queue(client, "dead")
    core.pass_ms(5_000)
    core.sync()
    assert len(queue.entries) == 0
    assert [bytes(entry.message.content()) for entry in core.named("dead").entries.values()] == ALL


def test_a_catch_up_sends_packed_messages() -> None:
    _, _, queue = deep()
    ids = list(queue.entries)
    before = packed(queue)
    subscription = ReplicatingSubscription(queue, IdSet(ids[:2]))
    assert subscription.left == COUNT - 2
    assert ReplicatingSubscription(queue, IdSet([]), transient_only=True).left == 0
    sent = []
    while (piece := subscription.next_piece(200)) is not None:
        sent += [(each.entry_id, bytes(each.message.content())) for each in decode_queue_piece(piece)[2]]
    assert sent == list(zip(ids[2:], ALL[2:], strict=True))
    assert packed(queue) == before


def test_another_core_goes_on_with_packed_pages() -> None:
    core, _, ended = deep()
    queue = Queue(9, "/", "q", durable=True, auto_delete=False, arguments={}, live=core.node.state.live)
    octets = core.node.state.live.total_octets()
    queue.continue_from(ended)
    assert core.node.state.live.total_octets() == 2 * octets
    assert packed(queue) == packed(ended)
    while ended.entries:
        ended.let_go_last()
    queue.activate(0, 0)
    taken = []
    while (entry := queue.take()) is not None:
        taken.append(bytes(entry.message.content()))
    assert taken == ALL


def test_another_core_goes_on_in_order_when_the_youngest_messages_have_left() -> None:
    """The newest page is empty, and the one before it is packed: no object is in a younger page."""
    core, _, ended = deep()
    page = ended.entries.packed()[-1]
    youngest = max(page)
    for entry_id in [entry_id for entry_id in ended.entries if entry_id > youngest]:
        ended.remove(entry_id)
    queue = Queue(9, "/", "q", durable=True, auto_delete=False, arguments={}, live=core.node.state.live)
    queue.continue_from(ended)
    queue.activate(0, 0)
    publishes = iter((ended.entries[youngest].message, ended.entries[youngest].message))
    for message in publishes:
        queue.enqueue(queue.next_id(), message, 0)
    taken = []
    while (entry := queue.take()) is not None:
        taken.append(entry.id)
    assert len(taken) == len(ended.entries) + 2
    assert taken == sorted(taken)


def test_a_compaction_writes_a_message_of_two_packed_queues_once() -> None:
    core, client = filled(0)
    core.queue(client, "other")
    client.method(EXCHANGE_DECLARE, "both", "fanout", False, True, False, False, False, {})
    for name in ("q", "other"):
        core.sync()
        client.method(QUEUE_BIND, name, "both", "", False, {})
    core.sync()
    publish(client, "", *range(COUNT), exchange="both")
    for _ in range(5):
        core.sweep()
    assert packed(core.named("q")) == packed(core.named("other")) > COUNT // 3
    state, compaction = core.node.state, core.node.compaction
    digests = queue_digests(state)
    compaction._pass = _Pass(state.log.applied, state)
    while compaction.active and compaction.step():
        core.sync()
    assert compaction.counts.messages == COUNT
    offsets = {entry.message.offset for name in ("q", "other") for entry in core.named(name).entries.values()}
    assert offsets == {state.log.applied}
    assert queue_digests(state) == digests
    assert queue_digests(core.restarted().node.state) == digests


def test_a_digest_follows_messages_into_packed_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    core, client, _ = deep()
    before = queue_digests(core.node.state)
    for _ in range(5):
        core.sweep()
    assert queue_digests(core.node.state) == before
    monkeypatch.setattr("understudy.broker.core.queues.digest.SLICE_BYTES", 1)
    slices = digests_in_slices(core.node.state)
    next(slices)
    client.method(QUEUE_PURGE, "q", False)
    core.sync()
    with pytest.raises(DigestOutrunError, match=r"message \S+ has left queue 'q'"):
        list(slices)


def test_a_queue_with_priorities_is_not_packed() -> None:
    core, client = filled(COUNT, limits(), {"x-max-priority": 3})
    for _ in range(5):
        core.sweep()
    queue = core.named("q")
    assert core.paged("q").count(True) > COUNT // 2
    assert packed(queue) == 0
    assert gets(client, COUNT) == ALL
