"""Coins in queues: what the clients of `demo` and of the workload ``bank`` move, and how much of it at a time."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple

ACCOUNTS: Final = tuple(f"account-{number}" for number in range(8))
COINS_PER_ACCOUNT: Final = 50
LARGEST_COIN: Final = 100
ROLLBACK_SHARE: Final = 0.1
MOST_TAKEN: Final = 4
PREFETCH: Final = 2
CONSUMED_ACCOUNTS: Final = 3


class Move(NamedTuple):
    """One transaction, as it is drawn.

    Attributes:
        makes: account and amount of each coin that it publishes.
        on_purpose: True if the client rolls it back instead of committing it.
    """

    makes: list[tuple[str, int]]
    on_purpose: bool


def drawn(total: int, accounts: Sequence[str], random: Random) -> Move:
    """A move to ``accounts`` of coins that are worth ``total`` together, at least 1."""
    chosen = random.choices(accounts, k=random.randint(1, MOST_TAKEN))
    amounts = split(total, len(chosen), random)
    return Move(list(zip(chosen, amounts, strict=False)), random.random() < ROLLBACK_SHARE)


def split(total: int, parts: int, random: Random) -> list[int]:
    """``total`` as at most ``parts`` amounts of at least 1 each, at random."""
    cuts = sorted(random.sample(range(1, total), min(parts, total) - 1))
    return [high - low for low, high in zip([0, *cuts], [*cuts, total], strict=True)]
