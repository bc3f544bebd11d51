"""The steps that the deciding generators yield, and that an edge carries out.

An edge sends back the answer of each step: an `Answer` for a `Verb`, the server's reply for a `Tell`, None for a `Wait`. Only a
`Tell` may fail with an exception, `StateServerLostError`, which the edge throws into the generator.
"""

from __future__ import annotations

import enum
from collections.abc import Generator
from typing import Any, TypeVar

import attrs

from understudy.xa.core.register.wire import Request
from understudy.xa.core.xid import Xid


class VerbName(enum.StrEnum):
    """The verbs of XA that a transaction needs.

    OUTCOME is none of XA. It asks what became of a prepared branch that is gone. The answer is HEURCOM or HEURRB: committed or
    rolled back, by this transaction manager before or by hand. HEURHAZ: the resource manager does not know any more.
    """

    START = "start"
    END = "end"
    PREPARE = "prepare"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    FORGET = "forget"
    OUTCOME = "outcome"


class Flag(enum.Flag):
    """The flags of a verb: of `start` JOIN and RESUME, of `end` SUSPEND and FAIL, of `commit` ONE_PHASE."""

    NONE = 0
    JOIN = enum.auto()
    RESUME = enum.auto()
    SUSPEND = enum.auto()
    FAIL = enum.auto()
    ONE_PHASE = enum.auto()


@attrs.frozen
class Verb:
    """Call a resource manager.

    Attributes:
        resource: the label of the branch; see `xid.resource_of`.
        proof: of OUTCOME: see `codes.Answer`.
    """

    name: VerbName
    resource: str
    xid: Xid
    flags: Flag = Flag.NONE
    proof: str = ""

    @property
    def label(self) -> str:
        return f"{self.name}.{self.resource}"


@attrs.frozen
class Tell:
    """Send a request to the state server and wait for its reply."""

    request: Request

    @property
    def label(self) -> str:
        return f"tell.{type(self.request).__name__.lower()}"


@attrs.frozen
class Wait:
    """Do nothing for a while."""

    ms: int

    @property
    def label(self) -> str:
        return "wait"


Step = Verb | Tell | Wait
_T = TypeVar("_T")
Steps = Generator[Step, Any, _T]
