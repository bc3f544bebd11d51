"""The bytes of frames: these are on wires and disks, so they are written out here."""

from __future__ import annotations

import zlib

import pytest

from understudy.broker.log import frame as frames
from understudy.broker.log.frame import CorruptFrameError, FrameTooLargeError, FrameVersionError

BATCH = frames.encode_batch(7, 0x0102030405060708, 3, 0x1112131415161718, [b"ab", b"", b"cde"], flags=1)


def test_golden_batch() -> None:
    unsigned = bytes.fromhex("55534c42 01 01 0000 00000007 0102030405060708 00000003 1112131415161718 00000005")
    crc = zlib.crc32(unsigned + b"abcde")
    assert BATCH.hex() == (unsigned + crc.to_bytes(4, "big") + b"abcde").hex()
    assert len(unsigned) == 36
    assert BATCH[36:40].hex() == "2f322cec"


def test_golden_note() -> None:
    note = frames.encode_note(16, b"abc")
    assert (
        note.hex(" ", -4)
        == "55534c4e 01100000 00000003 " + zlib.crc32(note[:12] + b"abc").to_bytes(4, "big").hex() + " 616263"
    )
    assert frames.verify_note(note) == (16, b"abc")


def test_golden_cut() -> None:
    cut = frames.encode_cut(258, b"rest")
    assert frames.verify_note(cut) == (frames.KIND_CUT, b"\0\0\0\0\0\0\1\2rest")
    assert frames.decode_cut(cut[frames.NOTE_HEADER_BYTES :]) == (258, b"rest")
    with pytest.raises(CorruptFrameError, match="7 bytes"):
        frames.decode_cut(bytes(7))


def test_header_says_what_was_encoded() -> None:
    header = frames.decode_batch_header(b"xx" + BATCH, 2)
    assert header[:6] == (1, 7, 0x0102030405060708, 3, 0x1112131415161718, 5)
    assert header.last_offset == 0x010203040506070A
    assert header.frame_length == len(BATCH) == frames.frame_length(BATCH)
    assert frames.verify_batch(memoryview(BATCH)) == frames.verify_batch(bytearray(BATCH)) == header
    assert bytes(frames.batch_payload(BATCH)) == b"abcde"


def test_header_needs_no_payload() -> None:
    assert frames.decode_batch_header(BATCH[:40]).payload_length == 5
    with pytest.raises(CorruptFrameError, match="39 bytes"):
        frames.decode_batch_header(BATCH[:39])


@pytest.mark.parametrize("frame", [BATCH, frames.encode_note(20, b"note")])
def test_every_flipped_bit_is_seen(frame: bytes) -> None:
    for position in range(len(frame)):
        for bit in range(8):
            damaged = bytearray(frame)
            damaged[position] ^= 1 << bit
            with pytest.raises(CorruptFrameError):
                frames.verify_frame(damaged)


@pytest.mark.parametrize("frame", [BATCH, frames.encode_note(20, b"note")])
def test_the_end_of_a_sound_frame_among_others(frame: bytes) -> None:
    end = 3 + len(frame)
    buf = b"xyz" + frame + BATCH
    assert frames.sound_frame_end(buf, memoryview(buf), 3) == end
    assert frames.sound_frame_end(buf, memoryview(buf), end) == len(buf)
    for at in (0, 4, end - 1, len(buf)):
        assert frames.sound_frame_end(buf, memoryview(buf), at) == 0
    for short in range(3, end):
        assert frames.sound_frame_end(buf[:short], memoryview(buf)[:short], 3) == 0
    for position in range(3, end):
        damaged = bytearray(buf)
        damaged[position] ^= 1 << position % 8
        assert frames.sound_frame_end(bytes(damaged), memoryview(damaged), 3) == 0


def test_error_names_place_and_both_checksums() -> None:
    damaged = BATCH[:-1] + b"!"
    with pytest.raises(CorruptFrameError) as caught:
        frames.verify_batch(damaged, place="link to b2")
    error = caught.value
    assert error.place == "link to b2"
    assert (error.stored_crc, error.computed_crc) == (0x2F322CEC, zlib.crc32(BATCH[:36] + b"abcd!"))
    assert (
        str(error)
        == f"link to b2: checksum differs (crc in the frame 0x2f322cec, of its bytes {error.computed_crc:#010x})"
    )


def test_wrong_sort_and_wrong_length() -> None:
    note = frames.encode_note(16, b"")
    with pytest.raises(CorruptFrameError, match="16 bytes are no batch header"):
        frames.verify_batch(note)
    with pytest.raises(CorruptFrameError, match="no batch: begins with b'USLN'"):
        frames.decode_batch_header(note.ljust(40, b"\0"))
    with pytest.raises(CorruptFrameError, match="no note"):
        frames.verify_note(BATCH)
    with pytest.raises(CorruptFrameError, match="45 bytes, 46 are there"):
        frames.verify_batch(BATCH + b"x")
    with pytest.raises(CorruptFrameError, match="no frame"):
        frames.frame_length(bytes(64))
    with pytest.raises(CorruptFrameError, match="no frame header"):
        frames.frame_length(BATCH[:20])


def test_newer_version_is_told_from_damage() -> None:
    unsigned = BATCH[:4] + b"\2" + BATCH[5:36]
    newer = unsigned + zlib.crc32(unsigned + b"abcde").to_bytes(4, "big") + b"abcde"
    for call in (frames.verify_batch, frames.decode_batch_header):
        with pytest.raises(FrameVersionError, match="frame version 2; this program reads version 1"):
            call(newer)


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CorruptFrameError, match="45 bytes; the limit is 44"):
        frames.decode_batch_header(BATCH, max_frame_bytes=44)
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 100)
    assert len(frames.encode_batch(1, 1, 1, 0, [bytes(60)])) == 100
    with pytest.raises(FrameTooLargeError):
        frames.encode_batch(1, 1, 1, 0, [bytes(61)])
    with pytest.raises(FrameTooLargeError):
        frames.encode_note(16, bytes(85))
