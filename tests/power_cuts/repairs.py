"""Repairs of a damaged journal: the power is cut at each operation of `journal check --repair`, and of the run that finishes it."""

from __future__ import annotations

from tests.power_cuts.cut_images import CutImages, Image, digest, storage_of
from tests.power_cuts.life import TINY, BrokenError, Life, TracedDisk
from tests.unit.log.journal_kit import IDENTITY, Recorder
from understudy.broker.log import journal_recovery
from understudy.broker.log.journal_damage import of_no_plugin
from understudy.broker.log.journal_repair import repair
from understudy.broker.log.segment import JournalDamagedError, segment_name


def damaged() -> tuple[Image, list[bytes]]:
    """A journal of three segments with a flipped bit in the second, and the batches before it."""
    life = Life()
    for _ in range(8):
        life.group(500)
    number = life.journal.statistics().segments - 1
    at = next(index for index, segment in enumerate(life._segments) if segment == number) + 2
    name = segment_name(number)
    life.disk.flip_bit(name, life.disk.content(name).index(life.history[at]) + 60, 3)
    return {each: life.disk.content(each) for each in life.disk.names()}, life.history[:at]


class Repairs:
    """Repairs of one damaged journal.

    Args:
        kept: frames before the damage.

    Attributes:
        images: how many were opened, each once.
        states: how many could be left by cuts.
        refused: of how many a start says that they are damaged.
    """

    def __init__(self, kept: list[bytes]) -> None:
        self._kept = kept
        self._seen: set[bytes] = set()
        self.images = self.states = self.refused = 0

    def cut_each(self, image: Image) -> None:
        """Repair the journal in ``image``, and each that a cut in that leaves, until no new one comes.

        Raises:
            BrokenError: a start believes half of a repair, or a repair does not end as the first one would.
        """
        due = [image]
        while due:
            image = due.pop()
            if digest(image) in self._seen:
                continue
            self._seen.add(digest(image))
            self.images += 1
            self._start(image)
            due += self._repair(image)

    def _start(self, image: Image) -> None:
        recorder = Recorder()
        try:
            journal_recovery.recover(storage_of(image), IDENTITY, TINY, recorder)
        except JournalDamagedError:
            self.refused += 1
            return
        self._see(recorder, "a start between two steps")

    def _see(self, recorder: Recorder, when: str) -> None:
        found = recorder.frames
        if found[:-1] != self._kept:
            raise BrokenError(
                f"{when} finds {len(found)} frames where {len(self._kept)} and the note of a repair are due"
            )

    def _repair(self, image: Image) -> list[Image]:
        disk = TracedDisk()
        disk.become(image)
        left: list[Image] = []
        disk.watch = lambda at: left.extend(CutImages(at).all())
        repair(disk, of_no_plugin)
        disk.watch = None
        self.states += len(left)
        recorder = Recorder()
        journal_recovery.recover(disk, IDENTITY, TINY, recorder)
        self._see(recorder, "a start after a repair")
        return left
