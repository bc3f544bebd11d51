"""GatePort: the journal as the core's gate sees it, and the translation of what became durable.

The gate counts the frames it has appended; the journal also counts the checkpoints it asked for in between. So the difference
is how many checkpoints lie before a frame, and only they are noted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from understudy.broker.core.node import BrokerNode
from understudy.broker.log.journal import Journal
from understudy.broker.server.journal_driver import JournalDriver


class GatePort:
    """Implements ``journal_gate.JournalPort``.

    Attributes:
        append: the journal's own; there after :meth:`connect`.
        checkpoint_offset: the applied offset that the newest durable checkpoint states; 0 while this process wrote none.
    """

    append: Callable[[bytes], None]

    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self._durable_checkpoints = 0
        self._checkpoints: deque[tuple[int, int]] = deque()
        self.checkpoint_offset = 0
        self._journal: Journal | None = None
        self._driver: JournalDriver | None = None

    def connect(self, journal: Journal, driver: JournalDriver) -> None:
        """Recovery is over: the journal is there."""
        assert not journal.appended, "the gate's count begins with the journal's"
        self._journal = journal
        self._driver = driver
        self.append = journal.append

    def sync_now(self) -> None:
        assert self._driver is not None
        self._driver.sync_now()

    def begin_anew(self, checkpoint: bytes) -> None:
        assert self._driver is not None
        self._driver.begin_anew(checkpoint)

    def checkpoint(self) -> bytes:
        """The journal asks for a checkpoint: it is the frame that it appends next."""
        assert self._journal is not None
        self._checkpoints.append((self._journal.appended + 1, self._node.state.log.applied))
        return self._node.checkpoint()

    def durable_frames(self) -> int:
        """How many of the gate's frames are fsynced; for ``BrokerNode.durable_to``."""
        assert self._journal is not None
        durable = self._journal.durable
        checkpoints = self._checkpoints
        while checkpoints and checkpoints[0][0] <= durable:
            self.checkpoint_offset = checkpoints.popleft()[1]
            self._durable_checkpoints += 1
        return durable - self._durable_checkpoints
