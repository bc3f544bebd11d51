"""A broker whose loop is busy keeps its session with ZooKeeper: heartbeats come from a thread of kazoo's, not from the loop."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.integration.zookeeper_group import ROOT, SESSION_S, group_on, nodes_of
from tests.stress.flood import CLIENTS, flood
from understudy.ha.trial.edge.zookeeper_servers import lay_out_ensemble

pytestmark = [pytest.mark.stress, pytest.mark.alone, pytest.mark.timeout(300)]

SESSIONS = 3
"""The load lasts as long as so many sessions: one that is not renewed ends within one."""
LEAST_BUSY = 0.5
"""Of the time the loop's thread runs, or waits for a core that others have; the rest it waits for its disk and for clients."""


def sessions(nodes: KazooClient, names: list[str]) -> dict[str, int]:
    """By broker, the session to which its node in ``live`` belongs."""
    return {name: nodes.exists(f"{ROOT}/live/{name}").ephemeralOwner for name in names}


def busy_s(pid: int) -> float:
    """For how long the first thread of a process, which runs the loop, has run, or could have, so far."""
    ran_ns, waited_ns, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
    return (int(ran_ns) + int(waited_ns)) / 1e9


def test_a_busy_loop_keeps_its_session(tmp_path: Path) -> None:
    servers = lay_out_ensemble(tmp_path, 1, tick_ms=250)
    servers.start()
    try:
        with group_on(servers, tmp_path) as group, nodes_of(f"{servers.hosts}/{tmp_path.name}") as nodes:
            names, primary = list(group.brokers), group.primary()
            before, logged = sessions(nodes, names), {name: len(group[name].log_text()) for name in names}
            busy, began = busy_s(primary.pid), time.monotonic()
            committed = flood(primary.port, SESSIONS * SESSION_S)
            took_s, busy = time.monotonic() - began, busy_s(primary.pid) - busy
            print(
                f"{CLIENTS} connections, {committed} transactions in {took_s:.1f} s, {SESSIONS} sessions of {SESSION_S} s; "
                f"the primary's loop was busy for {busy / took_s:.0%} of it"
            )
            assert took_s >= SESSIONS * SESSION_S
            assert busy >= LEAST_BUSY * took_s
            assert sessions(nodes, names) == before
            for name in names:
                assert "coordination lost" not in group[name].log_text()[logged[name] :]
                assert group[name].row()["coordination"] == "connected"
            assert group.primary() is primary
    finally:
        servers.stop()
