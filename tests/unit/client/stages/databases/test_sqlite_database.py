"""Inbox and outbox in an SQLite file."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.unit.client.stages.place import CHARGE, Order
from understudy.client.stages import ConfigurationError, Stages, sqlite
from understudy.client.stages.application.worker import Worker
from understudy.client.stages.broker.clock import now_ms
from understudy.client.stages.core.envelope import Envelope
from understudy.client.stages.core.sends import Origin, Sends
from understudy.client.stages.databases.port import in_thread
from understudy.client.stages.databases.sqlite_database import MOST_ROWS, SqliteRelaySession, SqliteSession
from understudy.client.stages.slots import relay
from understudy.client.stages.watching.points import pass_by


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "shop.db"
    sqlite(made).prepare()
    return made


@pytest.fixture
def session(path: Path) -> Iterator[SqliteSession]:
    opened = SqliteSession(path, blocking=True)
    yield opened
    opened.close()


def stored(session: SqliteSession, count: int, *, after: float = 0, message: str = "m1") -> list[Envelope]:
    """Rows of a message, at 1,000 ms."""
    sends = Sends(origin=Origin(id=message, scope="reserve"))
    for number in range(count):
        sends.send(CHARGE, Order(number), after=after)
    session.begin()
    session.store("reserve", message, sends.envelopes, 1_000)
    session.commit()
    return sends.envelopes


def unsent(session: SqliteSession) -> list[Envelope]:
    session.begin()
    found = session.unsent("reserve", "m1")
    session.rollback()
    return found


def test_what_is_stored_comes_back_in_its_order_until_it_is_marked(session: SqliteSession) -> None:
    envelopes = stored(session, MOST_ROWS + 5)
    assert unsent(session) == envelopes
    session.mark([each.id for each in envelopes[:-1]])
    assert unsent(session) == envelopes[-1:]


def test_a_row_is_leased_to_one_relay_until_the_lease_ends(path: Path, session: SqliteSession) -> None:
    other = SqliteSession(path, blocking=False)
    envelopes = stored(session, 3, after=1)
    (of_m2,) = stored(session, 1, message="m2")
    taken = session.lease("t1", now_ms=1_500, until_ms=3_000, stored_before_ms=1_400, most=2)
    assert [(each.id, each.after_ms) for each in taken] == [(each.id, 500) for each in envelopes[:2]]
    # The third row of m1 waits for the first two: the messages of one message stay in their order.
    rest = other.lease("t2", now_ms=1_500, until_ms=3_000, stored_before_ms=1_400, most=9)
    assert [each.id for each in rest] == [of_m2.id]
    again = other.lease("t3", now_ms=3_001, until_ms=5_000, stored_before_ms=1_400, most=9)
    assert [(each.id, each.after_ms) for each in again] == [(each.id, 0) for each in (*envelopes, of_m2)]
    other.close()


def test_a_young_row_is_left_to_the_worker_that_has_stored_it(session: SqliteSession) -> None:
    stored(session, 1)
    assert session.lease("t1", now_ms=1_500, until_ms=3_000, stored_before_ms=1_000, most=9) == []


def test_factories_of_a_stage_are_not_those_of_the_library_and_end_with_its_transaction(session: SqliteSession) -> None:
    envelopes = stored(session, 2)
    session.begin()
    db: Any = session.argument()
    db.row_factory = lambda cursor, row: {
        column[0]: value for column, value in zip(cursor.description, row, strict=True)
    }
    db.text_factory = bytes
    assert db.execute("SELECT 'a' AS one").fetchall() == [{"one": b"a"}]
    assert session.claim("reserve", "m2", 5)
    assert session.unsent("reserve", "m1") == envelopes
    assert session.run("SELECT stage FROM understudy_inbox", ()) == [("reserve",)]
    assert db.execute("SELECT 'a' AS one").fetchall() == [{"one": b"a"}]
    session.commit()
    session.begin()
    assert db.execute("SELECT 'a' AS one").fetchall() == [("a",)]
    session.commit()
    db.row_factory = sqlite3.Row
    taken = session.lease("t1", now_ms=1_500, until_ms=3_000, stored_before_ms=1_400, most=9)
    assert [each.id for each in taken] == [each.id for each in envelopes]


def test_a_begin_rolls_back_a_transaction_that_was_left_open(session: SqliteSession) -> None:
    session.begin()
    assert session.claim("reserve", "m1", 5)
    session.begin()
    assert session.claim("reserve", "m1", 5)
    session.commit()


def test_a_claim_that_is_rolled_back_is_none(session: SqliteSession) -> None:
    for committed, expected in ((False, True), (True, True), (False, False)):
        session.begin()
        assert session.claim("reserve", "m1", 5) is expected
        assert session.claim("charge", "m1", 5) is expected
        if committed:
            session.commit()
        else:
            session.rollback()


def test_an_inbox_forgets_what_is_old_a_slice_at_a_time_and_the_oldest_first(session: SqliteSession) -> None:
    session.begin()
    for number in range(5):
        session.claim("reserve", f"m{number}", number)
    session.commit()
    assert [session.prune(3, 2), session.prune(3, 2), session.prune(3, 2)] == [2, 1, 0]
    session.begin()
    assert [session.claim("reserve", f"m{number}", 9) for number in range(5)] == [True, True, True, False, False]
    session.rollback()


def test_a_relay_forgets_all_that_is_old_and_keeps_what_is_young(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "PRUNE_MOST", 2)
    now = now_ms()
    session = SqliteSession(path, blocking=False)
    session.begin()
    for number in range(6):
        session.claim("reserve", f"m{number}", now - (2 if number < 5 else 0) * 3_600_000)
    session.commit()

    async def prune() -> None:
        made = relay.Relay(
            None,  # type: ignore[arg-type]  # nothing is sent
            SqliteRelaySession(session),
            None,
            pass_by,
            retention=timedelta(hours=1),
        )
        await made.prune()

    asyncio.run(prune())
    session.begin()
    assert [session.claim("reserve", f"m{number}", now) for number in range(6)] == [True] * 5 + [False]
    session.rollback()
    session.close()


def test_an_inbox_of_a_newer_version_is_refused_before_the_first_message(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("ALTER TABLE understudy_inbox ADD COLUMN newer")
    db.close()
    stages = Stages("shop", broker="amqp://127.0.0.1:1/", database=sqlite(path))

    @stages.stage("reserve")
    def reserve(order: Order, db: sqlite3.Connection) -> None: ...

    text = r"understudy_inbox has the columns .*A newer version has added \['newer'\]: install that one"
    with pytest.raises(ConfigurationError, match=text):
        asyncio.run(Worker(stages).run())  # at once: it does not wait for a broker


def test_a_file_that_cannot_be_used_is_named_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="inbox and outbox cannot be made"):
        sqlite(tmp_path).prepare()


def test_a_call_in_a_thread_is_waited_for_also_by_a_task_that_the_end_of_its_loop_cancels() -> None:
    begun, may_end = threading.Event(), threading.Event()
    ended: list[bool] = []

    def call() -> None:
        begun.set()
        may_end.wait()
        ended.append(True)

    async def session() -> None:
        try:
            await in_thread(call)
        except asyncio.CancelledError:
            assert ended
            ended.append(True)
            raise

    async def main() -> None:
        task = asyncio.create_task(session())
        await asyncio.to_thread(begun.wait)
        asyncio.get_running_loop().call_later(0.05, may_end.set)
        assert not task.done()

    asyncio.run(main())
    assert ended == [True, True]
