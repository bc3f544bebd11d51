"""Place: PostgreSQL, one broker and a state server as processes of this host, a new database and new queues for each cell."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psycopg
from psycopg.conninfo import make_conninfo

from bench_tools.stages.sides import POSTGRESQL, Order, application, make_tables
from understudy.xa.demo.postgresql_server import PostgresServer
from understudy.xa.demo.stage import Service, broker_of, understudy

DATABASES: Final = ("sqlite", "postgresql")
IN_ONE_TRANSACTION: Final = 500
BODY_BYTES: Final = 100


class Place:
    """All servers, for the time of a ``with``.

    Args:
        work: a folder on a disk; None: a temporary one.
    """

    def __init__(self, work: Path | None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="understudy-bench-stages-", dir=work)).resolve()
        self.folder.chmod(0o711)  # PostgreSQL may run as another user, and must come to its own folder in there
        self._postgresql = PostgresServer(self.folder / "postgresql")
        self._broker, port = broker_of(self.folder)
        self.broker = f"amqp://guest:guest@127.0.0.1:{port}/"
        self.state_server = f"unix:{self.folder / 'sockets' / 'state'}"
        self._state = Service(
            "state-server",
            [understudy(), "state-server", "--data", str(self.folder / "state"), "--listen", self.state_server],
            self.folder,
            Path(self.state_server.removeprefix("unix:")),
        )
        self._cells = 0

    def __enter__(self) -> Self:
        try:
            self._postgresql.create()
            self._postgresql.start()
            self._broker.start()
            self._state.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._state.stop()
        self._broker.stop()
        self._postgresql.stop()

    def cell(self, kind: str, flows: int, *, alone: bool) -> tuple[str, str]:
        """Make a new database, and queues in which flows wait at their first stage, or (``alone``) at their last.

        Returns:
            The database's address and the queues' common name.
        """
        self._cells += 1
        name = f"bench{self._cells}"
        database = str(self.folder / f"{name}.db") if kind == "sqlite" else POSTGRESQL + self._new_database(name)
        make_tables(database)
        asyncio.run(self._fill(database, name, flows, alone=alone))
        return database, name

    def _new_database(self, name: str) -> str:
        with psycopg.connect(self._postgresql.conninfo, autocommit=True) as db:
            db.execute(f"CREATE DATABASE {name}".encode())
            db.execute("CHECKPOINT")
        return make_conninfo(self._postgresql.conninfo, dbname=name)

    async def _fill(self, database: str, name: str, flows: int, *, alone: bool) -> None:
        stages = application(self.broker, database, name, side="nothing", concurrency=1, note=lambda: None)
        flow = stages.flows["last" if alone else "both"]
        text = "x" * BODY_BYTES
        for first in range(0, flows, IN_ONE_TRANSACTION):
            async with stages.begin(outbox=False):
                for number in range(first, min(flows, first + IN_ONE_TRANSACTION)):
                    flow.send(Order(number, text))
        if not alone:  # the bare consumer needs the second queue before anything was sent to it
            async with stages.begin(outbox=False):
                stages.flows["last"].send(Order(-1, text))
        await stages.close()
