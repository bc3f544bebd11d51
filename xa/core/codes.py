"""Return codes of the XA verbs (X/Open CAE C193, chapter 4), and what a resource manager answers."""

from __future__ import annotations

import enum
from typing import Final, NamedTuple


class XaCode(enum.IntEnum):
    """The value is the one of ``xa.h``."""

    OK = 0
    RDONLY = 3
    RETRY = 4
    HEURMIX = 5
    HEURRB = 6
    HEURCOM = 7
    HEURHAZ = 8
    RBROLLBACK = 100
    RBCOMMFAIL = 101
    RBDEADLOCK = 102
    RBINTEGRITY = 103
    RBOTHER = 104
    RBPROTO = 105
    RBTIMEOUT = 106
    RBTRANSIENT = 107
    ASYNC = -2
    RMERR = -3
    NOTA = -4
    INVAL = -5
    PROTO = -6
    RMFAIL = -7
    DUPID = -8
    OUTSIDE = -9

    @property
    def rolled_back(self) -> bool:
        """The branch is rolled back, or can only be rolled back."""
        return self >= XaCode.RBROLLBACK

    @property
    def passing(self) -> bool:
        """The second phase was not carried out now, and may be later: the resource manager is busy, or cannot be reached."""
        return self in (XaCode.RETRY, XaCode.RMFAIL)

    @property
    def heuristic(self) -> bool:
        """The resource manager completed the branch on its own."""
        return self in HEURISTIC


KNOWN: Final = frozenset(XaCode)
HEURISTIC: Final = frozenset({XaCode.HEURMIX, XaCode.HEURRB, XaCode.HEURCOM, XaCode.HEURHAZ})


def code_name(code: int) -> str:
    """The name of a return code for people; a code that this version does not know is shown as ``code 99``."""
    return XaCode(code).name if code in KNOWN else f"code {code}"


class Answer(NamedTuple):
    """The answer of a resource manager to a verb.

    Attributes:
        code: the return code.
        text: why, for people; may be empty.
        proof: of a prepared branch: what `VerbName.OUTCOME` needs to tell later what became of it; "" if nothing can.
    """

    code: XaCode
    text: str = ""
    proof: str = ""

    def __str__(self) -> str:
        return f"{self.code.name} ({self.text})" if self.text else self.code.name


OK: Final = Answer(XaCode.OK)
