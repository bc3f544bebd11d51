"""Backup: the role of every broker that does not lead. It follows the primary, and takes over when it may.

Who may be promoted is decided by the stored set alone, in the compare-and-set that raises the epoch. When to try is a
matter of speed: at once if the primary's process is plainly gone (its link was lost and its port refuses), when its lease
or session has ended otherwise. A broker that the store names as primary but that does not lead (it has restarted) tries at
once too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs

from understudy.ha.following.low_disk import LowDisk
from understudy.ha.retry_delay import RetryDelay
from understudy.ha.settings import HaSettings
from understudy.ha.showing.events import HaEvent, LogLacksRecords
from understudy.ha.status import BrokerStatus
from understudy.ha.store.coordination import Answer, BrokerId, BrokerInfo, Coordination, GroupState, bar_text
from understudy.replicator import wire
from understudy.replicator.fabric import Fabric, Link
from understudy.replicator.receiving.broker_replicator import BrokerReplicator, StableCutError


class BackupHost(Protocol):
    """Requests of a backup to the HaBroker around it."""

    def promoted(self, group: GroupState) -> None:
        """The store holds this broker as the primary of ``group.epoch``: lead."""

    def status_changed(self) -> None:
        """Something that readiness shows has changed."""

    def let_go(self, catch_up: bytes, reason: str) -> None:
        """Let go of everything that this broker holds, as the primary's CATCH_UP allows; this core ends with it."""

    def happened(self, event: HaEvent) -> None:
        """Something that an operator wants to find in the log has happened."""

    @property
    def now_ms(self) -> int:
        """Monotonic time."""


class Backup:
    """The role.

    Attributes:
        doubt: what speaks against this broker's own journal, "" for nothing (`lost_records.own_loss`). As long as it stands, and
            another listed broker may hold what is missing, this one does not campaign.
        primary_reads: the newest record format that the primary of the last link reads.
        judged: the journal has been compared with what a former life of this broker has said: no campaign comes before that.
    """

    def __init__(
        self,
        config: HaSettings,
        replicator: BrokerReplicator,
        coordination: Coordination,
        fabric: Fabric,
        host: BackupHost,
        next_request: Callable[[], int],
    ) -> None:
        self._config = config
        self._replicator = replicator
        self._coordination = coordination
        self._fabric = fabric
        self._host = host
        self._next_request = next_request
        self.group: GroupState | None = None
        self.brokers: dict[BrokerId, BrokerInfo] = {}
        self.link: Link | None = None
        self.told = ""
        self.primary_reads = 0
        self._dialing = ""
        self._dialed_epoch = 0
        self._gone_epoch = 0
        self._retry_ms = 0
        self._backoff_ms = config.reconnect_min_ms
        self._linked_ms = 0
        self._hurried = False
        self._campaign = 0
        self._campaign_from: GroupState | None = None
        self._retry = RetryDelay()
        self._campaign_not_before_ms = -1
        self._named: tuple[int, BrokerId] = (0, "")
        self._named_ms = 0
        self._mark = 0
        self._mark_retry = RetryDelay()
        self._disproof: tuple[int, str] = (0, "")
        self.doubt = ""
        self.judged = False
        self.suspended = False
        self.refused = ""
        self.disk = LowDisk(config.reconnect_max_ms)

    @property
    def campaigning(self) -> bool:
        """True while this broker's request to lead has no answer."""
        return self._campaign != 0

    # -- status -------------------------------------------------------------------------------------------------------

    @property
    def listed(self) -> bool:
        return self.group is not None and self._config.broker in self.group.members

    @property
    def status(self) -> BrokerStatus:
        if not self._replicator.linked:
            return BrokerStatus.JOINING
        # What the store showed last may be older than an expulsion: the primary of this link has to know it as listed too.
        ready = self.listed and not self._replicator.part and self.told == BrokerStatus.READY.value
        return BrokerStatus.READY if ready else BrokerStatus.CATCHUP

    @property
    def primary(self) -> BrokerId:
        """The primary, as far as this broker knows; "" if there is none."""
        return self.group.primary if self.group is not None else ""

    # -- the store ------------------------------------------------------------------------------------------------------

    def knows(self, brokers: dict[BrokerId, BrokerInfo]) -> None:
        """Note the brokers that the store shows, and do nothing yet."""
        self.brokers = brokers

    def adopt(self, group: GroupState | None) -> None:
        """Take ``group`` for the state of the group, None for none, and do nothing yet."""
        self.group = group

    def suspend(self, suspended: bool) -> None:
        """Note whether the store is out of reach, or lacks the group: no campaign then."""
        self.suspended = suspended

    def judge(self, doubt: str) -> None:
        """Note what the comparison of the journal with this broker's former claims has shown, "" for nothing."""
        self.judged = True
        self.doubt = doubt

    def group_changed(self, group: GroupState, brokers: dict[BrokerId, BrokerInfo]) -> None:
        """The store as it is."""
        before = self.group
        self.brokers = brokers
        anew = before is not None and before.founding != group.founding
        if before is not None and not anew and (group.epoch, group.version) < (before.epoch, before.version):
            self.act()  # what is shown is older than what is known
            return
        self.group = group
        self._replicator.note_forced(group.forced)
        if before is not None and before.damage_of(self._config.broker) and not group.damage_of(self._config.broker):
            self.doubt = ""  # who leads has seen that this log is whole, or an operator has decided
        if (
            anew
        ):  # the store was lost and made anew: nothing that was seen of the former group says anything of this one
            self._gone_epoch = 0
            self._dialed_epoch = 0
        if before is not None and (anew or (before.epoch, before.primary) != (group.epoch, group.primary)):
            if self._dialing != group.primary:  # who leads no more may take long not to answer
                self._dialing = ""
            self._campaign_not_before_ms = -1
            self._backoff_ms = self._config.reconnect_min_ms
            self._hurried = False
            self._retry_ms = 0
            if self.link is not None and group.epoch > self._dialed_epoch:
                self._drop_link(f"epoch {group.epoch} has begun, led by {group.primary}")
        self._note_operator(group)
        self._host.status_changed()
        self.act()

    def _note_operator(self, group: GroupState) -> None:
        """Obey an operator's decision: a successor ends its link to campaign and is given time; a barred broker ends its link."""
        named = (group.epoch, group.successor)
        if named != self._named:
            self._named = named
            self._named_ms = self._host.now_ms
        if group.successor == self._config.broker:
            self._drop_link(f"{group.primary} has handed over to {group.successor}")
        elif self.bar:
            self._drop_link(self.bar)

    # -- links ----------------------------------------------------------------------------------------------------------

    def dialed(self, link: Link) -> None:
        """The link to the primary is up: say what this broker holds."""
        if link.peer == self._dialing:
            self._dialing = ""
        if self.group is None or link.peer != self.group.primary or self._campaign or self.link is not None:
            link.close("no longer wanted")
            return
        self.link = link
        self.primary_reads = link.newest_record_format
        self.told = ""
        self.disk.linked(asks=self.keeps_away)
        self._replicator.link(link.send)
        link.send(wire.encode_sync(attrs.evolve(self._replicator.sync(), low_disk=self.disk.reason)))

    def dial_failed(self, broker: BrokerId, reason: str, gone: bool) -> None:
        """``gone``: the port refuses, so the primary's process is not there."""
        if broker != self._dialing:
            return  # another one leads since
        self._dialing = ""
        self.refused = reason
        if gone and self.group is not None:
            self._gone_epoch = self._dialed_epoch
        self._retry_ms = self._host.now_ms + self._backoff_ms
        self._backoff_ms = min(self._backoff_ms * 2, self._config.reconnect_max_ms)
        self.act()

    def take(self, link: Link, message: bytes) -> None:
        """One message of the primary."""
        if link is not self.link:
            return
        kind = message[0]
        if kind == wire.STATUS:
            self.told = wire.decode_status(message)
            self._host.status_changed()
            return
        if self.keeps_away:
            self._take_while_low(message)
            return
        was_linked = self._replicator.linked
        try:
            self._replicator.take(message)
        except StableCutError as error:
            self._disproved(str(error))
            raise
        if not was_linked and self._replicator.linked:
            self._linked_ms = self._host.now_ms
            if not self._hurried:
                self._backoff_ms = self._config.reconnect_min_ms
            self.refused = ""
            self._host.status_changed()

    def link_lost(self, link: Link, reason: str) -> None:
        if link is self.link:
            self.refused = reason
            self._forget_link()
            self._host.status_changed()
            self.act()

    def _drop_link(self, reason: str) -> None:
        if self.link is not None:
            self.link.close(reason)
            self._forget_link()

    def _forget_link(self) -> None:
        """Dial again at once, unless that has been done already and came to nothing.

        A link that was taken and closed at once, or that both ends were content with until one of them said what the other cannot
        read, would otherwise be made and ended again as fast as the machine can.
        """
        self.link = None
        self.disk.unlinked(self._host.now_ms)
        now_ms = self._retry_ms = self._host.now_ms
        linked = self._replicator.linked
        lasted = linked and now_ms - self._linked_ms >= self._config.reconnect_max_ms
        if lasted or (linked and not self._hurried):
            self._hurried = not lasted
        else:
            self._retry_ms += self._backoff_ms
            self._backoff_ms = min(self._backoff_ms * 2, self._config.reconnect_max_ms)
        self._replicator.unlink()
        self._host.status_changed()

    def disk_low(self, reason: str, room: int) -> None:
        """The disk is nearly full ("": it is not any more): a disk must not hold the group up.

        Unlisted, this broker leaves the primary and takes nothing before there is room (see :class:`LowDisk`). Listed, it goes on,
        out of its reserve, and tells the primary, which removes it from the set or, if it cannot do without, refuses new work.
        """
        self.disk.looked(reason, room)
        if self.link is not None and (self.listed or not reason):  # the disk may have been full when it linked
            self.link.send(wire.encode_low_disk(reason))
        elif reason and not self.disk.asking:
            self._drop_link(reason)

    @property
    def keeps_away(self) -> bool:
        """True if this broker is short of disk space and not listed: the group goes on without it."""
        return bool(self.disk.reason) and not self.listed

    def _take_while_low(self, message: bytes) -> None:
        """The primary answers a SYNC of a disk that is nearly full: may this broker let go of what it holds, and is it worth it?

        What it holds is no copy that counts: CATCH_UP says that it is not listed, and that its messages will be replaced.
        """
        disk = self.disk
        if message[0] == wire.CATCH_UP and disk.asking and disk.answered(wire.decode_brings(message)):
            self._host.let_go(message, f"{disk.reason}; what the group holds fits when this broker's log is gone")
            return
        self._drop_link(disk.waits_for)

    # -- deciding what to do --------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        if self.doubt and self.status is BrokerStatus.READY and self._replicator.vouched and self.group is not None:
            self.doubt = self.group.damage_of(self._config.broker)
        self.act()

    def act(self) -> None:
        """Link to the primary, or take over from one that is gone."""
        group = self.group
        if group is None or self.link is not None:
            return
        if self._campaign:
            if self._retry.is_over(self._host.now_ms, self._config.coordination_retry_ms):
                self._read_back()
            return
        if self.keeps_away and not self.disk.may_ask(self._host.now_ms):
            self.refused = self.disk.waits_for
            return
        if self.bar:
            self.refused = self.bar
            return
        if self._is_to_be_marked(group):
            self._mark_damaged(group)
        if self._may_take_over(group):
            self._consider_campaign(group)
        elif not self._dialing and self._host.now_ms >= self._retry_ms and group.primary != self._config.broker:
            info = self.brokers.get(group.primary)
            if info is not None:
                self._dialing = group.primary
                self._dialed_epoch = group.epoch
                self._fabric.dial(group.primary, info.link)

    def _may_take_over(self, group: GroupState) -> bool:
        if not self.listed or self._replicator.part or self.suspended:
            return False
        if self.wiped or not self.judged or self.waits_for_more:
            return False
        if group.successor == self._config.broker:
            return True
        if group.successor and not self._successor_is_late(group):
            return False
        if group.primary == self._config.broker or group.damage_of(group.primary) or self._disproof[0] == group.epoch:
            return True
        info = self.brokers.get(group.primary)
        if info is not None and (not info.alive or self._holds_nothing(info)):
            return True
        return self._gone_epoch == group.epoch

    def _successor_is_late(self, group: GroupState) -> bool:
        """True if the broker to which the primary has handed over cannot lead, or has not begun to in its time."""
        successor = group.successor
        info = self.brokers.get(successor)
        if successor not in group.members or group.damage_of(successor) or info is None or not info.alive:
            return True
        return self._host.now_ms - self._named_ms >= self._config.successor_wait_ms

    @property
    def handed_over_by(self) -> BrokerId:
        """The primary that had named this broker as its successor when it began to campaign; "" for none."""
        started = self._campaign_from
        return started.primary if started is not None and started.successor == self._config.broker else ""

    @property
    def bar(self) -> str:
        """The operator's order that keeps this broker out of the set, and its time; "" if there is none."""
        bar = self.group.bar_of(self._config.broker) if self.group is not None else None
        return bar_text(bar) if bar is not None else ""

    @property
    def wiped(self) -> bool:
        """Listed, and with an empty data directory: this broker holds nothing of what it is listed for, and must not lead."""
        return self.listed and self._replicator.epoch_seen == 0 and self.group is not None and self.group.epoch > 0

    @property
    def unfit(self) -> str:
        """Records that this broker's log lacks, or may lack, of those that the group has acknowledged; "" if none are known."""
        return (self.group.damage_of(self._config.broker) if self.group is not None else "") or self.doubt

    @property
    def waits_for_more(self) -> bool:
        """True if this broker is listed and must not lead: another listed broker may hold the records that its log lacks."""
        return bool(self.unfit) and self.listed and self.group is not None and self._others_may_hold_more(self.group)

    def _others_may_hold_more(self, group: GroupState) -> bool:
        """True if another listed broker may hold what this one lacks: any that does not run with an empty data directory."""
        others = [self.brokers.get(member) for member in group.members if member != self._config.broker]
        return any(info is None or not info.alive or not self._holds_nothing(info) for info in others)

    def _is_to_be_marked(self, group: GroupState) -> bool:
        """True if the store has to learn of the doubt: this process may die, and the next one find nothing odd."""
        if not self.doubt or not self.listed or self.suspended or group.damage_of(self._config.broker):
            return False
        waits = self._mark and not self._mark_retry.is_over(self._host.now_ms, self._config.coordination_retry_ms)
        return not waits and self._others_may_hold_more(group)

    def _mark_damaged(self, group: GroupState) -> None:
        me = self._config.broker
        if not self._mark:
            self._mark_retry.begin(self._host.now_ms)
            others = ", ".join(member for member in group.members if member != me)
            then = f"does not lead, and is marked as damaged in the store: another of {{{others}}} has to take over"
            self._host.happened(LogLacksRecords(damaged=me, lacks=self.doubt, then=then))
        else:
            self._mark_retry.asked_again(self._host.now_ms)
        self._mark = self._next_request()
        wanted = attrs.evolve(group, damaged=group.with_damage(me, self.doubt), version=group.version + 1)
        self._coordination.replace(self._mark, group, wanted)

    def _disproved(self, lacks: str) -> None:
        """The primary would have this broker drop what is stable. Its program is too old to have seen that by itself."""
        group = self.group
        if group is None or self._disproof[0] == group.epoch:
            return
        self._disproof = (group.epoch, lacks)
        then = "takes over" if self.listed else "keeps what it holds, and does not join: an operator decides"
        self._host.happened(LogLacksRecords(damaged=group.primary, lacks=lacks, then=f"{self._config.broker} {then}"))

    @staticmethod
    def _holds_nothing(primary: BrokerInfo) -> bool:
        """The stored primary runs, with an empty log: it came back without its data, and waits for somebody to take over."""
        return primary.status == BrokerStatus.JOINING.value and primary.position == 0

    def _consider_campaign(self, group: GroupState) -> None:
        """Brokers try one after the other, so that they seldom meet; meeting is safe."""
        now_ms = self._host.now_ms
        if self._campaign_not_before_ms < 0:
            others = [member for member in group.members if member != group.primary]
            rank = others.index(self._config.broker) if self._config.broker in others else 0
            self._campaign_not_before_ms = now_ms + rank * self._config.reconnect_min_ms
        if now_ms >= self._campaign_not_before_ms:
            self._begin_campaign(group)

    def _begin_campaign(self, group: GroupState) -> None:
        """Promotion, steps 1 to 3. Step 2, no acknowledgement of the old epoch, is that there is no link."""
        me, members, damaged = self._config.broker, group.members, group.damaged
        if self._disproof[0] == group.epoch:
            damaged = group.with_damage(group.primary, self._disproof[1])
        if self.unfit:  # no other broker may hold more: what is lost is lost
            damaged = attrs.evolve(group, damaged=damaged).with_damage(me, "")
            then = f"leads, since no other broker of {{{', '.join(members)}}} holds more: these records are lost"
            self._host.happened(LogLacksRecords(damaged=me, lacks=self.unfit, then=then))
        without = tuple(member for member in members if member != group.primary)
        info = self.brokers.get(group.primary)
        lost = group.damage_of(group.primary) or self._disproof[0] == group.epoch
        # A log that nobody has vouched for since a restart may lack what the old primary holds: that one has to be asked first.
        drops = self._replicator.vouched or lost or (info is not None and info.alive and self._holds_nothing(info))
        if drops and group.primary != me and len(without) >= group.min_insync:
            members = without
        wanted = attrs.evolve(
            group,
            epoch=group.epoch + 1,
            primary=me,
            members=members,
            version=group.version + 1,
            damaged=damaged,
            successor="",
        )
        self._campaign = self._next_request()
        self._campaign_from = group
        self._retry.begin(self._host.now_ms)
        self._coordination.replace(self._campaign, group, wanted)

    def _read_back(self) -> None:
        self._campaign = self._next_request()
        self._retry.asked_again(self._host.now_ms)
        self._coordination.read(self._campaign)

    def answered(self, request: int, answer: Answer, group: GroupState | None) -> None:
        """The answer to a campaign, or to reading it back; or to marking this broker as damaged."""
        if self._mark and request == self._mark:
            if answer is not Answer.LOST and group is not None:
                self._mark = 0
                self.group_changed(group, self._known_besides(group))
            return
        if not self._campaign or request != self._campaign:
            return
        if answer is Answer.CONFLICT and group is None:  # refused for certain, by a store that has lost the group
            self._campaign = 0
            self._campaign_not_before_ms = -1
            return
        if answer is Answer.LOST or group is None:
            self._retry.answer_lost()
            return  # read back when the time has come
        started = self._campaign_from
        self._campaign = 0
        self._campaign_not_before_ms = -1
        assert started is not None
        # An epoch that this broker has seen already was led by it in an earlier life: a campaign that began from a stale view
        # is refused then, and finds what looks like its own success.
        unused = group.epoch > self._replicator.epoch_seen
        same = group.founding == started.founding
        if same and group.primary == self._config.broker and group.epoch == started.epoch + 1 and unused:
            self.group = group
            self._host.promoted(group)
            return
        self.group_changed(group, self._known_besides(group))

    def _known_besides(self, group: GroupState) -> dict[BrokerId, BrokerInfo]:
        """The known state of the brokers, less what is older than ``group``, which this broker has just learnt.

        Its primary has written it: that it seemed dead, or empty, before is no reason to replace it. The next view of the store
        says how it is now.
        """
        info = self.brokers.get(group.primary)
        if info is None or self.group is None or (group.epoch, group.version) <= (self.group.epoch, self.group.version):
            return self.brokers
        return {**self.brokers, group.primary: attrs.evolve(info, alive=True, status="")}
