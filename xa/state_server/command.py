"""``understudy state-server``: options in, exit code out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from understudy.xa.core.errors import ConfigError, LogLostError, XaError
from understudy.xa.core.profiles.log_address import checked_queue, log_address_of
from understudy.xa.core.profiles.servers import DEFAULT_ADDRESS
from understudy.xa.core.register.routing import shares
from understudy.xa.core.register.state import MAX_ATTEMPTS, StateCore
from understudy.xa.state_server.entrance import Doors, Entrance
from understudy.xa.state_server.listening import AddressError
from understudy.xa.state_server.router import Router, WorkerEndedError
from understudy.xa.state_server.server import EXIT_DISK, OnStep, StateServer
from understudy.xa.state_server.stores import (
    DEFAULT_QUEUE,
    ENGINES,
    OWNER_WAIT_S,
    QUEUE,
    Where,
    engine_in,
    held,
    opened,
    read,
    remember,
)
from understudy.xa.state_server.worker import Settings

EXIT_USAGE: Final = 2
MAX_SHARDS: Final = 64
URL_VARIABLE: Final = "UNDERSTUDY_STATE_URL"


def state_server(
    data: Annotated[
        Path | None, typer.Option(help="The folder of the status files; not of engine queue.", show_default=False)
    ] = None,
    listen: Annotated[
        str, typer.Option(help="unix:/path, for this user alone, or host:port, where port 0 is a free one.")
    ] = DEFAULT_ADDRESS,
    secret_file: Annotated[
        str, typer.Option(help="A file with the secret that clients prove to have; only its user may read it.")
    ] = "",
    read_secret_file: Annotated[
        str, typer.Option(help="A file with another secret, of clients that may only read.")
    ] = "",
    tls_cert: Annotated[str, typer.Option(help="Of host:port: a PEM certificate chain; clients speak TLS.")] = "",
    tls_key: Annotated[str, typer.Option(help="Its private key.")] = "",
    tls_ca: Annotated[str, typer.Option(help="PEM certificates: one of them has signed that of each client.")] = "",
    shards: Annotated[
        int,
        typer.Option(
            min=0, max=MAX_SHARDS, help="Status files, each with its own sync. 0: as many as there are, or 1."
        ),
    ] = 0,
    workers: Annotated[
        int, typer.Option(min=1, max=MAX_SHARDS, help="Processes that share the shards; each has one at least.")
    ] = 1,
    sync_delay_ms: Annotated[
        float, typer.Option(min=0, max=1000, help="How long a sync waits, so that more transactions share it.")
    ] = 0,
    engine: Annotated[
        str,
        typer.Option(
            help="mirrored or journal: status files. queue: queues of a group of brokers.",
            show_default="that of the folder; mirrored for a new one",
        ),
    ] = "",
    url: Annotated[
        str | None,
        typer.Option(
            envvar=URL_VARIABLE,
            show_default=False,
            help="Of engine queue: amqp://user:password@host:port,host:port/vhost, or amqps://...?cacertfile=PATH. "
            "The variable hides the password.",
        ),
    ] = None,
    queue: Annotated[str, typer.Option(help="Of engine queue: the queues are QUEUE.0, QUEUE.1, ...")] = DEFAULT_QUEUE,
    standby: Annotated[
        bool, typer.Option("--standby", help="Of engine queue: wait for as long as another server owns the queues.")
    ] = False,
    owner_wait_s: Annotated[
        float,
        typer.Option(min=0, max=3600, help="Of engine queue: how long a server that is no standby waits for that."),
    ] = OWNER_WAIT_S,
    max_attempts: Annotated[
        int, typer.Option(min=1, max=1000, help="Refused recoveries after which a transaction is parked.")
    ] = MAX_ATTEMPTS,
    open_network: Annotated[
        bool,
        typer.Option("--open-network", help="Listen on another address than loopback, with TLS."),
    ] = False,
    force_empty: Annotated[
        bool, typer.Option("--force-empty", help="Set a damaged status aside, and begin without it.")
    ] = False,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Go on with what is left, though records are missing that were durable."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One line when it serves: address, shards, entries.")] = False,
) -> None:
    """Keep the register of distributed transactions until SIGTERM or SIGINT.

    Exit codes: 0 stopped; 1 the address cannot be had; 2 the status or an option cannot be used, nothing changed; 74 the status
    cannot be written any more: the disk failed, or another server owns the queues.
    """
    try:
        entrance = Doors(
            listen=listen,
            secret_file=secret_file,
            read_secret_file=read_secret_file,
            tls_cert=tls_cert,
            tls_key=tls_key,
            tls_ca=tls_ca,
            open_network=open_network,
        ).checked()
        where = _where(data, engine, url, queue, None if standby else owner_wait_s)
        if accept_loss and where.engine == QUEUE:
            raise ConfigError("--accept-loss is of status files in a folder: a queue that lacks messages is refused")
        if 0 < shards < workers:
            raise ConfigError(f"--workers {workers} need a shard each, and there are {shards}")
        options: dict[str, Any] = {
            "shards": shards,
            "sync_delay_ms": sync_delay_ms,
            "max_attempts": max_attempts,
            "force_empty": force_empty,
            "accept_loss": accept_loss,
            "as_json": as_json,
        }
        if workers == 1:
            run(where, entrance, **options)
        else:
            run_workers(where, entrance, workers, **options)
    except WorkerEndedError as error:
        print(f"understudy state-server: {error}", file=sys.stderr)  # noqa: T201  # a command prints
        raise typer.Exit(error.code or 1) from error
    except (XaError, OSError) as error:
        print(f"understudy state-server: {error}", file=sys.stderr)  # noqa: T201  # a command prints
        raise typer.Exit(_exit_code(error)) from error


def _exit_code(error: Exception) -> int:
    if isinstance(error, AddressError):
        return 1
    return EXIT_DISK if isinstance(error, LogLostError) else EXIT_USAGE


def run(
    where: Where,
    entrance: Entrance,
    *,
    shards: int = 0,
    sync_delay_ms: float = 0,
    max_attempts: int = MAX_ATTEMPTS,
    force_empty: bool = False,
    accept_loss: bool = False,
    as_json: bool = False,
    on_step: OnStep | None = None,
) -> None:
    """Run a state server until SIGTERM or SIGINT.

    Raises:
        StatusFileError, DecisionLogError, OSError: the status cannot be used.
        AddressError, ConfigError: the address cannot be had.
    """
    with opened(where, shards, force_empty=force_empty, accept_loss=accept_loss) as files:
        core = StateCore([read(file, where) for file in files], max_attempts)
        remember(files)
        server = StateServer(files, core, sync_delay_ms=sync_delay_ms, on_step=on_step)

        def ready(address: str) -> None:
            found = {"address": address, "shards": len(files), "entries": core.counts()}
            waiting = ", ".join(f"{count} {state}" for state, count in core.counts().items() if count) or "none"
            text = f"state server at {address}, {len(files)} shards, {where}, transactions: {waiting}"
            print(json.dumps(found) if as_json else text, flush=True)  # noqa: T201  # as above

        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(_until_signal(lambda: server.serve(entrance, ready=ready)))
        for file in files:
            file.sync()


def run_workers(
    where: Where,
    entrance: Entrance,
    workers: int,
    *,
    shards: int = 0,
    sync_delay_ms: float = 0,
    max_attempts: int = MAX_ATTEMPTS,
    force_empty: bool = False,
    accept_loss: bool = False,
    as_json: bool = False,
) -> None:
    """As `run`, with the shards in worker processes.

    Raises:
        WorkerEndedError: one cannot go on; it has said why.
        StatusFileError, DecisionLogError, OSError, AddressError, ConfigError: as `run`.
    """
    with held(where, shards, at_least=workers, force_empty=force_empty, accept_loss=accept_loss) as (count, lock):
        address = where.address
        settings = Settings(
            socket="", first=0, count=0,
            engine=where.engine,
            data="" if where.data is None else str(where.data.resolve()),
            hosts=[] if address is None else list(address.hosts),
            user="" if address is None else address.user,
            vhost="" if address is None else address.vhost,
            tls=None if address is None or address.tls is None else dict(address.tls),
            queue=where.queue,
            owner_wait_s=where.owner_wait_s,
            lock=lock,
            sync_delay_ms=sync_delay_ms,
            max_attempts=max_attempts,
        )  # fmt: skip
        router = Router(shares(count, workers), settings, "" if address is None else address.password)

        def ready(address: str, pids: list[int], waiting: int) -> None:
            found = {"address": address, "shards": count, "entries": {"pending": waiting}, "workers": pids}
            text = f"state server at {address}, {count} shards in {workers} workers, {where}, to recover: {waiting}"
            print(json.dumps(found) if as_json else text, flush=True)  # noqa: T201  # as above

        try:
            with contextlib.suppress(asyncio.CancelledError):
                asyncio.run(_until_signal(lambda: router.serve(entrance, ready=ready)))
        except ExceptionGroup as group:
            known = group.subgroup((XaError, OSError))
            if known is None:
                raise
            raise known.exceptions[0] from None


def _where(data: Path | None, engine: str, url: str | None, queue: str, owner_wait_s: float | None) -> Where:
    if not engine and data is not None:
        engine = engine_in(data)
    if not engine:
        raise ConfigError("a state server needs --data, the folder of its files, or --engine queue")
    if engine not in ENGINES:
        raise ConfigError(f"--engine {engine} is none of {', '.join(ENGINES)}")
    if engine == QUEUE:
        if data is not None:
            raise ConfigError("--engine queue keeps nothing in a folder: --data is of the other engines")
        if url is None:
            raise ConfigError(f"--engine queue needs --url, or the variable {URL_VARIABLE}")
        address = log_address_of(url, "--url")
        for path in (address.tls or {}).values():
            if not Path(path).is_file():
                raise ConfigError(f"--url: there is no file {path}")
        return Where(
            engine=engine,
            address=address,
            queue=checked_queue(queue, "--queue"),
            owner_wait_s=owner_wait_s,
        )
    if data is None:
        raise ConfigError(f"--engine {engine} needs --data, the folder of its files")
    if owner_wait_s is None or queue != DEFAULT_QUEUE:
        raise ConfigError(f"--standby and --queue are of engine queue, and this is engine {engine}")
    return Where(engine=engine, data=data)


async def _until_signal(serve: Callable[[], Awaitable[None]]) -> None:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    await serve()
