"""FileCoordination: the group's state in a file that all brokers of one host share (``coordination.kind = "file"``).

All that touches the file happens in one thread, so that the event loop never waits for a disk or for another process; what the
store says is told on the loop, in order, each time followed by the owner's ``turn``.

**Leases.** A broker's row says until when it counts as alive, on the machine's monotonic clock: it is the same for all
processes, steps of the wall clock do not touch it, and it stands still while the machine is suspended, as the brokers do
(CLOCK_BOOTTIME goes on, and every lease would have ended at resume). The *loop* asks for each renewal, and the lease counts
from then: a broker whose loop hangs loses its lease although its threads live. A row of an earlier boot is dead, and so is one
whose process is: its number names nobody, or a zombie, or a process that started at another time. Only brokers in the same pid
namespace are judged by that; containers that share the file see each other's leases alone.

**Watching.** SQLite cannot call anybody, so the thread looks: every ``poll_ms``, or ``urgent_poll_ms`` while this broker has no
primary. A look without change costs 5 us of SQLite and a look at each broker's process.

**Lost.** A request that finds the file held by others for ``busy_ms``, or unusable, is answered LOST, and the coordination
counts as lost until something succeeds. So it does if the thread itself hangs in the kernel for a whole lease: then requests
are not answered at all, as the port allows.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

import attrs
import structlog

from understudy.ha.coordination import Answer, BrokerId, BrokerInfo, CoordinationListener, GroupState
from understudy.ha.store import BrokerRow, CoordinationStore, Process, StoreBusyError, StoreError

__all__ = ["FileCoordination", "StoreBusyError", "StoreError", "force_epoch", "forced_epochs", "read_store"]

MAX_BACKLOG: Final = 1_000
"""How much may wait for the thread; further requests are never answered."""

_RENEWALS_A_LEASE: Final = 3
_RETRY_S: Final = 0.02

_Action = Callable[[CoordinationStore, str], tuple[bool, GroupState | None]]

_log = structlog.get_logger("understudy.coordination")


# -- the machine --------------------------------------------------------------------------------------------------------


def machine_ms() -> int:
    """The machine's monotonic clock, the same in all its processes."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000_000


def this_process() -> Process:
    return Process(pid=os.getpid(), started=_started(os.getpid()) or 0, boot=_boot(), pid_namespace=_pid_namespace())


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""  # no Linux: a reboot is noticed by the processes being gone


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """When a process started, in clock ticks after boot; 0 if that is not told; None if there is none, or only a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass  # somebody else's: it exists
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0  # no Linux, or /proc hides what belongs to others
    # The name, in parentheses, may contain anything; state is the first field after it, start time the twentieth.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZXx" else int(fields[19])


def is_alive(row: BrokerRow, observer: Process, now_ms: int) -> bool:
    """Whether the broker of ``row`` counts as alive to ``observer``."""
    process = row.process
    if row.lease_until_ms <= now_ms or process.boot != observer.boot:
        return False
    if process.pid_namespace != observer.pid_namespace or process.pid == observer.pid:
        return True
    started = _started(process.pid)
    return started is not None and (not started or not process.started or started == process.started)


def is_there(row: BrokerRow, observer: Process) -> bool:
    """Whether the process of ``row`` exists, be it stopped or hanging; False if that cannot be told from here."""
    process = row.process
    if process.boot != observer.boot or process.pid_namespace != observer.pid_namespace:
        return False
    started = _started(process.pid)
    return started is not None and (not started or not process.started or started == process.started)


# -- for commands -------------------------------------------------------------------------------------------------------


def read_store(
    path: Path, group: str, *, hanging_too: bool = False
) -> tuple[GroupState | None, dict[BrokerId, BrokerInfo]]:
    """What the store holds, whether or not any broker runs.

    Args:
        path: of the store.
        group: which.
        hanging_too: a broker whose lease has ended counts as alive while its process is there: it may go on at any moment.

    Raises:
        StoreError: it cannot be read.
    """
    store = CoordinationStore(path, read_only=True)
    try:
        state, rows = store.read(group)
    finally:
        store.close()
    observer, now_ms = this_process(), machine_ms()
    found = {broker: _shown(row, observer, now_ms) for broker, row in rows.items()}
    if hanging_too:
        found = {
            broker: attrs.evolve(info, alive=info.alive or is_there(rows[broker], observer))
            for broker, info in found.items()
        }
    return state, found


def force_epoch(
    path: Path,
    group: str,
    broker: BrokerId,
    members: tuple[BrokerId, ...],
    *,
    seen_epoch: int = 0,
    expected: GroupState | None = None,
    min_insync: int | None = None,
) -> GroupState:
    """Make ``broker`` the primary of a new epoch, over the head of whoever leads: for ``promote --unclean``.

    What only others hold is lost by that, so it is recorded in the store. A file that is missing is made.

    Args:
        path: of the store.
        group: which.
        broker: who is to lead; it need not run.
        members: the in-sync set of the new epoch; ``broker`` is one of it.
        seen_epoch: the highest epoch that the journal of ``broker`` has seen: the new one is above it.
        expected: what the store was found to hold, None for no such group.
        min_insync: of the group from now on; None: as it was (1 if nobody knows).

    Returns:
        What the store now holds.

    Raises:
        StoreError: it cannot be written, or does not hold ``expected`` any more.
    """
    assert broker in members, f"{broker} would lead a set it is not in: {members}"
    store = CoordinationStore(path, create=True)
    try:
        return store.force(
            group,
            broker,
            tuple(sorted(members)),
            seen_epoch=seen_epoch,
            wall_ms=time.time_ns() // 1_000_000,
            expected=expected,
            min_insync=min_insync,
        )
    finally:
        store.close()


def forced_epochs(path: Path, group: str) -> list[tuple[int, BrokerId, int]]:
    """(epoch, broker, wall-clock ms) of each epoch that was forced, oldest first; none if there is no store."""
    if not path.exists():
        return []
    store = CoordinationStore(path, read_only=True)
    try:
        return store.forced_epochs(group)
    finally:
        store.close()


def _shown(row: BrokerRow, observer: Process, now_ms: int) -> BrokerInfo:
    return attrs.evolve(row.info, alive=is_alive(row, observer, now_ms))


# -- the loop's side ----------------------------------------------------------------------------------------------------


class FileCoordination:
    """Implements ``ha.coordination.Coordination`` for one broker process.

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
        self._listener = listener
        self._turn = turn
        self._lease_ms = lease_ms
        self._busy_ms = busy_ms
        self._poll_ms = poll_ms
        self._urgent_poll_ms = urgent_poll_ms
        self._loop = asyncio.get_running_loop()
        self._worker = _Worker(self, self._loop, path, group, broker, lease_ms, busy_ms, poll_ms)
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

    def urgent(self, urgent: bool) -> None:
        """Look more often, while this broker has no primary."""
        self._worker.look_every(self._urgent_poll_ms if urgent else self._poll_ms)

    # -- the port -------------------------------------------------------------------------------------------------------

    def found(self, request: int, group: GroupState) -> None:
        self._ask(request, lambda store, name: store.found(name, group))

    def replace(self, request: int, expected: GroupState, wanted: GroupState) -> None:
        self._ask(request, lambda store, name: store.replace(name, expected, wanted))

    def read(self, request: int) -> None:
        self._ask(request, lambda store, name: (True, store.read(name)[0]))

    def publish(self, info: BrokerInfo) -> None:
        asked_ms = machine_ms()
        self._worker.put(lambda: self._worker.publish(info, asked_ms))

    def _ask(self, request: int, action: _Action) -> None:
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


# -- the thread's side --------------------------------------------------------------------------------------------------


class _Worker:
    """The thread, and all that only it may touch."""

    def __init__(
        self,
        owner: FileCoordination,
        loop: asyncio.AbstractEventLoop,
        path: Path,
        group: str,
        broker: BrokerId,
        lease_ms: int,
        busy_ms: int,
        poll_ms: int,
    ) -> None:
        self._owner = owner
        self._loop = loop
        self._path = path
        self._group = group
        self._broker = broker
        self._lease_ms = lease_ms
        self._busy_ms = busy_ms
        self._poll_ms = poll_ms
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._process = this_process()
        self._store: CoordinationStore | None = None
        self._trouble = ""
        self._info: BrokerInfo | None = None
        self._published = False
        # None: read again, whatever SQLite says. Own commits do not count as changes there.
        self._changes: int | None = None
        self._state: GroupState | None = None
        self._rows: dict[BrokerId, BrokerRow] = {}
        self._shown: tuple[GroupState | None, dict[BrokerId, BrokerInfo]] | None = None
        self._look_at_ms = 0

    # -- called by the loop -----------------------------------------------------------------------------------------------

    def start(self, opened: asyncio.Future[None]) -> None:
        self._thread = threading.Thread(target=self._work, args=(opened,), name="coordination", daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], None] | None) -> None:
        """Have the thread do ``job``; None ends it."""
        self._jobs.put(job)

    @property
    def backlog(self) -> int:
        return self._jobs.qsize()

    def look_every(self, poll_ms: int) -> None:
        if poll_ms != self._poll_ms:
            self._poll_ms = poll_ms
            self.put(self._look)  # now, which also ends the longer wait

    def join(self, timeout_s: float) -> None:
        if self._thread is not None:
            self._thread.join(timeout_s)

    # -- jobs -------------------------------------------------------------------------------------------------------------

    def answer(self, request: int, action: _Action, asked_ms: int) -> None:
        """Carry out a request. One that has waited too long is not begun: its asker has given it up."""
        try:
            waited_ms = machine_ms() - asked_ms
            if waited_ms > self._busy_ms:
                raise StoreBusyError(f"coordination file {self._path}: a request was not reached for {waited_ms} ms")
            done, group = action(self._usable(), self._group)
        except StoreError as error:
            self._failed(error)
            self._tell(self._owner.answered, request, Answer.LOST, None)
            return
        self._changes = None
        self._set_trouble("")
        self._tell(self._owner.answered, request, Answer.DONE if done else Answer.CONFLICT, group)
        self._look()

    def publish(self, info: BrokerInfo, asked_ms: int) -> None:
        """Write this broker's row; what cannot be written now is written with the next renewal."""
        self._info = attrs.evolve(info, pid=self._process.pid)
        self._published = False
        if self._write_row(asked_ms + self._lease_ms):
            self._look()

    def renew(self, asked_ms: int) -> None:
        self._write_row(asked_ms + self._lease_ms)
        self._tell(self._owner.renewed, self._trouble)

    def _write_row(self, lease_until_ms: int) -> bool:
        if self._info is None:
            return True
        try:
            store = self._usable()
            if self._published:
                self._published = store.renew(self._group, self._broker, self._process, lease_until_ms)
            if not self._published:
                row = BrokerRow(info=self._info, process=self._process, lease_until_ms=lease_until_ms)
                store.publish(self._group, row)
                self._published = True
        except StoreError as error:
            self._failed(error)
            return False
        self._changes = None
        self._set_trouble("")
        return True

    def _look(self) -> None:
        """Tell the loop if the store shows something else than the last time, or somebody has died or come alive."""
        self._look_at_ms = machine_ms() + self._poll_ms
        try:
            store = self._usable()
            changes = store.changes
            if changes != self._changes:
                self._state, self._rows = store.read(self._group)
                self._changes = changes
        except StoreError as error:
            self._failed(error)
            return
        self._set_trouble("")
        now_ms = machine_ms()
        shown = (self._state, {name: _shown(row, self._process, now_ms) for name, row in self._rows.items()})
        if shown != self._shown:
            self._shown = shown
            self._tell(self._owner.changed, *shown)

    # -- the store --------------------------------------------------------------------------------------------------------

    def _usable(self) -> CoordinationStore:
        """The open store; opened anew after trouble.

        Raises:
            StoreError: it cannot be opened, or the path names another file by now.
        """
        if self._store is not None and not self._store.in_place:
            raise StoreError(f"coordination file {self._path} was removed or replaced")
        if self._store is None:
            self._store = CoordinationStore(self._path, busy_ms=self._busy_ms)
            self._changes = None
        return self._store

    def _failed(self, error: StoreError) -> None:
        if not isinstance(error, StoreBusyError):
            self._close()
        self._set_trouble(str(error))

    def _set_trouble(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            self._tell(self._owner.reached, trouble)

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def _tell(self, call: Callable[..., None], *arguments: object) -> None:
        # RuntimeError: the loop was closed, nobody is left to be told.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments)

    # -- the thread -------------------------------------------------------------------------------------------------------

    def _work(self, opened: asyncio.Future[None]) -> None:
        try:
            self._open()
        except BaseException as error:  # noqa: BLE001  # whatever it is, `start` must not wait for ever
            self._close()
            self._tell(self._owner.opened, opened, error)
            return
        self._look()
        self._tell(self._owner.opened, opened, None)
        while True:
            wait_ms = self._look_at_ms - machine_ms()
            if wait_ms <= 0:
                self._look()
                continue
            try:
                job = self._jobs.get(timeout=wait_ms / 1_000)
            except Empty:
                continue
            if job is None:
                break
            job()
        self._give_up_lease()
        self._close()

    def _open(self) -> None:
        """Open the file, or make it, and see that nobody else runs as this broker.

        Raises:
            StoreError: it cannot be used, or somebody does.
        """
        until_ms = machine_ms() + self._busy_ms
        while self._store is None:
            try:
                self._store = CoordinationStore(self._path, create=True, busy_ms=self._busy_ms)
            except StoreBusyError:
                # Brokers that start together make it together, and then SQLite does not always wait.
                if machine_ms() >= until_ms:
                    raise
                time.sleep(_RETRY_S)
        while (other := self._namesake(self._store)) is not None:
            if other.process.pid_namespace == self._process.pid_namespace:
                raise StoreError(
                    f"coordination file {self._path}: broker {self._broker} of group {self._group} already runs, as process "
                    f"{other.process.pid}"
                )
            time.sleep(_RETRY_S)  # of a container that is gone only the lease tells

    def _namesake(self, store: CoordinationStore) -> BrokerRow | None:
        row = store.read(self._group)[1].get(self._broker)
        if row is None or row.process == self._process or not is_alive(row, self._process, machine_ms()):
            return None
        return row

    def _give_up_lease(self) -> None:
        if self._published:
            with suppress(StoreError):  # then it ends by itself
                self._usable().renew(self._group, self._broker, self._process, 0)
