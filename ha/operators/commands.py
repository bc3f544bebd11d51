"""OperatorCommands: what an operator may ask of the primary: step-down, expel, admit.

A part of the primary. The commands come by the exchange ``understudy.admin`` (`broker/plugin_api/plugin_commands.py`). Each is
judged at once, and again when its turn has come: the in-sync set is changed by one at a time. A command is answered when the
store has answered; the client of a core that was dropped meanwhile hears 320, and asks again.

Expelled by an operator is *barred*: the store keeps that, so it outlives restarts and primaries until `admit` undoes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final, Protocol

import attrs

from understudy.broker.core.broker import Broker
from understudy.broker.plugin_api.plugin_commands import Command, CommandRefusedError, CommandRequest
from understudy.ha.leading.in_sync_set import InSyncSet
from understudy.ha.leading.remote_backup import RemoteBackup
from understudy.ha.operators.bars import admission, expulsion
from understudy.ha.operators.step_down import Phase, StepDown
from understudy.ha.settings import HaSettings
from understudy.ha.showing.events import BrokerBarred, HaEvent
from understudy.ha.status import BrokerStatus, since_text
from understudy.ha.store.coordination import Bar, BrokerId, BrokerInfo, GroupState

COMMANDS: Final = ("step-down", "expel", "admit")
MOST_WAITING: Final = 100
"""So many commands may wait for their turn; further ones are refused."""
MOST_TRIES: Final = 5
"""So often a change is asked for that the store refuses, since it was changed by others."""


class OperatorHost(Protocol):
    """State and requests that the commands need of the primary around them."""

    @property
    def status(self) -> BrokerStatus:
        """Recovering or active."""

    @property
    def suspended(self) -> bool:
        """The store is not reached."""

    @property
    def brokers(self) -> Mapping[BrokerId, BrokerInfo]:
        """All that the store knows."""

    def happened(self, event: HaEvent) -> None:
        """Something that an operator wants to find in the log has happened."""


@attrs.define
class _Wish:
    """A change of the bars that an operator wants."""

    broker: BrokerId
    expels: bool
    request: CommandRequest
    tries: int = 0


class OperatorCommands:
    """Of one primary."""

    def __init__(
        self,
        config: HaSettings,
        broker: Broker,
        in_sync: InSyncSet,
        backups: Mapping[BrokerId, RemoteBackup],
        step_down: StepDown,
        host: OperatorHost,
    ) -> None:
        self._config = config
        self._broker = broker
        self._in_sync = in_sync
        self._backups = backups
        self._step_down = step_down
        self._host = host
        self._waiting: deque[_Wish] = deque()
        self._asked: _Wish | None = None
        self._commands: dict[str, Command] = {"step-down": self._hand_over, "expel": self._expel, "admit": self._admit}

    def carry_out(self, command: str, request: CommandRequest) -> None:
        """Begin it.

        Raises:
            CommandRefusedError: it is not done.
        """
        self._commands[command](request)

    # -- step-down ------------------------------------------------------------------------------------------------------

    def _hand_over(self, request: CommandRequest) -> None:
        wanted = _take_id(request, "to", needed=False)
        me, brokers = self._config.broker, self._host.brokers
        if self._host.status is not BrokerStatus.ACTIVE:
            raise CommandRefusedError(f"{me} is {self._host.status.value}: it can hand over when it is active")
        if self._host.suspended:
            raise CommandRefusedError(f"{me} does not reach the coordination store: it cannot name a successor there")
        successor = self._step_down.successor_of_choice(wanted, brokers)
        self._step_down.begin(successor, brokers.get(successor), request)

    # -- expel and admit ------------------------------------------------------------------------------------------------

    def _expel(self, request: CommandRequest) -> None:
        self._enqueue(_Wish(_take_id(request, "broker"), True, request))

    def _admit(self, request: CommandRequest) -> None:
        self._enqueue(_Wish(_take_id(request, "broker"), False, request))

    def _enqueue(self, wish: _Wish) -> None:
        self._wanted(wish)
        if self._host.suspended:
            raise CommandRefusedError(f"{self._config.broker} does not reach the coordination store")
        if len(self._waiting) >= MOST_WAITING:
            raise CommandRefusedError(f"{MOST_WAITING} commands wait for the coordination store already")
        self._waiting.append(wish)
        self.tick()

    def _wanted(self, wish: _Wish) -> GroupState:
        """The group as ``wish`` wants it; the group as it is, if that is so already.

        Raises:
            CommandRefusedError: the group as it is speaks against it.
        """
        group, known = self._in_sync.group, (*self._backups, *self._host.brokers)
        if not wish.expels:
            return admission(group, known, wish.broker)
        if self._step_down.phase is not Phase.IDLE:
            raise CommandRefusedError(
                f"{self._config.broker} is handing over to {self._step_down.successor}: ask that one"
            )
        by = f"{wish.request.user} at {self._config.broker}"
        return expulsion(group, known, Bar(wish.broker, by, since_text(self._broker.clock.wall_ms)))

    def tick(self) -> None:
        """Ask for the next change, when no other is under way."""
        while self._waiting and self._asked is None and not self._in_sync.busy and not self._host.suspended:
            wish = self._waiting.popleft()
            try:
                wanted = self._wanted(wish)
            except CommandRefusedError as error:
                wish.request.answer({"error": str(error)})
                continue
            if wanted is self._in_sync.group:
                self._answer(wish, changed=False)
                continue
            self._asked = wish
            wish.tries += 1
            backup = self._backups.get(wish.broker)
            if wish.expels and backup is not None and backup.listed:
                backup.to_leave(f"an operator has expelled it ({wish.request.user})")
            self._in_sync.request_bars(wish.broker, wanted, self._broker.clock.now_ms)

    def _is_done(self, wish: _Wish) -> bool:
        barred = self._in_sync.group.bar_of(wish.broker) is not None
        return barred is wish.expels

    def settled(self) -> None:
        """The store has answered a change of the group, which is of this epoch and primary still."""
        wish, self._asked = self._asked, None
        if wish is None:
            return
        if self._is_done(wish):
            self._host.happened(BrokerBarred(barred=wish.broker, lifted=not wish.expels, by=wish.request.user))
            self._answer(wish, changed=True)
        elif wish.tries < MOST_TRIES:
            self._waiting.appendleft(wish)
        else:
            wish.request.answer({"error": "the coordination store is changed by others all the time: nothing was done"})
        self.tick()

    def _answer(self, wish: _Wish, *, changed: bool) -> None:
        group = self._in_sync.group
        wish.request.answer(
            {
                "broker": self._config.broker,
                "epoch": self._broker.role.epoch,
                "expelled" if wish.expels else "admitted": wish.broker,
                "changed": changed,
                "in_sync": list(group.members),
                "min_insync": group.min_insync,
                "barred": [bar.broker for bar in group.barred],
            }
        )


def _take_id(request: CommandRequest, key: str, *, needed: bool = True) -> BrokerId:
    """The broker that ``request`` names under ``key``, which is all that it may say; "" if it need not and does not.

    Raises:
        CommandRefusedError: it names none, or says something else.
    """
    arguments: dict[str, Any] = dict(request.arguments)
    value = arguments.pop(key, None if needed else "")
    if arguments:
        raise CommandRefusedError(f"{next(iter(arguments))!r:.80} is nothing that this command takes; {key!r} is")
    if not isinstance(value, str) or (needed and not value):
        raise CommandRefusedError(f"{key!r} is the id of a broker, not {value!r:.80}")
    return value
