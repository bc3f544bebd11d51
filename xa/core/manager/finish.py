"""The second phase of one branch: a verb that is repeated while the resource manager is busy with the branch.

A prepared branch that is not there was completed: by an earlier call of the transaction manager whose record is lost, or by hand.
Only the resource manager can tell how. If nothing tells, that is a heuristic hazard, and never taken for done.
"""

from __future__ import annotations

from typing import Final

from understudy.xa.core.codes import Answer, XaCode
from understudy.xa.core.manager.steps import Steps, Verb, VerbName, Wait

RETRY_MS: Final = 50
RETRIES: Final = 200
"""10 s in all: longer than a resource manager takes to notice that the connection of a killed program is gone."""


def finished(verb: Verb, retries: int = RETRIES) -> Steps[Answer]:
    """Call `commit` or `rollback` until the answer is not RETRY.

    Args:
        verb: which.
        retries: how often it is repeated.

    Returns:
        The last answer; it is RETRY if the resource manager was busy all the time. A prepared branch that was rolled back
        instead of committed is HEURRB.
    """
    answer: Answer = yield verb
    for _ in range(retries):
        if answer.code != XaCode.RETRY:
            break
        yield Wait(RETRY_MS)
        answer = yield verb
    if verb.name is VerbName.COMMIT and answer.code.rolled_back:
        return Answer(XaCode.HEURRB, f"it answered {answer} to the commit of a prepared branch")
    return answer


def completed(verb: Verb, proof: str | None, retries: int = RETRIES) -> Steps[Answer]:
    """Call `commit` or `rollback` of a branch, and find out what became of a prepared branch that is gone.

    Args:
        verb: which.
        proof: of the branch if it is known to be prepared, "" if it has none; None if it may not be prepared.
        retries: as `finished`.

    Returns:
        The answer; OK also if the branch was completed before as the verb says. HEURCOM, HEURRB: it was completed the other way.
        HEURHAZ: a prepared branch is gone, and nothing tells how. NOTA: a branch that may not have been prepared is not there.
    """
    answer = yield from finished(verb, retries)
    if answer.code != XaCode.NOTA or proof is None:
        return answer
    if not proof:
        return Answer(XaCode.HEURHAZ, "the prepared branch is gone, and nothing tells what became of it")
    told: Answer = yield Verb(VerbName.OUTCOME, verb.resource, verb.xid, proof=proof)
    if told.code == (XaCode.HEURCOM if verb.name is VerbName.COMMIT else XaCode.HEURRB):
        return Answer(XaCode.OK, told.text)
    if told.code.heuristic or told.code.passing:
        return Answer(told.code, f"the prepared branch is gone: {told.text}")
    return Answer(XaCode.HEURHAZ, f"the prepared branch is gone, and what became of it is not told: {told}")
