"""``scripts/stress xa``: options in, exit code out."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated, Final

import typer

from understudy.run_folder import RunFolder

BOUND_S: Final = 30.0


def stress(
    kills: Annotated[int, typer.Option(min=1, help="How many processes are killed with SIGKILL.")] = 100,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of victims and moments; without it a new one.", show_default=False)
    ] = None,
    bound_s: Annotated[
        float, typer.Option(min=1, help="How long something may stay in doubt when all processes are back.")
    ] = BOUND_S,
    keep_logs: Annotated[
        Path | None, typer.Option(help="A new folder, where everything is kept.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report on one line, the last of stdout.")] = False,
) -> None:
    """Client, state server, broker and PostgreSQL are killed at random; after each kill both resource managers must agree.

    Exit codes: 0 they did, and nothing stayed in doubt; 1 not, or a server could not be had; 2 the folder cannot be used.
    """
    try:
        from understudy.xa.stress.report import Report  # noqa: PLC0415  # imports psycopg, of the extra of this command
        from understudy.xa.stress.rounds import Rounds  # noqa: PLC0415  # as above
    except ImportError as error:
        typer.echo(f"understudy xa stress: {error}: pip install 'understudy[xa]'", err=True)
        raise typer.Exit(1) from error
    from understudy.xa.core.errors import XaError  # noqa: PLC0415  # as above

    folder = RunFolder("understudy xa stress", keep_logs, for_others=True)
    drawn = seed if seed is not None else random.randrange(1_000_000)  # noqa: S311  # a test's chance
    typer.echo(f"--seed {drawn}", err=True)
    try:
        report = Rounds(
            folder.path, kills=kills, seed=drawn, bound_s=bound_s, say=lambda line: typer.echo(line, err=True)
        ).run()
    except XaError as error:
        report = Report(drawn, problems=[str(error)])
    except KeyboardInterrupt:
        raise folder.interrupted() from None
    folder.finish(report.as_json(), report.lines(), as_json=as_json)
