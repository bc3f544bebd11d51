"""The cost of a message in the core, less its I/O: counted by hand, not by the test suite.

    python -m tests.unit.core.core_speed PART [MESSAGES [REPEATS]]

PART is one of ``PARTS``. Eight clients send transactions of ten messages of 1 KB, taken in turn to four queues. The fewest
microseconds of processor time a message are printed. On a machine that others use, count instructions instead: the difference
of two runs, which the others do not change:

    PYTHONHASHSEED=0 setarch -R valgrind --tool=cachegrind --cache-sim=no --cachegrind-out-file=/dev/null \\
        python -m tests.unit.core.core_speed primary 4000     # and the same with 1600
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from tests.unit.core.core_kit import FRAME_MAX, PERSISTENT, Client, Core, HeldJournal
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import CONFIRM_SELECT, TX_COMMIT, TX_SELECT, encode_method
from understudy.broker.core.state import BrokerState
from understudy.broker.log import frame
from understudy.broker.log.journal_gate import JournalGate
from understudy.observers.transaction_observer import HaTransactionObserverFactory
from understudy.replicator import wire
from understudy.replicator.receiving.broker_replicator import BrokerReplicator

CLIENTS: Final = 8
AT_ONCE: Final = 10
QUEUES: Final = [f"bench-{number}" for number in range(4)]
PUBLISHES: Final = [
    publish_frames(1, "", QUEUES[number % 4], PERSISTENT, b"x" * 1024, FRAME_MAX) for number in range(AT_ONCE)
]
COMMIT: Final = encode_method(1, TX_COMMIT)
CONFIRMS: Final = encode_method(1, CONFIRM_SELECT, False)
DEAD: Final = "dead"
FULL: Final[dict[str, Any]] = {"x-max-length": 100}
TO_DEAD: Final[dict[str, Any]] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}


class KeptJournal(HeldJournal):
    """Keeps the frames."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def append(self, frame: bytes) -> None:
        self.frames.append(frame)


def serving(select: bytes, arguments: dict[str, Any] | None = None) -> tuple[Core, list[Client], KeptJournal]:
    """A broker that records transactions as a primary does, and its clients; ``arguments`` of its queues."""
    journal = KeptJournal()
    core = Core(journal=journal)
    transactions = core.broker.transactions
    transactions.observers = HaTransactionObserverFactory(transactions.recorder, lambda tx: None)
    clients = [core.client() for _ in range(CLIENTS)]
    core.queue(clients[0], DEAD)
    for queue in QUEUES:
        core.queue(clients[0], queue, arguments)
    for client in clients:
        client.send(select)
    core.sync()
    return core, clients, journal


def drive(core: Core, clients: list[Client], messages: int, reads: list[bytes]) -> None:
    """Each client sends ``reads`` in each turn; then everything becomes durable and is answered."""
    node = core.node
    for _ in range(messages // (CLIENTS * AT_ONCE)):
        for client in clients:
            for read in reads:
                client.connection.receive(read)
        node.answer()
        node.gather(False)
        node.durable_to(node.gate.appended)
        node.answer()
        for client in clients:
            client.connection.take_output()


def timed(work: Callable[[], None]) -> float:
    gc.disable()
    began = time.process_time()
    work()
    took = time.process_time() - began
    gc.enable()
    return took


def primary(messages: int, reads: list[bytes], select: bytes, arguments: dict[str, Any] | None = None) -> float:
    core, clients, _ = serving(select, arguments)
    drive(core, clients, 800, reads)
    return timed(lambda: drive(core, clients, messages, reads))


def backup(messages: int, reads: list[bytes], select: bytes, arguments: dict[str, Any] | None = None) -> float:
    """A backup's part: from a link's messages to what is applied."""
    core, clients, journal = serving(select, arguments)
    drive(core, clients, messages, reads)
    batches = [each for each in journal.frames if each.startswith(frame.BATCH_MAGIC)]
    told = [0, *[frame.decode_batch_header(batch).last_offset for batch in batches]]
    brought = [wire.encode_batch(stable, batch) for stable, batch in zip(told, batches, strict=False)]
    gate = JournalGate(HeldJournal())
    replicator = BrokerReplicator(BrokerState(128 << 20))
    replicator.recovered(gate)
    replicator.link(lambda message: None)
    replicator.take(wire.encode_resume(1, 0, 0))

    def work() -> None:
        for message in brought:
            replicator.take(message)
            gate.durable_to(gate.appended)
            replicator.durable()
            replicator.apply_told()

    return timed(work)


PARTS: Final[dict[str, Callable[[int], float]]] = {
    "primary": lambda n: primary(n, [b"".join((*PUBLISHES, COMMIT))], encode_method(1, TX_SELECT)),
    "single-reads": lambda n: primary(n, [*PUBLISHES, COMMIT], encode_method(1, TX_SELECT)),
    "confirms": lambda n: primary(n, [b"".join(PUBLISHES)], CONFIRMS),
    "full": lambda n: primary(n, [b"".join(PUBLISHES)], CONFIRMS, FULL),
    "full-dead-letters": lambda n: primary(n, [b"".join(PUBLISHES)], CONFIRMS, FULL | TO_DEAD),
    "backup": lambda n: backup(n, [b"".join((*PUBLISHES, COMMIT))], encode_method(1, TX_SELECT)),
    "backup-confirms": lambda n: backup(n, [b"".join(PUBLISHES)], CONFIRMS),
    "backup-full": lambda n: backup(n, [b"".join(PUBLISHES)], CONFIRMS, FULL),
    "backup-full-dead-letters": lambda n: backup(n, [b"".join(PUBLISHES)], CONFIRMS, FULL | TO_DEAD),
}
"""A primary whose transactions come in one read each, or in one a message; publisher confirms; the same to queues that hold as much
as they may, without and with dead letters; a backup of each (less the making of it)."""


def main() -> None:
    part, messages, repeats = sys.argv[1], int((sys.argv[2:] or ["4000"])[0]), int((sys.argv[3:] or ["1"])[0])
    least = min(PARTS[part](messages) for _ in range(repeats))
    print(f"{part}: {least / messages * 1e6:.2f} us a message")


if __name__ == "__main__":
    main()
