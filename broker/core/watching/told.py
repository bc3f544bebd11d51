"""The answers to clients, as listeners of the core hear them (``Broker.on_confirmed``, ``Broker.on_told``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from understudy.broker.core.clients.channel import Channel
    from understudy.broker.transactions.tx_buffer import TxBuffer


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
    channel: Channel | None
    tx: TxBuffer | None
    name: str = ""
    vhost: str = ""
    known_at: int = 0
    branches: int = -1


Confirmed = tuple[int, int]
"""(delivery tag, offset of the ENQUEUE record) of a publish; offset 0: it brought nothing to the log."""
