"""PendingTable: which transactions wait for recovery, as three levels: job, shard, queue of global ids.

One object is used when the server starts, when a client is gone, and when a client of the job comes. It is touched by one event
loop only, which takes the place of a mutex.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

OnChange = Callable[[str, int, str, bool], None]
"""Told job, shard, global id, and whether it waits now."""


def _nobody(_job: str, _shard: int, _gid: str, _waits: bool) -> None:
    pass


class PendingTable:
    """Jobs to shards to queues. A transaction stands in it at most once.

    A queue is a dictionary, which keeps its order and finds one of ten thousand as fast as the first.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, dict[int, dict[str, None]]] = {}
        self._on_change: OnChange = _nobody

    def subscribe(self, on_change: OnChange) -> None:
        """Call ``on_change`` after each change from now on, in the place of an earlier subscriber."""
        self._on_change = on_change

    def insert(self, job: str, shard: int, gid: str) -> None:
        """Add a transaction behind the others of its job and shard."""
        queue = self._jobs.setdefault(job, {}).setdefault(shard, {})
        assert gid not in queue, gid
        queue[gid] = None
        self._on_change(job, shard, gid, True)

    def has(self, job: str, shard: int | None = None) -> bool:
        """True if the job has a transaction to recover, in any shard or in this one."""
        shards = self._jobs.get(job, {})
        return bool(shards) if shard is None else shard in shards

    def holds(self, job: str, shard: int, gid: str) -> bool:
        """True if this transaction is in the table."""
        return gid in self._jobs.get(job, {}).get(shard, ())

    def first_shard(self, job: str) -> int | None:
        """The lowest shard with a transaction of the job; None if there is none."""
        return min(self._jobs.get(job, {}), default=None)

    def take(self, job: str, shard: int) -> str | None:
        """Remove and return the oldest transaction of a job in a shard; None if there is none."""
        gid = self.peek(job, shard)
        if gid is not None:
            self.remove(job, shard, gid)
        return gid

    def remove(self, job: str, shard: int, gid: str) -> None:
        """Remove one that is in the table. Empty queues and jobs go with it."""
        queue = self._jobs[job][shard]
        del queue[gid]
        if not queue:
            del self._jobs[job][shard]
        if not self._jobs[job]:
            del self._jobs[job]
        self._on_change(job, shard, gid, False)

    def peek(self, job: str, shard: int) -> str | None:
        """The oldest transaction of a job in a shard; None if there is none."""
        return next(iter(self._jobs.get(job, {}).get(shard, ())), None)

    def next(self, job: str, shard: int, but: Container[str]) -> str | None:
        """The oldest transaction of a job in a shard, or else in the first other shard that has one; None if there is none.

        Args:
            job: whose.
            shard: the first one to look at.
            but: transactions that are passed over.
        """
        shards = self._jobs.get(job, {})
        for number in (shard, *sorted(shards.keys() - {shard})):
            for gid in shards.get(number, ()):
                if gid not in but:
                    return gid
        return None

    def drop_shard(self, shard: int) -> None:
        """Remove all of a shard: it is to be told anew."""
        for job, _, gid in [found for found in self if found[1] == shard]:
            self.remove(job, shard, gid)

    def __iter__(self) -> Iterator[tuple[str, int, str]]:
        """Job, shard and global id of each."""
        for job, shards in self._jobs.items():
            for shard, queue in shards.items():
                for gid in queue:
                    yield job, shard, gid

    def __len__(self) -> int:
        return sum(len(queue) for shards in self._jobs.values() for queue in shards.values())
