"""The in-memory end of the log: what was appended, what is durable here, what is stable, what waits to be applied.

The same object serves a broker that leads, which appends records (``append``) and closes them into batches once a turn, and a
broker that follows, which receives closed batches (``receive``). On both, a record that changes queues is put on ``pending`` with
its kind of change, and nothing is applied before the stable position has passed it: so nothing applied is ever
undone, and cutting a tail never touches a queue (docs/replication.md, One log).

``pending`` holds (offset, change, argument), see `pending.py`. The function that applies a change (`Log.applies`) returns False
to say "not yet" (a broker that follows and meets a PREPARE before it knows the decision); the log then stops there and tries again
later.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from understudy.broker.log import frame, record
from understudy.broker.log.kept_log import Batch, KeptLog
from understudy.broker.log.pending import Change, Pending
from understudy.broker.log.position import EpochHistory, Position
from understudy.broker.octets.chunks import as_chunks

Apply = Callable[[Any], bool | None]

TRANSIENT_BATCH = 1
"""Batch flag: holds transient records; a journal writes :func:`journal_form` instead."""


class Log:
    """One broker's view of the group's log.

    Attributes:
        end: the last offset.
        closed_end: the last offset of the last closed batch.
        durable, stable, applied: up to where it is so.
        short: the last call of :meth:`apply_up_to` has left something that may be applied.
        once_stable: the highest that ``stable`` was before a new epoch took it back; batches may state it.
        holds_large: something large may stand in the open batch: its octets are not joined.
        newest_kind: of records that may be appended: see :meth:`confine`.

    Invariant: ``applied <= stable <= end`` and ``applied <= durable <= end``, except that a follower may be told of a
    stable position beyond its own end (it then applies up to its end). ``stable`` never goes back within an epoch.
    """

    def __init__(self, kept_bytes: int) -> None:
        self.epoch = 0
        self.end = 0
        self.durable = 0
        self.stable = 0
        self.once_stable = 0
        self.applied = 0
        self.short = False
        self.start = 0
        self.epochs = EpochHistory()
        self.kept = KeptLog(kept_bytes)
        self.pending: deque[Pending] = deque()
        self._appliers: list[Apply] = [_unknown] * len(Change)
        self._chunks: list[bytes] = []
        self.closed_end = 0
        self._transient = False
        self.holds_large = False
        self._last_hole = 0
        self._holes_ended: list[int] = []
        self.newest_kind = record.NEWEST_KINDS[record.FORMAT_VERSION]

    def applies(self, change: Change, apply: Apply) -> None:
        """Let ``apply`` apply the entries of the kind ``change``; it gets their argument."""
        self._appliers[change] = apply

    # -- leading --------------------------------------------------------------------------------------------------

    def begin_epoch(self, epoch: int) -> None:
        """From the next record on, this broker writes ``epoch``. The open batch must have been closed.

        What is not applied has to become stable anew, under this epoch. That an earlier leader
        called it stable may have hung on a record behind it that was cut since: the ROLLBACK of a transaction that a broker
        refuses lets that broker acknowledge the PREPARE.
        """
        assert not self._chunks, "an epoch begins between batches"
        self.once_stable = max(self.once_stable, self.stable)
        self.stable = self.applied
        self.epochs.begin(epoch, self.end + 1)
        self.epoch = epoch

    def confine(self, record_format: int) -> None:
        """Take nothing from now on but what readers of ``record_format`` know."""
        self.newest_kind = record.NEWEST_KINDS[record_format]

    def may_hold(self, kind: int) -> bool:
        """True if a record of that kind may be appended. Ask before writing a kind that came after the first format."""
        return kind <= self.newest_kind

    def append(self, *chunks: bytes) -> int:
        """Append one record given as consecutive pieces; returns its offset."""
        if chunks[0][0] > self.newest_kind:
            kind = chunks[0][0] & 0x7F
            assert kind <= self.newest_kind, (
                f"a record of kind {kind} is appended, {self.newest_kind} is the newest that all read"
            )
            self._transient = True
        self._chunks += chunks
        self.end += 1
        return self.end

    def hold_large(self) -> None:
        """Something large may stand in the open batch from now on."""
        self.holds_large = True

    def close_batch(self) -> Batch | None:
        """Everything appended since the last call as one batch, or None. It is also kept for links."""
        if not self._chunks:
            return None
        first = self.closed_end + 1
        flags = TRANSIENT_BATCH if self._transient else 0
        encode = frame.encode_large_batch if self.holds_large else frame.encode_batch
        data = encode(self.epoch, first, self.end - self.closed_end, self.stable, self._chunks, flags)
        self._chunks = []
        self.holds_large = False
        self._transient = False
        self.closed_end = self.end
        batch = Batch(first, self.end, self.epoch, data)
        self.kept.append(batch)
        return batch

    # -- following ------------------------------------------------------------------------------------------------

    def receive(self, batch: Batch) -> None:
        """Take a closed batch that continues this log (its records are decoded by the caller)."""
        assert batch.first <= self.end + 1 <= batch.last, (
            f"batch {batch.first}..{batch.last} does not follow {self.end}"
        )
        self.epochs.begin(batch.epoch, self.end + 1)
        self.epoch = batch.epoch
        self.end = self.closed_end = batch.last
        self.kept.append(batch)

    def cut(self, offset: int) -> None:
        """Drop everything after ``offset`` (the last position shared with the leader).

        Raises:
            AssertionError: an applied record would be undone, which the protocol excludes.
        """
        assert offset >= self.applied, f"cutting at {offset} would undo what was applied up to {self.applied}"
        pending = self.pending
        while pending and pending[-1][0] > offset:
            pending.pop()
        self.kept.cut(offset)
        self.epochs.cut(offset)
        self._last_hole = min(self._last_hole, offset)  # what comes to the places behind is whole
        while self._holes_ended and self._holes_ended[-1] > offset:
            self._holes_ended.pop()
        self.end = self.closed_end = min(self.end, offset)
        self.durable = min(self.durable, offset)
        self.stable = min(self.stable, offset)
        self.once_stable = min(self.once_stable, offset)
        self._chunks = []
        self._transient = False

    def restart_at(self, base: int, epochs: list[tuple[int, int]]) -> None:
        """Forget the log and go on after ``base``: a state without messages follows."""
        self.pending.clear()
        self.kept.clear()
        self.epochs = EpochHistory(epochs)
        self.epoch = self.epochs.newest
        self.start = self.end = self.closed_end = self.durable = self.stable = self.applied = base
        self.once_stable = 0
        self._chunks = []
        self._transient = False
        self._last_hole = 0
        self._holes_ended.clear()

    def continue_from(self, ended: Log) -> None:
        """Take over the closed batches of ``ended``, all of which are applied there; its open batch goes. This log is new."""
        end = ended.closed_end
        self.restart_at(end, ended.epochs.starts())
        self.start = ended.start
        self.kept, ended.kept = ended.kept, KeptLog(0)
        self._last_hole = ended._last_hole
        self._holes_ended = [offset for offset in ended._holes_ended if offset <= end]

    def skip_to(self, offset: int) -> None:
        """Recovery: the records up to ``offset`` were dropped with their segments; nothing of them lives."""
        self.end = self.closed_end = offset

    # -- both -----------------------------------------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """The last record appended."""
        return Position(self.epochs.epoch_at(self.end), self.end)

    @property
    def stated(self) -> int:
        """The stable position that the newest batch states, and so the journal; 0 if that batch is not kept in memory."""
        batch = self.kept.newest
        if batch is None:
            return 0
        chunks = as_chunks(batch.frame)
        return frame.header_of_verified(batch.frame if chunks is None else chunks.head).stable

    def begin_here(self) -> None:
        """Nothing of the log that stands before its end is a part of it any more."""
        self.start = self.end

    def trust_all(self) -> None:
        """All that is here was read from the journal: it is durable."""
        self.durable = self.end

    def note_hole(self, offset: int) -> None:
        """The transient record at ``offset`` is not in the kept log: a journal, or a sender's journal, had not kept it."""
        self._last_hole = offset

    def note_end_of_transients(self, offset: int) -> None:
        """The record at ``offset`` ends every transient thing before it: what is missing of them there is missing to nobody."""
        self._holes_ended.append(offset)

    def transients_end(self, upto: int) -> int:
        """Where the newest record at or before ``upto`` stands that ends every transient thing before it; 0 if none does."""
        return next((offset for offset in reversed(self._holes_ended) if offset <= upto), 0)

    def whole_after(self, offset: int) -> bool:
        """True if no transient record after ``offset`` is missing from the kept log that still counts."""
        ended = self._holes_ended
        return offset >= self._last_hole or (bool(ended) and self._last_hole < ended[-1])

    def note_durable(self, offset: int) -> None:
        if offset > self.durable:
            self.durable = min(offset, self.end)

    def apply_up_to(self, stable: int, most: int = sys.maxsize) -> bool:
        """Raise the stable position and apply what it now covers, so many entries at most. Returns whether anything was applied.

        What applies an entry may append to the log and to ``pending``; what it appends is beyond ``stable`` and waits. If the bound
        ends the call, the stable position is raised only to what is applied: backups are told no more, since a piece of a catch-up
        that shows a queue as it is applied here must not come behind a stable position that is beyond that.
        """
        self.short = False
        before_it = self.stable
        if stable > self.stable:
            self.stable = stable
        limit = self.stable
        if limit > self.end:
            limit = self.end
        pending = self.pending
        appliers = self._appliers
        applied = self.applied
        if limit <= applied:
            if not pending or pending[0][0] > applied:
                return False
            limit = applied
        last = 0
        while pending and pending[0][0] <= limit:
            offset, change, argument = pending[0]
            if most <= 0 and offset > last:  # what stands at one offset is applied together
                self.applied = max(self.applied, offset - 1)
                self.stable = max(before_it, self.applied)
                self.short = True
                return True
            if appliers[change](argument) is False:
                before = self.applied
                self.applied = max(before, offset - 1)
                return self.applied > before
            pending.popleft()
            most -= 1
            last = offset
        self.applied = limit
        return True


def _unknown(argument: Any) -> None:
    raise AssertionError(f"nothing applies {argument!r}: `Log.applies` was not told of its kind")


def journal_form(batch: Batch) -> bytes:
    """The bytes a journal writes for ``batch``: the same, unless it holds transient records."""
    data = batch.frame
    if not data[frame.BATCH_FLAGS_AT] & TRANSIENT_BATCH:
        return data
    chunks = as_chunks(data)
    if chunks is not None:
        header = frame.decode_batch_header(chunks.head, 0)
        payload = record.large_without_transients([chunks.head[frame.BATCH_HEADER_BYTES :], *chunks.chunks[1:]])
        place = (header.epoch, header.first_offset, header.count, header.stable)
        return frame.encode_large_batch(*place, payload)
    header = frame.decode_batch_header(data, 0)
    kept = record.without_transients(data[frame.BATCH_HEADER_BYTES :])
    return frame.encode_batch(header.epoch, header.first_offset, header.count, header.stable, [kept], 0)
