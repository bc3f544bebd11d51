"""Recovery: builds a broker's state from the frames of its journal.

A batch says how far the log was stable when it was closed; up to there it is applied again, the rest waits, as it did.

The first frame may be a checkpoint (older segments were dropped): it gives everything that is not a message, as it was applied
then, and messages that still live follow it. Between what it had applied and the first batch there may be a gap: records that
were dropped since, of which no message lives, and whose topology and outcomes a later checkpoint states. Until that one comes,
a record may speak of a queue that was declared in the gap: a place is held for it, so that its messages are there when its
name is.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from understudy.broker.core.life.meta import Meta
from understudy.broker.core.life.recovered_rows import RecoveredRows
from understudy.broker.core.queues.messages_again import take_again, take_settled
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.state import BrokerState
from understudy.broker.errors import UnderstudyError
from understudy.broker.log import frame, journal_gate, record
from understudy.broker.log.again_note import AgainNote, SettledNote
from understudy.broker.log.frame import BatchHeader
from understudy.broker.log.handed_out_note import HandedOutNote
from understudy.broker.log.move_record import decode_move
from understudy.broker.log.pending import Change
from understudy.broker.log.record import Target
from understudy.broker.log.repaired_note import RepairedNote
from understudy.broker.plugin_api.journal_notes import writers

_U32: Final = Struct(">I")
_UNDOING: Final = (record.OUTCOMES_TRIMMED, record.COMMIT, record.DTX_FORGET)
"""Kinds that end what a gap may have begun."""


class NewerJournalError(UnderstudyError):
    """The log of this journal holds records that this program does not know."""

    def __init__(self, offset: int, unknown: record.RecordError) -> None:
        super().__init__(
            f"the journal's batch of offset {offset} cannot be read: {unknown}. Nothing was changed; run the newer program"
        )


class Recovery:
    """Shown every frame of the journal, in order (the visitor of ``journal_recovery.recover``).

    Attributes:
        epoch_seen: the highest epoch that a repair of this journal has read in what it cut off; 0 without a repair.
        repaired: the note of the last repair; None without one.
    """

    def __init__(
        self,
        state: BrokerState,
        replay_note: Callable[[int, bytes, int], None] | None,
        replay_extras: Callable[[bytes, int], None] | None,
    ) -> None:
        self._state = state
        state.log.applies(Change.GAP, self._pass_gap)
        state.log.applies(Change.AGAIN, self._take_again)
        state.log.applies(Change.SETTLED, self._take_settled)
        self._replay_note = replay_note
        self._replay_extras = replay_extras
        self._gaps: list[tuple[int, int]] = []
        self._behind_gap: list[tuple[int, bytes]] = []
        self._begun = self._deep = self._expects_much = False
        self._rows = RecoveredRows(state)
        self.epoch_seen = 0
        self.repaired: RepairedNote | None = None

    def expect(self, octets: int) -> None:
        """The journal has about so many octets: if queues may hold much, no body is read from the first record on."""
        self._expects_much = self._state.paging.expects(octets)
        self._recovered(0)

    def on_batch(self, header: BatchHeader, data: bytes) -> None:
        log = self._state.log
        self._begun = True
        if header.first_offset > log.end + 1:
            self._begin_gap(header.first_offset - 1)
        if self._gap_end:
            self._note_behind_gap(header.first_offset, data)
        if not (self._deep and not self._gap_end and self._rows.take(header, data)):
            try:
                self._state.taking.receive_batch(data)
            except (record.UnknownKindError, record.UnknownExchangeTypeError) as error:
                raise NewerJournalError(header.first_offset, error) from error
        self._apply_up_to(header.stable)
        kept = log.kept
        if kept.bytes > kept.limit_bytes:
            kept.trim(log.applied)
        self._recovered(len(data))

    def _apply_up_to(self, stable: int) -> None:
        self._rows.split_at(stable)
        self._state.log.apply_up_to(stable)

    def on_note(self, kind: int, payload: bytes, place: int = 0) -> None:
        if kind == frame.KIND_CUT:
            offset, mark = frame.decode_cut(payload)
            stable = journal_gate.JournalGate.restarted_at(mark)
            self._behind_gap = [each for each in self._behind_gap if each[0] <= offset]
            if stable is None:
                self._rows.cut(offset)
                self._state.taking.cut(offset)
                self._cut_gaps(offset)
            else:  # a base follows, which says all that the gap may have done
                self._restart(stable, place)
                if self._replay_note is not None:
                    self._replay_note(kind, payload, place)
        elif kind == journal_gate.CHECKPOINT:
            self._checkpoint(payload)
        elif kind == journal_gate.AGAIN:
            self._again(AgainNote.decode(payload, place))
        elif kind == journal_gate.SETTLED:
            self._settled(SettledNote.decode(payload))
        elif kind == journal_gate.REPAIRED:
            self._repaired(payload)
        elif kind == journal_gate.HANDED_OUT:
            self._state.take_handed_out(HandedOutNote.decode(payload))
        elif self._replay_note is not None:
            self._rows.spread()  # a plugin looks into what waits
            self._replay_note(kind, payload, place)
        else:
            raise journal_gate.UnknownNoteError(
                f"the journal holds notes of kind {kind}: switch on the plugin that wrote them{writers(kind)}"
            )
        self._recovered(len(payload))
        self._begun = True

    def _recovered(self, octets: int) -> None:
        """So many octets were read; if much lies in queues, bodies are left where they are."""
        deep = self._state.paging.recovered(octets) or self._expects_much
        if deep is not self._deep:
            self._deep = deep
            self._state.taking.leave_bodies(self._state.paging.bodies if deep else None)

    def _again(self, again: AgainNote) -> None:
        """Messages of older segments, as they were when the log was applied up to a place: they are taken there."""
        self._hold_places([target[:3] for _, targets in again.messages for target in targets])
        self._state.again.note(again, [message.place for message, _ in again.messages])
        self._at(again.applied, Change.AGAIN, again)

    def _settled(self, settled: SettledNote) -> None:
        self._at(settled.applied, Change.SETTLED, settled)

    def _at(self, applied: int, change: Change, note: AgainNote | SettledNote) -> None:
        """Take a note when the log is applied up to there, which a decision that stands behind the note may delay."""
        log = self._state.log
        self._apply_up_to(applied)
        assert log.applied <= applied, f"a note was written at {applied}, and before it {log.applied} was called stable"
        if log.applied == min(applied, log.end):  # what is between is in a gap
            if isinstance(note, AgainNote):
                self._take_again(note)
            else:
                self._take_settled(note)
            return
        self._rows.split_any_at(applied)
        pending = log.pending
        before = [each for each in pending if each[0] <= applied]
        behind = [each for each in pending if each[0] > applied]
        pending.clear()
        pending.extend((*before, (applied, change, note), *behind))

    def _take_again(self, again: AgainNote) -> None:
        state = self._state
        if take_again(state.queues, again):
            state.applying.note_moved()

    def _take_settled(self, settled: SettledNote) -> None:
        state = self._state
        take_settled(state.queues, settled)
        state.again.settled(settled.number, state.queues)

    def _repaired(self, payload: bytes) -> None:
        """The journal was cut here: epochs up to the one in the note may have been seen by clients."""
        note = RepairedNote.decode(payload)
        self.epoch_seen = max(self.epoch_seen, note.epoch)
        self.repaired = note if not note.settled else None
        if self._replay_note is not None:
            self._replay_note(journal_gate.REPAIRED, payload, 0)
        elif note.of_group:
            raise journal_gate.UnknownNoteError(
                f"the journal holds notes of a plugin, and was repaired: switch on the plugin that wrote them{writers()}"
            )

    @property
    def _gap_end(self) -> int:
        """Where the last gap ends that is not filled; 0 if there is none."""
        return self._gaps[-1][1] if self._gaps else 0

    def _begin_gap(self, end: int) -> None:
        log = self._state.log
        begin = log.end
        self._gaps.append((begin, end))
        log.skip_to(end)
        log.pending.append((begin + 1, Change.GAP, None))
        self._state.applying.deduplicate()  # the gap may have declared what drops duplicates

    def _pass_gap(self, _: None) -> None:
        """Everything before the gap is applied; some outcomes may be forgotten, and the broker that fills the gap says which."""
        self._state.applying.forget_decisions()
        self._state.id_windows.begin_gap()

    def _cut_gaps(self, offset: int) -> None:
        """The log was cut at ``offset``: what stood behind that in a gap is missing to nobody any more.

        A checkpoint at or behind what is left fills it, and there may be no other: more was droppable by none.
        """
        gaps = self._gaps
        while gaps and gaps[-1][0] >= offset:
            gaps.pop()
        if gaps and gaps[-1][1] > offset:
            gaps[-1] = (gaps[-1][0], offset)

    def _restart(self, stable: int, cut: int) -> None:
        """The log begins anew behind the CUT at that place.

        If the power failed before the base was on the disk, it does so for the journal alone, which takes all that stands before
        for dead: nothing may be dropped for the offset at which it stands.
        """
        log = self._state.log
        self._apply_up_to(stable)
        self._rows.spread()
        self._state.leave_log(cut)
        log.begin_here()
        self._gaps.clear()

    def _checkpoint(self, payload: bytes) -> None:
        (extras_size,) = _U32.unpack_from(payload, 0)
        if extras_size and self._replay_extras is None:
            # Its notes, which would be refused, may have gone with their segments.
            raise journal_gate.UnknownNoteError(
                f"the journal holds a plugin's part of a checkpoint: switch on the plugin that wrote it{writers()}"
            )
        meta, _ = Meta.decode(payload, 4 + extras_size)
        state = self._state
        state.id_windows.checkpointed(meta.offset)
        if not self._begun:
            state.log.restart_at(meta.offset, list(meta.starts))
            meta.install(state)
        else:
            self._apply_up_to(meta.offset)
            if 0 < self._gap_end <= meta.offset:
                self._fill_gap(meta)
            else:  # a transaction may have begun in a segment that was dropped, and brought ids with a PREPARE that was not
                state.id_windows.merge(state.queues, meta.message_ids)
        if extras_size and self._replay_extras is not None:
            self._replay_extras(payload, 4)

    def _note_behind_gap(self, offset: int, data: bytes) -> None:
        """Hold places for queues that this batch puts messages into and nobody has declared; keep its topology records."""
        for kind, at, end in record.records_of(data, frame.BATCH_HEADER_BYTES):
            if kind == record.HOLE:
                offset += int.from_bytes(data[at : at + 4], "big")
                continue
            plain = kind & ~record.TRANSIENT
            if plain == record.ENQUEUE:
                self._hold_places(record.decode_enqueue(data, at, end)[0])
            elif plain in (record.TX_ENQUEUE, record.TX_ENQUEUE_TIMED):
                self._hold_places(record.decode_tx_enqueue(data, at, end)[1])
            elif plain == record.MOVE:
                self._hold_places(decode_move(data, at, end).targets)
            elif plain == record.TX_ENQUEUE_PARTED:
                self._hold_places(record.decode_tx_enqueue_parted(data, at, end).targets)
            elif plain in record.TOPOLOGY or plain in _UNDOING:
                self._behind_gap.append((offset, bytes((plain,)) + data[at - 4 : end]))
            offset += 1

    def _hold_places(self, targets: list[Target]) -> None:
        queues = self._state.queues
        for queue_id, _, _ in targets:
            if queue_id not in queues:
                queues[queue_id] = Queue(
                    queue_id, "", "", durable=True, auto_delete=False, arguments={}, live=self._state.live
                )

    def _fill_gap(self, meta: Meta) -> None:
        """``meta`` states what the gap did, as it was applied then.

        More may be applied here: batches before the checkpoint state how far the log was stable, and a broker that follows applies
        that after it has given them to its journal.
        """
        state = self._state
        since = [raw for offset, raw in self._behind_gap if meta.offset < offset <= state.log.applied]
        known, owed, completions = state.applying.outcomes, state.applying.owed, state.applying.completions
        windows = state.id_windows
        time = windows.time_ms, windows.time_at
        meta.install(state, [raw for raw in since if raw[0] in record.TOPOLOGY])
        windows.end_gap(state.queues, meta.offset, time)
        # What was owed before the gap, and is not by ``meta``, was paid in it.
        state.applying.owed.update({tx_id: csn for tx_id, csn in owed.items() if known.decided_at(tx_id) > meta.offset})
        state.applying.completions.update(
            {name: each for name, each in completions.items() if each.offset > meta.offset}
        )
        for raw in since:
            if raw[0] == record.OUTCOMES_TRIMMED:
                state.applying.outcomes.trim(*record.decode_outcomes_trimmed(raw, 5))
            elif raw[0] == record.COMMIT:
                state.applying.owed.pop(record.decode_commit(raw, 5)[0], None)
            elif raw[0] == record.DTX_FORGET and record.decode_dtx_forget(raw, 5) not in completions:
                state.applying.completions.pop(record.decode_dtx_forget(raw, 5), None)
        state.applying.outcomes.add(known)  # after the trims, since a name that they have made free may be in use again
        self._gaps.clear()
        self._behind_gap.clear()

    def finish(self) -> None:
        """Everything shown is durable."""
        log = self._state.log
        self._rows.spread()
        self._state.taking.leave_bodies(None)
        log.epochs.cut(log.end)  # a checkpoint may speak of one whose first batch was lost behind it
        log.trust_all()
        self._state.again.log_ends(log.end)
        self._state.topology.forget_transients()
        for queue in self._state.queues.values():
            queue.entries.end_growth()
            queue.sort()  # messages that were written again came behind younger ones
        self._state.topology.end_recovery()


def encode_checkpoint(state: BrokerState, extras: bytes) -> bytes:
    """The CHECKPOINT note's payload: what a plugin keeps, then the meta."""
    return b"".join(checkpoint_parts(state, extras))


def checkpoint_parts(state: BrokerState, extras: bytes) -> list[bytes | bytearray]:
    """The same in pieces, to be joined at once."""
    state.id_windows.checkpointed(state.log.applied)
    return [_U32.pack(len(extras)), extras, *Meta.of(state, whole_log=True).parts()]
