"""The tail of a journal: it yields what a recovery shows, waits for what is being written, and says what is damaged or gone."""

from __future__ import annotations

from random import Random

import attrs
import pytest

from tests.unit.log.journal_kit import SMALL, fill, new_journal, note, open_journal
from tests.unit.log.test_journal_recovery import overwrite, write_group
from understudy.broker.log.journal_recovery import scan
from understudy.broker.log.journal_tail import JournalTail, Place, SegmentBegun, SegmentsGone
from understudy.broker.log.segment import (
    SEGMENT_FORMAT,
    JournalDamagedError,
    JournalFormatError,
    JournalIdentity,
    NoJournalError,
    WrongIdentityError,
    segment_name,
)
from understudy.testing.disk import MemoryFile, MemoryStorage

ONE = segment_name(1)


def frames_of(tail: JournalTail) -> list[bytes]:
    return [each for each in tail.frames() if isinstance(each, bytes)]


def recovered(storage: MemoryStorage) -> list[bytes]:
    return open_journal(storage.clone())[0].frames


def test_what_a_recovery_shows_over_many_segments_while_it_is_written() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    fill(journal, 1)
    tail = JournalTail(storage)
    seen = frames_of(tail)
    for first in range(2, 60):
        fill(journal, 1, first=first)
        if first % 3 == 0:
            journal.append(note("x"))
        if first % 7 == 0:
            seen += frames_of(tail)
    journal.close()
    seen += frames_of(tail)
    assert seen == recovered(storage)
    assert tail.segment is not None
    assert tail.segment.number > 5
    assert frames_of(tail) == []
    tail.find_damage()


@pytest.mark.parametrize("number", [1, 2])
def test_a_newest_segment_whose_header_is_damaged(number: int) -> None:
    """Frames in such a segment are not passed over in silence; a segment that was never written to is no damage."""
    storage = MemoryStorage()
    journal = new_journal(storage)
    first = 1
    while len([name for name in storage.names() if name.endswith(".journal")]) < number:
        fill(journal, 1, first=first)
        first += 1
    fill(journal, 1, first=first)
    journal.close()
    newest = segment_name(number)
    overwrite(storage, newest, 0, b"\xff" * 512)
    tail = JournalTail(storage)
    frames_of(tail)
    with pytest.raises(JournalDamagedError, match=f"{newest} is damaged at byte 0: the segment header is damaged"):
        tail.find_damage()
    file = storage.open(newest)
    overwrite(storage, newest, 0, bytes(file.size))
    tail = JournalTail(storage)
    frames_of(tail)
    tail.find_damage()
    assert frames_of(tail) == []


def test_a_tail_that_goes_on_at_any_place_yields_the_rest() -> None:
    storage = MemoryStorage()
    fill(new_journal(storage), 40)
    tail = JournalTail(storage)
    places: list[tuple[int, Place]] = []
    whole: list[bytes] = []
    for each in tail.frames():
        if isinstance(each, bytes):
            whole.append(each)
            place = tail.place()
            assert place is not None
            places.append((len(whole), place))
    for count, place in places:
        rest = list(JournalTail(storage, place).frames())
        assert isinstance(rest[0], SegmentBegun)
        assert [each for each in rest if isinstance(each, bytes)] == whole[count:]


def test_a_torn_group_is_waited_for_and_its_whole_frames_stay() -> None:
    """The broker dies over a group of which one frame is whole; its next life cuts the rest, and the tail goes on."""
    for seed in range(30):
        storage = MemoryStorage()
        journal = new_journal(storage)
        fill(journal, 3)
        tail = JournalTail(storage)
        seen = frames_of(tail)
        write_group(journal, [note("a" * 600), note("b" * 600), note("c" * 600)])
        storage.crash(Random(seed))
        tail = JournalTail(storage, tail.place())
        seen += frames_of(tail)
        tail.find_damage()
        place = tail.place()
        open_journal(storage)
        journal = new_journal(storage)
        journal.append(note("later"))
        journal.sync_now()
        assert [*seen, *frames_of(JournalTail(storage, place))] == recovered(storage)


def test_a_segment_that_is_dropped_while_it_is_read_is_read_to_its_end_and_what_follows_is_gone() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    fill(journal, 5)
    tail = JournalTail(storage)
    assert len(frames_of(tail)) == 5
    fill(journal, 40, first=6)
    journal.drop_before(30)
    found = list(tail.frames())
    gone = next(each for each in found if isinstance(each, SegmentsGone))
    kept = min(name for name in storage.names() if name.endswith(".journal"))
    assert (gone.last, segment_name(gone.first), gone.rewritten) == (1, kept, False)
    late = [each for each in JournalTail(storage).frames() if not isinstance(each, bytes)]
    assert late[0] == SegmentsGone(0, gone.first)


class Vanishing(MemoryStorage):
    """Loses a segment when it is opened for the second time: its header has been read by then."""

    vanishes = ""
    opened = 0

    def open(self, name: str) -> MemoryFile:
        self.opened += name == self.vanishes
        if self.opened == 2 and name == self.vanishes:
            self.vanishes = ""
            self.remove(name)
        return super().open(name)


def test_a_segment_that_is_dropped_between_its_header_and_its_first_frame() -> None:
    storage = Vanishing()
    fill(new_journal(storage), 60)
    storage.vanishes = segment_name(2)
    found = [each for each in JournalTail(storage).frames() if not isinstance(each, bytes)]
    assert [each if isinstance(each, SegmentsGone) else each.header.number for each in found[:4]] == [
        1,
        SegmentsGone(1, 3),
        3,
        4,
    ]


def test_a_journal_that_was_replaced_is_told() -> None:
    storage = MemoryStorage()
    fill(new_journal(storage), 5)
    tail = JournalTail(storage)
    frames_of(tail)
    place = tail.place()
    other = MemoryStorage()
    fill(new_journal(other, attrs.evolve(SMALL, salt=8)), 5)
    found = list(JournalTail(other, place).frames())
    assert found[0] == SegmentsGone(1, 1, rewritten=True)
    assert len(found) == 7


def test_a_last_group_that_was_lost_and_written_anew_is_told() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    fill(journal, 3)
    write_group(journal, [note("lost")])
    storage.crash_soft()
    tail = JournalTail(storage)
    assert frames_of(tail)[-1] == note("lost")
    place = tail.place()
    power = storage.clone()
    power.crash_keeping(())
    journal = new_journal(power)
    fill(journal, 1, first=4)
    assert next(JournalTail(power, place).frames()) == SegmentsGone(1, 1, rewritten=True)


def test_a_look_for_damage_leaves_the_place_where_it_is() -> None:
    """The look sees frames that were written since the last read, and does not read them."""
    storage = MemoryStorage()
    journal = new_journal(storage)
    fill(journal, 3)
    tail = JournalTail(storage)
    seen = frames_of(tail)
    before = tail.place()
    fill(journal, 2, first=4)
    tail.find_damage()
    assert tail.place() == before
    later = list(JournalTail(storage, before).frames())
    assert isinstance(later[0], SegmentBegun)
    assert [*seen, *later[1:]] == recovered(storage)


def test_damage_in_the_midst_names_file_and_byte() -> None:
    storage = MemoryStorage()
    fill(new_journal(storage), 40)
    overwrite(storage, ONE, 1500, b"?")
    with pytest.raises(JournalDamagedError) as told:
        frames_of(JournalTail(storage))
    with pytest.raises(JournalDamagedError) as scanned:
        scan(storage, open_journal(MemoryStorage())[0])
    assert (told.value.file, told.value.position) == (scanned.value.file, scanned.value.position)


def test_damage_in_the_newest_segment_is_found_by_the_group_behind_it() -> None:
    storage = MemoryStorage()
    fill(new_journal(storage), 5)
    overwrite(storage, ONE, 1500, b"?")
    tail = JournalTail(storage)
    frames_of(tail)
    with pytest.raises(JournalDamagedError) as told:
        tail.find_damage()
    assert told.value.file == ONE


def test_what_is_no_journal_of_this_program_or_broker() -> None:
    storage = MemoryStorage()
    with pytest.raises(NoJournalError, match="there is no journal in memory"):
        frames_of(JournalTail(storage))
    fill(new_journal(storage), 40)
    newer = storage.clone()
    overwrite(newer, segment_name(2), 8, (SEGMENT_FORMAT + 1).to_bytes(2, "big"))
    with pytest.raises(JournalFormatError, match=f"journal format {SEGMENT_FORMAT + 1}; this program reads"):
        frames_of(JournalTail(newer))
    tail = JournalTail(storage)
    tail.identity = JournalIdentity("group-1", "broker-2")
    with pytest.raises(WrongIdentityError):
        frames_of(tail)


def test_an_empty_journal_has_nothing_yet() -> None:
    storage = MemoryStorage()
    storage.create(ONE, 8192)
    tail = JournalTail(storage)
    assert list(tail.frames()) == []
    storage.remove(ONE)
    fill(new_journal(storage), 1)
    assert len(list(tail.frames())) == 2
