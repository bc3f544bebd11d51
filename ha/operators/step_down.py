"""StepDown: how a primary hands over to a backup that an operator has chosen, or that is the most complete.

A part of the primary. Phases, in order; each may only go on to the next, from *frozen* and *naming* back to *draining* or
*frozen*, or end in a refusal. Clients notice nothing before *draining*:

=========  ==============================================  ====================================================
phase      what the primary does                           it ends when
=========  ==============================================  ====================================================
asking     writes the group into the store as it is        the store has answered: it can name a successor, too
draining   refuses new work, answers what is under way     all of the log is answered, and on the successor's disk
frozen     closes no batch: the log does not grow          the same is true of all that was ever sent
naming     writes the successor into the store             the store has answered
named      has answered the operator                       the turn is over: this core is dropped
=========  ==============================================  ====================================================

The rule that this is for: when the store names a successor, `acked(successor) >= closed_end` of the primary, so nothing that was
sent to any broker is cut. What clients were told is safe without that rule: a successor is a member of the in-sync set.

Frozen comes before naming, because a group under load is never at rest: the acknowledgements of consumers go on. What is
appended while the log is frozen was answered to nobody; it is lost with this core, or goes on if the step-down comes to nothing.

Asking is a write, because a read proves less: a server of ZooKeeper answers reads for a while after it has lost its quorum.

If the drain takes too long, or the successor or the store is lost, the primary goes on to lead and tells the operator why. A
write whose answer is lost keeps the in-sync set busy until it is settled (`in_sync_set.py`); should the store name the successor
then, the primary steps down after all.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, Protocol

from understudy.broker.core.broker import Broker
from understudy.broker.plugin_api.plugin_commands import CommandRefusedError, CommandRequest
from understudy.ha.leading.in_sync_set import InSyncSet
from understudy.ha.leading.remote_backup import RemoteBackup
from understudy.ha.settings import HaSettings
from understudy.ha.showing.events import HaEvent, StepDownBegins, StepDownFails
from understudy.ha.store.coordination import BrokerId, BrokerInfo

CAUSE: Final = "step-down"
"""Of refusing new work."""
STORE_LIMIT_MS: Final = 2_000
"""So long the store may take to answer the first write, and, once it is known to be lost, the one that names the successor."""


class Phase(Enum):
    """Of a step-down; IDLE: none is under way."""

    IDLE = "idle"
    ASKING = "asking"
    DRAINING = "draining"
    FROZEN = "frozen"
    NAMING = "naming"
    NAMED = "named"


class StepDownHost(Protocol):
    """Requests of a step-down to the HaBroker around it."""

    def step_down(self, reason: str, *, handed_over: bool = False) -> None:
        """This broker must not lead any more. ``handed_over``: all that it has sent is applied here."""

    def happened(self, event: HaEvent) -> None:
        """Something that an operator wants to find in the log has happened."""


class StepDown:
    """Of one primary; used by one operator at a time.

    Attributes:
        phase: where it is.
        successor: to whom it hands over; "" in phase IDLE.
    """

    def __init__(
        self,
        config: HaSettings,
        broker: Broker,
        in_sync: InSyncSet,
        backups: Mapping[BrokerId, RemoteBackup],
        host: StepDownHost,
    ) -> None:
        self._config = config
        self._broker = broker
        self._log = broker.log
        self._in_sync = in_sync
        self._backups = backups
        self._host = host
        self.phase = Phase.IDLE
        self.successor: BrokerId = ""
        self._address = ""
        self._asked = False
        self._request: CommandRequest | None = None
        self._drain_to = -1
        self._since_ms = self._naming_ms = 0

    # -- choosing -------------------------------------------------------------------------------------------------------

    def successor_of_choice(self, wanted: BrokerId, brokers: Mapping[BrokerId, BrokerInfo]) -> BrokerId:
        """``wanted``, or without one the backup that holds the most of the log.

        Args:
            wanted: a broker's id, "" for the best.
            brokers: all that the store knows.

        Raises:
            CommandRefusedError: that broker cannot lead now, or no broker can, and what each of them lacks.
        """
        me = self._config.broker
        if wanted == me:
            raise CommandRefusedError(f"{me} leads now: it can hand over to another broker only")
        known = sorted({*brokers, *self._backups, *self._in_sync.members} - {me})
        if wanted and wanted not in known:
            raise CommandRefusedError(
                f"there is no broker {wanted!r:.80} in group {self._config.group!r}: its brokers are "
                f"{', '.join(sorted([me, *known]))}"
            )
        lacks = {name: self._lacks(name, brokers.get(name)) for name in ([wanted] if wanted else known)}
        fit = [name for name, lack in lacks.items() if not lack]
        if not fit:
            told = "; ".join(f"{name} {lack}" for name, lack in lacks.items())
            raise CommandRefusedError(
                f"{told}: it cannot lead now"
                if wanted
                else f"no backup can lead now: {told or 'there is no other broker'}"
            )
        return min(fit, key=lambda name: (-self._backups[name].acked, name))

    def _lacks(self, name: BrokerId, info: BrokerInfo | None) -> str:
        """The reason why the broker cannot lead, "" for none."""
        group, backup = self._in_sync.group, self._backups.get(name)
        if group.bar_of(name) is not None:
            return f"is barred (understudy admit {name})"
        if lack := group.damage_of(name):
            return f"must not lead: {lack}"
        row = backup.readiness(self._broker.state) if backup is not None else None
        blockers = row.blockers() if row is not None else ["it is not linked"]
        if name not in group.members:
            return f"is not in the in-sync set {{{', '.join(group.members)}}}: {'; '.join(blockers) or 'it joins'}"
        if row is None or not row.is_ready:
            return f"is not ready: {'; '.join(blockers)}"
        if info is None or not info.alive:
            return "does not reach the coordination store"
        return ""

    # -- the way there --------------------------------------------------------------------------------------------------

    def begin(self, successor: BrokerId, info: BrokerInfo | None, request: CommandRequest) -> None:
        """Start to hand over to ``successor``, if the store answers; the answer to ``request`` comes when that is done.

        Raises:
            CommandRefusedError: a step-down is under way.
        """
        if self.phase is not Phase.IDLE:
            raise CommandRefusedError(f"{self._config.broker} is handing over to {self.successor} already")
        self.successor = successor
        self._address = f"amqp://{info.amqp}" if info is not None else ""
        self._request = request
        self._since_ms = self._broker.clock.now_ms
        self._asked = False
        self.phase = Phase.ASKING

    def _ask(self) -> None:
        """Go on as far as the store has answered."""
        if not self._asked and not self._in_sync.busy:
            self._asked = True
            self._in_sync.request_nothing(self._broker.clock.now_ms)
        elif self._asked and self._in_sync.uncertain:
            self._fail("is not named: the coordination store does not answer")

    def _begin_draining(self) -> None:
        """The store has answered: from here on clients wait."""
        self._since_ms = self._broker.clock.now_ms
        self._drain()
        by = self._request.user if self._request is not None else ""
        self._host.happened(StepDownBegins(successor=self.successor, by=by))
        text = f"{self._config.broker} is handing over to {self.successor} at {self._address}"
        self._broker.refuse_work(CAUSE, text)
        self._broker.reception.refuse(text)

    def _drain(self) -> None:
        self.phase = Phase.DRAINING
        self._broker.transactions.coordinator.hurry()
        self._drain_to = -1  # the commits of this turn are not in the log yet
        self._broker.batch.thaw()

    def end_turn(self) -> None:
        """After each turn of the primary: go as far as possible."""
        if self.phase is Phase.IDLE:
            return
        if self.phase is Phase.NAMED:
            self._host.step_down(self._handed_over, handed_over=True)
            return
        backup = self._backups.get(self.successor)
        lost = self._lost(backup)
        if lost and self.phase is not Phase.NAMING:
            self._fail(lost)
        elif self.phase is Phase.ASKING:
            self._ask()
        elif self.phase is Phase.DRAINING:
            if self._drain_to < 0 and not self._broker.transactions.coordinator.waiting():
                self._drain_to = self._log.end
            if 0 <= self._drain_to <= self._held_everywhere(backup) and self._all_linked():
                self.phase = Phase.FROZEN
                self._broker.batch.freeze()
        if self.phase is Phase.FROZEN:
            self._consider_naming(backup)

    def _consider_naming(self, backup: RemoteBackup | None) -> None:
        if any(each.must_leave for each in self._backups.values() if each.listed):
            self._drain()  # a refused transaction ends with a ROLLBACK, which has to go out
        elif self._held_everywhere(backup) >= self._log.closed_end and not self._in_sync.busy:
            self.phase = Phase.NAMING
            self._naming_ms = self._broker.clock.now_ms
            self._in_sync.request_successor(self.successor, self._broker.clock.now_ms)

    def _held_everywhere(self, backup: RemoteBackup | None) -> int:
        """The offset up to which the log is answered here and on the disk of the successor."""
        return min(self._log.applied, backup.acked) if backup is not None else -1

    def _all_linked(self) -> bool:
        """True if every backup in the set is linked: the successor would wait for an absent one, or expel it, before it serves."""
        return all(each.link is not None for each in self._backups.values() if each.listed)

    @staticmethod
    def _lost(backup: RemoteBackup | None) -> str:
        """Why the successor cannot lead any more, "" if it can."""
        if backup is None or not backup.listed:
            return "has left the in-sync set"
        if backup.link is None:
            return "has lost its link"
        return f"is to leave the in-sync set: {backup.must_leave}" if backup.must_leave else ""

    def tick(self, now_ms: int, *, suspended: bool) -> None:
        """Give up what takes too long: twice the time after which a silent member of the set is expelled.

        Args:
            now_ms: the monotonic clock.
            suspended: the store is not reached. No successor can be named then; a write that is under way may have named it.
        """
        took_ms = now_ms - self._since_ms
        if suspended and self.phase in (Phase.ASKING, Phase.DRAINING, Phase.FROZEN):
            self._fail("is not named: the coordination store is not reached")
        elif self.phase is Phase.ASKING and took_ms >= STORE_LIMIT_MS:
            self._fail(f"is not named: the coordination store has not answered for {took_ms} ms")
        elif suspended and self.phase is Phase.NAMING and now_ms - self._naming_ms >= STORE_LIMIT_MS:
            self._fail("may be named, and leads then: the coordination store is not reached")
        elif self.phase not in (Phase.IDLE, Phase.NAMED) and took_ms >= 2 * self._config.backup_timeout_ms:
            self._fail(f"is not the primary after {took_ms} ms of {self.phase.value}")

    def settled(self) -> None:
        """The store has answered a change of the group, which is of this epoch and primary still, and may name a successor."""
        named = self._in_sync.group.successor
        if named:
            self._named(named)
        elif self.phase is Phase.ASKING and self._asked:
            self._begin_draining()
        elif self.phase is Phase.NAMING:
            self.phase = Phase.FROZEN  # another change was quicker; once more, with what the store holds now

    def _named(self, successor: BrokerId) -> None:
        request, self._request = self._request, None
        if self.phase is not Phase.NAMING or successor != self.successor:
            self._host.step_down(f"the store names {successor} as successor of {self._config.broker}")
            return
        self.phase = Phase.NAMED
        if request is not None:
            request.answer(
                {
                    "broker": self._config.broker,
                    "epoch": self._broker.role.epoch,
                    "successor": successor,
                    "amqp": self._address,
                    "drained_ms": self._broker.clock.now_ms - self._since_ms,
                }
            )

    @property
    def named(self) -> BrokerId:
        """The successor that the store is known to name, "" as long as it is not."""
        return self.successor if self.phase is Phase.NAMED else ""

    def replaced(self, primary: BrokerId) -> str:
        """Why this core ends when the store shows that ``primary`` leads a later epoch, "" if not by this step-down."""
        named = self.phase in (Phase.NAMING, Phase.NAMED) and primary == self.successor
        return self._handed_over if named else ""

    @property
    def _handed_over(self) -> str:
        return f"{self._config.broker} has handed over to {self.successor}; primary is {self._address}"

    def _fail(self, reason: str) -> None:
        """Go on to lead; the operator is told."""
        request, self._request = self._request, None
        text = f"{self.successor} {reason}; {self._config.broker} leads on"
        began = self.phase is not Phase.ASKING
        self.phase = Phase.IDLE
        self.successor = ""
        broker = self._broker
        broker.batch.thaw()
        broker.transactions.coordinator.withhold_again()
        broker.reception.admit()
        broker.refuse_work(CAUSE, "")
        if began:
            self._host.happened(StepDownFails(reason=text))
        if request is not None:
            request.answer({"error": f"not handed over: {text}"})
