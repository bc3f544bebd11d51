"""``understudy stages run`` and ``understudy stages tables``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from understudy.client.stages.application.application import Stages
from understudy.client.stages.commands.processes import Processes
from understudy.client.stages.commands.reloading import Reloading
from understudy.client.stages.errors import ConfigurationError, leaves_of
from understudy.client.stages.watching.log_lines import write_log_lines

KILL_MARGIN_S: Final = 10.0
"""A worker ends itself before its parent kills it."""

Name = Annotated[str, typer.Argument(metavar="MODULE:NAME", help="Where the application is, for example shop:stages.")]


def run(
    application: Name,
    only: Annotated[
        list[str] | None, typer.Option("--stage", help="Run this stage alone; may be given several times.")
    ] = None,
    concurrency: Annotated[
        list[str] | None,
        typer.Option(
            "--concurrency", metavar="STAGE=N", help="Messages of a stage at once; instead of what it declares."
        ),
    ] = None,
    processes: Annotated[int, typer.Option(min=1, max=200, help="So many workers, each a process.")] = 1,
    http: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="Port of /readyz, /status and /metrics; further workers have the next ones."
        ),
    ] = 0,
    http_host: Annotated[str, typer.Option(help="Address that this port listens at.")] = "127.0.0.1",
    stop_after: Annotated[float, typer.Option(min=0, help="Seconds that a stop leaves to what is in hand.")] = 30.0,
    log_format: Annotated[str, typer.Option(help="text or json.")] = "text",
    reload: Annotated[bool, typer.Option("--reload", help="Start again when a .py file below here changes.")] = False,
) -> None:
    """Run the stages of an application until SIGTERM or SIGINT; then each finishes what it has in hand.

    Exit codes: 0 stopped as asked; 1 the broker or the database cannot be used; 2 the application is declared wrongly; 3 a
    stage did not end in time and was left, so its message is handed out again.
    """
    try:
        from understudy.client.stages.commands.running import run_here  # noqa: PLC0415  # the extra of this command alone
    except ImportError as error:
        fail(f"{error}: pip install 'understudy[stages]'", 1)
    if log_format not in {"text", "json"}:
        fail(f"--log-format {log_format}: text and json are allowed", 2)
    write_log_lines("json" if log_format == "json" else "text")
    if reload:
        given = sys.argv[1:]
        raise typer.Exit(Reloading([sys.argv[0], *(word for word in given if word != "--reload")], Path.cwd()).run())
    stages = load(application)
    try:
        stages.check()
        for name in only or ():
            if name not in stages.stages:
                fail(f"--stage {name}: the application {stages.name!r} has {', '.join(stages.stages)}", 2)
        for wish in concurrency or ():
            name, _, number = wish.rpartition("=")
            stages.set_concurrency(name, int(number) if number.isdecimal() else 0)
    except ConfigurationError as error:
        fail(str(error), 2)
    if processes > 1:
        options = [word for name in only or () for word in ("--stage", name)]
        options += [word for wish in concurrency or () for word in ("--concurrency", wish)]
        options += ["--http-host", http_host, "--stop-after", str(stop_after), "--log-format", log_format]
        command = [sys.argv[0], "stages", "run", application, *options]
        raise typer.Exit(Processes(command, processes, http=http, kill_after_s=stop_after + KILL_MARGIN_S).run())
    reasons: list[BaseException] = []
    try:
        run_here(stages, tuple(only or ()), (http_host, http) if http else None, stop_after)
    except* ConfigurationError as group:
        reasons = leaves_of(group)
    if reasons:  # not within the except*: it would put typer's own exception into a group
        fail("; ".join(map(str, reasons)), 1)


def tables(application: Name) -> None:
    """Print the SQL that makes the inbox and the outbox of an application's database."""
    stages = load(application)
    if stages.database is None:
        fail(f"the application {stages.name!r} has no database", 2)
    typer.echo(stages.database.tables(), nl=False)


def load(application: str) -> Stages:
    """The application at ``module:name``; the current directory is searched first."""
    module, colon, name = application.partition(":")
    if not colon or not module or not name:
        fail(f"{application!r} names no application: module:name, for example shop:stages", 2)
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ConfigurationError as error:
        fail(str(error), 2)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0] and error.name != module:
            raise
        fail(f"{application}: there is no module {error.name!r} here or on sys.path", 2)
    if not isinstance(found, Stages):
        fail(f"{application}: {name!r} is {'missing' if found is None else type(found).__name__}, not a Stages", 2)
    return found


def fail(reason: str, code: int) -> NoReturn:
    """End the command with a reason and a code."""
    typer.echo(f"understudy stages: {reason}", err=True)
    raise typer.Exit(code)
