"""A client's conclusions from the end of a transaction or a branch, and its log, which is written in time."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from understudy.client.runs.session import OUTCOME_EXCHANGE, Address, LostError, RefusedError
from understudy.client.stress.libraries.connection import DTX_EXCHANGE, Connection, Delivery, Session
from understudy.client.stress.workloads.branches import Manager
from understudy.client.stress.workloads.fifo import Confirmer, Producer
from understudy.client.stress.workloads.worker import Worker, body_of
from understudy.client.verdicts import COMMITTED, ROLLED_BACK, ClientLog, Event, History, Message, read_logs

LOST = LostError("the connection closed")


class FakeConnection:
    """Raises what it is told to, at the calls of that name; answers ``outcome`` with ``committed``.

    Attributes:
        statuses: by verb, of dtx; 0 without one.
    """

    def __init__(self, **errors: Exception) -> None:
        self.errors = errors
        self.statuses: dict[str, int] = {}
        self.calls: list[str] = []

    def _do(self, name: str) -> None:
        self.calls.append(name)
        if name in self.errors:
            raise self.errors[name]

    def declare(self, queue: str, arguments: Mapping[str, Any] | None = None) -> int:
        self._do("declare")
        return 0

    def select(self) -> None:
        self._do("select")

    def select_confirms(self) -> None:
        self._do("select_confirms")

    def declare_exchange(self, exchange: str, kind: str, arguments: Mapping[str, Any]) -> None:
        self._do("declare_exchange")

    def bind(self, queue: str, exchange: str) -> None:
        self._do("bind")

    def publish(self, queue: str, body: bytes, tx: str = "", *, exchange: str = "", delay_ms: int = 0) -> None:
        self._do("publish")

    def get(self, queue: str) -> Delivery | None:
        self._do("get")
        return Delivery(queue, 1, False, body_of(Message("old/0", queue)))

    def consume(self, queues: Sequence[str], prefetch: int) -> None:
        self._do("consume")

    def next_delivery(self, timeout_s: float) -> Delivery | None:
        self._do("next_delivery")
        return None

    def acknowledge(self, tag: int, *, multiple: bool = False) -> None:
        self._do("acknowledge")

    def reject(self, tag: int, *, requeue: bool) -> None:
        self._do("reject")

    def commit(self) -> None:
        self._do("commit")

    def rollback(self) -> None:
        self._do("rollback")

    def ask(self, exchange: str, body: bytes) -> bytes:
        if exchange == OUTCOME_EXCHANGE:
            self._do("outcome")
            return b"committed"
        assert exchange == DTX_EXCHANGE
        verb = json.loads(body)["verb"]
        self._do(verb)
        return json.dumps({"status": self.statuses.get(verb, 0)}).encode()

    def close(self) -> None:
        self.calls.append("close")


class Stage:
    """Workers with a log each, on connections that a test gives."""

    def __init__(self, folder: Path, logs: ExitStack) -> None:
        self._folder = folder
        self._logs = logs
        self.connections: list[FakeConnection] = []

    def connect(self, _: Address, __: tuple[str, str], ___: str) -> Connection:
        return self.connections.pop(0)

    def log(self, name: str) -> ClientLog:
        return self._logs.enter_context(ClientLog(self._folder / f"{name}.jsonl", name))

    def about(self, name: str) -> tuple[Any, ...]:
        session = Session(self.connect, [Address("h", 1)], ("u", "p"), name)
        return session, self.log(name), Random(1), 0.001

    def history(self) -> History:
        return History.of(read_logs(self._folder))

    def events(self) -> list[Event]:
        return [entry.event for entry in read_logs(self._folder)]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with ExitStack() as logs:
        yield Stage(tmp_path, logs)


def once(worker: Worker, connection: FakeConnection) -> None:
    """One piece of work; what ends the connection is not raised, as in a worker's own loop."""
    try:
        worker.settle(connection)
        worker.prepare(connection)
        worker.work(connection)
    except (LostError, RefusedError):
        pass


@pytest.mark.parametrize(
    ("errors", "told", "by", "unknown"),
    [
        ({}, (COMMITTED,), "", False),
        ({"publish": LOST}, (ROLLED_BACK,), "loss", False),
        ({"commit": LOST}, (), "", True),
        ({"commit": RefusedError(406, "no")}, (ROLLED_BACK,), "broker", False),
        ({"commit": RefusedError(320, "away")}, (), "", True),
    ],
)
def test_how_a_transaction_ended(
    stage: Stage, errors: dict[str, Exception], told: tuple[str, ...], by: str, unknown: bool
) -> None:
    producer = Producer(*stage.about("p"), queue="q")
    once(producer, FakeConnection(**errors))
    (tx,) = stage.history().transactions.values()
    assert (tx.told, tx.rolled_back_by, tx.unknown) == (told, by, unknown)
    assert producer.owes == unknown


def test_an_unknown_outcome_is_asked_for_before_anything_else(stage: Stage) -> None:
    producer = Producer(*stage.about("p"), queue="q")
    once(producer, FakeConnection(commit=LOST))
    again = FakeConnection()
    once(producer, again)
    assert again.calls[0] == "outcome"
    first, second = stage.history().transactions.values()
    assert (first.told, second.told) == ((COMMITTED,), (COMMITTED,))


def test_a_worker_goes_on_until_nothing_is_owed(stage: Stage) -> None:
    producer = Producer(*stage.about("p"), queue="q")
    once(producer, FakeConnection(commit=LOST))
    stage.connections = [FakeConnection(outcome=LOST), FakeConnection()]
    stop = threading.Event()
    stop.set()
    producer.run(stop, threading.Event())
    assert producer.fault is None
    assert stage.events()[-3:] == [Event.LOST, Event.CONNECTED, Event.RESOLVED]


def test_what_a_producer_confirms_is_a_stream_a_connection(stage: Stage) -> None:
    confirmer = Confirmer(*stage.about("c"), queue="q", new_log=stage.log)
    once(confirmer, FakeConnection())
    once(confirmer, FakeConnection(publish=RefusedError(0, "nacked")))
    once(confirmer, FakeConnection(publish=LOST))
    history = stage.history()
    assert [each.client for each in history.sent.values()] == ["c.1", "c.2", "c.3"]
    assert (len(history.confirmed), len(history.refused)) == (1, 1)


@pytest.mark.parametrize(
    ("errors", "statuses", "by"),
    [
        ({"publish": LOST}, {}, "loss"),
        ({"prepare": LOST}, {}, "loss"),
        ({}, {"prepare": 1}, "broker"),
    ],
)
def test_a_branch_that_is_not_prepared_is_rolled_back(
    stage: Stage, errors: dict[str, Exception], statuses: dict[str, int], by: str
) -> None:
    manager = Manager(*stage.about("m"))
    broken = FakeConnection(**errors)
    broken.statuses = statuses
    once(manager, broken)
    if manager.owes:
        manager.settle(FakeConnection())
    assert not manager.owes
    (tx,) = stage.history().transactions.values()
    assert (tx.told, tx.rolled_back_by) == ((ROLLED_BACK,), by)


def test_a_decision_is_said_until_it_is_answered(stage: Stage) -> None:
    """404 to a commit that was said before means that it was carried out."""
    manager = Manager(*stage.about("m"))
    once(manager, FakeConnection(commit=LOST))
    with pytest.raises(LostError):
        manager.settle(FakeConnection(commit=LOST))
    with pytest.raises(RefusedError):
        manager.settle(FakeConnection(commit=RefusedError(404, "no such branch")))
    assert not manager.owes
    (tx,) = stage.history().transactions.values()
    assert tx.told == (COMMITTED,)


@pytest.mark.parametrize("refused", [True, False])
def test_a_prepared_branch_that_cannot_be_committed_is_a_violation(stage: Stage, refused: bool) -> None:
    manager = Manager(*stage.about("m"))
    connection = FakeConnection(**({"commit": RefusedError(404, "no such branch")} if refused else {}))
    connection.statuses = {"commit": 1}
    once(manager, connection)
    assert not manager.owes
    (tx,) = stage.history().transactions.values()
    assert tx.unresolved
