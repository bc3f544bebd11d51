"""Place: PostgreSQL, one broker and state servers with several sync delays, as processes of this host."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench_tools.xa.settings import JOB, QUEUE
from understudy.xa.demo.postgresql_server import PostgresServer
from understudy.xa.demo.stage import Service, broker_of, understudy
from understudy.xa.manager import TransactionManager, read_profile
from understudy.xa.resource_managers.factory import make_resource_manager
from understudy.xa.resource_managers.port import ResourceManager

JOURNAL = "journal"
"""A side of the bench, a profile, and the engine of its state server."""


class Place:
    """All servers, for the time of a ``with``.

    Args:
        work: a folder on a disk.
        delays_ms: a state server for each.
        journal: one more state server, of engine `journal` and with no delay; its profile is `JOURNAL`.
        max_prepared: of PostgreSQL.
    """

    def __init__(
        self,
        work: Path | None,
        delays_ms: Sequence[float] = (0,),
        max_prepared: int = 200,
        *,
        journal: bool = False,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="understudy-bench-xa-", dir=work)).resolve()
        self.folder.chmod(0o711)  # PostgreSQL may run as another user, and must come to its own folder in there
        self.profiles = self.folder / "xa.toml"
        self.postgresql = PostgresServer(self.folder / "postgresql", max_prepared=max_prepared)
        self.broker, self.broker_port = broker_of(self.folder)
        sockets = self.folder / "sockets"  # other users may enter `folder`
        self.sockets = {profile_name(delay): sockets / profile_name(delay) for delay in delays_ms}
        self.state_servers = {
            delay: self._state_server(profile_name(delay), "--sync-delay-ms", f"{delay:g}") for delay in delays_ms
        }
        self._more = []
        if journal:
            self.sockets[JOURNAL] = sockets / JOURNAL
            self._more = [self._state_server(JOURNAL, "--engine", JOURNAL)]
        self._write_profiles()

    def _state_server(self, name: str, *options: str) -> Service:
        path = self.sockets[name]
        command = [
            understudy(),
            "state-server",
            "--data",
            str(self.folder / f"state-{name}"),
            "--listen",
            f"unix:{path}",
        ]
        return Service(f"state-server-{name}", [*command, *options], self.folder, path)

    def _write_profiles(self) -> None:
        bank = "".join(f"{key} = {json.dumps(value)}\n" for key, value in self.postgresql.options.items())
        text = ""
        for name, path in self.sockets.items():
            text += f'[[state_servers]]\nid = "{name}"\naddress = "unix:{path}"\n'
            text += f'[[profiles]]\nname = "{name}"\nstate_server = "{name}"\n'
            text += f'[[profiles.resource_managers]]\nname = "bank"\nkind = "postgresql"\n{bank}'
            text += '[[profiles.resource_managers]]\nname = "queues"\nkind = "amqp"\n'
            text += f'addresses = ["127.0.0.1:{self.broker_port}"]\n'
        self.profiles.write_text(text, encoding="utf-8")
        self.profiles.chmod(0o600)

    def __enter__(self) -> Self:
        try:
            self.postgresql.create()
            self.postgresql.start()
            self.broker.start()
            for server in (*self.state_servers.values(), *self._more):
                server.start()
            self._prepare()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for server in (*self.state_servers.values(), *self._more, self.broker, self.postgresql):
            server.stop()

    def manager(self, delay_ms: float = 0, job: str = JOB, **more: Any) -> TransactionManager:
        return TransactionManager.from_file(self.profiles, profile_name(delay_ms), job=job, **more)

    def opened(self, name: str) -> ResourceManager:
        """A resource manager, connected."""
        first = next(iter(self.sockets))
        resource = make_resource_manager(read_profile(self.profiles, first).resource(name))
        resource.open()
        return resource

    def _prepare(self) -> None:
        bank = self.opened("bank")
        bank.resource.execute("CREATE TABLE ledger (gid text PRIMARY KEY)")
        bank.resource.commit()
        bank.close()
        self.empty()

    def empty(self) -> None:
        """An empty table and an empty queue, and no writes of the past that the disk still has to do."""
        bank, queues = self.opened("bank"), self.opened("queues")
        bank.resource.execute("TRUNCATE ledger")
        bank.resource.commit()
        bank.resource.autocommit = True
        bank.resource.execute("CHECKPOINT")
        queues.resource.queue_declare(QUEUE, durable=True, auto_delete=False)
        queues.resource.queue_purge(QUEUE)
        bank.close()
        queues.close()


def profile_name(delay_ms: float) -> str:
    """Of the state server with a delay."""
    return f"sync-{delay_ms:g}"
