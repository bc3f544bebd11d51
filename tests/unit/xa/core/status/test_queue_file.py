"""The status in a queue: answers that are lost at any point, a second owner, and messages that are not its own."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from tests.unit.xa.core.status.model_queue import ModelLog, ModelQueue
from tests.unit.xa.records_kit import entry, life, states
from understudy.xa.core.errors import ConfigError, LogOwnedError, StatusFileError
from understudy.xa.core.profiles.log_address import LogAddress, checked_queue, log_address_of
from understudy.xa.core.register.entry import Begun, Decided, Entry, Record
from understudy.xa.core.status.journal_log import frame
from understudy.xa.core.status.queue_file import QueueFile
from understudy.xa.core.status.queue_log import GROUP, LogMessage, read_log


def kept(queue: ModelQueue) -> dict[str, Entry]:
    return read_log(queue.messages, "q", 0).entries


@pytest.mark.parametrize("rotate_octets", [10**9, 300])
@pytest.mark.parametrize("committed", [True, False])
def test_an_answer_that_is_lost_anywhere_loses_nothing_and_doubles_nothing(committed: bool, rotate_octets: int) -> None:
    records = [record for pair in zip(life(1), life(2), strict=True) for record in pair]
    wanted = states(records)
    for fault in range(1, len(records) + 3):
        queue = ModelQueue()
        log = ModelLog(queue, {fault: committed, fault + 2: not committed})
        file = QueueFile(log, 0, "me", rotate_octets=rotate_octets)
        assert file.open() == {}
        rotations = 0
        for number, record in enumerate(records):
            upto = file.append([copy.deepcopy(record)])
            if file.wants_rotation:
                file.rotate(list(wanted[number + 1].values()))
                rotations += 1
            file.sync()
            assert file.durable >= upto
            assert kept(queue) == wanted[number + 1]
        assert log.adds >= len(records) + 1
        assert bool(rotations) == (rotate_octets == 300)
        cut_off(queue)
        assert QueueFile(ModelLog(queue), 0, "next").open() == wanted[-1]


def owned() -> tuple[ModelQueue, QueueFile]:
    queue = ModelQueue()
    file = QueueFile(ModelLog(queue, name="first"), 0, "first")
    file.open()
    file.append([Begun(entry(1))])
    file.sync()
    return queue, file


def cut_off(queue: ModelQueue) -> None:
    """The owner's connection is gone."""
    queue.owner = None


def test_a_server_that_was_replaced_meanwhile_says_so_and_writes_nothing() -> None:
    queue, file = owned()
    queue.owner = None  # its connection is gone
    other = QueueFile(ModelLog(queue, name="second"), 0, "second")
    assert other.open() == {entry(1).gid: entry(1)}
    file.append([Decided(entry(1).gid)])
    with pytest.raises(LogOwnedError, match="in use"):
        file.sync()
    queue.owner = None  # the other one is gone as well, and has written nothing but its name
    with pytest.raises(LogOwnedError, match="another state server, second"):
        file.sync()
    with pytest.raises(LogOwnedError):
        file.tick()
    assert not kept(queue)[entry(1).gid].commit


def test_a_lost_connection_is_found_when_nothing_is_written() -> None:
    queue, file = owned()
    file.tick()
    cut_off(queue)
    file.tick()
    assert queue.owner == "first"
    file.append([])  # proves that this server is the owner
    file.sync()
    assert file.durable == file.sequence == 3


def test_a_log_that_has_lost_what_was_committed_is_not_gone_on_with() -> None:
    queue, file = owned()
    queue.owner, queue.messages = None, queue.messages[:1]
    with pytest.raises(StatusFileError, match="has lost frames 2 to 2"):
        file.tick()


def test_an_emptied_queue_is_refused() -> None:
    queue, _ = owned()
    queue.owner, queue.messages = None, []
    with pytest.raises(StatusFileError, match="is there and holds no image"):
        QueueFile(ModelLog(queue), 0, "next").open()


def group(sequence: int, *records: Record) -> LogMessage:
    return LogMessage(GROUP, frame(sequence, sequence - 1, records))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda messages: [*messages, LogMessage("", b"hello")], "message 3 is of type '', and not"),
        (lambda messages: [*messages, LogMessage(GROUP, b"")], "message 3 is damaged at octet 0 of 0"),
        (lambda messages: [*messages[:1], LogMessage(GROUP, messages[1].body[:-1])], "message 2 is damaged at octet 0"),
        (lambda messages: [*messages, messages[1]], "message 3: frame 2 follows frame 2: it is there twice"),
        (lambda messages: [*messages, group(4)], "message 3: frame 4 follows frame 2: one is missing"),
        (lambda messages: messages[1:], "none of its 1 messages holds an image"),
        (lambda messages: [*messages, group(3, Decided("x"))], "frame 3 speaks of transaction 'x', which is not there"),
    ],
)
def test_what_is_not_of_a_log_is_named_and_refused(
    change: Callable[[list[LogMessage]], list[LogMessage]], text: str
) -> None:
    queue, _ = owned()
    queue.messages, queue.owner = change(queue.messages), None
    before = list(queue.messages)
    with pytest.raises(StatusFileError, match=text):
        QueueFile(ModelLog(queue), 0, "next").open()
    assert queue.messages == before


def test_what_stands_before_the_last_image_does_not_count() -> None:
    """A rotation leaves behind what has not come back to the consumer yet."""
    queue, file = owned()
    old = queue.messages[1]
    file.rotate([])
    file.sync()
    queue.messages.insert(0, old)
    assert kept(queue) == {}


def test_an_address_names_all_brokers() -> None:
    assert log_address_of("amqp://u:p%40@h1:1,h2,[::1]:3/v%2F", "--url") == LogAddress(
        ("h1:1", "h2:5672", "[::1]:3"), "u", "p@", "v/"
    )
    assert log_address_of("amqp://h", "--url") == LogAddress(("h:5672",))
    assert log_address_of("amqps://h,h:1/v", "--url") == LogAddress(("h:5671", "h:1"), vhost="v", tls={})
    tls = log_address_of("amqps://u:p@h?cacertfile=/ca%20s&certfile=c&keyfile=k", "--url").tls
    assert tls == {"ca": "/ca s", "cert": "c", "key": "k"}


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("amqpss://h", "must be amqp://"),
        ("amqp://u:secret@h/?cacertfile=x", "parameter cacertfile=x cannot be used; known: none: they are of amqps"),
        ("amqps://u:secret@h/?verify=verify_none", "verify=verify_none cannot be used; known: cacertfile, certfile"),
        ("amqps://u:secret@h/?cacertfile", "there must be name=value"),
        ("amqps://u:secret@h/?keyfile=k", "certfile and keyfile belong together"),
        ("amqp://u:secret@h:0", "'h:0' is not host:port"),
        ("amqp://u:secret@", "'' is not host:port"),
        ("amqp://h,h:5672", "named twice"),
        ("amqp://secret@h", "there must be user:password"),
        ("amqp://u:secret@h/a/b", "must be amqp://"),
    ],
)
def test_an_address_of_another_form_is_refused_without_telling_the_password(url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as found:
        log_address_of(url, "--url")
    assert "secret" not in str(found.value)


@pytest.mark.parametrize("name", ["", "a b", "amq.x", "understudy.x", "x" * 201, "å"])
def test_names_of_queues(name: str) -> None:
    with pytest.raises(ConfigError, match="is not 1 to 200"):
        checked_queue(name, "--queue")
    assert checked_queue("xa.state", "--queue") == "xa.state"
