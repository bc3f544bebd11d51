"""The registry: virtual hosts, exchanges, queues and bindings as the newest records have them.

Two pictures of the same thing are kept. :class:`Registry` is what routing uses and changes as soon as a topology record is
appended. :class:`TopologyImage` changes only when such a record is applied (stable), and holds the records themselves: it
is what a state without messages holds, and what the registry is rebuilt from when a tail is cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.topology.exchanges import (
    EXCHANGE_TYPES,
    AnyBinding,
    Binding,
    BindingKey,
    DirectExchange,
    Exchange,
    ExchangeBinding,
    exchange_class,
)
from understudy.broker.core.topology.grouped import Grouped
from understudy.broker.core.topology.policies import Policies
from understudy.broker.log import record
from understudy.broker.log.exchange_bind_record import decode_exchange_bind

DEFAULT_EXCHANGES = (
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.topic", "topic"),
    ("amq.headers", "headers"),
    ("amq.match", "headers"),
)
_ALWAYS_THERE = frozenset(name for name, _ in DEFAULT_EXCHANGES)
BINDS = frozenset((record.BIND, record.EXCHANGE_BIND))
UNBINDS = frozenset((record.UNBIND, record.EXCHANGE_UNBIND))
_OF_EXCHANGES = (record.EXCHANGE_BIND, record.EXCHANGE_UNBIND)


class VirtualHost:
    """Exchanges and queues of one name space.

    Attributes:
        bound: by queue id what goes with a queue: exchanges, and their bindings that lead to it. :class:`Registry` keeps it.
        onward: the same by exchange, of bindings that lead to exchanges.
    """

    __slots__ = ("bound", "default", "exchanges", "name", "onward", "queues")

    def __init__(self, name: str) -> None:
        self.name = name
        self.queues: dict[str, Queue] = {}
        self.exchanges: dict[str, Exchange] = {}
        self.bound: Grouped[int, tuple[Exchange, Binding]] = Grouped()
        self.onward: Grouped[Exchange, tuple[Exchange, ExchangeBinding]] = Grouped()
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
        """The exchanges that the queue is bound to, in the order in which it was."""
        return list(dict.fromkeys(exchange for exchange, _ in self.vhost(queue.vhost).bound.of(queue.id)))

    def sources_of(self, exchange: Exchange) -> list[Exchange]:
        """The exchanges that pass messages on to ``exchange``, in the order in which they were bound."""
        return list(dict.fromkeys(source for source, _ in self.vhost(exchange.vhost).onward.of(exchange)))

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
        found.note_used(used)
        return found

    def remove_exchange(self, vhost: str, name: str) -> None:
        self.version += 1
        self._let_go(vhost, self.vhost(vhost).exchanges.pop(name, None))

    def _let_go(self, vhost: str, exchange: Exchange | None) -> None:
        """Nothing is bound to this one any more, nor is this one to others."""
        if exchange is not None:
            self.judging -= exchange.deduplication is not None
            self.delaying -= exchange.delays
            place = self.vhost(vhost)
            for binding in exchange.bindings.values():
                _forget(place, exchange, binding)
            for source, onward in place.onward.pop(exchange):
                source.unbind(onward.key)

    def bind(self, vhost: str, exchange: str, binding: AnyBinding) -> bool:
        self.version += 1
        place = self.vhost(vhost)
        found = place.exchanges.get(exchange)
        if found is None or not found.bind(binding):
            return False
        if isinstance(binding, ExchangeBinding):
            place.onward.add(binding.destination, (found, binding))
        else:
            place.bound.add(binding.queue.id, (found, binding))
        return True

    def unbind(self, vhost: str, exchange: str, key: BindingKey) -> bool:
        self.version += 1
        place = self.vhost(vhost)
        found = place.exchanges.get(exchange)
        binding = None if found is None else found.bindings.get(key)
        if found is None or binding is None:
            return False
        _forget(place, found, binding)
        return found.unbind(key)


def _forget(place: VirtualHost, exchange: Exchange, binding: AnyBinding) -> None:
    """Take a binding of ``exchange`` out of what goes with the queue or exchange that it leads to."""
    if isinstance(binding, ExchangeBinding):
        place.onward.remove(binding.destination, (exchange, binding))
    else:
        place.bound.remove(binding.queue.id, (exchange, binding))


def is_another_exchange(held: bytes, raw: bytes) -> bool:
    """True if ``raw``, an EXCHANGE_DECLARE, neither repeats nor marks the one of ``held``, both whole records of one name."""
    if held == raw:
        return False
    vhost, name, kind, flags, arguments = record.decode_exchange_declare(raw, 5, len(raw))
    return not flags & record.USED or held != record.encode_exchange_declare(
        vhost, name, kind, flags & ~record.USED, arguments
    )


ImageKey = tuple[str, str, int | str, str, bytes]
"""(vhost, exchange, queue id or name of the destination exchange, routing key, encoded arguments).

Two bindings of one broker with the same key are the same.
"""


class TopologyImage:
    """The declare, exchange and bind records that are in force at the applied position, as bytes.

    ``onward``: how many bindings lead to exchanges.
    """

    def __init__(self) -> None:
        self.queues: dict[int, bytes] = {}
        self.exchanges: dict[tuple[str, str], bytes] = {}
        self.bindings: dict[ImageKey, bytes] = {}
        self._bound: Grouped[int | tuple[str, str], ImageKey] = Grouped()  # by queue id, or by the destination exchange
        self._bound_to: Grouped[tuple[str, str], ImageKey] = Grouped()
        self.onward = 0

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
            self._end_bindings_to(queue_id)
        elif kind == record.EXCHANGE_DECLARE:
            vhost, name, *_ = record.decode_exchange_declare(raw, 5, end)
            if is_another_exchange(self.exchanges.get((vhost, name), raw), raw):
                self._remove_exchange((vhost, name))
            self.exchanges[vhost, name] = raw
        elif kind == record.EXCHANGE_DELETE:
            self._remove_exchange(record.decode_exchange_delete(raw, 5))
        elif kind in BINDS:
            key = _image_key(kind, raw)
            self.onward += kind == record.EXCHANGE_BIND and key not in self.bindings
            self.bindings[key] = raw
            self._bound.add(_end_of(key), key)
            self._bound_to.add(key[:2], key)
        elif kind in UNBINDS:
            key = _image_key(kind, raw)
            if self.bindings.pop(key, None) is not None:
                self.onward -= kind == record.EXCHANGE_UNBIND
                self._bound.remove(_end_of(key), key)
                self._bound_to.remove(key[:2], key)

    def holds_what_is_bound(self, raw: bytes) -> bool:
        """True if both ends of a record of `BINDS` are here."""
        vhost, exchange, bound, *_ = _image_key(raw[0], raw)
        there = bound in self.queues if isinstance(bound, int) else self._has_exchange(vhost, bound)
        return there and self._has_exchange(vhost, exchange)

    def _has_exchange(self, vhost: str, name: str) -> bool:
        return name in _ALWAYS_THERE or (vhost, name) in self.exchanges

    def _remove_exchange(self, name: tuple[str, str]) -> None:
        self.exchanges.pop(name, None)
        for key in self._bound_to.pop(name):
            self.onward -= isinstance(key[2], str)
            del self.bindings[key]
            self._bound.remove(_end_of(key), key)
        self._end_bindings_to(name)

    def _end_bindings_to(self, end: int | tuple[str, str]) -> None:
        for key in self._bound.pop(end):
            self.onward -= isinstance(key[2], str)
            del self.bindings[key]
            self._bound_to.remove(key[:2], key)


def _image_key(kind: int, raw: bytes) -> ImageKey:
    """Of a whole record of `BINDS` or `UNBINDS`."""
    decode = decode_exchange_bind if kind in _OF_EXCHANGES else record.decode_bind
    return decode(raw, 5, len(raw))


def _end_of(key: ImageKey) -> int | tuple[str, str]:
    """The queue id, or virtual host and name of the exchange, that a binding leads to."""
    return key[2] if isinstance(key[2], int) else (key[0], key[2])
