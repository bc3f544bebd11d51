"""Large bodies in parts: what stands between them, what is held meanwhile, and what is not put into parts."""

from __future__ import annotations

import pytest

from tests.unit.core.core_kit import FRAME_MAX, Client, Core, publish
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import (
    BASIC_GET,
    CHANNEL_CLOSE,
    CONFIRM_SELECT,
    QUEUE_DELETE,
    TX_COMMIT,
    TX_ROLLBACK,
    TX_SELECT,
    encode_method,
)
from understudy.broker.core.limits import Limits
from understudy.broker.core.state import BrokerState
from understudy.broker.log import frame, record
from understudy.broker.message import Message

LIMITS = Limits(parted_bytes=100, part_bytes=10, parts_in_flight_bytes=20)
LARGE = bytes(range(100))
SYNCS = 5
"""Of the parts of that one; its message and PREPARE stand in the last of these batches, or right behind it."""
TX = 1 << 40


@pytest.fixture
def core() -> Core:
    return Core(LIMITS)


@pytest.fixture
def client(core: Core) -> Client:
    client = core.client()
    for queue in ("q", "other"):
        core.queue(client, queue)
    return client


def bodies(core: Core, name: str = "q") -> list[bytes]:
    queue = core.broker.state.topology.registry.vhost("/").queues[name]
    return [entry.message.content() for entry in queue.entries.values()]


def confirming(core: Core) -> Client:
    client = core.client()
    client.method(CONFIRM_SELECT, False)
    assert client.heard() == ["confirm.select-ok"]
    return client


def test_a_small_message_is_confirmed_before_the_large_one_that_came_first(core: Core, client: Client) -> None:
    large, small = confirming(core), confirming(core)
    large.publish("q", LARGE)
    small.publish("q", b"small")
    core.sync()
    assert small.heard() == ["basic.ack"]
    assert bodies(core) == [b"small"]
    for _ in range(SYNCS - 2):
        assert large.heard() == []
        core.sync()
    core.sync()
    assert large.heard() == ["basic.ack"]
    assert bodies(core) == [b"small", LARGE]
    assert not core.broker.state.transactions
    assert not core.broker.transactions.open_ids
    assert core.broker.unstable.held == large.connection.unstable_bytes == 0


def test_parts_that_are_not_stable_are_bounded(core: Core, client: Client) -> None:
    log = core.broker.log
    end = log.end
    for each in (client, core.client()):
        each.publish("q", LARGE)
    assert log.end == end + 2
    core.turn()
    assert log.end == end + 2


def test_one_channel_is_answered_in_order(core: Core, client: Client) -> None:
    """Messages published behind a large one come behind it, and a get behind both finds a message."""
    client.send(publish("q", LARGE), publish("q", b"second"))
    client.method(BASIC_GET, "q", False)
    assert client.heard() == []
    for _ in range(SYNCS + 1):
        core.sync()
    assert client.heard() == ["basic.get-ok"]
    assert bodies(core)[-1] == b"second"


def test_another_channel_of_the_connection_goes_on(core: Core) -> None:
    client = core.client(channels=2)
    core.queue(client, "q")
    client.publish("q", LARGE)
    client.publish("q", b"small", channel=2)
    core.sync()
    assert bodies(core) == [b"small"]


def test_a_connection_is_not_read_while_its_message_is_too_much() -> None:
    core = Core(Limits(parted_bytes=100, part_bytes=10, parts_in_flight_bytes=20, unstable_bytes_per_connection=300))
    client = core.client()
    core.queue(client, "q")
    client.publish("q", LARGE)
    assert client.paused()
    for _ in range(SYNCS + 1):
        core.sync()
    assert not client.paused()
    assert core.broker.unstable.held == 0


@pytest.mark.parametrize("syncs", [0, 2])
def test_a_message_goes_with_its_connection(core: Core, client: Client, syncs: int) -> None:
    """Its client connects again, and sends what comes next: a message that came later would come behind that."""
    client.publish("q", LARGE)
    for _ in range(syncs):
        core.sync()
    client.connection.lost("reset by the test")
    assert core.broker.unstable.held == client.connection.unstable_bytes == 0
    assert not core.broker.parted_bodies.waiting
    for _ in range(SYNCS):
        core.sync()
    state = core.broker.state
    assert bodies(core) == []
    assert not state.transactions
    assert not core.broker.transactions.open_ids
    assert state.oldest_live_offset() == state.log.end + 1


def test_a_close_waits_for_what_was_published(core: Core, client: Client) -> None:
    client.send(publish("q", LARGE), encode_method(1, CHANNEL_CLOSE, 0, "", 0, 0))
    for _ in range(SYNCS + 1):
        core.sync()
    assert client.heard() == ["channel.close-ok"]
    assert bodies(core) == [LARGE]


def test_a_queue_that_is_deleted_meanwhile(core: Core, client: Client) -> None:
    client.publish("q", LARGE)
    other = core.client()
    other.method(QUEUE_DELETE, "q", False, False, False)
    for _ in range(SYNCS + 1):
        core.sync()
    assert other.heard() == ["queue.delete-ok"]
    assert not core.broker.state.transactions


def test_in_a_transaction(core: Core, client: Client) -> None:
    client.method(TX_SELECT)
    client.send(publish("q", b"first"), publish("q", LARGE), publish("other", LARGE), publish("q", b"last"))
    client.method(TX_COMMIT)
    for _ in range(2 * SYNCS):
        assert client.heard() in ([], ["tx.select-ok"])
        core.sync()
    core.sync()
    assert client.heard() == ["tx.commit-ok"]
    assert bodies(core) == [b"first", LARGE, b"last"]
    assert bodies(core, "other") == [LARGE]


def test_a_transaction_that_ends_takes_its_parts_along(core: Core, client: Client) -> None:
    """Parts that a lost connection has left behind end with their transaction."""
    client.method(TX_SELECT)
    client.publish("q", LARGE)
    core.sync()
    assert core.broker.state.transactions
    client.connection.lost("reset by the test")
    for _ in range(SYNCS):
        core.sync()
    state = core.broker.state
    assert not state.transactions
    assert not core.broker.parted_bodies.waiting
    assert state.oldest_live_offset() == state.log.end + 1
    assert core.broker.unstable.held == 0
    assert bodies(core) == []


def test_a_rollback_comes_behind_the_last_part(core: Core, client: Client) -> None:
    client.method(TX_SELECT)
    client.publish("q", LARGE)
    client.method(TX_ROLLBACK)
    for _ in range(SYNCS + 2):
        core.sync()
    assert client.heard() == ["tx.select-ok", "tx.rollback-ok"]
    assert bodies(core) == []
    assert not core.broker.state.transactions


def test_what_is_not_put_into_parts(core: Core, client: Client) -> None:
    log = core.broker.log
    end = log.end
    client.send(publish_frames(1, "", "q", b"\0\0", LARGE, FRAME_MAX), publish("q", LARGE[:99]))
    core.queue(client, "mine", exclusive=True)
    client.publish("mine", LARGE)
    assert log.end == end + 2
    log.confine(record.PARTS_VERSION - 1)
    client.publish("q", LARGE)
    core.sync()
    assert log.end == end + 3
    assert bodies(core) == [LARGE, LARGE[:99], LARGE]


# -- a backup -----------------------------------------------------------------------------------------------------


class Backup:
    """A state that takes the records of one message in parts."""

    def __init__(self) -> None:
        self.state = BrokerState()
        self.end = 0

    def take(self, *raws: bytes) -> None:
        for raw in raws:
            self.end += 1
            self.state.taking.receive_batch(frame.encode_batch(1, self.end, 1, 0, [raw], 0))

    def held(self) -> list[bytes]:
        return [message.content() for message in self.state.transactions[TX].messages()]


def part(start: int, octets: bytes, number: int = 1) -> bytes:
    return record.encode_body_part(TX, number, start, len(octets), False) + octets


def whole(body: bytes, number: int = 1) -> bytes:
    message = Message("", "q", b"\0\0", body, persistent=True)
    head, tail = record.encode_tx_enqueue_parted(TX, [(7, number - 1, 0)], message, False, number, own=True)
    return head + message.properties + tail


def test_a_backup_gathers_a_body() -> None:
    backup = Backup()
    backup.take(part(0, b"ab"), part(0, b"12", 2), part(2, b"c"), whole(b"abc"), part(2, b"3", 2), whole(b"123", 2))
    tx = backup.state.transactions[TX]
    assert backup.held() == [b"abc", b"123"]
    assert [message.offset for message in tx.messages()] == [1, 2]
    assert tx.own
    assert tx.logged_events == 6
    assert backup.state.record_format == record.PARTS_VERSION


@pytest.mark.parametrize("cut_to", [1, 2, 3, 4])
def test_a_cut_takes_parts_back(cut_to: int) -> None:
    """Records after the cut continue the body from there, or are the same again."""
    records = [part(0, b"ab"), part(2, b"cd"), part(4, b"e"), whole(b"abcde")]
    backup = Backup()
    backup.take(*records)
    digest = backup.state.transactions[TX].digest
    backup.state.taking.cut(cut_to)
    backup.end = cut_to
    assert backup.state.transactions[TX].logged_events == cut_to
    backup.take(*records[cut_to:])
    assert backup.held() == [b"abcde"]
    assert backup.state.transactions[TX].digest == digest


def test_a_cut_before_the_first_part_leaves_nothing() -> None:
    backup = Backup()
    backup.take(record.encode_epoch(1, "b1", False, 0), part(0, b"ab"), part(2, b"cd"))
    backup.state.taking.cut(1)
    assert not backup.state.transactions


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_message_without_one_of_its_parts_is_not_there(lost: int) -> None:
    """The message is never shorter; and a backup that votes sees that something is missing."""
    records = [part(0, b"ab"), part(2, b"cd"), part(4, b"e"), whole(b"abcde")]
    del records[lost]
    backup = Backup()
    backup.take(*records)
    tx = backup.state.transactions[TX]
    assert tx.messages() == []
    assert tx.logged_events < 4


def test_an_epoch_ends_a_body_that_is_not_whole() -> None:
    backup = Backup()
    backup.take(part(0, b"ab"), record.encode_epoch(2, "b2", False, 0))
    state = backup.state
    assert state.oldest_live_offset() == 1
    state.log.apply_up_to(2)
    assert not state.transactions
    assert state.oldest_live_offset() == 3
