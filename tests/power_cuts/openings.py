"""Openings: what the real recovery makes of an image, and all that must hold of it whatever was told before.

Each distinct image is opened once. Of an image that can be started from:

- a second start finds the same;
- a cut of the power at any operation of the first start leaves an image in which the next start finds the same;
- the batches that are alive can be read, and no other;
- groups that are appended then, and torn by another cut, are found up to a frame, behind all that was found before;
- what is appended and synced then is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import attrs

from tests.power_cuts.cut_images import CutImages, Image, digest, storage_of
from tests.power_cuts.life import BrokenError, TracedDisk
from tests.unit.log.journal_kit import IDENTITY, KIND, Recorder, batch
from understudy.broker.log import frame as frames
from understudy.broker.log import journal_recovery
from understudy.broker.log.frame import BATCH_MAGIC, KIND_CUT
from understudy.broker.log.journal import Journal, JournalOptions
from understudy.testing.disk import MemoryStorage

TORN_GROUP = (150, 700, 300)
"""Sizes of the batches that are appended to what was found and torn."""


@attrs.frozen
class Opened:
    """The findings of a start.

    Attributes:
        frames: in order; empty if it was refused.
        refused: the error of the start; "" if there was none.
    """

    frames: tuple[bytes, ...]
    refused: str = ""


@attrs.define
class Counts:
    """How many were checked.

    Attributes:
        points: moments at which the power was cut.
        states: images that could be left there, each with what had been told by then.
        images: distinct ones among them, and among those below.
        in_recovery: images left by a cut in a start.
        torn_again: images left by a cut in a group that was appended after a start.
    """

    points: int = 0
    states: int = 0
    images: int = 0
    in_recovery: int = 0
    torn_again: int = 0

    @property
    def total(self) -> int:
        """All images with what must be found in them."""
        return self.states + self.in_recovery + self.torn_again

    def __str__(self) -> str:
        return (
            f"{self.points:,} moments, {self.states:,} states, {self.in_recovery:,} in a start, {self.torn_again:,} torn"
            f" again: {self.total:,} in all, {self.images:,} distinct images"
        )


def live_batches(found: Sequence[bytes]) -> dict[bytes, int]:
    """The batches that no later CUT has killed, each with its last live offset."""
    live: dict[bytes, int] = {}
    for frame in found:
        if frame.startswith(BATCH_MAGIC):
            live[frame] = frames.decode_batch_header(frame).last_offset
        elif frame[5] == KIND_CUT:
            cut, _ = frames.decode_cut(frame[frames.NOTE_HEADER_BYTES :])
            kept = {each for each in live if frames.decode_batch_header(each).first_offset <= cut}
            live = {each: min(last, cut) for each, last in live.items() if each in kept}
    return live


class Openings:
    """Opens images; remembers what came of each.

    Args:
        options: of the journals.
        counts: are added to.
        rng: None: each cut in a start and in a group appended to it leaves every image; else one is drawn for each such cut.
    """

    def __init__(self, options: JournalOptions, counts: Counts, rng: Random | None = None) -> None:
        self._options = options
        self.counts = counts
        self._rng = rng
        self._opened: dict[bytes, Opened] = {}
        self._followed: set[bytes] = set()

    def open(self, image: Image) -> Opened:
        """The findings of a start; if they are new, all else is checked that must hold.

        Raises:
            BrokenError: something of that does not hold.
        """
        name = digest(image)
        opened = self._opened.get(name)
        if opened is None:
            self.counts.images += 1
            opened = self._start(name, image)
        return opened

    def _start(self, key: bytes, image: Image) -> Opened:
        disk = TracedDisk()
        disk.become(image)
        cuts: list[CutImages] = []
        disk.watch = lambda at: cuts.append(CutImages(at))
        try:
            found, journal = self._recover(disk)
        except Exception as error:  # noqa: BLE001  # what it was is for the law to judge
            opened = self._opened[key] = Opened((), f"{type(error).__name__}: {error}")
            return opened
        opened = self._opened[key] = Opened(tuple(found))
        disk.watch = None
        self._expect(cuts, found)
        left = {each: disk.content(each) for each in disk.names()}
        name = digest(left)
        if name not in self._followed:
            self._followed.add(name)
            self._follow(left, found, journal)
        return opened

    def _recover(self, disk: MemoryStorage) -> tuple[list[bytes], Journal]:
        recorder = Recorder()
        checkpoints = iter(range(1_000))
        recovered = journal_recovery.recover(
            disk,
            IDENTITY,
            self._options,
            recorder,
            checkpoint=lambda: frames.encode_note(KIND + 2, b"later %d" % next(checkpoints)),
        )
        return recorder.frames, recovered.journal

    def _expect(self, cuts: list[CutImages], found: list[bytes]) -> None:
        """In each image that a cut in a start may leave, the next start finds what that one has found.

        A sector that is torn in its midst twice may bring back the rest of a group that nobody was told of: no start has ended.
        """
        for cut in cuts:
            for image in cut.all() if self._rng is None else [cut.drawn(self._rng)]:
                self.counts.in_recovery += 1
                again = self.open(image)
                same = again.frames if self._rng is None else again.frames[: len(found)]
                if again.refused or same != tuple(found):
                    what = again.refused or f"{len(again.frames)} frames"
                    raise BrokenError(f"after a cut in a start: {what} instead of {len(found)} frames")

    def _follow(self, left: Image, found: list[bytes], journal: Journal) -> None:
        """A start has left ``left`` and found ``found``."""
        live = live_batches(found)
        first = journal.first_offset
        read = [] if first is None else list(journal.read_batches(first))
        if read != [each for each in live if frames.decode_batch_header(each).first_offset <= live[each]]:
            raise BrokenError(f"{len(read)} batches are read where {len(live)} are alive")
        if journal.last_offset != max(live.values(), default=journal.last_offset):
            raise BrokenError(f"the log ends at {journal.last_offset}, its last batch at {max(live.values())}")
        again, _ = self._recover(storage_of(left))
        if again != found:
            raise BrokenError(f"a second start finds {len(again)} frames, the first {len(found)}")
        self._tear(left, found)
        self._go_on(left, found)

    def _appended(self, disk: TracedDisk) -> tuple[Journal, list[bytes], list[bytes]]:
        found, journal = self._recover(disk)
        new = [batch(journal.last_offset + 1 + at, size=size, epoch=9) for at, size in enumerate(TORN_GROUP)]
        for frame in new:
            journal.append(frame)
        return journal, found, new

    def _tear(self, left: Image, found: list[bytes]) -> None:
        """A group is written and the power is cut before it is synced, then again in the same way."""
        disk = TracedDisk()
        disk.become(left)
        journal, _, new = self._appended(disk)
        job = journal.begin_sync()
        assert job is not None
        cuts: list[CutImages] = []
        disk.watch = lambda at: cuts.append(CutImages(at))
        job.run()
        for cut in cuts:
            for image in cut.all() if self._rng is None else [cut.drawn(self._rng)]:
                self.counts.torn_again += 1
                self._see_prefix(image, found, new)

    def _see_prefix(self, image: Image, found: list[bytes], new: list[bytes]) -> None:
        try:
            again, _ = self._recover(storage_of(image))
        except Exception as error:
            raise BrokenError(f"a group torn after a start: {type(error).__name__}: {error}") from error
        rest = [frame for frame in again[len(found) :] if frame[:4] == BATCH_MAGIC]
        if again[: len(found)] != found or rest != new[: len(rest)]:
            raise BrokenError(
                f"a group torn after a start: {len(again)} frames are not {len(found)} and some of the new"
            )

    def _go_on(self, left: Image, found: list[bytes]) -> None:
        """Frames that are appended and synced are found."""
        disk = TracedDisk()
        disk.become(left)
        journal, _, new = self._appended(disk)
        journal.sync_now()
        more = batch(journal.last_offset + 1, size=600, epoch=9)
        journal.append(more)
        journal.sync_now()
        again, _ = self._recover(disk.clone())
        rest = [frame for frame in again[len(found) :] if frame[:4] == BATCH_MAGIC]
        if again[: len(found)] != found or rest != [*new, more]:
            raise BrokenError(f"{len(new) + 1} batches are synced after a start, {len(rest)} are found by the next")
