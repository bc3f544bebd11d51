"""Places of bodies in a broker's own journal, for messages whose `offset` does not say where the body stands.

`Message.place` is `AT_OFFSET` as long as the message's record is in the log that goes on. It is `NOWHERE` if no journal gives
the body back, and `AWAITED` until the note that brings the message is durable. Else it is a positive number, made here, of one
of two kinds:

- in a note: the message was written again by a compaction, or came in a note of a plugin;
- before a restart: its record stands in a log that has ended (a CUT to 0), at the offset that it had there.

A *frame's place* is one number, too: the segment's number and the frame's first byte in it. 0 is no frame.
"""

from __future__ import annotations

from typing import Final, NamedTuple

AT_OFFSET: Final = 0
NOWHERE: Final = -1
AWAITED: Final = -2

_POSITION_BITS: Final = 40
_POSITION_MASK: Final = (1 << _POSITION_BITS) - 1
_LOW_MASK: Final = (1 << 64) - 1
_U32_MASK: Final = (1 << 32) - 1


def frame_place(segment: int, position: int) -> int:
    """The place of a frame at byte ``position`` of segment ``segment``."""
    return segment << _POSITION_BITS | position


def segment_and_position(place: int) -> tuple[int, int]:
    """The segment's number and the byte of a frame's place."""
    return place >> _POSITION_BITS, place & _POSITION_MASK


def in_note(note: int, at: int, size: int) -> int:
    """The place of a message whose encoding of ``size`` octets begins at octet ``at`` of the frame at ``note``."""
    return (note << 64 | at << 32 | size) << 1 | 1 if note else NOWHERE


def before_restart(cut: int, offset: int) -> int:
    """The place of a message whose record had ``offset`` in the log that the CUT at ``cut`` has ended."""
    return (cut << 64 | offset) << 1 if cut else NOWHERE


class NotePlace(NamedTuple):
    """See `in_note`."""

    segment: int
    position: int
    at: int
    size: int


class EndedPlace(NamedTuple):
    """See `before_restart`."""

    cut: int
    offset: int


def place_of(place: int) -> NotePlace | EndedPlace:
    """The parts of a positive place."""
    assert place > 0, f"{place} is no place of a body"
    frame, low = place >> 65, place >> 1 & _LOW_MASK
    if place & 1:
        return NotePlace(*segment_and_position(frame), low >> 32, low & _U32_MASK)
    return EndedPlace(frame, low)
