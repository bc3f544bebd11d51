"""Committed content of a journal: whole transactions in their order, from any position on, and no half of one."""

from __future__ import annotations

import pytest

from tests.unit.observers.outlet.outlet_kit import (
    BILLS,
    FOUNDING,
    ORDERS,
    PASSING,
    JournalWriter,
    bodies,
    message,
    tx_id,
    units_of,
)
from understudy.broker.core.life.meta import Meta
from understudy.broker.log import frame, journal_gate, record
from understudy.broker.log.position import Position
from understudy.broker.transactions.outcomes import Outcomes
from understudy.observers.outlet.errors import (
    IncompleteTransactionError,
    MissingRecordsError,
    OtherFoundingError,
    RewrittenLogError,
    UnknownQueueError,
)
from understudy.observers.outlet.reading.reader import OutletReader
from understudy.observers.outlet.reading.segments import JournalSegments
from understudy.replicator import group_notes, wire
from understudy.testing.disk import MemoryStorage

RESTART = journal_gate.RESTART + (0).to_bytes(8, "big")


@pytest.fixture
def journal() -> JournalWriter:
    writer = JournalWriter(MemoryStorage())
    writer.declare()
    return writer


def test_a_move_brings_its_message_once_wherever_that_was_published(journal: JournalWriter) -> None:
    journal.enqueue(b"published", ORDERS)
    published = 1 << 40 | journal.state.log.end - 1
    brings = journal.move(ORDERS, published, 1 << 40 | 77, b"published")
    journal.write(record.encode_dequeue(record.PURGED, [(BILLS, (1 << 40 | 77,))]))
    journal.rest()
    first, second = units_of(journal.storage)
    assert (bodies([first, second]), second.offset, second.tx) == ([[b"published"], [b"published"]], brings, "")
    assert [(each.queue, each.entry_id, each.bodiless) for each in second.messages] == [("bills", 1 << 40 | 77, False)]
    (alone,) = units_of(journal.storage, Position(1, brings - 1))
    assert (alone.offset, bodies([alone])) == (brings, [[b"published"]]), "the publish lies before the position"
    assert units_of(journal.storage, Position(1, brings)) == []


def test_a_move_without_its_body_is_no_unit_of_nothing(journal: JournalWriter) -> None:
    journal.enqueue(b"published", ORDERS)
    published = 1 << 40 | journal.state.log.end - 1
    journal.move(ORDERS, published, 1 << 40 | 78, b"published", has_body=False)
    journal.enqueue(b"", ORDERS)
    journal.move(ORDERS, 1 << 40 | journal.state.log.end - 1, 1 << 40 | 79, b"", has_body=False)
    journal.move(ORDERS, 1 << 40 | 1, 1 << 40 | 80, b"transient", has_body=False, persistent=False)
    journal.rest()
    found = [each for unit in units_of(journal.storage) for each in unit.messages if each.queue == "bills"]
    assert [(each.entry_id & 0xFF, each.bodiless, each.message.size) for each in found] == [
        (78, True, 9),
        (79, False, 0),
    ]


def test_a_transaction_is_one_unit_with_what_prepare_gives_it(journal: JournalWriter) -> None:
    journal.in_tx(1, b"one")
    journal.enqueue(b"between")
    journal.take_in_tx(1, 5, 6)
    journal.in_tx(1, b"both", ORDERS, BILLS)
    prepare = journal.prepare(1, 9, "order 17")
    journal.commit(1, 9)
    journal.rest()
    plain, unit = units_of(journal.storage)
    assert (plain.tx, plain.csn, bodies([plain])) == ("", 0, [[b"between"]])
    assert (unit.epoch, unit.offset, unit.csn, unit.tx) == (1, prepare, 9, "ab/1.1")
    assert (unit.name, unit.time_ms, unit.unsent) == ("order 17", 5_000, 0)
    first = 1 << 40 | 9 << 8
    assert [(each.queue, each.entry_id) for each in unit.messages] == [
        ("orders", first),
        ("orders", first + 1),
        ("bills", first),
    ]
    assert bodies([unit]) == [[b"one", b"both", b"both"]]


def test_units_have_the_order_of_commits_and_not_of_beginnings(journal: JournalWriter) -> None:
    journal.in_tx(1, b"first begun")
    journal.in_tx(2, b"first committed")
    journal.prepare(2, 1)
    journal.commit(2, 1)
    journal.enqueue(b"plain")
    journal.prepare(1, 2)
    journal.commit(1, 2)
    journal.rest()
    assert bodies(units_of(journal.storage)) == [[b"first committed"], [b"plain"], [b"first begun"]]


def test_nothing_is_yielded_that_is_not_stable_or_stands_behind_an_undecided_transaction(
    journal: JournalWriter,
) -> None:
    journal.in_tx(1, b"undecided")
    journal.prepare(1, 1)
    behind = journal.enqueue(b"behind it")
    reader = OutletReader(journal.storage)
    found = [unit for units in reader.units() for unit in units]
    journal.rest()
    found += [unit for units in reader.units() for unit in units]
    assert found == []
    journal.commit(1, 1)
    assert [unit for units in reader.units() for unit in units] == [], "COMMIT itself is not known to be stable"
    journal.rest()
    found = [unit for units in reader.units() for unit in units]
    assert bodies(found) == [[b"undecided"], [b"behind it"]]
    assert found[1].offset == behind
    assert reader.log.applied.offset > behind


def test_what_a_resting_broker_says_is_enough(journal: JournalWriter) -> None:
    journal.transaction(1, 1, b"last words")
    reader = OutletReader(journal.storage)
    assert [units for units in reader.units() if units] == []
    end = journal.state.log.end
    assert reader.applied_upto(end, 2, "ab") == [], "its log was of another epoch then"
    assert reader.applied_upto(end, 1, "cd") == [], "its group was another one"
    assert bodies(reader.applied_upto(end, 1, "ab")) == [[b"last words"]]
    assert reader.log.applied == (1, end)


def test_a_queue_keeps_its_name_if_the_mark_of_its_first_consumer_is_cut(journal: JournalWriter) -> None:
    journal.rest()
    end = journal.stable_at_most = journal.state.log.end
    flags = record.DURABLE | record.AUTO_DELETE | record.USED
    journal.write(record.encode_queue_declare(ORDERS, "/", "orders", flags, bytes(4)))
    journal.cut(end)
    journal.stable_at_most = 1 << 40
    journal.epoch = 2
    journal.write(record.encode_epoch(2, "b2", True, 6), stable=end)
    journal.enqueue(b"kept")
    journal.rest()
    assert bodies(units_of(journal.storage)) == [[b"kept"]]


def test_what_is_rolled_back_or_cut_is_no_unit(journal: JournalWriter) -> None:
    journal.in_tx(1, b"no")
    journal.prepare(1, 1)
    journal.rollback(1)
    journal.rest()
    end = journal.stable_at_most = journal.state.log.end
    journal.in_tx(2, b"cut away")
    journal.prepare(2, 2)
    journal.enqueue(b"cut away, too")
    journal.cut(end)
    journal.stable_at_most = 1 << 40
    journal.epoch = 2
    journal.write(record.encode_epoch(2, "b2", True, 6), stable=end)
    journal.enqueue(b"kept")
    journal.rest()
    (unit,) = units_of(journal.storage)
    assert bodies([unit]) == [[b"kept"]]
    assert unit.epoch == 2


def test_a_new_epoch_ends_what_was_open(journal: JournalWriter) -> None:
    journal.in_tx(1, b"open")
    journal.write(record.encode_epoch(2, "b2", True, 6))
    journal.rest()
    reader = OutletReader(journal.storage)
    assert [units for units in reader.units() if units] == []
    assert reader.log.context.transactions == {}
    assert reader.log.needed == reader.log.applied.offset + 1


def test_queues_that_are_not_durable_or_deleted_get_nothing(journal: JournalWriter) -> None:
    journal.enqueue(b"to both", ORDERS, PASSING)
    journal.in_tx(1, b"to a queue that goes", BILLS)
    journal.in_tx(1, b"stays")
    journal.prepare(1, 1)
    journal.write(record.encode_queue_delete(BILLS, True))
    journal.commit(1, 1)
    journal.rest()
    plain, unit = units_of(journal.storage)
    assert [each.queue for each in plain.messages] == ["orders"]
    assert [each.queue for each in unit.messages] == ["bills", "orders"], (
        "it was there when the transaction was decided"
    )


def test_a_large_body_in_parts(journal: JournalWriter) -> None:
    parts = (b"a" * 100, b"b" * 50)
    at = 0
    buffer = journal._buffer(1)
    for part in parts:
        head = record.encode_body_part(tx_id(1), 1, at, len(part), False)
        buffer.add(journal.state.log.end + 1, None, (), head, False)
        journal.write(head + part)
        at += len(part)
    whole = message(b"")
    whole.size = 150
    head, tail = record.encode_tx_enqueue_parted(tx_id(1), [(ORDERS, 0, 0)], whole, False, 1, own=True)
    buffer.add(journal.state.log.end + 1, None, (), head, False)
    buffer.place(ORDERS)
    journal.write(head + whole.properties + tail)
    journal.prepare(1, 4)
    journal.commit(1, 4)
    journal.rest()
    (unit,) = units_of(journal.storage)
    assert bodies([unit]) == [[b"".join(parts)]]
    assert (unit.tx, unit.csn) == ("", 4), "its client has published it outside of transactions"


@pytest.mark.parametrize("events", [1, 3])
def test_a_half_of_a_transaction_is_an_error(journal: JournalWriter, events: int) -> None:
    journal.in_tx(1, b"one")
    journal.in_tx(1, b"two")
    journal.prepare(1, 1, events=events)
    journal.commit(1, 1)
    journal.enqueue(b"behind it")
    journal.rest()
    with pytest.raises(
        IncompleteTransactionError, match=rf"transaction ab/1\.1.*holds 2 of {events} events.*--accept-gap"
    ):
        units_of(journal.storage)
    reader = OutletReader(journal.storage, accept_gaps=True)
    assert bodies(unit for units in reader.units() for unit in units) == [[b"behind it"]]
    (said,) = reader.log.passed_over
    assert "ab/1.1" in said


# -- positions ------------------------------------------------------------------------------------------------------------


def test_from_every_position_what_is_behind_it_comes_once(journal: JournalWriter) -> None:
    journal.in_tx(1, b"begun early")
    for at in range(2, 12):
        journal.transaction(at, at, b"a%d" % at, b"b%d" % at)
        journal.enqueue(b"p%d" % at)
    journal.prepare(1, 20)
    journal.commit(1, 20)
    journal.rest()
    every = units_of(journal.storage)
    assert len(every) == 21
    for place, unit in enumerate(every):
        assert units_of(journal.storage, Position(unit.epoch, unit.offset), "ab") == every[place + 1 :] or bodies(
            units_of(journal.storage, Position(unit.epoch, unit.offset), "ab")
        ) == bodies(every[place + 1 :])


def test_reading_begins_with_the_segment_that_is_needed(journal: JournalWriter) -> None:
    journal.in_tx(1, b"open for long")
    for at in range(2, 60):
        journal.transaction(at, at, b"x" * 200)
    reader = OutletReader(journal.storage)
    every = [unit for units in reader.units() for unit in units]
    segments = JournalSegments(journal.storage)
    assert reader.log.needed == reader.log.context.transactions[tx_id(1)].first
    assert segments.place_of(reader.log.needed) is None, "all of it is needed"
    assert segments.needed_segment(reader.log.needed) == 1
    journal.rollback(1)
    journal.rest()
    every += [unit for units in reader.units() for unit in units]
    place = segments.place_of(every[40].offset)
    assert place is not None
    assert place.segment > 1
    sent = Position(1, every[40].offset)
    late = OutletReader(journal.storage, sent, "ab", place)
    found = [unit for units in late.units() for unit in units]
    assert [unit.offset for unit in found] == [unit.offset for unit in every[41:]]
    assert {each.queue for unit in found for each in unit.messages} == {"orders"}


def test_records_that_are_gone_are_an_error_and_not_passed_over(journal: JournalWriter) -> None:
    for at in range(1, 60):
        journal.transaction(at, at, b"x" * 200)
    journal.rest()
    every = units_of(journal.storage)
    journal.journal.drop_before(150)
    assert journal.journal.first_segment > 1
    sent = Position(1, every[3].offset)
    with pytest.raises(
        MissingRecordsError, match=rf"up to offset {sent.offset} of the log has been sent.*--accept-gap"
    ):
        units_of(journal.storage, sent)
    accepted = units_of(journal.storage, sent, accept_gaps=True)
    assert [unit.offset for unit in accepted] == [unit.offset for unit in every[-len(accepted) :]]
    assert 10 < len(accepted) < 55
    last = Position(1, every[-3].offset)
    assert [unit.offset for unit in units_of(journal.storage, last)] == [unit.offset for unit in every[-2:]]


def base(journal: JournalWriter, offset: int) -> None:
    """A catch-up begins the log anew behind ``offset``, with the queues that are there."""
    journal.note(frame.KIND_CUT, frame.encode_cut(0, RESTART)[frame.NOTE_HEADER_BYTES :])
    topology = tuple(journal.state.topology.image.records())
    meta = Meta(offset=offset, csn=7, starts=((1, 1),), topology=topology, outcomes=Outcomes())
    journal.note(group_notes.PIECE, wire.encode_base(wire.BASE_NEW, meta.encode()))


def test_what_a_catch_up_has_stepped_over_was_sent_or_is_an_error(journal: JournalWriter) -> None:
    journal.transaction(1, 1, b"old")
    journal.rest()
    end = journal.state.log.end
    base(journal, end + 100)
    journal.state.log.skip_to(end + 100)
    journal.transaction(2, 8, b"new")
    journal.rest()
    old = units_of(journal.storage, Position(1, end + 100))
    assert bodies(old) == [[b"new"]]
    with pytest.raises(MissingRecordsError):
        units_of(journal.storage, Position(1, end + 99))


def test_a_log_that_was_rewritten_is_an_error_that_says_where_it_forks(journal: JournalWriter) -> None:
    journal.transaction(1, 1, b"both have it")
    fork = journal.state.log.end
    journal.epoch = 2
    journal.write(record.encode_epoch(2, "b2", True, 6))
    journal.enqueue(b"of the new log")
    journal.rest()
    for sent in (Position(1, fork + 1), Position(1, fork + 1000)):
        with pytest.raises(RewrittenLogError, match="unclean promotion") as raised:
            units_of(journal.storage, sent)
        assert raised.value.fork == (1, fork)
    assert bodies(units_of(journal.storage, Position(1, fork))) == [[b"of the new log"]]


def test_the_position_of_another_founding_is_an_error(journal: JournalWriter) -> None:
    journal.enqueue(b"x")
    with pytest.raises(OtherFoundingError, match="founding cd of the group, and this journal of founding ab"):
        units_of(journal.storage, Position(1, 1), "cd")
    units_of(journal.storage, Position(1, 1), f"{FOUNDING:x}")


def test_a_queue_whose_declaration_is_gone_is_an_error() -> None:
    journal = JournalWriter(MemoryStorage())
    journal.declare()
    while len(journal.storage.names()) < 2:
        journal.enqueue(b"x" * 300)
    sent = journal.state.log.end
    late = 1 << 40 | 77
    journal.write(record.encode_queue_declare(late, "/", "late", record.DURABLE, b"\0\0\0\0"))
    journal.enqueue(b"for it", late)
    journal.rest()
    (unit,) = units_of(journal.storage, Position(1, sent))
    assert [each.queue for each in unit.messages] == ["late"]
    with pytest.raises(UnknownQueueError, match="queue number"):
        raise UnknownQueueError(late, 5)
