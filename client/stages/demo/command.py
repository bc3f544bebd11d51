"""``scripts/demo stages``: options in, exit code out."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from understudy.run_folder import RunFolder


def demo(
    seconds: Annotated[float, typer.Option(min=1, help="How long orders come, at least.")] = 25.0,
    rate: Annotated[float, typer.Option(min=1, help="Orders a second.")] = 20.0,
    kills: Annotated[int, typer.Option(min=0, help="How often each of the two kinds of process is killed.")] = 4,
    workers: Annotated[int, typer.Option(min=1, max=20, help="Processes that run the stages.")] = 2,
    once: Annotated[
        bool, typer.Option("--once/--no-once", help="With inbox and outbox. Without, kills may double an effect.")
    ] = True,
    keep_logs: Annotated[
        Path | None, typer.Option(help="A new folder, where everything is kept.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report on one line, the last of stdout.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65_533, help="AMQP port of the first broker; 0 finds free ones.")] = 0,
) -> None:
    """Orders pass three stages over SQLite; workers and the primary broker are killed; the books balance.

    Exit codes: 0 nothing is lost or doubled, and all was done; 1 not; 2 the folder cannot be used.
    """
    try:
        from understudy.client.runs.broker_group import GroupError, free_ports  # noqa: PLC0415  # the extra of this command
        from understudy.client.runs.session import strays_logged  # noqa: PLC0415  # as above
        from understudy.client.runs.signalled import run_until_signalled  # noqa: PLC0415  # as above
        from understudy.client.stages.demo.run import Demonstration, Wishes  # noqa: PLC0415  # as above
    except ImportError as error:
        typer.echo(f"understudy stages demo: {error}: pip install 'understudy[stages]'", err=True)
        raise typer.Exit(1) from error
    from understudy.client.stages.errors import StagesError  # noqa: PLC0415  # as above

    folder = RunFolder("understudy stages demo", keep_logs)
    report: dict[str, Any]
    try:
        wishes = Wishes(
            seconds=seconds, rate=rate, kills=kills, workers=workers, once=once, port=port or free_ports()
        )  # fmt: skip
        demonstration = Demonstration(wishes, folder.path, lambda line: typer.echo(line, err=True))
        with strays_logged(folder.path / "demo.log"):
            report = run_until_signalled(demonstration.run)
    except* (GroupError, StagesError, OSError) as group:
        report = {"ok": False, "problems": [f"the demo could not be carried out: {each}" for each in group.exceptions]}
    except* (KeyboardInterrupt, asyncio.CancelledError):
        raise folder.interrupted() from None
    folder.finish(report, report_lines(report), as_json=as_json)


def report_lines(report: dict[str, Any]) -> list[str]:
    """The report as text."""
    lines = []
    if "killed" in report:
        killed = ", ".join(f"{victim} {count} times" for victim, count in report["killed"].items()) or "nothing"
        found = ", ".join(f"{name} {report[name]}" for name in ("holds", "charges", "shipments", "dead_letters"))
        lines = [
            f"Killed: {killed}, in {report['seconds']:g} s",
            f"Orders: {report['orders']}; {found}".replace("_", " "),
            f"Begun again under the same name, and refused: {report['begun_twice_refused']}",
        ]
    if report["ok"]:
        return [*lines, "Nothing is lost, nothing is doubled: the books balance."]
    return [*lines, *(f"FAILED: {problem}" for problem in report["problems"])]
