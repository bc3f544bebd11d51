"""The rows of ``understudy status --zk``: what the coordination store alone knows of a group. No broker is asked.

A broker's row there is what the broker has shown itself, at most a second ago. ``alive`` decides whether it counts: the session of
a broker that was killed goes on for up to ``coordination.session_s``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from understudy.broker.command_line.broker_rows import DOWN, NothingThereError, Row, row_of_member
from understudy.broker.config import Config, CoordinationConfig, load
from understudy.broker.config.host_port import servers_of
from understudy.broker.plugin_api.plugin import find_plugins

LEADING: Final = ("recovering", "active")


def config_of_store(zk: str, group: str, config: Path | None) -> Config:
    """Where the store is.

    Args:
        zk: host:port of the servers, separated by commas; a chroot may follow. "": the configuration says it.
        group: which; "": the configuration says it, or the default.
        config: the file of any broker of the group: it has the credentials.

    Raises:
        ConfigError: the file, or ``zk``, cannot be used.
    """
    found = load(config, os.environ) if config is not None else Config(plugins={"ha": True})
    if zk:
        hosts, chroot = servers_of(zk, "--zk")
        section = attrs.evolve(
            found.coordination if config is not None else CoordinationConfig(),
            kind="zookeeper",
            hosts=hosts,
            chroot=chroot,
        )
        found = attrs.evolve(found, coordination=section)
    if group:
        found = attrs.evolve(found, broker=attrs.evolve(found.broker, group=group))
    return found


def rows_of_store(config: Config) -> dict[str, Any]:
    """The group as its store has it.

    Raises:
        UnderstudyError: the store cannot be read.
        NothingThereError: it knows no such group.
    """
    enabled = [name for name, switched_on in config.plugins.items() if switched_on]
    for plugin in find_plugins(enabled):
        stored: Mapping[str, Any] | None = plugin.read_store(config)
        if stored is not None:
            return _group(stored)
    section = config.coordination
    where = section.path if section.kind == "file" else ",".join(section.hosts) + section.chroot
    raise NothingThereError(f"the store at {where} knows no group {config.broker.group!r}")


def _group(stored: Mapping[str, Any]) -> dict[str, Any]:
    leader, epoch = stored.get("primary"), stored.get("epoch")
    known: Mapping[str, Mapping[str, Any]] = stored["known_brokers"]
    members = stored.get("in_sync") or []
    rows = [
        _row(known[name], leader, epoch, members) if name in known else row_of_member(name, epoch, "the store")
        for name in sorted({*known, *members})
    ]
    for row in rows:
        if row["role"] == "primary":
            behind = {each["broker"]: row["position"] - each["position"] for each in rows if each["role"] == "backup"}
            row["lag"] = {broker: {"records": max(0, records)} for broker, records in behind.items()}
            row["damaged"] = stored.get("damaged", {})
    return {
        "group": stored["group"],
        "epoch": epoch,
        "primary": leader,
        "in_sync": members,
        "min_insync": stored.get("min_insync"),
        "barred": stored.get("barred", {}),
        "brokers": rows,
        "history": stored.get("history", []),
    }


def _row(info: Mapping[str, Any], leader: str | None, epoch: int | None, members: list[str]) -> Row:
    alive, status = info["alive"], info["status"] or "starting"
    leads = alive and info["broker"] == leader and status in LEADING
    port = str(info["amqp"]).rpartition(":")[2]
    blockers = [info["blockers"]] if info["blockers"] else []
    outdated = (status == "ready" and info["broker"] not in members) or (status in LEADING and not leads)
    if alive and outdated:  # the group has gone on without it: it was killed, or stopped, or has not heard of it yet
        blockers = [f"it was {status} when it was last shown, and the group has changed since then"]
        status = "joining"
    if not alive:
        blockers = [f"the store has no session of it; it was {info['status'] or 'there'} when it was last shown"]
    return {
        "broker": info["broker"],
        "pid": info["pid"] if alive else None,
        "port": int(port) if port.isdecimal() else None,
        "amqp": info["amqp"],
        "http": info["http"],
        "role": None if not alive else "primary" if leads else "backup",
        "status": status if alive else DOWN,
        "epoch": epoch,
        "position": info["position"],
        "blockers": blockers,
        "queues": [],
        "lag": {},
    }
