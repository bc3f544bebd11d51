"""Frames of a link: bytes to (kind, body) and back, and nothing about what they mean.

    offset  0  u32 length of the body
            4  u32 crc32 of length, kind, and what of the body is covered
            8  u8  kind
            9      body

All integers are big-endian. Covered is the whole body, but for a BATCH message only its first nine octets, kind and stable
position: the rest is the journal's frame, whose own checksum the backup verifies before it believes a byte of it, and which
was computed once for all brokers (``log.frame``). Covering it again would cost every broker 0.3 us a KB for nothing. Covering
nothing was refused: a flipped bit in the stable position would apply what is not stable.

A reader holds at most one unfinished frame, and copies the body of a frame once, however many reads it came in. A large BATCH
message is gathered into a `LargeBuffer`, whose checksum is that of the batch's payload: nothing touches all of it at once.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from understudy.broker.errors import UnderstudyError
from understudy.broker.log.frame import BATCH_HEADER_BYTES
from understudy.broker.octets.checksum import crc32
from understudy.broker.octets.chunks import LARGE_BYTES, Chunks, LargeBuffer, crc32_of, named_bytes
from understudy.replicator import wire

HEAD: Final = Struct(">IIB")
HEAD_BYTES: Final = HEAD.size
_CHECKED_HEAD: Final = Struct(">IB")
_BATCH: Final = bytes((wire.BATCH,))
_BATCH_HEAD_BYTES: Final = 9

MESSAGE: Final = 6
"""The kind of frame that carries what the core says; the others are the session's own (``session``)."""


class FramingError(UnderstudyError):
    """The octets that came are no valid frame. The stream cannot be read on from here."""


def frame_head(kind: int, body: bytes) -> bytes:
    """The head before ``body``; the body itself is written as it is, uncopied."""
    length = len(body)
    covered = body[:_BATCH_HEAD_BYTES] if kind == MESSAGE and body[:1] == _BATCH else body
    return HEAD.pack(length, crc32(covered, crc32(_CHECKED_HEAD.pack(length, kind))), kind)


def large_frame_head(message: Chunks) -> bytes:
    """The same for a message in several buffers."""
    length = len(message)
    crc = crc32(_CHECKED_HEAD.pack(length, MESSAGE))
    is_batch = message.head[:1] == _BATCH
    crc = crc32(message.head[:_BATCH_HEAD_BYTES], crc) if is_batch else crc32_of(message.chunks, crc)
    return HEAD.pack(length, crc, MESSAGE)


def _damaged(kind: int, body: bytes) -> FramingError:
    return FramingError(f"checksum of a frame of kind {kind} and {len(body)} bytes does not agree")


class FrameReader:
    """Takes bytes as they come, gives frames.

    Attributes:
        limit: the longest body that is taken. Looked at when a frame's head is read, so raising it between two calls of
            :meth:`next_frame` counts for what is already here.
        more: there may be another frame; while it is False, :meth:`next_frame` has nothing to give.
    """

    __slots__ = ("_at", "_chunk", "_head", "_large", "_missing", "_pieces", "limit", "more")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.more = False
        self._chunk = b""
        self._at = 0
        self._head = (0, 0)
        self._missing = 0
        self._pieces: list[bytes | memoryview] = []
        self._large: LargeBuffer | None = None

    def take_up_to(self, limit: int) -> None:
        """Take frames of at most ``limit`` bytes from now on."""
        self.limit = limit

    def add(self, data: bytes) -> None:
        """Take the next bytes. What came before must have been read up: there is no :attr:`more`."""
        # What is left over is less than a head, so nothing long is ever copied here.
        self._chunk = self._chunk[self._at :] + data if self._at < len(self._chunk) else data
        self._at = 0
        self.more = True

    def rest(self) -> bytes:
        """Octets behind the last frame, given once; none of them is a frame's."""
        rest = self._chunk[self._at :]
        self._at = len(self._chunk)
        self.more = False
        return rest

    def next_frame(self) -> tuple[int, bytes] | None:
        """The next whole frame, as (kind, body); None until more bytes have come.

        Raises:
            FramingError: a body is longer than ``limit``, or a checksum does not agree.
        """
        if self._missing:
            return self._go_on()
        chunk, at = self._chunk, self._at
        there = len(chunk)
        start = at + HEAD_BYTES
        if start > there:
            self.more = False
            return None
        length, checksum, kind = HEAD.unpack_from(chunk, at)
        if length > self.limit:
            raise FramingError(f"a frame of {length} bytes, at most {self.limit} are taken")
        end = start + length
        if end <= there:
            self._at = end
            self.more = end < there
            body = chunk[start:end]
            covered = body[:_BATCH_HEAD_BYTES] if kind == MESSAGE and body[:1] == _BATCH else body
            if crc32(covered, crc32(_CHECKED_HEAD.pack(length, kind))) != checksum:
                raise _damaged(kind, body)
            return kind, body
        self._head = (kind, checksum)
        if length >= LARGE_BYTES and kind == MESSAGE and chunk[start : start + 1] == _BATCH:
            self._large = LargeBuffer(_BATCH_HEAD_BYTES + BATCH_HEADER_BYTES)
            self._large.take(memoryview(chunk)[start:])
        else:
            self._pieces.append(memoryview(chunk)[start:])
        self._missing = end - there
        self._at = there
        self.more = False
        return None

    def _go_on(self) -> tuple[int, bytes] | None:
        """Gather the pieces of a frame that a read has cut; nothing is joined before the last is there."""
        chunk = self._chunk
        if self._at:
            return None  # this chunk has been gathered
        if len(chunk) < self._missing:
            if self._large is not None:
                self._large.take(chunk)
            else:
                self._pieces.append(chunk)
            self._missing -= len(chunk)
            self._at = len(chunk)
            self.more = False
            return None
        last = memoryview(chunk)[: self._missing]
        self._at = self._missing
        self._missing = 0
        self.more = self._at < len(chunk)
        large, self._large = self._large, None
        if large is not None:
            large.take(last)
            return self._large_frame(large)
        body = b"".join((*self._pieces, last))
        self._pieces.clear()
        kind, checksum = self._head
        if HEAD.unpack(frame_head(kind, body))[1] != checksum:
            raise _damaged(kind, body)
        return kind, body

    def _large_frame(self, body: LargeBuffer) -> tuple[int, bytes]:
        kind, checksum = self._head
        if crc32(body[:_BATCH_HEAD_BYTES], crc32(_CHECKED_HEAD.pack(len(body), kind))) != checksum:
            raise _damaged(kind, named_bytes(body))
        return kind, named_bytes(body)
