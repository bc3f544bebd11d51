"""``understudy stages run`` and ``understudy stages tables``."""

from __future__ import annotations

import asyncio
import importlib
import logging
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from understudy.client.stages.application import Stages
from understudy.client.stages.errors import ConfigurationError
from understudy.client.stages.processes import Processes

_Name = Annotated[str, typer.Argument(metavar="MODULE:NAME", help="Where the application is, for example shop:stages.")]


def run(
    application: _Name,
    only: Annotated[
        list[str] | None, typer.Option("--stage", help="Run this stage alone; may be given several times.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, max=200, help="So many workers, each a process.")] = 1,
) -> None:
    """Run the stages of an application until SIGTERM or SIGINT; then each finishes what it has in hand.

    Exit codes: 0 stopped as asked; 1 the broker or the database cannot be used; 2 the application is declared wrongly.
    """
    try:
        from understudy.client.stages.worker import Worker  # noqa: PLC0415  # the extra of this command alone
    except ImportError as error:
        _fail(f"{error}: pip install 'understudy[stages]'", 1)
    stages = load(application)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for library in ("aiormq", "aio_pika"):
        logging.getLogger(library).setLevel(logging.CRITICAL)  # each loss is a traceback there, and a line of ours
    try:
        stages.check()
        for name in only or ():
            if name not in stages.stages:
                _fail(f"--stage {name}: the application {stages.name!r} has {', '.join(stages.stages)}", 2)
        worker = Worker(stages, only=tuple(only or ()))
    except ConfigurationError as error:
        _fail(str(error), 2)
    if processes > 1:
        options = [word for name in only or () for word in ("--stage", name)]
        command = [sys.argv[0], "stages", "run", application, *options]
        raise typer.Exit(Processes(command, processes).run())
    try:
        asyncio.run(_run(worker, sum(each.concurrency for each in stages.stages.values())))
    except* ConfigurationError as group:
        _fail("; ".join(map(str, group.exceptions)), 1)


async def _run(worker: Any, slots: int) -> None:
    loop = asyncio.get_running_loop()
    # A thread for each slot: functions that block must not keep the database of others waiting.
    loop.set_default_executor(ThreadPoolExecutor(max_workers=slots + 4, thread_name_prefix="stages"))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    await worker.run()


def tables(application: _Name) -> None:
    """Print the SQL that makes the inbox and the outbox of an application's database."""
    stages = load(application)
    if stages.database is None:
        _fail(f"the application {stages.name!r} has no database", 2)
    typer.echo(stages.database.tables(), nl=False)


def load(application: str) -> Stages:
    """The application at ``module:name``; the current directory is searched first."""
    module, colon, name = application.partition(":")
    if not colon or not module or not name:
        _fail(f"{application!r} names no application: module:name, for example shop:stages", 2)
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ConfigurationError as error:
        _fail(str(error), 2)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0] and error.name != module:
            raise
        _fail(f"{application}: there is no module {error.name!r} here or on sys.path", 2)
    if not isinstance(found, Stages):
        _fail(f"{application}: {name!r} is {'missing' if found is None else type(found).__name__}, not a Stages", 2)
    return found


def _fail(reason: str, code: int) -> NoReturn:
    typer.echo(f"understudy stages: {reason}", err=True)
    raise typer.Exit(code)
