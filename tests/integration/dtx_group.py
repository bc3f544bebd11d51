"""A group of three in which branches are in doubt while its brokers are killed, put to sleep and started again."""

from __future__ import annotations

from tests.integration.broker_process import wait_until
from tests.integration.dtx_channel import PREPARED, InDoubt, Xid
from tests.integration.dtx_workbench import Workbench
from tests.stress.group import Group


def fail_over(group: Group, bench: Workbench, successor: str = "") -> str:
    """Kill the primary and go on at its successor; who was killed. If one is named, its rivals are asleep meanwhile."""
    killed = group.primary()
    rivals = [broker for broker in group.running() if successor and broker.name not in (killed.name, successor)]
    for rival in rivals:
        rival.pause()
    killed.kill()
    if successor:
        wait_until(f"{successor} leads", lambda: group[successor].row()["role"] == "primary")
    for rival in rivals:
        rival.resume()
    primary = group.primary()
    assert primary.name == (successor or primary.name)
    bench.move_to(primary.port)
    return killed.name


def everywhere_settled(group: Group) -> None:
    """No broker has a transaction left, nothing is handed out or locked, and all hold the same messages."""
    group.settled()
    group.agree()


def in_order(xids: list[Xid]) -> list[InDoubt]:
    return [InDoubt(PREPARED, xid) for xid in sorted(xids, key=Xid.octets)]


def start_all(group: Group) -> None:
    """Start who is down, wake who sleeps, wait until all are in sync."""
    for broker in group.brokers.values():
        if broker.up:
            broker.resume()
        else:
            broker.spawn()
    group.ready(*group.brokers)


def ranked(group: Group) -> list[str]:
    """The names of the brokers, the primary's first."""
    return [group.primary().name, *(broker.name for broker in group.backups())]


def open_transactions(group: Group) -> set[int]:
    """Their number on each broker that runs."""
    return {sum(broker.row()["transactions"].values()) for broker in group.running()}


def other_primary(group: Group, than: str) -> int:
    """The port of an active broker; 0 if there is none."""
    found = [broker.port for broker in group.running() if broker.name != than and broker.row()["status"] == "active"]
    return found[0] if found else 0
