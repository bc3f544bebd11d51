"""One suite for each kind of database parameter: what a stage is given, and what that costs in statements."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiosqlite
import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from sqlalchemy import text
from sqlalchemy.exc import StatementError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from tests.integration.xa_place import running_postgresql
from tests.unit.client.stages.place import Channel, Marker, Order
from understudy.client.stages import AsyncConnection, DemarcationError, Retry, Stage, Stages, postgresql, sqlite
from understudy.client.stages.broker.arrival import Arrival
from understudy.client.stages.broker.connection import LostError
from understudy.client.stages.core import envelope as headers
from understudy.client.stages.core.envelope import Delivery
from understudy.client.stages.databases.port import Database
from understudy.client.stages.databases.sqlite_connections import StageConnection
from understudy.client.stages.slots.slot import Slot
from understudy.client.stages.watching.points import Point
from understudy.xa.demo.postgresql_server import PostgresServer

pytestmark = [pytest.mark.integration]


class Base(DeclarativeBase):
    pass


class Effect(Base):
    __tablename__ = "effects"
    number: Mapped[int] = mapped_column(primary_key=True)


KINDS = {
    "sqlite3": ("sqlite", sqlite3.Connection),
    "sqlite-async": ("sqlite", AsyncConnection),
    "aiosqlite": ("sqlite", aiosqlite.Connection),
    "sqlite-session": ("sqlite", Session),
    "sqlite-async-session": ("sqlite", AsyncSession),
    "psycopg": ("postgresql", psycopg.Connection),
    "psycopg-async": ("postgresql", psycopg.AsyncConnection),
    "postgresql-session": ("postgresql", Session),
    "postgresql-async-session": ("postgresql", AsyncSession),
}
BLOCKING = {sqlite3.Connection, Session, psycopg.Connection}


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_postgresql() as running:
        yield running


class Place:
    """An application over one kind of database, one delivery at a time; the statements of each are kept."""

    def __init__(self, kind: str, folder: Path, server: PostgresServer) -> None:
        name, self.kind = KINDS[kind]
        self.blocking = self.kind in BLOCKING
        self.server = server if name == "postgresql" else None
        self.path = folder / "shop.db"
        self._logged = 0
        self._traced: list[str] = []
        self.database: Database
        if self.server is None:
            self.database = sqlite(self.path)
        else:
            self._plain = server.conninfo
            self.database = postgresql(make_conninfo(self._plain, options="-c log_statement=all"))
        self.database.prepare()
        self.rows("DROP TABLE IF EXISTS effects", "DELETE FROM understudy_inbox", "DELETE FROM understudy_outbox")
        self.rows("CREATE TABLE effects (number INTEGER PRIMARY KEY)")
        self.stages = Stages("shop", broker="amqp://nowhere/", database=self.database)
        self.channel, self.marker = Channel(), Marker()
        self.lost_at: Point | None = None

        @self.stages.stage("after")
        def after(order: Order) -> None: ...

        self.after = after

    def rows(self, *statements: str) -> list[Any]:
        """Run statements on a connection of its own; the rows of the last one."""
        if self.server is not None:
            with psycopg.connect(self._plain) as db:
                cursors = [db.execute(each.encode()) for each in statements]
                return cursors[-1].fetchall() if cursors[-1].description else []
        connection = sqlite3.connect(self.path)
        with connection as db:
            found = [db.execute(each).fetchall() for each in statements]
        connection.close()
        return found[-1]

    def effects(self) -> list[int]:
        return [row[0] for row in self.rows("SELECT number FROM effects ORDER BY number")]

    def stage(self, work: Callable[[Any, Order], Any], **options: Any) -> Stage[..., Any]:
        """A stage that does ``work`` with its database; ``work`` gives the result, or an awaitable of it."""

        def blocking(order: Order, db: Any) -> Order:
            result: Order = work(db, order)
            return result

        async def other(order: Order, db: Any) -> Order:
            made: Any = work(db, order)
            result: Order = await made if hasattr(made, "__await__") else made
            return result

        function: Any = blocking if self.blocking else other
        function.__annotations__["db"] = self.kind
        made: Stage[..., Any] = self.stages.stage("first", **options)(function)
        self.stages.flow("checkout", made, self.after)
        self.stages.check()
        return made

    def handle(self, stage: Stage[..., Any], *ids: str) -> None:
        """Deliveries, one after the other, on one session."""
        self.channel.lives = True
        deliveries = [
            Arrival(5, Delivery(id=each, stage="", body=b'{"number":7}', headers={headers.FLOW: "checkout"}))
            for each in ids
        ]

        async def run() -> None:
            session = self.database.session(blocking=stage.blocking, kind=stage.signature.database_kind)
            try:
                raw = await session.open()
                if self.server is None:
                    self._connection_below(raw).set_trace_callback(self._traced.append)
                else:
                    self._logged = len(self.server.log_text())
                lock = asyncio.Lock() if self.database.one_writer else None
                slot = Slot(stage, None, session, lock, self.marker, self.pass_by)  # type: ignore[arg-type]
                for each in deliveries:
                    await slot._handle(self.channel, each)  # type: ignore[arg-type]
            finally:
                await session.close()

        asyncio.run(run())

    @staticmethod
    def _connection_below(raw: Any) -> StageConnection:
        if isinstance(raw, aiosqlite.Connection):
            raw = raw._conn
        assert isinstance(raw, StageConnection)
        return raw

    def pass_by(self, point: Point, _: str) -> None:
        self.channel.lives = point is not self.lost_at

    def statements(self) -> list[str]:
        """The first words of what was done in the database, as the database tells."""
        if self.server is None:
            found, self._traced[:] = list(self._traced), []
        else:
            lines = self.server.log_text()[self._logged :].splitlines()
            marks = ("statement: ", "execute <unnamed>: ")
            found = [line.partition(mark)[2] for line in lines for mark in marks if mark in line]
        return [" ".join(each.split()[:3]).partition(" /*")[0] for each in found]


@pytest.fixture(params=list(KINDS))
def place(request: pytest.FixtureRequest, tmp_path: Path, server: PostgresServer) -> Place:
    return Place(request.param, tmp_path, server)


def insert(db: Any, order: Order) -> Any:
    """Insert the order's number, and give the order of the next stage."""
    sql = f"INSERT INTO effects VALUES ({order.number})"
    if isinstance(db, Session):
        db.add(Effect(number=order.number))
        return Order(order.number + 1)
    if isinstance(db, AsyncSession):
        db.add(Effect(number=order.number))
        return Order(order.number + 1)
    done = db.execute(sql)
    return _then(done, Order(order.number + 1)) if hasattr(done, "__await__") else Order(order.number + 1)


async def _then(first: Any, result: Any) -> Any:
    await first
    return result


async def delete(db: Any) -> None:
    sql = "DELETE FROM effects"
    done = db.execute(text(sql) if isinstance(db, (Session, AsyncSession)) else sql)
    if hasattr(done, "__await__"):
        await done


def without_ends(statements: list[str]) -> list[str]:
    return [each for each in statements if not each.startswith(("BEGIN", "COMMIT", "ROLLBACK"))]


def test_once_costs_two_statements_in_the_transaction_of_the_stage(place: Place) -> None:
    place.handle(place.stage(insert, once=True), "m1")
    found = place.statements()
    own = ["INSERT INTO understudy_inbox", "INSERT INTO effects", "INSERT INTO understudy_outbox"]
    assert sorted(without_ends(found)) == sorted(own)
    assert [each for each in found if each == "COMMIT"] == ["COMMIT"]
    assert found[-1] == "COMMIT"
    assert place.effects() == [7]
    assert len(place.rows("SELECT * FROM understudy_inbox")) == len(place.rows("SELECT * FROM understudy_outbox")) == 1
    assert [each.queue for each in place.channel.settled] == ["after"]


def test_without_once_no_statement_is_added(place: Place) -> None:
    place.handle(place.stage(insert), "m1")
    assert without_ends(place.statements()) == ["INSERT INTO effects"]
    assert place.effects() == [7]


def test_a_stage_that_does_not_touch_its_database_commits_nothing_there(place: Place) -> None:
    place.handle(place.stage(lambda db, order: order), "m1")
    found = place.statements()
    assert without_ends(found) == []
    assert "COMMIT" not in found
    assert place.channel.tags == [5]


def test_a_message_that_comes_again_is_not_done_again(place: Place) -> None:
    stage = place.stage(insert, once=True)
    place.lost_at = Point.AFTER_DATABASE_COMMIT
    with pytest.raises(LostError):
        place.handle(stage, "m1")
    place.lost_at = None
    place.handle(stage, "m1", "m1")
    assert place.effects() == [7]
    assert len({each.id for each in place.channel.settled}) == 1


def test_an_exception_leaves_nothing_and_the_next_message_is_not_disturbed(place: Place) -> None:
    calls: list[int] = []

    def fail_once(db: Any, order: Order) -> Any:
        calls.append(1)
        done = insert(db, order)
        if len(calls) > 1:
            return done

        async def failing() -> None:
            await done
            raise ValueError("the bank is away")

        if hasattr(done, "__await__"):
            return failing()
        raise ValueError("the bank is away")

    stage = place.stage(fail_once, once=True)
    place.handle(stage, "m1")
    assert place.effects() == []
    assert place.rows("SELECT * FROM understudy_inbox") == place.rows("SELECT * FROM understudy_outbox") == []
    place.handle(stage, "m2")
    assert place.effects() == [7]
    assert [each.queue for each in place.channel.settled] == ["first", "after"]


@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_a_stage_that_ends_its_transaction_is_told_and_changes_nothing(place: Place, verb: str) -> None:
    def end(db: Any, order: Order) -> Any:
        done = insert(db, order)
        return _both(done, db, verb) if hasattr(db, "__aenter__") or not place.blocking else getattr(db, verb)()

    async def _both(done: Any, db: Any, verb: str) -> None:
        if hasattr(done, "__await__"):
            await done
        await getattr(db, verb)()

    place.handle(place.stage(end, once=True, retry=Retry(1)), "m1")
    assert place.effects() == []
    (dead,) = place.channel.settled
    assert dead.queue == "first.dead"
    assert dead.headers[headers.EXCEPTION_TEXT].startswith(f"{verb}() inside of a stage: the library commits when")


def test_a_statement_after_the_end_of_the_stage_is_refused(place: Place) -> None:
    async def late() -> None:
        session = place.database.session(blocking=place.blocking, kind=place.kind)
        await session.begin()
        db: Any = session.argument()
        done = insert(db, Order(7))
        if hasattr(done, "__await__"):
            await done
        await session.commit()
        with pytest.raises((DemarcationError, StatementError), match="after the stage has returned"):
            await delete(db)
        await session.close()

    asyncio.run(late())
    assert place.effects() == [7]


def test_another_database_is_outside_of_the_transaction(place: Place, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as made:
        made.execute("CREATE TABLE looked (number INTEGER)")
    made.close()

    def look(db: Any, order: Order) -> Any:
        outside = sqlite3.connect(other)
        with outside:
            outside.execute("INSERT INTO looked VALUES (1)")
        outside.close()
        raise ValueError("no")

    place.handle(place.stage(look, once=True), "m1")
    outside = sqlite3.connect(other)
    assert outside.execute("SELECT * FROM looked").fetchall() == [(1,)]
    outside.close()
    assert place.effects() == []


POSTGRESQL = [name for name, (database, _) in KINDS.items() if database == "postgresql"]


@pytest.mark.parametrize("place", POSTGRESQL, indirect=True)
def test_a_connection_that_is_lost_costs_an_attempt_and_the_next_message_has_a_new_one(place: Place) -> None:
    lose = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )
    calls: list[int] = []

    def fail_once(db: Any, order: Order) -> Any:
        calls.append(1)
        if len(calls) == 1:
            place.rows(lose)
        return insert(db, order)

    place.handle(place.stage(fail_once, once=True), "m1", "m2")
    assert [each.queue for each in place.channel.settled] == ["first", "after"]
    assert place.effects() == [7]
