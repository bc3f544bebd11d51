"""Messages between a transaction manager and the state server: one JSON object a line, strictly request and reply.

The server needs no address, user or password of a resource manager, and is told none: a resource manager is a name to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from understudy.xa.core.register.entry import Entry

WIRE_VERSION: Final = 1
MAX_LINE_OCTETS: Final = 1 << 20
MAX_LISTED: Final = 500
MAX_PAGE_OCTETS: Final = MAX_LINE_OCTETS // 2
"""Of one page of a list: entries, and octets of them."""


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="say", tag=str.lower):
    pass


class Hello(_Message, frozen=True):
    """The first request of a connection.

    Attributes:
        fingerprint: digest of the profile's resource managers; see `profile`.
        client: host and process of the program, for people.
    """

    version: int
    job: str
    profile: str
    fingerprint: str
    client: str = ""


class Begin(_Message, frozen=True, omit_defaults=True):
    """Record a transaction and the resource managers that it will start. Answered when durable.

    Attributes:
        identities: resource manager to its identity, if it has one; see `entry`. Older servers refuse the line that has it.
    """

    gid: str
    resources: list[str]
    identities: dict[str, str] = {}


class Started(_Message, frozen=True):
    """The answers of the resource managers to start."""

    gid: str
    codes: dict[str, int]


class Join(_Message, frozen=True, omit_defaults=True):
    """Record one more resource manager of a transaction, before it is started. Answered when durable.

    Attributes:
        identity: of the resource manager; "" if it has none.
    """

    gid: str
    resource: str
    identity: str = ""


class Decide(_Message, frozen=True, omit_defaults=True):
    """Record the decision to commit. Answered when durable; no branch is committed before.

    Attributes:
        prepared: label of each prepared branch of this program, to its proof; "" if there is none. The others have nothing to
            commit. Empty of an older program, which does not tell.
    """

    gid: str
    prepared: dict[str, str] = {}


class Done(_Message, frozen=True):
    """All branches are completed: the entry goes."""

    gid: str


class Release(_Message, frozen=True):
    """A branch is not completed yet, and this client does not go on: recovery completes it."""

    gid: str
    reason: str


class Heuristic(_Message, frozen=True, omit_defaults=True):
    """Record heuristic completions. The entry stays, for an operator to see, until `Forget`. Answered when durable.

    Attributes:
        unfinished: other branches are not complete yet; `Done` says when they are. Older servers refuse the line that has it.
    """

    gid: str
    codes: dict[str, int]
    unfinished: bool = False


class Claim(_Message, frozen=True, omit_defaults=True):
    """Ask for one transaction of the job that is to be recovered.

    Attributes:
        early: also one whose last recovery failed so short a time ago that its next one is not due.
    """

    early: bool = False


class Failed(_Message, frozen=True, omit_defaults=True):
    """The recovery of a claimed transaction failed.

    Attributes:
        refused: a resource manager has refused: a later attempt would meet the same answer.
    """

    gid: str
    reason: str
    refused: bool = False


class List(_Message, frozen=True):
    """Ask for a page of entries, in the order of global ids.

    Attributes:
        after: a global id; "" for the first page.
        job: only of this job; "" for all.
    """

    after: str = ""
    job: str = ""


class Take(_Message, frozen=True):
    """Claim one named entry of this connection's job, parked or not, for an operator."""

    gid: str


class Rule(_Message, frozen=True):
    """Record what an operator does with branches that no entry knows. Answered when durable.

    Attributes:
        ruled: branch to what is done with it, and later to what came of it; 1 to 1000 of them.
        new: there may be no record of this global id yet.
    """

    gid: str
    ruled: dict[str, str]
    new: bool = True


class Forget(_Message, frozen=True):
    """Drop a heuristic entry, or the record of a ruling. Refused for any other."""

    gid: str


class Share(_Message, frozen=True):
    """Other programs may join this transaction from now on."""

    gid: str


class Enter(_Message, frozen=True, omit_defaults=True):
    """Join a transaction, and record the branches that this program will start. Answered when durable, by `Welcome`.

    Attributes:
        resources: names of resource managers.
        identities: of all resource managers of the program, as `Begin`. Others than those of the transaction are refused.
    """

    gid: str
    resources: list[str]
    identities: dict[str, str] = {}


class Vote(_Message, frozen=True, omit_defaults=True):
    """The vote of a joined program: yes. Answered when durable; the program does nothing more to its branches.

    Attributes:
        prepared: labels of its branches that are prepared. The others have nothing to commit.
        proofs: label to proof; see `entry`.
    """

    gid: str
    prepared: list[str]
    proofs: dict[str, str] = {}


class Doom(_Message, frozen=True):
    """Record that a shared transaction can only be rolled back. Answered when durable, by `Gathered`."""

    gid: str
    reason: str


class Gather(_Message, frozen=True):
    """The program that began the transaction asks whether all joined programs have voted. From then on no program joins."""

    gid: str


class Settle(_Message, frozen=True):
    """These branches of a shared transaction are complete, and this client does not go on. In place of `Done`.

    Attributes:
        branches: labels. The owner of the transaction need not name those of the program that began it.
    """

    gid: str
    branches: list[str]


class Watch(_Message, frozen=True):
    """The first request of a connection that is told all changes of the table of what waits for recovery. No reply ends it."""


ProgramRequest = Share | Enter | Vote | Doom | Gather | Settle
"""Of a transaction that several programs work on. Older servers refuse the line."""

Request = (
    Hello
    | Begin
    | Started
    | Join
    | Decide
    | Done
    | Release
    | Heuristic
    | Claim
    | Failed
    | List
    | Take
    | Forget
    | Rule
    | Share
    | Enter
    | Vote
    | Doom
    | Gather
    | Settle
    | Watch
)


class Ok(_Message, frozen=True):
    """Done, and durable where the request says so."""


class Refused(_Message, frozen=True):
    """Not done.

    Attributes:
        code: `wrong_profile`, `wrong_resource`, `recover_first`, `unknown`, `not_owner`, `protocol` or `version`; of a shared
            transaction also `closed`: it takes no further program, and `doomed`: it can only be rolled back.
    """

    code: str
    text: str


class Claimed(_Message, frozen=True):
    """A transaction to recover: only this connection has it."""

    entry: Entry


class Welcome(_Message, frozen=True):
    """A program has joined.

    Attributes:
        program: its number.
    """

    program: int


class Gathered(_Message, frozen=True, omit_defaults=True):
    """How far the joined programs are.

    Attributes:
        branches: labels, of the programs that do not work any more.
        waits: numbers of the programs that still work.
        prepared: of these branches the prepared ones, to their proof; see `entry`.
    """

    branches: list[str]
    waits: list[int]
    prepared: dict[str, str] = {}


class Nothing(_Message, frozen=True):
    """There is nothing to recover."""


class Shown(_Message, frozen=True):
    """One entry of a list.

    Attributes:
        state: active, pending, parked, heuristic or ruled.
    """

    entry: Entry
    state: str
    shard: int


class Listing(_Message, frozen=True):
    """A page of entries.

    Attributes:
        more: there are further ones.
        now_ms: the server's clock, for ages.
    """

    entries: list[Shown]
    more: bool
    now_ms: int


class Waits(_Message, frozen=True):
    """A transaction waits for recovery, or does not any more.

    Attributes:
        now: it does.
    """

    job: str
    shard: int
    gid: str
    now: bool


Reply = Waits | Ok | Refused | Claimed | Nothing | Listing | Welcome | Gathered

_T = TypeVar("_T")
_requests: Final = msgspec.json.Decoder(Request)
_replies: Final = msgspec.json.Decoder(Reply)
_encoder: Final = msgspec.json.Encoder()


def line_of(message: Request | Reply) -> bytes:
    """The message as a line, with its end."""
    return _encoder.encode(message) + b"\n"


def first_page(entries: Iterable[Shown]) -> list[Shown]:
    """As many of the entries as one page holds: at least one, at most MAX_LISTED, and MAX_PAGE_OCTETS if they are several."""
    page: list[Shown] = []
    octets = 0
    for one in entries:
        octets += len(_encoder.encode(one)) + 1
        if page and (octets > MAX_PAGE_OCTETS or len(page) == MAX_LISTED):
            break
        page.append(one)
    return page


def request_of(line: bytes) -> Request:
    """The request of a line.

    Raises:
        msgspec.MsgspecError: the line is no request.
    """
    request: Request = decoded(_requests, line)
    return request


def reply_of(line: bytes) -> Reply:
    """The reply of a line.

    Raises:
        msgspec.MsgspecError: the line is no reply.
    """
    reply: Reply = decoded(_replies, line)
    return reply


def decoded(decoder: msgspec.json.Decoder[_T], line: bytes) -> _T:
    """Read a line.

    Raises:
        msgspec.MsgspecError: the line cannot be read, also for an octet that is no UTF-8, or for too deep a nesting.
    """
    try:
        return decoder.decode(line)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error
