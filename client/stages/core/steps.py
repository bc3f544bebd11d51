"""Steps: what the decisions ask of an edge, in order. An edge does one step and returns its result, or throws its error in.

A step that an edge cannot do because the broker is gone is not thrown in: the edge rolls the database back and drops the
delivery, which the broker hands out again.
"""

from __future__ import annotations

import attrs

from understudy.client.stages.core.envelope import Delivery, Envelope
from understudy.client.stages.core.sends import Sends, Target


@attrs.frozen
class BeginDatabase:
    """Begin the transaction of the business database. An error, here or in `Claim`, gives the delivery back: no attempt."""


@attrs.frozen
class Claim:
    """Write (stage, id) into the inbox. Result: False if it is there already."""

    stage: str
    id: str


@attrs.frozen
class ReadUnsent:
    """Read what the outbox still holds of a processed message. Result: list of envelopes, in the order they were sent."""

    stage: str
    id: str


@attrs.frozen
class Call:
    """Call the stage's function, or that of ``target``, with the message. Result: what it returned."""

    message: object
    sends: Sends
    attempt: int
    target: Target | None = None


@attrs.frozen
class Store:
    """Write envelopes into the outbox, in one statement."""

    stage: str
    id: str
    envelopes: tuple[Envelope, ...]


@attrs.frozen
class Precheck:
    """Ask if the broker would refuse a commit on this channel now. Result: the reason, "" if it would not.

    Attributes:
        brings: the commit is to send messages, not only to acknowledge.
    """

    brings: bool


@attrs.frozen
class Line:
    """Read and lock the head of a key's line. Result: the id of a message; "" if there is no line."""

    stage: str
    key: str


@attrs.frozen
class Park:
    """Store a message behind the head of its line, and take its claim out of the inbox."""

    stage: str
    key: str
    delivery: Delivery


@attrs.frozen
class Block:
    """Make a failed message the head of its key's line, if there is none. Result: False if the inbox has it by now."""

    stage: str
    key: str
    delivery: Delivery


@attrs.frozen
class Release:
    """Take a head out of its line. Result: the envelope of the next one; None if that was all.

    If the message is not the head, nothing changes. Result then: the envelope of the head, if it was never seen since it was
    sent to the queue again.
    """

    stage: str
    key: str
    id: str


@attrs.frozen
class CommitDatabase:
    """Commit the business database."""


@attrs.frozen
class CommitJointly:
    """One transaction of database and broker: send the envelopes, acknowledge the delivery, commit. An error: rolled back."""

    envelopes: tuple[Envelope, ...]


@attrs.frozen
class RollbackDatabase:
    """Roll the business database back; never fails."""


@attrs.frozen
class Settle:
    """One transaction of the broker: send the envelopes, and acknowledge the delivery.

    Attributes:
        surely: no database holds what is sent: each message must have a queue before the commit, at the cost of a round trip.
    """

    envelopes: tuple[Envelope, ...] = ()
    surely: bool = False


@attrs.frozen
class GiveBack:
    """Return the delivery to its queue after a pause; it costs no attempt."""

    reason: BaseException


@attrs.frozen
class Mark:
    """Take what the broker has out of the outbox; may be done later, and together with others."""

    ids: tuple[str, ...]


@attrs.frozen
class RunHooks:
    """Run what the stage registered for after the commit; errors are logged."""

    sends: Sends


@attrs.frozen
class Wait:
    """Let time pass, and take no other delivery meanwhile.

    Attributes:
        failed: an attempt has failed; else the broker would refuse a commit.
    """

    ms: int
    failed: bool = True


@attrs.frozen
class Now:
    """Read the clock. Result: milliseconds since 1970."""


Step = (
    BeginDatabase | Claim | ReadUnsent | Call | Store | Line | Park | Block | Release | Precheck | CommitDatabase
    | CommitJointly | RollbackDatabase | Settle | GiveBack | Mark | RunHooks | Wait | Now
)  # fmt: skip
