"""One broker for all tests of a module that only need one: each test uses names of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from tests.integration.broker_process import BrokerProcess, leaks_of_clients, running_broker
from tests.integration.dtx_channel import DtxChannel
from tests.integration.dtx_group import start_all
from tests.integration.dtx_messages import MessageDtxChannel
from tests.integration.dtx_places import GroupWithVhosts, Place, group_of_one, group_of_three, one_broker
from tests.integration.dtx_workbench import Workbench
from tests.stress.group import Group, running_group
from understudy.ha.trial.edge.zookeeper_servers import Ensemble, lay_out_ensemble

TICK_MS = 250
"""Of ZooKeeper: sessions last from 0.5 s to 5 s."""
SMALL_SEGMENTS = "[journal]\nsegment_bytes = 65536\nreserve_bytes = 0\n"
"""So that a journal soon begins later than the log."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="session")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """Three ZooKeeper servers for all tests: each has a chroot of its own. A test that stops one starts it again."""
    servers = lay_out_ensemble(tmp_path_factory.mktemp("zookeeper"), 3, tick_ms=TICK_MS)
    servers.start()
    yield servers
    servers.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """A queue name that no other test has."""
    return f"q.{request.node.name}"


PLACES = {
    "alone": (one_broker, DtxChannel),
    "one": (group_of_one, DtxChannel),
    "three": (group_of_three, DtxChannel),
    "three-by-messages": (group_of_three, MessageDtxChannel),
}


@pytest.fixture(scope="module", params=list(PLACES.values()), ids=list(PLACES))
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A place that every test of distributed transactions runs against, one after the other (H-52)."""
    kind, form = request.param
    with kind(tmp_path_factory.mktemp("place")) as running:
        yield attrs.evolve(running, form=form)


@pytest.fixture
def bench(place: Place, request: pytest.FixtureRequest) -> Iterator[Workbench]:
    """Afterwards no branch is in doubt, nothing is open anywhere, and all brokers of a group hold the same messages."""
    bench = Workbench(place.port, request.node.name, place.form)
    yield bench
    print(place.logs())  # shown if the test has failed
    bench.abandon()
    place.settled()
    place.agree()


@pytest.fixture(scope="module")
def whole_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """One for all tests: what they kill comes back, and the more has happened before the better."""
    with running_group(tmp_path_factory.mktemp("group"), SMALL_SEGMENTS, group_class=GroupWithVhosts) as running:
        yield running


@pytest.fixture
def group(whole_group: Group) -> Iterator[Group]:
    """Three brokers that are in sync; anyone may lead."""
    start_all(whole_group)
    yield whole_group
    print(whole_group.logs())  # shown if the test has failed


@pytest.fixture
def group_bench(group: Group, request: pytest.FixtureRequest) -> Iterator[Workbench]:
    """At the primary. No branch of a test that has failed is left for the next one."""
    bench = Workbench(group.primary().port, request.node.name)
    yield bench
    start_all(group)
    bench.move_to(group.primary().port)
    bench.abandon()


@pytest.fixture
def broken_connections() -> Iterator[None]:
    """Clients of brokers that were killed leave their sockets to the garbage collector."""
    with leaks_of_clients():
        yield
