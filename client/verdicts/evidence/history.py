"""History: all clients' logs put together. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

import attrs

from understudy.client.verdicts.evidence.client_log import Entry, Event, LogError, Message

COMMITTED: Final = "committed"
ROLLED_BACK: Final = "rolled back"

Place = tuple[str, str]
"""A message id and a queue."""


@attrs.frozen(kw_only=True)
class Transaction:
    """One transaction as its client made it.

    Attributes:
        number: the place among the client's own transactions, from 0: they follow each other.
        question: what the outcome query and the log call it; "" if no broker was told a name.
        takes, makes: the messages it acknowledges and publishes, in the order in which the client did.
        told: every outcome the client was told, by commit-ok, by a closed channel, by asking; all must be the same.
        rolled_back_by: whom, as the client wrote at once; "" if it learned of it by asking, or it was not.
        unknown: the answer to tx.commit never came.
        began_s, commit_sent_s, answered_s: monotonic seconds; ``answered_s`` is when commit-ok came.
    """

    name: str
    client: str
    number: int = 0
    question: str = ""
    takes: tuple[Message, ...] = ()
    makes: tuple[Message, ...] = ()
    told: tuple[str, ...] = ()
    rolled_back_by: str = ""
    unknown: bool = False
    began_s: float = 0.0
    commit_sent_s: float | None = None
    answered_s: float | None = None

    @property
    def committed(self) -> bool:
        return COMMITTED in self.told

    @property
    def unresolved(self) -> bool:
        """No outcome is known: the client was never told, or was told something that is no outcome."""
        return not any(outcome in (COMMITTED, ROLLED_BACK) for outcome in self.told)

    @property
    def rolled_back(self) -> bool:
        """Its client was told so, and nothing else."""
        return not (self.committed or self.unresolved)


@attrs.frozen
class Receipt:
    """A delivery to ``client``; ``at_s``: monotonic seconds."""

    client: str
    message: Message
    redelivered: bool
    at_s: float = 0.0


@attrs.frozen
class Sent:
    """A message that was published outside of transactions.

    ``number`` is its place among its client's; ``at_s``: monotonic seconds, before its first frame left.
    """

    client: str
    number: int
    message: Message
    at_s: float = 0.0


@attrs.frozen(kw_only=True)
class History:
    """All that clients did and were answered.

    Attributes:
        transactions: by name.
        received: every delivery; those of one client in their order.
        sent: by place, what was published outside of transactions.
        confirmed, refused: places of those messages of which the broker said so.
        taken: places of what clients acknowledged outside of transactions. No broker answers that, so it may not have arrived.
    """

    transactions: Mapping[str, Transaction] = attrs.field(factory=dict)
    received: Collection[Receipt] = ()
    sent: Mapping[Place, Sent] = attrs.field(factory=dict)
    confirmed: Collection[Place] = frozenset()
    refused: Collection[Place] = frozenset()
    taken: AbstractSet[Place] = frozenset()

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> History:
        """Put logs together, each client's entries in the order of its log.

        Raises:
            LogError: a log lacks an entry or has it twice, a transaction was begun twice or never, an id was used twice.
        """
        return _Reader().read(entries)


@attrs.define
class _Draft:
    """A transaction that is being read."""

    began: Entry
    number: int
    takes: list[Message] = attrs.field(factory=list)
    makes: list[Message] = attrs.field(factory=list)
    told: list[str] = attrs.field(factory=list)
    rolled_back_by: str = ""
    unknown: bool = False
    commit_sent_s: float | None = None
    answered_s: float | None = None

    def transaction(self) -> Transaction:
        began = self.began
        return Transaction(
            name=began.tx,
            client=began.client,
            number=self.number,
            question=began.tx if began.question is None else began.question,
            takes=tuple(self.takes),
            makes=tuple(self.makes),
            told=tuple(self.told),
            rolled_back_by=self.rolled_back_by,
            unknown=self.unknown,
            began_s=began.at_s,
            commit_sent_s=self.commit_sent_s,
            answered_s=self.answered_s,
        )


class _Reader:
    def __init__(self) -> None:
        self._drafts: dict[str, _Draft] = {}
        self._received: list[Receipt] = []
        self._sent: dict[Place, Sent] = {}
        self._confirmed: set[Place] = set()
        self._refused: set[Place] = set()
        self._taken: set[Place] = set()
        self._made: set[Place] = set()
        self._entries: Counter[str] = Counter()
        self._begun: Counter[str] = Counter()
        self._plain: Counter[str] = Counter()

    def read(self, entries: Iterable[Entry]) -> History:
        for entry in entries:
            if entry.number != self._entries[entry.client]:
                raise LogError(
                    f"the log of {entry.client} goes on with entry {entry.number}, not {self._entries[entry.client]}:"
                    " an entry is missing, or is there twice"
                )
            self._entries[entry.client] += 1
            self._take(entry)
        return History(
            transactions={name: draft.transaction() for name, draft in self._drafts.items()},
            received=self._received,
            sent=self._sent,
            confirmed=self._confirmed,
            refused=self._refused,
            taken=self._taken,
        )

    def _take(self, entry: Entry) -> None:
        if entry.event is Event.RECEIVED:
            self._received += [
                Receipt(entry.client, message, entry.redelivered, entry.at_s) for message in entry.messages
            ]
        elif entry.event is Event.BEGAN:
            self._begin(entry)
        elif entry.tx:
            self._within(self._named(entry), entry)
        elif entry.event is Event.SENT:
            self._send(entry)
        elif entry.event is Event.ACKNOWLEDGED:
            self._taken.update(map(self._plain_place, entry.messages))
        elif entry.event is Event.CONFIRMED:
            self._confirmed.update(map(place_of, entry.messages))
        elif entry.event is Event.REFUSED:
            self._refused.update(map(place_of, entry.messages))

    def _begin(self, entry: Entry) -> None:
        if entry.tx in self._drafts:
            raise LogError(f"{entry.client} began {entry.tx} twice: a transaction is never replayed")
        self._drafts[entry.tx] = _Draft(entry, self._begun[entry.client])
        self._begun[entry.client] += 1

    def _named(self, entry: Entry) -> _Draft:
        draft = self._drafts.get(entry.tx)
        if draft is None or draft.began.client != entry.client:
            raise LogError(f"{entry.client} wrote {entry.event} of {entry.tx}, which it never began")
        return draft

    def _within(self, draft: _Draft, entry: Entry) -> None:
        event = entry.event
        if event is Event.SENT:
            self._make(entry)
            draft.makes += entry.messages
        elif event is Event.ACKNOWLEDGED:
            draft.takes += entry.messages
        elif event is Event.COMMIT_SENT:
            draft.commit_sent_s = entry.at_s
        elif event is Event.COMMITTED:
            draft.answered_s = entry.at_s
            draft.told.append(COMMITTED)
        elif event is Event.ROLLED_BACK:
            draft.told.append(ROLLED_BACK)
            draft.rolled_back_by = entry.by
        elif event is Event.UNKNOWN:
            draft.unknown = True
        elif event is Event.RESOLVED:
            draft.told.append(entry.outcome)

    def _make(self, entry: Entry) -> None:
        for message in entry.messages:
            place = place_of(message)
            if place in self._made:
                raise LogError(f"{entry.client} sent {message.id} to {message.queue}, where that id was sent before")
            self._made.add(place)

    def _send(self, entry: Entry) -> None:
        self._make(entry)
        for message in entry.messages:
            self._sent[self._plain_place(message)] = Sent(entry.client, self._plain[entry.client], message, entry.at_s)
            self._plain[entry.client] += 1

    @staticmethod
    def _plain_place(message: Message) -> Place:
        if message.amount:
            raise LogError(f"{message.id}, worth {message.amount}, was sent or acknowledged outside of transactions")
        return place_of(message)


def place_of(message: Message) -> Place:
    return message.id, message.queue
