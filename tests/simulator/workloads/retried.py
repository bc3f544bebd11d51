"""Retried: messages that fail again and again, and some that come late, in transactions and outside, until they are dead.

    retried          --failed twice more-->     retried-dead; what comes back is withheld for a while
    retried-counted  --failed three times more-->  retried-dead

As with the workload ``mortal``, nothing leaves these queues for good but by the hand of a client.
"""

from __future__ import annotations

from typing import Any, Final

from tests.simulator import calls
from tests.simulator.ledger import Violation, stamp_of
from tests.simulator.sim_client import Lost, Program, SimClient
from tests.simulator.workloads.plain import Producer
from tests.simulator.workloads.run import Run, padded
from tests.simulator.workloads.sessions import sessions
from understudy.broker.amqp.methods import BASIC_DELIVER
from understudy.broker.amqp.properties import encode_properties, header

WORK: Final = "retried"
COUNTED: Final = "retried-counted"
DEAD: Final = "retried-dead"
LIMITS: Final = {WORK: 2, COUNTED: 3}
_TO_DEAD: Final = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
QUEUES: Final[dict[str, dict[str, Any]]] = {
    DEAD: {},
    COUNTED: {"x-delivery-limit": LIMITS[COUNTED], "x-delayed-publish": True, **_TO_DEAD},
    WORK: {
        "x-delivery-limit": LIMITS[WORK],
        "x-delayed-retry-type": "all",
        "x-delayed-retry-min": 60,
        "x-delayed-retry-max": 100,
        "x-delayed-retry-jitter": 0.25,
        "x-delayed-publish": True,
        **_TO_DEAD,
    },
}
Counts = tuple[int, int]
"""(failures, hand-outs), as headers say them."""


def _count(event: Any, name: str) -> int:
    found = header(event[3], name)
    return found if isinstance(found, int) else 0


def _late(run: Run, client: SimClient, stamp: str) -> bytes:
    """Properties of a message that comes late."""
    delay_ms = client.rng.randrange(50, 600)
    run.ledger.delayed[stamp] = (run.world.now_ms, delay_ms)
    return encode_properties(delivery_mode=2, headers={"x-delay": delay_ms})


class LateProducer(Producer):
    """Publishes messages of which some come late."""

    def _properties(self, persistent: bool) -> bytes:
        if self.client.rng.random() < 0.3:
            return _late(self.run, self.client, f"#{self.client.name}:{self._number:06}")
        return super()._properties(persistent)


class RetryingConsumer:
    """Rejects, returns, acknowledges and forgets what comes to it, sometimes in transactions."""

    def __init__(self, client: SimClient, run: Run) -> None:
        self.client = client
        self.run = run
        self._told: dict[tuple[str, str], Counts] = {}
        self._open: list[str] = []
        self._nacked: set[tuple[str, str]] = set()
        self._number = 0

    def program(self) -> Program:
        yield from sessions(self.client, lambda: self.run.over, self._session)

    def _session(self) -> Program:
        client = self.client
        self._open = []
        self._nacked.clear()
        for name, arguments in QUEUES.items():
            yield from calls.declare(client, name, arguments=arguments)
        transactional = client.rng.random() < 0.4
        if transactional:
            yield from calls.tx_select(client)
        yield from calls.qos(client, client.rng.randrange(1, 6))
        for queue in (WORK, COUNTED):
            yield from calls.consume(client, queue, queue)
        for _ in range(client.rng.randrange(5, 25)):
            yield from client.doze(60, BASIC_DELIVER)
            yield from self._work(transactional)
            if transactional:
                self._nacked.clear()  # it comes back with the commit, or with the end of the channel
            if self.run.over:
                break
        client.disconnect("enough of it")
        yield from client.pause(0, 300)

    def _work(self, transactional: bool) -> Program:
        client = self.client
        while client.deliveries:
            event = client.deliveries.popleft()
            self._look(event)
            self._open += self._settle(event)
        taken = self._open
        if transactional and client.rng.random() < 0.3:
            self._number += 1
            stamp = f"#{client.name}:{self._number:06}"
            client.publish("", WORK, _late(self.run, client, stamp), padded(stamp, 5))
        if transactional and client.rng.random() < 0.8:
            self._open = []
            if client.rng.random() < 0.7:
                self.run.ledger.taken.update(taken)  # whether it is told so or not
                yield from calls.commit(client)
            else:
                yield from calls.rollback(client)
                client.disconnect("what it had settled is its own again")
                raise Lost
        elif not transactional:
            self._open = []
            self.run.ledger.taken.update(taken)
            if client.rng.random() < 0.2:
                yield from self._bury()

    def _look(self, event: Any) -> None:
        """The headers never say less than before, and of failures never more than the limit. To nack is no failure."""
        queue, stamp = event[2][0], stamp_of(event[4])
        failures, hand_outs = (_count(event, name) for name in ("x-delivery-count", "x-acquired-count"))
        before = self._told.get((queue, stamp), (0, 0))
        most = before[0] if (queue, stamp) in self._nacked else LIMITS[queue]
        self._nacked.discard((queue, stamp))
        if failures < before[0] or hand_outs < before[1] or failures > min(hand_outs, most):
            raise Violation(
                "returns",
                f"{self.client.name} is told {failures} failures and {hand_outs} hand-outs of {stamp}, before {before}",
            )
        self._told[queue, stamp] = failures, hand_outs
        if hand_outs:
            self.run.did("retried messages")
        if stamp in self.run.ledger.delayed:
            self.run.did("late messages")

    def _settle(self, event: Any) -> list[str]:
        """Settle one message. Returns its stamp if it is taken for good."""
        client, tag = self.client, event[2][1]
        choice = client.rng.random()
        if choice < 0.45 and not self.run.over:
            calls.reject(client, tag, requeue=True)
        elif choice < 0.6 and not self.run.over:
            calls.nack(client, tag, requeue=True)
            self._nacked.add((event[2][0], stamp_of(event[4])))
        elif choice < 0.7 and not self.run.over:
            pass  # its connection ends one day
        else:
            calls.ack(client, tag)
            return [stamp_of(event[4])]
        return []

    def _bury(self) -> Program:
        event = yield from calls.get(self.client, DEAD)
        if event is not None:
            self.run.did("retried messages buried")
            self.run.ledger.taken.add(stamp_of(event[4]))
            calls.ack(self.client, event[2][0])
