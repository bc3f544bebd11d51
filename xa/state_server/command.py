"""``understudy state-server``: options in, exit code out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from understudy.xa.core.errors import ConfigError, StatusFileError, XaError
from understudy.xa.core.mirrored_file import MirroredFile, mirrored_shards_on
from understudy.xa.core.profile import checked_address
from understudy.xa.core.state import MAX_ATTEMPTS, StateCore
from understudy.xa.core.status_file import StatusFile, StatusStore, shards_on
from understudy.xa.state_server.file_disk import FileDisk
from understudy.xa.state_server.server import OnStep, StateServer

EXIT_USAGE: Final = 2
MAX_SHARDS: Final = 64
JOURNAL: Final = "journal"
MIRRORED: Final = "mirrored"
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1", "[::1]")


def state_server(
    data: Annotated[Path, typer.Option(help="The folder of the status files.", show_default=False)],
    listen: Annotated[
        str, typer.Option(help="host:port, where port 0 is a free one, or unix:/path.")
    ] = "127.0.0.1:5680",
    shards: Annotated[
        int,
        typer.Option(min=0, max=MAX_SHARDS, help="Status files, each with its own sync. 0: as the folder has, or 1."),
    ] = 0,
    sync_delay_ms: Annotated[
        float, typer.Option(min=0, max=1000, help="How long a sync waits, so that more transactions share it.")
    ] = 0,
    engine: Annotated[str, typer.Option(help="Of the status files: journal, or mirrored.")] = JOURNAL,
    max_attempts: Annotated[
        int, typer.Option(min=1, max=1000, help="Failed recoveries after which a transaction is parked.")
    ] = MAX_ATTEMPTS,
    open_network: Annotated[
        bool,
        typer.Option("--open-network", help="Listen on another address than loopback, though clients do not log in."),
    ] = False,
    force_empty: Annotated[
        bool, typer.Option("--force-empty", help="Set damaged status files aside, and begin without them.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One line when it serves: address, shards, entries.")] = False,
) -> None:
    """Keep the register of distributed transactions until SIGTERM or SIGINT.

    Exit codes: 0 stopped; 1 the address cannot be had; 2 the folder or an option cannot be used, nothing changed; 74 the disk
    failed.
    """
    try:
        _check_listen(listen, open_network=open_network)
        if engine not in (JOURNAL, MIRRORED):
            raise ConfigError(f"--engine {engine} is neither {JOURNAL} nor {MIRRORED}")
        run(
            data,
            listen,
            shards=shards,
            sync_delay_ms=sync_delay_ms,
            max_attempts=max_attempts,
            engine=engine,
            force_empty=force_empty,
            as_json=as_json,
        )
    except XaError as error:
        print(f"understudy state-server: {error}", file=sys.stderr)  # noqa: T201  # a command prints
        raise typer.Exit(EXIT_USAGE) from error


def run(
    data: Path,
    listen: str,
    *,
    shards: int = 0,
    sync_delay_ms: float = 0,
    max_attempts: int = MAX_ATTEMPTS,
    engine: str = JOURNAL,
    force_empty: bool = False,
    as_json: bool = False,
    on_step: OnStep | None = None,
) -> None:
    """Run a state server until SIGTERM or SIGINT.

    Raises:
        StatusFileError: the folder cannot be used.
        OSError: the address cannot be had.
    """
    disk = FileDisk(data)
    try:
        if force_empty:
            _set_aside_damaged(disk, engine)
        files, core = open_shards(disk, shards, max_attempts, engine)
        server = StateServer(files, core, sync_delay_ms=sync_delay_ms, on_step=on_step)

        def ready(address: str) -> None:
            found = {"address": address, "shards": len(files), "entries": core.counts()}
            waiting = ", ".join(f"{count} {state}" for state, count in core.counts().items() if count) or "none"
            text = f"state server at {address}, {len(files)} shards, status files in {data}, transactions: {waiting}"
            print(json.dumps(found) if as_json else text, flush=True)  # noqa: T201  # as above

        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(_until_signal(server, listen, ready))
        for file in files:
            file.sync()
    finally:
        disk.close()


def open_shards(
    disk: FileDisk, shards: int, max_attempts: int = MAX_ATTEMPTS, engine: str = JOURNAL
) -> tuple[list[StatusStore], StateCore]:
    """All shards of a folder.

    Args:
        disk: the folder.
        shards: how many there must be; 0: as many as there are, or 1 in a new folder.
        max_attempts: see `core.state`.
        engine: `journal` or `mirrored`.

    Raises:
        StatusFileError: a file is damaged or missing, there are more shards than `shards`, or they are of the other engine.
    """
    there = {JOURNAL: shards_on(disk), MIRRORED: mirrored_shards_on(disk)}
    for other, count in there.items():
        if count and other != engine:
            raise StatusFileError(f"there are {count} shards of engine {other}, and {engine} is asked for")
    if shards and there[engine] > shards:
        raise StatusFileError(
            f"there are {there[engine]} shards, and {shards} are asked for: their transactions would be lost"
        )
    files = [_store(disk, number, engine) for number in range(max(there[engine], shards, 1))]
    return files, StateCore([file.open() for file in files], max_attempts)


def _store(disk: FileDisk, shard: int, engine: str) -> StatusStore:
    return StatusFile(disk, shard) if engine == JOURNAL else MirroredFile(disk, shard)


def _set_aside_damaged(disk: FileDisk, engine: str) -> None:
    count = shards_on(disk) if engine == JOURNAL else mirrored_shards_on(disk)
    for number in range(max(count, 1)):
        file = _store(disk, number, engine)
        before = disk.names()
        try:
            file.open()
        except StatusFileError as error:
            for name in (file.name,) if isinstance(file, StatusFile) else (f"mirror-{number}.a", f"mirror-{number}.b"):
                if name not in before:
                    continue
                aside = next(
                    found for count in range(len(before) + 1) if (found := f"damaged-{count}-{name}") not in before
                )
                print(f"understudy state-server: {error}; {name} is now {aside}", file=sys.stderr)  # noqa: T201  # as above
                disk.rename(name, aside)
            disk.sync_names()
            _store(disk, number, engine).open()  # empty, in its place: the others keep theirs


async def _until_signal(server: StateServer, listen: str, ready: OnStep) -> None:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    await server.serve(listen, ready=ready)


def _check_listen(listen: str, *, open_network: bool) -> None:
    host, _, port = listen.rpartition(":")
    if port != "0" or not host:
        checked_address(listen, "--listen")
    if not listen.startswith("unix:") and host not in _LOOPBACK and not open_network:
        raise ConfigError(
            f"--listen {listen}: clients do not log in, so another address than loopback needs --open-network; any "
            "client there can change what is recorded"
        )
