"""The command ``understudy demo``: options in, exit code out."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import traceback
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer

INTERRUPTED: Final = 130
MARK: Final = ".understudy-demo"
LEAST_RATE: Final = 10.0
NEEDED_BYTES: Final = 2 << 30
"""Three journals with what each keeps in reserve, and the reserve below which a broker refuses work."""


def demo(
    kills: Annotated[int, typer.Option(min=0, help="How often the primary is killed with SIGKILL.")] = 5,
    seconds: Annotated[
        float, typer.Option(min=1, help="How long the load lasts; longer if kills are still owed.")
    ] = 40.0,
    clients: Annotated[int, typer.Option(min=1, max=500, help="How many clients at once.")] = 16,
    rate: Annotated[float, typer.Option(min=1, help="Transactions a second, of all clients together.")] = 200.0,
    transactions: Annotated[
        int | None,
        typer.Option(
            min=0, help="Fail if fewer are acknowledged; 10 for each second if not given.", show_default=False
        ),
    ] = None,
    keep_logs: Annotated[
        Path | None,
        typer.Option(help="Keep everything there: logs of brokers and clients, data, report.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report on one line, the last of stdout.")] = False,
    zookeeper: Annotated[
        str,
        typer.Option(
            help="As for cluster: the brokers meet in ZooKeeper, at host:port,... or embedded.", show_default=False
        ),
    ] = "",
    port: Annotated[int, typer.Option(min=0, max=65_533, help="AMQP port of the first broker; 0 finds free ones.")] = 0,
    audit: Annotated[
        bool, typer.Option("--audit", help="End with `understudy audit` of the brokers' feeds (extra 'pipeline').")
    ] = False,
) -> None:
    """Three brokers, money moving in transactions, the primary killed again and again, and the proof that nothing was lost.

    Exit code 0 only if everything holds and was done as often as asked for; else 1, and everything is kept to be looked at.
    """
    try:
        import aio_pika  # noqa: F401, PLC0415  # the extra of this command: others must neither need nor load it
    except ImportError:
        _fail("aio-pika is missing: pip install 'understudy[demo]'")
    if audit and find_spec("pyspark") is None:
        _fail("--audit: PySpark is missing: pip install 'understudy[pipeline]'")
    import uvloop  # noqa: PLC0415  # as above
    from rich.console import Console  # noqa: PLC0415  # as above

    from understudy.client.demo.demonstration import Demonstration, Wishes  # noqa: PLC0415  # as above
    from understudy.client.demo.report import report_text  # noqa: PLC0415  # as above
    from understudy.client.demo.view import make_view  # noqa: PLC0415  # as above
    from understudy.client.runs.broker_group import GroupError, free_ports  # noqa: PLC0415  # as above
    from understudy.client.runs.session import LostError, RefusedError  # noqa: PLC0415  # as above
    from understudy.client.runs.signalled import run_until_signalled  # noqa: PLC0415  # as above

    folder = _folder(keep_logs)
    least = transactions if transactions is not None else round(LEAST_RATE * seconds)
    report: dict[str, Any]
    try:
        port = port or free_ports()
        wishes = Wishes(
            kills=kills,
            seconds=seconds,
            clients=clients,
            rate=rate,
            transactions=least,
            port=port,
            zookeeper=zookeeper,
            audit=audit,
        )
        demonstration = Demonstration(wishes, folder, make_view(Console(stderr=as_json)))
        report = run_until_signalled(demonstration.run, uvloop.new_event_loop)
    except (GroupError, LostError, RefusedError) as error:
        report = {"ok": False, "problems": [f"the demo could not be carried out: {error}"]}
        typer.echo(f"FAILED: {report['problems'][0]}", err=as_json)
    except Exception as error:  # noqa: BLE001  # our own mistake, or the disk's: the last line says so whatever it was
        traceback.print_exc()
        report = {"ok": False, "problems": [f"the demo itself failed: {type(error).__name__}: {error}"]}
        typer.echo(f"FAILED: {report['problems'][0]}", err=as_json)
    except (KeyboardInterrupt, asyncio.CancelledError):
        if keep_logs is None:
            shutil.rmtree(folder)
        raise typer.Exit(INTERRUPTED) from None
    else:
        typer.echo(report_text(report), err=as_json)
    if report["ok"] and keep_logs is None:
        shutil.rmtree(folder)
    else:
        typer.echo(f"Logs and data are in {folder}", err=as_json)
    if as_json:
        typer.echo(json.dumps(report))
    raise typer.Exit(0 if report["ok"] else 1)


def _folder(keep: Path | None) -> Path:
    """Where everything goes: a new folder, or the one that was named, empty or of an earlier demo."""
    if keep is None:
        _check_space(Path(tempfile.gettempdir()), "TMPDIR")
        return Path(tempfile.mkdtemp(prefix="understudy-demo-"))
    if keep.exists() and (not keep.is_dir() or (any(keep.iterdir()) and not (keep / MARK).exists())):
        _fail(f"--keep-logs {keep}: it is there, is not empty, and is not of an earlier demo")
    if keep.exists():
        shutil.rmtree(keep)
    keep.mkdir(parents=True)
    _check_space(keep, "--keep-logs")
    (keep / MARK).touch()
    return keep.resolve()


def _check_space(folder: Path, option: str) -> None:
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        _fail(
            f"{folder} has {free >> 20} MiB free and {NEEDED_BYTES >> 20} are needed; {option} may name another place"
        )


def _fail(reason: str) -> NoReturn:
    typer.echo(f"understudy demo: {reason}", err=True)
    raise typer.Exit(1)
