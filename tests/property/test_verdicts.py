"""Verdicts on random histories: a correct one has no violation, and one falsification brings its own and no other.

A model of queues makes the histories: transactions that commit, are rolled back, or lose their answer, and plain messages. Each
falsification says which violations must follow from it, as (kind, message or transaction).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import attrs
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from understudy.client.verdicts import (
    COMMITTED,
    ROLLED_BACK,
    BrokerContent,
    Case,
    Departure,
    Entry,
    Event,
    History,
    Kind,
    LogContent,
    Message,
    judge,
)
from understudy.client.verdicts.differing import differing
from understudy.client.verdicts.evidence.client_log import entry_of, line_of

QUEUES = ("a", "b", "c")
PLAIN = "d"
Found = set[tuple[Kind, str]]


@attrs.define
class Tx:
    """A transaction of the model."""

    name: str
    client: str
    takes: list[Message]
    makes: list[Message]
    committed: bool
    asked: bool = False

    @property
    def torn_if_one_is_missing(self) -> tuple[Kind, str]:
        """The verdict when one effect is lost."""
        return (Kind.PARTIAL if len(self.takes) + len(self.makes) > 1 else Kind.CONTRADICTED), self.name


class Model:
    """Brokers that make no mistake, and clients that write everything down."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.queues: dict[str, list[Message]] = {name: [] for name in (*QUEUES, PLAIN)}
        self.transactions: list[Tx] = []
        self.seen: set[str] = set()
        self.came: set[str] = set()
        self.left: dict[str, list[Departure]] = {}
        self.confirmed: set[str] = set()
        self.acknowledged: set[str] = set()
        self.refused: list[Message] = []
        self._numbers: dict[str, int] = {}

    def write(self, client: str, event: Event, *messages: Message, **facts: object) -> None:
        number = self._numbers.get(client, 0)
        self._numbers[client] = number + 1
        self.entries.append(Entry(client=client, number=number, event=event, messages=messages, **facts))  # type: ignore[arg-type]

    def put(self, message: Message) -> None:
        self.queues[message.queue].append(message)
        self.came.add(message.id)

    def take(self, message: Message, reason: str) -> None:
        self.queues[message.queue].remove(message)
        offset = len(self.entries)
        self.left[message.id] = [Departure(queue=message.queue, offset=offset, reason=reason)]

    def receive(self, client: str, message: Message) -> None:
        self.write(client, Event.RECEIVED, message, redelivered=message.id in self.seen)
        self.seen.add(message.id)

    # -- what clients do ------------------------------------------------------------------------------------------------

    def transact(self, client: str, sources: list[str], targets: list[str], fate: str) -> None:
        name = f"{client}-{len(self.transactions)}"
        takes: list[Message] = []
        for queue in sources:
            message = next((each for each in self.queues[queue] if each not in takes), None)
            if message is not None:
                takes.append(message)
                self.receive(client, message)
        total = sum(message.amount for message in takes) or 5 * len(targets)
        targets = targets[:total]
        amounts = [1] * (len(targets) - 1) + [total - len(targets) + 1]
        pairs = zip(targets, amounts, strict=True)
        makes = [Message(f"{name}/{index}", queue, amount) for index, (queue, amount) in enumerate(pairs)]
        tx = Tx(name, client, takes, makes, fate.endswith("committed"), fate.startswith("unknown"))
        self.transactions.append(tx)
        self.write(client, Event.BEGAN, tx=name)
        self.write(client, Event.SENT, *makes, tx=name)
        if takes:
            self.write(client, Event.ACKNOWLEDGED, *takes, tx=name)
        if fate == "rolled back":
            self.write(client, Event.ROLLED_BACK, tx=name, by="client")
            return
        self.write(client, Event.COMMIT_SENT, tx=name)
        if tx.committed:
            for message in takes:
                self.take(message, "transaction")
            for message in makes:
                self.put(message)
        if tx.asked:
            self.write(client, Event.UNKNOWN, tx=name)
            self.write(client, Event.RESOLVED, tx=name, outcome=COMMITTED if tx.committed else ROLLED_BACK)
        else:
            self.write(client, Event.COMMITTED, tx=name)

    def publish(self, client: str, fate: str) -> None:
        message = Message(f"{client}.{len(self.entries)}", PLAIN)
        self.write(client, Event.SENT, message)
        if fate in ("confirmed", "stored"):
            self.put(message)
        if fate == "confirmed":
            self.write(client, Event.CONFIRMED, message)
            self.confirmed.add(message.id)
        elif fate == "refused":
            self.write(client, Event.REFUSED, message)
            self.refused.append(message)

    def consume(self, client: str, arrives: bool) -> None:
        if self.queues[PLAIN]:
            message = self.queues[PLAIN][0]
            self.receive(client, message)
            self.write(client, Event.ACKNOWLEDGED, message)
            self.acknowledged.add(message.id)
            if arrives:
                self.take(message, "acknowledged")

    # -- what is judged -------------------------------------------------------------------------------------------------

    def log(self) -> LogContent:
        outcomes = {tx.name: COMMITTED for tx in self.transactions if tx.committed}
        return LogContent(came=self.came, left=self.left, outcomes=outcomes)

    def found(self, log: LogContent | None = None) -> Found:
        entries = [entry_of(line_of(entry)) for entry in self.entries]
        case = Case(history=History.of(entries), content=BrokerContent.of("b1", self.queues), log=log)
        return {(each.kind, each.subject) for each in judge(case)}

    # -- for falsifications ---------------------------------------------------------------------------------------------

    def lying(self) -> list[Message]:
        return [message for messages in self.queues.values() for message in messages]

    def maker(self, message: Message) -> Tx | None:
        return next((tx for tx in self.transactions if message in tx.makes), None)

    def due(self) -> list[Message]:
        """Messages that lie in a queue and must."""
        kept = self.confirmed - self.acknowledged
        return [message for message in self.lying() if message.id in kept or self.maker(message) is not None]


CLIENTS = st.sampled_from(["c0", "c1", "c2"])
TX = st.tuples(
    st.just("tx"),
    CLIENTS,
    st.lists(st.sampled_from(QUEUES), max_size=3),
    st.lists(st.sampled_from(QUEUES), min_size=1, max_size=3),
    st.sampled_from(["committed", "committed", "rolled back", "unknown, committed", "unknown, rolled back"]),
)
PUBLISH = st.tuples(
    st.just("publish"), st.sampled_from(["p0", "p1"]), st.sampled_from(["confirmed", "stored", "gone", "refused"])
)
CONSUME = st.tuples(st.just("consume"), st.just("q"), st.booleans())


PRELUDE: list[tuple[Any, ...]] = [
    ("tx", "c0", [], ["a", "b", "b"], "committed"),
    ("tx", "c1", [], ["c", "a"], "rolled back"),
    ("tx", "c2", ["a"], ["b", "c"], "unknown, committed"),
    ("tx", "c0", ["b"], ["c"], "unknown, rolled back"),
    ("publish", "p0", "refused"),
    ("publish", "p0", "confirmed"),
    ("consume", "q", True),
    ("publish", "p1", "confirmed"),
]
"""Enough for every falsification to find something, most of the time."""


@st.composite
def models(draw: st.DrawFn) -> Model:
    model = Model()
    verbs: dict[str, Callable[..., None]] = {
        "tx": model.transact,
        "publish": model.publish,
        "consume": model.consume,
    }
    for what, *rest in PRELUDE + draw(st.lists(st.one_of(TX, TX, PUBLISH, CONSUME), max_size=20)):
        verbs[what](*rest)
    return model


# -- falsifications: each changes the model, and returns what must be found; None if there is nothing to change -------------------


def a_message_is_gone(model: Model, chance: Random) -> Found | None:
    if not (due := model.due()):
        return None
    message = chance.choice(due)
    model.queues[message.queue].remove(message)
    return _without(model, message) | _unbalanced(message)


def a_message_is_elsewhere(model: Model, chance: Random) -> Found | None:
    if not (due := model.due()):
        return None
    message = chance.choice(due)
    model.queues[message.queue].remove(message)
    model.queues[chance.choice([name for name in model.queues if name != message.queue])].append(message)
    return _without(model, message) | {(Kind.ALTERED, message.id)}


def a_message_is_there_twice(model: Model, chance: Random) -> Found | None:
    if not (lying := model.lying()):
        return None
    message = chance.choice(lying)
    queue = model.queues[message.queue]
    queue.insert(queue.index(message), message)
    return {(Kind.DOUBLED, message.id)} | _unbalanced(message)


def a_consumed_message_is_back(model: Model, chance: Random) -> Found | None:
    if not (takers := [tx for tx in model.transactions if tx.committed and tx.takes]):
        return None
    taker = chance.choice(takers)
    message = chance.choice(taker.takes)
    model.queues[message.queue].insert(0, message)
    return {(Kind.DOUBLED, message.id), taker.torn_if_one_is_missing} | _unbalanced(message)


def a_message_of_no_client(model: Model, chance: Random) -> Found | None:
    model.queues[chance.choice(QUEUES)].append(Message("x/0", ""))
    return {(Kind.FOREIGN, "x/0")}


def another_amount(model: Model, chance: Random) -> Found | None:
    if not (lying := [message for message in model.lying() if message.amount]):
        return None
    message = chance.choice(lying)
    queue = model.queues[message.queue]
    queue[queue.index(message)] = message._replace(amount=message.amount + 1)
    return {(Kind.ALTERED, message.id)} | _unbalanced(message)


def another_order(model: Model, chance: Random) -> Found | None:
    """A client's two messages that follow each other in a queue change places."""
    pairs = []
    for queue in model.queues.values():
        newest: dict[str, int] = {}
        for place, message in enumerate(queue):
            tx = model.maker(message)
            client = tx.client if tx is not None else message.id.partition(".")[0]
            if client in newest:
                pairs.append((queue, newest[client], place))
            newest[client] = place
    if not pairs:
        return None
    queue, first, second = chance.choice(pairs)
    queue[first], queue[second] = queue[second], queue[first]
    return {(Kind.UNORDERED, queue[second].id)}


def what_was_rolled_back_is_there(model: Model, chance: Random) -> Found | None:
    rolled_back = [tx for tx in model.transactions if not tx.committed and not tx.takes]
    if not rolled_back:
        return None
    tx = chance.choice(rolled_back)
    message = chance.choice(tx.makes)
    queue = model.queues[message.queue]
    later = model.transactions[model.transactions.index(tx) :]
    behind = [place for place, each in enumerate(queue) if model.maker(each) in later]
    queue.insert(behind[0] if behind else len(queue), message)
    return {(Kind.UNCOMMITTED, message.id), tx.torn_if_one_is_missing} | _unbalanced(message)


def what_was_rolled_back_is_delivered(model: Model, chance: Random) -> Found | None:
    if not (rolled_back := [tx for tx in model.transactions if not tx.committed]):
        return None
    message = chance.choice(chance.choice(rolled_back).makes)
    model.write("reader", Event.RECEIVED, message)
    return {(Kind.UNCOMMITTED, message.id)}


def what_was_refused_is_there(model: Model, chance: Random) -> Found | None:
    if not model.refused:
        return None
    message = chance.choice(model.refused)
    queue, client = model.queues[PLAIN], message.id.partition(".")[0]
    number = int(message.id.partition(".")[2])
    behind = [
        place
        for place, each in enumerate(queue)
        if each.id.startswith(client) and int(each.id.partition(".")[2]) > number
    ]
    queue.insert(behind[0] if behind else len(queue), message)
    return {(Kind.REFUSED, message.id)}


def delivered_as_new_again(model: Model, chance: Random) -> Found | None:
    received = [entry.messages[0] for entry in model.entries if entry.event is Event.RECEIVED]
    if not received:
        return None
    message = chance.choice(received)
    model.write("reader", Event.RECEIVED, message)
    return {(Kind.STALE, message.id)}


def told_the_other_outcome(model: Model, chance: Random) -> Found | None:
    if not (committed := [tx for tx in model.transactions if tx.committed]):
        return None
    tx = chance.choice(committed)
    model.write(tx.client, Event.RESOLVED, tx=tx.name, outcome=ROLLED_BACK)
    return {(Kind.CONTRADICTED, tx.name)}


def told_no_outcome(model: Model, chance: Random) -> Found | None:
    if not (asked := [tx for tx in model.transactions if tx.asked and tx.takes]):
        return None
    tx = chance.choice(asked)
    (place,) = [i for i, each in enumerate(model.entries) if each.event is Event.RESOLVED and each.tx == tx.name]
    model.entries[place] = attrs.evolve(model.entries[place], outcome="expired")
    return {(Kind.UNRESOLVED, tx.name)}


FALSIFICATIONS: list[Callable[[Model, Random], Found | None]] = [
    a_message_is_gone,
    a_message_is_elsewhere,
    a_message_is_there_twice,
    a_consumed_message_is_back,
    a_message_of_no_client,
    another_amount,
    another_order,
    what_was_rolled_back_is_there,
    what_was_rolled_back_is_delivered,
    what_was_refused_is_there,
    delivered_as_new_again,
    told_the_other_outcome,
    told_no_outcome,
]


def _without(model: Model, message: Message) -> Found:
    tx = model.maker(message)
    return {(Kind.LOST, message.id)} | ({tx.torn_if_one_is_missing} if tx is not None else set())


def _unbalanced(message: Message) -> Found:
    return {(Kind.UNBALANCED, "")} if message.amount else set()


# -- falsifications of the log ----------------------------------------------------------------------------------------------


def the_log_lacks_a_message(model: Model, log: LogContent, chance: Random) -> tuple[LogContent, Found] | None:
    if not (due := model.due()):
        return None
    message = chance.choice(due)
    return attrs.evolve(log, came=model.came - {message.id}), {(Kind.LOST, message.id)}


def the_log_purges_a_message(model: Model, log: LogContent, chance: Random) -> tuple[LogContent, Found] | None:
    if not (lying := model.lying()):
        return None
    message = chance.choice(lying)
    purged = Departure(queue=message.queue, offset=1, reason="purged")
    return attrs.evolve(log, left={**model.left, message.id: [purged]}), {(Kind.LOST, message.id)}


def the_log_has_another_outcome(model: Model, log: LogContent, chance: Random) -> tuple[LogContent, Found] | None:
    tx = chance.choice(model.transactions) if model.transactions else None
    if tx is None:
        return None
    other = ROLLED_BACK if tx.committed else COMMITTED
    return attrs.evolve(log, outcomes={**log.outcomes, tx.name: other}), {(Kind.CONTRADICTED, tx.name)}


def the_log_holds_what_was_rolled_back(
    model: Model, log: LogContent, chance: Random
) -> tuple[LogContent, Found] | None:
    if not (rolled_back := [tx for tx in model.transactions if not tx.committed]):
        return None
    message = chance.choice(chance.choice(rolled_back).makes)
    return attrs.evolve(log, came=model.came | {message.id}), {(Kind.UNCOMMITTED, message.id)}


LOG_FALSIFICATIONS = [
    the_log_lacks_a_message,
    the_log_purges_a_message,
    the_log_has_another_outcome,
    the_log_holds_what_was_rolled_back,
]


CHANCES = st.randoms(use_true_random=False)


@settings(deadline=None)
@given(model=models())
def test_a_correct_history_has_no_violation(model: Model) -> None:
    assert model.found() == set()
    assert model.found(model.log()) == set()


@pytest.mark.parametrize("falsify", FALSIFICATIONS, ids=lambda each: each.__name__)
@settings(deadline=None, max_examples=50)
@given(model=models(), chance=CHANCES)
def test_one_falsification_brings_its_violations_and_no_other(
    falsify: Callable[[Model, Random], Found | None], model: Model, chance: Random
) -> None:
    expected = falsify(model, chance)
    assume(expected is not None)
    assert expected
    assert model.found() == expected


@pytest.mark.parametrize("falsify", LOG_FALSIFICATIONS, ids=lambda each: each.__name__)
@settings(deadline=None, max_examples=50)
@given(model=models(), chance=CHANCES)
def test_a_falsified_log_brings_its_violations_and_no_other(
    falsify: Callable[[Model, LogContent, Random], tuple[LogContent, Found] | None], model: Model, chance: Random
) -> None:
    changed = falsify(model, model.log(), chance)
    assume(changed is not None)
    assert changed is not None
    log, expected = changed
    assert model.found(log) == expected


@settings(deadline=None)
@given(model=models(), chance=CHANCES)
def test_one_broker_that_differs_is_found_and_named(model: Model, chance: Random) -> None:
    brokers = [BrokerContent.of(name, model.queues) for name in ("b1", "b2", "b3")]
    assert differing(brokers) == []
    queue = chance.choice([name for name, messages in model.queues.items() if messages] or [PLAIN])
    model.queues[queue] = model.queues[queue][1:] if model.queues[queue] else [Message("x/0", queue)]
    place = chance.randrange(3)
    brokers[place] = BrokerContent.of(brokers[place].broker, model.queues)
    (violation,) = differing(brokers)
    assert (violation.kind, violation.queue) == (Kind.DIFFERING, queue)
    assert violation.broker == (brokers[place].broker if place else "b2"), "the first that is not as the first"
