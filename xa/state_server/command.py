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
from understudy.xa.core.profile import checked_address
from understudy.xa.core.state import MAX_ATTEMPTS, StateCore
from understudy.xa.core.status_file import StatusFile, shards_on
from understudy.xa.state_server.file_disk import FileDisk
from understudy.xa.state_server.server import OnStep, StateServer

EXIT_USAGE: Final = 2
MAX_SHARDS: Final = 64
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
        run(
            data,
            listen,
            shards=shards,
            sync_delay_ms=sync_delay_ms,
            max_attempts=max_attempts,
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
            _set_aside_damaged(disk)
        files, core = open_shards(disk, shards, max_attempts)
        server = StateServer(files, core, sync_delay_ms=sync_delay_ms, on_step=on_step)

        def ready(address: str) -> None:
            found = {"address": address, "shards": len(files), "entries": core.counts()}
            waiting = ", ".join(f"{count} {state}" for state, count in core.counts().items() if count) or "none"
            text = f"state server at {address}, {len(files)} shards, status files in {data}, transactions: {waiting}"
            print(json.dumps(found) if as_json else text, flush=True)  # noqa: T201  # as above

        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(_until_signal(server, listen, ready))
    finally:
        disk.close()


def open_shards(disk: FileDisk, shards: int, max_attempts: int = MAX_ATTEMPTS) -> tuple[list[StatusFile], StateCore]:
    """All shards of a folder.

    Args:
        disk: the folder.
        max_attempts: see `core.state`.
        shards: how many there must be; 0: as many as there are, or 1 in a new folder.

    Raises:
        StatusFileError: a file is damaged or missing, or there are more shards than `shards`.
    """
    there = shards_on(disk)
    if shards and there > shards:
        raise StatusFileError(f"there are {there} shards, and {shards} are asked for: their transactions would be lost")
    files = [StatusFile(disk, number) for number in range(max(there, shards, 1))]
    return files, StateCore([file.open() for file in files], max_attempts)


def _set_aside_damaged(disk: FileDisk) -> None:
    for number in range(max(shards_on(disk), 1)):
        file = StatusFile(disk, number)
        try:
            file.open()
        except StatusFileError as error:
            aside = f"damaged-{file.name}"
            print(f"understudy state-server: {error}; it is now {aside}", file=sys.stderr)  # noqa: T201  # as above
            disk.rename(file.name, aside)
            disk.sync_names()


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
