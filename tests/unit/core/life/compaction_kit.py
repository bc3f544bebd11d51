"""A core with a journal on a disk in memory, and what the tests of compaction and of repairs put into it."""

from __future__ import annotations

from tests.unit.core.core_kit import Core, end_turn, publish
from tests.unit.core.moving.speaker import Speaker
from understudy.broker.amqp.methods import (
    BASIC_NACK,
    EXCHANGE_DECLARE,
    QUEUE_BIND,
    TX_COMMIT,
    TX_SELECT,
)
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.core.life.gate_port import GatePort
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.core.limits import Limits
from understudy.broker.log.journal import JournalOptions
from understudy.broker.log.journal_recovery import recover
from understudy.broker.log.return_record import Returned
from understudy.broker.log.segment import JournalIdentity
from understudy.testing.coordinator_kit.kit_client import AnyUser
from understudy.testing.disk import MemoryStorage

KIB = 1 << 10
TRANSIENT = encode_properties(delivery_mode=1)
IDENTITY = JournalIdentity("group", "b1")
Held = dict[str, list[tuple[int, bytes, int, Returned]]]


class JournaledCore(Core):
    """A core with a journal on a disk in memory; a process that was there before has left what is on it."""

    def __init__(self, storage: MemoryStorage, segment_bytes: int = 16 * KIB) -> None:
        self.storage = storage
        self.node = BrokerNode("b1", Limits(), bytes)
        self.port = port = GatePort(self.node)
        options = JournalOptions(segment_bytes=segment_bytes, alignment_bytes=512, reserve_bytes=0)
        self.journal = recover(storage, IDENTITY, options, self.node.recovery, checkpoint=port.checkpoint).journal
        port.connect(self.journal, self.journal)
        self.node.open(port, 0, 1_700_000_000_000)
        self.users = self.known = AnyUser()
        self.sync()
        self.broker = self.node.broker
        self.most_bytes = 0

    def sync(self) -> None:
        end_turn(self.node, flush=True)
        while (job := self.journal.begin_sync()) is not None:
            job.run()
            self.journal.finish_sync(job)
            self.node.durable_to(self.port.durable_frames())
            end_turn(self.node, flush=True)

    def keep_house(self) -> None:
        """Do as the driver does once a second, and between turns."""
        checkpoint = self.port.checkpoint_offset
        if not checkpoint:
            return
        self.most_bytes = max(self.most_bytes, self.journal.statistics().bytes)
        self.drop()
        self.node.compaction.look(self.journal.occupancy(), checkpoint)
        while self.node.compaction.active and self.node.compaction.step():
            self.sync()
        self.drop()

    def drop(self) -> None:
        self.journal.request_drop(self.node.droppable_before(self.port.checkpoint_offset))
        self.sync()
        while (job := self.journal.begin_drop()) is not None:
            job.run()
            self.journal.finish_drop(job)

    @property
    def segments(self) -> int:
        return self.journal.statistics().segments

    def fill(self, client: Speaker, queue: str = "fill", kib: int = 64) -> None:
        """Publish so much, and take it again."""
        for _ in range(kib // 4):
            client.client.send(publish(queue, bytes(4 * KIB)))
            self.sync()
            assert client.get(queue) is not None


def held(node: BrokerNode) -> Held:
    """The messages in the queues of a node."""
    found: Held = {}
    for queue in node.state.queues.values():
        queue.sort()
        found[queue.name] = [
            (
                entry.id,
                entry.message.content(),
                entry.deadline_ms,
                queue.returns.of(entry.id) if queue.returns is not None else Returned(),
            )
            for entry in queue.entries.values()
        ]
    return found


def begun(segment_bytes: int = 16 * KIB) -> tuple[JournaledCore, Speaker]:
    core = JournaledCore(MemoryStorage(), segment_bytes)
    speaker = Speaker(core)
    for name in ("old", "other", "fill"):
        speaker.declare(name, {"x-queue-type": "quorum", "x-delivery-limit": 9} if name == "other" else None)
    return core, speaker


def restarted(core: JournaledCore) -> JournaledCore:
    """Another process, after this one was killed."""
    core.storage.crash_soft()
    return JournaledCore(core.storage, core.journal.options.segment_bytes)


def one_of_each(core: JournaledCore, speaker: Speaker) -> None:
    """A message in two queues, one that came back, one of a transaction."""
    speaker.call(EXCHANGE_DECLARE, "both", "fanout", False, True, False, False, False, {})
    for queue in ("old", "other"):
        speaker.call(QUEUE_BIND, queue, "both", "", False, {})
    speaker.publish("", b"in both", exchange="both", expiration="3600000")
    speaker.publish("other", b"failed")
    assert speaker.get("other") is not None
    failed = speaker.get("other", no_ack=False)
    assert failed is not None
    speaker.call(BASIC_NACK, failed["tag"], False, True)
    speaker.call(TX_SELECT, channel=2)
    speaker.publish("old", b"committed", channel=2)
    speaker.call(TX_COMMIT, channel=2)
