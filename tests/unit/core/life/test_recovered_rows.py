"""Batches that a recovery takes at once: the state is the one that it builds record by record."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.core.disk_core import DiskCore, limits
from tests.unit.core.moving.speaker import Speaker
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.core.life.recovered_rows import RecoveredRows
from understudy.broker.core.limits import Limits
from understudy.broker.core.queues import entry_index, queue
from understudy.broker.core.queues.packed_page import PackedPage
from understudy.broker.log import frame, record
from understudy.broker.log.paged_bodies import PagedBodies
from understudy.broker.log.pending import ENQUEUE
from understudy.broker.message import DelayedMessage, Message, MovedMessage

MUCH = 1 << 40
QUEUES = (1, 2, 3)
PLAIN = b"\x10\0\x02"
BODY = b"0123456789" * 3


def enqueue(targets: list[record.Target], message: Message) -> bytes:
    return record.encode_enqueue(targets, message, False) + message.properties + message.content()


class Writer:
    """Writes a journal of one log, and what a start is shown of it.

    Attributes:
        frames: of the journal.
        end: of the log.
        stable: the highest that a batch has stated.
        applied: by a start, of what is written.
        undecided: transactions that are prepared.
    """

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.undecided: list[int] = []
        self._node = BrokerNode("b1", Limits(), bytes, bodies=PagedBodies())
        self.end = self.stable = 0
        self.ids = dict.fromkeys(QUEUES, 1 << 44)
        self.batch([record.encode_epoch(1, "b1", False, 0)])
        self.batch([record.encode_queue_declare(each, "/", f"q{each}", record.DURABLE, b"\0\0\0\0") for each in QUEUES])

    def batch(self, records: list[bytes], stable: int = 0) -> None:
        self.stable = max(self.stable, stable)
        self._append(frame.encode_batch(1, self.end + 1, len(records), stable, records))
        self.end += len(records)

    def _append(self, data: bytes) -> None:
        self.frames.append(data)
        show(self._node, data)

    @property
    def applied(self) -> int:
        return self._node.state.log.applied

    def cut(self, offset: int) -> None:
        self._append(frame.encode_cut(offset, bytes(8)))
        self.end = offset
        self.stable = min(self.stable, offset)

    def prepare(self, tx_id: int) -> bytes:
        """Nothing behind it is applied before a COMMIT comes."""
        self.undecided.append(tx_id)
        return record.encode_prepare(record.Prepare(tx_id, tx_id, "", 0, {}, 0, 0, 0, 0))

    def next_id(self, queue_id: int, step: int = 1) -> int:
        self.ids[queue_id] += step
        return self.ids[queue_id]


def drawn(seed: int) -> list[bytes]:
    """Batches of one form and of several, acks, ids that come late or twice, transactions that are decided late, cuts."""
    chance = random.Random(seed)
    writer = Writer()
    forms = ["even", "even", "uneven", "mixed"]
    for _ in range(60):
        form = chance.choice(forms)
        count = chance.choice((1, 2, 7, 8, 9, 30))
        queues = chance.choice(([1], [2], [1, 2], [1, 2, 3, 9]))
        records = [_record(writer, chance, form, chance.choice(queues)) for _ in range(count)]
        stable = chance.choice((writer.end, writer.end, writer.stable, chance.randint(writer.stable, writer.end)))
        if chance.random() < 0.05:
            records.append(writer.prepare(writer.end + len(records)))
        writer.batch(records, stable)
        if writer.undecided and chance.random() < 0.2:
            writer.batch([record.encode_commit(each, each, 0) for each in writer.undecided], writer.stable)
            writer.undecided.clear()
        if chance.random() < 0.3:
            writer.cut(chance.randint(writer.applied, writer.end))
    return writer.frames


def _record(writer: Writer, chance: random.Random, form: str, queue_id: int) -> bytes:
    step = chance.choice((1, 1, 1, 1, 3, 20)) if form != "even" else 1
    target = (queue_id, writer.next_id(queue_id, step) if queue_id in writer.ids else 5, 0)
    message = Message("", "key", PLAIN, BODY, True)
    if form == "even":
        return enqueue([target], message)
    message.properties = chance.choice((PLAIN, b"\x80\0\x04text", b"\0\0"))
    message.routing_key = chance.choice(("key", "another key"))
    message.body = BODY[: chance.randint(1, len(BODY))]
    message.size = len(message.body)
    target = (*target[:2], chance.choice((0, 0, 77_000)))
    if form == "uneven":
        return enqueue([target], message)
    dice = chance.random()
    last = writer.ids.get(queue_id, 1 << 44)
    if dice < 0.3:
        taken = sorted({chance.randint(max(1 << 44, last - 60), last) for _ in range(chance.randint(1, 5))})
        return record.encode_dequeue(record.ACKNOWLEDGED, [(queue_id, taken)])
    if dice < 0.5:
        return enqueue([(queue_id, chance.randint(max(1 << 44, last - 30), last), 0)], message)  # late, or there
    if dice < 0.6 and queue_id != 9:
        return enqueue([target, (3, writer.next_id(3), 5)], message)
    return enqueue([target], message)


def started(frames: list[bytes], octets: int) -> BrokerNode:
    """A core that has been shown ``frames`` of a journal of so many octets."""
    node = BrokerNode("b1", Limits(), bytes, bodies=PagedBodies())
    node.recovery.expect(octets)
    for data in frames:
        show(node, data)
    return node


def show(node: BrokerNode, data: bytes) -> None:
    if data.startswith(frame.NOTE_MAGIC):
        node.recovery.on_note(data[5], data[frame.NOTE_HEADER_BYTES :])
    else:
        node.recovery.on_batch(frame.decode_batch_header(data), data)


def told(message: Message) -> tuple[Any, ...]:
    return (
        *(message.__class__, message.exchange, message.routing_key, bytes(message.properties), message.size),
        *(message.persistent, message.offset, message.place, message.shared),
    )


def held(node: BrokerNode) -> dict[str, Any]:
    """All that a start has built."""
    state = node.state
    log = state.log
    found: dict[str, Any] = {
        each.name: (
            [(e.id, e.deadline_ms, e.redelivered, e.state, told(e.message)) for e in each.entries.values()],
            (len(each.entries), each.last_id, each.dequeued, each.acquired),
        )
        for each in state.queues.values()
    }
    found["live"] = dict(state.live.octets())
    found["log"] = log.end, log.stable, log.applied, log.durable, log.kept.bytes
    found["pending"] = [
        (offset, change, (told(each[0]), list(map(tuple, each[1]))) if change is ENQUEUE else None)
        for offset, change, each in log.pending
    ]
    return found


@pytest.fixture(params=[12, 3])
def _page_bits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (entry_index, queue):
        monkeypatch.setattr(module, "PAGE_BITS", request.param)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """For each batch that a start may take at once, whether it did."""
    answers: list[bool] = []
    real = RecoveredRows.take

    def take(self: RecoveredRows, header: frame.BatchHeader, batch: bytes) -> bool:
        answers.append(real(self, header, batch))
        return answers[-1]

    monkeypatch.setattr(RecoveredRows, "take", take)
    return iter([answers])


@pytest.mark.usefixtures("_page_bits")
@pytest.mark.parametrize("seed", range(60))
def test_a_start_that_leaves_bodies_holds_what_another_does(seed: int, taken: Iterator[list[bool]]) -> None:
    frames = drawn(seed)
    some, plain = started(frames, MUCH), started(frames, 0)
    answers = next(taken)
    assert answers.count(True) > 10
    assert answers.count(False) > 5
    for each in (some, plain):
        each.recovery.finish()
    assert held(some) == held(plain)
    for filled in some.state.queues.values():
        pages = filled.entries.pages
        assert not pages or not isinstance(pages[max(pages)], PackedPage), "the newest is never packed"


@pytest.mark.parametrize("stable", range(2, 14))
def test_a_stable_position_may_be_inside_of_a_batch(stable: int) -> None:
    """Records behind it wait, and a cut there takes them back."""
    writer = Writer()
    begin = writer.end
    writer.batch([enqueue([(1, writer.next_id(1), 0)], Message("", "key", PLAIN, BODY, True)) for _ in range(9)])
    writer.batch([record.encode_id_time(1)], begin + stable)
    for cut in (False, True):
        if cut:
            writer.cut(min(begin + stable, writer.end))
        some, plain = started(writer.frames, MUCH), started(writer.frames, 0)
        assert len(some.state.queues[1].entries) == min(stable, 9)
        for each in (some, plain):
            each.recovery.finish()
        assert held(some) == held(plain)


def test_pages_of_a_start_are_packed_and_hold_no_message() -> None:
    writer = Writer()
    for _ in range(10):
        writer.batch(
            [enqueue([(1, writer.next_id(1), 0)], Message("", "key", PLAIN, BODY, True)) for _ in range(1_000)],
            writer.end,
        )
    writer.batch([record.encode_id_time(1)], writer.end)
    node = started(writer.frames, MUCH)
    assert all(isinstance(page, PackedPage) for page in node.state.queues[1].entries.pages.values())
    node.recovery.finish()
    *before, newest = node.state.queues[1].entries.pages.values()
    assert before
    assert all(isinstance(page, PackedPage) for page in before)
    assert isinstance(newest, dict)
    assert node.state.paging.paged_out == 10_000


@pytest.mark.parametrize(
    "message",
    [
        MovedMessage("", "key", PLAIN, BODY, True),
        DelayedMessage("", "key", PLAIN, BODY, True, due_ms=7),
        Message("", "key", PLAIN, BODY, False),
        Message("", "key", PLAIN, b"", True),
    ],
    ids=["moved", "delayed", "not persistent", "empty"],
)
def test_another_message_is_taken_by_itself(message: Message, taken: Iterator[list[bool]]) -> None:
    writer = Writer()
    writer.batch([enqueue([(1, writer.next_id(1), 0)], message) for _ in range(9)])
    writer.batch([record.encode_id_time(1)], writer.end)
    some, plain = started(writer.frames, MUCH), started(writer.frames, 0)
    assert not any(next(taken))
    for each in (some, plain):
        each.recovery.finish()
    assert held(some) == held(plain)


def test_bodies_of_a_start_that_left_them_come_back_in_order() -> None:
    core = DiskCore(limits())
    speaker = Speaker(core)
    speaker.declare("q")
    bodies = [b"body %d " % number * (1 + number % 5) for number in range(600)]
    for body in bodies:
        speaker.publish("q", body)
    again = core.restarted()
    assert all(again.paged("q"))
    speaker = Speaker(again)
    found = [speaker.get("q") for _ in bodies]
    assert [each and each["body"] for each in found] == bodies
