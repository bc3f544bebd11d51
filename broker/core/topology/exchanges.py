"""Exchanges: what is bound to each, and which bindings a message matches. Direct, fanout, topic and headers.

Source: AMQP 0-9-1 section 3.1.3. Where a message goes through several exchanges is ``core/topology/routing.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from understudy.broker.core.queues.deduplication import DeduplicationRule
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.topology.argument_values import same_arguments, same_value
from understudy.broker.core.topology.grouped import Grouped
from understudy.broker.core.topology.topic_trie import TopicTrie

BindingKey = tuple[int | str, str, bytes]
"""(queue id or name of the destination exchange, routing key, encoded arguments).

Two bindings of one exchange with the same key are the same.
"""

ALTERNATE = "alternate-exchange"
"""The argument that names where messages go that an exchange has no queue for (RabbitMQ's extension)."""


class Binding:
    """One queue bound to one exchange."""

    __slots__ = ("arguments", "queue", "raw_arguments", "routing_key")

    def __init__(self, queue: Queue, routing_key: str, arguments: dict[str, Any], raw_arguments: bytes) -> None:
        self.queue = queue
        self.routing_key = routing_key
        self.arguments = arguments
        self.raw_arguments = raw_arguments

    @property
    def key(self) -> BindingKey:
        return self.queue.id, self.routing_key, self.raw_arguments


class ExchangeBinding:
    """One exchange, the destination, bound to another: RabbitMQ's extension."""

    __slots__ = ("arguments", "destination", "raw_arguments", "routing_key")

    def __init__(
        self, destination: Exchange, routing_key: str, arguments: dict[str, Any], raw_arguments: bytes
    ) -> None:
        self.destination = destination
        self.routing_key = routing_key
        self.arguments = arguments
        self.raw_arguments = raw_arguments

    @property
    def key(self) -> BindingKey:
        return self.destination.name, self.routing_key, self.raw_arguments


AnyBinding = Binding | ExchangeBinding


class Exchange:
    """Base of the four types. Subclasses keep whatever index makes ``matching`` fast.

    Attributes:
        delays: what is published to it may be delayed (``core/moving/delayed_publish.py``).
        alternate: name of the exchange that takes what this one has no queue for; it need not be there.
        deduplication: which messages it drops that were published before, None for none.
        had_binding: the log says so; kept of auto-delete exchanges only.
        bindings: of which this exchange is the source.
        onward: how many of them lead to exchanges.
    """

    kind: ClassVar[str] = ""
    needs_headers: ClassVar[bool] = False
    uses_key: ClassVar[bool] = True
    delays: ClassVar[bool] = False

    def __init__(
        self, vhost: str, name: str, *, durable: bool, auto_delete: bool, internal: bool, arguments: dict[str, Any]
    ) -> None:
        self.vhost = vhost
        self.name = name
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments = arguments
        self.alternate: str | None = arguments.get(ALTERNATE)
        self.deduplication = DeduplicationRule.of(arguments)
        self.bindings: dict[BindingKey, AnyBinding] = {}
        self.onward = 0
        self.had_binding = False

    def lead_to(self, alternate: str | None) -> None:
        """Have the exchange ``alternate`` take what this one has no queue for."""
        self.alternate = alternate

    def note_used(self, used: bool) -> None:
        """The log says whether it has had a binding."""
        self.had_binding = used

    def is_declared_as(self, other: Exchange) -> bool:
        """True if a declaration of one exchange also declares the other."""
        return (self.kind, self.durable, self.auto_delete, self.internal) == (
            other.kind,
            other.durable,
            other.auto_delete,
            other.internal,
        ) and same_arguments(self.arguments, other.arguments)

    def bind(self, binding: AnyBinding) -> bool:
        """Add; False if the same binding is there already."""
        if binding.key in self.bindings:
            return False
        self.bindings[binding.key] = binding
        self.onward += isinstance(binding, ExchangeBinding)
        self._index(binding)
        return True

    def unbind(self, key: BindingKey) -> bool:
        """Remove; False if it is not there."""
        binding = self.bindings.pop(key, None)
        if binding is None:
            return False
        self.onward -= isinstance(binding, ExchangeBinding)
        self._unindex(binding)
        return True

    def matching(self, routing_key: str, headers: dict[str, Any]) -> Iterable[AnyBinding]:
        """The bindings that a message matches, in a stable order; a binding may come twice."""
        raise NotImplementedError

    def _index(self, binding: AnyBinding) -> None:
        raise NotImplementedError

    def _unindex(self, binding: AnyBinding) -> None:
        raise NotImplementedError


class DirectExchange(Exchange):
    """Queues bound with exactly the message's routing key."""

    kind = "direct"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._by_key: Grouped[str, AnyBinding] = Grouped()

    def matching(self, routing_key: str, headers: dict[str, Any]) -> Iterable[AnyBinding]:
        return self._by_key.of(routing_key)

    def _index(self, binding: AnyBinding) -> None:
        self._by_key.add(binding.routing_key, binding)

    def _unindex(self, binding: AnyBinding) -> None:
        self._by_key.remove(binding.routing_key, binding)


class FanoutExchange(Exchange):
    """Every bound queue."""

    kind = "fanout"
    uses_key = False

    def matching(self, routing_key: str, headers: dict[str, Any]) -> Iterable[AnyBinding]:
        return self.bindings.values()

    def _index(self, binding: AnyBinding) -> None:
        pass

    def _unindex(self, binding: AnyBinding) -> None:
        pass


class TopicExchange(Exchange):
    """Queues whose pattern (words, ``*`` one word, ``#`` any number) matches the routing key."""

    kind = "topic"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._trie: TopicTrie[AnyBinding] = TopicTrie()

    def matching(self, routing_key: str, headers: dict[str, Any]) -> Iterable[AnyBinding]:
        return self._trie.match(routing_key)

    def _index(self, binding: AnyBinding) -> None:
        self._trie.add(binding.routing_key, binding)

    def _unindex(self, binding: AnyBinding) -> None:
        self._trie.remove(binding.routing_key, binding)


class HeadersExchange(Exchange):
    """Queues whose binding arguments match the message's headers: all of them, or any with ``x-match`` = any.

    Arguments that begin with ``x-`` do not take part, unless x-match is all-with-x or any-with-x (RabbitMQ's extension).
    An argument without a value matches a header of any value; which values are equal is in ``argument_values``.
    """

    kind = "headers"
    needs_headers = True
    uses_key = False

    def matching(self, routing_key: str, headers: dict[str, Any]) -> Iterable[AnyBinding]:
        return [binding for binding in self.bindings.values() if self._matches(binding.arguments, headers)]

    @staticmethod
    def _matches(arguments: dict[str, Any], headers: dict[str, Any]) -> bool:
        mode = arguments.get("x-match", "all")
        with_x = str(mode).endswith("-with-x")
        wanted = {k: v for k, v in arguments.items() if k != "x-match" and (with_x or not k.startswith("x-"))}
        hits = (k in headers and (v is None or same_value(headers[k], v)) for k, v in wanted.items())
        return any(hits) if str(mode).startswith("any") else all(hits)

    def _index(self, binding: AnyBinding) -> None:
        pass

    def _unindex(self, binding: AnyBinding) -> None:
        pass


EXCHANGE_TYPES: dict[str, type[Exchange]] = {
    cls.kind: cls for cls in (DirectExchange, FanoutExchange, TopicExchange, HeadersExchange)
}
DELAYED_MESSAGE = "x-delayed-message"
"""The type of an exchange that may delay what is published to it. It routes as the type does that `DELAYED_TYPE` names."""
DELAYED_TYPE = "x-delayed-type"
_DELAYED: dict[object, type[Exchange]] = {
    kind: type(f"Delayed{cls.__name__}", (cls,), {"kind": DELAYED_MESSAGE, "delays": True})
    for kind, cls in EXCHANGE_TYPES.items()
}


def exchange_class(kind: str, arguments: Mapping[str, Any]) -> type[Exchange] | None:
    """The class of an exchange of type ``kind`` with these arguments; None if there is no such type."""
    if kind != DELAYED_MESSAGE:
        return EXCHANGE_TYPES.get(kind)
    routes_as = arguments.get(DELAYED_TYPE)
    return _DELAYED.get(routes_as) if isinstance(routes_as, str) else None
