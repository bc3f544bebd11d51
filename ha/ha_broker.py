"""HaBroker: the root of the plugin in one broker process. Holds the role and passes it what happens.

A broker starts as a backup, whatever it was before, and becomes primary through a promotion (the founder of a group through
founding it). There is no way back inside one core: a primary that must not lead any more asks its host to drop the core and
begin a new one, in the same process: from the journal, or after a hand-over from what the old one holds.
"""

from __future__ import annotations

import struct
from typing import Protocol

import attrs

from understudy.broker.core.broker import Broker
from understudy.broker.core.clients.carrying import Destination
from understudy.broker.core.turn.work_refusals import DISK
from understudy.broker.errors import UnderstudyError
from understudy.broker.log.journal_gate import JournalGate, NoteFormatError
from understudy.broker.log.record import UnknownExchangeTypeError, UnknownKindError
from understudy.broker.plugin_api.plugin_commands import CommandRefusedError, CommandRequest
from understudy.ha.following.backup import Backup
from understudy.ha.following.lost_records import own_loss
from understudy.ha.following.stored_group import StoredGroup
from understudy.ha.leading.primary import FormerPrimary, Primary
from understudy.ha.settings import HaSettings
from understudy.ha.showing.events import HaEvent, LinkRefused, LogLetGo, StatusChanged, StoreHoldsGroup, StoreLacksGroup
from understudy.ha.status import BrokerStatus, since_text
from understudy.ha.store.coordination import Answer, BrokerId, BrokerInfo, Coordination, GroupState
from understudy.replicator.fabric import Fabric, Link
from understudy.replicator.receiving.broker_replicator import BrokerReplicator
from understudy.replicator.receiving.disk_claim import DiskClaim
from understudy.replicator.wire import UnknownMessageError

NEWER_PEER = (UnknownKindError, UnknownExchangeTypeError, UnknownMessageError, NoteFormatError)
"""What is wrong with a message that a newer program has sent."""
LEADING = (BrokerStatus.RECOVERING.value, BrokerStatus.ACTIVE.value)
POSITION_EVERY_MS = 1_000
"""A position that has moved is shown again after so long."""


class HaHost(Protocol):
    """Requests of HaBroker to the process around it."""

    def restart_core(self, reason: str, *, handed_over: bool = False) -> None:
        """Close clients with 320, drop this core, begin a new one. Called once, at the end of a turn.

        The new core is recovered from the journal, or with ``handed_over`` goes on with what this one holds, if that can be told
        (``core.life.continuing``).
        """

    def refuse_to_run(self, reason: str) -> None:
        """The data and the store contradict each other: end the process with this message."""

    def publish(
        self, status: BrokerStatus, position: int, blockers: str, since: str, claim: DiskClaim | None = None
    ) -> None:
        """Show the broker's status, and since when it has it, in the coordination store and elsewhere."""

    def happened(self, event: HaEvent) -> None:
        """Something that an operator wants to find in the log has happened."""


class HaBroker:
    """One broker's part in its group.

    Attributes:
        stopped: this core must do nothing more: a new one takes its place.
        since: wall-clock time at which its present status began.
        without_group: what this broker waits for as long as it knows no group.
        stored: watches that the store holds the group.
    """

    def __init__(
        self,
        config: HaSettings,
        broker: Broker,
        replicator: BrokerReplicator,
        gate: JournalGate,
        coordination: Coordination,
        fabric: Fabric,
        host: HaHost,
    ) -> None:
        self.config = config
        self.broker = broker
        self.replicator = replicator
        self._gate = gate
        self._coordination = coordination
        self._host = host
        self._requests = 0
        self._found_request = 0
        self._first_read = 0
        self.without_group = "the coordination store has not been read yet"
        self._retry_ms = 0
        self._second_look = self._second_look_ms = 0
        self._reached = True
        self._missing = self._without_store = ""
        self._not_to_found = ""
        self.stored = StoredGroup(coordination, self._next_request, config.store_place)
        self._shown: tuple[BrokerStatus, str] | None = None
        self._shown_position: tuple[int, DiskClaim | None] = (0, None)
        self._shown_ms = 0
        self._former: BrokerInfo | None = None
        self._seen_brokers = False
        log = broker.log
        self._recovered = (replicator.epoch_seen, replicator.log_start, log.end)
        self.since = ""
        self._early: dict[Link, list[bytes]] = {}
        self.stopped = ""
        self.backup = Backup(config, replicator, coordination, fabric, self, self._next_request)
        self.primary: Primary | None = None
        broker.declarations.replicate(config.replicate)
        broker.pauses.count_from(config.pause_ms)
        broker.reception.refuse(f"{config.broker} has not found a primary yet", "NOT_PRIMARY")

    def _next_request(self) -> int:
        self._requests += 1
        return self._requests

    @property
    def now_ms(self) -> int:
        return self.broker.clock.now_ms

    def start(self) -> None:
        """Look at the store."""
        self._first_read = self._next_request()
        self._retry_ms = self.now_ms + 5 * self.config.coordination_retry_ms
        self._coordination.read(self._first_read)

    # -- facts from outside ---------------------------------------------------------------------------------------------

    def group_changed(self, group: GroupState | None, brokers: dict[BrokerId, BrokerInfo]) -> None:
        """The store as it is, or was a moment ago."""
        if self.stopped:
            return
        if not self._seen_brokers:  # before this core has published anything there: what the one before it has said
            self._seen_brokers = True
            self._former = brokers.get(self.config.broker)
        if self._first_read or self._found_request:
            self.backup.knows(brokers)  # until store and journal are known to belong together, nothing is done
            return
        self.stored.noticed(self.group, group, self.now_ms)
        if group is None:
            self.backup.knows(brokers)
            if self.primary is not None:
                self.primary.known(brokers)
            return
        if self._refuse_foreign(group):
            return
        if self.primary is not None:
            self.backup.knows(brokers)
            self.primary.group_changed(group, brokers)
        else:
            self._judge_journal(group)
            self.backup.group_changed(group, brokers)
            self._show_refusal()

    def answered(self, request: int, answer: Answer, group: GroupState | None) -> None:
        """The answer to a request of this broker."""
        if self.stopped:
            return
        if request in (self._first_read, self._found_request):
            self._first_answer(request, answer, group)
        elif self.stored.asked(request):
            if self.stored.answered(answer, group):
                self._judged(group)
        elif self.primary is not None and self.primary.anew.asked(request):
            self._answered_anew(self.primary, request, answer)
        else:
            self._answered(request, answer, group)

    def _answered(self, request: int, answer: Answer, group: GroupState | None) -> None:
        """The answer to a question of the role. What a store says that has lost the group is not believed."""
        if answer is not Answer.LOST and self.stored.noticed(self.group, group, self.now_ms):
            group = None
        if self.primary is None:
            self.backup.answered(request, answer, group)
        elif request == self._second_look:
            self._looked_again(self.primary, group)
        else:
            self.primary.answered(request, answer, group)

    def _first_answer(self, request: int, answer: Answer, group: GroupState | None) -> None:
        """Before anything else: do store and journal belong together?"""
        if answer is Answer.LOST:
            self.without_group = "the coordination store could not be read"
            self._retry_ms = self.now_ms + self.config.coordination_retry_ms
            return
        log = self.broker.log
        epoch_seen = self.replicator.epoch_seen
        of_nobody = log.end > 0 and not self.replicator.of_a_group
        if (
            not of_nobody
            and (group.epoch if group is not None else 0) < epoch_seen
            and self._follows_without_group(group)
        ):
            return
        if group is None or (of_nobody and not self._is_base_of(group)):
            if of_nobody:
                joins = (
                    ""
                    if group is None
                    else ", and all that the group has; with an empty data directory this broker joins"
                )
                self._host.refuse_to_run(
                    f"this broker's journal was written without the ha plugin and belongs to no group: `understudy promote "
                    f"--unclean --yes` makes it the base of group {self.config.group!r}, and loses nothing of it{joins}"
                )
            elif log.end or epoch_seen:
                self._host.refuse_to_run(self._knows_less(None))
            else:
                self._wait_or_found(request, answer)
            return
        if group.epoch < epoch_seen:
            self._host.refuse_to_run(self._knows_less(group))
            return
        if self._refuse_foreign(group):
            return
        self._retry_ms = 0
        # Its own founding, whose answer was lost or after which it died before EPOCH was on the disk, is finished now.
        founded = self.replicator.founds and not epoch_seen and group.epoch == 1 and self._founded_here(group)
        self._first_read = self._found_request = 0
        if founded:
            self.backup.adopt(group)
            self.promoted(group)
        else:
            if self._seen_brokers:
                self._judge_journal(group)
            self.backup.group_changed(group, self.backup.brokers)

    def _follows_without_group(self, shown: GroupState | None) -> bool:
        """The store has lost what this journal has seen. Follow a primary that runs, without a part in the set.

        That primary may write the group anew, and needs the acknowledgement of each member. Like a broker with an old view of the
        store this one links to it, and is fenced or fences it by the epochs that both have seen. It cannot campaign.

        Returns:
            Whether there is a primary, or the brokers are not known yet; then the store is asked again.
        """
        if not self._seen_brokers:
            self._retry_ms = self.now_ms + self.config.coordination_retry_ms
            return True
        leader = self._leading_broker()
        if leader is None:
            return False
        self._without_store = self._knows_less(shown)
        self._first_read = self._found_request = self._retry_ms = 0
        self.backup.suspend(True)
        self.backup.adopt(
            GroupState(
                epoch=self.replicator.epoch_seen,
                primary=leader,
                members=(),
                version=0,
                min_insync=self.config.min_insync,
                founding=self.replicator.founding,
            )
        )
        self.stored.noticed(self.backup.group, shown, self.now_ms)
        return True

    def _leading_broker(self) -> BrokerId | None:
        """Another broker that shows itself as the primary."""
        others = [info for info in self.backup.brokers.values() if info.broker != self.config.broker and info.alive]
        return next((info.broker for info in others if info.status in LEADING), None)

    def _follow_or_refuse(self) -> None:
        """While the store lacks what this journal has seen: with no primary left, this broker is of no use to anybody."""
        leader, group = self._leading_broker(), self.backup.group
        if self.backup.link is not None or group is None:
            return
        if leader is None:
            self.stopped = "the store knows less than the journal"
            self.backup.adopt(None)
            self._host.refuse_to_run(self._without_store)
        elif leader != group.primary:
            # No store has held such a state, so nothing is listed in it: this broker does not show itself as ready.
            self.backup.adopt(attrs.evolve(group, primary=leader, members=(), version=0))

    def _knows_less(self, shown: GroupState | None) -> str:
        """Why this broker refuses to run with such a store."""
        known = f"epoch {shown.epoch}" if shown is not None else "no epoch"
        return (
            f"the store knows {known} of group {self.config.group!r}, this broker's journal has seen epoch "
            f"{self.replicator.epoch_seen}: {self._way_out}"
        )

    def _wait_or_found(self, request: int, answer: Answer) -> None:
        """The store holds no group, and this broker nothing of one: found it, or wait until another broker does."""
        if request == self._found_request and answer is Answer.CONFLICT:
            self._not_to_found = (
                f"the coordination store has lost the group: {self.config.store_place} is not there, and the "
                "store shows brokers that hold a part of it: nothing is founded in its place"
            )
        elif self.config.founds and request == self._first_read:
            self._found()
            return
        waits = f"waits until a broker with ha.found = true founds group {self.config.group!r}"
        self.without_group = self._not_to_found or waits
        self._retry_ms = self.now_ms + self.config.coordination_retry_ms

    def _found(self) -> None:
        self.without_group = self._not_to_found or f"founds group {self.config.group!r}"
        self.replicator.note_founding(1 + int.from_bytes(self.broker.random_bytes(8)) % ((1 << 63) - 1))
        self._first_read = 0
        self._retry_ms = self.now_ms + 5 * self.config.coordination_retry_ms
        self._found_request = self._next_request()
        founding = GroupState(
            epoch=1,
            primary=self.config.broker,
            members=(self.config.broker,),
            version=1,
            min_insync=self.config.min_insync,
            founding=self.replicator.founding,
        )
        self._coordination.found(self._found_request, founding)

    def _judge_journal(self, group: GroupState) -> None:
        """Once: does the recovered journal hold what it should? Only of a listed broker others believe that it does."""
        if not self.backup.judged:
            doubt, replicator = "", self.replicator
            if replicator.repaired and self._is_base_of(group) and group.forced == group.epoch:
                replicator.lead_repaired()
            if self.config.broker in group.members and replicator.epoch_seen:
                claim = self._former.claim if self._former is not None else None
                doubt = own_loss(replicator.part, claim, *self._recovered, repaired=replicator.repaired)
            self.backup.judge(doubt)

    @property
    def _way_out(self) -> str:
        """The advice to an operator where the store knows less than this journal."""
        if self.broker.log.end:
            return "`understudy promote --unclean` repairs that, and may lose transactions"
        return "it holds nothing else, so nothing is lost with it: with an empty data directory this broker joins, or founds"

    def _is_base_of(self, group: GroupState) -> bool:
        """True if an operator has made this broker the base of the group: no other broker has anything of it yet."""
        me = self.config.broker
        return group.primary == me and group.members == (me,) and group.epoch > self.broker.log.epochs.newest

    def _founded_here(self, group: GroupState) -> bool:
        return group.primary == self.config.broker and group.founding == self.replicator.founding

    def _refuse_foreign(self, group: GroupState) -> bool:
        """Refuse to run, if the store holds a group that was founded anew since this journal was written."""
        replicator = self.replicator
        if not replicator.is_foreign(group.founding):
            replicator.belongs_to(group.founding)
            self.broker.reception.founded_as(f"{group.founding:x}")
            return False
        self.stopped = "the group was founded anew"
        self.broker.role.step_back()  # the process ends in a moment, and says nothing until then
        self._host.refuse_to_run(
            f"group {self.config.group!r} was founded anew: the store holds founding {group.founding:x}, this broker's journal "
            f"belongs to founding {replicator.founding:x}, and nothing of it is in the group: with an empty data directory this "
            "broker joins; `understudy promote --unclean` makes it the base of the group instead"
        )
        return True

    # -- a store that has lost the group ----------------------------------------------------------------------------------

    def _judged(self, group: GroupState | None) -> None:
        """The store was read: does it hold the group that this broker knows?"""
        stored, primary = self.stored, self.primary
        if stored.missing:
            if not self._missing:
                self.happened(StoreLacksGroup(missing=stored.missing))
            self._missing = stored.missing
            self.backup.suspend(True)
            if primary is not None:
                primary.suspend()
                primary.anew.begin(stored.shown)
            return
        assert group is not None
        self._found_again(group)
        if self._refuse_foreign(group):
            return
        self.backup.suspend(not self._reached)
        if primary is None:
            self._without_store = ""
            self._judge_journal(group)
            self.backup.group_changed(group, self.backup.brokers)
            return
        primary.anew.end()
        if self._reached:
            self._leads_on(primary, group)

    def _found_again(self, group: GroupState) -> None:
        if self._missing:
            self._missing = ""
            self.happened(StoreHoldsGroup(epoch=group.epoch, version=group.version))

    def _answered_anew(self, primary: Primary, request: int, answer: Answer) -> None:
        written = primary.anew.answered(request, answer)
        if written is None:
            self.stored.ask(self.group, self.now_ms)
            return
        primary.wrote_anew(written, self.stored.missing)
        self.stored.ask(written, self.now_ms)

    @property
    def store_trouble(self) -> str:
        """The fault of a store that answers, and what the group waits for; "" for none."""
        missing, primary = self.stored.missing, self.primary
        why_not = primary.anew.why_not if primary is not None and missing else ""
        return f"{missing}; {why_not}" if why_not else missing

    def coordination_lost(self) -> None:
        self._reached = False
        self.backup.suspend(True)
        self._second_look = 0
        if self.primary is not None:
            self.primary.store_seen(suspended=True, reached=False)

    def coordination_regained(self) -> None:
        """A primary goes on when it has read that it still leads: alone in its set it has nobody else who would tell it."""
        self._reached = True
        self.backup.suspend(bool(self.stored.missing))
        if self.stored.missing:
            self.stored.ask(self.group, self.now_ms)
        elif self.primary is not None:
            self._look_again()
        elif self._first_read and not self.stopped:
            self.start()  # a broker that starts before its session stands has asked in vain

    def _look_again(self) -> None:
        self._second_look = self._next_request()
        self._second_look_ms = self.now_ms + 5 * self.config.coordination_retry_ms
        self._coordination.read(self._second_look)

    def _looked_again(self, primary: Primary, group: GroupState | None) -> None:
        if group is None:
            return
        self._second_look = 0
        if not self._refuse_foreign(group):
            self._leads_on(primary, group)

    def _leads_on(self, primary: Primary, group: GroupState) -> None:
        """The store has just been read: ``group`` is what it holds."""
        primary.group_changed(group, self.backup.brokers)
        if not self.stopped and (group.epoch, group.primary) == (primary.epoch, self.config.broker):
            primary.store_seen(suspended=False, reached=self._reached)

    def disk_low(self, reason: str, room: int) -> None:
        """The disk is nearly full ("": it is not any more). A primary refuses new work; a backup says so, and leaves if it may.

        A backup notes it for the case that it is promoted. ``room``: see ``BrokerNode.disk_low``.
        """
        if not self.stopped:
            self.broker.refuse_work(DISK, reason)
            self.backup.disk_low(reason, room)

    def link_accepted(self, link: Link) -> None:
        """Another broker has linked to this one; it says SYNC if it takes this one for the primary."""
        if not self.stopped and self.primary is None and self.backup.campaigning:
            self._early[link] = []  # the others may know of our promotion before we do
        elif self.stopped or self.primary is None:
            link.close(f"{self.config.broker} is not the primary")

    def dialed(self, link: Link) -> None:
        if self.stopped or self.primary is not None:
            link.close("no longer wanted")
        else:
            self.backup.dialed(link)

    def dial_failed(self, broker: BrokerId, reason: str, gone: bool) -> None:
        if not self.stopped and self.primary is None:
            self.backup.dial_failed(broker, reason, gone)

    def link_message(self, link: Link, message: bytes) -> bool:
        """One message of another broker. A bad one closes its link, and no other link is touched.

        Returns:
            Whether a turn has to be ended for it.
        """
        if self.stopped:
            return True
        try:
            if link in self._early:
                self._early[link].append(message)
            elif self.primary is not None:
                self.primary.take(link, message)
            else:
                self.backup.take(link, message)
        except (UnderstudyError, struct.error, ValueError, IndexError, OverflowError) as error:
            reason = f"{type(error).__name__}: {error}"
            if isinstance(error, NEWER_PEER):
                reason = (
                    f"{self.config.broker} cannot read what {link.peer} sends: {error}. Upgrade {self.config.broker} "
                    "(the backups first, the primary last)"
                )
            self.happened(LinkRefused(peer=link.peer, reason=reason))
            link.close(reason)
            self.link_lost(link, reason)
        return self.primary is None or self.primary.due_after(message)

    def link_lost(self, link: Link, reason: str) -> None:
        if self.stopped or self._early.pop(link, None) is not None:
            return
        if self.primary is not None:
            self.primary.link_lost(link, reason)
        else:
            self.backup.link_lost(link, reason)

    def durable(self) -> None:
        """More of the journal is on disk."""
        if self.stopped:
            return
        if self.primary is None:
            self.replicator.durable()
        else:
            self.broker.durable(self._gate.durable_offset)

    def tick(self, now_ms: int) -> None:
        if self.stopped:
            return
        if self._retry_ms and now_ms >= self._retry_ms and (self._first_read or self._found_request):
            self._retry_ms = 0
            self._found_request = 0
            self.start()
        self.stored.tick(self.group, now_ms, self.config.coordination_retry_ms)
        if self.primary is not None:
            if self._second_look and now_ms >= self._second_look_ms:
                self._look_again()  # the answer is lost
            self.primary.tick(now_ms)
        else:
            if self._without_store and self.stored.missing:
                self._follow_or_refuse()
            self.backup.tick(now_ms)
            self._refuse_early()
        self.status_changed()

    def end_turn(self, flush: bool) -> bool:
        """After the broker's own end of turn: links are served. Returns whether a stable position is still to be told."""
        if self.stopped or self.primary is None:
            return False
        return self.primary.end_turn(flush)

    def _refuse_early(self) -> None:
        """Whoever linked to a campaign that came to nothing looks elsewhere."""
        if self._early and not self.backup.campaigning:
            early, self._early = self._early, {}
            for link in early:
                link.close(f"{self.config.broker} is not the primary")

    def carry_out(self, command: str, request: CommandRequest) -> None:
        """An operator's command, one of `operators.commands.COMMANDS`.

        Raises:
            CommandRefusedError: it is not done.
        """
        if self.stopped or self.primary is None:
            raise CommandRefusedError(f"{self.config.broker} does not lead")
        self.primary.carry_out(command, request)

    # -- roles ----------------------------------------------------------------------------------------------------------

    def promoted(self, group: GroupState) -> None:
        """The store holds this broker as the primary of ``group.epoch``."""
        replicator = self.replicator
        replicator.belongs_to(group.founding)
        self.broker.reception.founded_as(f"{group.founding:x}")
        self.broker.reception.served_by(None)
        # Durable with the EPOCH record, before anything is said under it; and before the log is cut: see `DiskClaim`.
        replicator.note_group(group.epoch)
        replicator.cut_refused()
        no_votes = replicator.standing_no_votes()
        transients_lost = replicator.lacks_transients
        replicator.unlink()
        replicator.vote_no_more()
        former = self.backup.handed_over_by
        self.primary = Primary(
            self.config,
            self.broker,
            self._coordination,
            group,
            self,
            self._next_request,
            replicator.vouched,
            FormerPrimary(broker=former, newest_record_format=self.backup.primary_reads) if former else None,
        )
        self.primary.store_seen(suspended=self.backup.suspended, reached=self._reached)
        self.primary.known(self.backup.brokers)
        self.primary.begin(no_votes, transients_lost)
        early, self._early = self._early, {}
        for link, messages in early.items():
            for message in messages:
                self.link_message(link, message)
        self.status_changed()

    def let_go(self, catch_up: bytes, reason: str) -> None:
        """This broker, which is not listed, lets go of all that it holds, to have room for what the group holds."""
        self.replicator.begin_anew(catch_up)
        self.happened(LogLetGo(end=self.broker.log.end, reason=reason))
        self.step_down(reason)

    def step_down(self, reason: str, *, handed_over: bool = False) -> None:
        """This core must do nothing more; a new one takes its place. It answers nothing from here on.

        ``handed_over``: this core knows all that the new one has to hold; else the journal says it.
        """
        if not self.stopped:
            self.stopped = reason
            self.broker.role.step_back()
            self._host.restart_core(reason, handed_over=handed_over)

    # -- showing --------------------------------------------------------------------------------------------------------

    @property
    def status(self) -> BrokerStatus:
        return self.primary.status if self.primary is not None else self.backup.status

    @property
    def group(self) -> GroupState | None:
        return self.primary.in_sync.group if self.primary is not None else self.backup.group

    def blockers(self) -> list[str]:
        """Why this broker is not ready or active; empty if it is."""
        if self.primary is not None:
            return self._primary_blockers(self.primary)
        backup = self.backup
        if backup.status is BrokerStatus.READY:
            return []
        if backup.bar:
            return [backup.bar]
        if backup.group is None:
            return [self.without_group]
        if not self.replicator.linked:
            missing = [self.stored.missing] if self.stored.missing else []
            return [self._unlinked_because(backup, backup.group), *missing]
        if backup.told and backup.told != BrokerStatus.READY.value:
            return [backup.told]
        return ["catching up" if self.replicator.part else "waits to be added to the in-sync set"]

    def _unlinked_because(self, backup: Backup, group: GroupState) -> str:
        """Why this broker neither leads nor has a primary."""
        me, members = self.config.broker, ", ".join(group.members)
        if backup.wiped and backup.primary == me:
            return (
                f"its data directory is empty, and the store has it as primary of epoch {group.epoch}: "
                f"another of {{{members}}} has to take over"
            )
        if backup.waits_for_more and (backup.primary == me or group.damage_of(backup.primary)):
            others = ", ".join(member for member in group.members if member != me)
            return (
                f"{backup.unfit}: it does not lead, and waits for one of {{{others}}} to take over; if none of them comes "
                "back, understudy promote --unclean makes this broker the base, without these records"
            )
        waits = f"primary {backup.primary} is not reached"
        if not backup.listed:
            unlisted = f"not in the in-sync set {{{members}}}"
            if backup.keeps_away:
                return f"{unlisted}: {backup.disk.waits_for}"
            waits += f"; {unlisted}"
        return waits + (f": {backup.refused}" if backup.refused else "")

    @staticmethod
    def _primary_blockers(primary: Primary) -> list[str]:
        if primary.status is BrokerStatus.ACTIVE:
            return []
        behind = [b.broker for b in primary.backups.values() if b.listed and b.acked < primary.epoch_offset]
        found = [f"waits for {broker} to acknowledge epoch {primary.epoch}" for broker in behind]
        if not primary.in_sync.enough:
            found.append(f"in-sync set is below min_insync {primary.in_sync.group.min_insync}")
        return found or [f"waits for the start of epoch {primary.epoch} to be stable"]

    def status_changed(self) -> None:
        """Show status and blockers if they are not what was shown last, and from time to time a position that is not."""
        blockers = "; ".join(self.blockers())
        shown = (self.status, blockers)
        end, claim = self.broker.log.end, self._claim
        position = (end, claim)
        moved = position != self._shown_position and self.now_ms - self._shown_ms >= POSITION_EVERY_MS
        if self._shown is None or shown[0] is not self._shown[0]:
            self.since = since_text(self.broker.clock.wall_ms)
            self._tell_status(blockers)
        if shown != self._shown or moved:
            self._shown = shown
            self._shown_position = position
            self._shown_ms = self.now_ms
            self._host.publish(self.status, end, blockers, self.since, claim)
        if self.primary is None:
            self._show_refusal()

    @property
    def _claim(self) -> DiskClaim | None:
        """The records that this broker's disk holds for certain, for a later life to be compared with."""
        primary = self.primary
        if primary is not None:
            durable = self.broker.log.durable
            return (
                DiskClaim(primary.epoch, self.replicator.log_start, durable)
                if durable >= primary.epoch_offset
                else None
            )
        self.replicator.look_at_claim()
        return self.replicator.claim

    def _tell_status(self, blockers: str) -> None:
        group = self.group
        self.happened(
            StatusChanged(
                status=self.status.value,
                was=self._shown[0].value if self._shown is not None else "",
                epoch=group.epoch if group is not None else self.replicator.epoch_seen,
                primary=group.primary if group is not None else "",
                blockers=blockers,
                listed=group is not None and self.config.broker in group.members,
                stable=self.broker.log.stable,
            )
        )

    def happened(self, event: HaEvent) -> None:
        self._host.happened(event)

    def _show_refusal(self) -> None:
        backup = self.backup
        primary = backup.brokers.get(backup.primary)
        successor = backup.brokers.get(backup.group.successor) if backup.group is not None else None
        leads: BrokerInfo | None = None
        if successor is not None and successor.broker != self.config.broker:  # it leads in a moment
            leads = successor
        elif primary is not None and backup.primary != self.config.broker:
            leads = primary
        self.broker.reception.served_by(Destination(leads.broker, leads.link) if leads is not None else None)
        where = f"primary is amqp://{leads.amqp}" if leads is not None else "there is no primary at the moment"
        self.broker.reception.refuse(f"{self.config.broker} is a backup; {where}")
