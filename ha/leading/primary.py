"""Primary: the role of the broker that leads. Recovering from its promotion until every listed broker is with it, then active.

It is the broker's stability rule (:meth:`stable_offset`), accepts backups, streams the log to them, guards joiners, and
changes the in-sync set in the one safe order: **in: hold, then write; out: write, then release**.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs

from understudy.broker.core.broker import Broker
from understudy.broker.core.turn.work_refusals import BACKUP_DISK
from understudy.broker.log.kept_log import Batch
from understudy.broker.log.move_record import Move
from understudy.broker.plugin_api.plugin_commands import CommandRequest
from understudy.broker.transactions.outcome_query import tx_id_text
from understudy.broker.transactions.outcomes import Outcome
from understudy.broker.transactions.tx_buffer import TxBuffer
from understudy.ha.leading.absent_backups import AbsentBackups
from understudy.ha.leading.admission import Admission
from understudy.ha.leading.backup_readiness import BackupReadiness
from understudy.ha.leading.fitness import Fitness
from understudy.ha.leading.in_sync_set import InSyncSet
from understudy.ha.leading.log_format import LogFormat
from understudy.ha.leading.readiness_log import ReadinessLog
from understudy.ha.leading.remote_backup import RemoteBackup
from understudy.ha.leading.written_anew import WrittenAnew
from understudy.ha.operators.commands import OperatorCommands
from understudy.ha.operators.step_down import StepDown
from understudy.ha.settings import HaSettings
from understudy.ha.showing.events import (
    CatchUpEnds,
    GroupWrittenAnew,
    HaEvent,
    LinkRefused,
    LogFormatRaised,
    LogMended,
    SetChanged,
    TrackerAdded,
    TrackerCleared,
    TransactionRefused,
)
from understudy.ha.status import BrokerStatus
from understudy.ha.store.coordination import Answer, BrokerId, BrokerInfo, Coordination, GroupState, bar_text
from understudy.observers.transaction_observer import HaTransactionObserverFactory
from understudy.replicator import wire
from understudy.replicator.fabric import Link
from understudy.replicator.sending.catch_up import CatchUp

ACK_KIND = bytes((wire.ACK,))
EXPLAIN_EVERY_MS = 500
"""So often a backup that is not ready is told why, if that has changed."""


@attrs.frozen(kw_only=True)
class FormerPrimary:
    """A primary that has handed over.

    Attributes:
        broker: which.
        newest_record_format: the newest that it reads, as it has said on its link.
    """

    broker: BrokerId
    newest_record_format: int


class PrimaryHost(Protocol):
    """Requests of a primary to the HaBroker around it."""

    def step_down(self, reason: str, *, handed_over: bool = False) -> None:
        """This broker must not lead any more. ``handed_over``: all that it has sent is applied here."""

    def status_changed(self) -> None:
        """Something that readiness shows has changed."""

    def happened(self, event: HaEvent) -> None:
        """Something that an operator wants to find in the log has happened."""


class Primary:
    """The role.

    Args:
        former: the primary that has handed over to this broker, None if none has.

    Attributes:
        epoch_offset: offset of this epoch's EPOCH record.
        backups: all backups it knows; a listed one is always here, linked or not.
        absent: the brokers that are not among them.
        brokers: all that the store knows, as it was shown last.
        hand_over: the step-down that an operator has asked for.
        anew: writes the group into a store that has lost it.
    """

    def __init__(
        self,
        config: HaSettings,
        broker: Broker,
        coordination: Coordination,
        group: GroupState,
        host: PrimaryHost,
        next_request: Callable[[], int],
        vouched: bool,
        former: FormerPrimary | None = None,
    ) -> None:
        self._config = config
        self._broker = broker
        self._log = broker.log
        self._host = host
        self.epoch = group.epoch
        self.in_sync = InSyncSet(coordination, group, next_request)
        self.status = BrokerStatus.RECOVERING
        self.suspended = False
        self.epoch_offset = 0
        self._since_ms = broker.clock.now_ms
        self._former = former
        self.backups: dict[BrokerId, RemoteBackup] = {}
        self.absent = AbsentBackups(config.broker)
        broker.state.applying.on_moved.append(self._moved)
        self.log_format = LogFormat(broker.log, config.newest_record_format)
        self._admission = Admission(
            config, broker, group.epoch, self.in_sync, self.log_format, self.backups, host, lambda: self.anew.waits
        )
        self._fitness = Fitness(config, broker.log, self.in_sync, coordination, next_request, vouched, host)
        self._stable = broker.log.applied
        self._foreign: dict[BrokerId, int] = {}  # by broker, the founding for which it was refused
        self._waiting_syncs: list[tuple[Link, wire.Sync]] = []
        self.brokers: dict[BrokerId, BrokerInfo] = {}
        self._dead: set[BrokerId] = set()
        self._explain_ms = 0
        self.hand_over = StepDown(config, broker, self.in_sync, self.backups, host)
        self.anew = WrittenAnew(config.broker, broker, self.in_sync, self.backups, coordination, next_request)
        self._operator = OperatorCommands(config, broker, self.in_sync, self.backups, self.hand_over, self)
        self._readiness_log = ReadinessLog(self.readiness, host.happened)
        for member in group.members:
            if member != config.broker:
                self.backups[member] = RemoteBackup(member, True, broker.clock.now_ms)

    # -- promotion, steps 4 to 8 --------------------------------------------------------------------------------------

    def begin(self, standing_no_votes: list[TxBuffer], transients_lost: bool) -> None:
        """Append EPOCH; roll back what this broker said no to; guards for every member stand already."""
        broker = self._broker
        broker.batch.stable_by(self)
        transactions = broker.transactions
        transactions.record_by(HaTransactionObserverFactory(transactions.recorder, self._transaction_closing))
        self.epoch_offset = broker.lead(self.epoch, self._config.broker, transients_lost)
        for tx in standing_no_votes:
            transactions.roll_back_closed(tx, "refused by the broker that was promoted")
        self._host.happened(
            SetChanged(epoch=self.epoch, in_sync=self.in_sync.members, joined=(), left=(), reason="it begins to lead")
        )
        self._check_work()
        broker.reception.admit()

    def suspend(self) -> None:
        """Note that the store has lost the group: alone in its set, this primary decides nothing."""
        self.suspended = True

    def store_seen(self, *, suspended: bool, reached: bool) -> None:
        """Note how the store stands.

        Args:
            suspended: the store is out of reach, or does not show this broker as the primary.
            reached: the store has been in reach since the group was seen there last.
        """
        self.suspended = suspended
        self.anew.store_seen(reached)

    def _become_active(self) -> None:
        self.status = BrokerStatus.ACTIVE
        self._raise_format()
        self._broker.serve()
        self._host.status_changed()  # told before what is decided from now on
        self._broker.end_turn()  # what gathered while recovering is answered now, not with the next event

    # -- the stable position --------------------------------------------------------------------------------------------

    def stable_offset(self) -> int:
        """The highest offset that this broker has fsynced and that every listed and guarded backup has acknowledged.

        It does not move while the set is below ``min_insync``, nor while this broker is alone in the set and cannot reach
        the store.
        """
        if not self.in_sync.enough or (self.suspended and len(self.in_sync.members) == 1):
            return self._stable
        least = self._log.durable
        for backup in self.backups.values():
            held_from = backup.acked if backup.listed else backup.holds_back_from
            if held_from is not None and held_from < least:
                least = held_from
        if least > self._stable:
            self._stable = least
        return self._stable

    def batch_closed(self, batch: Batch) -> None:
        """Links are served once, at the end of the turn (:meth:`end_turn`)."""

    def due_after(self, message: bytes) -> bool:
        """True if a turn has to be ended for ``message``, which has been taken.

        Of the acknowledgements of a commit only the last makes it stable; the others need not end a turn. So one does not if
        nothing has become stable, no backup may have come nearer to the set, and nothing was held back for want of credit.
        """
        if message[:1] != ACK_KIND or self.status is not BrokerStatus.ACTIVE or self.stable_offset() > self._log.stable:
            return True
        closed_end = self._log.closed_end
        for backup in self.backups.values():  # without a generator, since each acknowledgement comes by here
            if not backup.listed or backup.sender is None or backup.sender.sent < closed_end:
                return True
        return False

    def end_turn(self, flush: bool) -> bool:
        """Consider joiners, send to every link what it may have now.

        A stable position that has moved is told with the next batch, or alone when ``flush`` asks for it: backups apply a
        moment later, and are not woken for every commit. Returns whether one is still to be told.
        """
        if self.status is BrokerStatus.RECOVERING:
            self._consider_active()
            flush = True
        if self._waiting_syncs and self._log.durable >= self.epoch_offset:
            waiting, self._waiting_syncs = self._waiting_syncs, []
            for link, sync in waiting:
                self._admit(link, sync)
        untold = False
        closed_end = self._log.closed_end
        for backup in list(self.backups.values()):  # who has fallen too far behind is dropped meanwhile
            sender = backup.sender
            if sender is not None:
                if flush or backup.catch_up is not None or sender.sent < closed_end:
                    self._send(backup, flush)
                untold = untold or (backup.sender is not None and backup.sender.untold and not backup.opening)
            if not backup.listed:
                self._consider(backup)
        self.hand_over.end_turn()
        if self.anew.waits:
            self.anew.consider()
        return untold

    def _consider_active(self) -> None:
        acknowledged = all(b.acked >= self.epoch_offset for b in self.backups.values() if b.listed)
        if acknowledged and self._log.applied >= self.epoch_offset and self.in_sync.enough:
            self._become_active()

    def _send(self, backup: RemoteBackup, flush: bool) -> None:
        link = backup.link
        sender = backup.sender
        if link is None or sender is None:
            return
        catch_up = backup.catch_up
        if catch_up is not None and backup.opening:
            if not self._open(link, catch_up):
                return
            sender = self._admission.sender_after(catch_up.base)
            backup.log_opens(sender)
        try:
            for message in sender.messages(flush):
                link.send(message)
        except IndexError as gone:
            self._drop_link(backup, str(gone))
            return
        if catch_up is not None:
            while (piece := catch_up.next_message()) is not None:
                link.send(piece)
            if catch_up.refill and catch_up.finished:
                backup.refill_ends()

    def _moved(self, move: Move) -> None:
        """Backups that are being caught up may need what has moved sent."""
        for backup in self.backups.values():
            if backup.catch_up is not None:
                backup.catch_up.moved(move)

    @staticmethod
    def _open(link: Link, catch_up: CatchUp) -> bool:
        """Send what comes before the log, as much as may be in flight; whether that was all of it."""
        while not catch_up.opened:
            piece = catch_up.next_message()
            if piece is None:
                return False
            link.send(piece)
        return True

    # -- backups come ---------------------------------------------------------------------------------------------------

    def take(self, link: Link, message: bytes) -> None:
        """One message of a backup.

        Raises:
            WireError: the link cannot go on.
        """
        kind = message[0]
        backup = self.backups.get(link.peer)
        if kind == wire.SYNC:
            self._synced(link, wire.decode_sync(message))
            return
        if backup is None or backup.link is not link:
            if kind == wire.LOW_DISK:
                self._low_disk_of_waiting(link, wire.decode_text(message))
            return  # what comes late from a link that was replaced
        now_ms = self._broker.clock.now_ms
        if kind == wire.ACK:
            offset = wire.decode_number(message)
            if offset > self._log.closed_end:
                raise wire.WireError(f"{backup.broker} acknowledges {offset}, the log ends at {self._log.closed_end}")
            backup.acknowledged(offset, now_ms)
        elif kind == wire.PIECE_ACK:
            self._pieces_held(backup, wire.decode_number(message))
        elif kind == wire.IDS and backup.awaiting_ids:
            self._admission.start_catch_up(backup, CatchUp(self._broker.state, wire.decode_ids(message)))
        elif kind == wire.NO:
            self._refused(backup, *wire.decode_no(message))
        elif kind == wire.LOW_DISK:
            backup.reports_disk(wire.decode_text(message))
            self._check_disks()
        else:
            raise wire.misplaced(kind, "primary")

    def _pieces_held(self, backup: RemoteBackup, count: int) -> None:
        was_finished = backup.caught_up
        for tx_id in backup.pieces_acknowledged(count, self._broker.clock.now_ms):
            self._host.happened(TrackerCleared(backup=backup.broker, tx=tx_id_text(tx_id)))
        if backup.caught_up and not was_finished:
            self._host.happened(CatchUpEnds(backup=backup.broker, took_ms=self._broker.clock.now_ms - backup.since_ms))

    def _synced(self, link: Link, sync: wire.Sync) -> None:
        founding = self.in_sync.group.founding
        if sync.founding not in (0, founding):  # its epochs are not ours, and its log has nothing in common with ours
            reason = (
                f"{link.peer} holds the log of another group of the name {self._config.group!r}: of founding {sync.founding:x}, "
                f"this primary's is {founding:x}; with an empty data directory it can join"
            )
            if self._foreign.get(link.peer) != sync.founding:  # it comes again and again
                self._foreign[link.peer] = sync.founding
                self._host.happened(LinkRefused(peer=link.peer, reason=reason))
            link.close(reason)
        elif sync.epoch_seen > self.epoch:
            self._host.step_down(f"broker {link.peer} has seen epoch {sync.epoch_seen}, this primary's is {self.epoch}")
        elif self._log.durable < self.epoch_offset:
            self._waiting_syncs.append((link, sync))  # nothing is sent under an epoch before EPOCH is fsynced
        else:
            self._admit(link, sync)

    def _admit(self, link: Link, sync: wire.Sync) -> None:
        runs: bool | None = self.absent.runs(link.peer)
        if not runs and self._broker.clock.now_ms - self._since_ms >= self._config.expected_timeout_ms:
            runs = None
        if self._fitness.stands(link, sync, recovering=self.status is BrokerStatus.RECOVERING, runs=runs):
            self._admission.synchronize(link, sync)

    def _low_disk_of_waiting(self, link: Link, low_disk: str) -> None:
        """Correct the SYNC of a backup that waits for our EPOCH: it reports a change of its disk only once."""
        self._waiting_syncs = [
            (each, attrs.evolve(sync, low_disk=low_disk) if each is link else sync)
            for each, sync in self._waiting_syncs
        ]

    def _transaction_closing(self, tx: TxBuffer) -> None:
        """prepare_ordered: a tracker for each backup that does not hold the whole tx-queue yet."""
        for backup in self.backups.values():
            if backup.tx_closes(tx):
                self._tell_trackers(backup, tx_id_text(tx.tx_id))

    def _tell_trackers(self, backup: RemoteBackup, tx: str) -> None:
        for named, queue, left in backup.readiness(self._broker.state).transactions:
            if named == tx:
                self._host.happened(TrackerAdded(backup=backup.broker, tx=tx, queue=queue, left=left))

    def _consider(self, backup: RemoteBackup) -> None:
        """A joiner: guard it when it has been sent everything, list it when it has passed the guard."""
        if backup.guard is None:
            if backup.may_be_guarded() and backup.keeps_up(self._log.closed_end):
                backup.guard_from(self._log.closed_end)
        elif backup.may_be_listed() and self._may_change_set() and self._has_asked_all():
            self.in_sync.request_change(backup.broker, True, self._broker.clock.now_ms)

    def _may_change_set(self) -> bool:
        return not (self.in_sync.busy or self.suspended)

    def _has_asked_all(self) -> bool:
        """True if every listed broker that may hold more than this one was heard or has timed out: before that no joiner is added.

        A joiner of a log that lacks acknowledged records would be one more broker that may lead without them.
        """
        if self.status is BrokerStatus.ACTIVE or self._fitness.vouched:
            return True
        now_ms = self._broker.clock.now_ms
        return all(
            backup.ever_linked or backup.silent_for(self._log, now_ms) >= self._limit_ms(backup)
            for backup in self.backups.values()
            if backup.listed
        )

    def _limit_ms(self, backup: RemoteBackup) -> int:
        """So long a backup may be silent while something is outstanding."""
        limit_ms = self._config.backup_timeout_ms
        if not backup.ever_linked:
            limit_ms = max(limit_ms, self._config.expected_timeout_ms)
        return limit_ms + backup.allowance_ms

    # -- backups refuse, fall silent, go ---------------------------------------------------------------------------------

    def _refused(self, backup: RemoteBackup, tx_id: int, prepare_offset: int, reason: str) -> None:
        """An explicit no. It counts from a listed broker, before the decision; any other cuts its link, if it changes anything.

        Of a branch it counts before it is prepared: what its transaction manager decides afterwards nobody may refuse. Until this
        broker serves it counts although DTX_PREPARE was applied here under an older epoch: who is listed and refuses has never
        acknowledged it but with a ROLLBACK, which was cut, so nobody was told prepare-ok, or the manager has said rollback since.
        """
        tx = self._broker.state.transactions.get(tx_id)
        undecided = tx is not None and tx.closed_undecided and tx.closing_offset == prepare_offset
        in_time = prepare_offset > self._stable
        if tx is not None and tx.in_doubt and self.status is BrokerStatus.RECOVERING:
            in_time = True
        if backup.listed and undecided and tx is not None and in_time:
            backup.cannot_stay(f"it refused transaction {tx_id}: {reason}")
            self._host.happened(
                TransactionRefused(
                    backup=backup.broker, tx=tx_id_text(tx_id), prepare_offset=prepare_offset, reason=reason
                )
            )
            self._broker.transactions.roll_back_closed(tx, f"broker {backup.broker} refused it: {reason}")
            self._owe_rollback(backup, tx_id)
        elif self._was_rolled_back(tx_id):
            # It was heard before, or this broker lacks the same and sends what it has: ROLLBACK is on its way to that backup, or
            # there and not known to be stable. Below the minimum it is not before that backup has joined.
            self._owe_rollback(backup, tx_id)
        elif not backup.listed:
            self._drop_link(backup, f"a no to transaction {tx_id} counts only from a listed broker; rejoin by catch-up")
        else:
            backup.cannot_stay(f"it refused transaction {tx_id} after it was decided")
            self._drop_link(backup, backup.must_leave)

    def _owe_rollback(self, backup: RemoteBackup, tx_id: int) -> None:
        """Let ROLLBACK pass without credit: a backup that has refused a transaction acknowledges nothing before it holds that."""
        tx = self._broker.state.transactions.get(tx_id)
        if tx is not None and backup.sender is not None:
            backup.sender.owes(tx.outcome_offset)

    def _was_rolled_back(self, tx_id: int) -> bool:
        state = self._broker.state
        tx = state.transactions.get(tx_id)
        if tx is not None:
            return bool(tx.outcome_offset) and tx.rolls_back
        return state.applying.outcomes.of_id(tx_id, self._broker.transactions.newest_id) is Outcome.ROLLED_BACK

    def link_lost(self, link: Link, reason: str) -> None:
        """A listed member stays in the set; a joiner starts anew when it comes back."""
        self._waiting_syncs = [waiting for waiting in self._waiting_syncs if waiting[0] is not link]
        backup = self.backups.get(link.peer)
        if backup is None or backup.link is not link:
            return
        backup.unlinked(self._broker.clock.now_ms)
        self._forget_joiner(backup)
        self._host.status_changed()

    def _drop_link(self, backup: RemoteBackup, reason: str) -> None:
        backup.dropped(reason, self._broker.clock.now_ms)
        self._forget_joiner(backup)
        self._host.status_changed()

    def _forget_joiner(self, backup: RemoteBackup) -> None:
        """Drop an unlisted backup and its guard, unless it may have been added to the set meanwhile."""
        change = self.in_sync.change
        if backup.listed or (change is not None and change.broker == backup.broker):
            return
        self.backups.pop(backup.broker, None)
        self.absent.gone(backup.broker, backup.since_ms)

    def tick(self, now_ms: int) -> None:
        """Expel who is silent or has no room; drop joiners that stall; settle lost answers."""
        self._check_disks()
        self._raise_format()
        self.in_sync.tick(now_ms, self._config.coordination_retry_ms)
        for backup in list(self.backups.values()):
            silent_ms = backup.silent_for(self._log, now_ms)
            limit_ms = self._limit_ms(backup)
            if backup.listed:
                self._consider_expelling(backup, silent_ms, limit_ms)
                self._consider_mended(backup)
            elif silent_ms >= limit_ms and backup.link is not None:
                self._drop_link(backup, f"no progress for {silent_ms} ms")
            elif backup.link is not None and now_ms >= self._explain_ms:
                backup.tell("; ".join(backup.readiness(self._broker.state).blockers()))
        if now_ms >= self._explain_ms:
            self._explain_ms = now_ms + EXPLAIN_EVERY_MS
        self._readiness_log.tick(now_ms, self._broker.clock.wall_ms)
        self._operator.tick()
        self.hand_over.tick(now_ms, suspended=self.suspended)

    def _raise_format(self) -> None:
        if self.log_format.raise_for(self.backups.values(), *self._read_by_former()):
            self._host.happened(LogFormatRaised(epoch=self.epoch, record_format=self.log_format.written))

    def _read_by_former(self) -> list[int]:
        """The format that the former primary reads, while it is to be expected: it has not left, and is brought up next."""
        former = self._former
        if former is None or former.broker in self.backups or not self.absent.runs(former.broker):
            return []
        waits = self._broker.clock.now_ms - self._since_ms < self._config.expected_timeout_ms
        return [former.newest_record_format] if waits else []

    def _consider_expelling(self, backup: RemoteBackup, silent_ms: int, limit_ms: int) -> None:
        """Expel a listed backup that must leave, that the store says is dead, or that is silent for too long."""
        change = self.in_sync.change
        if change is not None and change.broker == backup.broker:
            return  # it is on its way out, and whatever happens meanwhile, why is said
        if backup.must_leave:
            backup.to_leave(backup.must_leave)
        elif backup.link is None and backup.broker in self._dead and (backup.ever_linked or self._has_asked_all()):
            backup.to_leave("its link is lost, and the store says that it is not running")
        elif silent_ms >= limit_ms:
            backup.to_leave(f"it acknowledged nothing for {silent_ms} ms")
        else:
            backup.to_leave(backup.low_disk)
        # Who has lost what it held is no copy any more: below the minimum work waits until it has been caught up.
        may_leave = backup.lost_data or self.in_sync.may_shrink()
        if backup.leaving and may_leave and self._may_change_set():
            self.in_sync.request_change(backup.broker, False, self._broker.clock.now_ms)

    def _consider_mended(self, backup: RemoteBackup) -> None:
        """A listed backup that was damaged holds all again that this log did when it linked: it may lead."""
        lacked = self.in_sync.group.damage_of(backup.broker)
        whole = lacked and backup.link is not None and backup.acked >= backup.resumed_at > 0
        if whole and not backup.must_leave and self._may_change_set():
            self._host.happened(LogMended(broker=backup.broker, lacked=lacked))
            self.in_sync.request_mended(backup.broker, self._broker.clock.now_ms)

    # -- the store answers -----------------------------------------------------------------------------------------------

    def answered(self, request: int, answer: Answer, group: GroupState | None) -> None:
        """The answer to a change of the set, or to reading it back."""
        change = self.in_sync.change
        if not self.in_sync.answered(request, answer, group):
            return
        if group is None:
            return
        if group.epoch != self.epoch or group.primary != self._config.broker:
            self._replaced(group)
            return
        self._adopt()
        self.hand_over.settled()
        self._operator.settled()
        if change is not None and change.broker in self.backups:
            backup = self.backups[change.broker]
            if backup.link is None:
                self._forget_joiner(backup)

    def wrote_anew(self, group: GroupState, instead_of: str) -> None:
        """The store had lost the group, and holds it again, as this primary has written it.

        Args:
            group: as it was written.
            instead_of: what the store showed until then, for people.
        """
        self.in_sync.written_anew(group)
        self._host.happened(
            GroupWrittenAnew(epoch=group.epoch, version=group.version, in_sync=group.members, since=instead_of)
        )
        self._adopt()
        self.hand_over.settled()
        self._operator.settled()

    def group_changed(self, group: GroupState, brokers: dict[BrokerId, BrokerInfo]) -> None:
        """The store shows another state."""
        self._dead = {name for name, info in brokers.items() if not info.alive}
        self.known(brokers)
        if group.epoch > self.epoch:
            self._replaced(group)
            return
        if self.in_sync.observed(group):
            self._adopt()
            self.hand_over.settled()
        if self._dead:
            self.tick(self._broker.clock.now_ms)

    def known(self, brokers: dict[BrokerId, BrokerInfo]) -> None:
        """The store shows these brokers."""
        self.brokers = brokers
        self.absent.known(brokers, self._broker.clock.now_ms)

    def _replaced(self, group: GroupState) -> None:
        told = self.hand_over.replaced(group.primary)
        reason = told or f"the store is at epoch {group.epoch}, led by {group.primary}"
        self._host.step_down(reason, handed_over=bool(told))

    def happened(self, event: HaEvent) -> None:
        """A part of the primary has something to tell."""
        self._host.happened(event)

    def carry_out(self, command: str, request: CommandRequest) -> None:
        """An operator's command.

        Raises:
            CommandRefusedError: it is not done.
        """
        self._operator.carry_out(command, request)

    def _adopt(self) -> None:
        """Make the backups' ``listed`` what the store holds: only now does anything stop waiting for who has left."""
        members = set(self.in_sync.members)
        self._tell_set(members)
        for member in members:
            self.absent.listed(member)
        for broker in members - {self._config.broker} - set(self.backups):
            self.backups[broker] = RemoteBackup(broker, True, self._broker.clock.now_ms)
        for backup in list(self.backups.values()):
            if backup.broker in members and not backup.listed:
                self._listed(backup)
            elif backup.broker not in members and backup.listed:
                self._expelled(backup)
            elif not backup.listed and (bar := self.in_sync.group.bar_of(backup.broker)) is not None:
                self._drop_link(backup, bar_text(bar))
        self._check_work()
        self._host.status_changed()

    def _listed(self, backup: RemoteBackup) -> None:
        now_ms = self._broker.clock.now_ms
        if backup.guard is None:  # it has to show that it holds what is stable, like a member that returns
            backup.dropped("the store lists it, and this primary does not hold completions for it", now_ms)
        backup.enters_set(now_ms)

    def _expelled(self, backup: RemoteBackup) -> None:
        if backup.leaving:
            self.absent.expelled(backup.broker, backup.leaving)
        reason = f"expelled from the in-sync set: {backup.leaving or 'the store says so'}"
        backup.expelled(reason, self._broker.clock.now_ms)
        self._forget_joiner(backup)
        self._host.status_changed()

    def _tell_set(self, members: set[BrokerId]) -> None:
        known = {self._config.broker, *(name for name, backup in self.backups.items() if backup.listed)}
        left, joined = tuple(sorted(known - members)), tuple(sorted(members - known))
        if members != known:
            new = [self.backups.get(name) for name in joined]
            gone = [self.backups[name] for name in left if name in self.backups]
            reasons = [backup.leaving or "the store says so" for backup in gone]
            self._host.happened(
                SetChanged(
                    epoch=self.epoch,
                    in_sync=self.in_sync.members,
                    joined=joined,
                    left=left,
                    reason="; ".join(reasons),
                    lost=tuple(backup.broker for backup in gone if backup.lost_data),
                    acked=tuple(backup.most_acked if backup is not None else -1 for backup in new),
                    catching_up=tuple(backup.broker for backup in new if backup is not None and backup.lacks_pieces),
                    stable=self._log.stable,
                )
            )

    def readiness(self) -> list[BackupReadiness]:
        """Every backup this primary or the store knows, by id, and what blocks it."""
        state, dead = self._broker.state, self._dead
        rows = [attrs.evolve(each.readiness(state), running=each.broker not in dead) for each in self.backups.values()]
        rows += self.absent.readiness(self.backups, self._log.closed_end)
        if bars := {bar.broker: bar_text(bar) for bar in self.in_sync.group.barred}:
            rows = [attrs.evolve(row, barred=bars.get(row.broker, "")) for row in rows]
        return sorted(rows, key=lambda row: row.broker)

    def _check_work(self) -> None:
        """Refuse new work before it enters the log while the set is below the minimum."""
        in_sync = self.in_sync
        if in_sync.enough:
            refused = ""
        else:
            refused = (
                f"in-sync set {{{', '.join(in_sync.members)}}} is below min_insync {in_sync.group.min_insync}: "
                "nothing can be confirmed"
            )
        self._broker.refuse_work("in-sync set", refused)

    def _check_disks(self) -> None:
        """Refuse new work while a member has no room for it and the set cannot do without that member."""
        low = [
            f"{backup.broker}: {backup.low_disk}"
            for backup in self.backups.values()
            if backup.listed and backup.low_disk
        ]
        stays = self.suspended or not self.in_sync.may_shrink()
        self._broker.refuse_work(BACKUP_DISK, f"in-sync backup {'; '.join(low)}" if low and stays else "")
