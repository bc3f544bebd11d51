"""``scripts/stress stages``: options in, exit code out."""

from __future__ import annotations

import asyncio
import enum
import secrets
from pathlib import Path
from typing import Annotated, Any

import typer

from understudy.client.stages.watching.points import Point
from understudy.run_folder import RunFolder


class Kind(enum.StrEnum):
    """The business database."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


def stress(
    flows: Annotated[int, typer.Option(min=1, help="Orders that are begun.")] = 1000,
    database: Annotated[Kind, typer.Option(help="The business database.")] = Kind.POSTGRESQL,
    kills: Annotated[int, typer.Option(min=0, help="How often each kind of process gets SIGKILL.")] = 5,
    chance: Annotated[
        float, typer.Option(min=0, max=0.1, help="Of a worker to end itself at each named point that it passes.")
    ] = 0.001,
    point: Annotated[
        str, typer.Option(help='The only such point, such as "after database commit".', show_default=False)
    ] = "",
    workers: Annotated[int, typer.Option(min=1, max=20, help="Processes that run the stages.")] = 2,
    once: Annotated[
        bool, typer.Option("--once/--no-once", help="With inbox and outbox. Without, effects are doubled, and counted.")
    ] = True,
    xa: Annotated[
        bool, typer.Option("--xa", help="Distributed transactions in place of both; a state server is killed as well.")
    ] = False,
    audit: Annotated[
        bool, typer.Option("--audit", help="End with the audit of the brokers' feeds (pipeline).")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of kills and orders; else drawn.", show_default=False)
    ] = None,
    keep_logs: Annotated[
        Path | None, typer.Option(help="A new folder, where everything is kept.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report on one line, the last of stdout.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65_533, help="AMQP port of the first broker; 0 finds free ones.")] = 0,
) -> None:
    """Orders pass three stages; workers, relay, primary broker and PostgreSQL are killed at random; the books are checked.

    Exit codes: 0 nothing is lost or doubled, and all was done; 1 not; 2 the folder cannot be used. Without inbox and outbox: 0 if
    nothing is lost, and what is doubled was counted.
    """
    if xa and database is Kind.SQLITE:
        typer.echo("understudy stages stress: --xa needs --database postgresql", err=True)
        raise typer.Exit(2)
    if point not in {"", *(each.value for each in Point)}:
        known = ", ".join(repr(each.value) for each in Point)
        typer.echo(f"understudy stages stress: --point {point!r} is none of {known}", err=True)
        raise typer.Exit(2)
    folder = RunFolder("understudy stages stress", keep_logs, for_others=True)
    chosen = seed if seed is not None else secrets.randbelow(1_000_000)
    typer.echo(f"Seed {chosen}", err=True)
    try:
        report = _run(
            folder.path, database, flows=flows, kills=kills, chance=chance, point=point, workers=workers, once=once, xa=xa,
            audit=audit, seed=chosen, port=port,
        )  # fmt: skip
    except* (KeyboardInterrupt, asyncio.CancelledError):
        raise folder.interrupted() from None
    folder.finish(report, report_lines(report), as_json=as_json)


def _run(folder: Path, database: Kind, *, port: int, **wishes: Any) -> dict[str, Any]:
    try:
        from understudy.client.runs.broker_group import GroupError, free_ports  # noqa: PLC0415  # the extras of this command
        from understudy.client.runs.session import strays_logged  # noqa: PLC0415  # as above
        from understudy.client.runs.signalled import run_until_signalled  # noqa: PLC0415  # as above
        from understudy.client.stages.demo.books import SqliteBooks  # noqa: PLC0415  # as above
        from understudy.client.stages.errors import StagesError  # noqa: PLC0415  # as above
        from understudy.testing.stages_stress.postgresql_books import PostgresqlBooks  # noqa: PLC0415  # as above
        from understudy.testing.stages_stress.run import Stress, StressWishes  # noqa: PLC0415  # as above
        from understudy.xa.core.errors import XaError  # noqa: PLC0415  # as above
    except ImportError as error:
        typer.echo(f"understudy stages stress: {error}: pip install 'understudy[stages-postgresql,xa]'", err=True)
        raise typer.Exit(1) from error
    server = None
    try:
        books: Any
        if database is Kind.POSTGRESQL:
            books = server = PostgresqlBooks(folder / "postgresql")
        else:
            books = SqliteBooks(folder / "shop.db")
        run = Stress(
            StressWishes(port=port or free_ports(), **wishes), folder, lambda line: typer.echo(line, err=True), books
        )  # fmt: skip
        with strays_logged(folder / "stress.log"):
            report = run_until_signalled(run.run)
        if run.audit_verdict is not None:
            report["audit"] = run.audit_verdict
    except* (GroupError, StagesError, XaError, OSError) as group:
        report = {"ok": False, "problems": [f"the run could not be carried out: {each}" for each in group.exceptions]}
    finally:
        if server is not None:
            server.stop()
    return report


def report_lines(report: dict[str, Any]) -> list[str]:
    """The report as text."""
    lines = []
    if "killed" in report:
        killed = ", ".join(f"{victim} {count} times" for victim, count in report["killed"].items()) or "nothing"
        crashes = ", ".join(f"{point} {count}" for point, count in report["crashes"].items()) or "none"
        found = ", ".join(f"{name} {report[name]}" for name in ("holds", "charges", "shipments", "dead_letters"))
        doubled = ", ".join(f"{name} {count}" for name, count in report["doubled"].items())
        lines = [
            f"Killed: {killed}, in {report['seconds']:g} s",
            f"Workers that ended themselves: {crashes}",
            f"Orders: {report['orders']}; {found}".replace("_", " "),
            f"Effects that are there twice: {doubled}",
            f"Dead letters that came twice, under one id: {report['dead_letters_of_one_id']}",
            f"Initiations that were begun again after an error: {report['begun_again']}",
        ]
    if "audit" in report:
        audit = report["audit"]
        lines.append(f"Audit: {audit['verdict']}, {audit['transactions']:,} transactions of {audit['brokers']} brokers")
    if not report["ok"]:
        return [*lines, *(f"FAILED: {problem}" for problem in report["problems"])]
    if report["once"] or report["xa"]:
        return [*lines, "Nothing is lost, nothing is doubled: the books balance."]
    return [*lines, "Nothing is lost. What is doubled shows the window without once=True."]
