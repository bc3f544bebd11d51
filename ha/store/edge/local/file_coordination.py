"""FileCoordination: the group's state in a file that all brokers of one host share (``coordination.kind = "file"``).

All that touches the file happens in one thread, so that the event loop never waits for a disk or for another process; what the
store says is told on the loop, in order, each time followed by the owner's ``turn``.

**Leases.** A broker's row says until when it counts as alive, on the machine's monotonic clock: it is the same for all
processes, steps of the wall clock do not touch it, and it stands still while the machine is suspended, as the brokers do
(CLOCK_BOOTTIME goes on, and every lease would have ended at resume). The *loop* asks for each renewal, and the lease counts
from then: a broker whose loop hangs loses its lease although its threads live. A row of an earlier boot is dead, and so is one
whose process is: its number names nobody, or a zombie, or a process that started at another time. Only brokers in the same pid
namespace are judged by that; containers that share the file see each other's leases alone.

**Watching.** SQLite cannot call anybody, so the thread looks: ``poll_ms`` after the last look ended, or
``urgent_poll_ms`` while this broker has no primary. A look without change costs 5 us of SQLite and a look at each broker's process.

**Lost.** A request that finds the file held by others for ``busy_ms``, or unusable, is answered LOST, and the coordination
counts as lost until something succeeds. So it does if the thread itself hangs in the kernel for a whole lease: then requests
are not answered at all, as the port allows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from understudy.ha.status import BrokerStatus
from understudy.ha.store.coordination import Answer, BrokerId, BrokerInfo, CoordinationListener, GroupState
from understudy.ha.store.edge.local.processes import machine_ms
from understudy.ha.store.edge.local.store import CoordinationStore
from understudy.ha.store.edge.local.worker import Action, Worker

MAX_BACKLOG: Final = 1_000
"""How much may wait for the thread; further requests are never answered."""

_RENEWALS_A_LEASE: Final = 3

_log = structlog.get_logger("understudy.coordination")


class FileCoordination:
    """Implements ``ha.store.coordination.Coordination`` for one broker process.

    Args:
        path: of the file; made by :meth:`start` if it is missing.
        group, broker: whose.
        listener: who is told, on the loop this is made on.
        turn: called after each thing it is told.
        lease_ms: for how long a broker that says nothing more counts as alive.
        busy_ms: for how long a request may wait, for the file or behind others.
        poll_ms, urgent_poll_ms: how often the file is looked at.

    Attributes:
        trouble: why the store is lost, "" if it is not.
    """

    kind: Final = "file"

    def __init__(
        self,
        path: Path,
        group: str,
        broker: BrokerId,
        listener: CoordinationListener,
        turn: Callable[[], None],
        *,
        lease_ms: int = 3_000,
        busy_ms: int = 2_000,
        poll_ms: int = 100,
        urgent_poll_ms: int = 20,
    ) -> None:
        self.trouble = ""
        self._broker = broker
        self._listener = listener
        self._turn = turn
        self._lease_ms = lease_ms
        self._busy_ms = busy_ms
        self._poll_ms = poll_ms
        self._urgent_poll_ms = urgent_poll_ms
        self._loop = asyncio.get_running_loop()
        self._worker = Worker(self, self._loop, path, group, broker, lease_ms, busy_ms, poll_ms)
        self._timer: asyncio.TimerHandle | None = None
        self._renewal_ms = 0
        self._stopped = False

    async def start(self) -> None:
        """Open the store. The first thing that the listener is told, before any answer, is what it holds.

        Raises:
            StoreError: it cannot be used, or this broker runs already.
        """
        opened: asyncio.Future[None] = self._loop.create_future()
        self._worker.start(opened)
        await opened
        self._renew()

    async def stop(self) -> None:
        """Give up the lease, so that others see at once that this broker is gone; tell nothing more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self._worker.put(None)
        # A thread that hangs in the kernel is left behind: it is a daemon.
        await asyncio.to_thread(self._worker.join, 2 * self._busy_ms / 1_000)

    # -- the port -------------------------------------------------------------------------------------------------------

    def found(self, request: int, group: GroupState) -> None:
        self._ask(
            request, lambda store, name: store.found(name, group, by=self._broker, wall_ms=time.time_ns() // 1_000_000)
        )

    def replace(self, request: int, expected: GroupState, wanted: GroupState) -> None:
        def action(store: CoordinationStore, name: str) -> tuple[bool, GroupState | None]:
            return store.replace(name, expected, wanted, by=self._broker, wall_ms=time.time_ns() // 1_000_000)

        self._ask(request, action)

    def restore(self, request: int, shown: GroupState | None, wanted: GroupState) -> None:
        def action(store: CoordinationStore, name: str) -> tuple[bool, GroupState | None]:
            return store.restore(name, shown, wanted, by=self._broker, wall_ms=time.time_ns() // 1_000_000)

        self._ask(request, action)

    def read(self, request: int) -> None:
        self._ask(request, lambda store, name: (True, store.read(name)[0]))

    def publish(self, info: BrokerInfo) -> None:
        """Also look more often while this broker has no primary, as its status says."""
        self._worker.look_every(self._urgent_poll_ms if info.status == BrokerStatus.JOINING.value else self._poll_ms)
        asked_ms = machine_ms()
        self._worker.put(lambda: self._worker.publish(info, asked_ms))

    def _ask(self, request: int, action: Action) -> None:
        if self._worker.backlog < MAX_BACKLOG:
            asked_ms = machine_ms()
            self._worker.put(lambda: self._worker.answer(request, action, asked_ms))

    # -- the lease --------------------------------------------------------------------------------------------------------

    def _renew(self) -> None:
        """Ask for a renewal; if the last one has not come back for a whole lease, the store is lost."""
        self._timer = self._loop.call_later(self._lease_ms / _RENEWALS_A_LEASE / 1_000, self._renew)
        now_ms = machine_ms()
        if not self._renewal_ms:
            self._renewal_ms = now_ms
            self._worker.put(lambda: self._worker.renew(now_ms))
        elif now_ms - self._renewal_ms >= self._lease_ms:
            self.reached(f"the store has not answered for {now_ms - self._renewal_ms} ms")

    # -- what the thread tells, on the loop -------------------------------------------------------------------------------

    def opened(self, future: asyncio.Future[None], error: BaseException | None) -> None:
        if future.done():
            return  # `start` was cancelled
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def broken(self, error: BaseException) -> None:
        """The thread has raised what it should not, and has ended: a mistake of ours, for whoever watches this loop."""
        raise RuntimeError("the coordination thread has ended") from error

    def renewed(self, trouble: str) -> None:
        """The renewal that was asked for has come back, for good or ill."""
        self._renewal_ms = 0
        self.reached(trouble)

    def reached(self, trouble: str) -> None:
        """The store was reached ("") or was not, and why."""
        before, self.trouble = self.trouble, trouble
        if self._stopped or bool(trouble) == bool(before):
            return
        if trouble:
            _log.warning("coordination lost", reason=trouble)
            self._listener.coordination_lost()
        else:
            _log.info("coordination regained")
            self._listener.coordination_regained()
        self._turn()

    def answered(self, request: int, answer: Answer, group: GroupState | None) -> None:
        if not self._stopped:
            self._listener.answered(request, answer, group)
            self._turn()

    def changed(self, group: GroupState | None, brokers: dict[BrokerId, BrokerInfo]) -> None:
        if not self._stopped:
            self._listener.group_changed(group, brokers)
            self._turn()
