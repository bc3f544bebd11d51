"""Router: exchanges of all four types, with bindings that come and go; what reaches which queue is computed here a second time.

Some messages have further keys in their headers CC and BCC.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from tests.simulation import calls
from tests.simulation.checkers.answers import Expected
from tests.simulation.ledger import Violation, stamp_of
from tests.simulation.sim_client import Closed, Lost, Program, SimClient
from tests.simulation.workloads.run import Run, padded
from understudy.broker.amqp.methods import BASIC_ACK, BASIC_NACK
from understudy.broker.amqp.properties import encode_properties

KINDS = ("direct", "fanout", "topic", "headers")
KEYS = ("a", "b", "a.b", "b.a", "a.b.c", "")
PATTERNS = {
    "direct": KEYS,
    "fanout": ("",),
    "topic": ("a", "*.b", "a.#", "#", "*.*", "b.a", "*", "*.#"),
    "headers": ("",),
}
HEADERS: tuple[dict[str, Any], ...] = ({"k": 1}, {"k": 1, "m": "x"}, {"m": "x"}, {})
NO_ROUTE, NO_CONSUMERS = 312, 313


def topic_matches(pattern: str, key: str) -> bool:
    """By the words of AMQP 0-9-1, the slow way."""
    if not pattern:
        return not key
    head, *rest = pattern.split(".")
    words = key.split(".") if key else []
    if head == "#":
        return any(_match_words(rest, words[i:]) for i in range(len(words) + 1))
    return bool(words) and fnmatchcase(words[0], head) and _match_words(rest, words[1:])


def _match_words(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    return topic_matches(".".join(pattern), ".".join(words))


def headers_match(arguments: dict[str, Any], headers: dict[str, Any]) -> bool:
    wanted = {k: v for k, v in arguments.items() if k != "x-match"}
    hits = [headers.get(k) == v for k, v in wanted.items()]
    return any(hits) if arguments.get("x-match") == "any" else all(hits)


class Router:
    """One round: an exchange, three queues, bindings, messages, and a count of what came."""

    def __init__(self, client: SimClient, run: Run) -> None:
        self.client = client
        self.run = run
        self._round = 0
        self._number = 0
        self._tag = 0

    def program(self) -> Program:
        client = self.client
        while not self.run.enough():
            self._round += 1
            try:
                yield from client.connect()
                client.expected = Expected()
                self._tag = 0
                yield from calls.confirm_select(client)
                yield from self._one_round()
                client.disconnect("round is over")
            except (Lost, Closed) as end:
                if isinstance(end, Closed) and end.code not in (320, 506):
                    raise Violation("routing", f"{client.name} was closed: {end}") from end
                client.disconnect("again")
            yield from client.pause(20, 200)

    def _one_round(self) -> Program:
        client, rng = self.client, self.client.rng
        kind = rng.choice(KINDS)
        durable = rng.random() < 0.7
        exchange = f"exchange-{client.name}-{self._round}"
        queues = [f"routed-{client.name}-{self._round}-{i}" for i in range(3)]
        yield from calls.declare_exchange(client, exchange, kind, durable=durable, auto_delete=rng.random() < 0.3)
        bound: list[tuple[str, str, dict[str, Any]]] = []
        for queue in queues:
            yield from calls.declare(client, queue, durable=durable)
            arguments = {**rng.choice(HEADERS), "x-match": rng.choice(("all", "any"))} if kind == "headers" else {}
            pattern = rng.choice(PATTERNS[kind])
            yield from calls.bind(client, queue, exchange, pattern, arguments)
            bound.append((queue, pattern, arguments))
        wanted: dict[str, list[str]] = {queue: [] for queue in queues}
        yield from self._publish(kind, exchange, bound, wanted)
        if rng.random() < 0.5:
            queue, pattern, arguments = bound.pop()
            yield from calls.unbind(client, queue, exchange, pattern, arguments)
            yield from self._publish(kind, exchange, bound, wanted)
        yield from self._count(wanted)
        if rng.random() < 0.5:
            yield from calls.delete_exchange(client, exchange)
        for queue in queues:
            yield from calls.delete(client, queue)

    def _publish(
        self, kind: str, exchange: str, bound: list[tuple[str, str, dict[str, Any]]], wanted: dict[str, list[str]]
    ) -> Program:
        client, rng = self.client, self.client.rng
        expected = client.expected
        for _ in range(rng.randrange(1, 5)):
            self._number += 1
            stamp = f"#{client.name}:{self._number}"
            key, headers = rng.choice(KEYS), rng.choice(HEADERS)
            copies = {name: rng.sample(KEYS, 2) for name in ("CC", "BCC") if rng.random() < 0.2}
            keys = [key, *(each for more in copies.values() for each in more)]
            targets = [
                queue
                for queue, pattern, arguments in bound
                if any(self._matches(kind, pattern, arguments, each, headers) for each in keys)
            ]
            mandatory, immediate = rng.random() < 0.5, rng.random() < 0.15
            comes_back = NO_ROUTE if mandatory and not targets else NO_CONSUMERS if immediate else 0
            client.returned.clear()
            self._tag += 1
            expected.confirms = {self._tag: stamp if targets and not immediate else ""}
            shown = {**headers, **copies}
            properties = (
                encode_properties(delivery_mode=2, headers=shown) if shown else encode_properties(delivery_mode=2)
            )
            client.publish(exchange, key, properties, padded(stamp, 3), mandatory=mandatory, immediate=immediate)
            event = yield from client.wait(BASIC_ACK, BASIC_NACK)
            if event[1] == BASIC_NACK:
                self.run.ledger.refused.add(stamp)
                continue
            codes = [returned[2][0] for returned in client.returned]
            if codes != ([comes_back] if comes_back else []):
                raise Violation(
                    "routing", f"{stamp} to {exchange} with key {key!r}: returned {codes}, expected {comes_back}"
                )
            if not immediate:
                for queue in targets:
                    wanted[queue].append(stamp)

    @staticmethod
    def _matches(kind: str, pattern: str, arguments: dict[str, Any], key: str, headers: dict[str, Any]) -> bool:
        if kind == "direct":
            return pattern == key
        if kind == "topic":
            return topic_matches(pattern, key)
        return kind == "fanout" or headers_match(arguments, headers)

    def _count(self, wanted: dict[str, list[str]]) -> Program:
        """Get everything; on one connection, so that nothing is given twice."""
        for queue, stamps in wanted.items():
            found = []
            event = yield from calls.get(self.client, queue, no_ack=True)
            while event is not None:
                found.append(stamp_of(event[4]))
                if b"BCC" in event[3]:
                    raise Violation("routing", f"{queue} got {found[-1]} with its header BCC")
                event = yield from calls.get(self.client, queue, no_ack=True)
            if found != stamps:
                raise Violation("routing", f"{queue} got {found}, expected {stamps}")
            self.run.did("routed messages", len(found))
