"""InDoubt: a branch of a distributed transaction as an operator is shown it (docs/dtx.md, Operators)."""

from __future__ import annotations

from typing import Final

import attrs

from understudy.broker.transactions.xid import Xid

PREPARED: Final = "prepared"
COMMITTED: Final = "committed"
ROLLED_BACK: Final = "rolled back"
MAX_QUEUES: Final = 20
"""Names of queues in one row: a branch may touch thousands."""


@attrs.frozen(kw_only=True)
class InDoubt:
    """The state of a branch that may not be forgotten yet, by one broker's log as far as that is applied.

    Attributes:
        state: PREPARED: its transaction manager decides it. COMMITTED, ROLLED_BACK: an operator has completed it, and nobody has
            forgotten that.
        since_ms: wall clock of the prepare, or of the completion, in ms since 1970.
        enqueues, dequeues: messages that it puts into queues, and takes out of them; 0 of what is completed.
        queues: names of those queues, sorted, MAX_QUEUES at most.
        queues_left_out: how many more there are.
    """

    vhost: str
    xid: Xid
    state: str = attrs.field(validator=attrs.validators.in_((PREPARED, COMMITTED, ROLLED_BACK)))
    since_ms: int
    enqueues: int
    dequeues: int
    queues: tuple[str, ...] = attrs.field(validator=attrs.validators.max_len(MAX_QUEUES))
    queues_left_out: int
