"""NoteEvents: notes of one broker's journal to events, one function a kind: cuts, checkpoints, votes, and pieces of a catch-up."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from understudy.broker.core.life.meta import Meta
from understudy.broker.core.state import BrokerState
from understudy.broker.log import frame, journal_gate, record
from understudy.broker.log.again_note import applied_of
from understudy.broker.log.repaired_note import RepairedNote
from understudy.observers import events_schema as schema
from understudy.observers.feed.context import NO_QUEUE, FeedContext
from understudy.observers.feed.event_stream import EventStream, runs_of
from understudy.observers.feed.records import RecordEvents
from understudy.replicator import group_notes, snapshot, wire
from understudy.replicator.group_notes import EpochSeen, No
from understudy.replicator.receiving.broker_replicator import BrokerReplicator

_U32: Final = Struct(">I")


def decode_checkpoint(payload: bytes) -> tuple[Meta, int]:
    """Everything that is no message, and the founding that the broker had met; 0 for none."""
    (extras_size,) = _U32.unpack_from(payload, 0)
    meta, _ = Meta.decode(payload, 4 + extras_size)
    if not extras_size:
        return meta, 0
    plugin = BrokerReplicator(BrokerState(0))
    plugin.replay_extras(payload, 4)
    return meta, plugin.founding


class NoteEvents:
    """Says its events to ``to``.

    Args:
        to: the stream.
        records: makes the events of a transaction's records, which a catch-up brings in a note.

    Attributes:
        takers: by kind of note: called with its payload.
    """

    def __init__(self, to: EventStream, records: RecordEvents) -> None:
        self._to = to
        self._record_takers = records.takers
        self.takers: Final[dict[int, Callable[[bytes], None]]] = {
            frame.KIND_CUT: self._cut,
            group_notes.EPOCH_SEEN: self._epoch_seen,
            group_notes.NO: self._no,
            group_notes.NO_ENDED: self._no_ended,
            journal_gate.CHECKPOINT: self._checkpoint,
            group_notes.FOUNDING: self._founding,
            group_notes.PIECE: self._piece,
            journal_gate.AGAIN: self._again,
            journal_gate.SETTLED: self._again,
            journal_gate.HANDED_OUT: self._nothing,
            journal_gate.REPAIRED: self._repaired,
        }
        self._pieces: dict[int, Callable[[bytes], None]] = {
            wire.BASE: self._base,
            wire.DROP: self._drop,
            wire.TRANSACTION: self._transaction_piece,
            wire.QUEUE: self._queue_piece,
            wire.CAUGHT_UP: self._caught_up,
        }

    # -- what this broker notes of itself -----------------------------------------------------------------------------

    def _cut(self, payload: bytes) -> None:
        offset, mark = frame.decode_cut(payload)
        stable = journal_gate.JournalGate.restarted_at(mark)
        context = self._to.context
        if stable is None:
            was = context.end
            context.cut(offset)
            self._to.say(schema.Cut, offset, was, "rejoin")
        else:
            self._to.advance(stable)
            self._to.say(schema.Cut, 0, context.end, "catch_up")

    def _repaired(self, payload: bytes) -> None:
        note = RepairedNote.decode(payload)
        if not note.settled:
            self._to.say(schema.Cut, note.kept, note.lost, "repair")

    def _epoch_seen(self, payload: bytes) -> None:
        epoch, founding = EpochSeen.decode(payload)
        self._to.context.meet(founding)
        self._to.say(schema.EpochSeen, self._to.context.end, epoch=epoch)

    def _founding(self, payload: bytes) -> None:
        self._to.context.meet(group_notes.decode_founding(payload))
        self._to.say(schema.Founding, self._to.context.end)

    def _no(self, payload: bytes) -> None:
        tx_id, offset, reason = No.decode(payload, "replace")
        self._to.say(schema.Vote, self._to.context.end, self._to.context.tx_text(tx_id), "failed", offset, reason)

    def _no_ended(self, payload: bytes) -> None:
        tx_id, offset, _ = No.decode(payload, "replace")
        self._to.say(schema.Vote, self._to.context.end, self._to.context.tx_text(tx_id), "ended", offset)

    def _checkpoint(self, payload: bytes) -> None:
        meta, founding = decode_checkpoint(payload)
        context = self._to.context
        context.meet(founding)
        if context.end and not (meta.offset or meta.starts):
            self._let_go()
        elif not context.end:  # what was before it has been dropped
            context.begin_behind(meta.offset, meta.starts[-1][0] if meta.starts else 0)
        self._to.advance(meta.offset)
        self._to.context.install(meta)
        self._to.say(schema.Checkpoint, meta.offset, len(self._to.context.queues), meta.csn)

    def _again(self, payload: bytes) -> None:
        """Messages written again are no events: they were told when their records were read. But so much of the log is applied."""
        self._to.advance(applied_of(payload))

    def _nothing(self, payload: bytes) -> None:
        """Tell nothing: what consumers have been given is no event."""

    def _let_go(self) -> None:
        """`Journal.begin_anew`: a checkpoint of nothing, behind a log that had something."""
        context = self._to.context
        self._to.say(schema.Cut, 0, context.end, "let_go")
        self._to.begin_anew(FeedContext(since=context.since, founding=context.founding, epoch=context.epoch))

    # -- pieces of a catch-up -----------------------------------------------------------------------------------------

    def _piece(self, payload: bytes) -> None:
        taker = self._pieces.get(payload[0])
        if taker is None:
            raise wire.UnknownMessageError(payload[0])
        taker(payload)

    def _base(self, message: bytes) -> None:
        meta, at = Meta.decode(message, 2)
        kept = wire.decode_kept(message, at) if wire.base_form(message) == wire.BASE_AGAIN else {}
        context = self._to.context
        context.restart(meta, kept)
        if meta.starts:
            context.begin_epoch(meta.starts[-1][0])
        self._to.say(schema.Piece, meta.offset, "base", "", "", 0, 0, len(context.queues), "", meta.csn)

    def _drop(self, message: bytes) -> None:
        queue_id, ids = wire.decode_drop(message)
        self._ids_of_queue("drop", queue_id, list(ids))

    def _queue_piece(self, message: bytes) -> None:
        queue_id, _, entries = snapshot.decode_queue_piece(message)
        self._ids_of_queue("queue", queue_id, [entry[0] for entry in entries])

    def _ids_of_queue(self, what: str, queue_id: int, ids: list[int]) -> None:
        vhost, queue, _ = self._to.context.queues.get(queue_id, NO_QUEUE)
        for first, count in runs_of(ids):
            self._to.say(schema.Piece, self._to.context.end, what, vhost, queue, queue_id, first, count)

    def _transaction_piece(self, message: bytes) -> None:
        records = snapshot.decode_transaction_piece(message)
        if not records:
            return
        for offset, raw in records:
            kind = raw[0] & ~record.TRANSIENT
            if kind not in self._record_takers:
                raise record.UnknownKindError(kind, f"of a transaction, at offset {offset},")
        tx_id = int.from_bytes(records[0][1][5:13], "big")
        text = self._to.context.tx_text(tx_id)
        self._to.say(schema.Piece, self._to.context.end, "transaction", "", "", 0, 0, len(records), text)
        for offset, raw in records:
            self._record_takers[raw[0] & ~record.TRANSIENT](raw, 5, len(raw), offset)

    def _caught_up(self, message: bytes) -> None:
        self._to.say(schema.Piece, self._to.context.end, "caught_up")
