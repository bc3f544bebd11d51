"""The command ``understudy stress``: options in, exit code out."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

if TYPE_CHECKING:
    from understudy.client.stress.wishes import Wishes

AS_IT_MUST: Final = 0
WRONG: Final = 1
BAD_INPUT: Final = 2
INTERRUPTED: Final = 130
MARK: Final = ".understudy-stress"
DEFAULT_MINUTES: Final = 2.0
ALL: Final = "all"


def stress(
    local: Annotated[bool, typer.Option("--local", help="Brokers are processes of this host.")] = False,
    compose: Annotated[bool, typer.Option("--compose", help="Brokers are containers of docker-compose.")] = False,
    minutes: Annotated[
        float | None,
        typer.Option(min=0.05, help="How long faults come; 2 if --kills is not given.", show_default=False),
    ] = None,
    kills: Annotated[
        int | None, typer.Option(min=1, help="Until the primary was killed so often.", show_default=False)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="What is drawn; without it a new one.", show_default=False)
    ] = None,
    nemesis: Annotated[str, typer.Option(help="Names of faults, with commas; or all.", metavar="LIST")] = ALL,
    workload: Annotated[str, typer.Option(help="bank, fifo, large-tx, dtx or deadletters.")] = "bank",
    clients: Annotated[int, typer.Option(min=1, max=200, help="How many clients at once.")] = 12,
    rate: Annotated[float, typer.Option(min=1, help="Transactions a second, of all clients together.")] = 100.0,
    libraries: Annotated[
        str, typer.Option(help="Of the clients, which take them in turn.", metavar="LIST")
    ] = "pika,aio-pika,kombu",
    store: Annotated[
        str,
        typer.Option(
            help="Of --local: file or zookeeper; the latter by default, in the source tree.", show_default=False
        ),
    ] = "",
    mutation: Annotated[
        str, typer.Option(help="Negative control: brokers with this known bug of the tests.", show_default=False)
    ] = "",
    audit: Annotated[
        bool,
        typer.Option(
            "--audit", help="Of --local: end with `understudy audit` of the brokers' feeds (extra 'pipeline')."
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Keep everything there: logs, data, reports.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report on one line, the last of stdout.")] = False,
) -> None:
    """Faults on a group of brokers under load; at the end the clients' own logs are held against what the brokers hold.

    Exit code 0 only if everything held, 1 on any violation, 2 for bad input. With --mutation: 0 only if a verdict reports a
    violation, 1 if the bug was not seen.
    """
    try:
        from understudy.client.stress.wishes import WishError, asked  # noqa: PLC0415  # extra: others do without
    except ImportError as error:
        _bad(f"{error.name} is missing: pip install 'understudy[stress]'")
    if local == compose:
        _bad("give one of --local and --compose")
    seconds = 60 * minutes if minutes is not None else None if kills is not None else 60 * DEFAULT_MINUTES
    try:
        wishes = asked(
            place="local" if local else "compose",
            seconds=seconds,
            kills=kills,
            seed=seed if seed is not None else time.time_ns() % 1_000_000,
            nemesis=nemesis,
            workload=workload,
            clients=clients,
            rate=rate,
            libraries=libraries,
            store=store,
            mutation=mutation,
            audit=audit,
        )
    except WishError as error:
        _bad(str(error))
    folder = _folder(out)
    try:
        report = _carried_out(wishes, folder, as_json=as_json)
    except typer.Exit:  # interrupted
        if out is None:
            shutil.rmtree(folder)
        raise
    if report["ok"] and out is None:
        shutil.rmtree(folder)
    else:
        typer.echo(f"Logs, data and reports are in {folder}", err=as_json)
    if as_json:
        typer.echo(json.dumps(report))
    raise typer.Exit(exit_code(report, mutation))


def exit_code(report: Mapping[str, Any], mutation: str) -> int:
    """0 if the run shows what it must: that everything held or, of brokers with a known bug, that a verdict reports it.

    A run that could not be carried out, since mutated brokers did not start for example, has seen no bug.
    """
    as_it_must = report.get("bug_seen", False) if mutation else report["ok"]
    return AS_IT_MUST if as_it_must else WRONG


def _carried_out(wishes: Wishes, folder: Path, *, as_json: bool) -> dict[str, Any]:
    """The report; of a run that could not be carried out, why."""
    from rich.console import Console  # noqa: PLC0415  # as in stress

    from understudy.client.runs.audited import AuditError  # noqa: PLC0415  # as in stress
    from understudy.client.runs.broker_group import GroupError  # noqa: PLC0415  # as in stress
    from understudy.client.runs.session import LostError, RefusedError  # noqa: PLC0415  # as in stress
    from understudy.client.runs.signalled import run_until_signalled  # noqa: PLC0415  # as in stress
    from understudy.client.stress.places.place import PlaceError  # noqa: PLC0415  # as in stress
    from understudy.client.stress.report.summary import report_text  # noqa: PLC0415  # as in stress
    from understudy.client.stress.report.view import make_view  # noqa: PLC0415  # as in stress
    from understudy.client.stress.run import Stress  # noqa: PLC0415  # as in stress

    try:
        run = Stress(wishes, wishes.make_place(folder / "cluster"), folder, make_view(Console(stderr=as_json)))
        report = run_until_signalled(run.run)
    except (GroupError, LostError, RefusedError, PlaceError, AuditError) as error:
        report = {"ok": False, "problems": [f"the run could not be carried out: {error}"]}
    except Exception as error:  # noqa: BLE001  # our own mistake, or the disk's: the last line says so whatever it was
        traceback.print_exc()
        report = {"ok": False, "problems": [f"the run itself failed: {type(error).__name__}: {error}"]}
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise typer.Exit(INTERRUPTED) from None
    else:
        typer.echo(report_text(report), err=as_json)
        return report
    typer.echo(f"FAILED: {report['problems'][0]}", err=as_json)
    return report


def _folder(out: Path | None) -> Path:
    """Where everything goes: a new folder, or the one that was named, empty or of an earlier run."""
    if out is None:
        return Path(tempfile.mkdtemp(prefix="understudy-stress-"))
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / MARK).exists())):
        _bad(f"--out {out}: it is there, is not empty, and is not of an earlier run")
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    (out / MARK).touch()
    return out.resolve()


def _bad(reason: str) -> NoReturn:
    typer.echo(f"understudy stress: {reason}", err=True)
    raise typer.Exit(BAD_INPUT)
