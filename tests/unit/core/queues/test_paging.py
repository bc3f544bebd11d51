"""Bodies leave the memory when queues hold much, and come back ahead of consumers. The journal is a real one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.core.core_kit import FRAME_MAX
from tests.unit.core.disk_core import DiskCore, limits
from tests.unit.core.queues.paging_kit import bodies_heard, body, consume, filled, publish
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_CONSUME,
    BASIC_GET,
    BASIC_NACK,
    BASIC_QOS,
    QUEUE_BIND,
    QUEUE_DECLARE,
    QUEUE_PURGE,
)
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.core.queues.digest import DigestOutrunError, digests_in_slices, queue_digests
from understudy.broker.log.body_place import AT_OFFSET, AWAITED, NOWHERE
from understudy.broker.log.journal_state import BodyNotKeptError


def test_bodies_leave_above_the_watermark_and_all_is_handed_out_in_order() -> None:
    core, client = filled(10)
    assert core.paged("q") == [True] * 10
    consume(core, client)
    queue = core.named("q")
    assert bodies_heard(client) == []
    assert queue.fetching
    assert queue.depth == 10, "what is fetched counts as ready"
    assert core.fetched() == 4, "three windows of three messages and one of one, each asked for before it is waited for"
    assert bodies_heard(client) == [body(number) for number in range(10)]
    assert not core.named("q").fetching
    assert core.bodies.fetched == 10
    assert core.bodies.read_at_once == 0


@pytest.mark.usefixtures("small_pages")
def test_what_comes_while_a_sweep_is_under_way_leaves_with_the_next() -> None:
    core, client = filled(0)
    publish(client, "q", *range(8))
    while not any(core.paged("q")):
        core.node.state.paging.tick()
    assert not all(core.paged("q")), "a sweep is under way"
    publish(client, "q", *range(8, 24))
    for _ in range(5):
        core.sweep()
    assert core.paged("q") == [True] * 24


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("midst", [False, True], ids=["after a sweep", "in its midst"])
def test_what_comes_late_to_an_older_place_leaves_with_the_next_sweep(midst: bool) -> None:
    """A catch-up brings messages older than those that the log brings beside it."""
    core, _ = filled(0)
    client = core.client()
    publish(client, "q", *range(24))
    queue, paging = core.named("q"), core.node.state.paging
    first = next(iter(queue.entries))
    late = queue.entries[first].message
    queue.remove(first)
    if midst:
        while not any(core.paged("q")):
            paging.tick()
        assert not all(core.paged("q"))
    else:
        for _ in range(5):
            core.sweep()
        assert all(core.paged("q"))
    queue.enqueue(first, late, 0)
    for _ in range(5):
        core.sweep()
    assert core.is_paged(queue.entries[first])


@pytest.mark.usefixtures("small_pages")
def test_what_a_note_brings_leaves_when_its_place_is_known() -> None:
    """Its place is known when the note is durable: a sweep may pass before."""
    core, _ = filled(0)
    publish(core.client(), "q", *range(12))
    queue = core.named("q")
    entry = next(queue.entries.values())
    entry.message.put_at(AWAITED)
    for _ in range(5):
        core.sweep()
    assert core.paged("q") == [False] + [True] * 11
    entry.message.put_at(AT_OFFSET)
    for _ in range(5):
        core.sweep()
    assert core.is_paged(entry)


def test_nothing_leaves_below_the_watermark() -> None:
    core, _ = filled(10, limits(watermark_bytes=10_000))
    assert core.paged("q") == [False] * 10


def test_messages_of_a_deep_queue_share_equal_properties() -> None:
    core, client = filled(3)
    publish(client, "q", 4, 5, message_id="own")
    core.sweep()
    held = {id(entry.message.properties) for entry in core.named("q").entries.values()}
    assert len(held) == 2


def test_small_bodies_and_the_newest_stay() -> None:
    core, _ = filled(10, limits(least_bytes=8, tail_bytes=len(body(8)) + len(body(9)) + 1))
    expected = [len(body(number)) >= 8 for number in range(8)] + [False, False]
    assert core.paged("q") == expected


def test_the_next_messages_of_consumers_stay() -> None:
    core, client = filled(0)
    consume(core, client, prefetch=1)
    publish(client, "q", *range(8))
    core.sweep()
    held, *ready = core.paged("q")
    assert not held, "it was handed out before"
    assert ready == [False, False, True, True, True, True, True]
    assert len(bodies_heard(client)) == 1


def test_what_no_journal_has_stays() -> None:
    core = DiskCore()
    client = core.client()
    core.queue(client, "q")
    client.method(QUEUE_DECLARE, "not durable", False, False, False, False, False, {})
    core.sync()
    assert client.heard() == ["queue.declare-ok"]
    core.queue(client, "own", exclusive=True)
    client.send(publish_frames(1, "", "q", encode_properties(delivery_mode=1), body(1), FRAME_MAX))
    publish(client, "not durable", 1)
    publish(client, "own", 1)
    core.sweep()
    assert core.paged("q") == core.paged("not durable") == core.paged("own") == [False]


def test_a_message_that_an_exclusive_queue_shares_stays() -> None:
    """Nothing keeps its record when the durable queue has let go of it."""
    core = DiskCore()
    client = core.client()
    core.queue(client, "q")
    core.queue(client, "own", exclusive=True)
    for name in ("q", "own"):
        client.method(QUEUE_BIND, name, "amq.fanout", "", False, {})
    core.sync()
    publish(client, "", 1, exchange="amq.fanout")
    client.events()
    core.sweep()
    assert core.paged("q") == core.paged("own") == [False]
    client.method(QUEUE_PURGE, "q", False)
    core.sync()
    consume(core, client, "own")
    assert bodies_heard(client) == [body(1)]


def test_a_dead_letter_shares_the_place_of_its_body() -> None:
    core, client = filled(
        4, None, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-max-length": 100}
    )
    core.queue(client, "dead")
    consume(core, client, prefetch=1)
    for _ in range(4):
        core.fetched()
        tag = [event[2][1] for event in client.events() if len(event) == 5][-1]
        client.method(BASIC_NACK, tag, False, False)
        core.sync()
    core.sweep()
    assert core.paged("dead") == [True] * 4
    again = core.restarted()
    assert [bytes(entry.message.content()) for entry in again.named("dead").entries.values()] == [
        body(number) for number in range(4)
    ]


def test_a_dead_letter_that_goes_to_an_exclusive_queue_has_its_body() -> None:
    core, client = filled(2, None, {"x-dead-letter-exchange": "amq.fanout", "x-message-ttl": 1_000})
    core.queue(client, "own", exclusive=True)
    client.method(QUEUE_BIND, "own", "amq.fanout", "", False, {})
    core.pass_ms(5_000)
    core.sync()
    assert core.paged("own") == [False, False]
    assert [entry.message.place for entry in core.named("own").entries.values()] == [NOWHERE, NOWHERE]


@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 2}], ids=["plain", "priorities"])
def test_a_dead_letter_for_an_exclusive_queue_is_read_before_its_place_may_go(
    arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction may give the message that leaves another place, and its segment may go, before the DEQUEUE is stable."""
    rule = {"x-dead-letter-exchange": "amq.fanout", "x-message-ttl": 1_000}
    core, client = filled(2, None, {**rule, **arguments})
    core.queue(client, "own", exclusive=True)
    client.method(QUEUE_BIND, "own", "amq.fanout", "", False, {})
    core.pass_ms(5_000)
    core.turn()
    assert len(core.named("q").entries) == 2
    assert len(core.named("own").entries) == 0

    def gone(_: object) -> Any:
        raise BodyNotKeptError("its segment is gone")

    monkeypatch.setattr(core.journal, "begin_read", gone)
    core.sync()
    assert [bytes(entry.message.content()) for entry in core.named("own").entries.values()] == [body(0), body(1)]


def test_a_get_reads_at_once_and_the_next_ones_are_fetched() -> None:
    core, client = filled(5)
    client.method(BASIC_GET, "q", False)
    assert bodies_heard(client) == [body(0)]
    assert core.bodies.read_at_once == 1
    core.fetched()
    client.method(BASIC_GET, "q", False)
    client.method(BASIC_GET, "q", False)
    assert bodies_heard(client) == [body(1), body(2)]
    assert core.bodies.read_at_once == 1


@pytest.mark.parametrize("many", [False, True], ids=["few", "in slices"])
def test_bodies_that_come_to_a_purged_queue_bring_nothing_back(many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if many:
        monkeypatch.setattr("understudy.broker.core.queues.put_off.SLICE", 2)
    core, client = filled(6)
    consume(core, client)
    assert len(core.fetches) == 1
    client.method(QUEUE_PURGE, "q", False)
    core.sync()
    core.fetched()
    assert bodies_heard(client) == []
    assert len(core.named("q").entries) == 0
    publish(client, "q", 7)
    assert bodies_heard(client) == [body(7)]


def test_a_message_that_expires_while_it_is_fetched_is_not_handed_out() -> None:
    core, client = filled(3, None, {"x-message-ttl": 1_000})
    consume(core, client)
    core.pass_ms(5_000)
    core.fetched()
    assert bodies_heard(client) == []
    assert len(core.named("q").entries) == 0


def test_what_comes_back_is_fetched_again_at_its_place() -> None:
    core, client = filled(6)
    consume(core, client, prefetch=2)
    core.fetched()
    assert bodies_heard(client) == [body(0), body(1)]
    for entry in core.named("q").entries.values():  # as after a sweep that passed while they were held
        entry.message.leave(core.bodies, 0, {})
    client.method(BASIC_NACK, 2, True, True)
    core.sync()
    assert bodies_heard(client) == []
    core.fetched()
    assert bodies_heard(client) == [body(0), body(1)]


def test_a_queue_with_priorities_fetches_the_highest_first() -> None:
    core = DiskCore()
    client = core.client()
    core.queue(client, "q", {"x-max-priority": 5})
    for number, priority in enumerate((1, 5, 0, 3, 5)):
        publish(client, "q", number, priority=priority)
    core.sweep()
    assert core.paged("q") == [True] * 5
    consume(core, client)
    core.fetched()
    assert bodies_heard(client) == [body(number) for number in (1, 4, 3, 0, 2)]


def test_a_fetch_does_not_keep_consumers_of_other_queues_waiting() -> None:
    """Consumers share a prefetch count, and one gives way to a consumer whose queue has a message: but not to one that fetches."""
    core, client = filled(3)
    core.queue(client, "other")
    client.method(BASIC_QOS, 0, 1, True)
    client.method(BASIC_CONSUME, "q", "c", False, False, False, False, {})
    client.method(BASIC_CONSUME, "other", "d", False, False, False, False, {})
    core.sync()
    publish(client, "other", 9)
    assert bodies_heard(client) == [body(9)]
    core.fetched()
    client.method(BASIC_ACK, 1, False)
    core.sync()
    assert bodies_heard(client) == [body(0)]


def test_a_restart_holds_no_more_than_may_be() -> None:
    core, client = filled(0)
    for number in range(40):
        publish(client, "q", number)
    before = queue_digests(core.node.state)
    again = core.restarted()
    assert again.paged("q").count(True) > 30, "bodies leave while the journal is read"
    assert queue_digests(again.node.state) == before
    client = again.client()
    consume(again, client)
    again.fetched()
    assert bodies_heard(client) == [body(number) for number in range(40)]


def test_a_digest_is_not_made_up_when_a_message_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.broker.core.queues.digest.SLICE_BYTES", 1)
    core, client = filled(3)
    slices = digests_in_slices(core.node.state)
    next(slices)
    client.method(QUEUE_PURGE, "q", False)
    core.sync()
    with pytest.raises(
        DigestOutrunError, match=r"message \S+ has left queue 'q' in vhost '/' while the digest was taken"
    ):
        list(slices)


def test_a_log_that_begins_anew_leaves_bodies_where_they_are() -> None:
    core, _ = filled(4)
    state = core.node.state
    cut = core.node.gate.append_restart(state.log.stable)
    state.leave_log(cut)
    core.journal.sync_now()
    places = [entry.message.place for entry in core.named("q").entries.values()]
    assert min(places) > 0
    assert len({*places}) == 4
    assert [bytes(entry.message.content()) for entry in core.named("q").entries.values()] == [body(n) for n in range(4)]
    state.leave_log(core.node.gate.append_restart(0))
    assert [entry.message.place for entry in core.named("q").entries.values()] == places, "they stay where they are"


@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 2}], ids=["plain", "priorities"])
def test_a_message_that_has_left_is_not_fetched(arguments: dict[str, Any]) -> None:
    """It keeps its place in line until that is reached, and its record may be gone by then."""
    core, _ = filled(3, None, arguments)
    queue = core.named("q")
    assert queue.peek() is not None
    second = list(queue.entries)[1]
    queue.remove(second)
    core.node.state.paging.fetch(queue)
    ((job, _),) = core.fetches
    job.run()
    assert len(job.bodies) == 2
