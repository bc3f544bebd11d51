"""KitBroker: one core of a broker on a disk in memory, whose every step the kit takes.

Nothing happens by itself. The kit ends a turn, gives the disk a group, lets the disk finish, moves the clock, fails the power.
The core, its journal and its recovery are the broker's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from understudy.broker.core.life.gate_port import GatePort
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.log.journal import Journal, JournalOptions
from understudy.broker.log.journal_recovery import recover
from understudy.broker.log.segment import JournalIdentity
from understudy.broker.log.storage import SyncJob
from understudy.testing.coordinator_kit.journal_facts import JournalFacts
from understudy.testing.coordinator_kit.kit_client import Answer, KitClient, KitTransaction
from understudy.testing.disk import MemoryStorage

IDENTITY: Final = JournalIdentity(group_id="kit", broker_id="kit")
SMALL_SEGMENTS: Final = JournalOptions(
    segment_bytes=16384, alignment_bytes=512, index_interval_bytes=512, reserve_bytes=0, salt=7
)
"""A run rolls its journal several times."""
WALL_EPOCH_MS: Final = 1_700_000_000_000
TICK_MS: Final = 50


class KitBroker:
    """A broker process, its disk, and its clients.

    Attributes:
        storage: the disk; it outlives :meth:`crash`.
        node: the running core.
        clients: of the running core, in order of connecting.
        transactions: all that clients have begun, over all lives of the broker, in that order.
        now_ms: the monotonic clock.
    """

    node: BrokerNode
    journal: Journal

    def __init__(self, make_node: Callable[[], BrokerNode]) -> None:
        """``make_node``: makes a core that is to be recovered, with its coordinator; called for each life."""
        self.storage = MemoryStorage("kit")
        self.clients: list[KitClient] = []
        self.transactions: list[KitTransaction] = []
        self.now_ms = 0
        self._make_node = make_node
        self._job: SyncJob | None = None
        self._ran = False

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Recover the journal and serve.

        Raises:
            PowerCutError: the power failed meanwhile.
        """
        self._job = None
        self.clients = []
        self.node = self._make_node()
        self._port = port = GatePort(self.node)
        recovered = recover(self.storage, IDENTITY, SMALL_SEGMENTS, self.node.recovery, checkpoint=port.checkpoint)
        self.journal = recovered.journal
        port.connect(self.journal, self.journal)
        self.node.open(port, self.now_ms, WALL_EPOCH_MS + self.now_ms)
        self.sync()
        assert self.node.broker.role.answering, "EPOCH is durable"

    def crash(self, rng: Random, *, hard: bool) -> None:
        """The process dies; with ``hard`` the power fails, and what was not synced may be lost."""
        for client in self.clients:
            client.read()  # what was written to the socket arrives
        self.clients = []
        if hard:
            self.storage.crash(rng)
        else:
            self.storage.crash_soft()

    def facts(self) -> JournalFacts:
        """The facts of the journal now, synced or not."""
        return JournalFacts(self.storage)

    # -- steps ----------------------------------------------------------------------------------------------------

    def turn(self, flush: bool = False) -> bool:
        """End a turn. Returns True if something is left that a later turn with ``flush`` must take."""
        self.node.answer()
        left = self.node.gather(flush)
        self.node.after_turn()
        for client in self.clients:
            client.read()
        return left

    def begin_group(self) -> bool:
        """Give the disk the journal's next group, if it is idle. Returns True if the disk works now."""
        if self._job is None:
            self._job = self.journal.begin_sync()
            self._ran = False
        return self._job is not None

    def finish_group(self) -> bool:
        """The disk writes and syncs the group that it has. Returns False if it has none.

        Raises:
            OSError: the disk fails; a broker ends then.
            PowerCutError: the power failed meanwhile.
        """
        job = self._job
        if job is None:
            return False
        job.run()
        self._job = None
        self.journal.finish_sync(job)
        self.node.durable_to(self._port.durable_frames())
        return True

    def sync(self) -> None:
        """End turns and sync until nothing is left to sync; time stands still."""
        self.turn(flush=True)
        while self.begin_group():
            self.finish_group()
            self.turn(flush=True)

    def pass_ms(self, duration_ms: int) -> None:
        """Time passes; the broker ticks meanwhile."""
        end_ms = self.now_ms + duration_ms
        while self.now_ms < end_ms:
            self.now_ms = min(end_ms, self.now_ms + TICK_MS)
            self.node.tick(self.now_ms, WALL_EPOCH_MS + self.now_ms)

    def settle(self, bound_ms: int) -> list[KitTransaction]:
        """Run until each commit that was asked for is answered, at most ``bound_ms``. Returns those that are not."""
        end_ms = self.now_ms + bound_ms
        self.sync()
        while self.waiting() and self.now_ms < end_ms:
            self.pass_ms(min(TICK_MS, end_ms - self.now_ms))
            self.sync()
        return self.waiting()

    # -- clients --------------------------------------------------------------------------------------------------

    def client(self) -> KitClient:
        """A new client that has a transactional channel."""
        client = KitClient(self.node, f"client {len(self.clients)}")
        self.clients.append(client)
        client.read()
        return client

    def declare(self, queues: Sequence[str]) -> None:
        """Declare durable queues, durably."""
        client = self.client()
        for queue in queues:
            client.declare(queue)
        self.sync()

    def waiting(self) -> list[KitTransaction]:
        """Transactions of present clients that asked for their commit and have no answer."""
        each = [client.transaction for client in self.clients]
        return [tx for tx in each if tx is not None and tx.asked and tx.answer is Answer.NONE]

    def queue(self, name: str) -> list[bytes]:
        """The bodies that clients could take from a queue, in its order."""
        for queue in self.node.state.queues.values():
            if queue.name == name:
                return [bytes(entry.message.content()) for entry in queue.ready_entries()]
        return []
