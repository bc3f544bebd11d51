"""LogSender: how much of the log is on its way to one backup, and which stable position it is told."""

from __future__ import annotations

import random

import pytest

from understudy.broker.log import frame, record
from understudy.broker.log.kept_log import Batch
from understudy.broker.log.log import Log
from understudy.broker.message import Message
from understudy.replicator import wire
from understudy.replicator.sending.log_sender import LogSender

QUEUE = 1 << 40 | 1
KEPT_BYTES = 1 << 20
BATCH_FRAME_AT = 9
WIDE = 1 << 20
"""A credit that no test here comes near."""


def primary_log(kept_bytes: int = KEPT_BYTES) -> Log:
    log = Log(kept_bytes)
    log.begin_epoch(1)
    return log


def write(log: Log, *sizes: int) -> list[Batch]:
    """One batch for each size, with one message of so many bytes."""
    batches = []
    for size in sizes:
        message = Message("", "q", b"\x00\x00", bytes(size), True)
        log.append(
            record.encode_enqueue([(QUEUE, log.end + 1, 0)], message, False), message.properties + message.content()
        )
        batch = log.close_batch()
        assert batch is not None
        batches.append(batch)
    return batches


def stable_up_to(log: Log, offset: int) -> None:
    log.note_durable(offset)
    log.apply_up_to(offset)


def told(messages: list[bytes]) -> list[tuple[int, int]]:
    """(last offset of the batch, or 0 for STABLE alone; the stable position told) of each message."""
    found = []
    for message in messages:
        stable = wire.decode_number(message)
        if message[0] == wire.BATCH:
            header = frame.decode_batch_header(message, BATCH_FRAME_AT)
            found.append((header.last_offset, stable))
        else:
            assert message[0] == wire.STABLE
            found.append((0, stable))
    return found


def lasts(messages: list[bytes]) -> list[int]:
    return [last for last, _ in told(messages) if last]


# -- credit -----------------------------------------------------------------------------------------------------------


def test_it_stops_when_its_credit_is_spent_and_goes_on_as_it_is_acknowledged() -> None:
    log = primary_log()
    size = len(write(log, *[100] * 10)[0].frame)
    sender = LogSender(log, 0, 3 * size - 1)
    assert lasts(sender.messages(False)) == [1, 2, 3], "the third is begun, since a byte is left"
    assert (sender.sent, sender.at_end) == (3, False)
    assert lasts(sender.messages(True)) == []
    sender.acknowledged(1)
    assert lasts(sender.messages(False)) == [4]
    sender.acknowledged(1)
    sender.acknowledged(0)
    assert lasts(sender.messages(False)) == [], "what is acknowledged again gives nothing"
    sender.acknowledged(4)
    assert lasts(sender.messages(False)) == [5, 6, 7]
    sender.acknowledged(7)
    assert lasts(sender.messages(False)) == [8, 9, 10]
    assert (sender.sent, sender.at_end) == (10, True)
    assert lasts(sender.messages(False)) == []
    write(log, 100)
    assert not sender.at_end
    assert lasts(sender.messages(False)) == []
    sender.acknowledged(10)
    assert lasts(sender.messages(False)) == [11]


def test_a_batch_counts_until_its_last_record_is_acknowledged() -> None:
    log = primary_log()
    for _ in range(3):
        log.append(record.BARRIER_RECORD)
    batch = log.close_batch()
    assert batch is not None
    write(log, 10)
    sender = LogSender(log, 0, len(batch.frame))
    assert lasts(sender.messages(False)) == [3]
    sender.acknowledged(2)
    assert lasts(sender.messages(False)) == []
    sender.acknowledged(3)
    assert lasts(sender.messages(False)) == [4]


def test_a_batch_larger_than_the_credit_is_sent_alone() -> None:
    log = primary_log()
    write(log, 10_000, 10, 10)
    sender = LogSender(log, 0, 100)
    assert lasts(sender.messages(False)) == [1]
    sender.acknowledged(1)
    assert lasts(sender.messages(False)) == [2, 3]


@pytest.mark.parametrize("seed", range(5))
def test_never_more_than_its_credit_and_one_batch_is_unacknowledged(seed: int) -> None:
    chance = random.Random(seed)
    log = primary_log()
    credit = 2_000
    sender = LogSender(log, 0, credit)
    sizes: dict[int, int] = {}
    flying: list[int] = []
    arrived: list[int] = []
    spent = 0
    for _ in range(400):
        for batch in write(log, *[chance.randrange(600) for _ in range(chance.randrange(4))]):
            sizes[batch.last] = len(batch.frame)
        for last in lasts(sender.messages(chance.random() < 0.5)):
            assert sum(sizes[each] for each in flying) < credit
            flying.append(last)
        spent += not sender.at_end
        if flying and chance.random() < 0.5:
            count = chance.randint(1, len(flying))
            arrived += flying[:count]
            sender.acknowledged(flying[count - 1])
            flying = flying[count:]
    assert spent > 50, "else nothing is shown"
    while flying:
        arrived += flying
        sender.acknowledged(flying[-1])
        flying = lasts(sender.messages(False))
    assert arrived == sorted(sizes), "every batch, once, in order"


# -- the stable position ----------------------------------------------------------------------------------------------


def test_only_with_the_newest_batch_a_new_stable_position_is_told() -> None:
    """An older batch may precede the ROLLBACK on which that position rests."""
    log = primary_log()
    size = len(write(log, *[100] * 5)[0].frame)
    stable_up_to(log, 4)
    sender = LogSender(log, 0, 2 * size)
    assert told(sender.messages(True)) == [(1, 0), (2, 0)]
    sender.acknowledged(2)
    assert told(sender.messages(True)) == [(3, 0), (4, 0)], "and none alone before everything is sent"
    sender.acknowledged(4)
    assert told(sender.messages(False)) == [(5, 4)]
    write(log, 100, 100)
    stable_up_to(log, 6)
    sender.acknowledged(5)
    assert told(sender.messages(False)) == [(6, 4), (7, 6)], "what was told before may be told again"


def test_a_stable_position_is_told_alone_once_and_only_when_that_is_wanted() -> None:
    log = primary_log()
    write(log, 100)
    sender = LogSender(log, 0, WIDE)
    assert told(sender.messages(False)) == [(1, 0)]
    assert told(sender.messages(True)) == []
    stable_up_to(log, 1)
    assert told(sender.messages(False)) == []
    assert sender.untold
    assert told(sender.messages(True)) == [(0, 1)]
    assert told(sender.messages(True)) == []


def test_nothing_is_told_alone_while_something_is_to_be_sent() -> None:
    log = primary_log()
    size = len(write(log, 100, 100)[0].frame)
    sender = LogSender(log, 0, size)
    sender.messages(True)
    stable_up_to(log, 1)
    assert not sender.untold
    assert told(sender.messages(True)) == []


def test_with_the_newest_batch_nothing_is_left_to_be_told_alone() -> None:
    log = primary_log()
    write(log, 100, 100)
    stable_up_to(log, 1)
    sender = LogSender(log, 1, WIDE)
    assert told(sender.messages(True)) == [(2, 1)]


# -- the kept log -----------------------------------------------------------------------------------------------------


def test_it_begins_where_the_backup_ends() -> None:
    log = primary_log()
    write(log, 10, 10, 10)
    assert lasts(LogSender(log, 1, WIDE).messages(False)) == [2, 3]
    assert lasts(LogSender(log, 3, WIDE).messages(False)) == []


def test_it_cannot_begin_before_what_is_kept() -> None:
    log = primary_log(kept_bytes=1)
    write(log, *[100] * 5)
    log.kept.trim(4)
    assert log.kept.first == 4
    with pytest.raises(IndexError, match="the kept log begins at 4, the backup ends at 2"):
        LogSender(log, 2, WIDE)
    assert lasts(LogSender(log, 3, WIDE).messages(False)) == [4, 5]


def test_it_cannot_go_on_when_what_it_has_to_send_is_not_kept_any_more() -> None:
    log = primary_log(kept_bytes=1)
    size = len(write(log, *[100] * 3)[0].frame)
    sender = LogSender(log, 0, size)
    assert lasts(sender.messages(False)) == [1]
    log.kept.trim(2)
    sender.acknowledged(1)
    assert lasts(sender.messages(False)) == [2], "what has been sent may go"
    sender.acknowledged(2)
    log.kept.trim(4)
    with pytest.raises(IndexError, match="has left the kept log"):
        sender.messages(True)


def test_the_octets_that_a_backup_lacks() -> None:
    log = primary_log(kept_bytes=4_000)
    sizes = [len(batch.frame) for batch in write(log, 1_000, 1_000, 1_000)]
    sender = LogSender(log, after=log.kept.first or 0, credit_bytes=1)
    assert sender.lag_bytes == sum(sizes[1:])
    sender.messages(tell_stable=False)
    assert sender.lag_bytes == sum(sizes[1:]), "sent is not held"
    sender.acknowledged(2)
    assert sender.lag_bytes == sizes[2]
    write(log, 1_000, 1_000)
    stable_up_to(log, 3)
    log.kept.trim(log.applied)
    assert log.kept.first == 3, "what is dropped from memory changes nothing"
    assert sender.lag_bytes == sizes[2] * 3
    while sender.sent < log.closed_end:
        sender.messages(tell_stable=False)
        sender.acknowledged(sender.sent)
    assert sender.lag_bytes == 0
