"""Mortal: messages that are rejected, are too many for their queue, or expire, and what becomes of them.

    mortal       --rejected, or too many-->  mortal-wait  --expired-->  mortal-dead
    mortal-full  --rejected-->  mortal-wait; it refuses what is too much

Nothing leaves these queues for good but by the hand of a client. So each message whose publisher was told that it is safe is in
exactly one of them when all is over, or a client has taken it (``checkers/moved_once``).
"""

from __future__ import annotations

from typing import Any, Final

from tests.simulator import calls
from tests.simulator.ledger import stamp_of
from tests.simulator.sim_client import Program, SimClient
from tests.simulator.workloads.run import Run
from tests.simulator.workloads.sessions import sessions
from understudy.broker.amqp.methods import BASIC_DELIVER

WORK: Final = "mortal"
WAIT: Final = "mortal-wait"
DEAD: Final = "mortal-dead"
FULL: Final = "mortal-full"


def _to(queue: str) -> dict[str, Any]:
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}


QUEUES: Final[dict[str, dict[str, Any]]] = {
    DEAD: {},
    WAIT: {"x-message-ttl": 150, **_to(DEAD)},
    WORK: {"x-max-length": 4, **_to(WAIT)},
    FULL: {"x-max-length": 2, "x-overflow": "reject-publish", **_to(WAIT)},
}


class MortalConsumer:
    """Rejects, acknowledges and returns what comes to it; what is dead it takes, or leaves there."""

    def __init__(self, client: SimClient, run: Run) -> None:
        self.client = client
        self.run = run

    def program(self) -> Program:
        yield from sessions(self.client, lambda: self.run.over, self._session)

    def _session(self) -> Program:
        client = self.client
        for name, arguments in QUEUES.items():
            yield from calls.declare(client, name, arguments=arguments)
        yield from calls.qos(client, client.rng.randrange(1, 6))
        for queue in (WORK, FULL):
            yield from calls.consume(client, queue, queue)
        for _ in range(client.rng.randrange(5, 30)):
            yield from client.doze(60, BASIC_DELIVER)
            while client.deliveries:
                self._settle(client.deliveries.popleft())
            if client.rng.random() < 0.3:
                yield from self._bury()
            if self.run.over:
                break
        client.disconnect("enough of it")
        yield from client.pause(0, 400)

    def _settle(self, event: Any) -> None:
        client, tag = self.client, event[2][1]
        choice = client.rng.random()
        if choice < 0.5:
            self.run.did("mortal messages rejected")
            calls.reject(client, tag)
        elif choice < 0.7 and not self.run.over:
            calls.reject(client, tag, requeue=True)
        else:
            self.run.ledger.taken.add(stamp_of(event[4]))
            calls.ack(client, tag)

    def _bury(self) -> Program:
        event = yield from calls.get(self.client, DEAD)
        if event is not None:
            self.run.did("mortal messages buried")
            self.run.ledger.taken.add(stamp_of(event[4]))
            calls.ack(self.client, event[2][0])
