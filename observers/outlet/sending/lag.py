"""OutletLag: what a journal holds behind the position that was sent: transactions, and bytes of log.

It follows the journal by itself, since the outlet reads nothing while Kafka is away, and many readers would wait for a count. It
decodes no record: it counts PREPAREs, batch by batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from understudy.broker.log import frame as frames
from understudy.broker.log import record
from understudy.broker.log.journal_tail import JournalTail, Place, SegmentBegun, SegmentsGone
from understudy.broker.log.storage import Storage

EXACT: Final = 4_096
"""So many batches are kept one by one; beyond that `MERGED` transactions share an entry."""
MERGED: Final = 256


class Lag(NamedTuple):
    """How far an outlet is behind its journal.

    Attributes:
        transactions: that are closed and were not passed yet; those that bring no message count too.
        octets: of log records.
    """

    transactions: int
    octets: int


class _Batches:
    """Some batches that follow one another: offset of the last record, PREPAREs, octets."""

    __slots__ = ("octets", "prepared", "upto")

    def __init__(self, upto: int, prepared: int, octets: int) -> None:
        self.upto = upto
        self.prepared = prepared
        self.octets = octets


class OutletLag:
    """Of one run of the outlet.

    Args:
        storage: the data directory; may be open for reading only.
        place: where reading begins; None: at the first segment that is kept.
        sent: offset up to which everything was sent.
    """

    def __init__(self, storage: Storage, place: Place | None, sent: int) -> None:
        self._tail = JournalTail(storage, place)
        self._sent = sent
        self._behind: deque[_Batches] = deque()
        self._transactions = self._octets = 0

    @property
    def now(self) -> Lag:
        """As far as the journal was read."""
        return Lag(self._transactions, self._octets)

    def passed(self, sent: int) -> None:
        """Everything up to offset ``sent`` has been sent."""
        self._sent = sent
        behind = self._behind
        while behind and behind[0].upto <= sent:
            self._forget(behind.popleft())

    def read_on(self) -> Iterator[None]:
        """Read what the journal has now, a frame at a time: the caller may stop at each, and ask for the rest later.

        Raises:
            UnderstudyError: the journal cannot be read; the outlet's own reader says the same.
        """
        for each in self._tail.frames():
            if isinstance(each, SegmentsGone | SegmentBegun):
                continue
            if each[3] == frames.BATCH_MAGIC[3]:
                self._batch(each)
            elif each[5] == frames.KIND_CUT:
                self._cut(frames.decode_cut(each[frames.NOTE_HEADER_BYTES :])[0])
            yield

    def close(self) -> None:
        """Close the segment file."""
        self._tail.close()

    def _batch(self, data: bytes) -> None:
        _, first, count = frames.BATCH_PLACE.unpack_from(data, frames.BATCH_PLACE_AT)
        upto = first + count - 1
        if upto <= self._sent:
            return
        prepared = sum(kind == record.PREPARE for kind, _, _ in record.records_of(data, frames.BATCH_HEADER_BYTES))
        self._transactions += prepared
        self._octets += len(data)
        behind = self._behind
        if len(behind) >= EXACT and behind[-1].prepared < MERGED:
            last = behind[-1]
            last.upto, last.prepared, last.octets = upto, last.prepared + prepared, last.octets + len(data)
        else:
            behind.append(_Batches(upto, prepared, len(data)))

    def _cut(self, offset: int) -> None:
        """Forget what stands behind ``offset``: it is no part of the log any more."""
        behind = self._behind
        while behind and behind[-1].upto > offset:
            self._forget(behind.pop())

    def _forget(self, batches: _Batches) -> None:
        self._transactions -= batches.prepared
        self._octets -= batches.octets
