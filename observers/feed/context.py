"""FeedContext: what a reader must remember of the journal so far to say what a record means.

Queue names, transactions that are not applied yet, how far the log is stable and applied. It follows the rules of
``broker.core.state``: a transaction is applied at the place of its PREPARE, once its COMMIT is known to be stable; until then
nothing behind that place is applied. What ends is forgotten, so it is as small as what is open.

It is part of a `Cursor`, so a reader that goes on somewhere knows what one that was never interrupted knows there.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from understudy.broker.core.life.meta import Meta
from understudy.broker.log import record
from understudy.broker.transactions.outcome_query import tx_id_text

OPEN = 0
COMMITTED = 1
ROLLED_BACK = 2

QueueName = tuple[str, str, int]
"""(vhost, name, offset of the declaration)."""
NO_QUEUE: QueueName = ("", "", 0)


def plain_text(text: str) -> str:
    """A client's text as JSON can carry it: octets that are no UTF-8 are written as backslash, x and two digits."""
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


class FeedTx(msgspec.Struct):
    """A transaction that is not applied, or whose ROLLBACK is not.

    Attributes:
        text: as events name it.
        first: offset of its first record.
        prepare_epoch, prepare: position of its PREPARE; 0 if it has none.
        branch: offset of its DTX_PREPARE; 0 if it has none.
        outcome, decided: what the log says became of it, and where.
    """

    tx_id: int
    text: str
    first: int
    prepare_epoch: int = 0
    prepare: int = 0
    csn: int = 0
    branch: int = 0
    outcome: int = OPEN
    decided: int = 0


class FeedContext(msgspec.Struct):
    """See the head of this file.

    Attributes:
        since: number of the segment with which reading began without a gap; 1: nothing was missed.
        founding: of the group, in hexadecimal; "" if it is not known.
        epoch: of the last batch.
        end, stable, applied: offsets, of this broker's log as its journal shows them.
        queues: names by queue id.
        transactions: by id, in the order of their first records.
        prepared: ids of those with a PREPARE, in the order of these.
        over: ids of those that are rolled back.
    """

    since: int = 0
    founding: str = ""
    epoch: int = 0
    end: int = 0
    stable: int = 0
    applied: int = 0
    queues: dict[int, QueueName] = {}
    transactions: dict[int, FeedTx] = {}
    prepared: list[int] = []
    over: list[int] = []

    def tx_text(self, tx_id: int) -> str:
        """How events name a transaction."""
        tx = self.transactions.get(tx_id)
        if tx is not None:
            return tx.text
        text = tx_id_text(tx_id)
        return f"{self.founding}/{text}" if self.founding else text

    def begin(self, tx_id: int, offset: int) -> FeedTx:
        """The transaction's first record stands at ``offset``."""
        tx = self.transactions[tx_id] = FeedTx(tx_id, self.tx_text(tx_id), offset)
        return tx

    def close_branch(self, tx: FeedTx, offset: int) -> None:
        """A DTX_PREPARE stands at ``offset``."""
        tx.branch = offset

    # -- topology -----------------------------------------------------------------------------------------------------

    def declare(self, raw: bytes, at: int, end: int, offset: int) -> None:
        """Note a queue's name, and where it was declared first: a later declaration only marks it as used."""
        queue_id, vhost, name, _, _ = record.decode_queue_declare(raw, at, end)
        known = self.queues.get(queue_id)
        place = offset if known is None else min(offset, known[2])
        self.queues[queue_id] = (plain_text(vhost), plain_text(name), place)

    def install(self, meta: Meta) -> None:
        """Names as a checkpoint or a base states them, and those that were declared behind it."""
        newer = {queue_id: each for queue_id, each in self.queues.items() if each[2] > meta.offset}
        self.queues.clear()
        for raw in meta.topology:
            if raw[0] & ~record.TRANSIENT == record.QUEUE_DECLARE:
                self.declare(raw, 5, len(raw), 0)
        self.queues.update(newer)

    # -- position -----------------------------------------------------------------------------------------------------

    def meet(self, founding: int) -> None:
        """The journal belongs to the group of this founding; 0: it does not say."""
        if founding:
            self.founding = f"{founding:x}"

    def begin_segment(self, number: int) -> None:
        """Reading begins with this segment, if it has not begun before."""
        self.since = self.since or number

    def begin_epoch(self, epoch: int) -> None:
        """Take what follows for events of ``epoch``."""
        self.epoch = epoch

    def reach(self, end: int) -> None:
        """The log was read up to ``end``."""
        self.end = end

    def begin_behind(self, offset: int, epoch: int) -> None:
        """Note that the records before ``offset`` have been dropped, and were applied."""
        self.end = self.stable = self.applied = offset
        self.epoch = epoch

    def advance(self, stable: int) -> Iterator[FeedTx]:
        """The log is stable up to ``stable``: yields the transactions that are applied now, in their order."""
        self.stable = max(self.stable, stable)
        limit = min(self.stable, self.end)
        if limit <= self.applied:
            return
        transactions, prepared = self.transactions, self.prepared
        while prepared and (tx := transactions[prepared[0]]).prepare <= limit:
            if not tx.outcome or tx.decided > self.stable:
                limit = tx.prepare - 1
                break
            del prepared[0]
            if tx.outcome == COMMITTED:
                del transactions[tx.tx_id]
                yield tx
        self.applied = max(self.applied, limit)
        if self.over:
            self._forget_rolled_back()

    def _forget_rolled_back(self) -> None:
        left = []
        for tx_id in self.over:
            tx = self.transactions.get(tx_id)
            if tx is None or tx.outcome != ROLLED_BACK:
                continue
            if tx.decided <= self.applied:
                del self.transactions[tx_id]
            else:
                left.append(tx_id)
        self.over = left

    def prepare(self, tx: FeedTx, offset: int, csn: int) -> None:
        """A PREPARE stands at ``offset``."""
        tx.prepare, tx.prepare_epoch, tx.csn = offset, self.epoch, csn
        self.prepared.append(tx.tx_id)

    def decide(self, tx: FeedTx, outcome: int, offset: int) -> None:
        """A COMMIT or ROLLBACK stands at ``offset``; the first one counts."""
        if not tx.decided:
            tx.outcome, tx.decided = outcome, offset
            if outcome == ROLLED_BACK:
                self.over.append(tx.tx_id)

    def end_open(self, offset: int) -> list[FeedTx]:
        """An EPOCH stands at ``offset``: what is open is rolled back."""
        ended = [tx for tx in self.transactions.values() if not (tx.prepare or tx.branch or tx.outcome)]
        for tx in ended:
            self.decide(tx, ROLLED_BACK, offset)
        return ended

    def cut(self, offset: int) -> None:
        """Undo what was read behind ``offset``: the log was cut there."""
        for tx in list(self.transactions.values()):
            if tx.first > offset:
                del self.transactions[tx.tx_id]
                continue
            if tx.decided > offset:
                tx.outcome, tx.decided = OPEN, 0
            if tx.prepare > offset:
                tx.prepare = tx.prepare_epoch = tx.csn = 0
            if tx.branch > offset:
                tx.branch = 0
        self._forget_gone()
        for queue_id, each in list(self.queues.items()):
            if each[2] > offset:
                del self.queues[queue_id]
        self.end = min(self.end, offset)
        self.stable = min(self.stable, offset)

    def restart(self, meta: Meta, kept: dict[int, int]) -> None:
        """A catch-up's base: the log begins anew behind it, with these transactions alone."""
        for tx_id in self.transactions.keys() - kept.keys():
            del self.transactions[tx_id]
        self._forget_gone()
        self.end = self.stable = self.applied = meta.offset
        self.queues.clear()
        self.install(meta)

    def _forget_gone(self) -> None:
        transactions = self.transactions
        self.prepared = [each for each in self.prepared if each in transactions and transactions[each].prepare]
