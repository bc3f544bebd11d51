"""Octets in several buffers: what is large is neither copied into one buffer nor read through in one go.

A body of 250 MB that is joined, checksummed or copied at once holds the event loop for 60 to 200 ms each time, and meanwhile
no client is answered and no heartbeat goes out. So a large body is gathered into a `LargeBuffer`, which takes its
checksum piece by piece as they come, and whatever goes around the body (a batch, a message on a link, the frames of a delivery)
is a `Chunks`: a list of buffers, of which the body is one. Their owner writes them with one call that takes many buffers.

**Types.** Ports and functions that mostly see small things say ``bytes``. What is large reaches them under that name as a
`LargeBuffer`, a read-only ``memoryview`` of one, or a `Chunks`, and they do with it only what all of these can: ``len``, the octets
at the beginning, passing it on. The places that do more ask `as_chunks` or `as_large`. Refused: a union type in all signatures; it
would stand in sixty, and be looked at in ten.

The bytes on the disk and on the wire are the same as those of the joined form. What is smaller than `LARGE_BYTES` is `bytes`
as ever, and takes no step more.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final, cast

from understudy.broker.octets.checksum import crc32

LARGE_BYTES: Final = 1 << 20
"""From here on a body is gathered into a `LargeBuffer`. A copy of so much takes 0.2 ms."""

_POLYNOMIAL: Final = 0xEDB88320


class LargeBuffer(bytearray):
    """Octets that came in pieces. Nobody changes them when they are whole.

    Attributes:
        crc: the checksum of all octets from ``skip`` on.
        skip: how many octets at the beginning the checksum passes over.
    """

    __slots__ = ("crc", "skip")

    def __init__(self, skip: int = 0) -> None:
        super().__init__()
        self.skip = skip
        self.crc = 0

    def take(self, piece: bytes | memoryview) -> None:
        """Append the next piece. It should be small: this holds the loop."""
        passed_over = self.skip - len(self)
        self.extend(piece)  # grows by moving pages: a large one is not copied
        self.crc = crc32(memoryview(piece)[passed_over:] if passed_over > 0 else piece, self.crc)


class Chunks:
    """A sequence of octets that lies in several buffers, the first of which holds whatever its readers look at."""

    __slots__ = ("_length", "chunks")

    def __init__(self, chunks: Sequence[bytes | memoryview]) -> None:
        self.chunks = tuple(chunks)
        self._length = sum(map(len, chunks))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int | slice) -> Any:
        """Of the first buffer."""
        return self.chunks[0][index]

    def __bytes__(self) -> bytes:
        """All of it in one buffer: for what is rare, and for tests."""
        return b"".join(self.chunks)

    @property
    def head(self) -> bytes | memoryview:
        """The first buffer."""
        return self.chunks[0]


def named_bytes(octets: Chunks | LargeBuffer | memoryview) -> bytes:
    """The same object, under the name by which it is passed on."""
    return cast("bytes", octets)


def as_chunks(octets: object) -> Chunks | None:
    """``octets`` if they lie in several buffers."""
    return octets if isinstance(octets, Chunks) else None


def as_large(octets: object) -> LargeBuffer | None:
    """``octets`` if they were gathered, and have a checksum."""
    return octets if isinstance(octets, LargeBuffer) else None


def joined_to(head: bytes, octets: bytes) -> bytes:
    """``head``, and then ``octets``, which are large and not copied."""
    chunks = as_chunks(octets)
    return named_bytes(Chunks((head, *(chunks.chunks if chunks is not None else (octets,)))))


def merged(parts: Sequence[bytes]) -> list[bytes]:
    """The same octets in as few buffers as can be without a copy of a large one."""
    buffers: list[bytes] = []
    small: list[bytes] = []
    for part in parts:
        if len(part) < LARGE_BYTES:
            small.append(part)
        else:
            buffers += (b"".join(small), part)
            small.clear()
    buffers.append(b"".join(small))
    return [buffer for buffer in buffers if buffer]


def joined(parts: Sequence[bytes]) -> bytes:
    """All of ``parts``: as ``bytes``, or in several buffers if some are large."""
    buffers = merged(parts)
    return buffers[0] if len(buffers) == 1 else named_bytes(Chunks(buffers))


def crc32_of(buffers: Sequence[bytes | memoryview], crc: int) -> int:
    """The checksum ``crc``, continued over ``buffers``; one that was gathered is not read again."""
    for buffer in buffers:
        large = as_large(buffer)
        crc = crc32(buffer, crc) if large is None or large.skip else crc32_combine(crc, large.crc, len(large))
    return crc


def flat(buffers: Sequence[bytes]) -> list[bytes]:
    """The buffers of all of these, in order."""
    flattened: list[Any] = []
    for buffer in buffers:
        chunks = as_chunks(buffer)
        if chunks is not None:
            flattened += chunks.chunks
        else:
            flattened.append(buffer)
    return flattened


def crc32_combine(first: int, second: int, second_bytes: int) -> int:
    """The checksum of two sequences, one after the other, from those of each; zlib's function of that name, which Python lacks.

    Args:
        first: crc32 of the first sequence.
        second: crc32 of the second one.
        second_bytes: its length.
    """
    power = 0
    while second_bytes:
        if second_bytes & 1:
            first = _times(_zeros(power), first)
        second_bytes >>= 1
        power += 1
    return first ^ second


def _times(matrix: Sequence[int], vector: int) -> int:
    """A vector of 32 bits times a matrix of 32 columns, over the field of two elements."""
    product = 0
    for column in matrix:
        if vector & 1:
            product ^= column
        vector >>= 1
        if not vector:
            break
    return product


@cache
def _zeros(power: int) -> tuple[int, ...]:
    """The effect of 2 ** ``power`` zero octets on a checksum, as a matrix."""
    if power == 0:
        one_bit: tuple[int, ...] = (_POLYNOMIAL, *(1 << n for n in range(31)))
        two_bits = tuple(_times(one_bit, column) for column in one_bit)
        half = tuple(_times(two_bits, column) for column in two_bits)
    else:
        half = _zeros(power - 1)
    return tuple(_times(half, column) for column in half)
