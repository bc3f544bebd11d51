"""The commands of ``understudy``; `start` is where the process begins.

Commands of plugins are entry points of the group ``understudy.commands``, each a function with typer annotations; ``cluster``
comes from a plugin and ``demo`` from the client, neither of which this room may import. They are loaded when one of them is
asked for, or all names are: ``understudy serve`` pays for none of them, ``understudy feed`` for its own.
"""

from __future__ import annotations

import json
import platform
import secrets
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from understudy import __version__
from understudy.broker.errors import UnderstudyError

if TYPE_CHECKING:
    from understudy.broker.transactions.xid import Xid

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
branches = typer.Typer(
    help="Branches of distributed transactions that are in doubt.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(branches, name="dtx")
transactions = typer.Typer(
    help="Distributed transactions of applications: what their state server and resource managers have.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(transactions, name="xa")
stages = typer.Typer(
    help="Stages of applications: functions that take messages from queues.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(stages, name="stages")
dead_letters = typer.Typer(help="Dead letters of stages.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(dead_letters, name="dlq")


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
    from understudy.broker.server.__main__ import run  # noqa: PLC0415  # `start` goes there at once: this is for --help

    options = ["--config", str(config), "--log-format", log_format, "--log-level", log_level]
    raise typer.Exit(run("understudy serve", options))


@app.command()
def status(
    url: Annotated[str, typer.Option(help="The HTTP port of a broker.")] = DEFAULT_URL,
    data: Annotated[Path | None, typer.Option(help="The directory of a cluster, or of one broker.")] = None,
    zk: Annotated[
        str, typer.Option(help="ZooKeeper, host:port,... (a chroot may follow): ask no broker.", show_default=False)
    ] = "",
    group: Annotated[str, typer.Option(help="The group, with --zk.", show_default=False)] = "",
    config: Annotated[
        Path | None, typer.Option(help="The file of a broker: show what its store has; with --zk for its credentials.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Again every second, until Ctrl-C or --wait ends it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object (a line each with --watch).")] = False,
    expect: Annotated[
        str, typer.Option(help="active or ready: exit code 3 if the group is not so.", show_default=False)
    ] = "",
    wait: Annotated[
        str,
        typer.Option(
            help="active or ready: show it when the group is so (--watch: meanwhile too); exit code 3 if not in time."
        ),
    ] = "",
    timeout: Annotated[str, typer.Option(help="For --wait: seconds, or with a unit, such as 30s or 500ms.")] = "30s",
) -> None:
    """Show brokers, roles, in-sync set, queues, lag, and what keeps a broker from being ready.

    With --data dead brokers are shown too: status down, no pid. With --zk or --config the coordination store alone is asked: the
    brokers as they have shown themselves, and the newest changes of the group.

    Exit codes: 0 shown, and as expected; 1 nothing could be shown; 2 the command was not understood; 3 not as expected.
    """
    from understudy.broker.command_line.broker_rows import rows_of_directory, rows_of_url  # noqa: PLC0415  # as above
    from understudy.broker.command_line.status_command import EXPECTATIONS, Showing, seconds, show  # noqa: PLC0415
    from understudy.broker.command_line.store_rows import config_of_store, rows_of_store  # noqa: PLC0415  # as above
    from understudy.broker.config import ConfigError  # noqa: PLC0415  # as above
    from understudy.broker.config.host_port import servers_of  # noqa: PLC0415  # as above

    for name, value in (("--expect", expect), ("--wait", wait)):
        if value and value not in EXPECTATIONS:
            raise typer.BadParameter(f"{value!r} is none of {', '.join(EXPECTATIONS)}", param_hint=name)
    if group and not zk and config is None:
        raise typer.BadParameter("it goes with --zk, or with --config", param_hint="--group")
    try:
        timeout_s = seconds(timeout)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--timeout") from error
    for option, text, read in (
        ("--zk", zk, servers_of),
        ("--group", group, _read_id),
    ):  # else --wait would look again and again
        try:
            if text:
                read(text, option)
        except ConfigError as error:
            raise typer.BadParameter(error.problem, param_hint=option) from error

    def look() -> dict[str, Any]:
        if zk or config is not None:
            return rows_of_store(config_of_store(zk, group, config))
        return rows_of_directory(data) if data is not None else rows_of_url(url)

    raise typer.Exit(show(look, Showing(as_json=as_json, watch=watch, expect=expect, wait=wait, timeout_s=timeout_s)))


def _read_id(text: str, option: str) -> str:
    """The id of a broker or a group. Raises: ConfigError."""
    from understudy.broker.config.readers import Place  # noqa: PLC0415  # as above
    from understudy.broker.config.schema import ID  # noqa: PLC0415  # as above

    return ID.read(text, Place(option, Path()))


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
    repair: Annotated[
        bool, typer.Option("--repair", help="Cut a damaged journal before the damage; keep the damaged files.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Read a whole journal, say what it holds and whether it may be believed. Without --repair nothing is changed.

    With --repair the broker must not run. What would be lost is said before by the same command without it.

    Exit codes: 0 whole, or repaired, or nothing to repair; 1 damaged, or no journal, or not to be repaired.
    """
    from understudy.broker.command_line.journal_check import check_journal, check_text  # noqa: PLC0415  # as above

    if repair:
        from understudy.broker.command_line.journal_repair import repair_journal, repair_text  # noqa: PLC0415  # as above

        done = repair_journal(directory)
        print(json.dumps(done) + "\n" if as_json else repair_text(done), end="", flush=True)
        return
    found = check_journal(directory)
    print(json.dumps(found) + "\n" if as_json else check_text(found), end="", flush=True)
    if found["damaged"] is not None:
        raise typer.Exit(1)


_DIRECTORY_HELP: Final = "The directory of a cluster, or of one broker."
_Branch = Annotated[str, typer.Argument(help="format:global:branch, as `dtx list` shows it.")]
_Amqp = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="amqp://user:password@host:port/vhost of any broker of the group.",
        show_default="amqp://guest:guest@127.0.0.1:5672/",
    ),
]
_Directory = Annotated[Path | None, typer.Option(help=f"{_DIRECTORY_HELP} Its primary is asked.")]
_Vhost = Annotated[str | None, typer.Option(help="Of the branch.", show_default="the URL's, or /")]
_User = Annotated[
    str | None, typer.Option(help="With configure permission for understudy.dtx.", show_default="the URL's, or guest")
]
_Password = Annotated[
    str | None, typer.Option(help="Of the user.", show_default="the URL's, or $UNDERSTUDY_PASSWORD, or guest")
]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
_Json = Annotated[bool, typer.Option("--json", help="One JSON object.")]


@branches.command("list")
def list_command(
    url: Annotated[
        str | None, typer.Option(help="The HTTP port of a broker, primary or backup.", show_default=DEFAULT_URL)
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help=f"{_DIRECTORY_HELP} The primary's list, and who has another one.")
    ] = None,
    vhost: Annotated[str | None, typer.Option(help="Only branches of this one.")] = None,
    as_json: _Json = False,
) -> None:
    """Show what is in doubt, since when, and what an operator has completed and nobody has forgotten.

    IN and OUT: messages that the branch puts into queues, and takes out of them.
    """
    from understudy.broker.command_line.dtx_command import list_text  # noqa: PLC0415  # as above

    found = _listed(url, data, vhost)
    print(json.dumps(found) + "\n" if as_json else list_text(found), end="", flush=True)


@branches.command("show")
def show_command(
    xid: _Branch,
    url: Annotated[
        str | None, typer.Option(help="The HTTP port of a broker, primary or backup.", show_default=DEFAULT_URL)
    ] = None,
    data: Annotated[Path | None, typer.Option(help=f"{_DIRECTORY_HELP} The primary's, and who differs.")] = None,
    vhost: Annotated[str | None, typer.Option(help="Only the branch of this one.")] = None,
    as_json: _Json = False,
) -> None:
    """Show one branch that is in doubt, or that an operator has completed and that was not forgotten yet; fail if there is none."""
    from understudy.broker.command_line.dtx_command import only, show_text  # noqa: PLC0415  # as above

    wanted = _parsed(xid)
    found = only(_listed(url, data, vhost), wanted)
    print(json.dumps(found) + "\n" if as_json else show_text(found), end="", flush=True)


def _listed(url: str | None, data: Path | None, vhost: str | None) -> dict[str, Any]:
    from understudy.broker.command_line.dtx_command import list_of_directory, list_of_url  # noqa: PLC0415  # as above

    if url is not None and data is not None:
        raise typer.BadParameter("give --url or --data, not both", param_hint="--url")
    return list_of_directory(data, vhost) if data is not None else list_of_url(url or DEFAULT_URL, vhost)


def _parsed(text: str) -> Xid:
    from understudy.broker.transactions.xid import Xid  # noqa: PLC0415  # as above

    try:
        return Xid.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="XID") from None


@branches.command("commit")
def commit_command(
    xid: _Branch,
    amqp: _Amqp = None,
    data: _Directory = None,
    vhost: _Vhost = None,
    user: _User = None,
    password: _Password = None,
    yes: _Yes = False,
    as_json: _Json = False,
) -> None:
    """Commit a prepared branch whose transaction manager is gone for good."""
    _decide("commit", xid, amqp, data, vhost, user, password, as_json, asks=not yes)


@branches.command("rollback")
def rollback_command(
    xid: _Branch,
    amqp: _Amqp = None,
    data: _Directory = None,
    vhost: _Vhost = None,
    user: _User = None,
    password: _Password = None,
    yes: _Yes = False,
    as_json: _Json = False,
) -> None:
    """Roll back a prepared branch whose transaction manager is gone for good."""
    _decide("rollback", xid, amqp, data, vhost, user, password, as_json, asks=not yes)


@branches.command("forget")
def forget_command(
    xid: _Branch,
    amqp: _Amqp = None,
    data: _Directory = None,
    vhost: _Vhost = None,
    user: _User = None,
    password: _Password = None,
    as_json: _Json = False,
) -> None:
    """Forget a branch that was completed by hand, when its transaction manager has heard of it or never will."""
    _decide("forget", xid, amqp, data, vhost, user, password, as_json, asks=False)


def _decide(
    wanted: Literal["commit", "rollback", "forget"],
    text: str,
    amqp: str | None,
    data: Path | None,
    vhost: str | None,
    user: str | None,
    password: str | None,
    as_json: bool,
    *,
    asks: bool,
) -> None:
    from understudy.broker.command_line.amqp_address import AmqpUrlError  # noqa: PLC0415  # as above
    from understudy.broker.command_line.dtx_command import address_of, decide, decided_text  # noqa: PLC0415  # as above

    xid = _parsed(text)
    if amqp is not None and data is not None:
        raise typer.BadParameter("give --amqp or --data, not both", param_hint="--amqp")
    try:
        address = address_of(amqp, data, user=user, password=password, vhost=vhost)
    except AmqpUrlError as error:
        raise typer.BadParameter(str(error), param_hint="--amqp") from error
    if asks:
        _ask_whether(
            f"Complete branch {xid} in vhost '{address.vhost}' by hand? Its transaction manager will be told heurhaz."
        )
    done = decide(address, xid, wanted)
    print(json.dumps(done) + "\n" if as_json else decided_text(done), end="", flush=True)


def _ask_whether(question: str) -> None:
    """Go on only if somebody says yes."""
    if not sys.stdin.isatty():
        raise _RefusedError("nobody can be asked whether to complete the branch by hand: give --yes. Nothing was done")
    if not typer.confirm(question, default=False, err=True):
        raise _RefusedError("nothing was done")


class _RefusedError(UnderstudyError):
    """The input of a command cannot be used."""


def _add_commands_of_plugins(asked: str) -> None:
    """The commands of entry points: the one that is ``asked`` for, those of a group of that name, or else all of them.

    ``journal.dump`` is a command of the group ``understudy journal``.
    """
    import understudy.broker.plain_structlog  # noqa: F401, PLC0415  # before all that logs; other commands need no log

    groups = {"": app, "dlq": dead_letters, "journal": journals, "stages": stages, "xa": transactions}
    points = entry_points(group=COMMANDS_GROUP)
    for point in [each for each in points if each.name.partition(".")[0] == asked] or points:
        group, _, name = point.name.rpartition(".")
        groups[group].command(name)(_loaded(point))


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
    asked = next(iter(sys.argv[1:]), "")
    if asked not in ("serve", "status", "user", "dtx"):
        _add_commands_of_plugins(asked)
    try:
        app()
    except BrokenPipeError:
        sys.exit(1)  # `understudy status --watch | head`
    except (UnderstudyError, OSError) as error:  # OSError: a directory of another user, a disk that does not give back
        print(f"understudy: {error}", file=sys.stderr)
        sys.exit(1)
