"""The application's side of the wire: code that speaks AMQP and HTTP, and imports no room of the broker.

`connect` (threads) and `connect_async` (asyncio) give a connection to a group of brokers that survives failovers. The room also
holds the demo, the stress runs with their verdicts, and the stages library. Importing it loads no AMQP library.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from understudy.client.connection.errors import (
    ArgumentError,
    ClientError,
    LoginRefusedError,
    LostError,
    NoBrokerError,
    RefusedError,
    TransactionAborted,
    TransactionUnknown,
    UnroutableError,
)

if TYPE_CHECKING:
    from understudy.client.connection.asynchronous import AsyncConnection, AsyncConsumer
    from understudy.client.connection.core.messages import Message, Outgoing
    from understudy.client.connection.core.outcome import Outcome
    from understudy.client.connection.core.transaction import Transaction
    from understudy.client.connection.threads import Connection, Consumer

__all__ = [
    "ArgumentError",
    "AsyncConnection",
    "AsyncConsumer",
    "ClientError",
    "Connection",
    "Consumer",
    "LoginRefusedError",
    "LostError",
    "Message",
    "NoBrokerError",
    "Outcome",
    "Outgoing",
    "RefusedError",
    "Transaction",
    "TransactionAborted",
    "TransactionUnknown",
    "UnroutableError",
    "connect",
    "connect_async",
]

_LATER = {
    "AsyncConnection": "asynchronous",
    "AsyncConsumer": "asynchronous",
    "Connection": "threads",
    "Consumer": "threads",
    "Message": "core.messages",
    "Outcome": "core.outcome",
    "Outgoing": "core.messages",
    "Transaction": "core.transaction",
}
"""Names to the modules of `connection` that have them; loaded at their first use."""


def connect(
    addresses: str | Sequence[str], *, name: str = "understudy.client", give_up_s: float | None = 60.0
) -> Connection:
    """Make a connection for threads, by pika. A ``with`` statement opens it, or its first use.

    Args:
        addresses: ``amqp://user:word@b1,b2,b3/vhost``, several URLs, or ``zookeeper://z1,z2/group``.
        name: shown to brokers.
        give_up_s: a call waits so many seconds for a broker; None: for ever.

    Raises:
        ArgumentError: an address names no broker.
    """
    from understudy.client.connection.threads import Connection  # noqa: PLC0415  # loads pika

    return Connection(addresses, name=name, give_up_s=give_up_s)


def connect_async(
    addresses: str | Sequence[str], *, name: str = "understudy.client", give_up_s: float | None = 60.0
) -> AsyncConnection:
    """Make a connection for asyncio, by aio-pika. An ``async with`` statement opens it, or its first use.

    Arguments and errors are those of `connect`.
    """
    from understudy.client.connection.asynchronous import AsyncConnection  # noqa: PLC0415  # loads aio-pika

    return AsyncConnection(addresses, name=name, give_up_s=give_up_s)


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415  # few need it

    return getattr(import_module(f"understudy.client.connection.{_LATER[name]}"), name)
