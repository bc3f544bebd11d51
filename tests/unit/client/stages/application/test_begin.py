"""Initiations whose broker is not there: what is committed, and which error says so. One suite for both edges."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from tests.unit.client.stages.place import Order
from understudy.client.stages import (
    AlreadyBegunError,
    AsyncConnection,
    DemarcationError,
    NotCommittedError,
    NotSentError,
    OutcomeUnknownError,
    Stages,
    sqlite,
)
from understudy.client.stages.broker.connection import LostError
from understudy.client.stages.core.sends import Origin
from understudy.client.stages.databases.sqlite_database import SqliteSession
from understudy.client.stages.initiations import loop_thread, sender


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a port that is bound, and at which nothing listens."""
    monkeypatch.setattr(sender, "SEND_TIMEOUT_S", 0.1)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"amqp://127.0.0.1:{bound.getsockname()[1]}/"


Body = Callable[[Any], Iterable[str] | None]
"""The work of an initiation: it gives the statements that are to be executed."""
INSERT = "INSERT INTO orders VALUES (1)"


class Place:
    def __init__(self, path: Path, address: str, *, waits: bool, database: bool = True) -> None:
        self.path = path
        self.waits = waits
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE orders (number INTEGER)")
        db.close()
        self.stages = Stages("shop", broker=address, database=sqlite(path) if database else None)

        @self.stages.stage("reserve")
        def reserve(order: Order) -> None: ...

        self.checkout = self.stages.flow("checkout", reserve)

    def begin(self, *bodies: Body, **arguments: Any) -> None:
        """Initiations, one after the other, by the edge of this place."""
        if self.waits:
            asyncio.run(self._async(bodies, arguments))
            return
        try:
            for body in bodies:
                with self.stages.begin(**arguments) as tx:
                    for sql in body(tx) or ():
                        tx.db.execute(sql)
        finally:
            self.stages.close_blocking()

    async def _async(self, bodies: tuple[Body, ...], arguments: dict[str, Any]) -> None:
        try:
            for body in bodies:
                async with self.stages.begin(**arguments) as tx:
                    for sql in body(tx) or ():
                        await tx.db.execute(sql)
        finally:
            await self.stages.close()

    def rows(self, table: str) -> list[Any]:
        with sqlite3.connect(self.path) as db:
            found = db.execute(f"SELECT * FROM {table}").fetchall()
        db.close()
        return found

    def order(self, tx: Any) -> Iterator[str]:
        yield INSERT
        self.checkout.send(Order(1))


@pytest.fixture(params=["async", "blocking"])
def waits(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "async")


@pytest.fixture
def place(tmp_path: Path, nowhere: str, waits: bool) -> Place:
    return Place(tmp_path / "shop.db", nowhere, waits=waits)


def test_with_an_outbox_the_messages_wait_for_the_broker(place: Place) -> None:
    place.begin(place.order)
    assert place.rows("orders") == [(1,)]
    ((_, id_, stage, _, queue, *_),) = place.rows("understudy_outbox")
    assert (stage, queue, len(id_)) == ("begin:shop", "reserve", 32)


def test_without_an_outbox_nothing_is_committed_if_the_broker_would_refuse_the_messages(place: Place) -> None:
    with pytest.raises(NotCommittedError, match=r"would refuse 1 messages of initiation .*no broker answers"):
        place.begin(place.order, outbox=False)
    assert place.rows("orders") == place.rows("understudy_outbox") == []
    place.begin(lambda tx: [INSERT])  # the transaction is over


@pytest.fixture
def lost_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker answers the question right before the database commits, and is lost then."""

    async def ok(_: sender.Sender) -> str:
        return ""

    monkeypatch.setattr(sender.Sender, "precheck", ok)


@pytest.mark.usefixtures("lost_later")
def test_without_an_outbox_the_error_says_that_the_database_is_committed(place: Place) -> None:
    with pytest.raises(NotSentError, match="the database is committed; 1 messages"):
        place.begin(place.order, outbox=False)
    assert place.rows("orders") == [(1,)]
    assert place.rows("understudy_outbox") == []


def test_an_initiation_that_sends_nothing_asks_no_broker(place: Place) -> None:
    place.begin(lambda tx: [INSERT], outbox=False)  # no broker is there
    assert place.rows("orders") == [(1,)]


def test_without_a_database_the_error_says_that_nothing_is_committed(tmp_path: Path, nowhere: str, waits: bool) -> None:
    place = Place(tmp_path / "shop.db", nowhere, waits=waits, database=False)
    with pytest.raises(NotCommittedError, match="1 messages of initiation"):
        place.begin(lambda tx: place.checkout.send(Order(1)) and None)


@pytest.mark.parametrize("error", [KeyError("mine"), StopIteration("mine"), KeyboardInterrupt("mine")])
def test_an_error_of_the_caller_goes_through_and_nothing_is_committed(
    tmp_path: Path, nowhere: str, error: BaseException
) -> None:
    place = Place(tmp_path / "shop.db", nowhere, waits=False)

    def begin() -> None:
        with place.stages.begin() as tx:
            tx.db.execute(INSERT)
            place.checkout.send(Order(1))
            raise error

    with pytest.raises(type(error), match="mine"):
        begin()
    assert place.rows("orders") == place.rows("understudy_outbox") == []
    place.begin(lambda tx: [INSERT])
    assert place.rows("orders") == [(1,)]


def test_an_error_of_a_coroutine_goes_through_and_nothing_is_committed(tmp_path: Path, nowhere: str) -> None:
    place = Place(tmp_path / "shop.db", nowhere, waits=True)

    async def begin(error: BaseException) -> None:
        async with place.stages.begin() as tx:
            await tx.db.execute(INSERT)
            place.checkout.send(Order(1))
            raise error

    async def cancelled() -> None:
        for error in (KeyError("mine"), asyncio.CancelledError("mine")):
            with pytest.raises(type(error), match="mine"):
                await begin(error)
        await place.stages.close()

    asyncio.run(cancelled())
    assert place.rows("orders") == place.rows("understudy_outbox") == []


@pytest.mark.parametrize("step", ["begin", "store", "commit"])
def test_a_database_that_fails_before_its_commit_has_committed_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: Any) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(SqliteSession, step, fail)
    if step == "store":  # the connection is lost, but it was not asked to commit
        monkeypatch.setattr(SqliteSession, "commit_is_unknown", lambda _: True)
    with pytest.raises(NotCommittedError, match="disk I/O error"):
        place.begin(place.order)
    monkeypatch.undo()
    assert place.rows("orders") == place.rows("understudy_outbox") == []


def test_a_database_that_is_not_there_has_committed_nothing(tmp_path: Path, nowhere: str, waits: bool) -> None:
    place = Place(tmp_path / "shop.db", nowhere, waits=waits)
    place.path.unlink()
    place.path.mkdir()
    with pytest.raises(NotCommittedError, match=r"the database cannot begin: sqlite:.*inbox and outbox cannot be made"):
        place.begin(place.order)
    place.path.rmdir()
    with sqlite3.connect(place.path) as db:
        db.execute("CREATE TABLE orders (number INTEGER)")
    db.close()
    place.begin(place.order)
    assert place.rows("orders") == [(1,)]


def test_an_initiation_of_a_name_is_committed_once(place: Place) -> None:
    place.begin(place.order, name="web-17")
    with pytest.raises(AlreadyBegunError, match="'web-17'"):
        place.begin(place.order, name="web-17")
    place.begin(place.order, name="web-18")
    assert len(place.rows("orders")) == 2
    assert len({row[1] for row in place.rows("understudy_outbox")}) == 2


@pytest.mark.parametrize("options", [{"outbox": False}, {}])
def test_a_name_needs_a_database_and_an_outbox(
    tmp_path: Path, nowhere: str, waits: bool, options: dict[str, Any]
) -> None:
    place = Place(tmp_path / "shop.db", nowhere, waits=waits, database=bool(options))
    with pytest.raises(DemarcationError, match="it needs both"):
        place.begin(lambda tx: None, name="web-17", **options)


def test_an_initiation_may_not_end_its_transaction(place: Place) -> None:
    with pytest.raises(DemarcationError, match=r"ends the transaction of its database \(COMMIT\)"):
        place.begin(lambda tx: [INSERT, "COMMIT"])
    assert place.rows("orders") == []


def test_an_initiation_inside_of_another_is_refused_at_once(place: Place) -> None:
    def inside(tx: Any) -> None:
        with place.stages.begin():
            pass

    with pytest.raises(DemarcationError, match="would wait for the transaction around it"):
        place.begin(inside)


def test_an_initiation_over_both_needs_a_database_that_can_prepare(place: Place) -> None:
    with pytest.raises(DemarcationError, match=r"sqlite:.*shop.db cannot prepare one: postgresql"):
        place.begin(place.order, xa=True)


def test_an_initiation_is_entered_once(place: Place) -> None:
    begun = place.stages.begin()
    with begun:
        pass
    with pytest.raises(DemarcationError, match="is entered once"), begun:
        pass
    place.stages.close_blocking()


def test_a_message_after_the_end_is_refused(place: Place) -> None:
    kept: list[Any] = []
    place.begin(kept.append)
    with pytest.raises(DemarcationError, match="has ended"):
        kept[0].sends.send(place.stages.stages["reserve"], Order(1))


def test_a_stash_goes_on_with_its_flow_under_an_id_of_its_own(place: Place) -> None:
    @place.stages.stage("charge")
    def charge(order: Order) -> None: ...

    @place.stages.stage("ask")
    def ask(order: Order) -> Order: ...  # type: ignore[empty-body]

    place.stages.flow("asked", ask, charge)
    stash = Origin(id="m1", scope="ask", flow="asked", flow_id="f1", trace_id="t1").stash()
    ids: list[str] = []

    def go_on(tx: Any) -> None:
        ids.append(tx.unstash(stash, Order(2)))
        (sent,) = tx.sends.envelopes
        assert sent.queue == "charge"
        assert sent.headers == {"x-stages-flow": "asked", "x-stages-flow-id": "f1", "x-stages-trace-id": "t1"}
        for bad in (b"", b"understudy-stash-2:{}", b"understudy-stash-1:{}"):
            with pytest.raises(DemarcationError, match="are no stash"):
                tx.unstash(bad, Order(2))
        tx.sends.envelopes.clear()

    place.begin(go_on, go_on, outbox=False)
    assert ids[0] == ids[1]

    def go_on_twice(tx: Any) -> Iterator[str]:
        yield INSERT
        for number in (2, 3):
            tx.unstash(stash, Order(number))

    place.begin(go_on_twice, go_on_twice)  # twice in one initiation, and while the first row waits for the broker
    assert place.rows("orders") == [(1,), (1,)]
    ((_, id_, *_),) = place.rows("understudy_outbox")
    assert id_ == ids[0]


def test_a_database_that_is_lost_while_it_commits_leaves_the_outcome_unknown(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise sqlite3.OperationalError("connection lost")

    monkeypatch.setattr(SqliteSession, "commit", fail)
    monkeypatch.setattr(SqliteSession, "commit_is_unknown", lambda _: True)
    with pytest.raises(OutcomeUnknownError, match="connection lost"):
        place.begin(place.order)


def test_a_mark_that_fails_is_logged_and_changes_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def sent(*_: Any) -> Any:
        from understudy.client.stages.core.initiating import Sent

        return Sent()

    def fail(*_: Any) -> None:
        raise sqlite3.OperationalError("away")

    monkeypatch.setattr(sender.Sender, "send", sent)
    monkeypatch.setattr(SqliteSession, "mark", fail)
    place.begin(place.order)
    assert "cannot be marked as sent: away" in caplog.text
    assert len(place.rows("understudy_outbox")) == 1


@pytest.mark.parametrize("kind", [AsyncConnection, aiosqlite.Connection, AsyncSession, sqlite3.Connection, Session])
def test_the_database_of_an_initiation_is_of_the_type_that_is_asked_for(
    tmp_path: Path, nowhere: str, kind: Any
) -> None:
    blocks = kind in {sqlite3.Connection, Session}
    place = Place(tmp_path / "shop.db", nowhere, waits=not blocks)
    insert: Any = text(INSERT) if "Session" in kind.__name__ else INSERT

    def work(tx: Any) -> Any:
        assert isinstance(tx.db, kind)
        return [insert]

    place.begin(work, work, db=kind)
    assert place.rows("orders") == [(1,), (1,)]
    other = Place(tmp_path / "other.db", nowhere, waits=blocks)
    with pytest.raises(DemarcationError, match="the application's database gives, in this `"):
        other.begin(work, db=kind)


def test_initiations_of_two_event_loops_do_not_share_a_connection(tmp_path: Path, nowhere: str) -> None:
    place = Place(tmp_path / "shop.db", nowhere, waits=True)

    async def order() -> Any:
        async with place.stages.begin() as tx:
            await tx.db.execute(INSERT)
        return place.stages._initiators

    initiators = asyncio.run(order())
    (first,) = initiators.by_loop.values()
    (idle,) = first.idle[None]
    asyncio.run(place.stages.close())
    assert initiators.by_loop == first.idle == {}
    assert idle._blocking.opened is None
    asyncio.run(order())
    place.begin(place.order)
    assert initiators.by_loop == {}
    assert len(place.rows("orders")) == 3


def test_an_initiation_ends_on_its_own_loop_when_another_loop_has_begun_one(tmp_path: Path, nowhere: str) -> None:
    place = Place(tmp_path / "shop.db", nowhere, waits=True)

    async def other() -> None:
        place.stages._initiators.of_loop()  # type: ignore[union-attr]

    async def order() -> None:
        for _ in range(2):
            async with place.stages.begin() as tx:
                await tx.db.execute(INSERT)
                await asyncio.to_thread(asyncio.run, other())
        assert len(place.stages._initiators.of_loop().idle[None]) == 1  # type: ignore[union-attr]
        await place.stages.close()

    asyncio.run(order())
    assert place.rows("orders") == [(1,), (1,)]


def test_an_initiation_over_the_close_of_its_application_commits_and_leaves_nothing_open(place: Place) -> None:
    kept: list[Any] = []

    async def order() -> None:
        async with place.stages.begin() as tx:
            await tx.db.execute(INSERT)
            kept.append(place.stages._initiators.of_loop())  # type: ignore[union-attr]
            await place.stages.close()

    if place.waits:
        asyncio.run(order())
        assert kept[0].idle == {}
    else:
        with place.stages.begin() as tx:
            tx.db.execute(INSERT)
            kept.append(place.stages._initiators.of_process())  # type: ignore[union-attr]
            place.stages.close_blocking()
        assert kept[0]._idle == {}
    place.begin(lambda tx: [INSERT])
    assert place.rows("orders") == [(1,), (1,)]


def test_a_generator_that_is_closed_inside_of_an_initiation_rolls_it_back(place: Place) -> None:
    def orders() -> Iterator[None]:
        with place.stages.begin() as tx:
            tx.db.execute(INSERT)
            yield

    async def orders_async() -> AsyncIterator[None]:
        async with place.stages.begin() as tx:
            await tx.db.execute(INSERT)
            yield

    async def closed() -> None:
        begun = orders_async()
        await anext(begun)
        await asyncio.create_task(begun.aclose())  # type: ignore[attr-defined]  # in a context of its own, as asyncio does it
        assert not place.stages._initiators.of_loop().writer.locked()  # type: ignore[union-attr]
        idle: Any = place.stages._initiators.of_loop().idle[None][0]  # type: ignore[union-attr]
        assert not idle._blocking.opened.in_transaction
        await place.stages.close()

    if place.waits:
        asyncio.run(closed())
    else:
        begun: Any = orders()
        contextvars.Context().run(next, begun)
        contextvars.Context().run(begun.close)
        initiator: Any = place.stages._initiators.of_process()  # type: ignore[union-attr]
        assert not initiator.writer.locked()
        assert not initiator._idle[None][0].opened.in_transaction
    place.begin(lambda tx: [INSERT])
    assert place.rows("orders") == [(1,)]


def test_threads_begin_at_once_and_each_commits(tmp_path: Path, nowhere: str) -> None:
    place = Place(tmp_path / "shop.db", nowhere, waits=False)
    errors: list[Exception] = []

    def orders() -> None:
        try:
            for _ in range(5):
                with place.stages.begin(outbox=False) as tx:
                    tx.db.execute(INSERT)
        except Exception as error:  # noqa: BLE001  # asserted below
            errors.append(error)

    threads = [threading.Thread(target=orders) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    place.stages.close_blocking()
    assert errors == []
    assert len(place.rows("orders")) == 20


@pytest.mark.usefixtures("lost_later")
@pytest.mark.parametrize(("outbox", "call"), [(True, "send"), (False, "send"), (False, "precheck")])
def test_a_thread_that_sends_while_another_closes_the_application_is_told(
    tmp_path: Path, nowhere: str, monkeypatch: pytest.MonkeyPatch, outbox: bool, call: str
) -> None:
    sends = threading.Event()

    async def for_ever(*_: Any) -> Any:
        sends.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(sender.Sender, call, for_ever)
    place = Place(tmp_path / "shop.db", nowhere, waits=False)
    ends: list[Exception | None] = []

    def order() -> None:
        try:
            with place.stages.begin(outbox=outbox) as tx:
                tx.db.execute(INSERT)
                place.checkout.send(Order(1))
            ends.append(None)
        except (NotSentError, NotCommittedError) as error:
            ends.append(error)

    ordering = threading.Thread(target=order, daemon=True)
    ordering.start()
    assert sends.wait(60)
    place.stages.close_blocking()
    ordering.join(60)
    (end,) = ends
    assert (end is None) is outbox
    assert outbox or "were closed" in str(end)
    assert isinstance(end, NotCommittedError) is (call == "precheck")
    assert place.rows("orders") == ([] if call == "precheck" else [(1,)])
    assert len(place.rows("understudy_outbox")) == int(outbox)
    assert "understudy-stages-initiations" not in {each.name for each in threading.enumerate()}


def test_a_loop_that_closes_releases_the_caller_of_a_task_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_thread, "AGAIN_S", 0.01)
    thread = loop_thread.LoopThread("stubborn")
    begun = threading.Event()
    told: list[str] = []

    async def stubborn() -> None:
        begun.set()
        while not thread._loop.is_closed():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

    def call() -> None:
        try:
            thread.call(stubborn())
        except LostError as error:
            told.append(str(error))

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    assert begun.wait(60)
    thread.close()
    thread.close()
    caller.join(60)
    with pytest.raises(LostError):
        thread.call(stubborn())
    assert told == ["the initiations of the application were closed"]


FORKS = """
import os, sqlite3, sys
from understudy.client.stages import Stages, sqlite

stages = Stages("shop", broker="amqp://127.0.0.1:1/", database=sqlite(sys.argv[1]))

def order():
    with stages.begin(outbox=False) as tx:
        tx.db.execute("INSERT INTO orders VALUES (1)")

order()
of_parent = stages._initiators.blocking
child = os.fork()
if child == 0:
    order()
    assert stages._initiators.blocking is not of_parent and of_parent in stages._initiators._of_parent
    stages.close_blocking()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert stages._initiators.blocking is of_parent
order()
stages.close_blocking()
"""


def test_a_forked_child_has_connections_of_its_own_and_leaves_those_of_its_parent(tmp_path: Path, nowhere: str) -> None:
    place = Place(tmp_path / "shop.db", nowhere, waits=False)
    subprocess.run([sys.executable, "-c", FORKS, str(place.path)], check=True, timeout=60)
    assert len(place.rows("orders")) == 3


@pytest.mark.usefixtures("lost_later")
def test_work_that_was_reserved_for_a_flow_is_released_if_the_flow_has_not_begun(place: Place) -> None:
    """The way of working that the manual gives for `NotSentError`."""
    with sqlite3.connect(place.path) as db:
        db.execute("CREATE TABLE jobs (number INTEGER PRIMARY KEY, taken INTEGER NOT NULL DEFAULT 0)")
        db.execute("INSERT INTO jobs (number) VALUES (1), (2)")
    db.close()

    def take(tx: Any) -> Iterator[str]:
        yield "UPDATE jobs SET taken = 1 WHERE number = 1"
        place.checkout.send(Order(1))

    with pytest.raises(NotSentError):
        place.begin(take, outbox=False)
    assert place.rows("jobs") == [(1, 1), (2, 0)]
    place.begin(lambda tx: ["UPDATE jobs SET taken = 0 WHERE number = 1"])
    assert place.rows("jobs") == [(1, 0), (2, 0)]
