"""Ports: what the procedures ask of a driver. A method without "now" in its words may wait, and is only called through a yield.

An asyncio driver's methods return awaitables, a threads driver's return results. That is why results are `Any` here.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, Protocol, TypeVar

from understudy.client.connection.core.messages import Outgoing
from understudy.client.connection.core.topology import AnyBinding, Entity

T = TypeVar("T")

CONNECT_TIMEOUT_S: Final = 5.0
ANSWER_TIMEOUT_S: Final = 30.0
CLOSE_TIMEOUT_S: Final = 1.0
HEARTBEAT_S: Final = 10
"""Of a connection whose URL names no other."""

Call = Callable[[], Any]
Procedure = Generator[Call, Any, T]
"""Yields calls of a driver; is sent their results, or thrown their errors."""


class Lock(Protocol):
    """Mutual exclusion; not reentrant."""

    def acquire(self) -> Any: ...
    def release(self) -> None:
        """Now."""


class Channel(Protocol):
    """A channel of a link. What may wait raises LostError or RefusedError.

    Attributes:
        lives: neither the channel nor its link is known to be closed.
        lock: held by a procedure that sends a transaction on this channel.
        returned: ids of messages that came back; cleared by the procedures.
        link: the link of the channel.
    """

    returned: list[str]

    @property
    def lock(self) -> Lock: ...
    @property
    def link(self) -> Link: ...
    @property
    def lives(self) -> bool: ...
    def select(self) -> Any: ...
    def consume(self, queue: str, prefetch: int) -> Any:
        """Begin to take deliveries; with a prefetch of 0 they need no acknowledgement."""

    def next(self, timeout_s: float | None) -> Any:
        """Result: the next `Message`; None if none comes in time. LostError: the channel or the consumer is gone."""

    def declare(self, entity: Entity) -> Any: ...
    def count(self, queue: str) -> Any:
        """Result: how many messages are ready in the queue."""

    def unbind(self, binding: AnyBinding) -> Any: ...
    def delete_queue(self, name: str) -> Any: ...
    def delete_exchange(self, name: str) -> Any: ...
    def publish(self, message: Outgoing) -> Any:
        """No answer is awaited."""

    def acknowledge(self, tag: int) -> Any:
        """No answer is awaited."""

    def reject(self, tag: int, *, requeue: bool) -> Any:
        """No answer is awaited."""

    def commit(self) -> Any: ...
    def close(self) -> Any:
        """Never raises; bounded."""


class Link(Protocol):
    """A connection to one broker, opened.

    Attributes:
        capabilities: what the broker said that it can.
    """

    capabilities: frozenset[str]

    @property
    def lives(self) -> bool: ...
    def channel(self, *, spare: bool = False) -> Any:
        """Result: a new `Channel`. NoChannelError: all are taken; one is kept for calls with ``spare``."""

    def close(self) -> Any:
        """Never raises; bounded."""


def capabilities_of(server_properties: Mapping[str, Any] | None) -> frozenset[str]:
    """The capabilities that a broker tells in ``connection.start``."""
    found = (server_properties or {}).get("capabilities") or {}
    return frozenset(name for name, able in found.items() if able is True)


class Driver(Protocol):
    """Everything outside: wire, clock, chance."""

    def find(self) -> Any:
        """Result: the URLs of the brokers, the likely primary first. LostError: ZooKeeper does not tell."""

    def open(self, url: str) -> Any:
        """Result: a `Link`. LostError: the broker is away, or does not lead. LoginRefusedError."""

    def pause(self, seconds: float) -> Any: ...
    def lock(self) -> Lock:
        """A new one, now."""

    def now_s(self) -> float:
        """A clock that does not go back, now."""

    def chance(self) -> float:
        """From 0 to 1, drawn now."""

    def token(self) -> str:
        """A name that no other has, 32 hexadecimal digits, now."""

    def warn(self, text: str) -> None:
        """A line for the log, now."""
