"""All ZooKeeper servers are away for a minute under load: work goes on, nobody is promoted, and all recovers by itself."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.integration.broker_process import wait_until
from tests.integration.zookeeper_group import SESSION_S, Load, check, group_on, nodes_of, status, stored
from tests.stress.group import WAIT_S, Group
from understudy.ha.trial.edge.zookeeper_servers import lay_out_ensemble

pytestmark = [pytest.mark.stress, pytest.mark.waits, pytest.mark.timeout(600)]

AWAY_S = 60.0
PAUSE_S = 0.05
"""Between two commits: what is committed meanwhile has to be read at the end."""
LONGEST_PAUSE_S = 15.0


def coordination(group: Group) -> set[str]:
    """States of the store, as the brokers report them."""
    return {str(row.get("coordination")) for row in group.rows().values()}


def test_all_servers_are_away_for_a_minute(tmp_path: Path) -> None:
    servers = lay_out_ensemble(tmp_path, 3, tick_ms=250)
    servers.start()
    hosts = f"{servers.hosts}/{tmp_path.name}"
    try:
        with group_on(servers, tmp_path) as group:
            with Load(group.ports, pause_s=PAUSE_S) as load:
                load.goes_on()
                with nodes_of(hosts) as nodes:
                    before = stored(nodes, "group")
                old = group.primary()

                for server in servers.servers:
                    server.kill()
                away_at, seen = time.monotonic(), len(load.committed)
                wait_until("all brokers have noticed", lambda: coordination(group) == {"lost"})
                wait_until("a minute", lambda: time.monotonic() - away_at > AWAY_S, 2 * AWAY_S)
                pause_s, commits = load.longest_pause_s(away_at), len(load.committed) - seen
                assert coordination(group) == {"lost"}
                assert pause_s < LONGEST_PAUSE_S
                assert group.primary() is old

                servers.start()
                back_at = time.monotonic()
                wait_until("all brokers are back", lambda: coordination(group) == {"connected"}, WAIT_S)
                back_s = time.monotonic() - back_at
                load.goes_on()
                with nodes_of(hosts) as nodes:
                    assert stored(nodes, "group") == before
                print(
                    f"all servers away for {AWAY_S:g} s, sessions of {SESSION_S:g} s: {commits} commits, the longest pause "
                    f"{pause_s:.2f} s; all brokers had sessions {back_s:.1f} s after the servers served again"
                )

                old.kill()
                load.goes_on()
                with nodes_of(hosts) as nodes:
                    assert stored(nodes, "group")["epoch"] == before["epoch"] + 1
                old.spawn()
                code, _, errors = status(hosts, "--wait", "ready", "--timeout", "60s")
                assert code == 0, errors
                group.ready(*group.brokers)
            check(group.ports, load)
    finally:
        servers.stop()
