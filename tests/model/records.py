"""Records of the model's log, and what a log says: of its epochs, of the transaction, of the messages.

A log is a tuple of ints, one record each: the epoch that wrote it, and its kind (broker/log/record.py). Offsets count from 1,
as in the code; the record at offset ``n`` is ``log[n - 1]``.

There is one transaction and there are five messages, each one bit of a *content*:

=====  ===========================================================================================
``A``  in its queue from the beginning; a plain DEQUEUE takes it away, or a MOVE
``B``  in its queue from the beginning; the transaction takes it away (TX_DEQUEUE)
``C``  the transaction puts it into another queue (TX_ENQUEUE)
``D``  a plain ENQUEUE puts it there
``E``  what becomes of A by a MOVE, in another queue
=====  ===========================================================================================

So half of the transaction is to be seen: C without B gone, or B gone without C. And half of a MOVE: A and E, or neither.
"""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

Log = tuple[int, ...]

EPOCH: Final = 1
ENQUEUE: Final = 2
DEQUEUE: Final = 3
TX_ENQUEUE: Final = 4
TX_DEQUEUE: Final = 5
PREPARE: Final = 6
COMMIT: Final = 7
ROLLBACK: Final = 8
OUTCOME: Final = 9
BARRIER: Final = 10
FIRST: Final = 11
"""The ENQUEUE of A and B, which stands in the log when the story begins."""
DTX_PREPARE: Final = 12
MOVE: Final = 13
LEAVE: Final = 14
ENTER: Final = 15
"""The two halves of a MOVE, which only a mutation writes."""

NAMES: Final = {
    EPOCH: "EPOCH",
    ENQUEUE: "ENQUEUE",
    DEQUEUE: "DEQUEUE",
    TX_ENQUEUE: "TX_ENQUEUE",
    TX_DEQUEUE: "TX_DEQUEUE",
    PREPARE: "PREPARE",
    COMMIT: "COMMIT",
    ROLLBACK: "ROLLBACK",
    OUTCOME: "OUTCOME",
    BARRIER: "BARRIER",
    FIRST: "ENQUEUE(A, B)",
    DTX_PREPARE: "DTX_PREPARE",
    MOVE: "MOVE",
    LEAVE: "LEAVE",
    ENTER: "ENTER",
}

A: Final = 1
B: Final = 2
C: Final = 4
D: Final = 8
E: Final = 16

NONE: Final = 0
OPEN: Final = 1
CLOSED: Final = 2
COMMITTED: Final = 3
ROLLED_BACK: Final = 4
IN_DOUBT: Final = 5
"""A branch whose DTX_PREPARE stands, and neither PREPARE nor ROLLBACK: its manager decides."""


def record(epoch: int, kind: int) -> int:
    return epoch << 4 | kind


def kind_of(raw: int) -> int:
    return raw & 15


def epoch_of(raw: int) -> int:
    return raw >> 4


def text_of(raw: int) -> str:
    """Kind and epoch, for people: PREPARE/2."""
    return f"{NAMES[kind_of(raw)]}/{epoch_of(raw)}"


class Tx(NamedTuple):
    """The transaction, as a log has it.

    Attributes:
        state: NONE, OPEN, IN_DOUBT, CLOSED, COMMITTED or ROLLED_BACK.
        events: bits C (its TX_ENQUEUE is there) and B (its TX_DEQUEUE is).
        first: offset of its first event, 0 if there is none; ``prepare``, ``outcome``: of PREPARE, and of the COMMIT, ROLLBACK
            or EPOCH that ended it.
        epoch: under which it was opened.
        prepared: offset of a branch's DTX_PREPARE.
    """

    state: int
    events: int
    first: int
    prepare: int
    outcome: int
    epoch: int
    prepared: int = 0

    @property
    def closing(self) -> int:
        """Offset of what says what it holds, and is voted on (TxBuffer.closing_offset)."""
        return self.prepared or self.prepare


@cache
def transaction(log: Log) -> Tx:
    """The transaction as ``log`` has it. An EPOCH ends it if it was not closed before (DESIGN 5, promotion step 4)."""
    state, events, first, prepare, outcome, epoch, prepared = NONE, 0, 0, 0, 0, 0, 0
    for offset, raw in enumerate(log, 1):
        kind = raw & 15
        if kind in (TX_ENQUEUE, TX_DEQUEUE):
            events |= C if kind == TX_ENQUEUE else B
            first = first or offset
            state, epoch = OPEN, raw >> 4
        elif kind == PREPARE:
            state, prepare = CLOSED, offset
        elif kind == DTX_PREPARE:
            state, prepared = IN_DOUBT, offset
        elif kind == COMMIT and not outcome:
            state, outcome = COMMITTED, offset
        elif (kind == ROLLBACK and not outcome and state != NONE) or (kind == EPOCH and state == OPEN):
            state, outcome = ROLLED_BACK, offset
    return Tx(state, events, first, prepare, outcome, epoch, prepared)


@cache
def same_prefix(one: Log, other: Log) -> int:
    """How many records both begin with."""
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count


def _starts(log: Log) -> dict[int, int]:
    """Epoch to the offset of its first record."""
    starts: dict[int, int] = {}
    for offset, raw in enumerate(log, 1):
        starts.setdefault(raw >> 4, offset)
    return starts


@cache
def common_offset(one: Log, other: Log) -> int:
    """The last shared position, found as the code does it (EpochHistory.common_offset): by epochs and their first offsets."""
    ours, theirs = _starts(one), _starts(other)
    for epoch in sorted(ours, reverse=True):
        if theirs.get(epoch) == ours[epoch]:
            our_end = min((first for number, first in ours.items() if number > epoch), default=len(one) + 1) - 1
            their_end = min((first for number, first in theirs.items() if number > epoch), default=len(other) + 1) - 1
            return min(our_end, their_end)
    return 0


@cache
def applied(log: Log, stable: int, deciding: bool = False, start: int = 0) -> int:
    """How far a broker that knows ``stable`` has applied ``log``.

    It stops before a PREPARE whose decision it does not know, or not for good (Applying.apply_prepare, decision 0002).

    Args:
        log: of a broker that follows it from its beginning, or from ``start`` on.
        stable: as far as it was told, or knows as the primary.
        deciding: it is the primary: a COMMIT counts from the moment that it is appended, a ROLLBACK when it is stable.
        start: the base of its catch-up, up to which all is applied.
    """
    tx = transaction(log)
    if start < tx.prepare <= stable and (
        not tx.outcome or (tx.outcome > stable and not (deciding and tx.state == COMMITTED))
    ):
        return tx.prepare - 1
    return max(min(stable, len(log)), start)


@cache
def apply(content: int, log: Log, after: int, upto: int, lacks: int = 0, decided: bool = False) -> int:
    """``content`` when the records after ``after`` and up to ``upto`` have been applied.

    The transaction changes it at the place of its PREPARE. A MOVE changes nothing on a broker that lacks A.

    Args:
        lacks: its events that this broker does not hold.
        decided: it is committed, though its COMMIT may not be in ``log``.
    """
    tx = transaction(log)
    committed = tx.state == COMMITTED or (tx.state == CLOSED and decided)
    for raw in log[after:upto]:
        kind = raw & 15
        if kind == FIRST:
            content |= A | B
        elif kind == ENQUEUE:
            content |= D
        elif kind in (DEQUEUE, LEAVE):
            content &= ~A
        elif kind == ENTER:
            content |= E
        elif kind == MOVE and content & A:  # without A a broker has no body for E (Applying.apply_move)
            content = content & ~A | E
        elif kind == PREPARE and committed:
            events = tx.events & ~lacks
            content = (content | (events & C)) & ~(events & B)
    return content


def content_of(log: Log, stable: int, deciding: bool = False, start: int = 0) -> int:
    """The content of the queues of a broker that follows ``log`` from its beginning, or from the base ``start`` on."""
    return apply(0, log, 0, applied(log, stable, deciding, start))
