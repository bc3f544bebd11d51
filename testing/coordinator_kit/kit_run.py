"""KitRun: one broker with the coordinator under test and two participants of the kit, and what the checks ask of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from understudy.broker.core.limits import Limits
from understudy.testing.coordinator_kit.call_times import CallTimes
from understudy.testing.coordinator_kit.journal_facts import name_of
from understudy.testing.coordinator_kit.kit_broker import KitBroker
from understudy.testing.coordinator_kit.kit_client import Answer, KitTransaction
from understudy.testing.coordinator_kit.subject import Subject
from understudy.testing.coordinator_kit.watch import COORDINATOR, KitParticipant, Watch
from understudy.testing.coordinator_kit.workload import QUEUES, Workload

COMMITTERS: Final = 6
EACH: Final = 5
PATIENCE: Final = 10
"""So many times the bound of what is withheld, the kit waits for an answer."""


class KitRun:
    """A broker that serves, with the four queues of the kit.

    Attributes:
        watch: what the coordinator and the participants have heard.
        first, second: participants of the kit, in this order.

    Args:
        times: takes how long each call of the coordinator holds the broker; None: calls are not timed.
    """

    def __init__(self, subject: Subject, limits: Limits | None = None, times: CallTimes | None = None) -> None:
        self.subject = subject
        self.watch = Watch(self._clock, times)
        self.first = KitParticipant("first", self.watch)
        self.second = KitParticipant("second", self.watch)
        behind = (self.first, self.second)
        self.broker = KitBroker(lambda: subject.make_node(self.watch, behind, limits or Limits()))
        self.broker.start()
        self.broker.declare(QUEUES)

    def _clock(self) -> tuple[int, int, int]:
        broker = self.broker
        return broker.node.gate.durable_offset, broker.storage.syncs, broker.now_ms

    @property
    def everyone(self) -> Sequence[str]:
        """Names of all that take part, in the order of registration; none if the coordinator is never asked."""
        return (COORDINATOR, "first", "second") if self.subject.is_asked else ()

    def work(self, seed: int, committers: int = COMMITTERS, each: int = EACH) -> None:
        """Run committers, interleaved by ``seed``, until each has its answers."""
        Workload(self.broker, seed, committers, each).run()
        self.settle()

    def commit(
        self, messages: dict[str, int], count: int = 1, headers: Mapping[str, object] | None = None
    ) -> list[KitTransaction]:
        """As many new clients, one transaction each, and all of them say commit in one turn, which is not ended."""
        begun = []
        for _ in range(count):
            client = self.broker.client()
            name = f"t{len(self.broker.transactions)}"
            begun.append(client.publish(name, messages, headers or {}))
            self.broker.transactions.append(begun[-1])
        for client in self.broker.clients[-count:]:
            client.commit()
        return begun

    def settle(self) -> list[KitTransaction]:
        """Wait for all answers. Returns the transactions that have none after the patience of the kit."""
        return self.broker.settle(PATIENCE * self.subject.max_withheld_ms)

    def committed(self) -> list[str]:
        """Names of the transactions whose clients were told that."""
        return [tx.name for tx in self.broker.transactions if tx.answer is Answer.COMMITTED]

    def in_queue(self, queue: str) -> list[str]:
        """Names of the transactions whose messages stand in a queue, in its order, each once."""
        names = [name_of(body) for body in self.broker.queue(queue)]
        return list(dict.fromkeys(names))
