"""``understudy cluster``: a whole group on this host, for trying things out, for tests, for the demo.

It writes one TOML file per broker into the directory, as it would be written by hand for three hosts, and lets the supervisor run
``understudy serve`` on each. All brokers meet in ``coordination.db`` there, or in ZooKeeper (``--zookeeper``). The broker on
``--port`` founds the group.

It is the plugin's command (entry point ``understudy.commands``): the broker does not know what a group is.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import secrets
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from understudy.broker.config import ConfigError
from understudy.broker.config.host_port import servers_of
from understudy.broker.errors import UnderstudyError
from understudy.broker.printable import escaped
from understudy.broker.server.files.file_storage import FileStorage, make_directory
from understudy.broker.server.files.ports_file import READY_STATUSES
from understudy.broker.server.process.cpu_binding import bind_process, usable_cpus
from understudy.broker.server.process.supervisor import SupervisedBroker, Supervisor
from understudy.ha.trial.cpu_plan import cpu_plan, cpus_beside
from understudy.ha.trial.edge.cluster_observers import FeedDetail, ObserverPlan, observer_plan
from understudy.ha.trial.edge.zookeeper_servers import lay_out_ensemble

GROUP: Final = "understudy"
SECRET_FILE: Final = "link.secret"  # noqa: S105  # the name of a file
MAX_BROKERS: Final = 16
RESERVE_BYTES: Final = 64 << 20
"""Of each broker: a segment of the journal, the least that `journal.reserve_bytes` is by itself."""
EMPTY_MIB: Final = 2 * RESERVE_BYTES >> 20
"""Disk that an empty broker takes: the reserve and the first segment."""

_TOML: Final = """\
# Made anew by `understudy cluster` at every start. To run this broker alone: understudy serve --config {path}
# link and http take free ports; {id}/ports.json says which.

[broker]
id = "{id}"
group = "{group}"
data = "{id}"

[amqp]
host = "127.0.0.1"
port = {port}

[http]
host = "127.0.0.1"
port = 0

[link]
host = "127.0.0.1"
port = 0
secret = "{secret}"

# Brokers of one host share its disk: each keeps less than a broker that has a disk of its own.
[journal]
reserve_bytes = {reserve}

[ha]
found = {founds}
min_insync = {min_insync}

[coordination]
{store}
[plugins]
ha = true
"""

FILE_STORE: Final = 'kind = "file"\npath = "coordination.db"\n'
EMBEDDED: Final = "embedded"


class ClusterError(UnderstudyError):
    """The cluster cannot be laid out as asked."""


def cluster(
    brokers: Annotated[int, typer.Option(min=1, max=MAX_BROKERS, help="How many.")] = 3,
    data: Annotated[Path, typer.Option(help="Directory for everything: configurations, journals, logs.")] = Path(
        "cluster"
    ),
    port: Annotated[int, typer.Option(min=1, max=65_535, help="AMQP port of the first; the others follow.")] = 5672,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line for each change.")] = False,
    zookeeper: Annotated[
        str,
        typer.Option(
            help="Meet in ZooKeeper at host:port,... (a chroot may follow), or in one server that this command starts: embedded.",
            show_default=False,
        ),
    ] = "",
    no_restart: Annotated[
        bool, typer.Option("--no-restart", help="Leave a broker that was killed where it lies.")
    ] = False,
    feed: Annotated[
        FeedDetail | None,
        typer.Option(
            help="Each broker writes its event feed into files: what its journal holds, and roles, links and readiness; "
            "with 'messages' also what clients are told.",
            show_default=False,
        ),
    ] = None,
    feed_out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where: a directory a broker is made there. [feed in --data]", show_default=False
        ),
    ] = None,
    kafka: Annotated[
        str,
        typer.Option(
            metavar="HOSTS",
            help="A Kafka at host:port,...: for the feed with --topic, for committed transactions with --outlet.",
            show_default=False,
        ),
    ] = "",
    topic: Annotated[
        str,
        typer.Option(help="The feed goes into this topic instead of files; it must be there.", show_default=False),
    ] = "",
    outlet: Annotated[
        str,
        typer.Option(
            metavar="TOPIC",
            help="Committed transactions go into this topic, which may hold {vhost}, {queue} and {group}; it is made.",
            show_default=False,
        ),
    ] = "",
    pin: Annotated[
        bool | None,
        typer.Option(
            "--pin/--no-pin",
            help="A CPU for the primary, alone while that is full, others for the backups, anew at each promotion; with as many "
            "CPUs as brokers one each. By default if there are fewer than two CPUs a broker.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a group of brokers on this host, in the foreground, until Ctrl-C.

    A broker that is killed is started again (not after exit code 74: its disk failed). Clients connect as guest/guest.
    """
    if port + brokers - 1 > 65_535:
        raise ClusterError(f"{brokers} brokers from port {port} on end above 65535")
    if zookeeper not in ("", EMBEDDED):
        try:
            servers_of(zookeeper, "--zookeeper")
        except ConfigError as error:
            raise typer.BadParameter(error.problem, param_hint="--zookeeper") from error
    plan = observer_plan(feed, feed_out, data, kafka, topic, outlet)
    names = [f"b{number + 1}" for number in range(brokers)]
    cpus = cpu_plan(names, usable_cpus(), pin)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a queue's name may have what the terminal cannot show
    with _locked(data), _store(zookeeper, data, cpus_beside(names, usable_cpus(), pin)) as store:
        laid_out = lay_out(data, brokers, port, plan, store=store)
        report = _print_json if as_json else _Lines(data, port, brokers)
        supervisor = Supervisor(laid_out, restart=not no_restart, report=report, cpus=cpus)
        code = asyncio.run(supervisor.run())
    raise typer.Exit(code)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Have the directory alone: each broker's own lock would stop a second cluster too late.

    By then the files of the running brokers would have been written over, and whoever is started again would come up on other
    ports.

    Raises:
        DirectoryLockedError: another cluster runs on it.
        ClusterError: the directory cannot be used.
    """
    try:
        make_directory(directory)
        lock = FileStorage(directory)
    except OSError as error:
        raise ClusterError(f"{directory} cannot be used: {error}") from error
    try:
        yield
    finally:
        lock.close()


@contextlib.contextmanager
def _store(zookeeper: str, directory: Path, cpus: Collection[int] | None) -> Iterator[str]:
    """The keys of [coordination], while the store that they name can be had. One that is started here runs on ``cpus``."""
    if not zookeeper:
        yield FILE_STORE
    elif zookeeper != EMBEDDED:
        yield zookeeper_store(zookeeper)
    else:
        ensemble = lay_out_ensemble(directory)
        ensemble.start()
        if cpus is not None:
            for pid in ensemble.pids:
                bind_process(pid, cpus)
        try:
            yield zookeeper_store(ensemble.hosts)
        finally:
            ensemble.stop()


def zookeeper_store(hosts: str) -> str:
    """The keys of [coordination] for an ensemble.

    Args:
        hosts: host:port, separated by commas; a chroot may follow.

    Raises:
        ConfigError: they cannot be used.
    """
    servers, chroot = servers_of(hosts, "--zookeeper")
    keys = f'kind = "zookeeper"\nhosts = {json.dumps(servers)}\n'
    return f"{keys}chroot = {json.dumps(chroot)}\n" if chroot else keys


def lay_out(
    directory: Path, brokers: int, port: int, observers: ObserverPlan | None = None, *, store: str = FILE_STORE
) -> list[SupervisedBroker]:
    """Write what the brokers need; journals, coordination store and secret of an earlier run stay.

    Args:
        directory: of everything.
        brokers: how many.
        port: for clients, of the first; the others follow.
        observers: where each brings its event feed and committed transactions; None: nowhere.
        store: the keys of [coordination].

    Raises:
        ClusterError: the directory cannot be used.
    """
    try:
        make_directory(directory)
        secret = _secret(directory / SECRET_FILE)
        return [_write(directory, number, port, brokers, secret, observers, store) for number in range(brokers)]
    except OSError as error:
        raise ClusterError(f"{directory} cannot be used: {error}") from error


def _write(
    directory: Path, number: int, port: int, brokers: int, secret: str, observers: ObserverPlan | None, store: str
) -> SupervisedBroker:
    name = f"b{number + 1}"
    path = directory / f"{name}.toml"
    text = _TOML.format(
        path=path,
        id=name,
        group=GROUP,
        port=port + number,
        secret=secret,
        founds="true" if number == 0 else "false",
        min_insync=2 if brokers >= 3 else 1,
        store=store,
        reserve=RESERVE_BYTES,
    )
    if observers is not None:
        text += observers.keys(name)
    _write_private(path, text)
    return SupervisedBroker(broker=name, config=path, log=directory / f"{name}.log")


def _secret(path: Path) -> str:
    """The secret of an earlier run, or a new one.

    A power failure may leave an empty file; all configurations are about to be written anew.
    """
    with contextlib.suppress(FileNotFoundError):
        if secret := path.read_text(encoding="utf-8").strip():
            return secret
    secret = secrets.token_urlsafe(32)
    _write_private(path, secret + "\n")
    return secret


def _write_private(path: Path, text: str) -> None:
    """Replace a file that others may not read."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    temporary.replace(path)


def _print_json(change: dict[str, Any]) -> None:
    _print(json.dumps(change))


class _Lines:
    """Changes for people: a line where something that they care for has changed, and one when all brokers are ready at first."""

    def __init__(self, directory: Path, port: int, brokers: int) -> None:
        self._shown: dict[str, str] = {}
        self._last: dict[str, dict[str, Any]] = {}
        self._awaited = brokers
        ports = ", ".join(f"b{number + 1} amqp://127.0.0.1:{port + number}" for number in range(brokers))
        _print(
            f"understudy cluster in {directory}: {ports}; user guest, password guest; "
            f"{brokers} x {EMPTY_MIB} MiB of disk while empty; Ctrl-C stops it"
        )

    def __call__(self, change: dict[str, Any]) -> None:
        broker = change["broker"]
        self._last[broker] = change
        text = _ended(change) if change["event"] == "exit" else _status(change)
        if self._shown.get(broker) != text:
            self._shown[broker] = text
            _print(f"{time.strftime('%H:%M:%S')}  {broker}  {escaped(text)}")
        ready = [each for each in self._last.values() if each.get("status") in READY_STATUSES]
        if len(ready) == self._awaited:
            self._awaited = -1
            _print(_ready(ready))


def _ready(changes: list[dict[str, Any]]) -> str:
    """The line for the moment when all brokers are ready: addresses of the one that leads, then of the others."""
    changes = sorted(changes, key=lambda each: (each["role"] != "primary", each["broker"]))
    leader = changes[0]
    pages = ", ".join(f"http://127.0.0.1:{each['http']}/status ({each['broker']})" for each in changes)
    return f"ready: amqp://guest:guest@127.0.0.1:{leader['port']}, {leader['broker']} leads, status at {pages}"


def _status(change: dict[str, Any]) -> str:
    text = f"{change['role'] or '-':8} {change['status']:10} epoch {change['epoch']}  pid {change['pid']}  port {change['port']}"
    if change["role"] == "primary":
        text += f"  in-sync {', '.join(change['in_sync'])}"
    if change["blockers"]:
        text += f"  ({'; '.join(change['blockers'])})"
    return text


def _ended(change: dict[str, Any]) -> str:
    code = change["code"]
    how = f"killed by signal {-code}" if code < 0 else f"ended with code {code}"
    after = ", is started again" if change["restarts"] else ""
    log = f": {change['log']}" if change.get("log") else ""
    return f"{how}{after}{log}"


def _print(line: str) -> None:
    try:
        print(line, flush=True)  # noqa: T201  # a command prints
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115  # nobody reads; brokers go on
    except (OSError, UnicodeError):
        pass  # such as a full disk that a file of ours is on: a line less, and brokers go on
