"""A slot does the steps on a real SQLite file: statements, threads, and what a stage may not do."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.client.stages.place import Channel, Marker, Order, delivery
from understudy.client.stages import AsyncConnection, Context, Retry, Stage, Stages, postgresql, sqlite
from understudy.client.stages.broker import clock
from understudy.client.stages.broker.arrival import Arrival
from understudy.client.stages.broker.connection import LostError
from understudy.client.stages.core import envelope as headers
from understudy.client.stages.core import steps as do
from understudy.client.stages.core.envelope import Delivery, Envelope
from understudy.client.stages.databases.port import ThreadedSession
from understudy.client.stages.databases.sqlite_database import SqliteSession
from understudy.client.stages.slots.slot import Slot
from understudy.client.stages.watching.points import Point
from understudy.testing.stages.skipping import SkippingClock


class Place:
    """An application over a new file, one slot at a time."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "shop.db"
        self.database = sqlite(self.path)
        self.database.prepare()
        with sqlite3.connect(self.path) as db:
            db.execute("CREATE TABLE effects (number INTEGER)")
        db.close()
        self.stages = Stages("shop", broker="amqp://nowhere/", database=self.database)
        self.channel = Channel()
        self.marker = Marker()
        self.statements: list[str] = []
        self.session: SqliteSession | None = None
        self.lost_at: Point | None = None

        @self.stages.stage("after")
        def after(order: Order) -> None: ...

        self.after = after

    def stage(self, function: Callable[..., Any], **options: Any) -> Stage[..., Any]:
        made: Stage[..., Any] = self.stages.stage("first", **options)(function)
        self.stages.flow("checkout", made, self.after)
        self.stages.check()
        return made

    def handle(self, stage: Stage[..., Any], **changes: Any) -> None:
        """One delivery; its statements are kept."""
        self.channel.lives = True
        self.session = SqliteSession(self.path, blocking=stage.blocking)
        self.session.begin()
        self.session.rollback()
        assert self.session._opened is not None
        self.session._opened.set_trace_callback(self.statements.append)
        given: dict[str, Any] = {
            "id": "m1", "stage": "", "body": b'{"number": 7}', "headers": {headers.FLOW: "checkout"}
        }  # fmt: skip
        arrival = Arrival(5, Delivery(**(given | changes)))

        async def run() -> None:
            lock = asyncio.Lock()
            slot = Slot(
                stage, None, ThreadedSession(self.session), lock, self.marker, self.pass_by,  # type: ignore[arg-type]
            )  # fmt: skip
            try:
                await slot._handle(self.channel, arrival)  # type: ignore[arg-type]  # the four calls that a slot makes
            finally:
                assert not lock.locked()

        try:
            asyncio.run(run())
        finally:
            self.session.close()

    def lose_at(self, point: Point) -> None:
        """The next delivery loses its channel there."""
        self.lost_at = point

    def pass_by(self, point: Point, _: str) -> None:
        self.channel.lives = point is not self.lost_at
        if not self.channel.lives:
            self.lost_at = None

    def execute(self, sql: str) -> None:
        with sqlite3.connect(self.path) as db:
            db.execute(sql)
        db.close()

    def effects(self) -> list[int]:
        with sqlite3.connect(self.path) as db:
            found = [row[0] for row in db.execute("SELECT number FROM effects")]
        db.close()
        return found

    def kinds(self) -> list[str]:
        return [" ".join(each.split()[:3]) for each in self.statements]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


KEYED = "CREATE TABLE keyed (number INTEGER PRIMARY KEY)"


async def insert(order: Order, db: AsyncConnection) -> Order:
    await db.execute("INSERT INTO effects VALUES (?)", (order.number,))
    return Order(order.number + 1)


def insert_blocking(order: Order, db: sqlite3.Connection, ctx: Context) -> Order:
    db.execute("INSERT INTO effects VALUES (?)", (order.number,))
    assert ctx.message_id == "m1"
    return Order(order.number + 1)


@pytest.mark.parametrize("function", [insert, insert_blocking])
def test_once_costs_two_statements_a_message(place: Place, function: Any) -> None:
    place.handle(place.stage(function, once=True))
    assert place.kinds() == [
        "BEGIN IMMEDIATE /*",
        "INSERT INTO understudy_inbox",
        "INSERT INTO effects",
        "INSERT INTO understudy_outbox",
        "COMMIT /* understudy",
    ]
    assert [each.body for each in place.channel.settled] == [b'{"number":8}']
    assert place.marker.ids == [place.channel.settled[0].id]
    assert place.channel.tags == [5]


@pytest.mark.parametrize("function", [insert, insert_blocking])
def test_without_once_no_statement_is_added(place: Place, function: Any) -> None:
    place.handle(place.stage(function))
    assert place.kinds() == ["BEGIN IMMEDIATE /*", "INSERT INTO effects", "COMMIT /* understudy"]


def test_a_stage_that_has_no_database_begins_no_transaction(place: Place) -> None:
    def nothing(order: Order) -> None: ...

    place.handle(place.stage(nothing))
    assert place.statements == []
    assert place.channel.tags == [5]


def test_a_second_delivery_is_settled_without_the_function(place: Place) -> None:
    stage = place.stage(insert, once=True)
    place.handle(stage)
    first = list(place.channel.settled)
    place.channel.settled.clear()
    place.handle(stage)
    assert place.effects() == [7]
    assert place.channel.settled == first  # unmarked still: the same id again


def test_a_channel_that_is_lost_while_the_stage_runs_rolls_the_database_back(place: Place) -> None:
    async def lose(order: Order, db: AsyncConnection) -> None:
        await insert(order, db)
        place.channel.lives = False

    with pytest.raises(LostError):
        place.handle(place.stage(lose, once=True))
    assert place.effects() == []


def commit(order: Order, db: sqlite3.Connection) -> None:
    db.execute("INSERT INTO effects VALUES (1)")
    db.commit()


def commit_as_text(order: Order, db: sqlite3.Connection) -> None:
    db.execute("INSERT INTO effects VALUES (1)")
    db.cursor().execute("COMMIT")


def commit_by_script(order: Order, db: sqlite3.Connection) -> None:
    db.execute("INSERT INTO effects VALUES (1)")
    db.executescript("INSERT INTO effects VALUES (2)")


def commit_by_with(order: Order, db: sqlite3.Connection) -> None:
    with db:
        db.execute("INSERT INTO effects VALUES (1)")


def rollback_in_secret(order: Order, db: sqlite3.Connection) -> None:
    try:
        db.execute("ROLLBACK")
    except sqlite3.DatabaseError:
        return


async def commit_in_a_coroutine(order: Order, db: AsyncConnection) -> None:
    await db.execute("COMMIT")


@pytest.mark.parametrize(
    "function",
    [commit, commit_as_text, commit_by_script, commit_by_with, rollback_in_secret, commit_in_a_coroutine],
)
def test_a_stage_that_ends_its_transaction_is_told_and_changes_nothing(place: Place, function: Any) -> None:
    place.handle(place.stage(function, once=True))
    assert place.effects() == []
    (dead,) = place.channel.settled
    assert dead.queue == "first.dead"
    assert (
        "inside of a stage" in dead.headers[headers.EXCEPTION_TEXT]
        or "ends the transaction" in dead.headers[headers.EXCEPTION_TEXT]
    )


def test_a_full_disk_is_a_failed_attempt_though_sqlite_rolls_back_by_itself(place: Place) -> None:
    def fill(order: Order, db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO effects VALUES (1)")
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count = {pages + 1}")
        db.execute("INSERT OR ROLLBACK INTO effects SELECT value FROM json_each(?)", (str(list(range(9999))),))

    place.handle(place.stage(fill, once=True))
    (again,) = place.channel.settled
    assert (again.queue, again.headers[headers.FAILURES]) == ("first", 1)
    assert place.effects() == []


def raise_stop_iteration(order: Order, db: sqlite3.Connection) -> None:
    raise StopIteration


async def cancel_itself(order: Order, db: AsyncConnection) -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("function", [raise_stop_iteration, cancel_itself])
def test_an_exception_that_asyncio_takes_for_itself_is_a_failed_attempt(place: Place, function: Any) -> None:
    place.handle(place.stage(function, once=True))
    (again,) = place.channel.settled
    assert (again.queue, again.headers[headers.FAILURES]) == ("first", 1)


def test_hooks_run_after_both_commits_and_their_errors_change_nothing(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[int] = []

    def hooked(order: Order, ctx: Context) -> None:
        ctx.after_commit(lambda: ran.append(len(place.channel.tags)))
        ctx.after_commit(lambda: 1 / 0)

    place.handle(place.stage(hooked))
    assert ran == [1]
    assert "a hook after the commit of first failed" in caplog.text


def test_no_hook_runs_after_a_failure(place: Place) -> None:
    ran: list[int] = []

    def hooked(order: Order, ctx: Context) -> None:
        ctx.after_commit(lambda: ran.append(1))
        raise ValueError("no")

    place.handle(place.stage(hooked, retry=Retry(1)))
    assert (ran, place.channel.settled[0].queue) == ([], "first.dead")


def test_without_once_a_lost_commit_of_the_broker_leaves_the_database_changed_and_is_logged(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    stage = place.stage(insert)
    place.lose_at(Point.AFTER_DATABASE_COMMIT)
    with pytest.raises(LostError):
        place.handle(stage)
    assert "message m1 may be processed again" in caplog.text
    place.handle(stage)
    assert place.effects() == [7, 7]


@pytest.mark.parametrize(
    ("statement", "left"),
    [
        ("SELECT count(*) FROM effects", [1, 7]),
        ("DELETE FROM effects WHERE number = 7", [1]),
        ("UPDATE effects SET number = 9 WHERE number >= 7", [1, 9]),
    ],
)
def test_work_that_is_idempotent_by_nature_may_be_done_twice(place: Place, statement: str, left: list[int]) -> None:
    async def work(order: Order, db: AsyncConnection) -> Order:
        await db.execute(statement)
        return order

    place.execute("INSERT INTO effects VALUES (1), (7)")
    stage = place.stage(work)
    place.lose_at(Point.AFTER_DATABASE_COMMIT)
    with pytest.raises(LostError):
        place.handle(stage)
    place.handle(stage)
    assert sorted(place.effects()) == left
    assert [each.queue for each in place.channel.settled] == ["after"]


def test_a_stage_that_trips_over_its_own_key_never_sends(place: Place) -> None:
    """The way of working against which the manual warns."""

    async def insert_keyed(order: Order, db: AsyncConnection) -> Order:
        await db.execute("INSERT INTO keyed VALUES (?)", (order.number,))
        return order

    place.execute(KEYED)
    stage = place.stage(insert_keyed, retry=Retry(2))
    place.lose_at(Point.AFTER_DATABASE_COMMIT)
    with pytest.raises(LostError):
        place.handle(stage)
    place.handle(stage)
    place.handle(stage, headers=place.channel.settled[-1].headers)
    assert [each.queue for each in place.channel.settled] == ["first", "first.dead"]
    assert "UNIQUE" in place.channel.settled[-1].headers[headers.EXCEPTION_TEXT]


def test_a_stage_that_asks_first_sends_after_all(place: Place) -> None:
    async def ask_first(order: Order, db: AsyncConnection) -> Order:
        found = await db.execute("SELECT 1 FROM keyed WHERE number = ?", (order.number,))
        if found.one() is None:
            await db.execute("INSERT INTO keyed VALUES (?)", (order.number,))
        return order

    place.execute(KEYED)
    stage = place.stage(ask_first)
    place.lose_at(Point.AFTER_DATABASE_COMMIT)
    with pytest.raises(LostError):
        place.handle(stage)
    place.handle(stage)
    assert [each.queue for each in place.channel.settled] == ["after"]


class RefusingChannel(Channel):
    """Refuses the first commit, and then says three times that it would refuse the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[bool] = []
        self.consumed = 0

    async def consume(self, queue: str, *, alone: bool) -> None:
        self.consumed += 1

    async def next(self) -> Arrival:
        if self.settled:
            await asyncio.sleep(60)
        return Arrival(5, Delivery(id="m1", stage="first", body=b'{"number": 7}', headers={}))

    async def settle(self, envelopes: Sequence[Envelope], tag: int, **_: Any) -> None:
        if self.consumed == 1:
            raise LostError("506 RESOURCE_ERROR")
        self.settled.extend(envelopes)

    def join(self, _: str, envelopes: Sequence[Envelope], tag: int, **__: Any) -> Any:
        return self.settle(envelopes, tag)

    async def precheck(self, *, brings: bool) -> str:
        self.asked.append(brings)
        return "no room" if len(self.asked) <= 3 else ""

    async def close(self) -> None: ...


class JointSession:
    """The part of a session over both that a slot needs."""

    async def begin(self) -> None: ...

    async def commit(self, part: Callable[[str], Any]) -> None:
        await part("branch")

    async def rollback(self) -> None: ...

    def ended_by_stage(self, *, failed: bool) -> str:
        return ""


@pytest.mark.parametrize("xa", [False, True])
def test_after_a_refused_commit_no_message_is_taken_before_the_broker_takes_commits_again(xa: bool) -> None:
    """Each hand-out counted as one that ends its worker: with a full disk the twentieth made a dead letter."""
    stages = Stages("shop", broker="amqp://nowhere/", database=postgresql("dbname=shop"))
    calls: list[int] = []

    @stages.stage("first", xa=xa)
    def first(order: Order, ctx: Context) -> None:
        calls.append(order.number)
        ctx.send(first, order)

    channel = RefusingChannel()

    class NoConnection:
        async def ensure(self, queue: str) -> None: ...

    async def opened(_: Any) -> Any:
        return channel

    async def run() -> None:
        connection: Any = NoConnection()
        session: Any = JointSession() if xa else None
        slot = Slot(first, connection, session, None, None, lambda *_: None, open_channel=opened)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(slot.run())
            async with asyncio.timeout(60):
                while not channel.settled:  # noqa: ASYNC110  # the slot sets no event
                    await asyncio.sleep(0.01)
            slot.stop()

    clock_before = clock.use(SkippingClock())
    try:
        asyncio.run(run())
    finally:
        clock.use(clock_before)
    assert (calls, channel.consumed, channel.asked) == ([7, 7], 2, [True] * 4)


def test_the_pause_of_a_message_that_is_given_back_grows_until_the_database_is_there(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    async def sleep(seconds: float) -> None:
        asked.append(seconds)

    async def run() -> None:
        slot = Slot(place.stage(insert), None, None, None, None, place.pass_by)  # type: ignore[arg-type]
        arrival = Arrival(5, delivery())
        for _ in range(4):
            await slot._give_back(do.GiveBack(OSError("away")), place.channel, arrival)  # type: ignore[arg-type]
        await slot._settle(do.Settle(), place.channel, arrival)  # type: ignore[arg-type]
        await slot._give_back(do.GiveBack(OSError("away")), place.channel, arrival)  # type: ignore[arg-type]

    monkeypatch.setattr("understudy.client.stages.broker.connection.asyncio.sleep", sleep)
    asyncio.run(run())
    assert [0.05 <= each / bound <= 0.1 for each, bound in zip(asked, (1, 2, 4, 8, 1), strict=True)] == [True] * 5


@pytest.mark.parametrize("awaited", [False, True])
def test_the_hash_of_a_stack_is_that_of_the_stage_s_own_frames(tmp_path: Path, awaited: bool) -> None:
    def below() -> None:
        raise ValueError("no")

    def blocking(order: Order) -> None:
        below()

    async def waiting(order: Order) -> None:
        below()

    place = Place(tmp_path)
    place.handle(place.stage(waiting if awaited else blocking, retry=Retry(1)))
    (dead,) = place.channel.settled
    name = "waiting" if awaited else "blocking"
    local = "test_the_hash_of_a_stack_is_that_of_the_stage_s_own_frames.<locals>"
    text = "".join(f"test_slot.py:{local}.{each}\n" for each in (name, "below"))
    assert dead.headers[headers.STACK] == hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
