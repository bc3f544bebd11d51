"""Ranked: messages with priorities, and consumers that are not all alike.

    ranked        messages of priority 0 to 4, of which 3 is the highest; consumers with priorities
    ranked-alone  the same, with a single active consumer; who holds a message for too long is cancelled

Nothing leaves these queues for good but by the hand of a client.
"""

from __future__ import annotations

from typing import Any, Final

from tests.simulator import calls
from tests.simulator.ledger import stamp_of
from tests.simulator.sim_client import Program, SimClient
from tests.simulator.workloads.plain import Producer
from tests.simulator.workloads.run import Run
from tests.simulator.workloads.sessions import sessions
from understudy.broker.amqp.methods import BASIC_DELIVER
from understudy.broker.amqp.properties import encode_properties

SHARED: Final = "ranked"
ALONE: Final = "ranked-alone"
TIMEOUT_MS: Final = 600
PRIORITIES: Final = (-1, 0, 0, 7)
"""Of consumers."""
QUEUES: Final[dict[str, dict[str, Any]]] = {
    SHARED: {"x-max-priority": 3},
    ALONE: {"x-max-priority": 3, "x-single-active-consumer": True, "x-consumer-timeout": TIMEOUT_MS},
}
_MESSAGES: Final = [encode_properties(delivery_mode=2, priority=priority) for priority in (None, 0, 1, 2, 3, 4)]


class RankedProducer(Producer):
    """Publishes messages of all priorities."""

    def _properties(self, persistent: bool) -> bytes:
        return self.client.rng.choice(_MESSAGES)


class RankedConsumer:
    """Acknowledges, returns, and in ``ranked-alone`` sometimes holds on to its messages for too long."""

    def __init__(self, client: SimClient, run: Run, queue: str) -> None:
        self.client = client
        self.run = run
        self._queue = queue

    def program(self) -> Program:
        yield from sessions(self.client, lambda: self.run.over, self._session)

    def _session(self) -> Program:
        client = self.client
        for name, arguments in QUEUES.items():
            yield from calls.declare(client, name, arguments=arguments)
        yield from calls.qos(client, client.rng.randrange(1, 6))
        yield from self._subscribe()
        for _ in range(client.rng.randrange(5, 40)):
            yield from client.doze(60, BASIC_DELIVER)
            yield from self._settle()
            if client.cancelled and not self.run.over:
                self.run.did("consumers timed out", len(client.cancelled))
                yield from self._subscribe()
            if self.run.over:
                break
        yield from calls.cancel(client, "c")
        yield from self._settle()
        client.disconnect("enough of it")
        yield from client.pause(0, 200)

    def _subscribe(self) -> Program:
        client = self.client
        client.cancelled.clear()
        arguments = {"x-priority": client.rng.choice(PRIORITIES)}
        yield from calls.consume(client, self._queue, "c", arguments=arguments)

    def _settle(self) -> Program:
        client, run = self.client, self.run
        if client.deliveries and self._queue == ALONE and not run.over and client.rng.random() < 0.02:
            yield from client.pause(TIMEOUT_MS // 2, 12 * TIMEOUT_MS)
        while client.deliveries:
            event = client.deliveries.popleft()
            if client.rng.random() < 0.2 and not run.over:
                calls.reject(client, event[2][1], requeue=True)
                continue
            run.ledger.taken.add(stamp_of(event[4]))
            run.did(f"{self._queue} messages")
            calls.ack(client, event[2][1])
