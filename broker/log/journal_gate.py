"""JournalGate: what the core hands to the journal, and what it is told when that is durable.

**Formats.** A note's kind is its format: a payload that changes gets a kind of its own, and the old one is read for as long as
journals may hold it. What is kept inside others (the meta of a state without messages, a plugin's part of a checkpoint)
begins with a format number. A kind or a number that is not known stops the start and changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Protocol

from understudy.broker.errors import UnderstudyError
from understudy.broker.log import frame

CHECKPOINT = frame.FIRST_OWNER_KIND + 3
AGAIN = frame.FIRST_OWNER_KIND + 5
SETTLED = frame.FIRST_OWNER_KIND + 6
REPAIRED = frame.FIRST_OWNER_KIND + 7
HANDED_OUT = frame.FIRST_OWNER_KIND + 8
"""Kinds of the broker's notes: facts of this broker that are not part of the log."""
OWN_KINDS = frozenset({CHECKPOINT, AGAIN, SETTLED, REPAIRED, HANDED_OUT})
"""All of them. Notes of other kinds, from `frame.FIRST_OWNER_KIND` on, are the plugin's that extends the core."""
RESTART = b"restart"
"""Marks a CUT to 0 behind which the log begins anew, and undoes nothing; the stable position of the old log stands behind it."""
_U64 = Struct(">Q")


class UnknownNoteError(UnderstudyError):
    """The journal holds notes that this program, with the plugins that are switched on, does not know."""


class NoteFormatError(UnderstudyError):
    """A part of a note is of a format that this program does not know."""

    def __init__(self, what: str, found: int, supported: int, oldest: int = 1) -> None:
        super().__init__(
            f"there is a {what} of format {found}; this program reads formats {oldest} to {supported}. Nothing was changed; "
            f"run the {'newer' if found > supported else 'older'} program"
        )


def check_format(what: str, found: int, supported: int, oldest: int = 1) -> None:
    """Raises :class:`NoteFormatError` unless ``oldest`` <= ``found`` <= ``supported``."""
    if not oldest <= found <= supported:
        raise NoteFormatError(what, found, supported, oldest)


class JournalPort(Protocol):
    """The journal as the core sees it."""

    def append(self, frame: bytes) -> int | None:
        """Take a complete frame; it is written with the next group. Returns its place (`body_place.frame_place`), if it has one."""

    def sync_now(self) -> None:
        """Everything appended is durable when this returns. For rare things only: it blocks."""

    def begin_anew(self, checkpoint: bytes) -> None:
        """Everything appended is let go; the journal begins with this frame, durably when this returns."""


class JournalGate:
    """Counts frames, so that "that group is on disk" becomes "the log is durable up to here" and "tell me then".

    A driver notes ``appended`` when it begins a group and calls :meth:`durable_to` with it when the group is fsynced.
    """

    def __init__(self, port: JournalPort, durable_offset: int = 0) -> None:
        """``durable_offset``: what a recovery has read."""
        self._port = port
        self.appended = 0
        self._marks: deque[tuple[int, int, Callable[[], None] | None]] = deque()
        self.durable_offset = durable_offset

    @staticmethod
    def restarted_at(mark: bytes) -> int | None:
        """The stable position that a CUT's mark states, None if it is not one of :meth:`append_restart`."""
        return int(_U64.unpack_from(mark, len(RESTART))[0]) if mark.startswith(RESTART) else None

    def append_batch(self, data: bytes, last_offset: int) -> None:
        """A batch of the log that ends at ``last_offset``."""
        self._port.append(data)
        self.appended += 1
        self._marks.append((self.appended, last_offset, None))

    def append_note(self, kind: int, payload: bytes, then: Callable[[], None] | None = None) -> int:
        """A note; ``then`` is called when it is durable. Returns its place (`body_place.frame_place`), 0 if it has none."""
        place = self._port.append(frame.encode_note(kind, payload))
        self.appended += 1
        if then is not None:
            self._marks.append((self.appended, 0, then))
        return place or 0

    def cut(self, offset: int) -> None:
        """Batches after ``offset`` no longer count; durable on return."""
        self._port.append(frame.encode_cut(offset))
        self.appended += 1
        self.sync_now()
        self.durable_offset = min(self.durable_offset, offset)

    def append_restart(self, stable: int) -> int:
        """The log begins anew, anywhere: a state without messages follows, in a plugin's note.

        Returns:
            The place of the CUT (`body_place.frame_place`), 0 if it has none.

        ``stable`` is how far the old one was known to be stable: what follows brings the difference to what was applied of it, so
        a recovery must come to the same.
        """
        place = self._port.append(frame.encode_cut(0, RESTART + _U64.pack(stable)))
        self.appended += 1
        # Batches of the log that ends here say nothing of the one that begins.
        self._marks = deque((count, 0, then) for count, _, then in self._marks)
        self.durable_offset = 0
        return place or 0

    def begin_anew(self, checkpoint: bytes) -> None:
        """Let go of everything, durably on return: the journal holds the payload ``checkpoint``, of a CHECKPOINT note, alone.

        The core must be recovered anew afterwards: what it holds is not in the journal any more.
        """
        self._marks.clear()
        self.durable_offset = 0
        self._port.begin_anew(frame.encode_note(CHECKPOINT, checkpoint))

    def sync_now(self) -> None:
        """Everything appended so far is durable on return; marks are told."""
        upto = self.appended
        self._port.sync_now()
        self.durable_to(upto)

    def durable_to(self, count: int) -> None:
        """The first ``count`` frames are durable."""
        marks = self._marks
        while marks and marks[0][0] <= count:
            _, offset, then = marks.popleft()
            if offset:
                self.durable_offset = offset
            if then is not None:
                then()
