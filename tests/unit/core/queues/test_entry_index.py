"""EntryIndex: what a dict would hold, in pages."""

from __future__ import annotations

import random

import pytest

from understudy.broker.core.queues.entry import Entry
from understudy.broker.core.queues.entry_index import PAGE_BITS, EntryIndex
from understudy.broker.core.queues.queue import Queue
from understudy.broker.log.live_offsets import LiveOffsets
from understudy.broker.log.position import ID_EPOCH_SHIFT
from understudy.broker.message import Message

PAGE_IDS = 1 << PAGE_BITS


def make_queue() -> Queue:
    return Queue(1, "/", "q", durable=True, auto_delete=False, arguments={}, live=LiveOffsets())


def message() -> Message:
    made = Message("", "q", b"\x00\x00", b"m", True)
    made.offset = 1
    return made


def check(index: EntryIndex, expected: dict[int, Entry]) -> None:
    assert list(index.items()) == list(expected.items())
    assert list(index) == list(expected)
    assert list(index.values()) == list(expected.values())
    assert len(index) == len(expected) == sum(map(len, index.pages.values()))
    assert all(page or number == index.newest_number for number, page in index.pages.items())


@pytest.mark.parametrize("seed", range(20))
def test_it_holds_what_a_dict_would(seed: int) -> None:
    """Ids with gaps, of several epochs, some late; removals anywhere; everything dropped now and then."""
    chance = random.Random(seed)
    queue = make_queue()
    expected: dict[int, Entry] = {}
    newest = 1 << ID_EPOCH_SHIFT
    came = 0
    for _ in range(400):
        dice = chance.random()
        if dice < 0.6:
            step = chance.choice((1, 1, 1, PAGE_IDS // 3, PAGE_IDS, 1 << ID_EPOCH_SHIFT))
            entry_id = newest = newest + step
        elif dice < 0.7:
            entry_id = chance.randrange(1 << ID_EPOCH_SHIFT, newest + 1)
        elif dice < 0.98:
            entry_id = chance.choice(list(expected)) if expected else newest
            assert queue.remove(entry_id) == (expected.pop(entry_id, None) is not None)
            assert not queue.remove(entry_id)
            assert entry_id not in queue.entries
            continue
        else:
            queue.clear()
            expected.clear()
            continue
        came += entry_id not in expected
        queue.enqueue(entry_id, message(), 0)
        expected.setdefault(entry_id, queue.entries[entry_id])
        assert queue.entries.get(entry_id) is expected[entry_id]
        assert entry_id + 1 in expected or queue.entries.get(entry_id + 1) is None
    queue.sort()
    check(queue.entries, dict(sorted(expected.items())))
    assert queue.enqueued == came
    while queue.entries:
        assert expected.pop(queue.entries.pop_last().id) is not None
    assert not expected
    check(queue.entries, {})


def test_ids_in_their_order_need_no_sorting() -> None:
    queue = make_queue()
    ids = [1, 2, PAGE_IDS, 3 * PAGE_IDS + 5, 2 << ID_EPOCH_SHIFT | 1]
    for entry_id in ids:
        queue.enqueue(entry_id, message(), 0)
    assert list(queue.entries) == ids
    assert not queue.unsorted


def test_no_dict_of_a_long_queue_is_long() -> None:
    """A dict that grows is copied as a whole: with a million entries in one, that took 22 ms on each broker at once."""
    queue = make_queue()
    for entry_id in range(1, 5 * PAGE_IDS):
        queue.enqueue(entry_id, message(), 0)
    assert max(map(len, queue.entries.pages.values())) == PAGE_IDS
    assert len(queue.entries.pages) == 5


def test_a_short_queue_keeps_its_page() -> None:
    """One that is emptied after each message would make a dict for each."""
    queue = make_queue()
    pages = set()
    for entry_id in range(1, 100):
        queue.enqueue(entry_id, message(), 0)
        pages.add(id(queue.entries.newest))
        assert queue.remove(entry_id)
    assert len(pages) == len(queue.entries.pages) == 1
