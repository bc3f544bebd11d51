"""A broker's copy of a transaction that is not what the primary has."""

from __future__ import annotations

from understudy.broker.transactions.tx_buffer import TxBuffer


def damage(tx: TxBuffer) -> None:
    """Change both digests of what ``tx`` holds."""
    tx.digest ^= 1
    if tx._durable is not None:  # else they are one
        events, digest = tx._durable
        tx._durable = (events, digest ^ 1)
