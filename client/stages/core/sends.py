"""Sends: what one run of a stage, or one initiation, sends.

The id of a message follows from its origin: from the id of the message that the stage was given, the stage's name, and a
number. A second run of the stage gives the same ids again, so a receiver with an inbox takes each message once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, Protocol, Self

import attrs

from understudy.client.stages.core.envelope import FLOW, FLOW_ID, TRACE_ID, Envelope
from understudy.client.stages.errors import DemarcationError

STASH: Final = b"understudy-stash-1:"
LONGEST_DELAY_MS: Final = 30 * 24 * 3600 * 1000
"""30 days."""


class Target(Protocol):
    """A stage, as far as sending to it goes."""

    @property
    def queue(self) -> str: ...

    @property
    def name(self) -> str: ...

    def encode(self, message: object) -> bytes:
        """Raises StagesError if the message is not of the stage's type."""
        ...


@attrs.frozen(kw_only=True)
class Origin:
    """The message or initiation from which a sent message descends.

    Attributes:
        id: of the message that is processed, or of the initiation.
        scope: the name of the stage; "" for an initiation.
        flow: the name of the flow; "" if there is none.
        flow_id: of this one passage through a flow; "" outside of one.
        trace_id: of everything that one initiation has caused.
        again: a token of an operator who wants the message processed once more: what is sent then has ids of its own.
    """

    id: str
    scope: str
    flow: str = ""
    flow_id: str = ""
    trace_id: str = ""
    again: str = ""

    @property
    def seed(self) -> str:
        """The part of the ids of sent messages that follows from the message before them."""
        return f"{self.id}+{self.again}" if self.again else self.id

    def stash(self) -> bytes:
        """The place of a passage in its flow, in octets that begin with a magic and a version."""
        return STASH + json.dumps(attrs.asdict(self)).encode()

    @classmethod
    def of_stash(cls, stash: bytes) -> Self:
        """The reverse of `stash`.

        Raises:
            DemarcationError: the octets are no stash, or one of a newer version.
        """
        try:
            if not stash.startswith(STASH):
                raise ValueError(f"they begin with {stash[: len(STASH)]!r}, not with {STASH!r}")
            found = cls(**json.loads(stash[len(STASH) :]))
        except (TypeError, ValueError) as error:
            raise DemarcationError(f"{len(stash)} octets are no stash: {error}") from error
        return found


@attrs.define(kw_only=True)
class Sends:
    """Messages in the order in which they were sent, and the hooks for after the commit.

    Attributes:
        following: the stage that comes next in the flow; None if there is none.
        closed: the demarcation is over; nothing can be sent any more.
        carried: headers of each message, such as those of a trace.
    """

    origin: Origin
    following: Target | None = None
    envelopes: list[Envelope] = attrs.field(factory=list)
    hooks: list[Callable[[], Any]] = attrs.field(factory=list)
    closed: bool = False
    carried: dict[str, str] = attrs.field(factory=dict)

    def send(self, target: Target, message: object, after: timedelta | float | None = None) -> str:
        """Send outside of the flow.

        ``after`` is a time, or seconds, 0 to 30 days: the message comes so much later.

        Returns:
            The message's id.
        """
        return self._add(target, message, after, flow="", flow_id=self.origin.flow_id)

    def next(self, message: object, after: timedelta | float | None = None) -> str:
        """Send to the stage that comes next in the flow.

        Raises:
            DemarcationError: no stage comes next.
        """
        if self.following is None:
            where = f"in flow {self.origin.flow!r}" if self.origin.flow else "and the message belongs to no flow"
            raise DemarcationError(
                f"stage {self.origin.scope!r} has a {type(message).__name__} for the next stage, "
                f"but no stage follows it {where}"
            )
        return self._add(self.following, message, after, flow=self.origin.flow, flow_id=self.origin.flow_id)

    def begin_flow(self, flow: str, target: Target, message: object, after: timedelta | float | None = None) -> str:
        """Send the first message of a new passage through a flow; its id is that of the passage."""
        return self._add(target, message, after, flow=flow, flow_id=None)

    def go_on(self, stashed: Origin, target: Target, message: object, after: timedelta | float | None = None) -> str:
        """Send the message of the next stage for a flow that was put aside; its id follows from the stash alone."""
        return self._add(
            target,
            message,
            after,
            flow=stashed.flow,
            flow_id=stashed.flow_id,
            stashed=stashed,
            trace_id=stashed.trace_id,
        )

    def _add(
        self,
        target: Target,
        message: object,
        after: timedelta | float | None,
        *,
        flow: str,
        flow_id: str | None,
        trace_id: str = "",
        stashed: Origin | None = None,
    ) -> str:
        if self.closed:
            raise DemarcationError(
                f"a message for stage {target.name!r}: the demarcation of {self.origin.id!r} has ended"
            )
        if stashed is not None:
            made = derived_id(stashed.seed, f"unstash:{stashed.scope}", 0)
        else:
            made = derived_id(self.origin.seed, self.origin.scope, len(self.envelopes))
        trace_id = trace_id or self.origin.trace_id or made
        headers = {FLOW: flow, FLOW_ID: made if flow_id is None else flow_id, TRACE_ID: trace_id}
        self.envelopes.append(
            Envelope(
                id=made,
                queue=target.queue,
                stage=target.name,
                body=target.encode(message),
                headers=self.carried | {name: value for name, value in headers.items() if value},
                after_ms=_delay_ms(after, target.name),
            )
        )
        return made


def derived_id(parent: str, scope: str, number: int) -> str:
    """32 hexadecimal digits, equal for equal arguments."""
    return hashlib.blake2b(f"{parent}\n{scope}\n{number}".encode(), digest_size=16).hexdigest()


def _delay_ms(after: timedelta | float | None, stage: str) -> int:
    if after is None:
        return 0
    delay = (after.total_seconds() if isinstance(after, timedelta) else after) * 1000
    if not 0 <= delay <= LONGEST_DELAY_MS:  # nor is NaN
        raise DemarcationError(f"a message for stage {stage!r}: after = {after}; 0 to 30 days are allowed")
    return round(delay)
