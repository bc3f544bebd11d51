"""Initiations whose broker is not there: what is committed, and which error says so."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.client.stages.place import Order
from understudy.client.stages import (
    AlreadyBegunError,
    DemarcationError,
    NotCommittedError,
    NotSentError,
    OutcomeUnknownError,
    Stages,
    begin,
    sqlite,
)
from understudy.client.stages.databases.sqlite_database import SqliteSession


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a port that is bound, and at which nothing listens."""
    monkeypatch.setattr(begin, "SEND_TIMEOUT_S", 0.1)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"amqp://127.0.0.1:{bound.getsockname()[1]}/"


class Place:
    def __init__(self, path: Path, address: str, *, database: bool = True) -> None:
        self.path = path
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE orders (number INTEGER)")
        db.close()
        self.stages = Stages("shop", broker=address, database=sqlite(path) if database else None)

        @self.stages.stage("reserve")
        def reserve(order: Order) -> None: ...

        self.checkout = self.stages.flow("checkout", reserve)

    def run(self, work: Callable[[], Awaitable[None]]) -> None:
        async def whole() -> None:
            try:
                await work()
            finally:
                await self.stages.close()

        asyncio.run(whole())

    def rows(self, table: str) -> list[Any]:
        with sqlite3.connect(self.path) as db:
            found = db.execute(f"SELECT * FROM {table}").fetchall()
        db.close()
        return found

    async def order(self, **arguments: Any) -> None:
        async with self.stages.begin(**arguments) as tx:
            await tx.db.execute("INSERT INTO orders VALUES (1)")
            self.checkout.send(Order(1))


@pytest.fixture
def place(tmp_path: Path, nowhere: str) -> Place:
    return Place(tmp_path / "shop.db", nowhere)


def test_with_an_outbox_the_messages_wait_for_the_broker(place: Place) -> None:
    place.run(place.order)
    assert place.rows("orders") == [(1,)]
    ((_, id_, stage, _, queue, *_),) = place.rows("understudy_outbox")
    assert (stage, queue, len(id_)) == ("begin:shop", "reserve", 32)


def test_without_an_outbox_the_error_says_that_the_database_is_committed(place: Place) -> None:
    with pytest.raises(NotSentError, match="the database is committed; 1 messages"):
        place.run(lambda: place.order(outbox=False))
    assert place.rows("orders") == [(1,)]
    assert place.rows("understudy_outbox") == []


def test_an_initiation_that_sends_nothing_asks_no_broker(place: Place) -> None:
    async def nothing() -> None:
        async with place.stages.begin(outbox=False) as tx:
            await tx.db.execute("INSERT INTO orders VALUES (1)")

    place.run(nothing)  # no broker is there
    assert place.rows("orders") == [(1,)]


def test_without_a_database_the_error_says_that_nothing_is_committed(tmp_path: Path, nowhere: str) -> None:
    place = Place(tmp_path / "shop.db", nowhere, database=False)

    async def send() -> None:
        async with place.stages.begin():
            place.checkout.send(Order(1))

    with pytest.raises(NotCommittedError, match="1 messages of initiation"):
        place.run(send)


def test_an_error_of_the_caller_goes_through_and_nothing_is_committed(place: Place) -> None:
    async def fail() -> None:
        async with place.stages.begin() as tx:
            await tx.db.execute("INSERT INTO orders VALUES (1)")
            place.checkout.send(Order(1))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        place.run(fail)
    assert place.rows("orders") == place.rows("understudy_outbox") == []


@pytest.mark.parametrize("step", ["begin", "store", "commit"])
def test_a_database_that_fails_before_its_commit_has_committed_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: Any) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(SqliteSession, step, fail)
    with pytest.raises(NotCommittedError, match="disk I/O error"):
        place.run(place.order)
    monkeypatch.undo()
    assert place.rows("orders") == place.rows("understudy_outbox") == []


def test_an_initiation_of_a_name_is_committed_once(place: Place) -> None:
    async def twice() -> None:
        await place.order(name="web-17")
        with pytest.raises(AlreadyBegunError, match="'web-17'"):
            await place.order(name="web-17")
        await place.order(name="web-18")

    place.run(twice)
    assert len(place.rows("orders")) == 2
    assert len({row[1] for row in place.rows("understudy_outbox")}) == 2


def test_an_initiation_may_not_end_its_transaction(place: Place) -> None:
    async def commit() -> None:
        async with place.stages.begin() as tx:
            await tx.db.execute("INSERT INTO orders VALUES (1)")
            await tx.db.execute("COMMIT")

    with pytest.raises(DemarcationError, match=r"ends the transaction of its database \(COMMIT\)"):
        place.run(commit)
    assert place.rows("orders") == []


def test_an_initiation_inside_of_another_is_refused_at_once(place: Place) -> None:
    async def inside() -> None:
        async with place.stages.begin():
            await place.order()

    with pytest.raises(DemarcationError, match="would wait for the transaction around it"):
        place.run(inside)


def test_a_message_after_the_end_is_refused(place: Place) -> None:
    async def late() -> None:
        async with place.stages.begin() as tx:
            pass
        with pytest.raises(DemarcationError, match="has ended"):
            tx.sends.send(place.stages.stages["reserve"], Order(1))

    place.run(late)


def test_a_stash_goes_on_with_its_flow_under_an_id_of_its_own(place: Place) -> None:
    from understudy.client.stages.core.sends import Origin

    @place.stages.stage("charge")
    def charge(order: Order) -> None: ...

    @place.stages.stage("ask")
    def ask(order: Order) -> Order: ...  # type: ignore[empty-body]

    place.stages.flow("asked", ask, charge)
    stash = Origin(id="m1", scope="ask", flow="asked", flow_id="f1", trace_id="t1").stash()
    ids: list[str] = []

    async def twice() -> None:
        for _ in range(2):
            async with place.stages.begin(outbox=False) as tx:
                ids.append(tx.unstash(stash, Order(2)))
                (sent,) = tx.sends.envelopes
                assert sent.queue == "charge"
                assert sent.headers == {"x-stages-flow": "asked", "x-stages-flow-id": "f1", "x-stages-trace-id": "t1"}
                for bad in (b"", b"understudy-stash-2:{}", b"understudy-stash-1:{}"):
                    with pytest.raises(DemarcationError, match="are no stash"):
                        tx.unstash(bad, Order(2))
                tx.sends.envelopes.clear()

    place.run(twice)
    assert ids[0] == ids[1]


def test_a_database_that_is_lost_while_it_commits_leaves_the_outcome_unknown(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise sqlite3.OperationalError("connection lost")

    monkeypatch.setattr(SqliteSession, "commit", fail)
    monkeypatch.setattr(SqliteSession, "commit_is_unknown", lambda _: True)
    with pytest.raises(OutcomeUnknownError, match="connection lost"):
        place.run(place.order)


def test_initiations_of_two_event_loops_do_not_share_a_connection(place: Place) -> None:
    asyncio.run(place.order())
    first = place.stages._initiator
    place.run(place.order)
    assert first is not None
    asyncio.run(first.close())
    assert len(place.rows("orders")) == 2
