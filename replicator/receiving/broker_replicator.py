"""BrokerReplicator: the backup's end of the conversation.

It appends what the primary sends, keeps it durable, acknowledges, applies what is stable, and says no where it must. It
decides nothing about roles: ``ha.following.backup`` does, and hands it the messages of the one link that counts.

What must be durable before what is said:

=========================  =====================================================================
said                       durable before
=========================  =====================================================================
ACK of an offset           every record up to it (and the epoch of the link)
NO                         the note of it
PIECE_ACK                  the pieces' notes; nothing, of a refill (what it brings is transient)
(cutting its log)          the epoch under which it cuts
=========================  =====================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from understudy.broker.core.life.meta import Meta
from understudy.broker.core.life.recovery import encode_checkpoint
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.state import BrokerState
from understudy.broker.errors import cut_text
from understudy.broker.log import frame, journal_gate, record
from understudy.broker.log.journal_gate import JournalGate
from understudy.broker.log.kept_log import Batch
from understudy.broker.log.log import journal_form
from understudy.broker.log.position import ID_EPOCH_SHIFT
from understudy.broker.log.repaired_note import RepairedNote
from understudy.broker.octets.chunks import as_large, named_bytes
from understudy.broker.transactions.tx_buffer import TxBuffer
from understudy.replicator import group_notes, snapshot, wire
from understudy.replicator.group_notes import NOTES_FORMAT, EpochSeen, No
from understudy.replicator.receiving.disk_claim import DiskClaim
from understudy.replicator.receiving.queue_replicator import QueueReplicator
from understudy.replicator.receiving.refill import Refill
from understudy.replicator.receiving.transaction_replicator import TransactionReplicator, Vote
from understudy.replicator.snapshot import Brought, await_note, put_at_note
from understudy.replicator.tx_queue import tx_queue_name

_U32: Final = Struct(">I")
_NO: Final = Struct(">QQ")
_EXTRAS: Final = Struct(">BIQBQ")
_REPAIRED: Final = 2
"""In place of 1 for a broker that is part: it is so for a repair alone. Older programs read both as part."""


class StableCutError(wire.WireError):
    """The primary wants this log cut, or replaced, below what is known here to be stable: the primary has lost records."""


class BrokerReplicator:
    """Holds what a broker knows as a backup, over links and restarts.

    Attributes:
        epoch_seen: the highest epoch this broker has seen, durably.
        log_start: its log holds everything after this offset.
        part: a catch-up is unfinished, or due since a repair has cut the journal: what is held is no state of the group.
        repaired: it is part for the repair alone: what is held is an older state of the group.
        fresh: transient messages may be missing, since this process started or the EPOCH of who had brought them was cut away.
        refill_due: the primary was told so: it may bring transient messages before the log does.
        founding: of the group to which this journal belongs, or which this broker is about to found; 0 if there is none.
        founds: it was about to found it.
        group_founding: of the group in the store; it is noted with the first epoch that is.
        of_a_group: its journal was written with this plugin; otherwise its epochs are those of a broker that ran alone.
        no_votes: standing no_votes: transaction id to (offset of its PREPARE, reason).
        forced: the newest epoch that an operator has forced, as store and primaries have said.
        vouched: since it was recovered this log has held all that some primary's did when its epoch began: what was on the disk
            at the start is known to be enough.
        claim: what this broker may say of its own disk, None as long as no epoch tells what it is to be compared with.
    """

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._refill = Refill(state)
        self._gate: JournalGate | None = None
        self._send: Callable[[bytes], None] | None = None
        self.epoch_seen = 0
        self.log_start = 0
        self.part = self.repaired = False
        self.fresh = self.refill_due = True
        self._brought_under = 0
        self.restarted_after = 0
        self.founding = 0
        self.founds = False
        self.group_founding = 0
        self.of_a_group = False
        self.no_votes: dict[int, tuple[int, str]] = {}
        self.forced = 0
        self.vouched = False
        self.claim: DiskClaim | None = None
        self._link_epoch = 0
        self._link_number = 0
        self._acked = -1
        self._told = 0
        self._pieces = 0
        self._pieces_acked = 0
        self._pieces_noted = 0
        self._pieces_synced = 0
        self._synced_first = 0
        self._refilling = False
        self._awaits_base = False
        self._restarted_at = 0
        state.applying.on_applied_tx.append(self._applied)
        state.applying.refuse(self.no_votes)

    # -- recovery ---------------------------------------------------------------------------------------------------

    def replay_note(self, kind: int, payload: bytes, place: int = 0) -> None:
        """Recovery: take a note that this class wrote, or that a repair has. ``place``: in the journal, 0 if that is not known."""
        if kind == journal_gate.REPAIRED:
            self._replay_repair(RepairedNote.decode(payload))
            return
        self.of_a_group = True
        if kind == group_notes.EPOCH_SEEN:
            epoch, self.founding = EpochSeen.decode(payload)
            self.epoch_seen = max(self.epoch_seen, epoch)
        elif kind == group_notes.NO:
            tx_id, offset, reason = No.decode(payload)
            self.no_votes[tx_id] = (offset, reason)
        elif kind == group_notes.NO_ENDED:
            self.no_votes.pop(No.decode(payload).tx_id, None)
        elif kind == group_notes.FOUNDING:
            self.founding = group_notes.decode_founding(payload)
            self.founds = True
        elif kind == frame.KIND_CUT:  # to begin anew: the base that follows may not be on the disk
            self._restarted_at = place
            self._begin_part()
        elif kind == group_notes.PIECE:
            put_at_note(self._take_piece(payload), place)
        else:
            raise journal_gate.UnknownNoteError(
                f"the journal holds notes of kind {kind}, which this program does not know: run the newer one, or switch on the "
                "plugin that wrote them"
            )

    def _replay_repair(self, note: RepairedNote) -> None:
        """The journal was cut. What stood behind was acknowledged, so what is left is no state that may be resumed from.

        In the midst of a catch-up it is no base either, and stays so.
        """
        self.epoch_seen = max(self.epoch_seen, note.epoch)
        self.of_a_group = self.of_a_group or note.of_group
        if note.settled:
            self.part = self.repaired = False
        elif note.of_group and not self.part:
            self.part = self.repaired = True

    def _begin_part(self) -> None:
        """A catch-up begins: what is held is no state of any time until it ends."""
        self.part = True
        self.repaired = False

    def lead_repaired(self) -> None:
        """An operator has made this broker the base of its group, with what the repair has left of its log: durably so."""
        assert self._gate is not None
        self.part = self.repaired = False
        end = self._state.log.end
        self._gate.append_note(journal_gate.REPAIRED, RepairedNote(self.epoch_seen, end, end, True, True).encode())
        self._gate.sync_now()

    def extras(self) -> bytes:
        """The octets that a checkpoint keeps of this class, for the notes before it may be dropped."""
        no_votes = b"".join([_NO.pack(tx, at) + record.short(why) for tx, (at, why) in self.no_votes.items()])
        return (
            _EXTRAS.pack(NOTES_FORMAT, self.epoch_seen, self.log_start, self.part + self.repaired, self.founding)
            + _U32.pack(len(self.no_votes))
            + no_votes
        )

    def replay_extras(self, buf: bytes, at: int) -> None:
        journal_gate.check_format("part of the ha plugin", buf[at], NOTES_FORMAT, NOTES_FORMAT)
        _, epoch_seen, log_start, part, self.founding = _EXTRAS.unpack_from(buf, at)
        self.of_a_group = True
        self.epoch_seen = max(self.epoch_seen, epoch_seen)
        self.log_start = max(self.log_start, log_start)
        self.part = bool(part)
        self.repaired = part == _REPAIRED
        at += _EXTRAS.size
        (count,) = _U32.unpack_from(buf, at)
        at += 4
        for _ in range(count):
            tx_id, offset = _NO.unpack_from(buf, at)
            reason, at = record.read_short(buf, at + _NO.size)
            self.no_votes[tx_id] = (offset, reason)

    def recovered(self, gate: JournalGate) -> None:
        """Recovery is over: from now on notes are written to ``gate``."""
        self._gate = gate
        # Whatever an earlier catch-up, replayed just now, had brought of transient messages is gone.
        self.fresh = self.refill_due = True
        self.restarted_after = self._state.log.end
        self.epoch_seen = max(self.epoch_seen, self._state.log.epochs.newest)
        self._state.taking.on_prepare.append(self._vote)
        self._drop_fallen_no_votes()

    def vote_no_more(self) -> None:
        """This broker is promoted: it decides what it prepares."""
        self._state.taking.on_prepare.remove(self._vote)

    # -- linking ----------------------------------------------------------------------------------------------------

    def sync(self) -> wire.Sync:
        """The SYNC that opens a new link.

        Transient messages may be missing, too, when a primary has caught this broker up, refilled it or sent it holes, whose EPOCH
        is not applied here: one that has restarted has none, and its EPOCH ends them all. If that is cut away, they stand.
        """
        log = self._state.log
        self.refill_due = self.fresh or self._brought_under > log.epochs.epoch_at(log.applied)
        return wire.Sync(
            epoch_seen=self.epoch_seen,
            log_start=self.log_start,
            end=log.end,
            starts=tuple(log.epochs.starts()),
            fresh=self.refill_due,
            part=self.part,
            no_votes=tuple((tx_id, offset) for tx_id, (offset, _) in self.no_votes.items()),
            founding=self.founding if self.epoch_seen else 0,
            stable=self.held_stable,
        )

    @property
    def held_stable(self) -> int:
        """How far this log is known to be stable: whatever was answered stands at or before that, and is here."""
        log = self._state.log
        return min(log.stable, log.end)

    def link(self, send: Callable[[bytes], None]) -> None:
        """A link to the primary is up; what is said goes to ``send``."""
        self._send = send
        self._link_epoch = 0
        self._link_number += 1  # what becomes durable later says so on the link that it came by, or not at all
        self._acked = -1
        self._pieces = self._pieces_acked = 0
        self._synced_first = self._pieces_noted
        self._awaits_base = False

    def unlink(self) -> None:
        """The link is gone: nothing is acknowledged any more."""
        self.apply_told()
        self.look_at_claim()
        self._send = None
        self._link_epoch = 0

    def look_at_claim(self) -> None:
        """Bring :attr:`claim` and :attr:`vouched` up to date with what was acknowledged on this link."""
        if self.linked and self._acked > 0 and not self.part and self._pieces_synced == self._pieces_noted:
            self.claim = DiskClaim(self._link_epoch, self.log_start, self._acked)
            epoch, first = self._state.log.epochs.starts()[-1]
            self.vouched = self.vouched or (epoch == self._link_epoch and self._acked >= first)

    @property
    def behind_records(self) -> int:
        """Records that this broker has taken, or was told to be stable, and has not applied."""
        log = self._state.log
        return max(self._told, log.end) - log.applied

    @property
    def linked(self) -> bool:
        """True if a primary has accepted this broker on the present link."""
        return self._send is not None and self._link_epoch > 0

    @property
    def lacks_transients(self) -> bool:
        """True if transient records that others hold may be missing here: an epoch that this broker leads has to end them all.

        It has restarted, or a primary that had has brought it up, and the EPOCH that would end them is not in this log. Or it was
        refilled, and has not applied yet all that its log lacks, or is not where the refill stands: it cannot bring up others.
        """
        log = self._state.log
        brought_without = self._brought_under > log.epochs.newest
        not_there = not log.whole_after(log.applied) or self._refill.waits()
        return log.end > 0 and (self.fresh or brought_without or not_there)

    def note_founding(self, founding: int) -> None:
        """This broker is about to found its group: a durable fact, since an answer may be lost and a process may die."""
        assert self._gate is not None
        if not self.founds:
            self._gate.append_note(group_notes.FOUNDING, group_notes.encode_founding(founding))
            self._gate.sync_now()
            self.founds = True
            self.founding = founding

    def is_foreign(self, founding: int) -> bool:
        """True if this journal is of another group than that one, though of the same name: they have nothing in common."""
        return self.epoch_seen > 0 and self.founding != founding and self.founding > 0

    def note_group(self, epoch: int) -> None:
        """Note ``epoch``, and the group in which it was seen, with what is synced next."""
        assert self._gate is not None
        self.founding = self.group_founding or self.founding
        self._gate.append_note(group_notes.EPOCH_SEEN, EpochSeen(epoch, self.founding).encode())
        self.epoch_seen = epoch

    def note_epoch(self, epoch: int) -> None:
        """Make ``epoch`` durable before anything is cut, acknowledged or sent under it."""
        if epoch > self.epoch_seen:
            assert self._gate is not None
            self.note_group(epoch)
            self._gate.sync_now()

    def begin_anew(self, catch_up: bytes) -> None:
        """Let go of everything that this broker holds, on the word of the primary, durably. The core must be recovered anew then.

        What is kept are the epoch that it has seen and its group. It is then as after a catch-up that was broken off at its begin.

        Args:
            catch_up: the CATCH_UP by which the primary says that this broker is not listed.

        Raises:
            WireError: that primary does not lead this group, or has been replaced. Nothing was let go.
        """
        assert self._gate is not None
        self._accept_epoch(wire.decode_catch_up(catch_up), wire.decode_founding(catch_up))
        self._begin_part()
        self.log_start = 0
        self.no_votes.clear()
        self._gate.begin_anew(encode_checkpoint(BrokerState(0), self.extras()))

    def take(self, message: bytes) -> None:
        """One message of the primary.

        Raises:
            WireError, RecordError, CorruptFrameError, struct.error, ValueError: this link cannot go on. Of a batch that raises
                nothing is held, so what the next link says of this log is on its way to the disk.
        """
        kind = message[0]
        if kind == wire.BATCH:
            stable = wire.decode_number(message)
            large = as_large(message)
            if large is not None:
                view = memoryview(large).toreadonly()[9:]
                self._take_batch(stable, named_bytes(view), frame.verify_large_batch(view, large.crc, place="link"))
            else:
                self._take_batch(stable, data := message[9:], frame.verify_batch(data, place="link"))
            return
        if kind == wire.STABLE:
            self._require_link()
            self._told = max(self._told, wire.decode_number(message))
            return
        self.apply_told()  # all others look at what is applied
        if kind == wire.RESUME:
            epoch, common, _ = wire.decode_resume(message)
            self.note_forced(wire.decode_forced(message))
            self._resume(epoch, common, wire.decode_founding(message))
        elif kind == wire.CATCH_UP:
            self.note_forced(wire.decode_forced(message))
            self._begin_catch_up(wire.decode_catch_up(message), wire.decode_founding(message))
        elif kind in (wire.BASE, wire.DROP, wire.TRANSACTION, wire.QUEUE, wire.CAUGHT_UP):
            self._require_link()
            self._piece(message)
        else:
            raise wire.misplaced(kind, "backup")

    def _require_link(self) -> None:
        if not self._link_epoch:
            raise wire.WireError("the primary sends before RESUME or CATCH_UP")

    def _check_founding(self, founding: int) -> None:
        """Before anything is believed of what a primary says: it leads this group, not another of its name."""
        known = (self.epoch_seen and self.founding) or self.group_founding
        if founding and known and founding != known:
            raise wire.WireError(
                f"the primary leads another group of this name, of founding {founding:x}; this broker knows founding {known:x}"
            )

    def belongs_to(self, founding: int) -> None:
        """Note the founding of the group that the store holds."""
        self.group_founding = founding

    def note_forced(self, epoch: int) -> None:
        """Note an epoch that an operator has forced, as the store or a primary says."""
        self.forced = max(self.forced, epoch)

    def _accept_epoch(self, epoch: int, founding: int) -> None:
        self._check_founding(founding)
        if epoch < self.epoch_seen:
            raise wire.WireError(f"primary of epoch {epoch} is fenced: this broker has seen epoch {self.epoch_seen}")
        self.group_founding = founding or self.group_founding
        self.note_epoch(epoch)
        self._link_epoch = epoch

    def _resume(self, epoch: int, common: int, founding: int) -> None:
        """Cut the log after the last common position; go on from the primary's."""
        self._check_founding(founding)
        log = self._state.log
        if not self.log_start <= common <= log.end:
            raise wire.WireError(f"the primary resumes after {common}, this log holds {self.log_start}..{log.end}")
        self._check_stable(common)
        if common < log.applied:  # an unclean promotion: what was confirmed once is not in the group's log any more
            self.part = True
            raise wire.WireError(
                f"what is applied here up to {log.applied} is not the group's, which goes on after {common}: "
                "this broker has to be caught up"
            )
        self._accept_epoch(epoch, founding)
        self._refilling = True
        self.cut(common)
        if self.refill_due:
            self._forget_transients()
        if self.no_votes:
            assert self._gate is not None
            self._gate.sync_now()  # the newest may not be on disk yet, and what is said must be
        for tx_id, (offset, reason) in self.no_votes.items():
            self._say(wire.encode_no(tx_id, offset, reason))
        self.durable()  # what was synced here is told by nobody else

    def _check_stable(self, common: int) -> None:
        """The last line of defence: a broker never drops what it knows to be stable, unless an operator has forced a base.

        A primary of this version sees the same in SYNC and sends nothing.
        """
        held, log = self.held_stable, self._state.log
        if common < held and log.epochs.newest >= self.forced:
            raise StableCutError(
                f"the primary's log ends, or differs from this one, after {common}; {common + 1} to {held} are stable here: the "
                "primary has lost what was acknowledged, and this broker drops nothing of it"
            )

    def _forget_transients(self) -> None:
        """A refill comes: begin it as a broker that has restarted.

        What a primary without them has taken away comes back; but what it did not say was deleted would stay, and the refill may
        bring a new exchange of the name of one that an EPOCH ends which is still to be applied.
        """
        self.fresh = True
        self.restarted_after = self._state.log.end
        self._state.topology.forget_transients()

    def cut(self, offset: int) -> None:
        """Drop what stands after ``offset``, durably."""
        self.apply_told()
        log = self._state.log
        if offset < log.end:
            assert self._gate is not None
            self._gate.cut(offset)
            self._state.taking.cut(offset)
            self._drop_fallen_no_votes()

    # -- the log ----------------------------------------------------------------------------------------------------

    def _take_batch(self, stable: int, data: bytes, header: frame.BatchHeader) -> None:
        self._require_link()
        if header.epoch > self.epoch_seen:
            raise wire.WireError(f"batch of epoch {header.epoch} on a link of epoch {self._link_epoch}")
        log = self._state.log
        last = header.first_offset + header.count - 1
        if not header.first_offset <= log.end + 1 <= last:
            raise wire.WireError(f"batch {header.first_offset}..{last} does not follow {log.end}")
        try:
            self._state.taking.receive_batch(data)
        except Exception:
            self._drop_fallen_no_votes()  # it may have refused a PREPARE in front of what cannot be read
            raise
        assert self._gate is not None
        batch = Batch(header.first_offset, last, header.epoch, data)
        self._gate.append_batch(journal_form(batch), last)
        if not log.whole_after(header.first_offset - 1):
            self._brought_under = self._link_epoch
        # What recovery would apply of this batch is applied in this turn: after a restart this broker must hold what it said it
        # holds. But the primary waits for the acknowledgement, and for nothing else, so the journal writes first.
        self._told = max(self._told, stable, header.stable)

    def apply_told(self) -> None:
        """Apply what the primary has told to be stable since the last call: once a turn, when its journal group is begun."""
        if self._told:
            log = self._state.log
            log.apply_up_to(self._told)
            log.kept.trim(log.applied)
            self._told = 0

    def durable(self) -> None:
        """More of the journal is on disk."""
        assert self._gate is not None
        self._state.log.note_durable(self._gate.durable_offset)
        self.acknowledge()

    def acknowledge(self) -> None:
        """Say how far this broker is durable, under the epoch of the link; never past a PREPARE it says no to.

        Nor before all is on the disk that a catch-up on an earlier link has brought: the log counts as durable up to its base. Nor
        anything of a log that a catch-up is about to replace: it may be another primary's.
        """
        if not self._link_epoch or self._awaits_base or self._pieces_synced < self._synced_first:
            return
        upto = self._state.log.durable
        for tx_id, (offset, _) in self.no_votes.items():
            if self._stands(tx_id, offset):
                upto = min(upto, offset - 1)
        if upto > self._acked:
            self._acked = upto
            self._say(wire.encode_ack(upto))

    def _say(self, message: bytes) -> None:
        if self._send is not None:
            self._send(message)

    # -- votes ------------------------------------------------------------------------------------------------------

    def _vote(self, tx: TxBuffer) -> None:
        # Who leads has whatever was opened under its own epoch: what it had lost with a restart is older.
        sender_lacks = self._state.taking.holes and tx.tx_id >> ID_EPOCH_SHIFT < self._link_epoch
        vote, why = TransactionReplicator.vote(tx, self.restarted_after, sender_lacks)
        if vote is Vote.FAILED:
            self.say_no(tx, why)

    def say_no(self, tx: TxBuffer, reason: str) -> None:
        """Refuse a transaction; the refusal is durable before it is said, and stands until its ROLLBACK is stable."""
        assert self._gate is not None
        reason = cut_text(reason, wire.REASON_BYTES)
        offset = tx.closing_offset
        self.no_votes[tx.tx_id] = (offset, reason)
        said = wire.encode_no(tx.tx_id, offset, reason)
        link = self._link_number

        def then() -> None:
            if self._link_number == link and tx.tx_id in self.no_votes:
                self._say(said)

        self._gate.append_note(group_notes.NO, No(tx.tx_id, offset, reason).encode(), then)

    def _stands(self, tx_id: int, closing_offset: int) -> bool:
        """A no stands as long as its PREPARE (or DTX_PREPARE) is in this log and no ROLLBACK follows it there."""
        tx = self._state.transactions.get(tx_id)
        return tx is not None and 0 < tx.closing_offset == closing_offset and not (tx.outcome_offset and tx.rolls_back)

    def standing_no_votes(self) -> list[TxBuffer]:
        """Transactions that a promotion of this broker must roll back."""
        return [self._state.transactions[tx] for tx, (offset, _) in self.no_votes.items() if self._stands(tx, offset)]

    def cut_refused(self) -> None:
        """Cut the log in front of the first PREPARE that this broker refuses and the group has committed.

        Only who was promoted by force may hold such a thing: whoever is listed has acknowledged what was committed. It lacks what
        it would have to apply, so what it holds is the group as it was before.
        """
        committed = [
            tx.prepare_offset
            for tx_id, (offset, _) in self.no_votes.items()
            if self._stands(tx_id, offset) and (tx := self._state.transactions[tx_id]).outcome_offset and tx.commits
        ]
        if committed:
            self.cut(min(committed) - 1)

    def _drop_fallen_no_votes(self) -> None:
        """A no whose PREPARE is not in this log any more has ended."""
        for tx_id, (offset, _) in list(self.no_votes.items()):
            tx = self._state.transactions.get(tx_id)
            if tx is None or tx.closing_offset != offset:
                self._end_no(tx_id)

    def _end_no(self, tx_id: int) -> None:
        offset, _ = self.no_votes.pop(tx_id)
        if self._gate is not None:
            self._gate.append_note(group_notes.NO_ENDED, No(tx_id, offset).encode())

    def _applied(self, tx: TxBuffer) -> None:
        if tx.tx_id in self.no_votes:
            self._end_no(tx.tx_id)

    # -- catch-up -----------------------------------------------------------------------------------------------------

    def _begin_catch_up(self, epoch: int, founding: int) -> None:
        self._accept_epoch(epoch, founding)
        self._refilling = False
        self._awaits_base = True
        held = [
            (queue.id, QueueReplicator(self._state, queue).held())
            for queue in self._state.queues.values()
            if queue.logged
        ]
        self._say(wire.encode_ids(held))

    def _piece(self, message: bytes) -> None:
        assert self._gate is not None
        self._pieces += 1
        number = self._pieces
        link = self._link_number
        noted = self._pieces_noted + 1
        brought: list[Brought] = []
        note = 0

        def durable() -> None:
            put_at_note(brought, note)
            self._pieces_synced = noted
            if self._link_number == link and self._link_epoch:
                self._pieces_durable(number)

        if message[0] == wire.BASE and wire.base_form(message) != wire.BASE_OF_REFILL:
            # Noted before it is taken: a checkpoint that the journal asks for here must describe the log that ends. So it is tried
            # elsewhere first: with one in its journal that cannot be taken this broker could not start again.
            meta, at = Meta.decode(message, 2)
            meta.install(BrokerState())
            # How far the primary's log goes on behind the base is not said here; that it differs from this one before it is.
            log = self._state.log
            common = log.epochs.common_offset(log.end, list(meta.starts), meta.offset)
            if common < meta.offset:
                self._check_stable(common)
            self._check_kept(message, at)
            self._begin_part()  # says a checkpoint that comes between the two
            self._restarted_at = self._gate.append_restart(self._state.log.stable)
            self._pieces_noted = noted
            self._gate.append_note(group_notes.PIECE, message, durable)
            self._take_piece(message)
            return
        brought = self._take_piece(message)
        # What a refill brings is of no use to a recovery, which forgets all that is transient: in the journal it would only keep
        # everything before it there (decision 0008), with each restart anew.
        if self._refilling or (message[0] == wire.QUEUE and snapshot.is_transient(message)):
            self._pieces_durable(number)
        else:
            self._pieces_noted = noted
            await_note(brought)
            note = self._gate.append_note(group_notes.PIECE, message, durable)

    def _pieces_durable(self, number: int) -> None:
        if number > self._pieces_acked:
            self._pieces_acked = number
            self._say(wire.encode_piece_ack(number))
            self.acknowledge()

    def _take_piece(self, message: bytes) -> list[Brought]:
        """Returns the messages of queues that it brings."""
        kind = message[0]
        state = self._state
        if kind == wire.BASE:
            self._take_base(message)
        elif kind == wire.DROP:
            queue_id, ids = wire.decode_drop(message)
            queue = state.queues.get(queue_id)
            if queue is not None:
                QueueReplicator(state, queue).drop(ids)
        elif kind == wire.TRANSACTION:
            records = snapshot.decode_transaction_piece(message)
            for offset, raw in records:  # all of them, before any is taken
                state.taking.check_known(raw, f"of a transaction, at offset {offset},")
            if records:
                tx_id = int.from_bytes(records[0][1][5:13], "big")
                tx_queue = Queue(
                    tx_id, "", tx_queue_name(tx_id), durable=True, auto_delete=True, arguments={}, live=state.live
                )
                TransactionReplicator(state, tx_id, tx_queue).take_records(records)
        elif kind == wire.QUEUE:
            queue_id, transient, entries = snapshot.decode_queue_piece(message)
            queue = state.queues.get(queue_id)
            if queue is not None:
                QueueReplicator(state, queue).take(entries, transient)
            return entries
        else:
            self._caught_up()
        return []

    def _take_base(self, message: bytes) -> None:
        """The catch-up begins: log and transactions start anew after the primary's applied position."""
        meta, at = Meta.decode(message, 2)
        state = self._state
        if wire.base_form(message) == wire.BASE_OF_REFILL:
            # The log goes on, only what is not durable is added.
            epoch, applied = meta.starts[-1]
            self._refill.declare(meta.topology, epoch, applied, meta.message_ids)
            return
        kept = self._check_kept(message, at)
        self._begin_part()
        self._awaits_base = False
        for tx_id in self.no_votes.keys() - kept.keys():
            del self.no_votes[tx_id]  # what it refused goes, and comes anew; what stays is refused as before
        state.drop_transactions(kept)
        state.taking.note_holes(wire.base_is_lacking(message))
        state.leave_log(self._restarted_at)
        state.log.restart_at(meta.offset, list(meta.starts))
        state.put_before_log()
        meta.install(state)
        for queue in state.queues.values():
            queue.forget_counts()
        self.log_start = meta.offset
        self._acked = -1

    def _check_kept(self, message: bytes, at: int) -> dict[int, int]:
        """The transactions that this BASE, whose meta ends at ``at``, lets this broker keep; they have to be here.

        Raises:
            WireError: they are not as the primary has sent them, or the form of the BASE is not known.
        """
        form = wire.base_form(message)
        if form == wire.BASE_NEW:
            return {}
        if form != wire.BASE_AGAIN:
            raise wire.WireError(f"a base of form {form} is not known to this program: a newer one has sent it")
        kept = wire.decode_kept(message, at)
        for tx_id, sent in kept.items():
            tx = self._state.transactions.get(tx_id)
            held = tx.logged_events if tx is not None else 0
            if held != sent:
                raise wire.WireError(f"transaction {tx_id}: {held} events are held, the primary has sent {sent}")
        return kept

    def _caught_up(self) -> None:
        for queue in self._state.queues.values():
            queue.sort()
        self.part = self.repaired = False
        self.fresh = self.refill_due = False
        self._brought_under = self._link_epoch
