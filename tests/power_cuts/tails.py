"""Tails over power cuts: a feed or an outlet has read a journal up to a place, and goes on there when the power is back.

What it has read may be gone, for a tail reads what is not synced yet. Then it must hear that the journal was rewritten, and read
that from its begin. Else it must yield what follows, each frame once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs

from tests.power_cuts.cut_images import CutImages, Image, digest
from tests.power_cuts.life import TINY, BrokenError, Life, Script, TracedDisk
from tests.unit.log.journal_kit import IDENTITY, Recorder, batch
from understudy.broker.log import journal_recovery
from understudy.broker.log.journal_tail import JournalTail, Place, SegmentsGone
from understudy.broker.log.segment import JournalDamagedError, NoJournalError
from understudy.testing.disk import MemoryStorage

LATER = attrs.evolve(TINY, salt=99)
"""Of the process that starts when the power is back: each process has a salt and a time of its own."""


def _read(disk: MemoryStorage, place: Place | None) -> tuple[list[bytes], SegmentsGone | None, Place | None]:
    """The frames that a tail yields from ``place`` on, behind the last gap; the gap; where it ends."""
    tail = JournalTail(disk, place)
    frames: list[bytes] = []
    gone = None
    try:
        for each in tail.frames():
            if isinstance(each, bytes):
                frames.append(each)
            elif isinstance(each, SegmentsGone):
                gone = each
                frames.clear()
        tail.find_damage()
    except NoJournalError:
        return [], SegmentsGone(0, 0, rewritten=True), None
    except JournalDamagedError as error:
        raise BrokenError(f"a tail takes a power cut for damage: {error}") from error
    return frames, gone, tail.place()


def _is_begin(read: Sequence[bytes], found: Sequence[bytes]) -> int:
    """How many of the frames that were found have been read, if what was read is their begin; else -1.

    The first ones that were read may have been dropped since.
    """
    dropped = list(read).index(found[0]) if found and found[0] in read else (0 if read[:1] == found[:1] else len(read))
    rest = list(read[dropped:])
    if read and dropped == len(read):
        return -1
    return len(rest) if rest == list(found[: len(rest)]) else -1


class Tails:
    """A tail reads at each moment of a life, and goes on in each image that a cut there leaves.

    Attributes:
        outcomes: how often it went on, and heard that the journal was rewritten, by whether what it had read was there.
    """

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()

    def follow(self, script: Script) -> None:
        """Check one life.

        Raises:
            BrokenError: a tail said or yielded something else.
        """
        life = Life()
        seen: set[tuple[bytes, Place]] = set()

        def look(disk: MemoryStorage) -> None:
            read, _, place = _read(disk, None) if disk.names() else ([], None, None)
            if place is None:
                return
            for image in CutImages(disk).all():
                if (digest(image), place) not in seen:
                    seen.add((digest(image), place))
                    self._go_on(image, read, place)

        life.disk.watch = look
        script(life)
        look(life.disk)

    def _go_on(self, image: Image, read: list[bytes], place: Place) -> None:
        """Start from ``image``, and append a group and two more; the tail goes on at ``place`` each time."""
        disk = TracedDisk()
        disk.become(image)
        recorder = Recorder()
        journal = journal_recovery.recover(disk, IDENTITY, LATER, recorder, wall_ms=lambda: 12_345).journal
        found = recorder.frames
        for groups in (0, 1, 2):
            for _ in range(groups):
                frame = batch(journal.last_offset + 1, size=300, epoch=99)
                journal.append(frame)
                journal.sync_now()
                found.append(frame)
            self._judge(read, found, *_read(disk, place)[:2])

    def _judge(self, read: list[bytes], found: list[bytes], yielded: list[bytes], gone: SegmentsGone | None) -> None:
        begin = _is_begin(read, found)
        if gone is not None and gone.rewritten:
            expected, outcome = found, "rewritten"
        elif begin < 0:
            raise BrokenError(f"{len(read)} frames were read, some are gone, and a tail yields {len(yielded)} more")
        else:
            expected, outcome = found[begin:], "goes on"
        if yielded != expected:
            raise BrokenError(f"a tail ({outcome}) yields {len(yielded)} frames instead of {len(expected)}")
        self.outcomes[f"{outcome}, {'lost' if begin < 0 else 'there'}"] += 1
