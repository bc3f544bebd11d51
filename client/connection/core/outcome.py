"""Outcomes of transactions, and the questions that brokers answer about them (docs/amqp.md)."""

from __future__ import annotations

import enum
import re
from typing import Final

from understudy.client.connection.errors import ArgumentError, RefusedError

EXCHANGE: Final = "understudy.tx"
"""Answers for transactions."""
HEADER: Final = "x-understudy-tx"
"""Names the transaction of a message."""
CAPABILITY: Final = "understudy.outcomes"
PENDING: Final = "pending"
PENDING_PAUSE_S: Final = 0.05
NO_ANSWER: Final = 540
"""Reply code NOT_IMPLEMENTED: the broker does not answer for transactions."""
NAME_BYTES: Final = 64
_OWN_ID: Final = re.compile(r"[0-9]+\.[0-9]+\Z")


class Outcome(enum.Enum):
    """The outcome of a transaction; EXPIRED: the broker has forgotten."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    EXPIRED = "expired"


def outcome_of(answer: str) -> Outcome | None:
    """The outcome that a broker tells; None: not decided yet.

    Raises:
        RefusedError: the answer is none of these.
    """
    if answer == PENDING:
        return None
    try:
        return Outcome(answer)
    except ValueError:
        raise RefusedError(NO_ANSWER, f"the broker answers {answer!r} to a question for an outcome") from None


def checked_name(name: str) -> str:
    """A name that a transaction may have.

    Raises:
        ArgumentError: it has not 1 to 64 octets, or the form of the ids that brokers give.
    """
    if not 1 <= len(name.encode("utf-8", "surrogateescape")) <= NAME_BYTES or _OWN_ID.match(name):
        raise ArgumentError(
            f"transaction name {name!r}: a name has 1 to {NAME_BYTES} octets, and not the form number.number"
        )
    return name
