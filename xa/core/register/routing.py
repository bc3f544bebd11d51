"""Which worker process of a state server gets a client's request.

Each worker has some of the shards, one after the other. The router knows from each of them what waits for recovery. A client that
comes goes to the worker of the first shard in which its job has something to recover, or else to the one with the fewest clients.
While something waits for its job anywhere, the client begins nothing new.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Sequence

from understudy.xa.core.register.pending import PendingTable
from understudy.xa.core.register.wire import Listing, Shown, Waits, first_page


def shares(shards: int, workers: int) -> list[range]:
    """The shards of each worker: numbers that follow each other, as many as those of the next one or one more."""
    each, more = divmod(shards, workers)
    ends = [0]
    for number in range(workers):
        ends.append(ends[-1] + each + (number < more))
    return [range(first, end) for first, end in itertools.pairwise(ends)]


class Routes:
    """The router's state.

    Args:
        parts: the shards of each worker.

    Attributes:
        loads: number of clients of each worker.
    """

    def __init__(self, parts: Sequence[range]) -> None:
        self._parts = list(parts)
        self._worker_of = {shard: number for number, part in enumerate(parts) for shard in part}
        self._pending = PendingTable()
        self._known: set[tuple[str, int, str]] = set()
        self.loads = [0] * len(self._parts)

    @property
    def waiting(self) -> int:
        """How many transactions wait for recovery."""
        return len(self._pending)

    def told(self, waits: Waits) -> None:
        """A worker says what waits in its shards."""
        key = (waits.job, waits.shard, waits.gid)
        if waits.now and key not in self._known:
            self._known.add(key)
            self._pending.insert(*key)
        elif not waits.now and key in self._known:
            self._known.discard(key)
            self._pending.remove(*key)

    def forget(self, worker: int) -> None:
        """A worker is gone; the next one says all anew."""
        for shard in self._parts[worker]:
            self._pending.drop_shard(shard)
        self._known = set(self._pending)

    def arrival(self, job: str) -> int:
        """Where a client that comes is served."""
        found = self._pending.first_shard(job)
        return self._worker_of[found] if found is not None else self.loads.index(min(self.loads))

    def recovering(self, job: str, worker: int, but: Container[int] = ()) -> int | None:
        """Where a client of a worker finds something to recover: there first, or else in the first shard; None: nowhere.

        Args:
            job: of the client.
            worker: the client's.
            but: workers that are passed over.
        """
        order: list[int] = [worker, *range(len(self._parts))]
        for number in order:
            if number not in but and any(self._pending.has(job, shard) for shard in self._parts[number]):
                return number
        return None


def merged(pages: Sequence[Listing]) -> Listing:
    """One page of the entries of all workers, of the pages that they gave to the same request."""
    shown: list[Shown] = sorted((one for page in pages for one in page.entries), key=lambda one: one.entry.gid)
    # What is behind the end of a page that is not the last one is not known yet.
    ends = [page.entries[-1].entry.gid for page in pages if page.more]
    if ends:
        shown = [one for one in shown if one.entry.gid <= min(ends)]
    page = first_page(shown)
    more = bool(ends) or len(page) < len(shown)
    return Listing(page, more, max(one.now_ms for one in pages))
