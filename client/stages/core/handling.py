"""Handling of one delivery: the steps from its arrival to its acknowledgement, decided without I/O.

The order is the one rule of the library: the database commits first, then one transaction of the broker sends the messages
and acknowledges the delivery. With an inbox and an outbox a delivery that comes again after the database's commit is not
processed again: what its outbox still holds is sent, and the delivery is acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final

import attrs

from understudy.client.stages.core import envelope as headers
from understudy.client.stages.core.envelope import DEAD_LETTERS, Delivery, Envelope
from understudy.client.stages.core.fault import Fault
from understudy.client.stages.core.ordering import LONGEST_KEY, Key, hold, is_skip, key_of, wait_behind
from understudy.client.stages.core.retry import Retry, chance_of
from understudy.client.stages.core.sends import Origin, Sends, Target
from understudy.client.stages.core.steps import (
    BeginDatabase,
    Call,
    Claim,
    CommitDatabase,
    CommitJointly,
    GiveBack,
    Line,
    Mark,
    Now,
    Precheck,
    ReadUnsent,
    Release,
    RollbackDatabase,
    RunHooks,
    Settle,
    Step,
    Store,
    Wait,
)
from understudy.client.stages.errors import DemarcationError, Refuse

MOST_LOST: Final = 20
"""A message that kills its worker so often is a dead letter, and no function is called with it."""

REFUSED_PAUSE_MS: Final = 1_000
"""Between two questions to a broker that would refuse a commit."""

Steps = Generator[Step, Any, None]


@attrs.frozen(kw_only=True)
class Rules:
    """The wishes of a stage for its messages.

    Attributes:
        once: its database has an inbox and an outbox for it.
        database: its function has a database, or ``once`` needs one.
        precheck: ask the broker right before the database commits if it would refuse the commit behind it.
        xa: database and broker commit together.
        following: the stage after this one, by the name of the flow; raises KeyError for a flow that is not known.
        decode: raises ValueError for a body that is no message of the stage.
        application, version: of the program, for dead letters; "" if unknown.
        key: the key of a message, within which the order is kept (ordering.py); None: it is not.
    """

    stage: str
    queue: str
    once: bool
    database: bool
    retry: Retry
    decode: Callable[[bytes], object]
    following: Callable[[str], Target | None]
    application: str = ""
    version: str = ""
    precheck: bool = False
    xa: bool = False
    key: Key | None = None

    def key_of(self, delivery: Delivery) -> str | None:
        """The key of a message; None if it has none."""
        return key_of(self.key, self.decode, delivery)


def handle(rules: Rules, delivery: Delivery) -> Steps:
    """Steps for one delivery; each result, or error, goes back in."""
    failures, key = delivery.failures, rules.key_of(delivery)
    while True:
        fault = yield from _attempt(rules, delivery, key, failures)
        if fault is None:
            return
        if isinstance(fault, _NotNow):
            yield from _until_it_may_commit(fault)
            continue
        failures += 1
        delay_ms = None if fault.refused else rules.retry.delay_ms(failures, chance_of(delivery.id, failures))
        if delay_ms is not None and rules.retry.blocking:
            yield Wait(delay_ms)
            continue
        if key is not None and not (yield from hold(rules.stage, key, delivery)):
            return
        now_ms = yield Now()
        divert = _dead if delay_ms is None else _later
        made = divert(rules, delivery, fault, failures, now_ms, delay_ms or 0)
        kept = made if key is None else attrs.evolve(made, headers=made.headers | {headers.KEY: key})
        yield Settle((kept,), surely=True)
        return


@attrs.frozen
class _NotNow:
    """The broker would refuse the commit; this is no fault of the message."""

    brings: bool


def _until_it_may_commit(refused: _NotNow) -> Steps:
    """Wait with the message in hand: to give it back is a commit, too."""
    while True:
        yield Wait(REFUSED_PAUSE_MS, failed=False)
        if not (yield Precheck(refused.brings)):
            return


def _attempt(
    rules: Rules, delivery: Delivery, key: str | None, failures: int
) -> Generator[Step, Any, Fault | _NotNow | None]:
    """One attempt; its fault if it failed, with the database rolled back by then."""
    if rules.once and is_skip(delivery) and not delivery.claimable:
        yield Settle()  # it has no line
        return None
    opened = _opened_or_fault(rules, delivery, key)
    if isinstance(opened, Fault) and key is None:
        return opened
    new, head = True, ""
    if rules.database:
        try:
            yield BeginDatabase()
            if rules.once:
                new = yield Claim(rules.stage, delivery.claim)
            if key is not None:
                head = yield Line(rules.stage, key)
        except Exception as error:  # noqa: BLE001  # a database that is away is no fault of the message
            yield RollbackDatabase()
            yield GiveBack(error)
            return None
    if not new:
        yield from _again(rules, delivery, key if head else None)
    elif key is not None and head and head != delivery.id:
        yield from wait_behind(rules.stage, key, delivery)
    elif isinstance(opened, Fault):
        yield RollbackDatabase()
        return opened
    else:
        return (yield from _work(rules, delivery, failures, *opened, key if head else None))
    return None


def _work(
    rules: Rules, delivery: Delivery, failures: int, message: object, sends: Sends, key: str | None
) -> Generator[Step, Any, Fault | _NotNow | None]:
    """Call the function, and commit; ``key`` if the message is the head of a line."""
    released = None
    try:
        if is_skip(delivery):
            sends.end()
        else:
            yield from _run(rules, delivery, message, sends, failures + 1)
        if key is not None:
            released = yield Release(rules.stage, key, delivery.id)
        if rules.precheck and (yield Precheck(bool(sends.envelopes))):
            yield RollbackDatabase()
            return _NotNow(bool(sends.envelopes))
        yield from _commit(rules, sends)
    except Exception as error:  # noqa: BLE001  # what a stage raises is data here: its message is tried again
        if rules.database:
            yield RollbackDatabase()
        return Fault.of(error, refused=isinstance(error, (Refuse, DemarcationError)))
    if not rules.xa:
        # What no outbox holds is sent with the acknowledgement, or not at all.
        surely = released is not None or (not rules.once and bool(sends.envelopes))
        sent = (*sends.envelopes, released) if released is not None else tuple(sends.envelopes)
        yield Settle(sent, surely=surely)
    if rules.once and sends.envelopes:
        yield Mark(tuple(each.id for each in sends.envelopes))
    if sends.hooks:
        yield RunHooks(sends)
    return None


def _run(rules: Rules, delivery: Delivery, message: object, sends: Sends, attempt: int) -> Generator[Step, Any, None]:
    """Call the stage, and after it each stage that was chosen to run in the same transaction; then fill the outbox."""
    target, current = None, sends
    while True:
        if target is not None and rules.once:
            yield Claim(
                target.name, current.origin.id
            )  # so that its inbox tells of it; the claim of the first stage decides
        result = yield Call(message, current, attempt, target)
        if result is not None:
            current.next(result)
        current.end()
        if current is not sends:
            sends.add_run(current)
        if current.direct is None:
            break
        message, target, current = current.direct.message, current.direct.target, current.direct.sends
    if rules.once and sends.envelopes:
        yield Store(rules.stage, delivery.claim, tuple(sends.envelopes))


def _commit(rules: Rules, sends: Sends) -> Generator[Step, Any, None]:
    if rules.xa:
        yield CommitJointly(tuple(sends.envelopes))
    elif rules.database:
        yield CommitDatabase()


def _again(rules: Rules, delivery: Delivery, key: str | None) -> Generator[Step, Any, None]:
    """A delivery that was processed before: send what was not sent, call nothing. ``key`` if it has a line."""
    released = None
    try:
        unsent = tuple((yield ReadUnsent(rules.stage, delivery.claim)))
        if key is not None:
            released = yield Release(rules.stage, key, delivery.id)
            yield CommitDatabase()
        else:
            yield RollbackDatabase()
    except Exception as error:  # noqa: BLE001  # the database is away; the work is done, so this is no attempt
        yield RollbackDatabase()
        yield GiveBack(error)
        return
    yield Settle((*unsent, released) if released is not None else unsent, surely=released is not None)
    if unsent:
        yield Mark(tuple(each.id for each in unsent))


def _opened_or_fault(rules: Rules, delivery: Delivery, key: str | None) -> tuple[object, Sends] | Fault:
    """The message, and what collects the sends; or the reason why no attempt can help."""
    try:
        return _opened(rules, delivery, key)
    except Exception as error:  # noqa: BLE001  # of the application's own code: the same at each attempt
        return Fault.of(error, refused=True)


def _opened(rules: Rules, delivery: Delivery, key: str | None) -> tuple[object, Sends]:
    """The message, and what collects the sends.

    Raises:
        Refuse: no attempt can help.
    """
    if is_skip(delivery):
        return None, Sends(origin=Origin(id=delivery.id, scope=rules.stage))
    if delivery.stage and delivery.stage != rules.stage:
        raise Refuse(f"the message is for stage {delivery.stage!r}; this one is {rules.stage!r}")
    if delivery.lost >= MOST_LOST:
        raise Refuse(f"{delivery.lost} workers, or their connections, ended with this message in hand")
    if rules.once and not delivery.claimable:
        raise Refuse(f"stage {rules.stage!r} has once=True, and {_unclaimable(delivery)}")
    flow = delivery.text(headers.FLOW)
    try:
        following = rules.following(flow) if flow else None
    except KeyError as error:
        raise Refuse(f"flow {flow!r} has no stage {rules.stage!r} here") from error
    try:
        message = rules.decode(delivery.body)
    except ValueError as error:
        raise Refuse(f"the body does not decode: {error}") from error
    if rules.key is not None and key is None:
        raise Refuse(f"stage {rules.stage!r}: key= gives no text of 1 to {LONGEST_KEY} octets for this message")
    origin = Origin(
        id=delivery.id,
        scope=rules.stage,
        flow=flow,
        flow_id=delivery.text(headers.FLOW_ID),
        trace_id=delivery.text(headers.TRACE_ID) or delivery.id,
        again=delivery.text(headers.AGAIN),
        reply_to=delivery.reply_to,
    )
    return message, Sends(origin=origin, following=following)


def _unclaimable(delivery: Delivery) -> str:
    """Why no inbox can take a message."""
    if delivery.anonymous:
        return "the message has no message_id"
    again = f" and its header {headers.AGAIN}" if delivery.text(headers.AGAIN) else ""
    return f"the message's message_id{again} can have no NUL and {headers.LONGEST_CLAIM} octets at most: {delivery.claim!r}"


def _later(rules: Rules, delivery: Delivery, _: Fault, failures: int, now_ms: int, delay_ms: int) -> Envelope:
    """The same message for another attempt."""
    kept = delivery.own_headers()
    kept[headers.FAILURES] = failures
    kept.setdefault(headers.FIRST_FAILED, now_ms)
    return Envelope(
        id=delivery.id,
        queue=rules.queue,
        stage=rules.stage,
        body=delivery.body,
        headers=headers.cut_to_fit(kept),
        after_ms=delay_ms,
    )


def _dead(rules: Rules, delivery: Delivery, fault: Fault, failures: int, now_ms: int, _: int) -> Envelope:
    """The message as a dead letter: its body and its headers, and what is known of the fault."""
    kept = delivery.own_headers()
    kept.setdefault(headers.FIRST_FAILED, now_ms)
    kept |= {
        headers.FAILURES: failures,
        headers.STAGE: rules.stage,
        headers.APPLICATION: rules.application,
        headers.VERSION: rules.version,
        headers.REFUSED: fault.refused,
        headers.EXCEPTION: fault.kind,
        headers.EXCEPTION_TEXT: fault.text,
        headers.STACK: fault.stack,
        headers.LAST_FAILED: now_ms,
    }
    return Envelope(
        id=delivery.id,
        queue=rules.queue + DEAD_LETTERS,
        stage=delivery.stage or rules.stage,
        body=delivery.body,
        headers=headers.cut_to_fit(kept),
    )
