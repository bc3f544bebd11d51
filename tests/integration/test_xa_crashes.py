"""Every named point of a distributed transaction, hit with SIGKILL: both resource managers agree afterwards.

A point is a step of the client, before or after it, or a record, sync or reply of the state server. At the points around the
verbs of a resource manager that server is killed as well.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Iterator

import psycopg
import pytest
from amqp.exceptions import AMQPError

from tests.integration.broker_process import STOP_TIMEOUT_S, wait_until
from tests.integration.xa_place import Place, forked, killer, running_place, transfer
from tests.integration.xa_points import (
    BANK_POINTS,
    BOTH_FIRST_POINTS,
    BOTH_SECOND_POINTS,
    BOTH_SERVER_POINTS,
    BROKER_POINTS,
    CLIENT_POINTS,
    DECIDED,
    SERVER_POINTS,
)
from understudy.xa import OutcomeUnknownError, RolledBackError, XaError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

RUNS = int(os.environ.get("UNDERSTUDY_XA_RUNS", "8"))
"""Transfers that are killed at a random moment; each takes a quarter of a second."""


def test_there_are_enough_points() -> None:
    assert len({*CLIENT_POINTS, *SERVER_POINTS}) + len(BROKER_POINTS) + len(BANK_POINTS) >= 44
    of_both = {*BOTH_FIRST_POINTS, *BOTH_SECOND_POINTS, *BOTH_SERVER_POINTS}
    assert len(of_both - {*CLIENT_POINTS, *SERVER_POINTS}) == 37


@pytest.fixture(scope="module")
def whole_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with running_place(tmp_path_factory.mktemp("xa")) as place:
        yield place


@pytest.fixture
def place(whole_place: Place) -> Place:
    """All servers run. Each test begins and ends with both resource managers in agreement."""
    if whole_place.state.ended:
        whole_place.state.start()
    return whole_place


def told_of(place: Place, point: str, pid: int | None) -> str:
    """The outcome told to the client of one transfer when a server is killed at a point."""
    manager = place.manager(killer(point, pid))
    try:
        transfer(manager)
    except RolledBackError:
        return "rolled back"
    except OutcomeUnknownError:
        return "unknown"
    except (XaError, psycopg.Error, AMQPError, OSError):
        return "failed"
    else:
        return "committed"
    finally:
        manager.close()


def check(told: str, before: set[str], after: set[str]) -> None:
    """Check that the outcome that the client was told holds."""
    made = len(after - before)
    assert before <= after
    assert made in {"committed": (1,), "rolled back": (0,), "failed": (0,), "unknown": (0, 1)}[told], told


@pytest.mark.parametrize("point", CLIENT_POINTS)
def test_the_client_dies(place: Place, point: str) -> None:
    before = place.agree()
    assert forked(lambda: transfer(place.manager(killer(point)))) == -signal.SIGKILL
    recovered = place.recovered()
    after = place.agree()
    decided = CLIENT_POINTS.index(point) >= DECIDED
    assert len(after) - len(before) == decided
    nothing_left = point in ("tell.begin.before", "tell.done.after")
    assert len(recovered) == (not nothing_left)


@pytest.mark.parametrize("point", SERVER_POINTS)
def test_the_state_server_dies(place: Place, point: str) -> None:
    before = place.agree()
    place.state.stop()
    place.state.start(crash=point)
    told = told_of(place, "", None)
    place.state.process.wait(STOP_TIMEOUT_S)  # type: ignore[union-attr]
    assert place.state.process.returncode == -signal.SIGKILL  # type: ignore[union-attr]
    place.state.start()
    place.recovered()
    check(told, before, place.agree())


@pytest.mark.parametrize("point", [point for point in SERVER_POINTS if ".decide." in point])
def test_the_state_server_dies_while_it_writes_a_decision_into_a_queue(place: Place, point: str) -> None:
    before = place.agree()
    url = f"amqp://127.0.0.1:{place.broker.port}"
    place.state.stop()
    place.state.start(crash=point, url=url)
    told = told_of(place, "", None)
    place.state.process.wait(STOP_TIMEOUT_S)  # type: ignore[union-attr]
    assert place.state.process.returncode == -signal.SIGKILL  # type: ignore[union-attr]
    place.state.start(url=url)
    place.recovered()
    check(told, before, place.agree())
    place.state.stop()
    place.state.start()


@pytest.mark.parametrize("point", BROKER_POINTS)
def test_the_broker_dies(place: Place, point: str) -> None:
    before = place.agree()
    assert place.broker.process is not None
    pid = place.broker.process.pid
    place.write_profiles(timeout_s=1)  # it is not back before the client has given up
    told = told_of(place, point, pid)
    place.write_profiles()
    assert place.broker.process.wait(STOP_TIMEOUT_S) == -signal.SIGKILL
    place.broker.start()
    place.recovered()
    check(told, before, place.agree())


@pytest.mark.parametrize("point", BANK_POINTS)
def test_the_database_dies(place: Place, point: str) -> None:
    before = place.agree()
    told = told_of(place, point, place.postgresql.pid)
    wait_until("the point was hit", lambda: not place.postgresql.up)
    place.postgresql.start()
    place.recovered()
    check(told, before, place.agree())


def test_killed_at_random(place: Place) -> None:
    """Transfers in a loop; client, broker, database and state server die at random moments."""
    seed = int(os.environ.get("UNDERSTUDY_SEED", time.time_ns() % 1_000_000))
    print(f"UNDERSTUDY_SEED={seed}")
    chance = random.Random(seed)
    victims = itertools.cycle(["client"] * 5 + ["broker", "state", "bank"])
    for victim in itertools.islice(victims, RUNS):
        before = place.agree()
        pid = start_client(place)
        time.sleep(0.05 + chance.random() * 0.15)
        match victim:
            case "client":
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            case "broker":
                place.broker.kill()
                place.broker.start()
            case "state":
                place.state.kill()
                place.state.start()
            case _:
                place.postgresql.kill()
                place.postgresql.start()
        if victim != "client":
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        place.recovered()
        assert before <= place.agree()
    assert place.agree()


def start_client(place: Place) -> int:
    """A process that makes transfers until it is killed."""
    pid = os.fork()
    if pid:
        return pid
    try:
        manager = place.manager()
        while True:
            try:
                transfer(manager)
            except (XaError, psycopg.Error, AMQPError, OSError):
                time.sleep(0.01)
    finally:
        os._exit(70)
