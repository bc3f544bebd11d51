"""PackedPage: columns that hold what objects would."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest

from understudy.broker.core.queues.entry import READY, Entry
from understudy.broker.core.queues.packed_page import PackedPage, Stand
from understudy.broker.log.body_place import AT_OFFSET, before_restart, in_note
from understudy.broker.log.row_batch import Rows
from understudy.broker.message import Message, MovedMessage, made

BASE = 7 << 12
LARGEST_PLACE = in_note((1 << 63) - 1, (1 << 32) - 1, (1 << 32) - 1)


class Bodies:
    """Stands for the bodies of all messages."""

    def read(self, message: Message) -> bytes:
        raise AssertionError(f"the body at {message.offset} is read")


BODIES = Bodies()


def entry(low: int, **fields: Any) -> Entry:
    """The message of id ``BASE + low``, whose body is not in memory."""
    kind = fields.get("kind", Message)
    message = made(
        kind, fields.get("exchange", ""), "q", fields.get("properties", b"\x10\x00\x02"), BODIES, 1_000, True
    )
    message.offset = fields.get("offset", 5_000 + low)
    message.place = fields.get("place", AT_OFFSET)
    message.shared = fields.get("shared", False)
    return Entry(BASE + low, message, fields.get("deadline_ms", 0), fields.get("redelivered", False))


def shown(one: Entry | None) -> dict[str, Any] | None:
    """All that an entry and its message say."""
    if one is None:
        return None
    message = one.message
    fields = {name: getattr(message, name) for name in Message.__slots__}
    return {
        **fields,
        "kind": message.__class__,
        **{name: getattr(one, name) for name in Entry.__slots__ if name != "message"},
    }


@pytest.mark.parametrize("seed", range(10))
def test_a_page_gives_back_what_was_packed(seed: int) -> None:
    """Ids with gaps, all fields of messages; some leave, one by one, in any order."""
    chance = random.Random(seed)
    lows = sorted(chance.sample(range(4_096), chance.choice((1, 7, 400))))
    expected = {}
    for low in lows:
        expected[BASE + low] = entry(
            low,
            kind=chance.choice((Message, MovedMessage)),
            exchange=chance.choice(("", "amq.topic")),
            properties=chance.choice((b"", b"\x10\x00\x02", b"%d" % low)),
            place=chance.choice((AT_OFFSET, LARGEST_PLACE, low + 1)) if seed % 2 else AT_OFFSET,
            deadline_ms=chance.choice((0, 1 << 41)) if seed % 3 else 0,
            shared=chance.random() < 0.5,
            redelivered=chance.random() < 0.5,
        )
    page = PackedPage(BASE, list(expected.values()), BODIES)
    for entry_id in chance.sample(sorted(expected), len(expected) // 2):
        message = expected.pop(entry_id).message
        assert page.drop(entry_id) == Stand(message.offset, message.size)
        assert page.drop(entry_id) is None
    assert len(page) == len(expected)
    assert list(page) == list(expected)
    assert [shown(one) for one in page.values()] == [shown(one) for one in expected.values()]
    assert {number: shown(one) for number, one in page.unpacked().items()} == {n: shown(e) for n, e in expected.items()}
    assert not expected or page.ends() == (min(expected), max(expected))
    assert all((number in page) == (number in expected) for number in range(BASE - 2, BASE + 4_098))
    assert all(shown(page.get(number)) == shown(expected.get(number)) for number in range(BASE, BASE + 4_096))
    assert page.size_bytes() == 1_000 * len(expected)
    assert list(page.stands()) == [Stand(one.message.offset, 1_000) for one in expected.values()]
    middle = 5_000 + 2_000
    assert page.ids_up_to(middle) == [number for number, one in expected.items() if one.message.offset <= middle]
    while page:
        number, last = page.popitem()
        assert shown(last) == shown(expected.pop(number))
        assert not expected or number > max(expected)
    assert not expected


def test_a_copy_and_its_page_lose_messages_apart() -> None:
    page = PackedPage(BASE, [entry(1), entry(2)], BODIES)
    page.mark(READY + 1)
    copy = page.copy()
    assert [one.state for one in page.values()] == [READY + 1] * 2
    assert [one.state for one in copy.values()] == [READY] * 2
    page.drop(BASE + 1)
    copy.drop(BASE + 2)
    copy.stand_again(BASE + 1, 9_000, 17)
    assert (list(page), list(copy)) == ([BASE + 2], [BASE + 1])
    assert page.stand(BASE + 2).offset == 5_002
    assert copy.stand(BASE + 1).offset == 9_000


def test_messages_that_are_written_again_stand_at_their_new_place() -> None:
    page = PackedPage(BASE, [entry(1), entry(2)], BODIES)
    page.stand_again(BASE + 2, 9_000, LARGEST_PLACE)
    page.note_redelivered(BASE + 1)
    first, second = page.values()
    assert (first.message.offset, first.message.place, first.redelivered) == (5_001, AT_OFFSET, True)
    assert (second.message.offset, second.message.place, second.redelivered) == (9_000, LARGEST_PLACE, False)


def test_a_log_that_ends_leaves_each_message_the_place_that_it_has() -> None:
    page = PackedPage(BASE, [entry(1), entry(2, place=33), entry(3)], BODIES)
    page.drop(BASE + 3)
    page.leave_log(4_444, 100)
    assert [one.message.place for one in page.values()] == [before_restart(4_444, 5_001), 33]
    page.stand_at(5_001)
    assert [one.message.offset for one in page.values()] == [5_001, 5_001]


def test_a_second_log_that_ends_changes_no_place() -> None:
    """A message that was written again since the first one has the place of its note."""
    page = PackedPage(BASE, [entry(1), entry(2), entry(3)], BODIES)
    page.leave_log(4_444, 100)
    page.stand_at(600)
    page.stand_again(BASE + 2, 700, 17)
    page.leave_log(5_555, 600)
    page.stand_at(650)
    expected = [(600, before_restart(4_444, 5_001)), (650, 17), (600, before_restart(4_444, 5_003))]
    for each in (page, page.copy()):
        assert [(one.message.offset, one.message.place) for one in each.values()] == expected
    assert page.ids_up_to(600) == [BASE + 1, BASE + 3]


def rows(*lows: int) -> Rows:
    """Plain messages of a recovery, at the offsets 5,000 and more."""
    ids, offsets = [BASE + low for low in lows], [5_000 + low for low in lows]
    return Rows(ids, offsets, [1_000] * len(lows), [0] * len(lows), [("", "q")], [b""])


def test_a_page_grows_when_a_log_has_ended() -> None:
    """Messages of both logs have places, and the second one may end, too."""
    page = PackedPage.begun(BASE, BODIES)
    page.extend(rows(1, 2), 0, 2)
    page.drop(BASE + 1)
    page.leave_log(4_444, 100)
    page.extend(rows(3, 4, 9), 0, 3)
    assert [one.message.place for one in page.values()] == [before_restart(4_444, 5_002), *[AT_OFFSET] * 3]
    page.leave_log(5_555, 100)
    page.stand_at(5_003)
    page.full()
    expected = [before_restart(4_444, 5_002), *[before_restart(5_555, 5_000 + low) for low in (3, 4, 9)]]
    assert [one.message.place for one in page.values()] == expected
    assert [one.message.offset for one in page.values()] == [5_002, 5_003, 5_003, 5_003]
    assert (page.ids_up_to(5_002), page.size_bytes()) == ([BASE + 2], 4_000)


def test_ids_that_were_seen_stay_when_messages_leave() -> None:
    page = PackedPage(BASE, [entry(1), entry(2), entry(7)], BODIES)
    page.drop(BASE + 1)
    seen = page.seen()
    page.drop(BASE + 7)
    assert (len(seen), list(seen)) == (2, [BASE + 2, BASE + 7])
    assert page.ends() == (BASE + 2, BASE + 2)


@attrs.frozen
class Row:
    """Fields that all messages of a page have, and how many octets each may take then."""

    fields: dict[str, Any]
    octets: float


@pytest.mark.parametrize(
    "row", [Row({}, 20), Row({"deadline_ms": 1 << 41}, 28), Row({"deadline_ms": 1 << 41, "place": LARGEST_PLACE}, 45)]
)
def test_a_message_takes_few_octets(row: Row) -> None:
    page = PackedPage(BASE, [entry(low, **row.fields) for low in range(4_096)], BODIES)
    columns = [getattr(page, name) for name in PackedPage.__slots__]
    octets = sum(each.__sizeof__() for each in columns if not isinstance(each, int | Bodies | None))
    assert octets < row.octets * 4_096
