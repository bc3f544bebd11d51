"""The longest step of a core while a long queue is purged, or deleted: counted by hand, not by the test suite.

    python -m tests.unit.core.core_pauses purge|delete [MESSAGES]

A primary holds so many messages of 100 octets in one queue, and a backup the same. Printed are the longest steps of either, and
all of them together, in ms of processor time. A step is what an event loop does at once.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Final

from tests.unit.core.core_kit import FRAME_MAX, PERSISTENT, Client, Core, HeldJournal
from tests.unit.core.core_speed import KeptJournal
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import QUEUE_DELETE, QUEUE_PURGE, encode_method
from understudy.broker.core.state import BrokerState
from understudy.broker.log import frame
from understudy.broker.log.journal_gate import JournalGate
from understudy.broker.octets.chunks import LARGE_BYTES, LargeBuffer, named_bytes
from understudy.replicator import wire
from understudy.replicator.receiving.broker_replicator import BrokerReplicator

QUEUE: Final = "long"
AT_ONCE: Final = 500
MOST_STEPS: Final = 10_000


class Steps:
    """Times steps."""

    def __init__(self) -> None:
        self.taken: list[tuple[float, str]] = []

    def take(self, name: str, step: Callable[[], object]) -> None:
        began = time.thread_time()
        step()
        self.taken.append(((time.thread_time() - began) * 1e3, name))

    def __str__(self) -> str:
        longest = ", ".join(f"{ms:.1f} ms ({name})" for ms, name in sorted(self.taken, reverse=True)[:4])
        return f"longest {longest}; all {len(self.taken)} steps {sum(ms for ms, _ in self.taken):.0f} ms"


def gathered(message: bytes) -> bytes:
    """As ``FrameReader`` gives it."""
    if len(message) < LARGE_BYTES:
        return message
    large = LargeBuffer(len(wire.encode_batch(0, b"")) + frame.BATCH_HEADER_BYTES)
    large.take(message)
    return named_bytes(large)


class Pair:
    """A primary and a backup."""

    def __init__(self) -> None:
        self.journal = KeptJournal()
        self.core = Core(journal=self.journal)
        self.client: Client = self.core.client()
        self.state = BrokerState(128 << 20)
        self.state.put_off.begin()
        self.replicator = BrokerReplicator(self.state)
        self.gate = JournalGate(HeldJournal())
        self.replicator.recovered(self.gate)
        self.replicator.link(lambda message: None)
        self.replicator.take(wire.encode_resume(1, 0, 0))

    def turn(self, steps: Steps) -> None:
        """A turn of the primary, and what follows at its disk."""
        node = self.core.node
        steps.take("answers", node.answer)
        steps.take("gathers", lambda: node.gather(True))
        steps.take("after the turn", node.after_turn)
        node.state.put_off.tick()
        steps.take("durable", lambda: node.durable_to(node.gate.appended))

    def follow(self, steps: Steps) -> None:
        """The backup takes what the primary has closed, and applies it."""
        steps.take("puts off", self.state.put_off.step)
        frames, self.journal.frames = self.journal.frames, []
        replicator = self.replicator
        for batch in frames:
            if batch[:4] == frame.BATCH_MAGIC:
                data = bytes(batch)
                message = gathered(wire.encode_batch(frame.decode_batch_header(data).last_offset, data))
                steps.take("takes", lambda message=message: replicator.take(message))  # type: ignore[misc]
                self.gate.durable_to(self.gate.appended)
                steps.take("durable", replicator.durable)
                steps.take("applies", replicator.apply_told)

    def waits(self) -> bool:
        """True if either has put off work."""
        states = (self.core.node.state, self.state)
        return any(state.put_off.waiting for state in states)


def main() -> None:
    what, messages = sys.argv[1], int((sys.argv[2:] or ["100000"])[0])
    gc.disable()
    pair = Pair()
    pair.core.queue(pair.client, QUEUE)
    many = publish_frames(1, "", QUEUE, PERSISTENT, b"x" * 100, FRAME_MAX) * AT_ONCE
    ignored = Steps()
    for _ in range(messages // AT_ONCE):
        pair.client.connection.receive(many)
        pair.turn(ignored)
        pair.follow(ignored)
    pair.turn(ignored)
    pair.follow(ignored)
    pair.client.heard()
    primary, backup = Steps(), Steps()
    ask = (QUEUE_PURGE, QUEUE, False) if what == "purge" else (QUEUE_DELETE, QUEUE, False, False, False)
    primary.take("takes the method", lambda: pair.client.connection.receive(encode_method(1, *ask)))
    for _ in range(MOST_STEPS):
        pair.turn(primary)
        pair.follow(backup)
        if pair.client.heard():
            break
    for _ in range(MOST_STEPS):
        pair.turn(primary)
        pair.follow(backup)
        if not pair.waits():
            break
    print(f"primary: {primary}\nbackup: {backup}")


if __name__ == "__main__":
    main()
