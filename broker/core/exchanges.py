"""Exchanges: which queues a message goes to. Direct, fanout, topic and headers, as AMQP 0-9-1 section 3.1.3 has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from understudy.broker.core.argument_values import same_arguments, same_value
from understudy.broker.core.deduplication import DeduplicationRule
from understudy.broker.core.grouped import Grouped
from understudy.broker.core.queue import Queue
from understudy.broker.core.topic_trie import TopicTrie

BindingKey = tuple[int, str, bytes]
"""(queue id, routing key, encoded arguments): what makes two bindings of one exchange the same."""

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


class Exchange:
    """Base of the four types. Subclasses keep whatever index makes ``route`` fast.

    Attributes:
        delays: what is published to it may be delayed (``core/delayed_publish.py``).
        alternate: name of the exchange that takes what this one has no queue for; it need not be there.
        deduplication: which messages it drops that were published before, None for none.
        had_binding: the log says so; kept of auto-delete exchanges only.
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
        self.bindings: dict[BindingKey, Binding] = {}
        self.had_binding = False

    def is_declared_as(self, other: Exchange) -> bool:
        """Whether who has declared the one has declared the other."""
        return (self.kind, self.durable, self.auto_delete, self.internal) == (
            other.kind,
            other.durable,
            other.auto_delete,
            other.internal,
        ) and same_arguments(self.arguments, other.arguments)

    def bind(self, binding: Binding) -> bool:
        """Add; False if the same binding is there already."""
        if binding.key in self.bindings:
            return False
        self.bindings[binding.key] = binding
        self._index(binding)
        return True

    def unbind(self, key: BindingKey) -> bool:
        """Remove; False if it is not there."""
        binding = self.bindings.pop(key, None)
        if binding is None:
            return False
        self._unindex(binding)
        return True

    def route(self, routing_key: str, headers: dict[str, Any]) -> list[Queue]:
        """The queues for a message, each once, in a stable order."""
        raise NotImplementedError

    def _index(self, binding: Binding) -> None:
        raise NotImplementedError

    def _unindex(self, binding: Binding) -> None:
        raise NotImplementedError


def with_alternates(exchanges: Mapping[str, Exchange], exchange: Exchange) -> list[Exchange]:
    """The exchange, and those that are tried in turn while none has a queue; one that is not there, or was tried, ends it."""
    tried = [exchange]
    while tried[-1].alternate is not None:
        following = exchanges.get(tried[-1].alternate)
        if following is None or following in tried:
            break
        tried.append(following)
    return tried


def _once(queues: Iterable[Queue]) -> list[Queue]:
    return list({queue.id: queue for queue in queues}.values())


class DirectExchange(Exchange):
    """Queues bound with exactly the message's routing key."""

    kind = "direct"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._by_key: Grouped[str, Binding] = Grouped()

    def route(self, routing_key: str, headers: dict[str, Any]) -> list[Queue]:
        return _once(binding.queue for binding in self._by_key.of(routing_key))

    def _index(self, binding: Binding) -> None:
        self._by_key.add(binding.routing_key, binding)

    def _unindex(self, binding: Binding) -> None:
        self._by_key.remove(binding.routing_key, binding)


class FanoutExchange(Exchange):
    """Every bound queue."""

    kind = "fanout"
    uses_key = False

    def route(self, routing_key: str, headers: dict[str, Any]) -> list[Queue]:
        return _once(binding.queue for binding in self.bindings.values())

    def _index(self, binding: Binding) -> None:
        pass

    def _unindex(self, binding: Binding) -> None:
        pass


class TopicExchange(Exchange):
    """Queues whose pattern (words, ``*`` one word, ``#`` any number) matches the routing key."""

    kind = "topic"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._trie: TopicTrie[Binding] = TopicTrie()

    def route(self, routing_key: str, headers: dict[str, Any]) -> list[Queue]:
        return _once(binding.queue for binding in self._trie.match(routing_key))

    def _index(self, binding: Binding) -> None:
        self._trie.add(binding.routing_key, binding)

    def _unindex(self, binding: Binding) -> None:
        self._trie.remove(binding.routing_key, binding)


class HeadersExchange(Exchange):
    """Queues whose binding arguments match the message's headers: all of them, or any with ``x-match`` = any.

    Arguments that begin with ``x-`` do not take part, unless x-match is all-with-x or any-with-x (RabbitMQ's extension).
    An argument without a value matches a header of any value; which values are equal is in ``argument_values``.
    """

    kind = "headers"
    needs_headers = True
    uses_key = False

    def route(self, routing_key: str, headers: dict[str, Any]) -> list[Queue]:
        return _once(binding.queue for binding in self.bindings.values() if self._matches(binding.arguments, headers))

    @staticmethod
    def _matches(arguments: dict[str, Any], headers: dict[str, Any]) -> bool:
        mode = arguments.get("x-match", "all")
        with_x = str(mode).endswith("-with-x")
        wanted = {k: v for k, v in arguments.items() if k != "x-match" and (with_x or not k.startswith("x-"))}
        hits = (k in headers and (v is None or same_value(headers[k], v)) for k, v in wanted.items())
        return any(hits) if str(mode).startswith("any") else all(hits)

    def _index(self, binding: Binding) -> None:
        pass

    def _unindex(self, binding: Binding) -> None:
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
