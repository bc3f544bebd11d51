"""The thread of :class:`~understudy.ha.store.edge.local.file_coordination.FileCoordination`, and all that only it may touch."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

import attrs

from understudy.ha.store.coordination import Answer, BrokerId, BrokerInfo, GroupState, StoreError
from understudy.ha.store.edge.local.processes import is_alive, machine_ms, shown, this_process
from understudy.ha.store.edge.local.store import BrokerRow, CoordinationStore, StoreBusyError

if TYPE_CHECKING:
    from understudy.ha.store.edge.local.file_coordination import FileCoordination

_RETRY_S: Final = 0.02

Action = Callable[[CoordinationStore, str], tuple[bool, GroupState | None]]
"""A request: given the open store and the group, whether it was done, and what the store holds then."""


class Worker:
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

    def answer(self, request: int, action: Action, asked_ms: int) -> None:
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
        """Look, and look again in ``poll_ms`` from its end: a look may take longer than that."""
        self._look_now()
        self._look_at_ms = machine_ms() + self._poll_ms

    def _look_now(self) -> None:
        """Tell the loop if the store shows something else than the last time, or somebody has died or come alive."""
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
        seen = (self._state, {name: shown(row, self._process, now_ms) for name, row in self._rows.items()})
        if seen != self._shown:
            self._shown = seen
            self._tell(self._owner.changed, *seen)

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
        try:
            self._look()
            self._tell(self._owner.opened, opened, None)
            self._serve()
        except BaseException as error:  # noqa: BLE001  # without this thread a broker has no store until it is started again
            self._tell(self._owner.broken, error)

    def _serve(self) -> None:
        """Do jobs, and look in between. A job that waits is taken first, or looks that are always due would leave it for ever."""
        while True:
            wait_ms = self._look_at_ms - machine_ms()
            try:
                job = self._jobs.get(timeout=max(wait_ms, 0) / 1_000)
            except Empty:
                self._look()
                continue
            if job is None:
                break
            job()
            if self._look_at_ms <= machine_ms():
                self._look()
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
