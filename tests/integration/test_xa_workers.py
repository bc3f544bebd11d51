"""A state server with several worker processes: recovery finds every shard, and a worker that is killed comes back."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.broker_process import wait_until
from tests.integration.xa_servers import ServerProcess, Told, ended, lives
from understudy.xa.core.errors import StateServerLostError
from understudy.xa.core.register.wire import (
    Begin,
    Claim,
    Claimed,
    Decide,
    Done,
    Doom,
    Enter,
    Failed,
    Gather,
    Gathered,
    Nothing,
    Ok,
    Refused,
    Release,
    Settle,
    Share,
    Take,
    Vote,
    Welcome,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path, "state", "--data", str(tmp_path / "state"), "--workers", "2", "--shards", "4")
    with ended(server):
        assert server.start() == {"pending": 0}
        yield server
        assert server.stop() == 0, server.log.read_text()


def left_by(server: ServerProcess, number: int) -> list[str]:
    """Clients that are connected at the same time leave one transaction each; their global ids."""
    links = [server.link() for _ in range(number)]
    gids = [f"left-{name}" for name in range(number)]
    for link, gid in zip(links, gids, strict=True):
        assert link.ask(Begin(gid, ["bank"])) == Ok()
    for link in links:
        link.close()
    wait_until("all are pending", lambda: states(server) == ["pending"] * number)
    return gids


def states(server: ServerProcess) -> list[str]:
    return [one.state for one in server.entries().values()]


def test_many_clients_of_one_job_recover_each_transaction_once(server: ServerProcess) -> None:
    gids = left_by(server, 20)
    assert {one.shard for one in server.entries().values()} == {0, 1, 2, 3}
    with server.link() as client:
        refused = client.ask(Begin("new", ["bank"]))
        assert isinstance(refused, Refused)
        assert refused.code == "recover_first"
    claimed: list[str] = []
    threads = [threading.Thread(target=claim_all, args=(server, claimed)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(claimed) == sorted(gids)
    assert server.entries() == {}


def claim_all(server: ServerProcess, claimed: list[str]) -> None:
    with server.link() as client:
        while isinstance(reply := client.ask(Claim()), Claimed):
            claimed.append(reply.entry.gid)
            assert client.ask(Done(reply.entry.gid)) == Ok()
        assert reply == Nothing()
        assert client.ask(Begin(f"new-{threading.get_ident()}", ["bank"])) == Ok()
        assert client.ask(Done(f"new-{threading.get_ident()}")) == Ok()


def test_a_worker_that_is_killed_comes_back_and_its_shards_recover(server: ServerProcess) -> None:
    told = Told()
    links = [server.link(f"job-{number}") for number in range(8)]
    for number, link in enumerate(links):
        assert link.ask(Begin(f"held-{number}", ["bank", "queues"])) == Ok()
        told.begun.add(f"held-{number}")
        if number % 2:
            assert link.ask(Decide(f"held-{number}")) == Ok()
            told.decided.add(f"held-{number}")
        with server.link(f"other-{number}") as other:
            lives(other, told, [f"{number}-{part}" for part in range(3)])
    os.kill(server.workers[0], signal.SIGKILL)
    lost = 0
    for number, link in enumerate(links):
        try:
            assert link.ask(Done(f"held-{number}")) == Ok()
            told.done.add(f"held-{number}")
        except StateServerLostError:
            lost += 1
        link.close()
    assert lost == 4  # those of the other worker go on
    told.check(server.entries())
    wait_until("what is left is pending", lambda: set(states(server)) == {"pending"})
    assert "worker 0 was ended by signal 9" in server.log.read_text()
    for number in range(8):
        with server.link(f"job-{number}") as link:
            reply = link.ask(Claim())
            assert isinstance(reply, Nothing if f"held-{number}" in told.done else Claimed)


def test_who_gives_way_is_given_others_first_of_all_workers(server: ServerProcess) -> None:
    gids = left_by(server, 8)
    claimed = []
    with server.link() as client:
        for _ in gids:
            reply = client.ask(Claim())
            assert isinstance(reply, Claimed)
            claimed.append(reply.entry.gid)
            assert client.ask(Release(reply.entry.gid, "busy")) == Ok()
    assert sorted(claimed) == gids


def test_clients_that_come_while_a_worker_dies_wait_for_the_next_one(server: ServerProcess) -> None:
    """The worker has taken their first request, or is dead already, and has not answered: they own nothing yet."""
    dying = server.workers[1]
    os.kill(dying, signal.SIGSTOP)
    begun: list[str] = []
    threads = [threading.Thread(target=begin_one, args=(server, f"new-{number}", begun)) for number in range(6)]
    with server.link("holds"):  # it is at worker 0, so the next one comes to worker 1
        for thread in threads:
            thread.start()
        wait_until("the other worker serves", lambda: begun)
        os.kill(dying, signal.SIGKILL)
        begin_one(server, "late", begun)
        for thread in threads:
            thread.join(60)
    assert sorted(begun) == ["late", *(f"new-{number}" for number in range(6))]


def begin_one(server: ServerProcess, gid: str, begun: list[str]) -> None:
    with server.link(gid) as link:
        assert link.ask(Begin(gid, ["bank"])) == Ok()
        begun.append(gid)
        assert link.ask(Done(gid)) == Ok()


def test_a_client_meets_every_worker_by_global_id(server: ServerProcess) -> None:
    gids = left_by(server, 8)
    with server.link() as client:
        for gid in gids:
            assert isinstance(client.ask(Take(gid)), Claimed)
        assert set(states(server)) == {"active"}
        for gid in gids:
            assert client.ask(Decide(gid)) == Ok()
        unknown = client.ask(Take("x"))
        assert isinstance(unknown, Refused)
        assert unknown.code == "unknown"
    wait_until("they are pending again", lambda: set(states(server)) == {"pending"})
    assert all(one.entry.commit for one in server.entries().values())


def test_a_server_that_was_killed_leaves_its_folder_to_the_next_one(tmp_path: Path, server: ServerProcess) -> None:
    left_by(server, 4)
    server.kill()
    data = str(tmp_path / "state")
    one_process = ServerProcess(tmp_path, "next", "--data", data)
    with ended(one_process):
        assert one_process.start()["pending"] == 4
        assert one_process.stop() == 0
    assert "--workers 3 need a shard each, and there are 2" in server.refused("--shards", "2", "--workers", "3")
    for side in "ab":
        damaged = tmp_path / "state" / f"mirror-3.{side}"
        damaged.write_bytes(b"x" + damaged.read_bytes()[1:])
    assert "mirror-3.a and mirror-3.b: no image is intact" in server.refused()
    assert sum(server.start("--force-empty").values()) < 4


def test_a_program_joins_a_transaction_of_another_worker(server: ServerProcess) -> None:
    """Four programs: with two workers, some are served by another worker than the one that has the transaction."""
    gid = "shared"
    with server.link() as first:
        assert first.ask(Begin(gid, ["bank"])) == Ok()
        assert first.ask(Share(gid)) == Ok()
        links = [server.link() for _ in range(4)]
        for number, link in enumerate(links, 1):
            assert link.ask(Enter(gid, ["bank"])) == Welcome(number)
        for number, link in enumerate(links[:3], 1):
            assert link.ask(Vote(gid, [f"bank~{number}"])) == Ok()
        voted = [f"bank~{number}" for number in (1, 2, 3)]
        assert first.ask(Gather(gid)) == Gathered(voted, [4], dict.fromkeys(voted, ""))
        for link in links:
            link.close()
        wait_until("the last one is missed", lambda: isinstance(first.ask(Gather(gid)), Refused))
        assert first.ask(Doom(gid, "")) == Gathered([*voted, "bank~4"], [], dict.fromkeys(voted, ""))
        assert first.ask(Settle(gid, [*voted, "bank~4"])) == Ok()
        assert first.ask(Begin("next", ["bank"])) == Ok()
        assert first.ask(Done("next")) == Ok()
    wait_until("nothing is left", lambda: server.entries() == {})


def test_a_recovery_that_failed_is_due_later_in_every_worker(server: ServerProcess) -> None:
    gids = {f"late-{number}" for number in range(4)}
    links = {gid: server.link("late") for gid in gids}
    for gid, link in links.items():
        assert link.ask(Begin(gid, ["bank"])) == Ok()
    for link in links.values():
        link.close()
    with server.link("late") as one:

        def claimed(*, early: bool = False) -> str:
            reply = one.ask(Claim(early))
            return reply.entry.gid if isinstance(reply, Claimed) else ""

        wait_until("all wait", lambda: {shown.state for shown in server.entries().values()} == {"pending"})
        for _ in gids:
            assert one.ask(Failed(claimed(), "the bank is down")) == Ok()
        assert claimed() == ""
        assert one.ask(Begin("new", ["bank"])) == Ok()  # meanwhile
        assert one.ask(Done("new")) == Ok()
        early = [claimed(early=True) for _ in gids]
        assert set(early) == gids
        for gid in early:
            assert one.ask(Failed(gid, "the bank is down")) == Ok()
        due: set[str] = set()
        wait_until("all are due", lambda: due.add(claimed()) or due >= gids)  # type: ignore[func-returns-value]
        for gid in gids:
            assert one.ask(Done(gid)) == Ok()
    wait_until("nothing is left", lambda: server.entries() == {})
