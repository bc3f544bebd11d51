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

from understudy.client.stages.core.envelope import FLOW, FLOW_ID, REPLY_TO, TRACE_ID, Envelope
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

    def following(self, flow: str) -> Target | None:
        """The stage after this one in a flow; raises KeyError if this one is not of it."""
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
        reply_to: the queue of the program that awaits a reply of the flow; "" if none does.
        again: a token of an operator who wants the message processed once more: what is sent then has ids of its own.
    """

    id: str
    scope: str
    flow: str = ""
    flow_id: str = ""
    trace_id: str = ""
    again: str = ""
    reply_to: str = ""

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


@attrs.frozen
class Direct:
    """The next stage, to be run in the same transaction.

    Attributes:
        message: for it, as it is.
        target: the stage.
        sends: what it will send.
    """

    message: object
    target: Target
    sends: Sends


@attrs.define(kw_only=True)
class Sends:
    """Messages in the order in which they were sent, and the hooks for after the commit.

    Attributes:
        following: the stage that comes next in the flow; None if there is none.
        closed: the demarcation is over; nothing can be sent any more.
        carried: headers of each message, such as those of a trace.
        direct: the run of the next stage in this transaction; None if there is none.
    """

    origin: Origin
    following: Target | None = None
    envelopes: list[Envelope] = attrs.field(factory=list)
    hooks: list[Callable[[], Any]] = attrs.field(factory=list)
    closed: bool = False
    carried: dict[str, str] = attrs.field(factory=dict)
    direct: Direct | None = None

    def end(self) -> None:
        """End the demarcation: each further send is refused."""
        self.closed = True

    def add_run(self, inner: Sends) -> None:
        """Send also the messages, and run also the hooks, of a stage that ran in the same transaction."""
        self.envelopes += inner.envelopes
        self.hooks += inner.hooks

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
        target = self._next_target(message)
        origin = self.origin
        return self._add(target, message, after, flow=origin.flow, flow_id=origin.flow_id, reply_to=origin.reply_to)

    def _next_target(self, message: object) -> Target:
        if self.following is None:
            where = f"in flow {self.origin.flow!r}" if self.origin.flow else "and the message belongs to no flow"
            raise DemarcationError(
                f"stage {self.origin.scope!r} has a {type(message).__name__} for the next stage, "
                f"but no stage follows it {where}"
            )
        return self.following

    def _check_open(self, what: str) -> None:
        if self.closed:
            raise DemarcationError(f"{what}: the demarcation of {self.origin.id!r} has ended")

    def next_direct(self, message: object) -> str:
        """Run the stage that comes next in the flow in this transaction, when this one has returned.

        Returns:
            The id of the message that it is given.

        Raises:
            DemarcationError: no stage comes next, the message is not of its type, or it was chosen before.
        """
        self._check_open("a run of the next stage")
        target = self._next_target(message)
        if self.direct is not None:
            raise DemarcationError(f"stage {self.origin.scope!r} calls next_direct twice")
        target.encode(message)
        made = derived_id(self.origin.seed, f"direct:{self.origin.scope}", 0)
        inner = attrs.evolve(self.origin, id=made, scope=target.name, again="")
        self.direct = Direct(
            message, target, Sends(origin=inner, following=target.following(self.origin.flow), carried=self.carried)
        )
        return made

    def reply(self, body: bytes) -> bool:
        """Send octets to the program that awaits a reply of this flow; False if none does."""
        self._check_open("a reply")
        origin = self.origin
        if not origin.reply_to:
            return False
        made = derived_id(origin.seed, origin.scope, len(self.envelopes))
        found = {**self.carried, FLOW: origin.flow, FLOW_ID: origin.flow_id, TRACE_ID: origin.trace_id}
        self.envelopes.append(Envelope(id=made, queue=origin.reply_to, stage="", body=body, headers=found))
        return True

    def begin_flow(
        self, flow: str, target: Target, message: object, after: timedelta | float | None = None, reply_to: str = ""
    ) -> str:
        """Send the first message of a new passage through a flow; its id is that of the passage."""
        return self._add(target, message, after, flow=flow, flow_id=None, reply_to=reply_to)

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
            reply_to=stashed.reply_to,
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
        reply_to: str = "",
        stashed: Origin | None = None,
    ) -> str:
        self._check_open(f"a message for stage {target.name!r}")
        if stashed is not None:
            made = derived_id(stashed.seed, f"unstash:{stashed.scope}", 0)
        else:
            made = derived_id(self.origin.seed, self.origin.scope, len(self.envelopes))
        trace_id = trace_id or self.origin.trace_id or made
        headers = {FLOW: flow, FLOW_ID: made if flow_id is None else flow_id, TRACE_ID: trace_id, REPLY_TO: reply_to}
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
