"""GatePort: the journal as the core's gate sees it, and the translation of what became durable.

The gate counts the frames that it has appended; the journal also counts the checkpoints that it asked for in between. The
difference is the number of checkpoints before a frame, and only checkpoints are noted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from understudy.broker.core.life.node import BrokerNode
from understudy.broker.log.journal import Journal


class BlockingJournal(Protocol):
    """The journal's own methods that wait for the disk, or those of its driver, which hears of failures."""

    def sync_now(self) -> None:
        """See ``journal_gate.JournalPort``."""

    def begin_anew(self, checkpoint: bytes) -> None:
        """See ``journal_gate.JournalPort``."""


class GatePort:
    """Implements ``journal_gate.JournalPort``.

    Attributes:
        append, sync_now, begin_anew: there after :meth:`connect`.
        checkpoint_offset: the applied offset that the newest durable checkpoint states; 0 while this process wrote none.
    """

    append: Callable[[bytes], int]
    sync_now: Callable[[], None]
    begin_anew: Callable[[bytes], None]

    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self._durable_checkpoints = 0
        self._checkpoints: deque[tuple[int, int]] = deque()
        self.checkpoint_offset = 0
        self._frames_before = 0
        self._journal: Journal | None = None

    def connect(self, journal: Journal, blocking: BlockingJournal) -> None:
        """Recovery is over, or the core goes on with the journal of another one.

        Args:
            journal: its frames of before are not of this gate. It asks this port for checkpoints from now on.
            blocking: does to it what waits for the disk.
        """
        self._frames_before = journal.appended
        self._journal = journal
        self.append = journal.append
        self.sync_now = blocking.sync_now
        self.begin_anew = blocking.begin_anew

    def checkpoint(self) -> bytes:
        """The journal asks for a checkpoint: it is the frame that it appends next."""
        assert self._journal is not None
        self._checkpoints.append((self._journal.appended + 1, self._node.state.log.applied))
        return self._node.checkpoint()

    def durable_frames(self) -> int:
        """So many of the gate's frames are fsynced; for ``BrokerNode.durable_to``."""
        assert self._journal is not None
        durable = self._journal.durable
        checkpoints = self._checkpoints
        while checkpoints and checkpoints[0][0] <= durable:
            self.checkpoint_offset = checkpoints.popleft()[1]
            self._durable_checkpoints += 1
        return max(0, durable - self._durable_checkpoints - self._frames_before)
