"""Where distributed transactions run: PostgreSQL, a broker and a state server as processes, and one transfer between them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import amqp
import attrs

from tests.integration.broker_process import (
    STOP_TIMEOUT_S,
    BrokerProcess,
    remove_journals,
    running_broker,
    wait_until,
)
from understudy.xa import TransactionManager
from understudy.xa.core.register.wire import Shown
from understudy.xa.demo.postgresql_server import PostgresServer
from understudy.xa.manager import read_profile
from understudy.xa.resource_managers.factory import make_resource_manager
from understudy.xa.resource_managers.port import ResourceManager
from understudy.xa.sockets.link import StateLink

JOB = "job"
QUEUE = "transfers"
CRASH_VARIABLE = "XA_CRASH"
SERVER = Path(__file__).with_name("xa_state_server.py")


class StateServerProcess:
    """`understudy state-server` in a folder; it can be told to kill itself at a named point."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "state-server" / "socket"
        self.address = f"unix:{self.socket}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, crash: str = "", url: str = "") -> None:
        """With `url` the record is elsewhere: in a queue of the broker of that URL, or in the folder of ``mirrored:FOLDER``."""
        with (self.folder / "state-server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, SERVER, url or self.folder / "state", self.address],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, CRASH_VARIABLE: crash},
            )
        wait_until("the state server serves", self._serves)

    def _serves(self) -> bool:
        import socket

        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "state-server.log").read_text()
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.socket)) == 0

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)

    @property
    def ended(self) -> bool:
        assert self.process is not None
        return self.process.poll() is not None

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            assert self.process.wait(STOP_TIMEOUT_S) == 0


@attrs.define
class Place:
    """All servers, and the profile of them."""

    folder: Path
    postgresql: PostgresServer
    broker: BrokerProcess
    state: StateServerProcess

    @property
    def profiles(self) -> Path:
        return self.folder / "xa.toml"

    def write_profiles(self, **queues: Any) -> None:
        """The profile ``shop``; `queues` are further keys of the resource manager of that name."""
        bank = self.postgresql.options
        more = {"addresses": [f"127.0.0.1:{self.broker.port}"], **queues}
        self.profiles.write_text(
            f'[[state_servers]]\nid = "main"\naddress = "{self.state.address}"\n'
            '[[profiles]]\nname = "shop"\nstate_server = "main"\n'
            '[[profiles.resource_managers]]\nname = "bank"\nkind = "postgresql"\n'
            + "".join(f"{key} = {json.dumps(value)}\n" for key, value in bank.items())
            + '[[profiles.resource_managers]]\nname = "queues"\nkind = "amqp"\n'
            + "".join(f"{key} = {json.dumps(value)}\n" for key, value in more.items())
        )

    def manager(self, on_step: Callable[[str], None] | None = None, job: str = JOB) -> TransactionManager:
        return TransactionManager.from_file(self.profiles, "shop", job=job, on_step=on_step)

    def opened(self, name: str) -> ResourceManager:
        resource = make_resource_manager(read_profile(self.profiles, "shop").resource(name))
        resource.open()
        return resource

    def prepare(self) -> None:
        bank, queues = self.opened("bank"), self.opened("queues")
        bank.resource.execute("CREATE TABLE IF NOT EXISTS ledger (gid text PRIMARY KEY)")
        bank.resource.commit()
        queues.resource.queue_declare(QUEUE, durable=True, auto_delete=False)
        bank.close()
        queues.close()

    # -- what is there --------------------------------------------------------------------------------------------------

    def in_bank(self) -> set[str]:
        bank = self.opened("bank")
        found = {gid for (gid,) in bank.resource.execute("SELECT gid FROM ledger")}
        bank.close()
        return found

    def in_queue(self) -> set[str]:
        """The bodies in the queue; a taken message goes back when the connection closes."""
        queues = self.opened("queues")
        found = []
        while (message := queues.resource.basic_get(QUEUE)) is not None:
            found.append(message.body)
        queues.close()
        assert len(found) == len(set(found))
        return set(found)

    def in_doubt(self) -> dict[str, list[str]]:
        found = {}
        for name in ("bank", "queues"):
            resource = self.opened(name)
            found[name] = sorted(one.xid.global_id.decode() for one in resource.recover())
            resource.close()
        return found

    def entries(self) -> list[Shown]:
        profile = read_profile(self.profiles, "shop")
        address = profile.state_server
        link = StateLink(address, job="looks", profile="shop", fingerprint=profile.fingerprint)
        found, _ = link.entries()
        link.close()
        return found

    def agree(self) -> set[str]:
        """Nothing is in doubt, and both resource managers have the same transfers; returns them."""
        assert self.entries() == []
        assert self.in_doubt() == {"bank": [], "queues": []}
        bank, queue = self.in_bank(), self.in_queue()
        assert bank == queue
        return bank

    def recovered(self, within_s: float = 90) -> list[str]:
        """The job comes back; what it recovers."""
        deadline = time.monotonic() + within_s
        while True:
            manager = self.manager()
            try:
                return manager.recover()
            except Exception:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            finally:
                manager.close()


def transfer(manager: TransactionManager) -> str:
    """One transaction over both resource managers; returns its global id."""
    with manager.begin() as transaction:
        transaction.resource("bank").execute("INSERT INTO ledger VALUES (%s)", (transaction.gid,))
        message = amqp.Message(transaction.gid, delivery_mode=2)
        transaction.resource("queues").basic_publish(message, exchange="", routing_key=QUEUE)
    return transaction.gid


def forked(body: Callable[[], object]) -> int:
    """Run something in a process of its own; returns its status: the signal that has ended it, as a negative number."""
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            body()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def killer(point: str, pid: int | None = None) -> Callable[[str], None]:
    """A hook that kills a process at a point: this one, if none is named."""

    def on_step(label: str) -> None:
        if label == point:
            os.kill(os.getpid() if pid is None else pid, signal.SIGKILL)
            if pid is None:
                time.sleep(60)

    return on_step


@contextlib.contextmanager
def running_postgresql(max_prepared: int = 200) -> Iterator[PostgresServer]:
    """A server in a folder of its own below /tmp: pytest's folders are closed to the user that it runs as."""
    with tempfile.TemporaryDirectory(prefix="understudy-postgresql-") as name:
        Path(name).chmod(0o711)
        server = PostgresServer(Path(name) / "server", max_prepared=max_prepared)
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def running_place(folder: Path) -> Iterator[Place]:
    state = StateServerProcess(folder)
    try:
        state.start()
        options = "[journal]\nreserve_bytes = 0\n"
        with running_postgresql() as postgresql, running_broker(folder, options) as broker:
            place = Place(folder, postgresql, broker, state)
            place.write_profiles()
            place.prepare()
            yield place
        state.stop()
    finally:
        if state.process is not None and not state.ended:
            state.kill()
        remove_journals(folder)
