"""A clean stop: messages that were never handed out are told from those that were. The journal is a real one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.core.core_kit import Client
from tests.unit.core.disk_core import DiskCore
from tests.unit.core.queues.paging_kit import body, consume, filled, publish
from understudy.broker.amqp.methods import BASIC_ACK, BASIC_NACK
from understudy.broker.log.handed_out_note import HandedOutNote
from understudy.broker.log.journal_gate import NoteFormatError
from understudy.broker.log.position import ID_EPOCH_SHIFT


def stopped(core: DiskCore) -> DiskCore:
    """The next process, after one that turned its clients away and said what it had handed out."""
    core.sync()
    core.node.broker.close_clients("CONNECTION_FORCED", "stop")
    core.sync()
    core.node.note_handed_out()
    return core.restarted()


def handed_out(core: DiskCore) -> list[tuple[bytes, bool]]:
    """(body, redelivered) of each message of the queue, in the order in which a consumer gets them."""
    client = core.client()
    consume(core, client)
    core.fetched()
    return [(bytes(event[4]), bool(event[2][2])) for event in client.events() if len(event) == 5]


def acknowledge(core: DiskCore, client: Client, tag: int) -> None:
    core.fetched()
    client.method(BASIC_ACK, tag, True)
    core.sync()


def test_what_nobody_was_given_is_not_redelivered() -> None:
    core, client = filled(10)
    consume(core, client, prefetch=4)
    acknowledge(core, client, 2)  # two are acknowledged, four more are out
    assert handed_out(stopped(core)) == [(body(number), number < 6) for number in range(2, 10)]


def test_a_message_that_came_back_is_redelivered() -> None:
    core, client = filled(6)
    consume(core, client, prefetch=2)
    core.fetched()
    client.method(BASIC_NACK, 1, False, True)
    core.sync()
    assert handed_out(stopped(core)) == [(body(number), number < 2) for number in range(6)]


def test_a_queue_that_was_emptied_redelivers_nothing_that_comes_then() -> None:
    core, client = filled(3)
    consume(core, client)
    acknowledge(core, client, 3)
    again = stopped(core)
    publish(again.client(), "q", 7)
    assert handed_out(again) == [(body(7), False)]


def test_after_a_crash_everything_may_have_been_handed_out() -> None:
    core, _ = filled(3)
    assert handed_out(core.restarted()) == [(body(number), True) for number in range(3)]


def test_two_clean_stops_know_what_both_have_handed_out() -> None:
    core, client = filled(6)
    consume(core, client, prefetch=3)
    core.fetched()
    core = stopped(core)  # 0 to 2 were out
    client = core.client()
    consume(core, client, prefetch=1)
    acknowledge(core, client, 1)  # 0 has left, 1 is out again
    assert handed_out(stopped(core)) == [(body(number), number < 3) for number in range(1, 6)]


def test_a_crash_after_a_clean_stop_forgets_what_that_said() -> None:
    core, _ = filled(3)
    again = stopped(core)
    assert handed_out(again.restarted()) == [(body(number), True) for number in range(3)]


def test_with_priorities_everything_may_have_been_handed_out() -> None:
    core, _ = filled(3, None, {"x-max-priority": 3})
    assert handed_out(stopped(core)) == [(body(number), True) for number in range(3)]


@pytest.mark.parametrize(
    ("change", "counts"),
    [({}, True), ({"end": 1}, False), ({"epoch": 1}, False), ({"epoch": -1}, False)],
    ids=["the next epoch", "the log went on", "an epoch was left out", "an older epoch"],
)
def test_a_note_counts_for_the_next_epoch_of_the_same_log(change: dict[str, Any], counts: bool) -> None:
    core, _ = filled(1)
    state = core.node.state
    log = state.log
    note = HandedOutNote(log.epoch + change.get("epoch", 0), log.end + change.get("end", 0), {7: 9})
    state.take_handed_out(note)
    assert state.handed_out_before(log.epoch + 1) == ({7: 9} if counts else {})
    assert state.handed_out_before(log.epoch + 1) == {}, "it counts once"


def test_nothing_is_said_while_something_is_not_applied() -> None:
    core, client = filled(1)
    client.publish("q", b"not durable yet")
    appended = core.node.gate.appended
    core.node.note_handed_out()
    assert core.node.gate.appended == appended


def test_a_note_is_read_as_it_was_written_and_a_newer_one_is_refused() -> None:
    note = HandedOutNote(3, 1 << 40, {1: 2, 1 << ID_EPOCH_SHIFT: (1 << 64) - 1})
    assert HandedOutNote.decode(note.encode()) == note
    with pytest.raises(NoteFormatError, match="there is a note of what was handed out of format 2"):
        HandedOutNote.decode(b"\x02" + note.encode()[1:])
