"""OutletNotes: notes of one broker's journal, as far as they change which messages are committed: cuts, checkpoints, catch-ups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from understudy.broker.core.life.meta import Meta
from understudy.broker.log import frame, journal_gate
from understudy.broker.log.again_note import applied_of
from understudy.broker.log.repaired_note import RepairedNote
from understudy.observers.feed.notes import decode_checkpoint
from understudy.observers.outlet.reading.log import OutletLog
from understudy.replicator import group_notes, snapshot, wire
from understudy.replicator.group_notes import EpochSeen


class OutletNotes:
    """Changes ``log`` by notes.

    Args:
        log: of the same journal.
    """

    def __init__(self, log: OutletLog) -> None:
        self._log = log
        self._takers: Final[dict[int, Callable[[bytes], None]]] = {
            frame.KIND_CUT: self._cut,
            group_notes.EPOCH_SEEN: self._epoch_seen,
            group_notes.NO: _pass,
            group_notes.NO_ENDED: _pass,
            journal_gate.CHECKPOINT: self._checkpoint,
            group_notes.FOUNDING: self._founding,
            group_notes.PIECE: self._piece,
            journal_gate.AGAIN: self._again,
            journal_gate.SETTLED: self._again,
            journal_gate.REPAIRED: self._repaired,
            journal_gate.HANDED_OUT: _pass,
        }
        self._pieces: Final[dict[int, Callable[[bytes], None]]] = {
            wire.BASE: self._base,
            wire.DROP: _pass,
            wire.TRANSACTION: self._transaction_piece,
            wire.QUEUE: _pass,
            wire.CAUGHT_UP: _pass,
        }

    def take(self, kind: int, payload: bytes) -> None:
        """A note.

        Raises:
            UnknownNoteError, NoteFormatError, UnknownMessageError, UnknownKindError: a newer program has written it; nothing has
                changed.
            OutletGapError: see `OutletLog.advance`.
        """
        taker = self._takers.get(kind)
        if taker is None:
            raise journal_gate.UnknownNoteError(
                f"the journal holds notes of kind {kind}, which this program does not know: run the newer one"
            )
        taker(payload)

    def _cut(self, payload: bytes) -> None:
        offset, mark = frame.decode_cut(payload)
        stable = journal_gate.JournalGate.restarted_at(mark)
        if stable is None:
            self._log.cut(offset)
        else:  # a base follows
            self._log.advance(stable)

    def _repaired(self, payload: bytes) -> None:
        RepairedNote.decode(payload)  # the cut is where the log ends; a log that goes on there has a higher epoch

    def _epoch_seen(self, payload: bytes) -> None:
        self._meet(EpochSeen.decode(payload).founding)

    def _founding(self, payload: bytes) -> None:
        self._meet(group_notes.decode_founding(payload))

    def _meet(self, founding: int) -> None:
        self._log.context.meet(founding)

    def _checkpoint(self, payload: bytes) -> None:
        meta, founding = decode_checkpoint(payload)
        self._meet(founding)
        self._log.checkpoint(meta)

    def _again(self, payload: bytes) -> None:
        """Messages written again are no units: their records are. But so much of the log is applied."""
        self._log.advance(applied_of(payload))

    def _piece(self, payload: bytes) -> None:
        taker = self._pieces.get(payload[0])
        if taker is None:
            raise wire.UnknownMessageError(payload[0])
        taker(payload)

    def _base(self, message: bytes) -> None:
        form = wire.base_form(message)
        if form == wire.BASE_OF_REFILL:
            return  # the log goes on; what is transient is added
        meta, at = Meta.decode(message, 2)
        self._log.restart(meta, wire.decode_kept(message, at) if form == wire.BASE_AGAIN else {})

    def _transaction_piece(self, message: bytes) -> None:
        self._log.take_records(snapshot.decode_transaction_piece(message))


def _pass(payload: bytes) -> None:
    """A note that changes nothing here."""
