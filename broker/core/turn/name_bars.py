"""NameBars: names under which no transaction commits any more, and whose record is not applied yet.

When it is, the outcomes say so (``broker/transactions/outcomes.py``), as long as they are kept.
"""

from __future__ import annotations

from collections.abc import Callable

from understudy.broker.core.turn.clock import Clock
from understudy.broker.log import record
from understudy.broker.log.log import Log
from understudy.broker.transactions.outcomes import Outcome


class NameBars:
    """One per core.

    Attributes:
        offsets: of the record that bars each name.
    """

    def __init__(self, log: Log, clock: Clock, append_record: Callable[[bytes], int]) -> None:
        self.offsets: dict[str, int] = {}
        self._log = log
        self._clock = clock
        self._append_record = append_record

    def adopt(self, offsets: dict[str, int]) -> None:
        """Know the bars that the log had when this broker began to lead."""
        self.offsets = offsets

    def bar(self, name: str) -> int:
        """Make "rolled back" the outcome of ``name``, under which no transaction commits then; returns the record's offset."""
        raw = record.encode_outcome(name, Outcome.ROLLED_BACK, self._clock.wall_ms)
        offset = self.offsets[name] = self._append_record(raw)
        return offset

    def is_barred(self, name: str) -> bool:
        """True if an unapplied record bars ``name``."""
        return self.offsets.get(name, 0) > self._log.applied

    def forget(self, name: str) -> None:
        """The record that bars ``name`` is applied."""
        self.offsets.pop(name, None)

    def forget_applied(self) -> None:
        """Forget all names whose record is applied."""
        self.offsets = {name: offset for name, offset in self.offsets.items() if self.is_barred(name)}
