"""Router: exchanges of all four types, with bindings that come and go; what reaches which queue is computed here a second time.

Some messages have further keys in their headers CC and BCC. In half of the rounds another exchange is bound to the first; of these
some are a circle.
"""

from __future__ import annotations

from collections.abc import Container
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from tests.simulator import calls
from tests.simulator.checkers.answers import Expected
from tests.simulator.ledger import Violation, stamp_of
from tests.simulator.sim_client import Closed, Lost, Program, SimClient
from tests.simulator.workloads.run import Run, padded
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


class Bound(NamedTuple):
    """A binding of a round: ``end`` is a queue, or another exchange of the round."""

    exchange: str
    end: str
    pattern: str
    arguments: dict[str, Any]


class Round:
    """The declarations of one round, and the ways of its messages.

    Attributes:
        kinds: its exchanges, and the type of each; what is published goes to one of them.
    """

    def __init__(self, kinds: dict[str, str]) -> None:
        self.kinds = kinds
        self.bound: list[Bound] = []

    def targets(self, exchange: str, keys: list[str], headers: dict[str, Any]) -> set[str]:
        """The queues of a message that is published to ``exchange``."""
        reached = {exchange}
        while more := self.ends(reached, keys, headers) - reached:
            reached |= more
        return reached - self.kinds.keys()

    def ends(self, exchanges: Container[str], keys: list[str], headers: dict[str, Any]) -> set[str]:
        """Where the bindings of these exchanges lead that the message matches."""
        return {each.end for each in self.bound if each.exchange in exchanges and self._match(each, keys, headers)}

    def _match(self, bound: Bound, keys: list[str], headers: dict[str, Any]) -> bool:
        kind = self.kinds[bound.exchange]
        if kind == "direct":
            return bound.pattern in keys
        if kind == "topic":
            return any(topic_matches(bound.pattern, key) for key in keys)
        return kind == "fanout" or headers_match(bound.arguments, headers)


class Router:
    """One round: an exchange or two, three queues, bindings, messages, and a count of what came."""

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
        durable = rng.random() < 0.7
        name = f"{client.name}-{self._round}"
        front = f"exchange-{name}"
        this = Round({front: rng.choice(KINDS)})
        if rng.random() < 0.5:
            this.kinds[f"behind-{name}"] = rng.choice(KINDS)
        queues = [f"routed-{name}-{i}" for i in range(3)]
        for exchange, kind in this.kinds.items():
            auto_delete = exchange == front and rng.random() < 0.3
            yield from calls.declare_exchange(client, exchange, kind, durable=durable, auto_delete=auto_delete)
        *_, last = exchanges = list(this.kinds)
        for queue, exchange in zip(queues, (front, front, last), strict=True):
            yield from calls.declare(client, queue, durable=durable)
            yield from self._bind(this, queue, exchange)
        if last != front:
            yield from self._bind(this, last, front)
            if rng.random() < 0.3:
                yield from self._bind(this, front, last)
        wanted: dict[str, list[str]] = {queue: [] for queue in queues}
        yield from self._publish(this, wanted)
        if rng.random() < 0.5:
            yield from self._unbind(this, this.bound.pop(rng.randrange(2, len(this.bound))))
            yield from self._publish(this, wanted)
        yield from self._count(wanted)
        for exchange in exchanges:
            if rng.random() < 0.5:
                yield from calls.delete_exchange(client, exchange)
        for queue in queues:
            yield from calls.delete(client, queue)

    def _bind(self, this: Round, end: str, exchange: str) -> Program:
        rng, kind = self.client.rng, this.kinds[exchange]
        arguments = {**rng.choice(HEADERS), "x-match": rng.choice(("all", "any"))} if kind == "headers" else {}
        bound = Bound(exchange, end, rng.choice(PATTERNS[kind]), arguments)
        call = calls.bind_exchange if end in this.kinds else calls.bind
        yield from call(self.client, end, exchange, bound.pattern, arguments)
        this.bound.append(bound)

    def _unbind(self, this: Round, bound: Bound) -> Program:
        call = calls.unbind_exchange if bound.end in this.kinds else calls.unbind
        yield from call(self.client, bound.end, bound.exchange, bound.pattern, bound.arguments)

    def _publish(self, this: Round, wanted: dict[str, list[str]]) -> Program:
        client, rng = self.client, self.client.rng
        expected = client.expected
        for _ in range(rng.randrange(1, 5)):
            self._number += 1
            stamp = f"#{client.name}:{self._number}"
            exchange = rng.choice([*this.kinds])
            key, headers = rng.choice(KEYS), rng.choice(HEADERS)
            copies = {name: rng.sample(KEYS, 2) for name in ("CC", "BCC") if rng.random() < 0.2}
            keys = [key, *(each for more in copies.values() for each in more)]
            targets = this.targets(exchange, keys, headers)
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
                onward = targets - this.ends([exchange], keys, headers)
                self.run.did("messages through two exchanges", len(onward) > 0)
                for queue in targets:
                    wanted[queue].append(stamp)

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
