"""The octets of a status file, engine `journal`: frames, and which of them are believed after a crash.

A file is a sequence of frames. A frame holds one group of records; the first one holds an `Image`. Its header is magic, length of
the payload, sequence number, the sequence number that was durable when the frame was written, and a CRC-32 of all that and the
payload. Sequence numbers rise by one.

A crash may lose or tear any frame that was not durable, and keep a later one. So a bad frame is the torn end of the file, unless
a later good frame says that it was durable: then the file is damaged, and no record behind it may be believed. A file gets its
final name when its first frame is durable, so a bad first frame is damage, too.

One case is not seen: damage, by another cause than a crash, of the last frames of a file. They look like a torn end.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Final

import attrs
import msgspec

from understudy.xa.core.errors import NewerStatusError, StatusFileError
from understudy.xa.core.register.entry import STATUS_FORMAT, Entry, Image, Record, apply

MAGIC: Final = b"UXSL"
_HEADER: Final = struct.Struct(">4sIQQI")
HEADER_OCTETS: Final = _HEADER.size
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(list[Record])


@attrs.frozen
class Frame:
    """One good frame.

    Attributes:
        sequence: its number, from 1.
        durable: the highest number that was durable when the frame was written.
        end: offset behind it.
    """

    sequence: int
    durable: int
    records: list[Record]
    end: int


@attrs.frozen
class Replayed:
    """The content of a status file.

    Attributes:
        entries: all that are not over.
        sequence: of the last frame.
        good_octets: the length up to which the file is believed; what follows is a torn end.
    """

    entries: dict[str, Entry]
    sequence: int
    good_octets: int


def frame(sequence: int, durable: int, records: Sequence[Record]) -> bytes:
    """The octets of a frame."""
    payload = _encoder.encode(list(records))
    return _HEADER.pack(MAGIC, len(payload), sequence, durable, _crc(sequence, durable, payload)) + payload


def image_frame(sequence: int, shard: int, entries: Sequence[Entry]) -> bytes:
    """The first frame of a file."""
    return frame(sequence, sequence, [Image(STATUS_FORMAT, shard, list(entries))])


def replay(data: bytes, name: str, shard: int) -> Replayed:
    """Read a whole status file.

    Args:
        data: all octets of the file.
        name: of the file, for errors.
        shard: whose file it must be.

    Raises:
        StatusFileError: it is damaged, of a newer format, or of another shard.
    """
    entries: dict[str, Entry] = {}
    first = read_frame(data, 0, name)
    if first is None:
        raise StatusFileError(f"{name}: the first frame is damaged")
    _check_image(first, name, shard)
    last, found = first, first
    while True:
        for record in found.records:
            apply(entries, record)
        last = found
        following = read_frame(data, last.end, name)
        if following is None or following.sequence != last.sequence + 1:
            break
        found = following
    _check_end(data, last, name)
    return Replayed(entries, last.sequence, last.end)


def read_frame(data: bytes, offset: int, name: str) -> Frame | None:
    """The frame that starts at an offset; None if there is no good one.

    Raises:
        StatusFileError: its octets are intact, and its records are of a newer format.
    """
    if len(data) - offset < HEADER_OCTETS:
        return None
    magic, length, sequence, durable, crc = _HEADER.unpack_from(data, offset)
    end = offset + HEADER_OCTETS + length
    if magic != MAGIC or end > len(data):
        return None
    payload = data[offset + HEADER_OCTETS : end]
    if _crc(sequence, durable, payload) != crc:
        return None
    try:
        return Frame(sequence, durable, _decoder.decode(payload), end)
    except msgspec.MsgspecError as error:
        raise NewerStatusError(
            f"{name}: the frame at octet {offset} is intact and not of format {STATUS_FORMAT}, the only one that is "
            f"understood here ({error}): a newer state server wrote it"
        ) from error


def _check_image(first: Frame, name: str, shard: int) -> None:
    if not first.records or not isinstance(image := first.records[0], Image):
        raise StatusFileError(f"{name}: the first frame holds no image")
    if image.format != STATUS_FORMAT:
        raise NewerStatusError(f"{name} is of format {image.format}, and this server reads format {STATUS_FORMAT}")
    if image.shard != shard:
        raise StatusFileError(f"{name} is of shard {image.shard}, and stands where that of shard {shard} belongs")


def _check_end(data: bytes, last: Frame, name: str) -> None:
    """A later frame that was written when the next one was durable proves damage."""
    at = last.end
    while (at := data.find(MAGIC, at)) >= 0:
        later = read_frame(data, at, name)
        if later is not None and later.durable > last.sequence:
            raise StatusFileError(
                f"{name}: the frame at octet {last.end} (number {last.sequence + 1}) is damaged: it was durable, since "
                f"frame {later.sequence} at octet {at} says so"
            )
        at += 1


def _crc(sequence: int, durable: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(struct.pack(">IQQ", len(payload), sequence, durable)))
