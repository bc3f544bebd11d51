"""Where simulated brokers spill bodies: beside the memory that is theirs, and counted."""

from __future__ import annotations

from understudy.broker.message import Message


class SpilledCopy:
    """One body. It counts as there until its last reference is gone."""

    __slots__ = ("_body", "_spill")

    def __init__(self, spill: MemorySpill, body: bytes) -> None:
        self._spill = spill
        self._body = body
        spill.live += 1

    def read(self, _: Message) -> bytes:
        self._spill.reads += 1
        return self._body

    def __del__(self) -> None:
        self._spill.live -= 1


class MemorySpill:
    """Implements ``Spill``. ``live``: bodies that somebody still refers to; ``reads``: how often one was read back."""

    def __init__(self) -> None:
        self.live = 0
        self.reads = 0

    def put(self, body: bytes) -> SpilledCopy:
        return SpilledCopy(self, body)
