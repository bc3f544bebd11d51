"""Which error tells an application of heuristic completions."""

from __future__ import annotations

from collections.abc import Mapping

from understudy.xa.core.codes import Answer, XaCode
from understudy.xa.core.errors import (
    HeuristicCommitError,
    HeuristicError,
    HeuristicHazardError,
    HeuristicMixedError,
    HeuristicRollbackError,
)


def heuristic_error(gid: str, against: Mapping[str, Answer], *, committed: bool, as_decided: bool) -> HeuristicError:
    """The error for a transaction.

    Args:
        gid: of the transaction.
        against: resource managers that did not complete as decided, or did not say how; not empty.
        committed: the decision.
        as_decided: another branch was completed as decided.
    """
    codes = {answer.code for answer in against.values()}
    kind: type[HeuristicError]
    if XaCode.HEURHAZ in codes:
        kind = HeuristicHazardError
    elif as_decided or XaCode.HEURMIX in codes:
        kind = HeuristicMixedError
    else:
        kind = HeuristicRollbackError if committed else HeuristicCommitError
    return kind(gid, committed=committed, answers=against)
