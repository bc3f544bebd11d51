"""States of a transaction and of a branch, and how a transaction was committed."""

from __future__ import annotations

import enum


class TxState(enum.Enum):
    """Of a transaction. ENDING: a commit or a rollback is under way, and nothing else is possible."""

    NEW = "new"
    ACTIVE = "active"
    SUSPENDED = "suspended"
    ENDING = "ending"
    DECIDED = "decided"
    OVER = "over"


class BranchState(enum.Enum):
    """Of a branch: distinct from the transaction's state, since branches come and go while the transaction lives."""

    ACTIVE = "active"
    ENDED = "ended"
    PREPARED = "prepared"
    COMPLETE = "complete"


class Outcome(enum.Enum):
    """How a transaction was committed.

    COMMITTED: all branches are committed.
    READ_ONLY: no branch had anything to commit.
    COMMIT_PENDING: the decision is durable; a branch could not be reached, and recovery commits it.
    """

    COMMITTED = "committed"
    READ_ONLY = "read only"
    COMMIT_PENDING = "commit pending"
