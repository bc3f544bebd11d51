"""Admission: how a backup that has linked is brought onto the primary's log: by resuming its own, or by a catch-up.

What a broker in the in-sync set holds, others count on: a catch-up, which drops and brings messages, never touches it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from understudy.broker.core.broker import Broker
from understudy.ha.leading.in_sync_set import InSyncSet
from understudy.ha.leading.log_format import LogFormat
from understudy.ha.leading.remote_backup import RemoteBackup
from understudy.ha.settings import HaSettings
from understudy.ha.showing.events import BackupResumes, CatchUpBegins, HaEvent, LinkRefused
from understudy.ha.status import BrokerStatus
from understudy.ha.store.coordination import BrokerId, bar_text
from understudy.replicator import wire
from understudy.replicator.fabric import Link
from understudy.replicator.sending.catch_up import CatchUp, bytes_to_bring
from understudy.replicator.sending.log_sender import LogSender


class AdmissionHost(Protocol):
    """Receiver of the changes and events of an admission."""

    def status_changed(self) -> None:
        """Something that readiness shows has changed."""

    def happened(self, event: HaEvent) -> None:
        """Something that an operator wants to find in the log has happened."""


class Admission:
    """A part of the primary, which owns ``backups``; what links adds a backup there that is not known yet."""

    def __init__(
        self,
        config: HaSettings,
        broker: Broker,
        epoch: int,
        in_sync: InSyncSet,
        log_format: LogFormat,
        backups: dict[BrokerId, RemoteBackup],
        host: AdmissionHost,
        proof_wanted: Callable[[], bool],
    ) -> None:
        """``proof_wanted``: the store has lost the group, and members are asked for the proof (`WrittenAnew`)."""
        self._config = config
        self._broker = broker
        self._log = broker.log
        self._epoch = epoch
        self._in_sync = in_sync
        self._log_format = log_format
        self._backups = backups
        self._host = host
        self._proof_wanted = proof_wanted

    def synchronize(self, link: Link, sync: wire.Sync) -> None:
        """A backup has linked and says in ``sync`` what it holds. It resumes if the kept log reaches it; else it is caught up.

        A listed one that cannot resume is sent away, and has to leave the set first.
        """
        log = self._log
        if not self._is_settled(link.peer):
            link.close(f"whether {link.peer} is in the in-sync set is being settled")  # its guard stands meanwhile
            return
        bar = self._in_sync.group.bar_of(link.peer)
        if bar is not None:
            link.close(bar_text(bar))
            return
        held = self._broker.state.record_format
        refusal = self._log_format.refusal(self._config.broker, link.peer, link.newest_record_format, held)
        if refusal:
            self._host.happened(LinkRefused(peer=link.peer, reason=refusal))
            link.close(refusal)
            return
        backup = self._backups.get(link.peer)
        if backup is None:
            backup = self._backups[link.peer] = RemoteBackup(link.peer, False, self._broker.clock.now_ms)
        if backup.link is not None and backup.link is not link:
            backup.link.close("replaced by a newer link")
        backup.linked(link, self._broker.clock.now_ms)
        backup.reports_disk(sync.low_disk)
        common = log.epochs.common_offset(log.closed_end, list(sync.starts), sync.end)
        continues = not sync.part and common >= sync.log_start and log.kept.reaches(common, log.closed_end)
        # Who still has its transient messages gets no refill, so the log it is sent must hold those that came after it left.
        continues = continues and (sync.fresh or log.whole_after(common))
        if backup.listed:
            if continues and common >= log.stable:
                self._resume(backup, sync, common)
            else:
                # Who was listed held all of its catch-up: if that is broken off now, its disk has lost the end of it.
                reason = f"its log ends at {sync.end}, common with ours up to {common}, stable is {log.stable}"
                backup.cannot_resume(reason, common, lost_data=common < log.stable or sync.part)
                told = f"{backup.broker} has to be removed from the in-sync set before it is caught up"
                backup.dropped(told, self._broker.clock.now_ms)
        elif sync.low_disk:  # it takes nothing now; it may let go of what it holds, if what the group holds fits then
            backup.asked_for_ids()
            group, brings = self._in_sync.group, bytes_to_bring(self._broker.state)
            link.send(wire.encode_catch_up(self._epoch, group.founding, group.forced, brings))
        elif continues and not sync.no_votes and log.whole_after(common):
            # Else a refill would bring transient messages for queues whose declaration it gets with the log, later.
            self._resume(backup, sync, common)
        else:
            backup.asked_for_ids()
            group = self._in_sync.group
            link.send(wire.encode_catch_up(self._epoch, group.founding, group.forced))
        self._host.status_changed()

    def _is_settled(self, peer: BrokerId) -> bool:
        """False if ``peer`` may not link, because a change of the set that concerns it is on its way.

        A store that has lost the group settles nothing, and its acknowledgement may complete the proof by which the group is
        written anew. A removal then counts as not done, an add as done.
        """
        change = self._in_sync.change
        if change is None or change.broker != peer:
            return True
        if not self._proof_wanted():
            return False
        backup = self._backups.get(peer)
        if backup is None or (not backup.listed and backup.guard is None):
            return False
        if not backup.listed:
            backup.counts_as_listed(self._broker.clock.now_ms)
        return True

    def _resume(self, backup: RemoteBackup, sync: wire.Sync, common: int) -> None:
        assert backup.link is not None
        refill = CatchUp(self._broker.state, {}, refill_after=common) if sync.fresh else None
        backup.resumed(self._log.closed_end, self.sender_after(common), refill)
        group = self._in_sync.group
        backup.link.send(wire.encode_resume(self._epoch, common, self._log.stable, group.founding, group.forced))
        if refill is not None:
            for message in refill.opening():
                backup.link.send(message)
        if backup.listed:
            backup.tell(BrokerStatus.READY.value)
        self._host.happened(
            BackupResumes(
                backup=backup.broker,
                after=common,
                cut=max(0, sync.end - common),
                behind=self._log.closed_end - common,
                refill=sync.fresh,
            )
        )

    def sender_after(self, offset: int) -> LogSender:
        """The sender that brings a backup the log after ``offset``.

        Raises:
            IndexError: the kept log does not reach back that far.
        """
        return LogSender(self._log, offset, self._config.link_unacknowledged_bytes)

    def start_catch_up(self, backup: RemoteBackup, catch_up: CatchUp) -> None:
        assert backup.link is not None
        backup.catch_up_begins(catch_up, self.sender_after(catch_up.base))
        for message in catch_up.opening():
            backup.link.send(message)
        left = catch_up.blockers()
        self._host.happened(
            CatchUpBegins(
                backup=backup.broker,
                base=catch_up.base,
                queues=len(left),
                messages=sum(messages for _, messages in left),
                transactions=len(catch_up.unsent_transactions),
            )
        )
