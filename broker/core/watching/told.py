"""The answers to clients, as listeners of the core hear them (``Hooks.on_confirmed``, ``Hooks.on_told``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from understudy.broker.transactions.tx_buffer import TxBuffer


class ToldConnection(Protocol):
    """A client's connection (``Connection``), as listeners see it."""

    @property
    def name(self) -> str: ...


class ToldChannel(Protocol):
    """A client's channel (``Channel``), as listeners see it."""

    @property
    def number(self) -> int: ...
    @property
    def connection(self) -> ToldConnection: ...


class Told(NamedTuple):
    """A client is told what became of a transaction.

    Attributes:
        answer: the method, or ``outcome`` for the answer to an outcome query.
        outcome: ``committed``, ``rolled back``, ``prepared``, ``expired``, ``unknown`` or ``listed``; of another answer to a
            transaction manager, its status.
        channel: of that client; None if the answer is a message.
        tx: the transaction; None if only its name is known.
        name: the name in the question, or the xid of a branch; "" for the transaction's own name.
        vhost, known_at: of a branch that is unknown, and of a list of branches: where, and the end of the log when it looked for
            them.
        branches: of a list: how many of them are prepared.
    """

    answer: str
    outcome: str
    channel: ToldChannel | None
    tx: TxBuffer | None
    name: str = ""
    vhost: str = ""
    known_at: int = 0
    branches: int = -1


Confirmed = tuple[int, int]
"""(delivery tag, offset of the ENQUEUE record) of a publish; offset 0: it brought nothing to the log."""
