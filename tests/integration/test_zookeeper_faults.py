"""ZooKeeper itself fails, or what somebody has put there: nothing is lost, nobody is promoted twice, and it recovers by itself."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from tests.integration.broker_process import get, wait_until
from tests.integration.test_store_contract import ask, info, zookeeper_place
from tests.integration.zookeeper_group import (
    ROOT,
    SESSION_S,
    Load,
    check,
    group_on,
    nodes_of,
    status,
    store_keys,
    stored,
)
from tests.stress.group import Group
from tests.stress.operator import refused
from understudy.ha.store.coordination import Answer
from understudy.ha.store.group_changes import MAX_HISTORY
from understudy.ha.trial.edge.zookeeper_servers import Ensemble, lay_out_ensemble

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("broken_connections")]


@attrs.frozen
class Place:
    group: Group
    ensemble: Ensemble
    hosts: str

    def connected(self) -> bool:
        return all(row.get("coordination") == "connected" for row in self.group.rows().values())

    def lost(self) -> bool:
        return all(row.get("coordination") == "lost" for row in self.group.rows().values())

    def epoch(self) -> int:
        with nodes_of(self.hosts) as nodes:
            return int(stored(nodes, "group")["epoch"])


@pytest.fixture(scope="module")
def place(ensemble: Ensemble, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One group for the faults of the ensemble: each test leaves it whole."""
    folder = tmp_path_factory.mktemp("zk-faults")
    with group_on(ensemble, folder) as group:
        yield Place(group, ensemble, f"{ensemble.hosts}/{folder.name}")


@pytest.fixture
def load(place: Place) -> Iterator[Load]:
    """Work goes on through the fault; afterwards everything is whole."""
    with Load(place.group.ports) as running:
        running.goes_on()
        yield running
        running.goes_on()
    code, _, errors = status(place.hosts, "--wait", "ready", "--timeout", "60s")
    assert code == 0, errors
    assert place.connected()
    check(place.group.ports, running)


def test_the_leader_of_the_ensemble_is_killed(place: Place, load: Load) -> None:
    epoch = place.epoch()
    leader = wait_until("the ensemble has a leader", place.ensemble.leader)
    leader.kill()
    load.goes_on()
    wait_until("all brokers reach another server", place.connected)
    load.goes_on()
    leader.start()
    place.ensemble.wait()
    assert place.epoch() == epoch


def test_all_servers_are_gone_for_longer_than_a_session(place: Place, load: Load) -> None:
    """Members acknowledge, so commits go on; the sessions end, and nobody takes over."""
    epoch = place.epoch()
    primary = place.group.primary().name
    for server in place.ensemble.servers:
        server.kill()
    wait_until("all brokers have noticed", place.lost)
    gone = time.monotonic()
    wait_until("longer than a session", lambda: time.monotonic() - gone > 1.5 * SESSION_S)
    load.goes_on(100)
    place.ensemble.start()
    wait_until("all brokers are back", place.connected)
    load.goes_on()
    assert (place.epoch(), place.group.primary().name) == (epoch, primary)


def test_the_primary_dies_while_the_quorum_is_lost(place: Place, load: Load) -> None:
    """No broker can be promoted then, nor handed over to; with the quorum one is promoted, by itself, and once."""
    epoch = place.epoch()
    down = place.ensemble.servers[:2]
    for server in down:
        server.kill()
    assert "coordination store" in refused(place.group, "step-down")
    load.goes_on()
    wait_until("all brokers have noticed", place.lost)
    load.goes_on()
    old = place.group.primary()
    old.kill()
    seen = len(load.committed)
    gone = time.monotonic()
    wait_until("longer than a session", lambda: time.monotonic() - gone > 1.5 * SESSION_S)
    assert len(load.committed) <= seen + 1  # one may have been answered before the kill
    assert {row["role"] for row in place.group.rows().values()} == {"backup", None}
    for server in down:
        server.start()
    place.ensemble.wait()
    load.goes_on()
    assert place.epoch() == epoch + 1
    old.spawn()


def test_a_primary_that_hangs_is_replaced_when_its_session_ends(place: Place, load: Load) -> None:
    epoch = place.epoch()
    old = place.group.primary()
    backups = place.group.backups()
    os.kill(old.pid, signal.SIGSTOP)
    stopped = time.monotonic()
    new = wait_until(
        "another broker is active", lambda: next((b for b in backups if b.row()["status"] == "active"), None)
    )
    took_s = time.monotonic() - stopped
    print(f"SIGSTOP of the primary: {new.name} is active after {took_s:.2f} s, sessions of {SESSION_S} s")
    assert place.epoch() == epoch + 1
    os.kill(old.pid, signal.SIGCONT)
    wait_until("it follows", lambda: old.row()["status"] == "ready", 60)
    assert place.epoch() == epoch + 1


def test_a_process_that_was_killed_is_followed_at_once(place: Place, load: Load) -> None:
    """Its session goes on; but whoever has locked its data directory knows that it is gone."""
    backup = place.group.backups()[0]
    with nodes_of(place.hosts) as nodes:
        before = nodes.exists(f"{ROOT}/live/{backup.name}").ephemeralOwner
        backup.kill()
        backup.spawn()
        wait_until("its new process is ready", lambda: backup.row()["status"] == "ready")
        assert nodes.exists(f"{ROOT}/live/{backup.name}").ephemeralOwner != before


def edited(nodes: KazooClient, path: str, value: bytes) -> bytes:
    """Write a node by hand; what stood there."""
    before: bytes = nodes.get(f"{ROOT}/{path}")[0]
    nodes.set(f"{ROOT}/{path}", value)
    return before


def test_a_group_that_was_edited_into_nonsense(place: Place, load: Load) -> None:
    """Nonsense in the group's node counts as a lost store: work goes on, and the message names path and value."""
    with nodes_of(place.hosts) as nodes:
        before = edited(nodes, "group", b"epoch = none")
        wait_until("all brokers have noticed", place.lost)
        load.goes_on()
        for broker in place.group.running():
            assert f"{ROOT}/group holds no JSON object: 'epoch = none'" in broker.log_text()
        code, _, errors = status(place.hosts)
        assert (code, f"{ROOT}/group holds no JSON object: 'epoch = none'" in errors) == (1, True)
        edited(nodes, "group", before.replace(b'"schema":1', b'"schema":9'))
        wait_until(
            "a newer schema", lambda: "has schema 9, this program knows schema 1" in place.group["b1"].log_text()
        )
        edited(nodes, "group", before)
        wait_until("all brokers are back", place.connected)


def removed(nodes: KazooClient, path: str) -> bool:
    """Remove a node and all below it, in one step: brokers make it again at once. False if it has changed meanwhile."""
    removal = nodes.transaction()

    def remove(each: str) -> None:
        for name in nodes.get_children(each):
            remove(f"{each}/{name}")
        removal.delete(each)

    try:
        remove(path)
    except NoNodeError:
        return False
    return all(done is True for done in removal.commit())


@pytest.mark.parametrize("wholly", [False, True], ids=["the node", "everything"])
def test_a_group_that_was_deleted_is_written_anew_by_its_primary(place: Place, load: Load, wholly: bool) -> None:
    epoch, primary = place.epoch(), place.group.primary()
    with nodes_of(place.hosts) as nodes:
        members = stored(nodes, "group")["members"]
        path = ROOT if wholly else f"{ROOT}/group"
        wait_until("it is deleted", lambda: removed(nodes, path))
        wait_until("the group is there again", lambda: nodes.exists(f"{ROOT}/group"))
        shown = stored(nodes, "group")
        assert (shown["epoch"], shown["primary"], shown["members"]) == (epoch, primary.name, members)
        newest = max(nodes.get_children(f"{ROOT}/history"))
        told = stored(nodes, f"history/{newest}")["what"]
        assert told.startswith(f"written anew by {primary.name}, since the store showed no group")
    wait_until("all brokers have seen it", place.connected)
    load.goes_on()


def test_a_group_that_was_deleted_is_a_lost_store_until_all_members_acknowledge(place: Place, load: Load) -> None:
    epoch = place.epoch()
    silent, other = place.group.backups()
    silent.pause()
    with nodes_of(place.hosts) as nodes:
        nodes.delete(f"{ROOT}/group")
        for broker in (place.group.primary(), other):
            row = wait_until("it is lost", lambda b=broker: (r := b.row())["coordination"] == "lost" and r)  # type: ignore[misc]
            assert f"{ROOT}/group" in row["coordination_trouble"]
            assert f"{ROOT}/group" in broker.log_text()
        code, page = get(other.ports["http"], "/promotable")
        assert (code, [blocker["kind"] for blocker in page["blockers"]]) == (503, ["store"])
        assert nodes.exists(f"{ROOT}/group") is None
        silent.resume()
        wait_until("the group is there again", lambda: nodes.exists(f"{ROOT}/group"))
    assert place.epoch() == epoch


def test_rows_that_were_edited_or_removed(place: Place, load: Load) -> None:
    """A row that cannot be read, or is gone, is no dead broker; a broker whose live node is gone makes it again."""
    epoch = place.epoch()
    primary = place.group.primary().name
    with nodes_of(place.hosts) as nodes:
        other = place.group.backups()[0]

        def is_told() -> bool:
            edited(nodes, f"brokers/{primary}", b'{"schema":1,"broker":7}')  # its broker may just have written it anew
            return f"{ROOT}/brokers/{primary} cannot be read" in other.log_text()

        wait_until("it is told", is_told)
        nodes.delete(f"{ROOT}/brokers/{primary}")
        wait_until("it shows itself again", lambda: nodes.exists(f"{ROOT}/brokers/{primary}"))
        for folder in ("ready", "live"):
            path = f"{ROOT}/{folder}/{other.name}"
            nodes.delete(path)
            wait_until("it is there again", lambda path=path: nodes.exists(path))  # type: ignore[misc]
        for folder in ("live", "ready", "history"):
            wait_until(f"{folder} is removed", lambda folder=folder: removed(nodes, f"{ROOT}/{folder}"))  # type: ignore[misc]
        for name in place.group.brokers:
            wait_until(
                f"{name} is shown again",
                lambda name=name: nodes.exists(f"{ROOT}/live/{name}") and nodes.exists(f"{ROOT}/ready/{name}"),  # type: ignore[misc]
            )
    assert place.epoch() == epoch


def test_a_row_that_was_edited_into_another_one_is_written_again(ensemble: Ensemble, tmp_path: Path) -> None:
    store, path = zookeeper_place(tmp_path, ensemble), "/understudy/g/brokers/b1"
    try:
        store.open("b1").port.publish(info("b1", status="ready"))
        with nodes_of(f"{ensemble.hosts}/{tmp_path.name}") as nodes:
            store.until(lambda: nodes.exists(path))
            before = nodes.get(path)[0]
            nodes.set(path, json.dumps(json.loads(before) | {"link": "nowhere"}).encode())
            store.until(lambda: nodes.get(path)[0] == before)
    finally:
        store.end()


def test_a_broker_whose_loop_hangs_loses_its_session_and_gets_another(ensemble: Ensemble, tmp_path: Path) -> None:
    """kazoo's thread would send heartbeats for it for ever. Here the loop stands still between two waits."""
    store = zookeeper_place(tmp_path, ensemble, SESSION_S)
    live = "/understudy/g/live"
    try:
        store.open("b1")
        with nodes_of(f"{ensemble.hosts}/{tmp_path.name}") as nodes:
            before = nodes.exists(f"{live}/b1").ephemeralOwner
            wait_until("its session ends", lambda: nodes.exists(f"{live}/b1") is None)
            store.until(lambda: (stat := nodes.exists(f"{live}/b1")) and stat.ephemeralOwner != before)
    finally:
        store.end()


def test_a_primary_that_is_alone_confirms_nothing_without_the_store(tmp_path: Path) -> None:
    """The lone primary would not learn that it was replaced; with the store it goes on by itself."""
    servers = lay_out_ensemble(tmp_path, 1, tick_ms=250)
    servers.start()
    group = Group(tmp_path / "group", brokers=1, store=store_keys(servers.hosts))
    try:
        group.start()
        group.ready()
        with Load(group.ports) as load:
            load.goes_on()
            servers.servers[0].kill()
            wait_until("it has noticed", lambda: group["b1"].row()["coordination"] == "lost")
            seen = len(load.committed)
            gone = time.monotonic()
            wait_until("a while", lambda: time.monotonic() - gone > SESSION_S)
            assert len(load.committed) <= seen + 1  # one may have been answered just before
            servers.start()
            load.goes_on()
        check(group.ports, load)
    finally:
        group.abandon()
        servers.stop()


def test_the_history_is_bounded_and_keeps_what_was_forced(ensemble: Ensemble, tmp_path: Path) -> None:
    store = zookeeper_place(tmp_path, ensemble)
    try:
        one = store.open("b1")
        held = store.admin.force("b1", ("b1",), founding=7)
        for _ in range(MAX_HISTORY + 20):
            wanted = attrs.evolve(held, version=held.version + 1)
            assert ask(store, one, "replace", held, wanted) == (Answer.DONE, wanted)
            held = wanted
        store.until(lambda: one.view is not None and one.view[0] == held)

        def is_trimmed() -> bool:
            until = time.monotonic() + 0.1
            store.until(lambda: time.monotonic() > until)  # the broker's loop runs in here alone
            return len(store.admin.history()) <= MAX_HISTORY + 2

        wait_until("the oldest entries are gone", is_trimmed)
        found = store.admin.history()
        assert (found[0].is_forced, found[-1].version) == (True, held.version)
    finally:
        store.end()
