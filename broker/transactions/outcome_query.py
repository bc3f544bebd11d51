"""The outcome query (G8): messages to the reserved exchange ``understudy.tx``.

``id`` asks for the id of this channel's transaction. ``outcome <id>`` asks, from any connection, what became of one: the id
is an own id (``epoch.sequence``) or a name that the client gave in the header ``x-understudy-tx``. The answer is a message
to the queue named in reply-to, with the same correlation id: committed, rolled back, pending, expired, or ``error: ...``.

``core/requests/outcome_answers.py`` answers.
"""

from __future__ import annotations

from understudy.broker.log.position import ID_EPOCH_SHIFT

OUTCOME_EXCHANGE = "understudy.tx"
NAME_BYTES = 64
"""The longest name of a transaction. Its octets need not be UTF-8; those that are not are lone surrogates in a `str`."""
SEQUENCE_MASK = (1 << ID_EPOCH_SHIFT) - 1
ABOVE_ALL_IDS = 1 << 64


def tx_id_text(tx_id: int) -> str:
    """``epoch.sequence``: how an own transaction id is written for people and in queries."""
    return f"{tx_id >> ID_EPOCH_SHIFT}.{tx_id & SEQUENCE_MASK}"


def is_own_id(text: str) -> bool:
    """True if ``text`` has the form of an own id, and so cannot be a client's name."""
    epoch, dot, sequence = text.partition(".")
    return bool(dot) and all(part.isascii() and part.isdigit() for part in (epoch, sequence))


def parse_tx_id(text: str) -> int:
    """The id that :func:`tx_id_text` writes as ``text``; one that is above all ids if it would be of none."""
    epoch, _, sequence = text.partition(".")
    if int(sequence) > SEQUENCE_MASK:
        return ABOVE_ALL_IDS
    return int(epoch) << ID_EPOCH_SHIFT | int(sequence)
