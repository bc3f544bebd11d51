"""Change: the kinds of what waits in `Log.pending` until the log is stable up to its place.

An entry is (offset, change, argument). The kind says what the argument is, so nothing asks which function applies an entry.
`Log.applies` is told that function once for each kind. An entry stays a plain tuple: one is made for each message outside of
transactions, and a class of its own costs the hot path more than it tells.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final


class Change(IntEnum):
    """Kind of an entry, with its argument."""

    ENQUEUE = 0
    """(message, targets)."""
    ENQUEUE_NOTED = 1
    """(message, targets, subscriptions): published here, to queues with limits or with a deadline."""
    ENQUEUE_LOCAL = 2
    """(queue, message, deadline, subscriptions): a message that is not in the log."""
    DEQUEUE = 3
    """Groups of (queue id, ids)."""
    MOVE = 4
    """A `Move`."""
    RETURN = 5
    """A `Return`."""
    ID_TIME = 6
    """(offset, time)."""
    TOPOLOGY = 7
    """The record."""
    MISSING = 8
    """(record, epoch): a declaration that this log lacks. A plugin has brought it, and applies it."""
    MESSAGE_IDS = 9
    """Message ids that this log lacks; likewise."""
    PREPARE = 10
    """The `TxBuffer`."""
    COMMIT = 11
    """(transaction id, CSN, offset)."""
    ROLLBACK = 12
    """(transaction id, offset, name)."""
    EPOCH = 13
    """(transactions that it ends, its epoch if transient things end with it, offset)."""
    DTX_ROLLBACK = 14
    """(transaction id, branch name, completion)."""
    DTX_FORGET = 15
    """The branch name."""
    OUTCOME = 16
    """(name, offset)."""
    OUTCOMES_TRIMMED = 17
    """The decoded record."""
    GAP = 18
    """None: a recovery goes on behind records that its journal has dropped."""
    AGAIN = 19
    """An `AgainNote` that a recovery has read."""
    SETTLED = 20
    """A `SettledNote` that a recovery has read."""
    ROWS = 21
    """A `RowBatch` that a recovery has read; its offset is that of the first record."""


Pending = tuple[int, Change, Any]
"""(offset, change, argument)."""

ENQUEUE: Final = Change.ENQUEUE
ENQUEUE_NOTED: Final = Change.ENQUEUE_NOTED
DEQUEUE: Final = Change.DEQUEUE
PREPARE: Final = Change.PREPARE
COMMIT: Final = Change.COMMIT
"""The kinds of the hot path: a name of a module is found faster than one of an Enum."""
