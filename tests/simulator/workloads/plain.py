"""Plain messages: numbered, with publisher confirms, outside transactions; and two ways to consume them."""

from __future__ import annotations

from typing import Any

from tests.simulator import calls
from tests.simulator.checkers.answers import Expected
from tests.simulator.ledger import Violation, stamp_of
from tests.simulator.sim_client import Closed, Lost, Program, SimClient
from tests.simulator.workloads.run import PERSISTENT, TRANSIENT, Run, padded
from tests.simulator.workloads.sessions import confirms, sessions
from understudy.broker.amqp.methods import BASIC_DELIVER
from understudy.broker.amqp.properties import encode_properties

EXPIRING = encode_properties(delivery_mode=2, expiration="300")
FIFO = "fifo"
PICKED = "picked"


class Producer:
    """Publishes in windows, and waits for the confirms; what was not confirmed is lost to the books, and a new stamp follows."""

    def __init__(
        self,
        client: SimClient,
        run: Run,
        queue: str,
        *,
        persistent: float = 1.0,
        expiring: float = 0.0,
        declares: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        """Make the program of one client.

        Args:
            client: it publishes.
            run: in which.
            queue: where to.
            persistent: how many of its messages are.
            expiring: how many have a time to live of their own.
            declares: queues with their arguments, which it declares on each connection.
        """
        self._expiring = expiring
        self._declares = declares or {}
        self.client = client
        self.run = run
        self._queue = queue
        self._persistent = persistent
        self._number = 0

    def program(self) -> Program:
        yield from sessions(self.client, self.run.enough, self._session)

    def set_up(self) -> Program:
        """Declare what each connection declares."""
        for name, arguments in self._declares.items():
            yield from calls.declare(self.client, name, arguments=arguments)

    def _session(self) -> Program:
        client = self.client
        yield from self.set_up()
        expected = client.expected = Expected()
        yield from calls.confirm_select(client)
        tag = 0
        while not self.run.enough():
            tag = yield from self._window(expected, tag)
            yield from client.pause(0, self.run.idle_ms(client.rng))

    def _window(self, expected: Expected, tag: int) -> Program:
        """Publish some, and wait for their confirms. Returns the newest tag; ``tag`` is that of before."""
        client, ledger = self.client, self.run.ledger
        kept: dict[int, str] = {}
        for _ in range(client.rng.choice((1, 1, 2, 8))):
            tag += 1
            self._number += 1
            stamp = f"#{client.name}:{self._number:06}"
            persistent = client.rng.random() < self._persistent
            expected.confirms[tag] = stamp
            if persistent:
                kept[tag] = stamp
            client.publish("", self._queue, self._properties(persistent), padded(stamp, client.rng.randrange(40)))

        def told(of: int, stamp: str, confirmed: bool) -> None:
            if not confirmed:
                ledger.refused.add(stamp)
            elif of in kept:
                ledger.confirmed.add(stamp)

        yield from confirms(client, expected, told)
        return tag

    def _properties(self, persistent: bool) -> bytes:
        """Those of the next message."""
        if self._expiring and self.client.rng.random() < self._expiring:
            return EXPIRING
        return PERSISTENT if persistent else TRANSIENT


class Consumer:
    """Takes what comes, in order: on one connection a producer's numbers never go back."""

    def __init__(self, client: SimClient, run: Run, queue: str) -> None:
        self.client = client
        self.run = run
        self._queue = queue

    def program(self) -> Program:
        yield from sessions(self.client, lambda: self.run.over, self._session)

    def _session(self) -> Program:
        client = self.client
        if client.rng.random() < 0.7:
            yield from calls.qos(client, client.rng.randrange(1, 8))
        yield from calls.consume(client, self._queue, "c")
        newest: dict[str, int] = {}
        while not self.run.over:
            while client.deliveries:
                self._take(client.deliveries.popleft(), newest)
            yield from client.doze(100, BASIC_DELIVER)

    def _take(self, event: Any, newest: dict[str, int]) -> None:
        stamp = stamp_of(event[4])
        source, _, number = stamp.partition(":")
        if newest.get(source, 0) >= int(number):
            raise Violation("G9", f"{self.client.name} got {stamp} after number {newest[source]} on one connection")
        newest[source] = int(number)
        self.run.ledger.taken.add(stamp)
        self.run.did(f"{self._queue} messages")
        calls.ack(self.client, event[2][1])


class PickyConsumer:
    """Acknowledges some, puts some back, rejects some; recovers, cancels, and shares a prefetch among two consumers."""

    def __init__(self, client: SimClient, run: Run, queue: str) -> None:
        self.client = client
        self.run = run
        self._queue = queue

    def program(self) -> Program:
        client = self.client
        while not self.run.over:
            try:
                yield from client.connect()
                yield from calls.qos(client, client.rng.randrange(2, 9), everybody=client.rng.random() < 0.5)
                yield from calls.consume(client, self._queue, "one")
                yield from calls.consume(client, self._queue, "two")
                for _ in range(client.rng.randrange(5, 30)):
                    yield from client.doze(80, BASIC_DELIVER)
                    yield from self._settle()
                    if self.run.over:
                        break
                yield from calls.cancel(client, "two")
                yield from self._settle()
                client.disconnect("enough of it")
            except (Lost, Closed):
                client.disconnect("again")

    def _settle(self) -> Program:
        client, taken = self.client, self.run.ledger.taken
        held = list(client.deliveries)
        if not held:
            return
        tags = [event[2][1] for event in held]
        choice = client.rng.random()
        if choice < 0.15 and not self.run.over:
            yield from calls.recover(client)
            client.deliveries.clear()
            return
        client.deliveries.clear()
        if choice < 0.3 and not self.run.over:
            calls.nack(client, tags[-1], multiple=True)
            return
        taken.update(stamp_of(event[4]) for event in held)
        self.run.did(f"{self._queue} messages", len(held))
        if choice < 0.5:
            calls.nack(client, tags[-1], multiple=True, requeue=False)
        elif choice < 0.7:
            for tag in reversed(tags):
                calls.reject(client, tag)
        else:
            calls.ack(client, tags[-1], multiple=True)
