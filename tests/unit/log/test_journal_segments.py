"""Segment files: their bytes, how the journal rolls from one to the next, and what it refuses to open."""

from __future__ import annotations

import zlib

import pytest

from tests.unit.log.journal_kit import (
    CHECKPOINT,
    IDENTITY,
    KIND,
    SMALL,
    Recorder,
    batch,
    fill,
    new_journal,
    note,
    open_journal,
)
from understudy.broker.log.frame import KIND_GROUP, KIND_TIMED_GROUP, FrameTooLargeError, encode_note
from understudy.broker.log.journal import JournalOptions
from understudy.broker.log.journal_recovery import recover, scan
from understudy.broker.log.segment import (
    Footer,
    GroupHeader,
    JournalDamagedError,
    JournalFormatError,
    JournalIdentity,
    SegmentHeader,
    WrongIdentityError,
    footer_bytes_for,
    segment_name,
    segment_number,
)
from understudy.testing.disk import MemoryStorage

ONE, TWO = segment_name(1), segment_name(2)


def resealed(header: bytes) -> bytes:
    return header[:508] + zlib.crc32(header[:508]).to_bytes(4, "big")


# -- bytes ------------------------------------------------------------------------------------------------------------


def test_names() -> None:
    assert segment_name(12) == "0000000000000012.journal"
    assert segment_number("0000000000000012.journal") == 12
    for other in ("LOCK", "12.journal", "0000000000000012", "000000000000001x.journal", "0000000000000012.journal.bak"):
        assert segment_number(other) is None


def test_golden_segment_header() -> None:
    header = SegmentHeader(
        number=2,
        size_bytes=8192,
        alignment=512,
        footer_bytes=1024,
        first_sequence=9,
        salt=7,
        identity=JournalIdentity("grüppe", "b"),
    )
    encoded = header.encode()
    assert encoded[:8] == b"USLSEGM\0"
    assert encoded[8:64] == (
        bytes.fromhex("0002 0000 00000200 00000400")
        + bytes.fromhex("0000000000000002 0000000000002000 0000000000000009 0000000000000007")
        + bytes.fromhex("0007 0001")
        + "grüppe".encode()
        + b"b"
    )
    assert len(encoded) == 512
    assert encoded == resealed(encoded)
    assert SegmentHeader.decode(encoded, "here") == header


def test_golden_timed_group_note() -> None:
    group = GroupHeader(1, 2, 1536, 4, 5, 6, 7, 8)
    encoded = group.encode()
    assert len(encoded) == 72
    assert encoded[:12] == bytes.fromhex("55534c4e 01 03 0000 00000038")
    assert encoded[16:] == bytes.fromhex("0000000000000001 00000002 00000003 0000000000000008") + b"".join(
        number.to_bytes(8, "big") for number in range(4, 8)
    )
    assert GroupHeader.decode(encoded, 2, 1536, 7) == GroupHeader.decode(encoded, 2, 1536, None) == group
    for other in ((1, 1536, 7), (2, 1024, 7), (2, 1536, 6)):
        assert GroupHeader.decode(encoded, *other) is None


def test_golden_group_note_of_format_1() -> None:
    group = GroupHeader(1, 2, 3, 4, 5, 6, 7)
    encoded = group.encode(1)
    assert len(encoded) == 72
    assert encoded[:12] == bytes.fromhex("55534c4e 01 01 0000 00000038")
    assert encoded[16:] == b"".join(number.to_bytes(8, "big") for number in range(1, 8))
    assert GroupHeader.decode(encoded, 2, 3, 7) == GroupHeader.decode(encoded, 2, 3, None) == group
    assert (group.start, group.end) == (75, 79)
    for other in ((1, 3, 7), (2, 2, 7), (2, 3, 6)):
        assert GroupHeader.decode(encoded, *other) is None
    assert GroupHeader.decode(note("x" * 56), 2, 3, None) is None


def test_golden_footer() -> None:
    storage = MemoryStorage()
    file = storage.create("f", 4096)
    footer = Footer(3, 9, 4, 700, [(3, 584), (7, 650)])
    encoded = footer.encode()
    assert encoded[:12] == b"USLF" + bytes.fromhex("01 00 0000 00000002")
    numbers = (3, 9, 4, 700, 3, 584, 7, 650)
    assert encoded[12:-4] == b"".join(number.to_bytes(8, "big") for number in numbers)
    assert encoded[-4:] == zlib.crc32(encoded[:-4]).to_bytes(4, "big")
    file.write([encoded], 1024)
    assert Footer.read(file, 1024) == footer
    assert Footer.read(file, 0) is None
    for position in range(len(encoded)):
        storage.flip_bit("f", 1024 + position, position % 8)
        assert Footer.read(file, 1024) is None
        storage.flip_bit("f", 1024 + position, position % 8)


def test_first_group_on_the_disk() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    frame = batch(1)
    journal.append(frame)
    journal.sync_now()
    content = storage.content(ONE)
    assert len(content) == 8192
    assert SegmentHeader.decode(content[:512], "") == SegmentHeader(
        number=1, size_bytes=8192, alignment=512, footer_bytes=512, first_sequence=1, salt=7, identity=IDENTITY
    )
    assert GroupHeader.decode(content[512:584], 1, 512, 7) == GroupHeader(1, 1, 512, len(frame), 0, 1, 7)
    assert content[584 : 584 + len(frame)] == frame
    assert not any(content[584 + len(frame) :])


def test_groups_begin_on_the_alignment_and_count_on() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    fill(journal, 2, size=100)
    content = storage.content(ONE)
    assert GroupHeader.decode(content[1024:1096], 1, 1024, 7) == GroupHeader(2, 1, 1024, 140, 584 + 140, 1, 7)


def test_a_group_states_the_time() -> None:
    storage = MemoryStorage()
    journal = recover(storage, IDENTITY, SMALL, Recorder(), wall_ms=lambda: 1_700_000_000_123).journal
    fill(journal, 1)
    group = GroupHeader.decode(storage.content(ONE)[512:584], 1, 512, 7)
    assert group is not None
    assert group.wall_ms == 1_700_000_000_123


def test_a_segment_of_format_1_is_written_to_its_end_in_that_format() -> None:
    """An upgraded broker goes on in the segment that the older program began."""
    storage = MemoryStorage()
    header = SegmentHeader(
        number=1,
        size_bytes=8192,
        alignment=512,
        footer_bytes=512,
        first_sequence=1,
        salt=7,
        identity=IDENTITY,
        format=1,
    )
    first = batch(1, size=100)
    group = GroupHeader(1, 1, 512, len(first), 0, 1, 7)
    file = storage.create(ONE, 8192)
    file.write([header.encode()], 0)
    file.write([group.encode(1) + first], 512)
    file.sync()
    storage.sync_directory()
    recorder = Recorder()
    journal = recover(storage, IDENTITY, SMALL, recorder, wall_ms=lambda: 5).journal
    assert recorder.frames == [first]
    fill(journal, 20, first=2)
    content = storage.content(ONE)
    kinds = {content[at + 5] for at in range(512, 7168, 512) if content[at : at + 4] == b"USLN"}
    assert kinds == {KIND_GROUP}
    second = storage.content(segment_name(2))
    assert second[512 + 5] == KIND_TIMED_GROUP
    assert second[9] == 2
    recorder, _ = open_journal(storage)
    assert len(recorder.batches) == 21


# -- roll -------------------------------------------------------------------------------------------------------------


def test_a_frame_that_does_not_fit_rolls() -> None:
    """One job holds the end of one segment, its footer, and the beginning of the next, which begins with the checkpoint."""
    storage = MemoryStorage()
    asked: list[int] = []

    def checkpoint() -> bytes:
        asked.append(journal.appended)
        return CHECKPOINT

    journal = new_journal(storage, checkpoint=checkpoint)
    frames = [batch(offset, size=2000) for offset in range(1, 6)]
    for frame in frames:
        journal.append(frame)
    assert asked == [3], (
        "the checkpoint is asked for when three frames have been appended, and not at the first segment"
    )
    job = journal.begin_sync()
    assert job is not None
    assert [step.name for step in job.steps] == [ONE, TWO]
    assert job.syncs == 0
    job.run()
    journal.finish_sync(job)
    assert (job.syncs, journal.statistics().fsyncs) == (6, 6)
    recorder, recovered = open_journal(storage)
    assert recorder.frames == [*frames[:3], CHECKPOINT, *frames[3:]]
    assert recovered.report.segments == 2
    footer = Footer.read(storage.open(ONE), 8192 - 512)
    assert footer == Footer(1, 3, 3, 584 + 3 * 2040, [(1, 584), (2, 584 + 2040), (3, 584 + 4080)])


def test_a_full_segment_that_was_synced_before_is_sealed_by_the_next_job() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    frames = fill(journal, 2, size=2400)
    assert Footer.read(storage.open(ONE), 8192 - 512) is None
    journal.append(extra := batch(3, size=2400))
    journal.sync_now()
    assert Footer.read(storage.open(ONE), 8192 - 512) == Footer(1, 2, 2, 3144 + 2440, [(1, 584), (2, 3144)])
    assert open_journal(storage)[0].frames == [*frames, CHECKPOINT, extra]


def test_a_frame_larger_than_a_segment_gets_its_own() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage)
    frames = [batch(1), batch(2, size=50_000), batch(3)]
    for frame in frames:
        journal.append(frame)
    journal.sync_now()
    sizes = [len(storage.content(segment_name(number))) for number in (1, 2, 3)]
    assert sizes[0] == sizes[2] == 8192
    assert sizes[1] >= 50_000
    assert sizes[1] % 512 == 0
    assert open_journal(storage)[0].batches == frames
    assert list(new_journal(storage).read_batches(2)) == frames[1:]


def test_a_large_checkpoint_gets_a_segment_that_holds_three_times_as_much_besides() -> None:
    """Else each few records would be followed by another such checkpoint."""
    storage = MemoryStorage()
    large = encode_note(KIND + 1, bytes(6000))
    journal = new_journal(storage, checkpoint=lambda: large)
    written = fill(journal, 20, size=2000)
    assert len(storage.content(segment_name(2))) == 24_064, "four times the checkpoint, aligned"
    found = open_journal(storage)[0].frames
    assert [frame for frame in found if frame != large] == written
    assert found.count(large) == 3, "eight batches fit behind each, and three into the first segment"


def test_a_roll_without_checkpoint() -> None:
    storage = MemoryStorage()
    journal = new_journal(storage, checkpoint=None)
    frames = fill(journal, 12, size=2000)
    assert open_journal(storage)[0].frames == frames


def test_frame_limit() -> None:
    journal = new_journal(MemoryStorage(), JournalOptions(max_frame_bytes=1000, reserve_bytes=0))
    journal.append(batch(1, size=960))
    with pytest.raises(FrameTooLargeError, match="frame of 1001 bytes; the limit is 1000"):
        journal.append(batch(2, size=961))
    assert journal.last_offset == 1


def test_sizes_that_are_refused() -> None:
    for wrong in ({"segment_bytes": 100}, {"alignment_bytes": 256}, {"alignment_bytes": 1536}, {"salt": 1 << 64}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            JournalOptions(**wrong)
    for wrong_id in ("", "x" * 201, "ü" * 101):
        with pytest.raises(ValueError, match="broker_id"):
            JournalIdentity("g", wrong_id)
    assert JournalIdentity("g" * 200, "b" * 200).group_id == "g" * 200


def test_the_footer_has_room_for_every_entry() -> None:
    """Even if the options changed in between: the index then gets coarser, never too long."""
    storage = MemoryStorage()
    coarse = JournalOptions(segment_bytes=65536, alignment_bytes=512, index_interval_bytes=65536, reserve_bytes=0)
    new_journal(storage, coarse).close()
    journal = new_journal(storage, coarse)
    fill(journal, 1)
    fine = JournalOptions(segment_bytes=65536, alignment_bytes=512, index_interval_bytes=512, reserve_bytes=0)
    journal = new_journal(storage, fine)
    frames = fill(journal, 150, first=2)
    assert footer_bytes_for(65536, 512, 65536) == 512
    recorder, recovered = open_journal(storage, fine)
    assert recorder.batches[1:] == frames
    assert not recovered.report.warnings
    assert list(recovered.journal.read_batches(30)) == frames[28:]


# -- whose it is ------------------------------------------------------------------------------------------------------


def written() -> MemoryStorage:
    storage = MemoryStorage("/data/b1")
    fill(new_journal(storage), 12, size=2000)
    return storage


@pytest.mark.parametrize(
    ("identity", "what", "found", "expected"),
    [
        (JournalIdentity("group-2", "broker-1"), "group", "group-1", "group-2"),
        (JournalIdentity("group-1", "broker-9"), "broker", "broker-1", "broker-9"),
    ],
)
def test_the_journal_of_somebody_else(identity: JournalIdentity, what: str, found: str, expected: str) -> None:
    storage = written()
    before = storage.clone()
    with pytest.raises(WrongIdentityError) as caught:
        recover(storage, identity, SMALL, Recorder())
    assert (caught.value.found, caught.value.expected) == (found, expected)
    assert str(caught.value) == (
        f"journal /data/b1: {ONE}: the {what} is {found!r} in the journal, {expected!r} in the configuration"
    )
    assert_same(storage, before)


@pytest.mark.parametrize("number", [1, 6])
@pytest.mark.parametrize("checksum", ["right", "wrong"])
def test_a_newer_format_loses_nothing(number: int, checksum: str) -> None:
    storage = written()
    name = segment_name(number)
    header = bytearray(storage.content(name)[:512])
    header[9] = 3
    storage.open(name).write([resealed(bytes(header)) if checksum == "right" else bytes(header)], 0)
    before = storage.clone()
    with pytest.raises(JournalFormatError, match=r"journal format 3; this program reads versions 1 to 2") as caught:
        open_journal(storage)
    assert (caught.value.found, caught.value.supported) == (3, 2)
    assert_same(storage, before)


def test_a_newer_frame_loses_nothing() -> None:
    storage = MemoryStorage()
    frame = batch(1)
    unsigned = frame[:4] + b"\2" + frame[5:36]
    journal = new_journal(storage)
    journal.append(unsigned + zlib.crc32(unsigned + frame[40:]).to_bytes(4, "big") + frame[40:])
    journal.sync_now()
    before = storage.clone()
    with pytest.raises(JournalFormatError, match="frame version 2; this program reads versions 1 to 1"):
        open_journal(storage)
    assert_same(storage, before)


def test_scan_takes_anybodys_but_only_one() -> None:
    storage = written()
    report = scan(storage, Recorder())
    assert (report.segments, report.batches, report.first_offset, report.last_offset) == (6, 12, 1, 12)
    assert report.groups >= 12
    header = SegmentHeader.decode(storage.content(TWO)[:512], "")
    assert header is not None
    other = SegmentHeader(
        number=2,
        size_bytes=header.size_bytes,
        alignment=512,
        footer_bytes=512,
        first_sequence=header.first_sequence,
        salt=7,
        identity=JournalIdentity("group-1", "intruder"),
    )
    storage.open(TWO).write([other.encode()], 0)
    with pytest.raises(WrongIdentityError, match="intruder"):
        scan(storage, Recorder())


def test_a_segment_under_another_name() -> None:
    storage = written()
    storage.remove(ONE)
    storage.rename(TWO, ONE)
    storage.rename(segment_name(3), TWO)
    for number in (4, 5, 6):
        storage.remove(segment_name(number))
    with pytest.raises(JournalDamagedError, match="this is segment 2 under another name"):
        open_journal(storage)


def assert_same(storage: MemoryStorage, before: MemoryStorage) -> None:
    assert sorted(storage.names()) == sorted(before.names())
    for name in before.names():
        assert storage.content(name) == before.content(name)
