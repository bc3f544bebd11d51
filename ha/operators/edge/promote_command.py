"""``understudy promote --unclean``: makes a broker that does not run the base of its group, by force.

It is the plugin's command (entry point ``understudy.commands``), and the one place where the store is written over the head of a
primary. The broker itself is promoted by its next start, in order: the store names it as the only member of a new epoch.
"""

from __future__ import annotations

import datetime as dt
import os
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from understudy.broker.config import Config, load
from understudy.broker.core.life.recovery import Recovery
from understudy.broker.core.state import BrokerState
from understudy.broker.log.journal_recovery import scan
from understudy.broker.log.segment import JournalIdentity
from understudy.broker.server.files.file_storage import FileStorage
from understudy.ha.operators.unclean import PromotionRefusedError, Survivor, check, losses, others_that_count
from understudy.ha.store.coordination import BrokerId, BrokerInfo, StoreAdmin
from understudy.ha.store.edge.stores import store_admin
from understudy.replicator.direct.unix_socket import split_address
from understudy.replicator.receiving.broker_replicator import BrokerReplicator

MAX_MIN_INSYNC = 64
DIAL_S: Final = 1.0
"""For a connection to a broker that the store shows as down: each of its two addresses."""


def promote(
    config: Annotated[Path, typer.Option(help="The TOML file of the broker to promote. It must not run.")],
    unclean: Annotated[bool, typer.Option("--unclean", help="Although it may lack what was confirmed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it, do not only say what would be lost.")] = False,
    min_insync: Annotated[
        int | None, typer.Option(min=1, max=MAX_MIN_INSYNC, help="Of the group from now on; it is kept otherwise.")
    ] = None,
    gone: Annotated[
        list[str] | None,
        typer.Option(help="A broker that does not run, whatever listens at its address. May be repeated."),
    ] = None,
) -> None:
    """Make one broker the base of its group when the store, or every broker that it lists, is lost.

    A broker that the store lists needs no command: it is promoted when it starts. This is for when there is none. The others join
    as they come back; what they hold beyond this broker is dropped.
    """
    settings = load(config, os.environ)
    store = _store_of(settings)
    if not unclean:
        raise PromotionRefusedError(
            f"a broker of the in-sync set leads by itself once it is started: understudy serve --config {config}; "
            "to promote another one, which may lose what was confirmed: --unclean"
        )
    survivor = read_survivor(settings)
    group, brokers = store.read(hanging_too=True)
    others = others_that_count(survivor, group, brokers)
    check(survivor, group, brokers, accepting(brokers, set(others).difference(gone or ())))
    for line in losses(survivor, group, brokers):
        _print(line)
    for entry in store.history():
        if entry.is_forced:
            when = dt.datetime.fromtimestamp(entry.wall_ms / 1_000, dt.UTC).isoformat(" ", "seconds")
            _print(f"This was done before: epoch {entry.epoch}, {when}: {entry.what}.")
    if not yes:
        _print("Nothing was changed. To do it, run the same command with --yes.")
        raise typer.Exit(1)
    wanted_min = min_insync or (settings.ha.min_insync or 1 if group is None else None)
    state = store.force(
        survivor.broker,
        (survivor.broker,),
        seen_epoch=survivor.epoch_seen,
        expected=group,
        min_insync=wanted_min,
        founding=survivor.founding,
    )
    _print(f"Epoch {state.epoch}: {survivor.broker} is the only member. Now: understudy serve --config {config}")
    if state.min_insync > 1:
        _print(
            f"min_insync is {state.min_insync}: it takes work when so many brokers have joined (--min-insync changes it)."
        )


def accepting(brokers: Mapping[BrokerId, BrokerInfo], names: Iterable[BrokerId]) -> dict[BrokerId, str]:
    """Those of the brokers to which a connection can be made, and at which of their two addresses."""
    found: dict[BrokerId, str] = {}
    for name in names:
        for address in (brokers[name].amqp, split_address(brokers[name].link)[0]):
            host, _, port = address.rpartition(":")
            if name not in found and port.isdecimal():
                # ValueError: the row holds no host name; OverflowError: no port.
                with suppress(OSError, ValueError, OverflowError):
                    socket.create_connection((host.strip("[]"), int(port)), DIAL_S).close()
                    found[name] = address
    return found


def read_survivor(config: Config) -> Survivor:
    """The survivor that the journal describes; the journal is not changed.

    Raises:
        UnderstudyError: the broker runs, or its journal cannot be believed.
        PromotionRefusedError: there is no data directory.
    """
    broker, data = config.broker, config.broker.data
    if not data.is_dir():
        raise PromotionRefusedError(f"data directory {data} of {broker.id} is not there: it has nothing to lead with")
    state = BrokerState(0)
    replicator = BrokerReplicator(state)
    storage = FileStorage(data)
    try:
        visitor = Recovery(state, replicator.replay_note, replicator.replay_extras)
        scan(storage, visitor, JournalIdentity(broker.group, broker.id))
    finally:
        storage.close()
    log = state.log
    return Survivor(
        broker=broker.id,
        group=broker.group,
        epoch=log.position.epoch,
        end=log.end,
        stable=log.stable,
        epoch_seen=max(replicator.epoch_seen, log.epochs.newest),
        part=replicator.part and not replicator.repaired,
        repaired=replicator.repaired,
        founding=replicator.founding,
    )


def _store_of(config: Config) -> StoreAdmin:
    if not config.plugins.get("ha", False):
        raise PromotionRefusedError("plugins.ha is not switched on in this configuration: there is no group to lead")
    return store_admin(config)


def _print(line: str) -> None:
    print(line, flush=True)  # noqa: T201  # a command prints
