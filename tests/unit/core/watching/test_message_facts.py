"""Facts of detail "messages" of one core: exactly what its clients were told, joined to the log by offset, id and transaction."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.core.core_kit import FRAME_MAX, Core, HeldJournal, publish
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_GET,
    BASIC_NACK,
    CHANNEL_CLOSE,
    CONFIRM_SELECT,
    DTX_COMMIT,
    DTX_END,
    DTX_PREPARE,
    DTX_RECOVER,
    DTX_ROLLBACK,
    DTX_SELECT,
    DTX_START,
    QUEUE_DECLARE,
    QUEUE_DELETE,
    TX_COMMIT,
    TX_ROLLBACK,
    TX_SELECT,
    encode_method,
)
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.core.limits import Limits
from understudy.broker.core.watching.facts import Facts
from understudy.broker.core.watching.message_facts import MessageFacts, runs
from understudy.broker.log.frame import BATCH_MAGIC
from understudy.observers import events_schema as schema
from understudy.observers.events_schema import Event
from understudy.observers.feed.translation import FeedTranslation

Row = dict[str, Any]


class ToldCore:
    """A core whose messages are told; facts as rows."""

    def __init__(self, core: Core | None = None) -> None:
        self.core = core or Core()
        self.facts = Facts(lambda: 7)
        self.facts.founding = "abc"
        self.facts.follow(self.core.node.state.log)
        MessageFacts(self.core.broker, self.facts)

    def rows(self, *names: str) -> list[Row]:
        return [each.fields for each in self.facts.take()[0] if not names or each.name in names]


def test_runs_are_consecutive_in_tag_and_offset() -> None:
    assert list(runs([])) == []
    assert list(runs([(1, 10), (2, 11), (3, 12)])) == [(3, 10, 12, 3)]
    assert list(runs([(1, 10), (2, 12), (3, 13)])) == [(1, 10, 10, 1), (3, 12, 13, 2)]
    assert list(runs([(1, 10), (3, 11)])) == [(1, 10, 10, 1), (3, 11, 11, 1)], "tag 2 was refused"
    assert list(runs([(1, 0), (2, 0), (3, 10), (4, 0)])) == [(2, 0, 0, 2), (3, 10, 10, 1), (4, 0, 0, 1)]


def test_a_confirm_names_the_records_of_its_channel_and_no_others() -> None:
    told = ToldCore()
    core = told.core
    client = core.client(channels=2)
    core.queue(client, "q")
    client.send(encode_method(1, CONFIRM_SELECT, False), encode_method(2, CONFIRM_SELECT, False))
    base = core.node.state.log.end
    client.send(publish("q", b"1"), publish("q", b"2"), publish("q", b"3", channel=2), publish("q", b"4"))
    assert told.rows("confirm") == [], "nothing is told before it is stable"
    core.sync()
    one = {"client": "test", "channel": 1, "stable": base + 4}
    assert told.rows("confirm") == [
        one | {"tag": 2, "first_offset": base + 1, "last_offset": base + 2, "count": 2},
        one | {"tag": 3, "first_offset": base + 4, "last_offset": base + 4, "count": 1},
        one | {"channel": 2, "tag": 1, "first_offset": base + 3, "last_offset": base + 3, "count": 1},
    ]
    client.send(publish("nowhere", b"5"), publish("q", b"6"))
    core.sync()
    assert told.rows("confirm") == [
        one | {"tag": 4, "first_offset": 0, "last_offset": 0, "count": 1},
        one | {"tag": 5, "first_offset": base + 5, "last_offset": base + 5, "count": 1, "stable": base + 5},
    ]


def test_a_refused_publish_is_not_confirmed() -> None:
    """A nack of the second: its tag is in no fact."""
    told = ToldCore()
    core = told.core
    client = core.client()
    core.queue(client, "q")
    client.send(encode_method(1, CONFIRM_SELECT, False), publish("q", b"1"))
    core.broker.refuse_work("disk", "it is full")
    client.send(publish("q", b"2"))
    core.broker.refuse_work("disk", "")
    client.send(publish("q", b"3"))
    core.sync()
    assert [(row["tag"], row["count"]) for row in told.rows("confirm")] == [(1, 1), (3, 1)]


def test_what_nobody_was_told_is_no_fact() -> None:
    told = ToldCore()
    core = told.core
    client = core.client()
    core.queue(client, "q")
    client.send(encode_method(1, CONFIRM_SELECT, False), publish("q", b"1"))
    client.send(encode_method(1, CHANNEL_CLOSE, 200, "bye", 0, 0))
    core.sync()
    assert "basic.ack" not in client.heard()
    assert told.rows("confirm") == []


def test_outcomes_of_transactions() -> None:
    told = ToldCore()
    core = told.core
    client = core.client()
    core.queue(client, "q")
    client.send(encode_method(1, TX_SELECT), publish("q", b"1"), encode_method(1, TX_COMMIT))
    (tx,) = core.node.state.transactions.values()
    assert told.rows("told") == []
    core.sync()
    (row,) = told.rows("told")
    assert (row["answer"], row["outcome"], row["tx"], row["csn"]) == ("tx.commit-ok", "committed", "abc/1.1", 1)
    assert (row["client"], row["channel"]) == ("test", 1)
    assert row["prepare_offset"] == tx.prepare_offset < row["decided_at"] == tx.outcome_offset
    assert tx.prepare_offset <= row["stable"]
    client.send(publish("q", b"2"), encode_method(1, TX_ROLLBACK))
    core.sync()
    (row,) = told.rows("told")
    assert (row["answer"], row["outcome"], row["tx"]) == ("tx.rollback-ok", "rolled back", "abc/1.2")
    assert (row["csn"], row["prepare_offset"], row["decided_at"]) == (0, 0, core.node.state.log.end)
    client.send(publish("q", b"3"), encode_method(1, TX_COMMIT))
    (tx,) = core.node.state.transactions.values()
    core.broker.transactions.roll_back_closed(tx, "a backup refused it")
    core.sync()
    (row,) = told.rows("told")
    assert (row["answer"], row["outcome"], row["tx"]) == ("channel.close", "rolled back", "abc/1.3")


XID = (1, b"global", b"branch")


@pytest.mark.parametrize(
    ("ends", "answer", "outcome"),
    [
        ((DTX_COMMIT, *XID, False), "dtx.commit-ok", "committed"),
        ((DTX_ROLLBACK, *XID), "dtx.rollback-ok", "rolled back"),
    ],
)
def test_outcomes_of_branches(ends: tuple[Any, ...], answer: str, outcome: str) -> None:
    told = ToldCore()
    core = told.core
    client = core.client()
    core.queue(client, "q")
    client.send(
        encode_method(1, DTX_SELECT),
        encode_method(1, DTX_START, *XID, False, False),
        publish("q", b"1"),
        encode_method(1, DTX_END, *XID, False, False),
        encode_method(1, DTX_PREPARE, *XID),
    )
    core.sync()
    assert client.heard()[-1] == "dtx.prepare-ok"
    (row,) = told.rows("told")
    assert (row["answer"], row["outcome"], row["csn"], row["decided_at"]) == ("dtx.prepare-ok", "prepared", 0, 0)
    assert row["prepare_offset"] == core.node.state.log.end
    client.method(*ends)
    core.sync()
    (row,) = told.rows("told")
    assert client.heard() == [answer]
    assert (row["answer"], row["outcome"], row["name"]) == (answer, outcome, "1:global:branch")
    assert row["tx"].startswith("abc/1.")
    assert row["decided_at"] > 0


def test_a_branch_that_is_not_there() -> None:
    """The branch was looked for at the end of the log that the fact names; the answer comes when a record behind that is stable."""
    told = ToldCore()
    core = told.core
    client = core.client()
    end = core.node.state.log.end
    client.method(DTX_COMMIT, *XID, False)
    assert told.rows("told") == []
    core.sync()
    assert client.heard() == ["channel.close"]
    (row,) = told.rows("told")
    assert (row["answer"], row["outcome"], row["name"], row["tx"]) == (
        "channel.close",
        "unknown",
        "1:global:branch",
        "",
    )
    assert (row["vhost"], row["known_at"]) == ("/", end)
    assert row["stable"] > end


def test_a_list_of_branches_that_are_in_doubt() -> None:
    """A manager that asks from the beginning is told of all that are prepared."""
    told = ToldCore()
    core = told.core
    client = core.client()
    client.send(
        encode_method(1, DTX_SELECT),
        encode_method(1, DTX_START, *XID, False, False),
        encode_method(1, DTX_END, *XID, False, False),
        encode_method(1, DTX_PREPARE, *XID),
    )
    core.sync()
    (prepared,) = told.rows("told")
    client.method(DTX_RECOVER, b"")
    core.sync()
    assert client.heard()[-1] == "dtx.recover-ok"
    (row,) = told.rows("told")
    assert (row["answer"], row["outcome"], row["vhost"], row["branches"]) == ("dtx.recover-ok", "listed", "/", 1)
    assert row["known_at"] == row["stable"] == core.node.state.log.end > prepared["stable"]


@pytest.mark.parametrize("gone", [False, True])
def test_an_answer_that_is_a_message_is_told_if_it_was_published(gone: bool) -> None:
    """The reply queue is deleted between the request and its answer."""
    told = ToldCore()
    core = told.core
    client = core.client(channels=2)
    for queue in ("q", "answers"):
        core.queue(client, queue)
    client.send(
        encode_method(1, DTX_SELECT),
        encode_method(1, DTX_START, *XID, False, False),
        publish("q", b"1"),
        encode_method(1, DTX_END, *XID, False, False),
    )
    xid = {"format_id": 1, "global_id": "global", "branch_id": "branch"}
    reply_to = encode_properties(reply_to="answers")
    requests = (
        ("understudy.tx", b"outcome name"),
        ("understudy.dtx", json.dumps({"verb": "prepare", "xid": xid}).encode()),
    )
    for channel, (exchange, body) in ((2, requests[0]), (1, requests[1])):
        client.send(publish_frames(channel, exchange, "", reply_to, body, FRAME_MAX))
    if gone:
        client.method(QUEUE_DELETE, "answers", False, False, False, channel=2)
    for _ in range(3):
        core.sync()
    assert core.broker.dtx.undecided == 1
    answers = [row["answer"] for row in told.rows("told")]
    assert answers == ([] if gone else ["outcome", "dtx.prepare-ok"])


class FeedJournal(HeldJournal):
    """Its frames as events."""

    def __init__(self) -> None:
        self._translation = FeedTranslation()
        self.events: list[Event] = []

    def append(self, frame: bytes) -> None:
        if frame[3] == BATCH_MAGIC[3]:
            self._translation.batch(frame)
            self.events += self._translation.take_events()


def test_a_confirm_of_a_body_in_parts_leads_to_its_ids() -> None:
    """docs/feed.md, "What a client was told": from its offset to ``enqueue``, by ``tx`` to ``assign`` and ``prepare``."""
    journal = FeedJournal()
    told = ToldCore(Core(Limits(parted_bytes=100, part_bytes=50, parts_in_flight_bytes=1000), journal))
    core = told.core
    client = core.client()
    core.queue(client, "q")
    client.send(encode_method(1, CONFIRM_SELECT, False), publish("q", b"1"), publish("q", bytes(100)))
    core.sync()
    _, confirm = told.rows("confirm")
    enqueue = next(e for e in journal.events if isinstance(e, schema.Enqueue) and e.offset == confirm["last_offset"])
    assert (enqueue.tx != "", enqueue.id, enqueue.size) == (True, 0, 100)
    assign = next(e for e in journal.events if isinstance(e, schema.Assign) and e.tx == enqueue.tx)
    queue = core.node.state.topology.registry.find_queue("/", "q")
    assert queue is not None
    assert (assign.queue_id, assign.id + enqueue.place) == (queue.id, queue.newest_id)
    prepare = next(e for e in journal.events if isinstance(e, schema.Prepare) and e.tx == enqueue.tx)
    assert prepare.offset > confirm["last_offset"] == confirm["first_offset"]


def test_deliveries_name_queue_and_id() -> None:
    told = ToldCore()
    core = told.core
    client = core.client()
    client.method(QUEUE_DECLARE, "q", False, True, False, False, False, {"x-max-priority": 3})
    core.sync()
    client.send(publish_frames(1, "", "q", encode_properties(delivery_mode=2, priority=5), b"1", FRAME_MAX))
    core.sync()
    told.rows()
    for answer in ((BASIC_NACK, 1, False, True), (BASIC_ACK, 2, False)):
        client.method(BASIC_GET, "q", False)
        client.method(*answer)
    queue = core.node.state.topology.registry.find_queue("/", "q")
    assert queue is not None
    same = {"queue": "q", "vhost": "/", "queue_id": queue.id, "id": queue.newest_id, "priority": 3}
    first = same | {"redelivered": False, "logged": True}
    assert told.rows() == [first, same, first | {"redelivered": True}]


def test_nobody_who_listens_costs_nothing() -> None:
    """At detail "roles" a channel keeps no offsets, and the core has no listener to call."""
    core = Core()
    client = core.client()
    core.queue(client, "q")
    client.send(encode_method(1, CONFIRM_SELECT, False), publish("q", b"1"))
    broker = core.broker
    hooks = broker.hooks
    assert (hooks.on_delivered, hooks.on_requeued, hooks.on_confirmed, hooks.on_told) == ([], [], [], [])
    assert client.connection.channels[1].publishing._unconfirmed is None
