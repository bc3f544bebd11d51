"""The second phase of one branch: a verb that is repeated while the resource manager is busy with the branch."""

from __future__ import annotations

from typing import Final

from understudy.xa.core.codes import Answer, XaCode
from understudy.xa.core.steps import Steps, Verb, VerbName, Wait

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
