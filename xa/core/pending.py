"""PendingTable: which transactions wait for recovery, as three levels: job, shard, queue of global ids.

One object is used when the server starts, when a client is gone, and when a client of the job comes. It is touched by one event
loop only, which takes the place of a mutex.
"""

from __future__ import annotations


class PendingTable:
    """Jobs to shards to queues. A transaction stands in it at most once.

    A queue is a dictionary, which keeps its order and finds one of ten thousand as fast as the first.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, dict[int, dict[str, None]]] = {}

    def insert(self, job: str, shard: int, gid: str) -> None:
        """Add a transaction behind the others of its job and shard."""
        queue = self._jobs.setdefault(job, {}).setdefault(shard, {})
        assert gid not in queue, gid
        queue[gid] = None

    def has(self, job: str, shard: int | None = None) -> bool:
        """Whether the job has a transaction to recover, in any shard or in this one."""
        shards = self._jobs.get(job, {})
        return bool(shards) if shard is None else shard in shards

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

    def peek(self, job: str, shard: int) -> str | None:
        """The oldest transaction of a job in a shard; None if there is none."""
        return next(iter(self._jobs.get(job, {}).get(shard, ())), None)

    def __len__(self) -> int:
        return sum(len(queue) for shards in self._jobs.values() for queue in shards.values())
