"""One initiation: the steps from its begin to its end, decided without I/O. Edges for asyncio and for threads do the same steps.

The order is that of a stage: the database commits first, with the outbox in it; then the messages are sent. Which error an
initiation ends with says what was committed.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

import attrs

from understudy.client.stages.core.envelope import Envelope
from understudy.client.stages.core.sends import Sends
from understudy.client.stages.core.steps import (
    BeginDatabase,
    Claim,
    CommitDatabase,
    CommitJointly,
    Mark,
    Precheck,
    RollbackDatabase,
    Store,
)
from understudy.client.stages.errors import (
    AlreadyBegunError,
    DemarcationError,
    NotCommittedError,
    NotSentError,
    OutcomeUnknownError,
)

COMMITTED: Final = "committed"
ROLLED_BACK: Final = "rolled back"


@attrs.frozen(kw_only=True)
class Plan:
    """The wishes of an initiation.

    Attributes:
        name: remembered in the inbox; None: it has none.
        scope: stands in the inbox and the outbox for the name of a stage.
        database: the application has one.
        outbox: messages are kept in the database until the broker has them.
        xa: database and broker commit together.
    """

    name: str | None
    scope: str
    database: bool
    outbox: bool
    xa: bool = False


@attrs.frozen
class Work:
    """Let the caller work. Result: none; its exception is thrown in."""


@attrs.frozen
class AskEnded:
    """See if the caller has ended the transaction. Result: by which statement; "" if it has not."""


@attrs.frozen
class AskUnknown:
    """See if a commit of the database that raised may have committed. Result: True if it may."""


@attrs.frozen
class Send:
    """One transaction of the broker: send the envelopes. Result: `Sent`."""

    envelopes: tuple[Envelope, ...]
    name: str


@attrs.frozen(kw_only=True)
class Sent:
    """The result of `Send`.

    Attributes:
        error: None if the broker has committed.
        asked: the commit was on its way to the broker.
    """

    error: Exception | None = None
    asked: bool = False


@attrs.frozen
class AskOutcome:
    """Ask what became of a named transaction of the broker. Result: `COMMITTED`, `ROLLED_BACK`, or why nothing is known."""

    name: str


@attrs.frozen
class Log:
    """Write a warning into the log."""

    text: str


InitiationStep = (
    BeginDatabase | Claim | Store | Precheck | CommitDatabase | CommitJointly | RollbackDatabase | Mark | Work | AskEnded
    | AskUnknown | Send | AskOutcome | Log
)  # fmt: skip
Steps = Generator[InitiationStep, Any, None]


def initiate(plan: Plan, sends: Sends) -> Steps:
    """Steps of one initiation; each result, or error, goes back in.

    Raises:
        AlreadyBegunError, NotCommittedError, NotSentError, OutcomeUnknownError: as `Stages.begin` says.
        DemarcationError: the caller has ended the transaction of the database.
    """
    if plan.database:
        yield from _open(plan)
    try:
        yield Work()
        if plan.database:
            yield from _commit(plan, sends)
    except GeneratorExit:  # nothing can be done any more: the edge has lost the initiation
        raise
    except BaseException as error:
        if plan.database:
            ended = (yield AskEnded()) if isinstance(error, Exception) else ""
            yield RollbackDatabase()
            if ended:
                raise DemarcationError(
                    f"the initiation ends the transaction of its database ({ended}): the library commits at the end of the "
                    f"`with`, or rolls back if it raises"
                ) from error
        raise
    if sends.envelopes and not plan.xa:
        yield from _send(plan, sends)


def _open(plan: Plan) -> Steps:
    try:
        yield BeginDatabase()
        new = plan.name is None or (yield Claim(plan.scope, plan.name))
    except Exception as error:
        yield RollbackDatabase()
        raise NotCommittedError(f"the database cannot begin: {error}") from error
    except BaseException:
        yield RollbackDatabase()
        raise
    if not new:
        yield RollbackDatabase()
        raise AlreadyBegunError(f"initiation {plan.name!r} was committed before; nothing was done this time")


def _commit(plan: Plan, sends: Sends) -> Steps:
    if plan.xa:
        yield CommitJointly(tuple(sends.envelopes))
        return
    try:
        if plan.outbox and sends.envelopes:
            yield Store(plan.scope, sends.origin.id, tuple(sends.envelopes))
    except Exception as error:  # no COMMIT was sent: the outcome is known even if the connection is lost
        raise NotCommittedError(f"the database did not commit: {error}") from error
    if not plan.outbox and sends.envelopes and (reason := (yield Precheck(brings=True))):
        raise NotCommittedError(f"the broker would refuse {_what(sends)}: {reason}; the database is rolled back")
    try:
        yield CommitDatabase()
    except Exception as error:
        if (yield AskUnknown()):
            raise OutcomeUnknownError(
                f"the database was lost while it committed initiation {sends.origin.id}: {error}; an initiation with a name "
                f"can be begun again, and is told"
            ) from error
        raise NotCommittedError(f"the database did not commit: {error}") from error


def _send(plan: Plan, sends: Sends) -> Steps:
    envelopes, name = tuple(sends.envelopes), sends.origin.id
    outbox = plan.outbox and plan.database
    sent: Sent = yield Send(envelopes, "" if outbox else name)
    what = _what(sends)
    if outbox:
        if sent.error is not None:
            yield Log(f"{what} stay in the outbox: {sent.error}")
            return
        try:
            yield Mark(tuple(each.id for each in envelopes))
        except Exception as error:  # noqa: BLE001  # the relay sends them again, under the same ids
            yield Log(f"{what} cannot be marked as sent: {error}")
        return
    if sent.error is None:
        return
    outcome = (yield AskOutcome(name)) if sent.asked else ROLLED_BACK
    if outcome == COMMITTED:
        return
    if plan.database:
        raise NotSentError(f"the database is committed; {what}: {outcome}: {sent.error}") from sent.error
    if outcome == ROLLED_BACK:
        raise NotCommittedError(f"{what} were not sent: {sent.error}") from sent.error
    raise OutcomeUnknownError(f"{what}: {outcome}: {sent.error}") from sent.error


def _what(sends: Sends) -> str:
    return f"{len(sends.envelopes)} messages of initiation {sends.origin.id}"
