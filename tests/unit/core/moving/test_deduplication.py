"""Publisher deduplication: a message whose id came before is confirmed and dropped."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.core.core_kit import FRAME_MAX, Core
from tests.unit.core.life.recovery_kit import KeptCore, recovered
from tests.unit.core.moving.speaker import Speaker
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.field_table import encode_table
from understudy.broker.amqp.methods import (
    BASIC_CONSUME,
    BASIC_PUBLISH,
    CHANNEL_CLOSE,
    CONFIRM_SELECT,
    DTX_COMMIT,
    DTX_END,
    DTX_PREPARE,
    DTX_ROLLBACK,
    DTX_SELECT,
    DTX_START,
    EXCHANGE_DECLARE,
    EXCHANGE_DELETE,
    QUEUE_BIND,
    QUEUE_DECLARE,
    QUEUE_DELETE,
    TX_COMMIT,
    TX_ROLLBACK,
    TX_SELECT,
    encode_method,
)
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.core.life.meta import Meta
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.core.limits import Limits
from understudy.broker.core.queues.deduplication import MAX_SIZE, DeduplicationRule
from understudy.broker.core.queues.id_window import IdWindow
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.state import BrokerState
from understudy.broker.log import record
from understudy.replicator.receiving.refill import Refill

ONCE = {"x-message-deduplication": True}
WALL_MS = 1_700_000_000_000
XID = (1, b"global", b"branch")


class Publisher(Speaker):
    """A client in confirm mode on channel 1; channel 2 is plain."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self.call(CONFIRM_SELECT, False)

    def put(
        self,
        message_id: Any,
        body: bytes = b"m",
        *,
        to: str = "q",
        exchange: str = "",
        channel: int = 1,
        header: str = "x-deduplication-header",
        **properties: Any,
    ) -> list[str]:
        """The answers when all is on the disk."""
        self.begin(message_id, body, to=to, exchange=exchange, channel=channel, header=header, **properties)
        self.core.sync()
        return self.client.heard()

    def begin(self, message_id: Any, body: bytes = b"m", **how: Any) -> None:
        header = how.pop("header", "x-deduplication-header")
        headers = {header: message_id} if message_id is not None else {}
        to, exchange, channel = how.pop("to", "q"), how.pop("exchange", ""), how.pop("channel", 1)
        raw = encode_properties({"delivery_mode": 2, "headers": headers, **how})
        self.client.send(publish_frames(channel, exchange, to, raw, body, FRAME_MAX))

    def exchange(self, name: str, arguments: dict[str, Any], kind: str = "direct") -> list[str]:
        return self.call(EXCHANGE_DECLARE, name, kind, False, True, False, False, False, arguments, channel=2)

    def bodies(self, name: str = "q") -> list[bytes]:
        return [bytes(entry.message.content()) for entry in self.queue(name).entries.values()]

    def queue(self, name: str = "q") -> Queue:
        return self.core.broker.state.topology.registry.vhost("/").queues[name]


@pytest.fixture
def publisher() -> Publisher:
    publisher = Publisher(Core())
    publisher.declare("q", ONCE)
    return publisher


def test_a_duplicate_is_confirmed_and_dropped(publisher: Publisher) -> None:
    assert publisher.put("a", b"1") == ["basic.ack"]
    assert publisher.put("a", b"2") == ["basic.ack"]
    assert publisher.put("b", b"3") == ["basic.ack"]
    assert publisher.put(None, b"4") == publisher.put(None, b"5") == ["basic.ack"]
    assert publisher.bodies() == [b"1", b"3", b"4", b"5"]
    assert publisher.core.broker.counters.totals["deduplicated"] == 1


def test_a_message_that_was_taken_is_remembered(publisher: Publisher) -> None:
    publisher.put("a", b"1")
    assert publisher.get("q") is not None
    assert publisher.put("a", b"2") == ["basic.ack"]
    assert publisher.bodies() == []


def test_a_duplicate_waits_for_the_first_to_be_stable(publisher: Publisher) -> None:
    publisher.begin("a", b"1")
    publisher.begin("a", b"2")
    assert publisher.client.heard() == []
    publisher.core.sync()
    assert publisher.client.heard() == ["basic.ack"]
    assert publisher.bodies() == [b"1"]


def test_a_queue_without_the_argument_takes_all(publisher: Publisher) -> None:
    for arguments in ({}, {"x-message-deduplication": False}):
        name = f"plain{len(arguments)}"
        publisher.declare(name, arguments)
        assert publisher.put("a", to=name) == publisher.put("a", to=name) == ["basic.ack"]
        assert len(publisher.bodies(name)) == 2


@pytest.mark.parametrize("exclusive", [False, True])
def test_queues_outside_the_log_drop_duplicates_too(exclusive: bool) -> None:
    publisher = Publisher(Core())
    publisher.declare("q", {**ONCE, "x-ha-replicate": "configuration"} if not exclusive else ONCE, exclusive=exclusive)
    for body in (b"1", b"2"):
        assert publisher.put("a", body) == ["basic.ack"]
    publisher.begin("b", b"3")
    publisher.begin("b", b"4")
    publisher.core.sync()
    assert publisher.bodies() == [b"1", b"3"]


def test_each_queue_remembers_its_own(publisher: Publisher) -> None:
    publisher.exchange("x", {}, "fanout")
    publisher.declare("other")
    for name in ("q", "other"):
        publisher.call(QUEUE_BIND, name, "x", "", False, {}, channel=2)
    publisher.put("a", b"1", to="", exchange="x")
    publisher.put("a", b"2", to="", exchange="x")
    assert (publisher.bodies("q"), publisher.bodies("other")) == ([b"1"], [b"1", b"2"])


def test_an_exchange_drops_duplicates_whatever_their_key() -> None:
    publisher = Publisher(Core())
    assert publisher.exchange("x", ONCE) == ["exchange.declare-ok"]
    for name in ("q", "other"):
        publisher.declare(name)
        publisher.call(QUEUE_BIND, name, "x", name, False, {}, channel=2)
    assert publisher.put("a", b"1", exchange="x") == ["basic.ack"]
    assert publisher.put("a", b"2", exchange="x", to="other") == ["basic.ack"]
    assert publisher.put("nowhere", exchange="x", to="none") == ["basic.ack"]
    assert publisher.put("nowhere", b"3", exchange="x") == ["basic.ack"]  # it has come nowhere
    assert publisher.put("a", b"4") == ["basic.ack"]  # through another exchange
    assert (publisher.bodies("q"), publisher.bodies("other")) == ([b"1", b"3", b"4"], [])


def test_a_full_queue_leaves_a_publish_through_such_an_exchange_to_be_repeated() -> None:
    publisher = Publisher(Core())
    publisher.exchange("x", ONCE, "fanout")
    publisher.declare("full", {"x-max-length": 0, "x-overflow": "reject-publish"})
    publisher.declare("q", {"x-max-length": 1, "x-overflow": "reject-publish", **ONCE})
    for name in ("q", "full"):
        publisher.call(QUEUE_BIND, name, "x", "", False, {}, channel=2)
    assert publisher.put("a", b"1", exchange="x") == ["basic.nack"]
    assert publisher.bodies("q") == []
    assert publisher.put("a", b"1") == ["basic.ack"]
    assert publisher.put("a", b"2") == ["basic.ack"]  # the queue is full, and has that message
    assert publisher.put("b", b"3") == ["basic.nack"]
    publisher.get("q")
    assert publisher.put("b", b"3") == ["basic.ack"]
    assert publisher.bodies("q") == [b"3"]


def test_a_queue_that_immediate_leaves_out_takes_that_id_later(publisher: Publisher) -> None:
    """A message that is to go to consumers alone does not come to a queue without one."""
    publisher.exchange("x", {}, "fanout")
    publisher.declare("taken", ONCE)
    for name in ("q", "taken"):
        publisher.call(QUEUE_BIND, name, "x", "", False, {}, channel=2)
    publisher.call(BASIC_CONSUME, "taken", "c", False, True, False, False, {}, channel=2)
    raw = encode_properties({"delivery_mode": 2, "headers": {"x-deduplication-header": "a"}})
    rest = split(publish_frames(1, "x", "", raw, b"1", FRAME_MAX))[1:]
    publisher.client.send(encode_method(1, BASIC_PUBLISH, "x", "", False, True), *rest)
    publisher.begin("a", b"2")
    publisher.core.sync()
    assert (publisher.bodies(), publisher.bodies("taken")) == ([b"2"], [b"1"])
    assert window(publisher).coming == window(publisher, "taken").coming == {}


def split(frames: bytes) -> list[bytes]:
    """Each frame by itself."""
    found = []
    while frames:
        end = 8 + int.from_bytes(frames[3:7], "big")
        found.append(frames[:end])
        frames = frames[end:]
    return found


def test_an_exchange_keeps_no_id_of_queues_outside_the_log() -> None:
    publisher = Publisher(Core())
    publisher.exchange("x", ONCE, "fanout")
    publisher.declare("own", exclusive=True)
    publisher.declare("q")
    publisher.call(QUEUE_BIND, "own", "x", "", False, {}, channel=2)
    publisher.begin(None)  # the log has something to apply
    publisher.begin("a", b"1", exchange="x")
    publisher.begin("a", b"2", exchange="x")
    publisher.core.sync()
    found = publisher.core.broker.state.id_windows.exchanges["/", "x"]
    assert (found.noted, found.coming) == ({}, {})
    assert publisher.bodies("own") == [b"1", b"2"]


def test_the_number_of_ids_is_bounded() -> None:
    publisher = Publisher(Core())
    publisher.declare("q", {**ONCE, "x-cache-size": 2})
    for message_id in ("a", "b", "c"):
        publisher.put(message_id, message_id.encode())
    publisher.put("b", b"-")
    publisher.put("a", b"a again")
    assert publisher.bodies() == [b"a", b"b", b"c", b"a again"]
    assert list(window(publisher).noted) == [b"tc", b"ta"]


def window(publisher: Publisher, name: str = "q") -> IdWindow:
    found = publisher.queue(name).window
    assert found is not None
    return found


def test_an_id_is_remembered_for_its_time() -> None:
    publisher = Publisher(Core())
    publisher.declare("q", {**ONCE, "x-cache-ttl": 10_000})
    publisher.put("a", b"1")
    publisher.pass_ms(9_900)
    publisher.put("a", b"2")
    assert publisher.bodies() == [b"1"]
    publisher.pass_ms(1_200)
    publisher.put("a", b"3")
    publisher.put("a", b"4")
    assert publisher.bodies() == [b"1", b"3"]


def test_the_time_is_stated_when_it_is_needed(publisher: Publisher) -> None:
    def times() -> int:
        return sum(kind == record.ID_TIME for kind in kinds(publisher.core))

    publisher.put("a")
    assert times() == 0
    publisher.declare("timed", {**ONCE, "x-cache-ttl": 10_000})
    for number in range(20):
        publisher.put(number, to="timed")
        publisher.put(number, to="timed")
        publisher.core.pass_ms(100)
    assert times() == 2


def kinds(core: Core) -> list[int]:
    log = core.node.state.log
    found = []
    for batch in log.kept.since(log.kept.cursor(0)):
        found += [kind & 0x7F for kind, _, _ in record.records_of(batch.frame, 40)] if batch.frame else []
    return found


@pytest.mark.parametrize(("one", "other", "same"), [("5", b"5", True), (5, 5, True), ("5", 5, False), (-1, 1, False)])
def test_text_and_numbers_are_ids(publisher: Publisher, one: Any, other: Any, same: bool) -> None:
    publisher.put(one)
    publisher.put(other)
    assert len(publisher.bodies()) == 2 - same


@pytest.mark.parametrize("value", ["", "x" * 256, True, 1.5, ["a"], {"a": 1}], ids=repr)
@pytest.mark.parametrize("in_transaction", [False, True])
def test_what_is_no_id_is_refused(publisher: Publisher, value: Any, in_transaction: bool) -> None:
    if in_transaction:
        publisher.call(TX_SELECT, channel=2)
    publisher.begin(value, channel=2)
    publisher.core.sync()
    [event] = publisher.client.events()
    assert event[1] == CHANNEL_CLOSE
    assert event[2][0] == 406
    assert "invalid header 'x-deduplication-header' of a message to queue 'q' in vhost '/'" in event[2][1]
    assert publisher.bodies() == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"x-message-deduplication": "true"},
            "invalid arg 'x-message-deduplication'.*'true' is neither true nor false",
        ),
        ({"x-message-deduplication": 1}, "1 is neither true nor false"),
        ({**ONCE, "x-cache-size": 0}, "invalid arg 'x-cache-size'.*0 is not a number of message ids from 1 to 65536"),
        ({**ONCE, "x-cache-size": MAX_SIZE + 1}, "65537 is not a number of message ids"),
        ({**ONCE, "x-cache-ttl": 0}, "invalid arg 'x-cache-ttl'.*0 is not a number of milliseconds"),
        ({**ONCE, "x-cache-ttl": -5}, "-5 is not a number"),
        ({**ONCE, "x-deduplication-header": ""}, "'' is no name of a header"),
        ({**ONCE, "x-deduplication-header": 5}, "5 is not a name"),
        ({"x-cache-size": 5}, "invalid arg 'x-cache-size'.*'x-message-deduplication' is not true, to which 5 belongs"),
        ({"x-cache-ttl": 5, "x-message-deduplication": False}, "invalid arg 'x-cache-ttl'"),
        ({"x-deduplication-header": "id"}, "invalid arg 'x-deduplication-header'"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("kind", ["queue", "exchange"])
def test_arguments_that_will_not_do_are_named(arguments: dict[str, Any], said: str, kind: str) -> None:
    publisher = Publisher(Core())
    if kind == "queue":
        publisher.client.method(QUEUE_DECLARE, "q", False, True, False, False, False, arguments)
    else:
        publisher.client.method(EXCHANGE_DECLARE, "x", "direct", False, True, False, False, False, arguments)
    publisher.core.sync()
    [event] = publisher.client.events()
    assert (event[1], event[2][0]) == (CHANNEL_CLOSE, 406)
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(event[2][1])
    assert f"{kind} '" in event[2][1]


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        (ONCE, ONCE, True),
        (ONCE, {}, False),
        ({}, ONCE, False),
        (ONCE, {"x-message-deduplication": False}, False),
        ({**ONCE, "x-cache-size": 5}, {**ONCE, "x-cache-size": 5}, True),
        ({**ONCE, "x-cache-size": 5}, {**ONCE, "x-cache-size": 6}, False),
        ({**ONCE, "x-cache-size": 5}, ONCE, False),
        ({**ONCE, "x-cache-ttl": 5}, {**ONCE, "x-cache-ttl": 6}, False),
        ({**ONCE, "x-deduplication-header": "id"}, {**ONCE, "x-deduplication-header": b"id"}, True),
        ({**ONCE, "x-deduplication-header": "id"}, {**ONCE, "x-deduplication-header": "ID"}, False),
    ],
    ids=repr,
)
@pytest.mark.parametrize("kind", ["queue", "exchange"])
def test_a_second_declaration(first: dict[str, Any], second: dict[str, Any], equal: bool, kind: str) -> None:
    publisher = Publisher(Core())
    heard = []
    for arguments in (first, second):
        if kind == "queue":
            heard += publisher.call(QUEUE_DECLARE, "q", False, True, False, False, False, arguments, channel=2)
        else:
            heard += publisher.exchange("x", arguments)
    assert heard == [f"{kind}.declare-ok", f"{kind}.declare-ok" if equal else "channel.close"]


def test_a_header_of_another_name() -> None:
    publisher = Publisher(Core())
    publisher.declare("q", {**ONCE, "x-deduplication-header": "id"})
    for body in (b"1", b"2"):
        publisher.put("a", body, header="id")
        publisher.put("a", body)
    assert publisher.bodies() == [b"1", b"1", b"2"]


# -- transactions -----------------------------------------------------------------------------------------------------


def test_an_id_counts_from_the_commit(publisher: Publisher) -> None:
    publisher.call(TX_SELECT, channel=2)
    publisher.put("a", b"1", channel=2)
    assert publisher.call(TX_ROLLBACK, channel=2) == ["tx.rollback-ok"]
    publisher.put("a", b"2", channel=2)
    publisher.put("a", b"3", channel=2)
    publisher.put("b", b"4", channel=2)
    assert publisher.call(TX_COMMIT, channel=2) == ["tx.commit-ok"]
    assert publisher.bodies() == [b"2", b"4"]
    publisher.put("b", b"5", channel=2)
    assert publisher.call(TX_COMMIT, channel=2) == ["tx.commit-ok"]
    assert publisher.put("a", b"6") == ["basic.ack"]
    assert publisher.bodies() == [b"2", b"4"]


def test_a_name_that_came_with_a_duplicate_alone_may_be_barred(publisher: Publisher) -> None:
    """Nothing in the log has that name: an asker is told that nothing comes of it, and the commit must not contradict that."""
    publisher.put("a", b"1")
    publisher.declare("answers")
    publisher.call(TX_SELECT, channel=2)
    named = encode_properties(
        {"delivery_mode": 2, "headers": {"x-deduplication-header": "a", "x-understudy-tx": "job"}}
    )
    publisher.client.send(publish_frames(2, "", "q", named, b"2", FRAME_MAX))
    asked = encode_properties(reply_to="answers")
    publisher.client.send(publish_frames(1, "understudy.tx", "", asked, b"outcome job", FRAME_MAX))
    for _ in range(2):
        publisher.core.sync()
    assert publisher.bodies("answers") == [b"rolled back"]
    state = publisher.core.node.state
    publisher.core.broker.batch.append_record(record.encode_outcomes_trimmed(state.log.applied, 0))
    publisher.core.sync()
    assert state.applying.outcomes.named("job") is None
    publisher.put("b", b"3", channel=2)
    assert publisher.call(TX_COMMIT, channel=2) == ["channel.close"]
    assert publisher.bodies() == [b"1"]


def test_an_open_transaction_gives_way_to_a_publish(publisher: Publisher) -> None:
    """Its client does the transaction again, and the id is known then."""
    publisher.declare("plain")
    publisher.call(TX_SELECT, channel=2)
    publisher.put("a", b"1", channel=2)
    publisher.put(None, b"p", to="plain", channel=2)
    assert publisher.put("a", b"2") == ["basic.ack"]
    publisher.client.method(TX_COMMIT, channel=2)
    publisher.core.sync()
    [event] = publisher.client.events()
    assert (event[1], event[2][0]) == (CHANNEL_CLOSE, 506)
    assert "a message with the id 'a' was published" in event[2][1]
    assert (publisher.bodies(), publisher.bodies("plain")) == ([b"2"], [])
    assert window(publisher).claims == {}


def test_of_two_transactions_one_commits(publisher: Publisher) -> None:
    other = Publisher(publisher.core)
    for one, body in ((publisher, b"1"), (other, b"2")):
        one.call(TX_SELECT, channel=2)
        one.put("a", body, channel=2)
    for one in (publisher, other):
        one.client.method(TX_COMMIT, channel=2)
    publisher.core.sync()
    assert (publisher.client.heard(), other.client.heard()) == (["tx.commit-ok"], ["channel.close"])
    assert publisher.bodies() == [b"1"]
    assert window(publisher).claims == {}


def test_a_publish_waits_for_a_commit_of_its_id(publisher: Publisher) -> None:
    other = Publisher(publisher.core)
    other.call(TX_SELECT, channel=2)
    other.put("a", b"1", channel=2)
    other.client.method(TX_COMMIT, channel=2)
    publisher.begin("a", b"2")
    publisher.begin("b", b"3")
    assert publisher.client.heard() == []
    publisher.core.sync()
    publisher.core.sync()
    assert other.client.heard() == ["tx.commit-ok"]
    assert publisher.client.heard()
    assert publisher.bodies() == [b"1", b"3"]
    assert publisher.client.connection.held_bytes == 0


def test_a_publish_that_has_waited_for_a_rollback_enters(publisher: Publisher) -> None:
    other = Publisher(publisher.core)
    other.call(TX_SELECT, channel=2)
    other.put("a", b"1", channel=2)
    other.client.method(TX_COMMIT, channel=2)
    publisher.begin("a", b"2")
    (tx,) = publisher.core.broker.state.transactions.values()
    publisher.core.broker.transactions.roll_back_closed(tx, "a backup refuses it")
    publisher.core.sync()
    publisher.core.sync()
    assert other.client.heard() == ["channel.close"]
    assert publisher.client.heard() == ["basic.ack"]
    assert publisher.bodies() == [b"2"]


def test_a_large_message_comes_once() -> None:
    publisher = Publisher(Core(Limits(parted_bytes=100, part_bytes=100)))
    publisher.declare("q", ONCE)
    publisher.begin("a", b"1" * 250)
    publisher.begin("a", b"2" * 250)
    publisher.begin("a", b"3")
    for _ in range(12):
        publisher.core.sync()
    assert publisher.client.heard()
    assert publisher.bodies() == [b"1" * 250]
    publisher.begin("a", b"4" * 250)
    publisher.core.sync()
    assert publisher.client.heard() == ["basic.ack"]
    assert window(publisher).claims == {}


def test_a_large_duplicate_in_a_transaction_leaves_nothing_in_the_log() -> None:
    """Its parts would be operations of the transaction that no event of the feed tells of."""
    publisher = Publisher(Core(Limits(parted_bytes=100, part_bytes=100)))
    publisher.declare("q", ONCE)
    publisher.call(TX_SELECT, channel=2)
    for body in (b"1" * 250, b"2" * 250):
        publisher.begin("a", body, channel=2)
        for _ in range(6):
            publisher.core.sync()
    publisher.begin("b", b"3" * 250, channel=2)
    for _ in range(6):
        publisher.core.sync()
    publisher.client.send(encode_method(2, TX_COMMIT))
    for _ in range(3):
        publisher.core.sync()
    assert publisher.client.heard() == ["tx.commit-ok"]
    assert publisher.bodies() == [b"1" * 250, b"3" * 250]
    assert kinds(publisher.core).count(record.TX_BODY_PART) == 2 * 3


# -- branches ---------------------------------------------------------------------------------------------------------


def prepared(publisher: Publisher) -> None:
    """A branch in doubt that holds a message with the id "a"."""
    publisher.call(DTX_SELECT, channel=2)
    publisher.call(DTX_START, *XID, False, False, channel=2)
    publisher.put("a", b"branch", channel=2)
    publisher.call(DTX_END, *XID, False, False, channel=2)
    publisher.call(DTX_PREPARE, *XID, channel=2)
    assert len(publisher.core.broker.state.prepared_branches()) == 1


@pytest.mark.parametrize("commits", [True, False])
def test_an_id_of_a_branch_in_doubt_is_taken(publisher: Publisher, commits: bool) -> None:
    prepared(publisher)
    assert publisher.put("a", b"1") == ["basic.nack"]
    if commits:
        publisher.call(DTX_COMMIT, *XID, False, channel=2)
    else:
        publisher.call(DTX_ROLLBACK, *XID, channel=2)
    assert publisher.put("a", b"2") == ["basic.ack"]
    assert publisher.bodies() == [b"branch" if commits else b"2"]


def test_a_transaction_does_not_commit_with_the_id_of_a_branch_in_doubt(publisher: Publisher) -> None:
    prepared(publisher)
    other = Publisher(publisher.core)
    other.call(TX_SELECT, channel=2)
    other.put("a", b"1", channel=2)
    assert other.call(TX_COMMIT, channel=2) == ["channel.close"]


# -- what other processes hold ----------------------------------------------------------------------------------------


def noted(state: BrokerState) -> dict[Any, Any]:
    found: dict[Any, Any] = {name: dict(each.noted) for name, each in state.id_windows.exchanges.items()}
    found |= {queue.name: dict(queue.window.noted) for queue in state.queues.values() if queue.window is not None}
    return {**found, "time": state.id_windows.time_ms}


def busy(core: Core) -> Publisher:
    """Ids came to a queue and through an exchange, in transactions and outside of them."""
    publisher = Publisher(core)
    publisher.declare("q", {**ONCE, "x-cache-size": 3, "x-cache-ttl": 60_000})
    publisher.exchange("x", ONCE)
    publisher.call(QUEUE_BIND, "q", "x", "q", False, {}, channel=2)
    for number in range(5):
        publisher.put(number, exchange="x" if number % 2 else "")
        publisher.core.pass_ms(1_500)
    publisher.call(TX_SELECT, channel=2)
    publisher.put("tx", exchange="x", channel=2)
    publisher.put("tx 2", exchange="x", channel=2)
    publisher.call(TX_COMMIT, channel=2)
    publisher.put(4)
    publisher.put("transient", delivery_mode=1)
    assert publisher.get("q") is not None
    publisher.core.sync()
    return publisher


def test_a_backup_notes_what_its_primary_notes() -> None:
    core = Core()
    busy(core)
    state = core.node.state
    backup = BrokerNode("b2", Limits(), bytes).state
    for batch in state.log.kept.since(state.log.kept.cursor(0)):
        backup.taking.receive_batch(batch.frame)
    backup.log.apply_up_to(state.log.applied)
    assert noted(backup) == noted(state)
    assert set(noted(state)["q"]) == {b"ttx", b"ttx 2", b"ttransient"}
    assert set(noted(state)["/", "x"]) == {b"n1", b"n3", b"ttx", b"ttx 2"}
    assert backup.record_format == record.MOVES_VERSION


def test_a_restart_forgets_transient_messages_alone() -> None:
    core = KeptCore()
    busy(core)
    before = noted(core.node.state)
    del before["q"][b"ttransient"]
    assert before["q"].keys() == {b"ttx", b"ttx 2"}
    after = recovered(core.journal.frames).state
    assert noted(after) == {
        **before,
        "q": {b"n4": (14, WALL_MS + 6_000, False), **before["q"]},
    }  # it has room for one more
    checkpoint = recovered([core.node.checkpoint()]).state
    assert noted(checkpoint) == before
    assert after.applying.deduplicates
    assert checkpoint.applying.deduplicates


def test_a_core_that_goes_on_remembers() -> None:
    core = Core()
    busy(core)
    after = BrokerNode("b1", Limits(), bytes)
    after.continue_from(core.node)
    assert noted(after.state) == noted(core.node.state)


def test_ids_that_came_behind_a_gap_are_noted() -> None:
    """Queue and exchange were declared in a segment that is gone; a checkpoint names them when messages have come."""
    core = KeptCore()
    first = core.node.checkpoint()
    publisher = busy(core)
    begun = len(core.journal.frames)
    second = core.node.checkpoint()
    publisher.put("late", exchange="x")
    publisher.put("later")
    publisher.put(None)  # its batch says that the others are stable
    frames = core.journal.frames[begun:]
    expected = noted(core.node.state)
    del expected["q"][b"ttransient"]
    found = noted(recovered([first, *frames, second]).state)
    assert found.keys() == expected.keys()
    assert found["q"] == expected["q"]
    assert found["/", "x"] == expected["/", "x"]
    assert not recovered([core.node.checkpoint()]).state.id_windows.exchanges.keys() - {("/", "x")}


@pytest.mark.parametrize("deletes", [True, False])
def test_a_checkpoint_brings_no_ids_to_an_exchange_that_was_declared_later(deletes: bool) -> None:
    """A recovery may have applied more than a checkpoint states that it meets: batches say how far the log was stable."""
    core = KeptCore()
    publisher = Publisher(core)
    publisher.declare("q")
    publisher.exchange("x", ONCE)
    publisher.call(QUEUE_BIND, "q", "x", "q", False, {}, channel=2)
    publisher.put("a", exchange="x")
    checkpoint = core.node.checkpoint()
    if deletes:
        publisher.call(EXCHANGE_DELETE, "x", False, False, channel=2)
        publisher.exchange("x", ONCE)
        publisher.call(QUEUE_BIND, "q", "x", "q", False, {}, channel=2)
    publisher.put("b", exchange="x")
    for _ in range(2):
        publisher.put(None)
    found = recovered([*core.journal.frames, checkpoint]).state
    assert noted(found) == noted(core.node.state)
    assert set(noted(found)["/", "x"]) == ({b"tb"} if deletes else {b"ta", b"tb"})


def test_a_refill_brings_ids_of_transient_messages() -> None:
    core = KeptCore()
    busy(core)
    state = core.node.state
    after = recovered(core.journal.frames).state
    epoch, applied = state.log.epoch, state.log.applied
    Refill(after).declare([], epoch, applied, Meta.of(state).message_ids)
    after.log.apply_up_to(after.log.end)
    assert noted(after) == noted(state)


def test_a_refill_does_not_change_when_older_messages_came() -> None:
    """The refill states what the primary has applied, and this broker has records before that to apply."""
    core = KeptCore()
    publisher = Publisher(core)
    publisher.declare("q", {**ONCE, "x-cache-ttl": 60_000})
    for message_id in ("a", "b"):
        publisher.put(message_id)
        core.pass_ms(5_000)
    state, backup = core.node.state, BrokerNode("b2", Limits(), bytes).state
    for batch in state.log.kept.since(state.log.kept.cursor(0)):
        backup.taking.receive_batch(batch.frame)
    backup.log.apply_up_to(1 + kinds(core).index(record.ID_TIME))
    backup.id_windows.merge(backup.queues, Meta.of(state).message_ids)
    backup.log.apply_up_to(state.log.applied)
    assert noted(backup) == noted(state)


def test_a_meta_without_ids_is_of_an_older_format() -> None:
    core = Core()
    assert Meta.of(core.node.state).encode()[0] == 1
    busy(core)
    encoded = Meta.of(core.node.state).encode()
    assert encoded[0] == 3
    decoded, end = Meta.decode(encoded)
    assert (decoded.message_ids, end) == (Meta.of(core.node.state).message_ids, len(encoded))


def test_a_refill_keeps_its_ids_from_an_older_epoch() -> None:
    """Transient messages that came since the group began anew: the EPOCH that ended the others may come after the refill."""
    backup = BrokerNode("b2", Limits(), bytes).state
    backup.taking.append_record(record.encode_queue_declare(1 << 32 | 1, "/", "q", record.DURABLE, encode_table(ONCE)))
    backup.log.apply_up_to(1)
    found = backup.queues[1 << 32 | 1].window
    assert found is not None
    found.merge([(b"told", (9, 0, True)), (b"ended", (1, 0, True)), (b"kept", (1, 0, False))])
    backup.taking.append_record(record.encode_epoch(2, "b1", True, WALL_MS))
    backup.log.apply_up_to(2)
    assert set(found.noted) == {b"told", b"kept"}


def test_a_meta_is_of_an_older_format_when_nothing_drops_duplicates_any_more() -> None:
    """A program that reads formats up to 4 may be told all that is here."""
    core = Core()
    publisher = Publisher(core)
    publisher.declare("q", {**ONCE, "x-cache-ttl": 5_000})
    publisher.put("a")
    publisher.call(QUEUE_DELETE, "q", False, False, False, channel=2)
    assert core.node.state.record_format < record.MOVES_VERSION
    assert Meta.of(core.node.state).encode()[0] == 1


def test_an_exchange_that_is_declared_anew_remembers_nothing(publisher: Publisher) -> None:
    publisher.exchange("x", ONCE)
    publisher.call(QUEUE_BIND, "q", "x", "q", False, {}, channel=2)
    publisher.put("a", b"1", exchange="x")
    publisher.call(EXCHANGE_DELETE, "x", False, False, channel=2)
    assert not publisher.core.broker.state.id_windows.exchanges
    publisher.declare("r")
    publisher.exchange("x", {**ONCE, "x-cache-size": 7})
    publisher.call(QUEUE_BIND, "r", "x", "q", False, {}, channel=2)
    publisher.put("a", b"2", exchange="x")
    publisher.put("a", b"3", exchange="x")
    assert publisher.bodies("r") == [b"2"]


def test_a_dead_letter_is_not_judged() -> None:
    publisher = Publisher(Core())
    publisher.declare("dead", ONCE)
    publisher.declare("q", {"x-max-length": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    publisher.put("a", b"1")
    publisher.put("a", b"2")
    publisher.core.sync()
    assert publisher.bodies("dead") == [b"1", b"2"]
    assert publisher.put("a", b"3", to="dead") == ["basic.ack"]
    assert publisher.bodies("dead") == [b"1", b"2", b"3"]


def test_merging_takes_the_newest_of_both() -> None:
    one, other = IdWindow(rule(3)), IdWindow(rule(3))
    for octets, offset in ((b"a", 1), (b"b", 2), (b"c", 5)):
        one.note(octets, (offset, 0, False))
    for octets, offset in ((b"b", 2), (b"a", 3), (b"d", 4)):
        other.note(octets, (offset, 0, True))
    one.merge(other.noted.items())
    assert list(one.noted) == [b"a", b"d", b"c"]
    one.drop_transients(5)
    assert list(one.noted) == [b"c"]


def rule(size: int) -> DeduplicationRule:
    return DeduplicationRule("id", size, None)


def test_a_journal_keeps_what_a_commit_behind_the_checkpoint_brought() -> None:
    """The transaction began before the checkpoint and its message is gone: its id stands in no other record."""
    core = KeptCore()
    publisher = Publisher(core)
    publisher.declare("q", ONCE)
    publisher.call(TX_SELECT, channel=2)
    publisher.put("a", channel=2)
    state = core.node.state
    (tx,) = state.transactions.values()
    checkpoint = state.log.applied
    core.node.checkpoint()
    publisher.call(TX_COMMIT, channel=2)
    publisher.put("b")
    while publisher.get("q") is not None:
        pass
    core.sync()
    assert state.oldest_live_offset() > tx.prepare_offset
    assert core.node.droppable_before(checkpoint) < tx.first_offset
    assert core.node.droppable_before(tx.prepare_offset) == tx.prepare_offset
