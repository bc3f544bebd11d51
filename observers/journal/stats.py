"""Live messages and transactions in each segment of a journal, and why a segment is still there.

A record lives as long as a message or an open transaction needs it. A broker lets go of its oldest segments when nothing in them
lives and a newer checkpoint says the rest. It writes messages of old segments again, in notes, when little lives in these: what
such a note says lives there as long as the message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import attrs

from understudy.broker.core.life.recovery import Recovery
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.state import BrokerState
from understudy.broker.log import frame as frames
from understudy.broker.log import journal_gate, record
from understudy.broker.log.again_note import AgainNote
from understudy.broker.log.journal_tail import JournalTail, SegmentBegun
from understudy.broker.log.storage import Storage
from understudy.replicator.receiving.broker_replicator import BrokerReplicator
from understudy.replicator.tx_queue import tx_queue_name

_NOT_APPLIED = "records that are not applied"
_UNSETTLED = "a note of messages written again that is not settled"
MOST_PINS = 3
"""So many names are given for what keeps a segment."""


@attrs.define(kw_only=True)
class SegmentStats:
    """One segment.

    Attributes:
        number: of the segment.
        size_bytes: of the file.
        used_bytes: written so far.
        live_bytes, live_records: of records that a queue or a transaction needs, or that are not applied.
        dead_bytes: of the other records.
        note_bytes: of notes: checkpoints, pieces of catch-ups, messages written again.
        again_bytes: of the notes: messages of older segments, written again.
        again_messages, again_live_messages: so many messages are in these notes, and so many of them live there.
        first_offset, last_offset: of its batches; 0 if there are none.
        pinned_by: what keeps it.
    """

    number: int
    size_bytes: int
    used_bytes: int = 0
    live_bytes: int = 0
    live_records: int = 0
    dead_bytes: int = 0
    note_bytes: int = 0
    again_bytes: int = 0
    again_messages: int = 0
    again_live_messages: int = 0
    first_offset: int = 0
    last_offset: int = 0
    pinned_by: str = ""


@attrs.frozen(kw_only=True)
class JournalStats:
    """A journal.

    Attributes:
        segments: oldest first.
        again_notes: so many notes say messages again.
        unsettled_notes: so many of them need records of older segments yet.
    """

    segments: list[SegmentStats]
    again_notes: int
    unsettled_notes: int


def journal_stats(storage: Storage) -> JournalStats:
    """Statistics of the segments and of compaction; reads the journal twice.

    Raises:
        JournalDamagedError, JournalFormatError, NoJournalError: as for reading it.
    """
    state = BrokerState(0)
    replicator = BrokerReplicator(state)
    written_again = _replay(storage, Recovery(state, replicator.replay_note, replicator.replay_extras))
    again = _AgainOwners(state, written_again)
    owners = dict(_owners(state, again))
    segments: list[SegmentStats] = []
    pins: list[Counter[str]] = []
    checkpoints: list[int] = []
    bodies: dict[tuple[int, int], int] = {}
    bound = again_notes = 0
    tail = JournalTail(storage)
    for each in tail.frames():
        if isinstance(each, SegmentBegun):
            segments.append(SegmentStats(number=each.header.number, size_bytes=each.header.size_bytes))
            pins.append(Counter())
        elif isinstance(each, bytes):
            now = segments[-1]
            segment = tail.segment
            assert segment is not None
            now.used_bytes = tail.frame_at + len(each) - segment.data_start
            if each[3] == frames.BATCH_MAGIC[3]:
                _count(each, now, pins[-1], owners, bodies, state.log.applied)
            else:
                now.note_bytes += len(each)
                if each[5] == journal_gate.AGAIN:
                    again_notes += 1
                    again.count(each, now, pins[-1])
                elif each[5] == journal_gate.CHECKPOINT:
                    checkpoints.append(now.number)
                elif each[5] >= frames.FIRST_BOUND_KIND:
                    bound = now.number
    tail.close()
    needed = state.again.oldest_needed(state.log.end + 1)
    _explain(segments, pins, checkpoints, bound, any(offset <= state.log.start for offset in owners), needed)
    return JournalStats(segments=segments, again_notes=again_notes, unsettled_notes=len(state.again.unsettled))


_Place = tuple[int, int]
"""A message in a queue: ids of both."""


class _AgainOwners:
    """Which messages live in notes that say them again: of each the newest note, if that is where it counts."""

    def __init__(self, state: BrokerState, newest: dict[_Place, AgainNote]) -> None:
        self._state = state
        self._notes = {place: note.number for place, note in newest.items() if self._offset_of(*place) == note.applied}

    def _offset_of(self, queue_id: int, entry_id: int) -> int:
        queue = self._state.queues.get(queue_id)
        entry = queue.entries.get(entry_id) if queue is not None else None
        return entry.message.offset if entry is not None else -1

    def holds(self, queue_id: int, entry_id: int) -> bool:
        """True if that message lives in such a note."""
        return (queue_id, entry_id) in self._notes

    def count(self, frame: bytes, now: SegmentStats, pins: Counter[str]) -> None:
        """A note stands in segment ``now``."""
        note = AgainNote.decode(frame[frames.NOTE_HEADER_BYTES :])
        now.again_bytes += len(frame)
        now.again_messages += len(note.messages)
        for message, targets in note.messages:
            living = [each for each in targets if self._notes.get(each[:2]) == note.number]
            for queue_id, *_ in living:
                pins[f"queue {_name(self._state.queues[queue_id])}"] += 1
            if living:
                now.live_bytes += message.size
                now.live_records += 1
                now.again_live_messages += 1


def _replay(storage: Storage, recovery: Recovery) -> dict[_Place, AgainNote]:
    """Show the frames to a recovery; unlike `journal_recovery.scan` this takes no journal in motion for a damaged one.

    Returns:
        The newest note that says a message again, less the messages, by the message's place.
    """
    newest: dict[_Place, AgainNote] = {}
    tail = JournalTail(storage)
    for each in tail.frames():
        if isinstance(each, bytes):
            if each[3] == frames.BATCH_MAGIC[3]:
                recovery.on_batch(frames.header_of_verified(each), each)
            else:
                recovery.on_note(each[5], each[frames.NOTE_HEADER_BYTES :])
                if each[5] == journal_gate.AGAIN:
                    note = AgainNote.decode(each[frames.NOTE_HEADER_BYTES :])
                    short = note._replace(messages=[])
                    newest.update({target[:2]: short for _, targets in note.messages for target in targets})
    tail.find_damage()
    tail.close()
    return newest


def _owners(state: BrokerState, again: _AgainOwners) -> Iterator[tuple[int, str]]:
    """Offset of each record that lives to what needs it."""
    for queue in state.queues.values():
        for entry in queue.entries.values():
            if again.holds(queue.id, entry.id):
                continue
            yield entry.message.offset, f"queue {_name(queue)}"
    for tx in state.transactions.values():
        for offset, _, _ in tx.events:
            yield offset, f"open transaction {tx_queue_name(tx.tx_id).rpartition('.tx.')[2]}"


def _name(queue: Queue) -> str:
    return queue.name if queue.vhost in ("", "/") else f"{queue.vhost}/{queue.name}"


def _count(
    batch: bytes,
    now: SegmentStats,
    pins: Counter[str],
    owners: dict[int, str],
    bodies: dict[tuple[int, int], int],
    applied: int,
) -> None:
    """``bodies``: where the first part of each body stands, by transaction and number. Its message lives there."""
    header = frames.header_of_verified(batch)
    now.first_offset = now.first_offset or header.first_offset
    now.last_offset = header.last_offset
    offset = header.first_offset
    for kind, at, end in record.records_of(batch, frames.BATCH_HEADER_BYTES):
        size = end - at + record.HEAD.size
        first = _first_part(batch, at, end, kind, offset, bodies)
        owner = owners.get(first) if offset <= applied else _NOT_APPLIED
        if kind == record.HOLE:
            offset += int.from_bytes(batch[at : at + 4], "big")
            now.dead_bytes += size
            continue
        if owner is None:
            now.dead_bytes += size
        else:
            now.live_bytes += size
            now.live_records += 1
            pins[owner] += 1
        offset += 1


def _first_part(batch: bytes, at: int, end: int, kind: int, offset: int, bodies: dict[tuple[int, int], int]) -> int:
    """The offset of the first part of the body that this record is of; ``offset`` if it is of none."""
    plain = kind & ~record.TRANSIENT
    if plain == record.TX_BODY_PART:
        tx_id, number, start = record.decode_body_part_place(batch, at)
        if not start:
            bodies[(tx_id, number)] = offset
        return bodies.get((tx_id, number), offset)
    if plain == record.TX_ENQUEUE_PARTED:
        tx_id = record.decode_tx_enqueue_targets(batch, at, end)[0]
        return bodies.get((tx_id, record.decode_parted_tail(batch, end)[1]), offset)
    return offset


def _explain(
    segments: list[SegmentStats], pins: list[Counter[str]], checkpoints: list[int], bound: int, old: bool, needed: int
) -> None:
    """Say why each segment is there: what lives in it, or in one before it, since the oldest goes first.

    ``needed``: a note of messages written again that is not settled needs the records from this offset on.
    """
    holder = 0
    for segment, living in zip(segments, pins, strict=True):
        if segment is segments[-1]:
            segment.pinned_by = "written to"
        elif living:
            names = [f"{name}: {count:,}" for name, count in living.most_common(MOST_PINS)]
            more = len(living) - MOST_PINS
            segment.pinned_by = ", ".join(names) + (f" and {more:,} more" if more > 0 else "")
        elif holder:
            segment.pinned_by = f"segment {holder} before it"
        elif segment.number <= bound:
            segment.pinned_by = f"pieces of a catch-up, up to segment {bound}"
        elif segment.last_offset >= needed:
            segment.pinned_by = _UNSETTLED
        elif old:
            segment.pinned_by = "messages from before a catch-up"
        elif not any(number > segment.number for number in checkpoints):
            segment.pinned_by = "no checkpoint behind it yet"
        else:
            segment.pinned_by = "nothing: it goes next"
        if (living or segment.pinned_by == _UNSETTLED) and not holder:
            holder = segment.number
