"""OpenTransactions: what transactions of one journal hold, until they are applied or rolled back.

`FeedContext` says what becomes of them. What they hold is gathered in a `TxBuffer`, as backups do it, so it is known by count and
digest whether all of a transaction is here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from understudy.broker.core.life.meta import Meta
from understudy.broker.log import record
from understudy.broker.message import Message, Spill
from understudy.broker.octets.chunks import LARGE_BYTES
from understudy.broker.transactions.tx_buffer import TxBuffer
from understudy.observers.feed.context import COMMITTED, ROLLED_BACK, FeedContext, FeedTx

TX_MEMORY_BYTES: Final = 16 << 20
"""Of one transaction; bodies beyond it are spilled as they come."""
Taker = Callable[[bytes, int, int, int], None]
"""Takes a record: the buffer, where its payload begins and ends in it, and its offset."""


class Applied(NamedTuple):
    """A transaction that was applied, and what it holds."""

    tx: FeedTx
    buffer: TxBuffer


class OpenTransactions:
    """Of one journal, as far as it was read.

    Args:
        spill: where bodies of large transactions go; None: they stay in memory.

    Attributes:
        context: positions of the log, and its transactions.
        takers: by kind of record.
    """

    def __init__(self, spill: Spill | None = None) -> None:
        self.context = FeedContext()
        self._spill = spill
        self._buffers: dict[int, TxBuffer] = {}
        self.takers: Final[dict[int, Taker]] = {
            record.EPOCH: self._epoch,
            record.TX_ENQUEUE: self._enqueue,
            record.TX_ENQUEUE_TIMED: self._enqueue,
            record.TX_DEQUEUE: self._dequeue,
            record.TX_BODY_PART: self._body_part,
            record.TX_ENQUEUE_PARTED: self._enqueue_parted,
            record.PREPARE: self._prepare,
            record.COMMIT: self._commit,
            record.ROLLBACK: self._rollback,
            record.DTX_PREPARE: self._dtx_prepare,
            record.DTX_ROLLBACK: self._dtx_rollback,
        }

    # -- records ------------------------------------------------------------------------------------------------------

    def _buffer(self, tx_id: int, offset: int) -> TxBuffer:
        """The buffer of a transaction, made if there is none; a record of the transaction stands at ``offset``."""
        if tx_id not in self.context.transactions:
            self.context.begin(tx_id, offset)
        buffer = self._buffers.get(tx_id)
        if buffer is None:
            buffer = self._buffers[tx_id] = TxBuffer(tx_id, may_be_cut=True)
        return buffer

    def _enqueue(self, buf: bytes, at: int, end: int, offset: int) -> None:
        tx_id, targets, message, head_end = record.decode_tx_enqueue(buf, at, end)
        buffer = self._buffer(tx_id, offset)
        buffer.add(offset, message, targets, buf[at - 5 : head_end], transient=False)
        self._keep_small(buffer, message)

    def _dequeue(self, buf: bytes, at: int, end: int, offset: int) -> None:
        tx_id, _ = record.decode_tx_dequeue(buf, at)
        self._buffer(tx_id, offset).add(offset, None, (), buf[at - 5 : end], transient=False)

    def _body_part(self, buf: bytes, at: int, end: int, offset: int) -> None:
        tx_id, number, start, octets, head_end = record.decode_body_part(buf, at, end)
        buffer = self._buffer(tx_id, offset)
        if buffer.bodies().gather(offset, number, start, octets):
            buffer.add(offset, None, (), buf[at - 5 : head_end], transient=False)

    def _enqueue_parted(self, buf: bytes, at: int, end: int, offset: int) -> None:
        parted = record.decode_tx_enqueue_parted(buf, at, end)
        buffer = self._buffer(parted.tx_id, offset)
        buffer.note_own(parted.own)
        body = buffer.bodies().whole(parted.number, parted.size_bytes)
        if body is None:  # the count at PREPARE finds it out
            return
        body.give_to(parted.message, LARGE_BYTES)
        buffer.bodies().places[offset] = (body, 0, parted.message.size)
        buffer.add(offset, parted.message, parted.targets, buf[at - 5 : parted.head_end], transient=False)
        if not parted.own:
            self._keep_small(buffer, parted.message)

    def _keep_small(self, buffer: TxBuffer, message: Message) -> None:
        if self._spill is not None and buffer.size_bytes > TX_MEMORY_BYTES:
            message.spill(self._spill)

    def _prepare(self, buf: bytes, at: int, end: int, offset: int) -> None:
        prepare = record.decode_prepare(buf, at)
        buffer = self._buffer(prepare.tx_id, offset)
        if buffer.prepare_offset != offset:  # a catch-up may bring what the log has brought
            buffer.closed(prepare, offset)
        self.context.prepare(self.context.transactions[prepare.tx_id], offset, prepare.csn)

    def _dtx_prepare(self, buf: bytes, at: int, end: int, offset: int) -> None:
        tx_id, branch = record.decode_dtx_prepare(buf, at, offset)
        buffer = self._buffer(tx_id, offset)
        if buffer.closing_offset != offset:
            buffer.prepared(branch)
        self.context.close_branch(self.context.transactions[tx_id], offset)

    def _commit(self, buf: bytes, at: int, end: int, offset: int) -> None:
        self._decided(record.decode_commit(buf, at)[0], COMMITTED, offset)

    def _rollback(self, buf: bytes, at: int, end: int, offset: int) -> None:
        self._decided(record.decode_rollback(buf, at)[0], ROLLED_BACK, offset)

    def _dtx_rollback(self, buf: bytes, at: int, end: int, offset: int) -> None:
        self._decided(record.decode_dtx_rollback(buf, at)[0], ROLLED_BACK, offset)

    def _decided(self, tx_id: int, outcome: int, offset: int) -> None:
        tx = self.context.transactions.get(tx_id)
        if tx is not None:
            self.context.decide(tx, outcome, offset)

    def _epoch(self, buf: bytes, at: int, end: int, offset: int) -> None:
        self.context.end_open(offset)

    # -- the log goes on, is cut, or begins anew ----------------------------------------------------------------------

    def advance(self, stable: int) -> list[Applied]:
        """The log is stable up to ``stable``: the transactions that are applied now, in their order."""
        context = self.context
        over = list(context.over)
        applied = [Applied(tx, self._buffers.pop(tx.tx_id)) for tx in context.advance(stable)]
        for tx_id in over:
            if tx_id not in context.transactions:
                self._buffers.pop(tx_id, None)
        return applied

    def cut(self, offset: int) -> None:
        """Drop what stands behind ``offset``: it is gone, and none of it was applied."""
        self.context.cut(offset)
        for tx_id, buffer in list(self._buffers.items()):
            buffer.cut(offset)
            if tx_id not in self.context.transactions:
                del self._buffers[tx_id]

    def restart(self, meta: Meta, kept: dict[int, int]) -> None:
        """The log begins anew behind a base, with the transactions ``kept``."""
        self.context.restart(meta, kept)
        for tx_id in self._buffers.keys() - kept.keys():
            del self._buffers[tx_id]

    def forget(self) -> None:
        """Forget what was read: the log that comes does not continue it."""
        self.context = FeedContext(founding=self.context.founding)
        self._buffers.clear()
