"""The plugin for pytest: the fixture ``stages_kit`` (docs/stages.md, Testing stages).

It is loaded by every run of pytest where Understudy is installed, so importing it imports nothing else of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from understudy.client.stages import Stages
    from understudy.testing.stages import StagesKit
    from understudy.testing.stages.beside import BrokerBeside
    from understudy.testing.stages.databases import DatabaseBeside, PostgresqlServer

    StagesKits = Callable[..., StagesKit]


class Beside:
    """Brokers and a PostgreSQL server of one run of tests; each is started when a test first needs it."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._broker: BrokerBeside | None = None
        self._postgresql: PostgresqlServer | None = None

    def broker(self) -> BrokerBeside:
        from understudy.testing.stages.beside import BrokerBeside  # noqa: PLC0415  # see the head of the file

        if self._broker is None or self._broker.is_used_up:
            self._broker = BrokerBeside.start()
            self._stack.callback(self._broker.stop)
        return self._broker

    def database(self, kind: str, folder: Path) -> DatabaseBeside:
        """A database of the kind of ``address``, such as ``sqlite:shop.db``."""
        from understudy.testing.stages import databases  # noqa: PLC0415  # see the head of the file

        if kind == "sqlite":
            return databases.SqliteFile(folder / "stages.db")
        if self._postgresql is None:
            self._postgresql = databases.PostgresqlServer()
            self._stack.callback(self._postgresql.stop)
        return self._postgresql.database()

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="session")
def understudy_beside() -> Iterator[Beside]:
    """Brokers and databases beside the tests of this run."""
    beside = Beside()
    try:
        yield beside
    finally:
        beside.close()


@pytest.fixture
def stages_kit(understudy_beside: Beside, tmp_path: Path) -> Iterator[StagesKits]:
    """A function that gives an application a broker and a database for this test alone: ``stages_kit(shop.stages)``.

    Its arguments, by name: ``script``, SQL that makes the business tables; ``shuffle``, a seed: deliveries come in an order by
    chance. The database is of the kind that the application has: a file of SQLite, or a database on a PostgreSQL server.
    """
    databases: dict[str, DatabaseBeside] = {}
    with ExitStack() as stack:

        def make(stages: Stages, *, script: str = "", shuffle: int | None = None) -> StagesKit:
            from understudy.testing.stages import StagesKit  # noqa: PLC0415  # see the head of the file

            database: DatabaseBeside | None = None
            if stages.database is not None:
                kind = stages.database.address.partition(":")[0]
                if kind not in databases:
                    databases[kind] = understudy_beside.database(kind, tmp_path)
                database = databases[kind]
            kit = StagesKit(stages, understudy_beside.broker(), database, shuffle=shuffle)
            stack.enter_context(kit.in_place())
            if script:
                kit.script(script)
            return kit

        yield make
