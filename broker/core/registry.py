"""The registry: virtual hosts, exchanges, queues and bindings as the newest records have them.

Two pictures of the same thing are kept. :class:`Registry` is what routing uses and changes as soon as a topology record is
appended. :class:`TopologyImage` changes only when such a record is applied (stable), and holds the records themselves: it
is what a checkpoint writes, what a catch-up sends, and what the registry is rebuilt from when a tail is cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from understudy.broker.core.exchanges import (
    EXCHANGE_TYPES,
    Binding,
    BindingKey,
    DirectExchange,
    Exchange,
    exchange_class,
)
from understudy.broker.core.grouped import Grouped
from understudy.broker.core.policies import Policies
from understudy.broker.core.queue import Queue
from understudy.broker.log import record

DEFAULT_EXCHANGES = (
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.topic", "topic"),
    ("amq.headers", "headers"),
    ("amq.match", "headers"),
)
_ALWAYS_THERE = frozenset(name for name, _ in DEFAULT_EXCHANGES)


class VirtualHost:
    """Exchanges and queues of one name space. ``bound`` is by queue id what goes with a queue; :class:`Registry` keeps it."""

    __slots__ = ("bound", "default", "exchanges", "name", "queues")

    def __init__(self, name: str) -> None:
        self.name = name
        self.queues: dict[str, Queue] = {}
        self.exchanges: dict[str, Exchange] = {}
        self.bound: Grouped[int, tuple[Exchange, Binding]] = Grouped()
        for exchange, kind in DEFAULT_EXCHANGES:
            self.exchanges[exchange] = EXCHANGE_TYPES[kind](
                name, exchange, durable=True, auto_delete=False, internal=False, arguments={}
            )
        self.default = DirectExchange(name, "", durable=True, auto_delete=False, internal=False, arguments={})
        self.exchanges[""] = self.default


class Registry:
    """Everything that has a name, by virtual host. Virtual hosts appear when first used; access is checked elsewhere.

    ``version`` changes with every change, so that routing caches know when they are stale. ``refusing`` counts the queues
    that refuse a message when they are full; ``judging`` counts these, and queues and exchanges that drop duplicates;
    ``delaying`` those that may delay a message.
    ``policies`` configure what comes.
    """

    def __init__(self, policies: Policies | None = None) -> None:
        self.policies = Policies() if policies is None else policies
        self.vhosts: dict[str, VirtualHost] = {}
        self.version = 0
        self.refusing = self.judging = self.delaying = 0

    def vhost(self, name: str) -> VirtualHost:
        found = self.vhosts.get(name)
        if found is None:
            found = self.vhosts[name] = VirtualHost(name)
            for exchange in found.exchanges.values():
                self.policies.govern_exchange(exchange)
        return found

    def queues(self) -> Iterator[Queue]:
        for vhost in self.vhosts.values():
            yield from vhost.queues.values()

    def find_queue(self, vhost: str, name: str) -> Queue | None:
        """The queue of that name, None if it is not there. A virtual host that is not there is not made."""
        found = self.vhosts.get(vhost)
        return found.queues.get(name) if found is not None else None

    def count_queues(self) -> int:
        return sum(len(vhost.queues) for vhost in self.vhosts.values())

    def add_queue(self, queue: Queue) -> None:
        self.version += 1
        self.policies.govern(queue)
        queues = self.vhost(queue.vhost).queues
        before = queues.get(queue.name)
        self.refusing += queue.refuses - (before is not None and before.refuses)
        self.judging += queue.judges - (before is not None and before.judges)
        self.delaying += queue.takes_delays - (before is not None and before.takes_delays)
        queues[queue.name] = queue

    def remove_queue(self, queue: Queue) -> None:
        """Remove the queue and its bindings."""
        self.version += 1
        vhost = self.vhost(queue.vhost)
        if vhost.queues.get(queue.name) is queue:
            del vhost.queues[queue.name]
            self.refusing -= queue.refuses
            self.judging -= queue.judges
            self.delaying -= queue.takes_delays
        for exchange, binding in vhost.bound.pop(queue.id):
            exchange.unbind(binding.key)

    def exchanges_of(self, queue: Queue) -> list[Exchange]:
        """What the queue is bound to, in the order in which it was."""
        return list(dict.fromkeys(exchange for exchange, _ in self.vhost(queue.vhost).bound.of(queue.id)))

    def add_exchange(self, vhost: str, name: str, kind: str, flags: int, arguments: dict[str, Any]) -> Exchange:
        """Declare an exchange, or mark it as used. The same that is there already stays; another goes: :func:`is_another_exchange`.

        Raises:
            UnknownExchangeTypeError
        """
        make = exchange_class(kind, arguments)
        if make is None:
            raise record.UnknownExchangeTypeError(vhost, name, kind)
        self.version += 1
        exchanges = self.vhost(vhost).exchanges
        declared = make(
            vhost,
            name,
            durable=bool(flags & record.DURABLE),
            auto_delete=bool(flags & record.AUTO_DELETE),
            internal=bool(flags & record.INTERNAL),
            arguments=arguments,
        )
        self.policies.govern_exchange(declared)
        used = bool(flags & record.USED)
        found = exchanges.get(name)
        if found is None or not found.is_declared_as(declared) or (found.had_binding and not used):
            self._let_go(vhost, found)
            found = exchanges[name] = declared
            self.judging += declared.deduplication is not None
            self.delaying += declared.delays
        found.had_binding = used
        return found

    def remove_exchange(self, vhost: str, name: str) -> None:
        self.version += 1
        self._let_go(vhost, self.vhost(vhost).exchanges.pop(name, None))

    def _let_go(self, vhost: str, exchange: Exchange | None) -> None:
        """Nothing is bound to this one any more."""
        if exchange is not None:
            self.judging -= exchange.deduplication is not None
            self.delaying -= exchange.delays
            bound = self.vhost(vhost).bound
            for binding in exchange.bindings.values():
                bound.remove(binding.queue.id, (exchange, binding))

    def bind(self, vhost: str, exchange: str, binding: Binding) -> bool:
        self.version += 1
        place = self.vhost(vhost)
        found = place.exchanges.get(exchange)
        if found is None or not found.bind(binding):
            return False
        place.bound.add(binding.queue.id, (found, binding))
        return True

    def unbind(self, vhost: str, exchange: str, key: BindingKey) -> bool:
        self.version += 1
        place = self.vhost(vhost)
        found = place.exchanges.get(exchange)
        binding = None if found is None else found.bindings.get(key)
        if found is None or binding is None:
            return False
        place.bound.remove(binding.queue.id, (found, binding))
        return found.unbind(key)


def is_another_exchange(held: bytes, raw: bytes) -> bool:
    """True if ``raw``, an EXCHANGE_DECLARE, neither repeats nor marks the one of ``held``, both whole records of one name."""
    if held == raw:
        return False
    vhost, name, kind, flags, arguments = record.decode_exchange_declare(raw, 5, len(raw))
    return not flags & record.USED or held != record.encode_exchange_declare(
        vhost, name, kind, flags & ~record.USED, arguments
    )


ImageKey = tuple[str, str, int, str, bytes]
"""(vhost, exchange, queue id, routing key, encoded arguments): what makes two bindings of one broker the same."""


class TopologyImage:
    """The declare, exchange and bind records that are in force at the applied position, as bytes."""

    def __init__(self) -> None:
        self.queues: dict[int, bytes] = {}
        self.exchanges: dict[tuple[str, str], bytes] = {}
        self.bindings: dict[ImageKey, bytes] = {}
        self._bound: Grouped[int, ImageKey] = Grouped()
        self._bound_to: Grouped[tuple[str, str], ImageKey] = Grouped()

    def records(self) -> list[bytes]:
        """Exchanges, then queues, then bindings: an order in which they can be declared."""
        return [*self.exchanges.values(), *self.queues.values(), *self.bindings.values()]

    def apply(self, kind: int, raw: bytes) -> None:
        """Apply one whole topology record.

        Nobody declares an exchange that is there, except to mark it as used. If another one is here, the log of a broker that has
        restarted hides its deletion in a hole: it was not durable, and what was bound to it is not bound to this one.
        """
        end = len(raw)
        if kind == record.QUEUE_DECLARE:
            self.queues[record.decode_queue_declare(raw, 5, end)[0]] = raw
        elif kind == record.QUEUE_DELETE:
            queue_id = record.decode_queue_delete(raw, 5)
            self.queues.pop(queue_id, None)
            for key in self._bound.pop(queue_id):
                self.bindings.pop(key, None)
                self._bound_to.remove(key[:2], key)
        elif kind == record.EXCHANGE_DECLARE:
            vhost, name, *_ = record.decode_exchange_declare(raw, 5, end)
            if is_another_exchange(self.exchanges.get((vhost, name), raw), raw):
                self._remove_exchange((vhost, name))
            self.exchanges[vhost, name] = raw
        elif kind == record.EXCHANGE_DELETE:
            self._remove_exchange(record.decode_exchange_delete(raw, 5))
        elif kind == record.BIND:
            key = record.decode_bind(raw, 5, end)
            self.bindings[key] = raw
            self._bound.add(key[2], key)
            self._bound_to.add(key[:2], key)
        elif kind == record.UNBIND:
            key = record.decode_bind(raw, 5, end)
            if self.bindings.pop(key, None) is not None:
                self._bound.remove(key[2], key)
                self._bound_to.remove(key[:2], key)

    def holds_what_is_bound(self, raw: bytes) -> bool:
        """Whether the queue and the exchange of a BIND are here."""
        vhost, exchange, queue_id, *_ = record.decode_bind(raw, 5, len(raw))
        return queue_id in self.queues and (exchange in _ALWAYS_THERE or (vhost, exchange) in self.exchanges)

    def _remove_exchange(self, name: tuple[str, str]) -> None:
        self.exchanges.pop(name, None)
        for key in self._bound_to.pop(name):
            self.bindings.pop(key, None)
            self._bound.remove(key[2], key)
