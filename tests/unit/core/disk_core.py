"""A core whose journal is a real one, on a simulated disk: bodies leave the memory, and come back when a test says so."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from tests.unit.core.core_kit import Core
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.core.limits import Limits
from understudy.broker.core.queues.entry import Entry
from understudy.broker.core.queues.paging import TICKS, PagingLimits
from understudy.broker.core.queues.queue import Queue
from understudy.broker.log.body_read import ReadJob, WantedBody
from understudy.broker.log.journal import Journal, JournalOptions
from understudy.broker.log.journal_recovery import recover, sealed_octets
from understudy.broker.log.paged_bodies import Fetched, PagedBodies
from understudy.broker.log.segment import JournalIdentity
from understudy.testing.disk import MemoryStorage

SMALL = PagingLimits(
    watermark_bytes=0, least_bytes=4, head_messages=2, tail_bytes=0, window_messages=3, window_bytes=1 << 20
)
OPTIONS = JournalOptions(segment_bytes=16 << 10, alignment_bytes=512, index_interval_bytes=512, reserve_bytes=0)


def limits(**paging: int) -> Limits:
    """With small bounds of paging, and these."""
    return Limits(paging=attrs.evolve(SMALL, **paging))


class DiskCore(Core):
    """Attributes:
    bodies: of its journal.
    fetches: reads that were asked for and have not run.
    """

    def __init__(self, bounds: Limits | None = None, storage: MemoryStorage | None = None) -> None:
        self.storage = storage or MemoryStorage()
        self.bodies = PagedBodies()
        self.fetches: list[tuple[ReadJob, Fetched]] = []
        self.bounds = bounds or limits()
        visitor = BrokerNode("b1", self.bounds, bytes, bodies=self.bodies)
        identity = JournalIdentity("group", "b1")
        visitor.recovery.expect(sealed_octets(self.storage))
        self.journal: Journal = recover(
            self.storage, identity, OPTIONS, visitor.recovery, checkpoint=visitor.checkpoint
        ).journal
        self.bodies.connect(self.journal, self._fetch, lambda: None)
        super().__init__(journal=self.journal, node=visitor)

    def _fetch(self, wanted: Iterable[WantedBody], told: Fetched) -> None:
        self.fetches.append((self.journal.begin_read(wanted), told))

    def sync(self) -> None:
        self.turn()
        self.journal.sync_now()
        super().sync()

    def sweep(self) -> None:
        """Time passes: bodies leave the memory that may."""
        for _ in range(3 * TICKS):
            self.node.state.paging.tick()

    def fetched(self) -> int:
        """Run all reads that were asked for, and those that follow; returns how many there were."""
        count = 0
        while self.fetches:
            job, told = self.fetches.pop(0)
            job.run()
            self.journal.finish_read(job)
            told(job.bodies)
            self.sync()
            count += 1
        return count

    def restarted(self) -> DiskCore:
        """Another process, with the same disk."""
        self.sync()
        self.journal.close()
        return DiskCore(self.bounds, self.storage)

    def named(self, name: str) -> Queue:
        """The queue of that name."""
        return next(queue for queue in self.node.state.queues.values() if queue.name == name)

    def paged(self, name: str) -> list[bool]:
        """For each message of a queue, in order of ids, True if its body is not in memory."""
        return [self.is_paged(entry) for entry in self.named(name).entries.values()]

    def is_paged(self, entry: Entry) -> bool:
        """True if the body of this message is not in memory."""
        return entry.message.body is self.bodies
