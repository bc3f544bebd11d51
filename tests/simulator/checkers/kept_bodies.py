"""Checks that a broker's journal gives back the bodies of messages that lie in its queues (`Journal.begin_read`)."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from tests.simulator.ledger import Violation
from understudy.broker.log.body_read import ReadJob, WantedBody
from understudy.broker.log.journal import Journal
from understudy.broker.log.segment import JournalError

if TYPE_CHECKING:
    from tests.simulator.sim_node import SimNode

MOST: Final = 20
"""So many bodies are read at once at most."""
TICKS_A_READ: Final = 4


class KeptBodies:
    """Of one broker. A read begins in one tick, and runs in the next: the journal goes on meanwhile, and may drop segments."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self._ticks = 0
        self._pending: tuple[Journal, ReadJob, dict[int, bytes]] | None = None

    def tick(self) -> None:
        """
        Raises:
            Violation: the journal gives back nothing, or another body.
        """
        self._ticks += 1
        if self._pending is not None:
            self._end(*self._pending)
        elif not self._ticks % TICKS_A_READ:
            self._begin()

    def _begin(self) -> None:
        node = self._node
        wanted = self._bodies()
        if wanted and node.journal.failure is None:
            try:
                job = node.journal.begin_read(WantedBody(offset, len(body)) for offset, body in wanted.items())
            except JournalError as error:
                raise Violation("G1", f"{node.name} does not find a body: {error}") from error
            self._pending = node.journal, job, wanted

    def _end(self, journal: Journal, job: ReadJob, wanted: dict[int, bytes]) -> None:
        node = self._node
        self._pending = None
        if journal is not node.journal:
            return  # the broker was killed meanwhile
        self.run(journal, job)
        node.world.happened["bodies read back"] += len(wanted)
        for offset, body in wanted.items():
            if job.bodies[offset] != body:
                raise Violation("G1", f"{node.name} reads another body at offset {offset}")

    def run(self, journal: Journal, job: ReadJob) -> None:
        """Read what was asked for: by this checker, or by the broker itself.

        Raises:
            Violation: the journal does not give it back.
        """
        try:
            job.run()
        except (JournalError, OSError) as error:
            raise Violation("G1", f"{self._node.name} cannot read a body: {error}") from error
        finally:
            journal.finish_read(job)

    def _bodies(self) -> dict[int, bytes]:
        """Some that stand in records of the log, by offset. Those of notes and in parts are passed over."""
        node = self._node
        state = node.node.state
        if state.again.newest:
            return {}  # offsets of messages that were written again are not those of records
        start, durable = state.log.start, min(state.log.applied, node.journal.durable_offset)
        parted = node.knobs.limits.parted_bytes
        bodies = (
            (entry.message.offset, bytes(entry.message.content()))
            for queue in state.queues.values()
            if queue.live is state.live and queue.durable
            for entry in queue.entries.values()
            if entry.message.persistent and start < entry.message.offset <= durable and 0 < entry.message.size < parted
        )
        return dict(islice(bodies, MOST))
