"""Logs of clients, written by hand, and what the verdicts say of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from understudy.client.verdicts import (
    COMMITTED,
    ROLLED_BACK,
    BrokerContent,
    Case,
    Entry,
    Event,
    History,
    Kind,
    Message,
    judge,
)
from understudy.client.verdicts.altered import minted_and_found

A, B = "account-0", "account-1"
UNKNOWN = "unknown"
RESOLVED = "resolved"


def coin(message_id: str, account: str = A, amount: int = 10) -> Message:
    return Message(message_id, account, amount)


class Judged:
    """Verdicts on a case: the subjects of its violations, by kind."""

    def __init__(self, case: Case) -> None:
        self.violations = judge(case)
        self.minted, self.found = minted_and_found(case)

    def of(self, kind: Kind) -> tuple[str, ...]:
        return tuple(sorted({each.subject for each in self.violations if each.kind is kind}))

    @property
    def wrong(self) -> dict[str, tuple[str, ...]]:
        """The money is not among them."""
        kinds = {each.kind: None for each in self.violations if each.kind is not Kind.UNBALANCED}
        return {kind.value: self.of(kind) for kind in kinds}

    @property
    def holds(self) -> bool:
        return not self.violations


class Logs:
    """Client logs, written by hand; ``mint`` has put m/0 and m/1 into account-0, 10 each.

    Attributes:
        clock_s: what entries state; None: a second passes between two of them.
    """

    clock_s: float | None = None

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._numbers: dict[str, int] = {}
        self.tx("mint", [], [coin("m/0"), coin("m/1")], COMMITTED, client="minter")

    def entry(self, event: Event, client: str = "c", **facts: Any) -> None:
        number = self._numbers.get(client, 0)
        self._numbers[client] = number + 1
        at_s = float(len(self._entries)) if self.clock_s is None else self.clock_s
        self._entries.append(Entry(client=client, number=number, at_s=at_s, event=event, **facts))

    def got(self, one: Message, *, fresh: bool = True, client: str = "c") -> None:
        self.entry(Event.RECEIVED, client, messages=(one,), redelivered=not fresh)

    def tx(self, name: str, takes: Sequence[Message], makes: Sequence[Message], *told: str, client: str = "c") -> None:
        """One transaction, told what: the entries that follow tx.commit. RESOLVED stands for "resolved: committed"."""
        self.entry(Event.BEGAN, client, tx=name)
        if makes:
            self.entry(Event.SENT, client, tx=name, messages=tuple(makes))
        if takes:
            self.entry(Event.ACKNOWLEDGED, client, tx=name, messages=tuple(takes))
        self.entry(Event.COMMIT_SENT, client, tx=name)
        for each in told:
            if each == RESOLVED:
                self.entry(Event.RESOLVED, client, tx=name, outcome=COMMITTED, questions=1)
            elif each == ROLLED_BACK:
                self.entry(Event.ROLLED_BACK, client, tx=name, by="broker")
            else:
                self.entry(Event(each), client, tx=name)

    def plain(self, *messages: Message, told: Event | None = Event.CONFIRMED, client: str = "p") -> None:
        """Published outside of transactions, and confirmed, refused, or neither."""
        self.entry(Event.SENT, client, messages=messages)
        if told is not None:
            self.entry(told, client, messages=messages)

    @property
    def history(self) -> History:
        return History.of(self._entries)

    def against(self, **queues: Sequence[Message]) -> Judged:
        """``account_0=[...]``, ``account_1=[...]``."""
        content = {A: queues.get("account_0", ()), B: queues.get("account_1", ())}
        return Judged(Case(history=self.history, content=BrokerContent.of("a client", content)))


def plain(message_id: str, account: str = A) -> Message:
    """A message outside of transactions, which is worth nothing."""
    return Message(message_id, account)


def with_a_transfer() -> Logs:
    """A transfer t of m/0 from account-0 to account-1, in two coins, that was committed; m/1 stays."""
    logs = Logs()
    logs.got(coin("m/0"))
    logs.tx("t", [coin("m/0")], [coin("t/0", B, 4), coin("t/1", B, 6)], COMMITTED)
    return logs
