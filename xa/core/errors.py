"""Errors of the transaction manager. The type says what became of the transaction; the text names it and the values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from understudy.xa.core.codes import Answer


class XaError(Exception):
    """Base of everything that this room raises.

    Attributes:
        retriable: the same transaction, begun anew, may succeed, and the failed one leaves no trace.
    """

    retriable: ClassVar[bool] = False


class ConfigError(XaError):
    """A profile, a job name or an option cannot be used. Nothing was done."""


class ProtocolError(XaError):
    """The application calls out of turn: a second begin in one thread or task, a commit without begin."""


class NotOwnerError(ProtocolError):
    """Another process, thread or task than the one that has the transaction calls it. Nothing was done."""


class BranchEndedError(ProtocolError):
    """A statement of the program has ended the branch in which it stood, such as SQL COMMIT or ROLLBACK.

    No further statement is carried out there, and the transaction can only be rolled back. What SQL COMMIT has committed stays.
    """


class ResourceManagerError(XaError):
    """A resource manager cannot be opened, or cannot take part in two-phase commit. No transaction has begun."""

    retriable = True


class StateServerError(XaError):
    """The state server cannot be reached, or refuses the request. Without its record no transaction begins."""

    retriable = True


class StateServerLostError(StateServerError):
    """The link to the state server ended before the answer came. The link is closed and never used again."""


class AccessError(StateServerError):
    """The state server and this client do not let each other in: a secret, a certificate or a user differs."""

    retriable = False


class ReadOnlyError(AccessError):
    """The client has a secret that lets it only read, and has asked for a change. Nothing was changed."""


class RecoverFirstError(StateServerError):
    """The job has transactions to recover; until their recovery has started it begins no new one."""


class WrongProfileError(XaError):
    """The job has a transaction to recover that was begun with other resource managers. Its entry is untouched."""


class WrongResourceManagerError(WrongProfileError):
    """A resource manager of this program is another server or database than the one in which the transaction has its branch.

    Nothing was done, and the entry is kept: a program whose resource manager is the recorded one completes the transaction.
    """


class RolledBackError(XaError):
    """The transaction is rolled back, on every resource manager, at the latest when its job recovers.

    Attributes:
        reasons: resource manager, or "" for the manager itself, to the reason.
    """

    retriable = True

    def __init__(self, gid: str, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)
        told = "; ".join(f"{name}: {text}" if name else text for name, text in reasons.items())
        super().__init__(f"transaction {gid} is rolled back: {told or 'asked for'}")


class ProgramsLateError(RolledBackError):
    """A joined program has not voted in time. Its later vote is refused, and it rolls back its own branches.

    Attributes:
        programs: numbers of those that had not voted.
    """

    def __init__(self, gid: str, programs: Sequence[int], wait_ms: int) -> None:
        self.programs = list(programs)
        told = ", ".join(map(str, programs))
        super().__init__(gid, {"": f"no vote of program {told} within {wait_ms / 1000:g} s"})


class TicketError(XaError):
    """A ticket cannot be used: it is damaged, of another place, or its transaction takes no program. Nothing was done."""


class OutcomeUnknownError(XaError):
    """The decision was sent and its answer is lost. The job's recovery settles the transaction as the record says."""


class HeuristicError(XaError):
    """A resource manager completed its branch on its own, against the decision or without telling how.

    Attributes:
        committed: the decision.
        answers: resource manager to what it answered.
    """

    def __init__(self, gid: str, *, committed: bool, answers: Mapping[str, Answer]) -> None:
        self.committed = committed
        self.answers = dict(answers)
        told = "; ".join(f"{name}: {answer}" for name, answer in answers.items())
        decision = "commit" if committed else "rollback"
        super().__init__(f"transaction {gid}, decided as {decision}, met heuristic completions: {told}")


class HeuristicRollbackError(HeuristicError):
    """The decision was commit, and every branch was rolled back heuristically."""


class HeuristicCommitError(HeuristicError):
    """The decision was rollback, and every branch was committed heuristically."""


class HeuristicMixedError(HeuristicError):
    """Some branches are committed, others rolled back."""


class HeuristicHazardError(HeuristicError):
    """A branch was completed heuristically, and it is not known how."""


class RecoveryFailedError(XaError):
    """A transaction of the job could not be recovered now. Its entry stays on the state server."""


class RecoveryBusyError(RecoveryFailedError):
    """A session of a resource manager works on a branch this moment. The transaction waits behind the others of its job."""


class StatusFileError(XaError):
    """A status file is damaged, or of another format. It is kept as it is."""


class LostRecordsError(StatusFileError):
    """Records that were durable are missing, though the rest is whole. Nothing was changed."""


class NewerStatusError(StatusFileError):
    """A status is whole, and of a newer format: a newer state server reads it."""


class DecisionLogError(XaError):
    """The decision log of engine `queue` cannot be written by this server, now or ever."""


class LogLostError(DecisionLogError):
    """The connection to the decision log ended. Whether the last group is in it, only reading it again tells."""


class LogOwnedError(DecisionLogError):
    """Another state server owns the decision log, or has owned it meanwhile."""
