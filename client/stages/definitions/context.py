"""Context: what a stage is told of its message besides the message, and how it sends."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Final

from understudy.client.stages.core.sends import Sends, Target
from understudy.client.stages.definitions.codec import Codec
from understudy.client.stages.errors import DemarcationError

current_sends: Final[ContextVar[Sends | None]] = ContextVar("understudy.stages.sends", default=None)
"""Messages of the stage or the initiation that runs here."""


class Context:
    """One run of a stage. A parameter of this type is given one.

    Attributes:
        message_id: kept through redelivery, delay and dead-letter queue.
        attempt: 1 for the first; lost workers and connections are not counted.
        stage: the name of the stage.
        flow: the name of the flow; "" outside of one.
        flow_id: the same for all messages of one passage through a flow.
        trace_id: the same for all messages that one initiation has caused.
        redelivered: a worker had the message before; its work was rolled back, or its end is unknown.
    """

    def __init__(self, sends: Sends, *, attempt: int, redelivered: bool) -> None:
        origin = sends.origin
        self.message_id = origin.id
        self.attempt = attempt
        self.stage = origin.scope
        self.flow = origin.flow
        self.flow_id = origin.flow_id
        self.trace_id = origin.trace_id
        self.redelivered = redelivered
        self._sends = sends

    def send(self, target: Target, message: object, *, after: timedelta | float | None = None) -> str:
        """Send a message to a stage, outside of the flow; it leaves with the commit.

        ``after`` is a time, or seconds, 0 to 30 days: the message comes so much later.

        Returns:
            The message's id.
        """
        return self._sends.send(target, message, after)

    def next(self, message: object, *, after: timedelta | float | None = None) -> str:
        """Send a message to the next stage of the flow, as the return value of the stage is."""
        return self._sends.next(message, after)

    def next_direct(self, message: object) -> str:
        """Run the next stage of the flow in this transaction, as soon as this one has returned: both commit, or none.

        The next stage is given the message as it is; it needs the same kind of database and of function (``def`` or ``async def``).
        If it fails, the message of this stage is tried again, and may become a dead letter.

        Returns:
            The id that the next stage sees.
        """
        return self._sends.next_direct(message)

    def reply(self, message: object) -> bool:
        """Answer the program that has begun the flow and awaits a reply; it leaves with the commit.

        Returns:
            False if no program awaits one: the message goes nowhere.
        """
        return self._sends.reply(Codec(type(message), f"a reply of stage {self.stage!r}").encode(message))

    def stash(self) -> bytes:
        """Octets with which an initiation goes on with this flow later, by ``tx.unstash(stash, message)``.

        A stage that stashes returns nothing: the flow rests until then.
        """
        return self._sends.origin.stash()

    def after_commit(self, hook: Callable[[], Any]) -> None:
        """Call ``hook`` after both commits, and not at all if the stage fails; its own error is logged.

        A worker that is killed after the commits calls no hook.
        """
        self._sends.hooks.append(hook)


def sends_here(what: str) -> Sends:
    """The sends of the stage or initiation that runs in this context.

    Raises:
        DemarcationError: none runs; ``what`` was to be done.
    """
    sends = current_sends.get()
    if sends is None:
        raise DemarcationError(
            f"{what} outside of a stage and of an initiation: `async with stages.begin():` opens one"
        )
    return sends
