"""Reading whole journals: how many records a second, gaps, cursors that cannot be used, order of brokers, statistics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.unit.observers.feed.feed_speed import read_journal, write_journal
from understudy.broker.core.life.recovery import encode_checkpoint
from understudy.broker.core.state import BrokerState
from understudy.broker.log import frame, journal_gate, record
from understudy.broker.log.journal import Journal, JournalOptions
from understudy.broker.log.journal_recovery import recover
from understudy.broker.log.segment import JournalIdentity
from understudy.broker.message import Message
from understudy.observers import events_schema as schema
from understudy.observers.events_schema import Event
from understudy.observers.feed.feed import Selection, merged
from understudy.observers.feed.notes import NoteEvents
from understudy.observers.feed.reader import CursorError, FeedReader, NewerJournalError
from understudy.observers.feed.records import RecordEvents
from understudy.observers.journal.stats import journal_stats
from understudy.replicator import group_notes, wire
from understudy.replicator.id_set import IdSet
from understudy.testing.disk import MemoryStorage

SMALL = JournalOptions(segment_bytes=8192, alignment_bytes=512, index_interval_bytes=512, reserve_bytes=0, salt=7)
MESSAGE = Message("", "q", b"\0\0", b"x" * 300, persistent=True)
ENQUEUE = MESSAGE.properties + MESSAGE.content()
QUEUE = 1 << 40 | 1
TX = 1 << 40 | 7


class Nothing:
    def on_batch(self, header: frame.BatchHeader, frame: bytes) -> None: ...

    def on_note(self, kind: int, payload: bytes, place: int = 0) -> None: ...


class Broker:
    """Writes a journal of one message a batch, into a queue that its first record declares."""

    def __init__(self, storage: MemoryStorage, name: str = "b1", clock: int = 1000) -> None:
        self.state = BrokerState(0)
        self.now_ms = clock
        self.journal: Journal = recover(
            storage,
            JournalIdentity("g", name),
            SMALL,
            Nothing(),
            checkpoint=self._checkpoint,
            wall_ms=lambda: self.now_ms,
        ).journal
        self.write(record.encode_queue_declare(QUEUE, "/", "q", record.DURABLE, b"\0\0\0\0"))

    def _checkpoint(self) -> bytes:
        return frame.encode_note(journal_gate.CHECKPOINT, encode_checkpoint(self.state, b""))

    def write(self, *raws: bytes) -> None:
        log = self.state.log
        data = frame.encode_batch(1, log.end + 1, len(raws), log.end, list(raws))
        log.epoch = 1
        self.state.taking.receive_batch(data)
        self.journal.append(data)
        log.apply_up_to(log.end)
        self.journal.sync_now()
        self.now_ms += 1

    def enqueue(self, count: int) -> None:
        for _ in range(count):
            entry = 1 << 40 | self.state.log.end
            self.write(record.encode_enqueue([(QUEUE, entry, 0)], MESSAGE, False) + ENQUEUE)

    def dequeue(self, *ids: int) -> None:
        self.write(record.encode_dequeue(record.ACKNOWLEDGED, [(QUEUE, tuple(1 << 40 | each for each in ids))]))


def events_of(storage: MemoryStorage, cursor: bytes | None = None) -> list[Event]:
    return [event for events in FeedReader(storage, cursor).events() for event in events]


def test_a_journal_of_a_bench_becomes_events(tmp_path: Path) -> None:
    """`python -m tests.unit.observers.feed.feed_speed` prints the rate; here only that nothing is lost on the way."""
    records = write_journal(tmp_path / "b1", 500)
    assert records == 10 + 500 * 12 + 10 * 16
    count, took_s = read_journal(tmp_path / "b1", None)
    per_transaction = 1 + 10 + 1 + 1 + 10 + 1 + 1  # open, enqueue, close, prepare, assign, commit, apply
    assert count > 500 * per_transaction
    print(f"{records / took_s:,.0f} records/s")


def test_what_was_dropped_before_it_was_read_is_a_gap_with_both_places() -> None:
    storage = MemoryStorage()
    broker = Broker(storage)
    broker.enqueue(5)
    reader = FeedReader(storage)
    seen = [event for events in reader.events() for event in events]
    cursor = reader.cursor()
    broker.enqueue(60)
    broker.journal.drop_before(40)
    first = broker.journal.first_segment
    for found in (events_of(storage, cursor), [event for events in reader.events() for event in events]):
        gap = next(event for event in found if isinstance(event, schema.Gap))
        assert (gap.reason, gap.from_segment, gap.to_segment) == ("dropped", 1, first)
        begins = found[found.index(gap) + 1]
        assert isinstance(begins, schema.Segment)
        assert (begins.seq, begins.incarnation) == (1, f"j{first}-7@{first}")
        enqueues = [event for event in found[found.index(gap) :] if isinstance(event, schema.Enqueue)]
        assert {event.queue for event in enqueues} == {"q"}, "the checkpoint has its name"
    assert isinstance(seen[-1], schema.Append)
    started = events_of(storage)[0]
    assert isinstance(started, schema.Gap)
    assert (started.reason, started.from_segment, started.seq) == ("started", 0, 0)


def test_a_cursor_of_something_else_is_refused() -> None:
    storage = MemoryStorage()
    Broker(storage)
    reader = FeedReader(storage)
    assert reader.cursor() is None
    list(reader.events())
    cursor = reader.cursor()
    assert cursor is not None
    with pytest.raises(CursorError, match="that is no cursor of this program"):
        FeedReader(storage, b"{}")
    newer = msgspec.json.encode({**msgspec.json.decode(cursor), "schema": 99})
    with pytest.raises(CursorError, match="event schema 99; this program goes on from"):
        FeedReader(storage, newer)


def in_tx(tx_id: int) -> bytes:
    return record.encode_tx_enqueue(tx_id, [(QUEUE, 0, 0)], MESSAGE, False) + ENQUEUE


def transaction_piece(*records: tuple[int, bytes]) -> bytes:
    events = (offset.to_bytes(8, "big") + len(raw).to_bytes(4, "big") + raw for offset, raw in records)
    return bytes((wire.TRANSACTION,)) + len(records).to_bytes(4, "big") + b"".join(events)


UNKNOWN = record.encode_rollback(TX, 0, "", "")
"""Of a kind that the older reader below does not know."""


class OlderReader(FeedReader):
    """Knows neither ROLLBACK, nor the note FOUNDING, nor DROP."""

    def __init__(self, storage: MemoryStorage) -> None:
        super().__init__(storage)
        notes = NoteEvents(self._translation, records := RecordEvents(self._translation))
        del records.takers[record.ROLLBACK], notes.takers[group_notes.FOUNDING], notes._pieces[wire.DROP]
        self._translation._takers, self._translation._note_takers = records.takers, notes.takers


def newer_batch(broker: Broker) -> None:
    """Its first records would be said, and it states a newer stable position."""
    broker.write(in_tx(TX), in_tx(TX), UNKNOWN)


def newer_record_in_a_piece(broker: Broker) -> None:
    piece = transaction_piece((1, in_tx(TX)), (2, UNKNOWN))
    broker.journal.append(frame.encode_note(group_notes.PIECE, piece))


def newer_piece(broker: Broker) -> None:
    broker.journal.append(frame.encode_note(group_notes.PIECE, wire.encode_drop(QUEUE, IdSet([3, 4]))))


def newer_note(broker: Broker) -> None:
    broker.journal.append(frame.encode_note(group_notes.FOUNDING, bytes(8)))


@pytest.mark.parametrize("newer", [newer_batch, newer_record_in_a_piece, newer_piece, newer_note])
def test_what_an_older_reader_could_not_read_is_said_by_a_newer_one(newer: Callable[[Broker], None]) -> None:
    storage = MemoryStorage()
    broker = Broker(storage)
    broker.enqueue(2)
    newer(broker)
    broker.enqueue(2)
    older = OlderReader(storage)
    said: list[Event] = []
    for _ in range(2):  # asked again it says the same
        with pytest.raises(NewerJournalError, match=r"is not known to this program|does not know"):
            said.extend(event for events in older.events() for event in events)
    uninterrupted = events_of(storage)
    assert said
    assert said + events_of(storage, older.cursor()) == uninterrupted


def test_a_reader_that_failed_within_a_frame_has_no_cursor() -> None:
    """Its program has an error: what it kept before stays, and events are told twice at most."""
    storage = MemoryStorage()
    Broker(storage).write(UNKNOWN)
    reader = FeedReader(storage)

    def failing(*_: object) -> None:
        raise KeyError

    reader._translation._takers[record.ROLLBACK] = failing
    with pytest.raises(KeyError):
        list(reader.events())
    assert reader.cursor() is None
    assert list(reader.events()) == []


def test_brokers_are_merged_by_their_clocks_and_each_stays_in_order() -> None:
    one, two = MemoryStorage(), MemoryStorage()
    Broker(one, "b1", 1000).enqueue(5)
    Broker(two, "b2", 1002).enqueue(5)
    readers = [FeedReader(one), FeedReader(two)]
    found = [event for events in merged(reader.events() for reader in readers) for event in events]
    for storage, broker in ((one, "b1"), (two, "b2")):
        assert [event for event in found if event.broker == broker] == events_of(storage)
    times = [event.at_ms for event in found if event.at_ms]
    assert times == sorted(times)


def test_what_is_selected() -> None:
    events = [events for events in FeedReader(_with_two_messages()).events() if len(events) > 1][-1]
    assert Selection().of(events) is events
    assert [type(event) for event in Selection(queue="q").of(events)] == [schema.Enqueue]
    assert [type(event) for event in Selection(queue="/orders/q").of(events)] == []
    assert Selection(txs=frozenset(("1.1",))).of(events) == []
    assert Selection(since_ms=events[0].at_ms).of(events) == events
    assert Selection(since_ms=events[0].at_ms + 1).of(events) == []


def _with_two_messages() -> MemoryStorage:
    storage = MemoryStorage()
    Broker(storage).enqueue(2)
    return storage


def test_statistics_say_what_lives_and_what_keeps_a_segment() -> None:
    storage = MemoryStorage()
    broker = Broker(storage)
    broker.enqueue(40)
    oldest = 1
    broker.dequeue(*range(oldest + 1, 30))
    broker.enqueue(1)
    found = journal_stats(storage).segments
    assert [each.number for each in found] == list(range(1, len(found) + 1))
    assert found[0].pinned_by == "queue q: 1"
    assert (found[0].live_records, found[0].live_bytes > 300) == (1, True)
    assert found[1].pinned_by == "segment 1 before it"
    assert (found[1].live_bytes, found[1].dead_bytes > 300) == (0, True)
    assert found[-1].pinned_by == "written to"
    assert sum(each.live_records for each in found) == 13
    broker.dequeue(oldest)
    broker.enqueue(1)
    assert journal_stats(storage).segments[0].pinned_by == "nothing: it goes next"


def test_a_message_in_parts_keeps_their_segments() -> None:
    storage = MemoryStorage()
    broker = Broker(storage)
    tx_id, body = 1 << 40 | 9, bytes(4_000)
    message = Message("", "q", b"\0\0", body, persistent=True)
    head, tail = record.encode_tx_enqueue_parted(tx_id, [(QUEUE, 0, 0)], message, False, 1, own=True)
    for start in range(0, len(body), 1_000):
        part = body[start : start + 1_000]
        broker.write(record.encode_body_part(tx_id, 1, start, len(part), False) + part)
        broker.enqueue(3)
    broker.write(head + message.properties + tail)
    tx = broker.state.transactions[tx_id]
    content = (tx.logged_events, tx.digest, tx.durable_events, tx.durable_digest)
    first_ids = {QUEUE: (1 << 40 | 1_000, 1)}
    broker.write(record.encode_prepare(record.Prepare(tx_id, 1, "", 0, first_ids, *content)))
    broker.write(record.encode_commit(tx_id, 1, 0))
    broker.dequeue(*range(1, 30))
    broker.enqueue(1)
    found = journal_stats(storage).segments
    assert len(found) > 1
    assert found[0].pinned_by.startswith("queue q: ")
    assert sum(each.live_records for each in found) == len(body) // 1_000 + 1 + 1
    assert sum(each.live_bytes for each in found) > len(body)
