"""The console script ``understudy``.

Commands of plugins are entry points of the group ``understudy.commands``, each a function with typer annotations; ``cluster``
comes from the HA plugin and ``demo`` from the client, neither of which this room may import. They are loaded when one of them is
asked for, or all names are: ``understudy serve`` pays for none of them.
"""

from __future__ import annotations

import json
import platform
import secrets
import sys
import time
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from understudy import __version__
from understudy.broker.errors import UnderstudyError

COMMANDS_GROUP: Final = "understudy.commands"
DEFAULT_URL: Final = "http://127.0.0.1:8672"

app = typer.Typer(
    name="understudy",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
users = typer.Typer(help="Users of the configuration.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(users, name="user")
journals = typer.Typer(help="The journal in a data directory.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(journals, name="journal")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"understudy {__version__} on Python {platform.python_version()}")
        raise typer.Exit


@app.callback()
def main_options(
    version: Annotated[  # typer calls _show_version for it
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    """An AMQP 0-9-1 broker whose transactions survive it, on every backup."""


@app.command()
def serve(
    config: Annotated[Path, typer.Option(help="The broker's TOML file.", show_default=False)],
    log_format: Annotated[str, typer.Option(help="text or json, on stderr.")] = "text",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run one broker in the foreground until SIGTERM or SIGINT.

    Exit codes: 0 stopped; 1 refused to start (port in use, data directory locked, damaged or somebody else's), nothing changed;
    70 internal error; 74 the disk failed; 78 the configuration cannot be used.
    """
    from understudy.broker.server.log_setup import LEVELS  # noqa: PLC0415  # other commands need no broker
    from understudy.broker.server.run import serve as serve_file  # noqa: PLC0415  # as above

    if log_format not in ("text", "json"):
        raise typer.BadParameter(f"{log_format!r} is neither text nor json", param_hint="--log-format")
    if log_level not in LEVELS:
        raise typer.BadParameter(f"{log_level!r} is none of {', '.join(LEVELS)}", param_hint="--log-level")
    raise typer.Exit(serve_file(config, log_format="json" if log_format == "json" else "text", log_level=log_level))


@app.command()
def status(
    url: Annotated[str, typer.Option(help="The HTTP port of a broker.")] = DEFAULT_URL,
    data: Annotated[Path | None, typer.Option(help="The directory of a cluster, or of one broker.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Again every second, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object (a line each with --watch).")] = False,
) -> None:
    """Show brokers, roles, in-sync set, queues, lag, and what keeps a broker from being ready.

    With --data dead brokers are shown too: status down, no pid.
    """
    from understudy.broker.command_line.broker_rows import rows_of_directory, rows_of_url  # noqa: PLC0415  # as above
    from understudy.broker.command_line.status_text import status_text  # noqa: PLC0415  # as above

    while True:
        group: dict[str, Any] = rows_of_directory(data) if data is not None else rows_of_url(url)
        if as_json:
            print(json.dumps(group), flush=True)
        else:
            clear = "\x1b[H\x1b[2J" if watch and sys.stdout.isatty() else ""
            print(clear + status_text(group), end="", flush=True)
        if not watch:
            return
        time.sleep(1.0)


@users.command("hash")
def hash_command() -> None:
    """Ask for a password and print its hash, for password_hash of [[users]]. Without a terminal, read it from stdin."""
    from understudy.broker.security import hash_password  # noqa: PLC0415  # as above

    if sys.stdin.isatty():
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\n")
    try:
        print(hash_password(password, secrets.token_bytes(16)))
    except ValueError as error:
        raise _RefusedError(str(error)) from error


@journals.command("check")
def check_command(
    directory: Annotated[
        Path, typer.Argument(help="A broker's data directory; the broker may run.", show_default=False)
    ],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Read a whole journal, say what it holds and whether it may be believed. Changes nothing; exit code 1 if it is damaged."""
    from understudy.broker.command_line.journal_check import check_journal, check_text  # noqa: PLC0415  # as above

    found = check_journal(directory)
    print(json.dumps(found) + "\n" if as_json else check_text(found), end="", flush=True)
    if found["damaged"] is not None:
        raise typer.Exit(1)


class _RefusedError(UnderstudyError):
    """What a command was given cannot be used."""


def _add_commands_of_plugins() -> None:
    for point in entry_points(group=COMMANDS_GROUP):
        app.command(point.name)(_loaded(point))


def _loaded(point: EntryPoint) -> Callable[..., Any]:
    try:
        command: Callable[..., Any] = point.load()
    except ImportError as error:
        reason = f"{point.name} is not available here: {error}"

        def unavailable() -> None:
            raise _RefusedError(reason)

        unavailable.__doc__ = "Not available in this installation."
        return unavailable
    return command


def main() -> None:
    """Run the command line; ends the process."""
    own = {"serve", "status", "user", "journal"}
    if not own.intersection(sys.argv[1:2]):
        _add_commands_of_plugins()
    try:
        app()
    except BrokenPipeError:
        sys.exit(1)  # `understudy status --watch | head`
    except (UnderstudyError, OSError) as error:  # OSError: a directory of another user, a disk that does not give back
        print(f"understudy: {error}", file=sys.stderr)
        sys.exit(1)
