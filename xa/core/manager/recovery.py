"""The work of a client on a transaction that it has claimed for recovery.

The verdict depends on the record alone: with a decision the branches are committed, without one they are rolled back (presumed
abort). A branch that is not there, and is not recorded as prepared, counts as completed: it was never prepared, or has written
nothing. One that is recorded as prepared was completed by somebody: `finish.completed` finds out how.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from understudy.xa.core.codes import Answer, XaCode
from understudy.xa.core.errors import RecoveryBusyError, RecoveryFailedError
from understudy.xa.core.manager.finish import RETRIES, completed
from understudy.xa.core.manager.steps import Steps, Tell, Verb, VerbName
from understudy.xa.core.register.entry import Entry
from understudy.xa.core.register.wire import Done, Failed, Heuristic, Ok, Release, Settle
from understudy.xa.core.xid import branch_of

GIVES_WAY_RETRIES: Final = 20
"""One second."""


def recover(entry: Entry, *, gives_way: bool = False) -> Steps[dict[str, Answer]]:
    """Complete all branches of a claimed transaction as its record says.

    Args:
        entry: of the transaction.
        gives_way: if nothing is wrong but that a branch is busy, wait for a second only. A session may work on it that waits for a
            row which another transaction of the job has locked, and that one is to be recovered, too.

    Returns:
        What each resource manager answered, by the label of the branch.

    Raises:
        RecoveryBusyError: a branch is busy, and the entry waits behind the others of its job.
        RecoveryFailedError: a branch could not be completed; the server has been told, and keeps the entry.
        StateServerLostError: the server did not hear of the end; another recovery repeats it.
    """
    verb = VerbName.COMMIT if entry.commit else VerbName.ROLLBACK
    answers: dict[str, Answer] = {}
    for label in entry.resources:
        step = Verb(verb, label, branch_of(entry.gid, label, entry.job))
        answers[label] = yield from completed(step, proof_of(entry, label), GIVES_WAY_RETRIES if gives_way else RETRIES)
    failed = {name: answer for name, answer in answers.items() if not is_complete(answer.code, committed=entry.commit)}
    if failed:
        reason = "; ".join(f"{name}: {answer}" for name, answer in failed.items())
        if gives_way and all(answer.code == XaCode.RETRY for answer in failed.values()):
            yield Tell(Release(entry.gid, reason))
            raise RecoveryBusyError(f"transaction {entry.gid} is busy: {verb} of {reason}")
        refused = any(not answer.code.passing for answer in failed.values())
        yield Tell(Failed(entry.gid, reason, refused))
        raise RecoveryFailedError(f"transaction {entry.gid} cannot be recovered now: {verb} of {reason}")
    heuristics = [name for name, answer in answers.items() if answer.code.heuristic]
    against = against_verdict(answers, committed=entry.commit)
    if against:
        reply = yield Tell(Heuristic(entry.gid, {name: int(code) for name, code in against.items()}))
        if not isinstance(reply, Ok):  # what is recorded nowhere is not to be forgotten
            raise RecoveryFailedError(f"transaction {entry.gid}: the heuristic completions are not recorded: {reply}")
    for name in heuristics:
        yield Verb(VerbName.FORGET, name, branch_of(entry.gid, name, entry.job))
    if entry.programs or not against:
        yield Tell(Settle(entry.gid, entry.resources) if entry.programs else Done(entry.gid))
    return answers


def proof_of(entry: Entry, label: str) -> str | None:
    """The proof of a branch that is recorded as prepared, "" if it has none; None if it is not recorded so.

    An older program has recorded its decision without the branches that it had prepared: then each counts as prepared.
    """
    if label not in entry.prepared and entry.commit and not entry.prepared:
        return ""
    return entry.prepared.get(label)


def is_complete(code: XaCode, *, committed: bool) -> bool:
    """True if the branch is complete after this answer to the second phase."""
    if code in (XaCode.OK, XaCode.NOTA) or code.heuristic:
        return True
    return code.rolled_back and not committed


def against_verdict(answers: Mapping[str, Answer], *, committed: bool) -> dict[str, XaCode]:
    """Branches that were completed by hand in their resource manager, against the verdict or in a way that it does not tell."""
    wanted = XaCode.HEURCOM if committed else XaCode.HEURRB
    return {name: answer.code for name, answer in answers.items() if answer.code.heuristic and answer.code != wanted}
