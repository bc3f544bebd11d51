"""LoopGuard: which groups of the journal are synced on the event loop, and which in the thread.

A sync on the loop costs one system call. A sync in the thread costs two wake-ups more, and a busy loop looks at its end late:
0.4 ms of work took 1.6 ms until the loop went on. So the loop is the place for a group while the disk is quick. A slow disk is for
the thread: links, heartbeats and other clients wait for the loop.

How long the loop may be held: by one sync at a time, since the loop turns between two of them. A disk that becomes slow holds the
loop for one sync if that takes 8 ms or more, and for two if it takes 4.3 to 8 ms; then the average is above the limit, and stays
there for as long as the disk is slow. A disk that stands still holds the loop with the sync that meets it.

**The way back.** Times of the thread hold more than the disk's: the thread waits for the interpreter, and for a CPU that the busy
loop has. So under load they stay above the limit on a quick disk, and by them alone no group would come back to the loop. While
they leave it open whether the disk is slow (`DOUBTFUL_SECONDS`), a group is *tried* on the loop now and then. Trials hold the loop
for 1 % of the time at most (`TRIAL_PAUSE`).

Sources: docs/decisions/0006, docs/decisions/0034.
"""

from __future__ import annotations

from typing import Final

from understudy.broker.log.storage import SyncJob

LOOP_BYTES: Final = 1 << 20
"""A group of at most so many bytes on the disk may be synced on the loop. `DiskFile` writes as many at once past the page cache."""
QUICK_SECONDS: Final = 0.001
"""... while syncs take less than this on the average. 3 ms were tried: on a machine whose two cores were taken by other programs
a commit then took 4.5 ms instead of 2.7. The loop's thread, which has used its share of a core, waits longest for the next."""
DOUBTFUL_SECONDS: Final = 0.004
"""An average of the thread from here on is a slow disk's, or a machine's that has no CPU to spare: nothing is tried."""
TRIAL_PAUSE: Final = 100
"""After a sync on the loop no group is tried there for so many times as long as that sync took."""
_WEIGHT: Final = 1 / 8


class LoopGuard:
    """Watches how long syncs take.

    Args:
        max_bytes: a larger group goes to the thread; 0: every group does.

    Attributes:
        average_s: of the latest syncs, seconds; each counts for 1/8, the ones before it for the rest.
    """

    __slots__ = ("_max_bytes", "_try_at", "average_s")

    def __init__(self, max_bytes: int = LOOP_BYTES) -> None:
        self._max_bytes = max_bytes
        self._try_at = 0.0
        self.average_s = 0.0

    def allows(self, job: SyncJob, now: float) -> bool:
        """True if the loop may run `job`. A job that makes a segment may have 64 MiB to fill, and goes to the thread.

        Args:
            job: is not under way.
            now: seconds of a clock that does not go back.
        """
        if job.bytes > self._max_bytes or job.makes_segment:
            return False
        average_s = self.average_s
        return average_s < QUICK_SECONDS or (average_s < DOUBTFUL_SECONDS and now >= self._try_at)

    def held(self, seconds: float, now: float) -> None:
        """Note a sync that ran on the loop and ended at `now`. Where it was a trial and quick, it is the new average."""
        if seconds < QUICK_SECONDS <= self.average_s:
            self.average_s = seconds
        else:
            self._count(seconds)
        self._try_at = now + seconds * TRIAL_PAUSE

    def passed(self, job: SyncJob, seconds: float) -> None:
        """Note a sync that ran in the thread. Making a segment takes several syncs, and says nothing of the next group."""
        if not job.makes_segment:
            self._count(seconds)

    def _count(self, seconds: float) -> None:
        self.average_s += (seconds - self.average_s) * _WEIGHT
