"""Verdict: do the queues hold what the clients' logs say? Pure: logs and queue contents in, contradictions out.

A coin is a message with a stamp of its own. A transaction takes coins (acknowledges them) and makes others (publishes them), of the
same worth. What must be in the queues at the end follows from the logs alone: everything that committed transactions made, less
everything that committed transactions took. The simulator holds its clusters against the same account (``tests/simulation``).

A coin is *in place* if it lies in a queue or a transaction that was done took it; a take is *in place* if the coin is gone. A
transaction is **partial** if some of its effects are in place and others are not, whatever its client was told, and
**contradicted** if its client was told one thing and all of the other is so. A coin is **lost** if it must lie in a queue and does
not, and **doubled** if it lies there twice, or was taken by two committed transactions, or was taken and still lies there. The
categories overlap: half a transaction that was lost counts as lost coins and as a partial transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import attrs

from understudy.client.demo.client_log import COMMITTED, ROLLED_BACK, Coin
from understudy.client.demo.ledger import Ledger, Transaction

Queues = Mapping[str, Sequence[Coin]]


@attrs.frozen(kw_only=True)
class Verdict:
    """Every way in which logs and queues contradict each other, as stamps of coins or names of transactions, sorted.

    Attributes:
        lost, doubled: coins (see the head of this file).
        partial, contradicted: transactions (ditto). Also contradicted: one that was told two different outcomes.
        unresolved: transactions of which nobody knows what became of them, though clients asked.
        foreign: coins in a queue that nobody published.
        altered: coins in another queue, or of another worth, than they were published with.
        uncommitted: coins that were delivered though their transaction was never committed (G3).
        unordered: coins that stand before one that the same client published to that queue earlier (G9).
        stale: coins that were delivered more than once with redelivered=0 (G9).
        minted, found: the worth of all coins: as first published, and as read at the end.
    """

    lost: tuple[str, ...]
    doubled: tuple[str, ...]
    partial: tuple[str, ...]
    contradicted: tuple[str, ...]
    unresolved: tuple[str, ...]
    foreign: tuple[str, ...]
    altered: tuple[str, ...]
    uncommitted: tuple[str, ...]
    unordered: tuple[str, ...]
    stale: tuple[str, ...]
    minted: int
    found: int

    def wrong(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The categories that are not empty, with what is in them. The money is not among them."""
        for field in attrs.fields(Verdict):
            content = getattr(self, field.name)
            if isinstance(content, tuple) and content:
                yield field.name, content

    @property
    def holds(self) -> bool:
        return self.minted == self.found and not any(self.wrong())


def judge(ledger: Ledger, queues: Queues) -> Verdict:
    """Hold the queues against the logs.

    Args:
        ledger: of all clients' logs.
        queues: every account, its coins in queue order, as read when no client was connected any more.
    """
    return _Court(ledger, queues).verdict()


class _Court:
    def __init__(self, ledger: Ledger, queues: Queues) -> None:
        self._ledger = ledger
        self._queues = queues
        self._lying = Counter(coin.stamp for coins in queues.values() for coin in coins)
        self._makers = {coin.stamp: tx for tx in ledger.transactions.values() for coin in tx.makes}
        self._made = {coin.stamp: coin for tx in ledger.transactions.values() for coin in tx.makes}
        committed = [tx for tx in ledger.transactions.values() if tx.committed]
        self._due = {coin.stamp for tx in committed for coin in tx.makes}
        self._taken = Counter(coin.stamp for tx in committed for coin in tx.takes)
        # Of a transaction whose client was told something else, or nothing, what it made is the evidence: then it took, too.
        others = [tx for tx in ledger.transactions.values() if not tx.committed]
        done = [tx for tx in others if any(self._in_place(coin.stamp) for coin in tx.makes)]
        self._taken += Counter(coin.stamp for tx in done for coin in tx.takes)
        self._minted = sum(coin.amount for tx in committed if not tx.takes for coin in tx.makes)

    def verdict(self) -> Verdict:
        transactions = self._ledger.transactions.values()
        effects = {tx.name: self._effects(tx) for tx in transactions}
        return Verdict(
            lost=_sorted(stamp for stamp in self._due if not self._in_place(stamp)),
            doubled=_sorted(
                stamp for stamp in self._lying | self._taken if self._lying[stamp] + self._taken[stamp] > 1
            ),
            partial=_sorted(name for name, done in effects.items() if any(done) and not all(done)),
            contradicted=_sorted(tx.name for tx in transactions if self._is_contradicted(tx, effects[tx.name])),
            unresolved=_sorted(tx.name for tx in transactions if tx.unresolved),
            foreign=_sorted(stamp for stamp in self._lying if stamp not in self._made),
            altered=_sorted(self._altered()),
            uncommitted=_sorted(stamp for stamp in self._seen() if self._is_uncommitted(stamp)),
            unordered=_sorted(self._unordered()),
            stale=_sorted(stamp for stamp, times in self._ledger.fresh.items() if times > 1),
            minted=self._minted,
            found=sum(coin.amount for coins in self._queues.values() for coin in coins),
        )

    def _in_place(self, stamp: str) -> bool:
        return bool(self._lying[stamp] or self._taken[stamp])

    def _effects(self, tx: Transaction) -> list[bool]:
        """Of each effect that can be told apart, whether it is in place.

        A take leaves nothing behind that names its transaction. So the takes of one that did not commit are looked at only if
        something that it made is there: otherwise the coin is just lost, and who lost it cannot be said.
        """
        made = [self._in_place(coin.stamp) for coin in tx.makes]
        if tx.committed or any(made):
            return made + [not self._lying[coin.stamp] for coin in tx.takes]
        return made

    @staticmethod
    def _is_contradicted(tx: Transaction, effects: list[bool]) -> bool:
        if COMMITTED in tx.told and ROLLED_BACK in tx.told:
            return True
        if tx.committed:
            return bool(effects) and not any(effects)
        return not tx.unresolved and bool(effects) and all(effects)

    def _altered(self) -> Iterator[str]:
        for account, coins in self._queues.items():
            for coin in coins:
                made = self._made.get(coin.stamp)
                if made is not None and (made.account, made.amount) != (account, coin.amount):
                    yield coin.stamp

    def _seen(self) -> set[str]:
        return self._ledger.seen | {coin.stamp for tx in self._ledger.transactions.values() for coin in tx.takes}

    def _is_uncommitted(self, stamp: str) -> bool:
        maker = self._makers.get(stamp)
        return maker is None or not (maker.committed or maker.unresolved)

    def _unordered(self) -> Iterator[str]:
        for coins in self._queues.values():
            newest: dict[str, tuple[int, int]] = {}
            for coin in coins:
                maker = self._makers.get(coin.stamp)
                if maker is None:
                    continue
                place = (maker.number, [made.stamp for made in maker.makes].index(coin.stamp))
                if place < newest.get(maker.client, (-1, -1)):
                    yield coin.stamp
                else:
                    newest[maker.client] = place


def _sorted(names: Iterator[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))
