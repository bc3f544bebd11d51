"""Bodies are read back from notes, and from a log that a CUT to 0 has ended."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.unit.log.journal_kit import new_journal, open_journal
from tests.unit.log.test_body_read import append, body_of, read
from understudy.broker.log import frame as frames
from understudy.broker.log import journal_gate, record
from understudy.broker.log.again_note import AgainNote, AgainTarget
from understudy.broker.log.body_place import (
    NOWHERE,
    EndedPlace,
    NotePlace,
    before_restart,
    frame_place,
    in_note,
    place_of,
    segment_and_position,
)
from understudy.broker.log.body_read import WantedBody
from understudy.broker.log.journal import BodyNotKeptError, Journal
from understudy.broker.log.segment import JournalDamagedError, segment_name
from understudy.broker.message import Message
from understudy.testing.disk import MemoryStorage


class Places:
    """A visitor of a recovery that keeps the places of notes."""

    def __init__(self) -> None:
        self.places: list[int] = []
        self.again: list[int] = []

    def on_batch(self, header: frames.BatchHeader, frame: bytes) -> None: ...

    def on_note(self, kind: int, payload: bytes, place: int = 0) -> None:
        if kind in (journal_gate.AGAIN, frames.KIND_CUT):
            self.places.append(place)
        if kind == journal_gate.AGAIN:
            self.again += [message.place for message, _ in AgainNote.decode(payload, place).messages]


def again(number: int, offsets: Iterable[int]) -> AgainNote:
    messages = [
        (
            Message("e", f"key {offset}", b"\0\0", body_of(offset), True),
            [AgainTarget(1, offset, 0), AgainTarget(2, offset, 0)],
        )
        for offset in offsets
    ]
    return AgainNote(number, 9, 9, 9, messages)


def write(journal: Journal, note: AgainNote) -> list[int]:
    """Append ``note``; returns the places of its messages."""
    return note.places(journal.append(frames.encode_note(journal_gate.AGAIN, note.encode())))


def wanted(places: list[int], offsets: Iterable[int]) -> list[WantedBody]:
    return [WantedBody(9, len(body_of(offset)), place) for place, offset in zip(places, offsets, strict=True)]


def bodies(journal: Journal, asked: list[WantedBody]) -> list[bytes]:
    job = journal.begin_read(asked)
    try:
        job.run()
    finally:
        journal.finish_read(job)
    return [job.bodies[each.place or each.offset] for each in asked]


def ended(journal: Journal, offsets: Iterable[int], cut: int) -> dict[int, bytes]:
    """Bodies of the log that the CUT at ``cut`` has ended, by offset."""
    offsets = list(offsets)
    asked = [WantedBody(0, len(body_of(offset)), before_restart(cut, offset)) for offset in offsets]
    return dict(zip(offsets, bodies(journal, asked), strict=True))


def test_places_are_told_apart() -> None:
    frame = frame_place(70_000, (1 << 40) - 1)
    assert segment_and_position(frame) == (70_000, (1 << 40) - 1)
    assert place_of(in_note(frame, 1 << 31, (1 << 32) - 1)) == NotePlace(70_000, (1 << 40) - 1, 1 << 31, (1 << 32) - 1)
    assert place_of(before_restart(frame, (1 << 64) - 1)) == EndedPlace(frame, (1 << 64) - 1)
    assert in_note(0, 5, 5) == before_restart(0, 5) == NOWHERE
    for no_place in (0, NOWHERE):
        with pytest.raises(AssertionError, match=f"{no_place} is no place"):
            place_of(no_place)


def test_bodies_of_notes_are_read_with_those_of_records() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    places: list[int] = []
    for number in range(12):
        append(journal, 3 * number + 1, 3 * number + 2, 3 * number + 3)
        places += write(journal, again(number, range(100 + 3 * number, 103 + 3 * number)))
    journal.sync_now()
    assert journal.statistics().segments > 2
    asked = [*wanted(places, range(100, 136)), WantedBody(4, len(body_of(4)))]
    expected = [*map(body_of, range(100, 136)), body_of(4)]
    assert bodies(journal, asked[::-1]) == expected[::-1]
    journal.close()
    visitor = Places()
    reopened = open_journal(storage, visitor=visitor)[1].journal
    assert visitor.again == places, "a recovery finds them at the same places"
    assert bodies(reopened, asked) == expected


def test_a_damaged_note_is_named() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    append(journal, 1)
    places = write(journal, again(1, (7, 8)))
    journal.sync_now()
    (other_size,) = wanted(places[:1], (9,))
    with pytest.raises(JournalDamagedError, match=r"has a body of \d+ octets, not \d+"):
        bodies(journal, [other_size])
    batch = WantedBody(1, 5, in_note(frame_place(1, journal._segments[0].index[0][1]), 60, 20))  # type: ignore[index]
    with pytest.raises(JournalDamagedError, match="no note with messages stands here"):
        bodies(journal, [batch])
    file = storage.open(segment_name(1))
    file.write([b"!"], file.read(0, 8192).index(body_of(8)))
    with pytest.raises(JournalDamagedError, match=r"0001\.journal is damaged at byte \d+: .*checksum"):
        bodies(journal, wanted(places, (7, 8)))


def test_a_log_that_has_ended_is_read_beside_the_one_that_came_to_its_offsets() -> None:
    """Epochs tell the bodies apart: 1, 2 and 3 are written by three logs with the same offsets, each in several segments."""
    storage = MemoryStorage()
    journal = new_journal(storage)
    cuts: list[int] = []
    for epoch in (1, 2, 3):
        for offset in range(1, 30):
            append(journal, offset, epoch=epoch, sync=offset % 7 == 0)
        if epoch == 1:
            journal.append(frames.encode_cut(25))  # an ordinary one, of the first log alone
            for offset in range(26, 30):
                append(journal, offset, epoch=4)
        journal.sync_now()
        if epoch < 3:
            cuts.append(journal.append(frames.encode_cut(0, journal_gate.RESTART + bytes(8))))
    visitor = Places()
    for opened in (journal, None):
        if opened is None:
            journal.close()
            opened = open_journal(storage, visitor=visitor)[1].journal  # noqa: PLW2901
        assert read(opened, *range(1, 30), epoch=3) == {offset: body_of(offset, 3) for offset in range(1, 30)}
        for number, cut in enumerate(cuts, 1):
            expected = {
                offset: body_of(offset, 4 if number == 1 and offset > 25 else number) for offset in range(1, 30)
            }
            sizes = {offset: len(body) for offset, body in expected.items()}
            asked = [WantedBody(0, sizes[offset], before_restart(cut, offset)) for offset in expected]
            assert bodies(opened, asked) == list(expected.values()), f"log {number}"
    assert [place for place in visitor.places if place in cuts] == cuts


def test_a_place_that_is_not_kept_is_an_error() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    for offset in range(1, 60):
        append(journal, offset)
    places = write(journal, again(1, (7,)))
    cut = journal.append(frames.encode_cut(0, journal_gate.RESTART + bytes(8)))
    for offset in range(100, 200):
        append(journal, offset)
    assert ended(journal, (1, 59), cut) == {1: body_of(1), 59: body_of(59)}
    with pytest.raises(BodyNotKeptError, match="the body at offset 7 of a log that has ended"):
        ended(journal, (7,), cut + 1)
    journal.drop_before(150)
    with pytest.raises(BodyNotKeptError, match="the body at offset 1 of a log that has ended"):
        ended(journal, (1,), cut)
    with pytest.raises(BodyNotKeptError, match=r"segment \d is not in the journal"):
        bodies(journal, wanted(places, (7,)))
    assert not journal._ended_logs, "nothing is kept for segments that are gone"


def test_encoded_again_messages_are_found_whatever_their_sizes() -> None:
    message = Message("x" * 200, "y" * 200, bytes(300), b"", True)
    note = AgainNote(1, 9, 9, 9, [(message, [AgainTarget(1, 1, 0)] * 3), *again(1, (4,)).messages])
    payload = note.encode()
    for place, (expected, _) in zip(note.places(frame_place(1, 0)), note.messages, strict=True):
        found = place_of(place)
        assert isinstance(found, NotePlace)
        at = found.at - frames.NOTE_HEADER_BYTES
        decoded, _ = record.decode_message(payload, at, at + found.size)
        assert (decoded.routing_key, decoded.content()) == (expected.routing_key, expected.content())
