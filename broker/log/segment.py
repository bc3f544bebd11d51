"""Segments: how frames lie in the files of a journal, and how to read them again.

    byte 0          SEGMENT HEADER, 512 bytes: whose journal this is, which segment, how it is laid out; crc
         data_start GROUP note, frames, zeros up to the next multiple of `alignment`
                    GROUP note, frames, zeros ...
                    zeros that were never written
         data_limit one block of `alignment` bytes, kept for a closing group
         footer_at  FOOTER: sparse index of the batches; zeros until the segment is sealed
         size

A *group* is what one sync makes durable. It begins on a multiple of `alignment` (4096), with a GROUP note that says
how long it is, and the rest of its last block is written with zeros. So no sync ever rewrites a block that an earlier
one made durable, whatever the drive's true sector size; and since whole pages are written, the kernel never has to
read a page from the disk in order to change half of it (measured with a cold page cache, per sync of 10 KB: 45 us of
CPU and 95 us in all, against 69 and 150 unaligned).

The payload of a group's note, which `journal_recovery` reasons with:

    sequence      u64  1, 2, 3, ... over the whole life of the journal
    segment       u32  number of the segment that it was written for ...
    sector        u32  ... and where in it, in sectors of 512 bytes: a journal file that somebody sends as a message body cannot
                       imitate a group
    wall_ms       u64  wall clock when the group was closed; 0 if nobody knew it. Nothing hangs on it: it is for the event feed
    length        u64  bytes of frames that follow the note
    previous_end  u64  where the frames of the group before it in this segment end (0: it is the first): earlier than
                       that group said if a recovery cut it, and then this note is the proof that it was cut on
                       purpose
    floor         u64  segments below this number may be missing; set, and synced, before any of them is removed
    salt          u64  the segment header's: bytes that a client can make up do not contain it

That is a TIMED_GROUP, of segments of format 2. In segments of format 1 the note is a GROUP: segment and position (in bytes)
are u64, and there is no time. A segment keeps its format for as long as it is written to.

Format versions: magic, version and the header's checksum stay where they are in every later format, so that a program
can always say which number it met. Refused: an index file of its own (one more file whose creation can be torn);
frames that span segments (recovery of one segment would need another).
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol, Self

import attrs

from understudy.broker.errors import UnderstudyError
from understudy.broker.log import frame as frames
from understudy.broker.log.frame import (
    KIND_GROUP,
    KIND_TIMED_GROUP,
    NOTE_HEADER_BYTES,
    NOTE_MAGIC,
    CorruptFrameError,
)
from understudy.broker.log.storage import File, Storage
from understudy.broker.octets.checksum import crc32

SEGMENT_MAGIC: Final = b"USLSEGM\0"
SEGMENT_FORMAT: Final = 2
"""Of new segments: their groups state a time."""
SEGMENT_HEADER_BYTES: Final = 512
SEGMENT_SUFFIX: Final = ".journal"
MAX_ID_BYTES: Final = 200
CHECK_COMMAND: Final = "understudy journal check"

_HEADER = struct.Struct(">8sHHIIQQQQHH")
_GROUP = struct.Struct(">QQQQQQQ")
_TIMED_GROUP = struct.Struct(">QIIQQQQQ")
_SECTOR_BYTES = 512
_FOOTER = struct.Struct(">4sBBHIQQQQ")
_U32 = struct.Struct(">I")
_FOOTER_MAGIC = b"USLF"
_FOOTER_ENTRY_BYTES = 16
_ZEROS = bytes(1 << 20)
GROUP_BYTES: Final = NOTE_HEADER_BYTES + _GROUP.size
MIN_SEGMENT_BYTES: Final = 4096
READ_WINDOW_BYTES: Final = 256 << 10
_SEARCH_BYTES: Final = 1 << 20


class JournalError(UnderstudyError):
    """Root of what a journal raises about itself."""


class NoJournalError(JournalError):
    """There is no directory, or no segment in it."""


class JournalFormatError(JournalError):
    """A segment was written by a newer program. Nothing has been changed.

    Attributes:
        found: the version in the file, of the segment or of a frame in it.
        supported: the newest that this program reads.
    """

    def __init__(self, place: str, what: str, found: int, supported: int) -> None:
        self.found = found
        self.supported = supported
        super().__init__(
            f"{place}: {what} {found}; this program reads versions 1 to {supported}. Nothing was changed; run the newer"
            " program"
        )


class WrongIdentityError(JournalError):
    """The directory holds the journal of another group or broker. Nothing has been changed."""

    def __init__(self, place: str, what: str, found: str, expected: str) -> None:
        self.found = found
        self.expected = expected
        super().__init__(f"{place}: {what} is {found!r} in the journal, {expected!r} in the configuration")


class JournalDamagedError(JournalError):
    """Bytes that were once synced, and may have been answered for, are not what they were. Nothing has been changed.

    Attributes:
        file: name of the segment file.
        position: byte where the damage was noticed.
        loss: what a repair would keep and lose; "" if nobody has looked.
    """

    def __init__(self, directory: object, file: str, position: int, reason: str, loss: str = "") -> None:
        self.directory = directory
        self.file = file
        self.position = position
        self.reason = reason
        self.loss = loss
        repair = f"{loss}. `{CHECK_COMMAND} --repair {directory}` does that and keeps the damaged files" if loss else ""
        super().__init__(
            f"journal {directory}: {file} is damaged at byte {position}: {reason}. This is no torn tail, so nothing was cut;"
            f" {repair or f'look with `{CHECK_COMMAND} {directory}`'}"
        )

    def with_loss(self, loss: str) -> JournalDamagedError:
        """The same with what a repair would keep and lose."""
        return JournalDamagedError(self.directory, self.file, self.position, self.reason, loss)


def _id_length(_: object, attribute: attrs.Attribute[str], value: str) -> None:
    length = len(value.encode())
    if not 1 <= length <= MAX_ID_BYTES:
        raise ValueError(f"{attribute.name} {value!r} has {length} bytes in UTF-8; 1 to {MAX_ID_BYTES} are allowed")


@attrs.frozen
class JournalIdentity:
    """Whose journal it is. Both names stand in every segment, so that a directory is never opened for somebody else.

    Args:
        group_id: of the group of brokers; 1 to 200 bytes in UTF-8.
        broker_id: of this broker; the same range.
    """

    group_id: str = attrs.field(validator=_id_length)
    broker_id: str = attrs.field(validator=_id_length)


class Place(NamedTuple):
    """A byte in a file, for error messages; made into text only when an error is."""

    file: str
    position: int

    def __str__(self) -> str:
        return f"{self.file} at byte {self.position}"


def align_up(position: int, alignment: int) -> int:
    """The first multiple of `alignment` that is not below `position`."""
    return -(-position // alignment) * alignment


def segment_name(number: int) -> str:
    """`%016d.journal`: names sort as numbers do."""
    return f"{number:016d}{SEGMENT_SUFFIX}"


def segment_number(name: str) -> int | None:
    """The number in a segment's file name; None if it is not one."""
    stem = name.removesuffix(SEGMENT_SUFFIX)
    return int(stem) if stem != name and len(stem) == 16 and stem.isdecimal() and stem.isascii() else None


@attrs.frozen(kw_only=True)
class SegmentHeader:
    """The first 512 bytes of a segment.

    Args:
        number: 1, 2, 3, ...
        size_bytes: of the file, from its creation to its end.
        alignment: where groups begin; a multiple of 512.
        footer_bytes: kept at the end for the footer; a multiple of `alignment`.
        first_sequence: sequence number of the first group in this segment.
        salt: repeated in each of its groups.
        identity: whose journal it is.
        format: version; it says how the groups are written.
    """

    number: int
    size_bytes: int
    alignment: int
    footer_bytes: int
    first_sequence: int
    salt: int
    identity: JournalIdentity
    format: int = SEGMENT_FORMAT

    def encode(self) -> bytes:
        group, broker = self.identity.group_id.encode(), self.identity.broker_id.encode()
        body = _HEADER.pack(
            SEGMENT_MAGIC,
            self.format,
            0,
            self.alignment,
            self.footer_bytes,
            self.number,
            self.size_bytes,
            self.first_sequence,
            self.salt,
            len(group),
            len(broker),
        )
        body = (body + group + broker).ljust(SEGMENT_HEADER_BYTES - 4, b"\0")
        return body + _U32.pack(crc32(body))

    @classmethod
    def decode(cls, buf: bytes, place: str) -> Self | None:
        """Return the header in `buf`, or None if it is damaged or not there.

        Raises:
            JournalFormatError: the version is above ours. Said even if the checksum disagrees: whoever is wrong about
                a newer format must not take its segment for a torn one and remove it.
        """
        if len(buf) != SEGMENT_HEADER_BYTES or not buf.startswith(SEGMENT_MAGIC):
            return None
        fields = _HEADER.unpack_from(buf)
        (
            _,
            version,
            _,
            alignment,
            footer_bytes,
            number,
            size_bytes,
            first_sequence,
            salt,
            group_length,
            broker_length,
        ) = fields
        if version > SEGMENT_FORMAT:
            raise JournalFormatError(place, "journal format", version, SEGMENT_FORMAT)
        if _U32.unpack_from(buf, SEGMENT_HEADER_BYTES - 4)[0] != crc32(buf[: SEGMENT_HEADER_BYTES - 4]) or version == 0:
            return None
        names = buf[_HEADER.size :]
        return cls(
            number=number,
            size_bytes=size_bytes,
            alignment=alignment,
            footer_bytes=footer_bytes,
            first_sequence=first_sequence,
            salt=salt,
            identity=JournalIdentity(
                names[:group_length].decode(), names[group_length : group_length + broker_length].decode()
            ),
            format=version,
        )


class GroupHeader(NamedTuple):
    """Payload of a group's note; fields as at the head of this file, the position in bytes."""

    sequence: int
    segment: int
    position: int
    length: int
    previous_end: int
    floor: int
    salt: int
    wall_ms: int = 0

    @property
    def start(self) -> int:
        """Where its frames begin."""
        return self.position + GROUP_BYTES

    @property
    def end(self) -> int:
        """Where its frames end, unless it was cut."""
        return self.position + GROUP_BYTES + self.length

    def encode(self, segment_format: int = SEGMENT_FORMAT) -> bytes:
        return encode_group(segment_format, *self)

    @classmethod
    def decode(cls, buf: bytes, segment: int, position: int, salt: int | None) -> GroupHeader | None:
        """Return the group whose note `buf` is, or None if it is none, or one of another place.

        Args:
            buf: `GROUP_BYTES` bytes.
            segment: number of the segment they come from.
            position: where in it.
            salt: of the segment; None when its header cannot be read.
        """
        if len(buf) != GROUP_BYTES:
            return None
        timed = buf.startswith(_TIMED_HEAD)
        if not timed and not buf.startswith(_GROUP_HEAD):
            return None
        head_crc = _TIMED_HEAD_CRC if timed else _GROUP_HEAD_CRC
        if crc32(buf[NOTE_HEADER_BYTES:], head_crc) != _U32.unpack_from(buf, NOTE_HEADER_BYTES - 4)[0]:
            return None
        if timed:
            sequence, number, sector, wall_ms, length, previous_end, floor, stated = _TIMED_GROUP.unpack_from(
                buf, NOTE_HEADER_BYTES
            )
            group = cls(sequence, number, sector * _SECTOR_BYTES, length, previous_end, floor, stated, wall_ms)
        else:
            group = cls(*_GROUP.unpack_from(buf, NOTE_HEADER_BYTES))
        if group.segment != segment or group.position != position or (salt is not None and salt != group.salt):
            return None
        return group


_GROUP_HEAD: Final = frames.encode_note(KIND_GROUP, bytes(_GROUP.size))[: NOTE_HEADER_BYTES - 4]
_TIMED_HEAD: Final = frames.encode_note(KIND_TIMED_GROUP, bytes(_TIMED_GROUP.size))[: NOTE_HEADER_BYTES - 4]
"""Magic, version, kind and length, which are the same in every group of a format."""
_GROUP_HEAD_CRC: Final = crc32(_GROUP_HEAD)
_TIMED_HEAD_CRC: Final = crc32(_TIMED_HEAD)


def encode_group(
    segment_format: int,
    sequence: int,
    segment: int,
    position: int,
    length: int,
    previous_end: int,
    floor: int,
    salt: int,
    wall_ms: int,
) -> bytes:
    """The note of a group of these fields. What comes before them is the same in every group: its checksum is taken once.

    ``segment_format`` is that of the segment for which it is; in format 1 there is no time.
    """
    if segment_format == 1:
        payload = _GROUP.pack(sequence, segment, position, length, previous_end, floor, salt)
        return b"".join((_GROUP_HEAD, _U32.pack(crc32(payload, _GROUP_HEAD_CRC)), payload))
    sector = position // _SECTOR_BYTES
    payload = _TIMED_GROUP.pack(sequence, segment, sector, wall_ms, length, previous_end, floor, salt)
    return b"".join((_TIMED_HEAD, _U32.pack(crc32(payload, _TIMED_HEAD_CRC)), payload))


class Footer(NamedTuple):
    """The footer of a sealed segment: `>4sBBHIQQQQ`, entries, crc32 of both.

    The struct is magic, version, two reserved, number of entries, first offset (0: no live batch), last offset, frame
    count, end. An entry is (first_offset u64, position u64).
    """

    first_offset: int
    last_offset: int
    frame_count: int
    end: int
    entries: list[tuple[int, int]]

    def encode(self) -> bytes:
        head = _FOOTER.pack(_FOOTER_MAGIC, 1, 0, 0, len(self.entries), *self[:4])
        body = head + _swapped(array("Q", [number for entry in self.entries for number in entry])).tobytes()
        return body + _U32.pack(crc32(body))

    @classmethod
    def read(cls, file: File, at: int) -> Footer | None:
        """The footer at byte `at` of a segment; None if there is no undamaged one."""
        head = file.read(at, _FOOTER.size)
        if len(head) < _FOOTER.size or not head.startswith(_FOOTER_MAGIC):
            return None
        _, _, _, _, count, first_offset, last_offset, frame_count, end = _FOOTER.unpack(head)
        length = count * _FOOTER_ENTRY_BYTES + 4
        if at + _FOOTER.size + length > file.size:
            return None
        rest = file.read(at + _FOOTER.size, length)
        if crc32(rest[:-4], crc32(head)) != _U32.unpack(rest[-4:])[0]:
            return None
        numbers = _swapped(array("Q", rest[:-4]))
        return cls(first_offset, last_offset, frame_count, end, list(zip(numbers[::2], numbers[1::2], strict=True)))


def _swapped(numbers: array[int]) -> array[int]:
    """From this machine's byte order to big-endian, or back; in place."""
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


class Segment:
    """The journal's knowledge of one of its segments.

    Attributes:
        first_offset: of the first live batch; None if there is none.
        last_offset: of the last live batch; 0 if there is none.
        frame_count: frames in it, without group notes.
        end: byte after the last frame that was laid out.
        durable_end: byte after the last frame that was synced; `data_start` at least.
        first_sequence: sequence number of its first group.
        format: version; it says how its groups are written.
        index: (first_offset, position) of a batch every `index_interval` bytes, in file order; None: it stands in
            the footer.
        file: open while it is the active one and exists.
        sealed: the footer has been laid out; nothing will follow.
        closed: it is sealed, and all of it is durable.
    """

    __slots__ = (
        "alignment",
        "closed",
        "data_limit",
        "data_start",
        "durable_end",
        "end",
        "file",
        "first_offset",
        "first_sequence",
        "footer_at",
        "format",
        "frame_count",
        "index",
        "index_capacity",
        "last_indexed",
        "last_offset",
        "name",
        "number",
        "salt",
        "size_bytes",
    )

    def __init__(
        self,
        number: int,
        size_bytes: int,
        alignment: int,
        footer_bytes: int,
        first_sequence: int,
        salt: int,
        segment_format: int = SEGMENT_FORMAT,
    ) -> None:
        self.number = number
        self.format = segment_format
        self.name = segment_name(number)
        self.size_bytes = size_bytes
        self.alignment = alignment
        self.first_sequence = first_sequence
        self.salt = salt
        self.data_start = align_up(SEGMENT_HEADER_BYTES, alignment)
        self.footer_at = size_bytes - footer_bytes
        self.data_limit = self.footer_at - alignment
        self.first_offset: int | None = None
        self.last_offset = 0
        self.frame_count = 0
        self.end = self.data_start
        self.durable_end = self.data_start
        self.index: list[tuple[int, int]] | None = []
        self.last_indexed = 0
        self.index_capacity = (footer_bytes - _FOOTER.size - 4) // _FOOTER_ENTRY_BYTES
        self.file: File | None = None
        self.closed = False

    @classmethod
    def from_header(cls, header: SegmentHeader) -> Self:
        return cls(
            header.number,
            header.size_bytes,
            header.alignment,
            header.footer_bytes,
            header.first_sequence,
            header.salt,
            header.format,
        )

    def header(self, identity: JournalIdentity) -> SegmentHeader:
        return SegmentHeader(
            number=self.number,
            size_bytes=self.size_bytes,
            alignment=self.alignment,
            footer_bytes=self.size_bytes - self.footer_at,
            first_sequence=self.first_sequence,
            salt=self.salt,
            identity=identity,
            format=self.format,
        )

    @property
    def next_group(self) -> int:
        """Where the next group would begin."""
        return align_up(self.end, self.alignment)

    def add_batch(self, first_offset: int, last_offset: int, position: int, index_interval: int) -> None:
        """Note that the batch `first_offset`..`last_offset` lies at `position`, after everything noted before."""
        if self.first_offset is None:
            self.first_offset = first_offset
        self.last_offset = last_offset
        index = self.index
        assert index is not None, f"{self.name} is sealed"
        if not index or (position - self.last_indexed >= index_interval and len(index) < self.index_capacity):
            index.append((first_offset, position))
            self.last_indexed = position

    def begin_group(self, start: int) -> None:
        """Note that the frames of a group stand from `start` on."""
        self.end = start

    def add_frame(self, end: int) -> None:
        """Note that a frame ends at `end`, right behind those before it: it was read, or laid out."""
        self.end = end
        self.frame_count += 1

    def synced(self, file: File | None, end: int) -> None:
        """Note that everything up to `end` is on the disk, in `file`, which stays open."""
        self.file = file
        self.durable_end = end

    def read_whole(self) -> None:
        """Note that everything that was read is on the disk."""
        self.durable_end = self.end

    def end_at(self, end: int) -> None:
        """Go on behind `end`, which a closing group has reached durably."""
        self.end = self.durable_end = end

    def settle(self, *, index_in_footer: bool) -> None:
        """Note that all of it is on the disk, and that nothing follows; its index stands in the footer, or in memory."""
        self.closed = True
        if index_in_footer:
            self.index = None

    def release(self) -> None:
        """Close its file, if that is open."""
        if self.file is not None:
            self.file.close()
        self.file = None

    def cut(self, offset: int) -> None:
        """Note that what follows log offset `offset` is dead."""
        if self.first_offset is not None and self.first_offset > offset:
            self.first_offset = None
            self.last_offset = 0
        elif self.last_offset > offset:
            self.last_offset = offset

    def footer(self) -> Footer:
        """The footer for what is in the segment now; `index` must be in memory."""
        assert self.index is not None, f"{self.name}: the index has left memory"
        return Footer(self.first_offset or 0, self.last_offset, self.frame_count, self.end, self.index)


def footer_bytes_for(size_bytes: int, alignment: int, index_interval: int) -> int:
    """How much a segment of `size_bytes` must keep for its footer."""
    entries = size_bytes // index_interval + 2
    return align_up(_FOOTER.size + entries * _FOOTER_ENTRY_BYTES + 4, alignment)


class FrameReader:
    """Reads frames from a segment file through a window, so that a scan costs few reads and bounded memory."""

    __slots__ = ("_at", "_data", "_file", "_name", "_view", "_window_bytes")

    def __init__(self, file: File, name: str, window_bytes: int = 1 << 20) -> None:
        self._file = file
        self._name = name
        self._window_bytes = window_bytes
        self._data = b""
        self._view = memoryview(self._data)
        self._at = 0

    def bytes_at(self, position: int, length: int, limit: int) -> bytes:
        """Up to `length` bytes from `position` on, none of them at or beyond `limit`."""
        if length > limit - position:
            length = limit - position
        if length <= 0:
            return b""
        start = position - self._at
        if start < 0 or start + length > len(self._data):
            self._data = self._file.read(position, min(max(length, self._window_bytes), limit - position))
            self._view = memoryview(self._data)
            self._at = position
            start = 0
        return self._data[start : start + length]

    def forget(self) -> None:
        """Let go of what is in the window: the file is being written, and the next read has to see it as it is then."""
        self._data = b""
        self._view = memoryview(self._data)
        self._at = 0

    def frame_at(self, position: int, limit: int) -> bytes:
        """The undamaged frame that begins at `position` and ends at or before `limit`.

        Raises:
            CorruptFrameError: there is none.
            FrameVersionError: there is one, of a newer version.
        """
        start = position - self._at
        if start >= 0:  # nearly all frames are sound and in the window; about others is found out below
            end = frames.sound_frame_end(self._data, self._view, start)
            if end and end + self._at <= limit:
                return self._data[start:end]
        head = self.bytes_at(position, frames.BATCH_HEADER_BYTES, limit)
        place = Place(self._name, position)
        length = frames.frame_length(head, place=place)
        if length > limit - position:
            raise CorruptFrameError(place, f"frame of {length} bytes where {limit - position} are left")
        result = self.bytes_at(position, length, limit)
        frames.verify_frame(result, place=place)
        return result


class Readable(Protocol):
    """All that a read has to know of a segment: a `Segment`, or a copy for another thread."""

    @property
    def name(self) -> str: ...
    @property
    def alignment(self) -> int: ...
    @property
    def footer_at(self) -> int: ...
    @property
    def index(self) -> Sequence[tuple[int, int]] | None: ...


def read_frames(storage: Storage, segment: Readable, position: int, limit: int) -> Iterator[tuple[bytes, int]]:
    """The frames of `segment` in [position, limit), each with its position; group notes too.

    `position` is where a frame begins or ends.

    Raises:
        JournalDamagedError: there is something else.
    """
    file = storage.open(segment.name)
    try:
        reader = FrameReader(file, segment.name, READ_WINDOW_BYTES)
        while position < limit:
            if reader.bytes_at(position, 3, limit) != b"USL":  # the end of a group, or of what a recovery left of one
                end, position = position, align_up(position + 1, segment.alignment)
                note = reader.bytes_at(position, GROUP_BYTES, limit)
                group = GroupHeader.decode(note, segment_number(segment.name) or 0, position, None)
                if group is None or group.previous_end != end:
                    raise JournalDamagedError(
                        storage, segment.name, end, "no frame begins here, and no group ends here"
                    )
            try:
                frame = reader.frame_at(position, limit)
            except frames.FrameError as error:
                raise JournalDamagedError(storage, segment.name, position, str(error)) from error
            yield frame, position
            position += len(frame)
    finally:
        file.close()


def read_index(storage: Storage, segment: Readable) -> Sequence[tuple[int, int]]:
    """The sparse index of `segment`, from memory or its footer; if that is damaged, none: a search takes longer."""
    if segment.index is not None:
        return segment.index
    file = storage.open(segment.name)
    try:
        footer = Footer.read(file, segment.footer_at)
    finally:
        file.close()
    return footer.entries if footer is not None else []


def first_nonzero(file: File, start: int, end: int) -> int | None:
    """Position of the first byte in [start, end) that is not zero; None if all are, or the file ends."""
    while start < end:
        length = min(len(_ZEROS), end - start)
        data = file.read(start, length)
        if data != (_ZEROS if len(data) == len(_ZEROS) else _ZEROS[: len(data)]):
            return start + len(data) - len(data.lstrip(b"\0"))
        if len(data) < length:
            return None
        start += length
    return None


def later_group(file: File, segment: Segment, start: int, sequence: int) -> int | None:
    """The sequence number of a group note beyond `start` that is above `sequence`; None if there is none."""
    step = segment.alignment
    per_chunk = max(_SEARCH_BYTES // step, 1) * step
    for at in range(start, segment.footer_at, per_chunk):
        data = file.read(at, min(per_chunk, segment.footer_at - at))
        for offset in range(0, len(data), step):
            if data[offset : offset + 4] == NOTE_MAGIC:
                note = data[offset : offset + GROUP_BYTES]
                group = GroupHeader.decode(note, segment.number, at + offset, segment.salt)
                if group is not None and group.sequence > sequence:
                    return group.sequence
    return None
