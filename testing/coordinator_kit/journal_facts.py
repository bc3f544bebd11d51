"""JournalFacts: what the journal on a disk says of transactions, in the order of the log."""

from __future__ import annotations

from typing import Final

from understudy.broker.log import frame, record
from understudy.broker.log.frame import BatchHeader
from understudy.broker.log.journal_recovery import scan
from understudy.broker.log.storage import Storage

_PLAIN: Final = 0x7F


def name_of(body: bytes | bytearray | memoryview) -> str:
    """The name that stands before the first stroke in the body of each message of the kit."""
    return bytes(body).decode().partition("/")[0]


class JournalFacts:
    """Read from a journal that no process writes to; the visitor of a scan.

    Attributes:
        prepared: names of the transactions whose PREPARE stands in the log, in log order.
        prepared_at: their offsets.
        csn: their commit sequence numbers.
        branch_csn: those of branches, which have no name that a client gave.
        rolled_back: names of those that a ROLLBACK follows.
        placed: names of what has a place in the order of queues, in log order: transactions at their PREPARE, and messages
            outside of transactions.
        epochs: how many EPOCH records there are: one a start of the broker.
    """

    def __init__(self, storage: Storage) -> None:
        self.prepared: list[str] = []
        self.prepared_at: dict[str, int] = {}
        self.csn: dict[str, int] = {}
        self.branch_csn: list[int] = []
        self.rolled_back: set[str] = set()
        self.epochs = 0
        self.placed: list[str] = []
        self._names: dict[int, str] = {}
        scan(storage, self)

    @property
    def decided(self) -> list[str]:
        """Names of the transactions that a recovery from this journal commits, in log order."""
        return [name for name in self.prepared if name not in self.rolled_back]

    def on_batch(self, header: BatchHeader, data: bytes) -> None:
        """Implements ``journal_recovery.FrameVisitor``."""
        offset = header.first_offset
        for kind, at, end in record.records_of(data, frame.BATCH_HEADER_BYTES):
            if kind == record.HOLE:
                offset += int.from_bytes(data[at : at + 4], "big")
                continue
            if kind & _PLAIN == record.ENQUEUE:
                self.placed.append(name_of(record.decode_enqueue(data, at, end)[1].content()))
            else:
                self._record(kind & _PLAIN, data, at, offset)
            offset += 1

    def on_note(self, kind: int, payload: bytes, place: int = 0) -> None:
        """Implements ``journal_recovery.FrameVisitor``; notes are no part of the log."""

    def _record(self, kind: int, data: bytes, at: int, offset: int) -> None:
        if kind == record.PREPARE:
            prepare = record.decode_prepare(data, at)
            name = self._names[prepare.tx_id] = prepare.name
            if not name:
                self.branch_csn.append(prepare.csn)
                return
            self.prepared.append(name)
            self.placed.append(name)
            self.prepared_at[name] = offset
            self.csn[name] = prepare.csn
        elif kind == record.ROLLBACK:
            name = self._names.get(record.decode_rollback(data, at)[0], "")
            if name:
                self.rolled_back.add(name)
        elif kind == record.EPOCH:
            self.epochs += 1
