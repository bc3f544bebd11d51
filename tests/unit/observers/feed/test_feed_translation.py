"""Each kind of record and of note becomes its event."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from understudy.broker.core.life.meta import Meta
from understudy.broker.log import frame, journal_gate, record
from understudy.broker.log.exchange_bind_record import encode_exchange_bind
from understudy.broker.log.move_record import encode_move
from understudy.broker.log.record import Prepare
from understudy.broker.log.return_record import Returned, encode_return
from understudy.broker.log.segment import JournalIdentity, SegmentHeader
from understudy.broker.message import Message, MovedMessage
from understudy.broker.transactions.dtx_branch import DtxBranch, Owner
from understudy.broker.transactions.outcomes import Outcomes
from understudy.broker.transactions.xid import Xid
from understudy.observers.events_schema import EVENT_TYPES, Admit, Event, Told
from understudy.observers.feed.text import event_json, event_line
from understudy.observers.feed.translation import FeedTranslation
from understudy.replicator import group_notes, wire
from understudy.replicator.id_set import IdSet

EPOCH = 2
TX = EPOCH << 40 | 7
TEXT = "ab/2.7"
XID = Xid(0, b"order 17", b"b1")
MESSAGE = Message("x", "key", b"\0\0", b"body!", persistent=True)
EMPTY = b"\0\0\0\0"
HEADER = SegmentHeader(
    number=1,
    size_bytes=1 << 16,
    alignment=512,
    footer_bytes=512,
    first_sequence=1,
    salt=0x77,
    identity=JournalIdentity("g", "b1"),
)
DECLARE = record.encode_queue_declare(5, "/", "q", record.DURABLE, EMPTY)


class Journal:
    """A broker's journal, written frame by frame, and its events."""

    def __init__(self) -> None:
        self.translation = FeedTranslation()
        self.translation.begin_segment(HEADER)
        self.translation.at_ms = 1000
        self.end = 0
        self.note(group_notes.EPOCH_SEEN, EPOCH.to_bytes(4, "big") + (0xAB).to_bytes(8, "big"))

    def note(self, kind: int, payload: bytes) -> list[dict[str, Any]]:
        self.translation.note(kind, payload)
        return self._events()

    def batch(self, *records: bytes, stable: int = 0, count: int = 0) -> list[dict[str, Any]]:
        """The events, but for the `Append` at the end."""
        count = count or len(records)
        self.translation.batch(frame.encode_batch(EPOCH, self.end + 1, count, stable, list(records)))
        self.end += count
        events = self._events()
        assert events[-1]["event"] == "append"
        return events[:-1]

    def _events(self) -> list[dict[str, Any]]:
        events = self.translation.take_events()
        for each in events:
            assert event_line(each).isprintable()
        return [msgspec.json.decode(event_json(each)) for each in events]


def piece(message: bytes) -> bytes:
    return message


def test_a_number_that_an_event_does_not_say_is_not_shown() -> None:
    head: dict[str, Any] = {"schema": 1, "group": "g", "founding": "ab", "broker": "b1", "incarnation": "p1-1"}
    head |= {"seq": 1, "epoch": 1, "offset": 5, "at_ms": 1}
    answer = Told(**head, answer="tx.commit-ok", outcome="committed", tx=TEXT, stable=4)
    assert event_line(answer).endswith("told            answer tx.commit-ok  outcome committed  tx 2.7  stable 4")
    assert event_line(Admit(**head, backup="b2")).endswith("admit           backup b2")
    assert event_line(Admit(**head, backup="b2", acked=4, stable=4)).endswith("backup b2  acked 4  stable 4")


def test_no_name_of_a_client_moves_the_cursor() -> None:
    """A line of the feed is read in a terminal; `Journal` looks at each."""
    declare = record.encode_queue_declare(5, "/", "q\x1b[2J\n", record.DURABLE, EMPTY)
    assert Journal().batch(declare)[0]["queue"] == "q\x1b[2J\n"


def prepare(owner: int = Owner.LOCAL, **more: Any) -> bytes:
    return record.encode_prepare(Prepare(TX, 9, "name", 555, {5: (100, 2)}, 3, 0xAA, 3, 0xBB, owner, **more))


def enqueue_in_tx(limit_ms: int = 0) -> bytes:
    head = record.encode_tx_enqueue(TX, [(5, 0, limit_ms)], MESSAGE, False)
    return head + MESSAGE.properties + MESSAGE.content()


def moved() -> bytes:
    message = MovedMessage("x", "key", MESSAGE.properties, b"", True)
    message.size = 1_000
    return encode_move(5, 77, record.EXPIRED, [(6, 78, 0)], message, False) + message.properties


def parted_enqueue() -> bytes:
    head, tail = record.encode_tx_enqueue_parted(TX, [(5, 0, 0)], MESSAGE, False, 1, own=True)
    return head + MESSAGE.properties + tail


def enqueue() -> bytes:
    head = record.encode_enqueue([(5, 77, 12), (6, 78, 0)], MESSAGE, False)
    return head + MESSAGE.properties + MESSAGE.content()


BRANCH = DtxBranch(vhost="/", xid=XID, offset=0, time_ms=5, events=1, digest=2, durable_events=1, durable_digest=3)
OPENED: dict[str, Any] = {"event": "open", "tx": TEXT}
ENQUEUED_IN_TX: dict[str, Any] = {
    "event": "enqueue",
    "tx": TEXT,
    "vhost": "/",
    "queue": "q",
    "queue_id": 5,
    "id": 0,
    "place": 0,
    "size": 5,
    "persistent": True,
    "exchange": "x",
    "routing_key": "key",
}
RECORDS: list[tuple[bytes, list[dict[str, Any]]]] = [
    (
        record.encode_epoch(EPOCH, "b1", True, 5),
        [{"event": "epoch", "primary": "b1", "transients_lost": True, "primary_ms": 5}],
    ),
    (
        DECLARE,
        [{"event": "declare", "what": "queue", "vhost": "/", "queue": "q", "queue_id": 5, "durable": True}],
    ),
    (
        record.encode_queue_delete(5, True),
        [{"event": "delete", "what": "queue", "vhost": "/", "queue": "q", "queue_id": 5}],
    ),
    (
        record.encode_exchange_declare("/", "x", "topic", record.DURABLE | record.AUTO_DELETE, EMPTY),
        [
            {
                "event": "declare",
                "what": "exchange",
                "vhost": "/",
                "exchange": "x",
                "type": "topic",
                "durable": True,
                "auto_delete": True,
            }
        ],
    ),
    (
        record.encode_exchange_delete("/", "x", True),
        [{"event": "delete", "what": "exchange", "vhost": "/", "exchange": "x"}],
    ),
    (
        record.encode_bind(False, "/", "x", 5, "a.#", EMPTY, True),
        [{"event": "bind", "vhost": "/", "exchange": "x", "queue": "q", "queue_id": 5, "routing_key": "a.#"}],
    ),
    (
        record.encode_bind(True, "/", "x", 5, "a.#", EMPTY, True),
        [{"event": "unbind", "vhost": "/", "exchange": "x", "queue": "q", "queue_id": 5, "routing_key": "a.#"}],
    ),
    (
        encode_exchange_bind(False, "/", "x", "y", "a.#", EMPTY, True),
        [{"event": "exchange_bind", "vhost": "/", "exchange": "x", "destination": "y", "routing_key": "a.#"}],
    ),
    (
        encode_exchange_bind(True, "/", "x", "y", "a.#", EMPTY, True),
        [{"event": "exchange_unbind", "vhost": "/", "exchange": "x", "destination": "y", "routing_key": "a.#"}],
    ),
    (
        enqueue(),
        [
            {
                "event": "enqueue",
                "tx": "",
                "vhost": vhost,
                "queue": queue,
                "queue_id": queue_id,
                "id": entry,
                "place": 0,
                "size": 5,
                "persistent": True,
                "exchange": "x",
                "routing_key": "key",
                **more,
            }
            for vhost, queue, queue_id, entry, more in (("/", "q", 5, 77, {"deadline_ms": 12}), ("", "", 6, 78, {}))
        ],
    ),
    (
        record.encode_dequeue(record.EXPIRED, [(5, (1, 2, 3, 7, 9, 8))]),
        [
            {
                "event": "dequeue",
                "tx": "",
                "vhost": "/",
                "queue": "q",
                "queue_id": 5,
                "id": first,
                "count": count,
                "reason": "expired",
            }
            for first, count in ((1, 3), (7, 1), (9, 1), (8, 1))
        ],
    ),
    (
        encode_return([(5, [(77, Returned(1, 2, 0)), (9, Returned(2, 2, 1_700_000_000_500))])], transient=False),
        [
            {
                "event": "return",
                "vhost": "/",
                "queue": "q",
                "queue_id": 5,
                "id": entry_id,
                "failures": failures,
                "hand_outs": 2,
                "due_ms": due_ms,
            }
            for entry_id, failures, due_ms in ((77, 1, 0), (9, 2, 1_700_000_000_500))
        ],
    ),
    (
        moved(),
        [
            {"event": "move", "vhost": "/", "queue": "q", "queue_id": 5, "id": 77, "reason": "expired", "targets": 1},
            {
                "event": "dequeue",
                "tx": "",
                "vhost": "/",
                "queue": "q",
                "queue_id": 5,
                "id": 77,
                "count": 1,
                "reason": "expired",
            },
            {
                "event": "enqueue",
                "tx": "",
                "vhost": "",
                "queue": "",
                "queue_id": 6,
                "id": 78,
                "place": 0,
                "size": 1_000,
                "persistent": True,
                "exchange": "x",
                "routing_key": "key",
            },
        ],
    ),
    (enqueue_in_tx(), [OPENED, ENQUEUED_IN_TX]),
    (enqueue_in_tx(record.FROM_COMMIT | 60_000), [OPENED, ENQUEUED_IN_TX | {"ttl_ms": 60_000}]),
    (record.encode_body_part(TX, 1, 0, 2, False) + b"ab", [OPENED]),
    (parted_enqueue(), [OPENED, ENQUEUED_IN_TX | {"parted": True}]),
    (
        record.encode_tx_dequeue(TX, [(5, (4,))]),
        [
            {"event": "open", "tx": TEXT},
            {"event": "dequeue", "tx": TEXT, "vhost": "/", "queue": "q", "queue_id": 5, "id": 4, "count": 1},
        ],
    ),
    (
        prepare(),
        [
            {"event": "open", "tx": TEXT},
            {
                "event": "close",
                "tx": TEXT,
                "events": 3,
                "digest": "000000aa",
                "durable_events": 3,
                "durable_digest": "000000bb",
            },
            {
                "event": "prepare",
                "tx": TEXT,
                "csn": 9,
                "name": "name",
                "owner": "local",
                "queues": 1,
                "primary_ms": 555,
            },
            {"event": "assign", "tx": TEXT, "csn": 9, "vhost": "/", "queue": "q", "queue_id": 5, "id": 100, "count": 2},
        ],
    ),
    (record.encode_commit(TX, 9, 6), [{"event": "commit", "tx": TEXT, "csn": 9, "primary_ms": 6}]),
    (
        record.encode_rollback(TX, 6, "n", "why"),
        [{"event": "rollback", "tx": TEXT, "name": "n", "reason": "why", "primary_ms": 6}],
    ),
    (record.encode_outcome("n", 2, 6), [{"event": "outcome", "name": "n", "primary_ms": 6}]),
    (record.encode_outcomes_trimmed(17, 1), [{"event": "outcomes_trimmed", "upto": 17}]),
    (record.BARRIER_RECORD, [{"event": "hole", "count": 1}]),
    (record.encode_id_time(555), [{"event": "hole", "count": 1}]),
    (
        record.encode_dtx_prepare(TX, BRANCH),
        [
            {"event": "open", "tx": TEXT},
            {
                "event": "close",
                "tx": TEXT,
                "events": 1,
                "digest": "00000002",
                "durable_events": 1,
                "durable_digest": "00000003",
            },
            {"event": "dtx_prepare", "tx": TEXT, "vhost": "/", "xid": "0:order%2017:b1", "primary_ms": 5},
        ],
    ),
    (
        record.encode_dtx_rollback(TX, 6, "/", XID),
        [{"event": "dtx_rollback", "tx": TEXT, "vhost": "/", "xid": "0:order%2017:b1", "primary_ms": 6}],
    ),
    (record.encode_dtx_forget("/", XID), [{"event": "dtx_forget", "vhost": "/", "xid": "0:order%2017:b1"}]),
]
HEAD = {"schema", "group", "founding", "broker", "incarnation", "seq", "epoch", "offset", "at_ms"}


@pytest.mark.parametrize(
    ("raw", "expected"), RECORDS, ids=lambda each: record.KIND_NAMES[each[0] & 0x7F] if isinstance(each, bytes) else ""
)
def test_a_record(raw: bytes, expected: list[dict[str, Any]]) -> None:
    journal = Journal()
    journal.batch(DECLARE)
    events = journal.batch(raw)
    assert [{name: value for name, value in each.items() if name not in HEAD} for each in events] == expected
    for number, each in enumerate(events, start=5):
        assert [each[name] for name in ("schema", "group", "founding", "broker", "incarnation")] == [
            1,
            "g",
            "ab",
            "b1",
            "j1-77",
        ]
        assert [each[name] for name in ("seq", "epoch", "offset", "at_ms")] == [number, EPOCH, 2, 1000]


def test_every_kind_of_record_that_there_is() -> None:
    covered = {raw[0] & 0x7F for raw, _ in RECORDS}
    assert covered == set(record.KIND_NAMES) - {record.HOLE}


def test_a_hole_and_a_batch() -> None:
    journal = Journal()
    assert [each["count"] for each in journal.batch(record.encode_holes(4), count=4)] == [4]
    journal.translation.batch(frame.encode_batch(EPOCH, 5, 2, 3, [DECLARE, DECLARE]))
    apply, *_, append = journal._events()
    assert (apply["event"], apply["offset"], apply["stable"]) == ("apply", 3, 3)
    assert (append["offset"], append["first_offset"], append["count"], append["stable"]) == (6, 5, 2, 3)


def test_what_is_held_already_is_not_told_again() -> None:
    """After a cut in the midst of a batch the next one may begin inside it."""
    journal = Journal()
    journal.batch(DECLARE, DECLARE, DECLARE)
    cut = journal.note(frame.KIND_CUT, frame.encode_cut(2)[frame.NOTE_HEADER_BYTES :])
    assert [(each["event"], each["offset"], each["end_before"], each["reason"]) for each in cut] == [
        ("cut", 2, 3, "rejoin")
    ]
    journal.translation.batch(frame.encode_batch(EPOCH + 1, 2, 2, 0, [DECLARE, DECLARE]))
    assert [(each["event"], each["offset"], each["epoch"]) for each in journal._events()] == [
        ("declare", 3, 3),
        ("append", 3, 3),
    ]


def test_the_mark_of_a_first_consumer_or_binding_tells_nothing() -> None:
    journal = Journal()
    used = record.DURABLE | record.AUTO_DELETE | record.USED
    journal.batch(DECLARE)
    marks = journal.batch(
        record.encode_queue_declare(5, "/", "q", used, EMPTY),
        record.encode_exchange_declare("/", "x", "topic", used, EMPTY),
    )
    assert [(each["event"], each["offset"]) for each in marks[:2]] == [("hole", 2), ("hole", 3)]
    journal.note(frame.KIND_CUT, frame.encode_cut(1)[frame.NOTE_HEADER_BYTES :])
    assert journal.translation.context.queues[5][:2] == ("/", "q")


def test_a_transaction_is_applied_when_its_commit_is_stable_and_nothing_behind_it_before() -> None:
    journal = Journal()
    journal.batch(DECLARE, enqueue_in_tx(), prepare(), DECLARE)
    assert [(e["event"], e["offset"]) for e in journal.batch(record.encode_commit(TX, 9, 6), stable=4)] == [
        ("apply", 2),
        ("commit", 5),
    ]
    first, second, _ = journal.batch(DECLARE, stable=5)
    assert (first["tx"], first["csn"], first["offset"], first["decided_at"]) == (TEXT, 9, 3, 5)
    assert (second["offset"], second["applied_before"], second["stable"]) == (5, 2, 5)
    assert not journal.translation.context.transactions


def test_what_is_rolled_back_is_not_applied() -> None:
    journal = Journal()
    journal.batch(enqueue_in_tx(), prepare(), record.encode_rollback(TX, 6, "", "refused"))
    assert [(e["event"], e["offset"], e.get("tx", "")) for e in journal.batch(DECLARE, stable=3)] == [
        ("apply", 3, ""),
        ("declare", 4, ""),
    ]
    assert not journal.translation.context.transactions


def test_a_cut_takes_a_decision_back() -> None:
    journal = Journal()
    journal.batch(enqueue_in_tx(), prepare())
    journal.batch(record.encode_rollback(TX, 6, "", "refused"))
    journal.note(frame.KIND_CUT, frame.encode_cut(2)[frame.NOTE_HEADER_BYTES :])
    journal.end = 2
    journal.batch(record.encode_commit(TX, 9, 6), stable=2)
    assert [e.get("tx", "") for e in journal.batch(DECLARE, stable=3) if e["event"] == "apply"] == [TEXT, ""]


def test_an_epoch_ends_what_is_open() -> None:
    journal = Journal()
    journal.batch(enqueue_in_tx())
    epoch, rollback = journal.batch(record.encode_epoch(EPOCH, "b2", False, 5))
    assert epoch["primary"] == "b2"
    assert (rollback["event"], rollback["tx"], rollback["reason"]) == (
        "rollback",
        TEXT,
        "its primary was replaced before it was closed",
    )


def test_notes() -> None:
    journal = Journal()
    no = TX.to_bytes(8, "big") + (17).to_bytes(8, "big")
    (failed,) = journal.note(group_notes.NO, no + b"holds 1 of 2 events")
    assert (failed["event"], failed["tx"], failed["vote"], failed["prepare_offset"], failed["reason"]) == (
        "vote",
        TEXT,
        "failed",
        17,
        "holds 1 of 2 events",
    )
    (ended,) = journal.note(group_notes.NO_ENDED, no)
    assert (ended["tx"], ended["vote"]) == (TEXT, "ended")
    (founding,) = journal.note(group_notes.FOUNDING, (0xCD).to_bytes(8, "big"))
    assert (founding["event"], founding["founding"]) == ("founding", "cd")
    with pytest.raises(journal_gate.UnknownNoteError, match="notes of kind 99"):
        journal.note(99, b"")
    with pytest.raises(record.UnknownKindError, match="record kind 99"):
        journal.batch(record.HEAD.pack(99, 0))


def meta(offset: int, *topology: bytes) -> bytes:
    return Meta(offset=offset, csn=8, starts=((EPOCH, 1),), topology=topology, outcomes=Outcomes()).encode()


def test_a_checkpoint_gives_names_to_queues_that_were_declared_before_it() -> None:
    journal = Journal()
    (found,) = journal.note(journal_gate.CHECKPOINT, (0).to_bytes(4, "big") + meta(40, DECLARE))
    assert (found["event"], found["offset"], found["queues"], found["csn"]) == ("checkpoint", 40, 1, 8)
    journal.end = 40
    assert journal.batch(enqueue())[0]["queue"] == "q"


def test_a_log_that_was_let_go_is_cut_to_nothing() -> None:
    """`Journal.begin_anew`: its checkpoint states nothing, and stands behind a log that had something."""
    journal = Journal()
    journal.batch(DECLARE, enqueue_in_tx())
    empty = Meta(offset=0, csn=0, starts=(), topology=(), outcomes=Outcomes()).encode()
    cut, checkpoint = journal.note(journal_gate.CHECKPOINT, (0).to_bytes(4, "big") + empty)
    assert (cut["event"], cut["offset"], cut["end_before"], cut["reason"]) == ("cut", 0, 2, "let_go")
    assert (checkpoint["event"], checkpoint["queues"]) == ("checkpoint", 0)
    assert not journal.translation.context.transactions


def test_pieces_of_a_catch_up() -> None:
    journal = Journal()
    journal.batch(DECLARE, enqueue_in_tx())
    restart = frame.encode_cut(0, journal_gate.RESTART + (1).to_bytes(8, "big"))
    apply, cut = journal.note(frame.KIND_CUT, restart[frame.NOTE_HEADER_BYTES :])
    assert (apply["offset"], cut["offset"], cut["end_before"], cut["reason"]) == (1, 0, 2, "catch_up")
    base = wire.encode_base(wire.BASE_NEW, meta(50, DECLARE))
    (told,) = journal.note(group_notes.PIECE, base)
    assert (told["what"], told["offset"], told["count"], told["csn"]) == ("base", 50, 1, 8)
    assert not journal.translation.context.transactions
    (drop,) = journal.note(group_notes.PIECE, wire.encode_drop(5, IdSet([3, 4, 5])))
    assert (drop["what"], drop["queue"], drop["id"], drop["count"]) == ("drop", "q", 3, 3)
    transaction = b"".join(
        (
            bytes((wire.TRANSACTION,)),
            (1).to_bytes(4, "big"),
            (48).to_bytes(8, "big"),
            len(enqueue_in_tx()).to_bytes(4, "big"),
        )
    )
    events = journal.note(group_notes.PIECE, transaction + enqueue_in_tx())
    assert [(e["event"], e["offset"]) for e in events] == [("piece", 50), ("open", 48), ("enqueue", 48)]
    assert (events[0]["what"], events[0]["tx"], events[0]["count"]) == ("transaction", TEXT, 1)
    (ended,) = journal.note(group_notes.PIECE, bytes((wire.CAUGHT_UP,)))
    assert ended["what"] == "caught_up"


def test_a_field_has_one_type_in_every_event_that_has_it() -> None:
    types: dict[str, Any] = {}
    for each in EVENT_TYPES:
        for field in msgspec.structs.fields(each):
            assert types.setdefault(field.name, field.type) is field.type, f"{each.__name__}.{field.name}"
            assert field.type in (int, str, bool)
    assert set(Event.__struct_fields__) == HEAD


def test_octets_that_are_no_text_are_written_so_that_json_can_carry_them() -> None:
    journal = Journal()
    message = Message("x", b"k\xff".decode("utf-8", "surrogateescape"), b"\0\0", b"", persistent=True)
    raw = record.encode_enqueue([(5, 1, 0)], message, False) + message.properties
    assert journal.batch(raw)[0]["routing_key"] == "k\\xff"
