"""The rows of ``understudy status`` and of ``understudy dtx``: who is there, asked over HTTP, and what is known of who is not.

Three sources, the first that knows wins: the broker itself (``/status``), its ``ports.json``, the group's coordination store (read
by the plugin that the broker's configuration switches on). A broker counts as there when the answer on its HTTP port carries its
own name and pid: the port of a dead one may belong to anybody by now.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import ssl
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import attrs

from understudy.broker.config import Config, ConfigError, load
from understudy.broker.errors import UnderstudyError
from understudy.broker.plugin_api.plugin import find_plugins
from understudy.broker.plugin_api.roles import LEADING_ROLES
from understudy.broker.server.files.ports_file import PORTS_NAME, read_ports

HTTP_TIMEOUT_S: Final = 1.0
OK: Final = 200
DOWN: Final = "down"
UNRESPONSIVE: Final = "unresponsive"
UNKNOWN: Final = "unknown"
"""Of a listed member that may well run, and of which the directory that was named holds nothing."""

Row = dict[str, Any]


class NothingThereError(UnderstudyError):
    """Neither a broker nor a trace of one at the place that was named."""


@attrs.frozen(kw_only=True)
class KnownBroker:
    """A broker that should be there. ``ports`` is its ``ports.json``; ``config`` its file, if there is one.

    ``access``: None for a broker of this host, which its ports say.
    """

    broker: str
    ports: Mapping[str, Any]
    access: Access | None = None
    config: Config | None = None


@attrs.frozen(kw_only=True)
class Access:
    """How HTTP ports are asked.

    Attributes:
        tls: over TLS.
        verified: the certificate has to be of a CA that OpenSSL trusts (``SSL_CERT_FILE`` names another one). Not so for brokers
            of a directory of this host, which are sent no password and have to answer with their own name and pid.
        login: ``name:password`` for HTTP basic authentication, "" for none.
    """

    tls: bool = False
    verified: bool = True
    login: str = attrs.field(default="", repr=False)

    def connection(self, host: str, port: int, timeout_s: float) -> http.client.HTTPConnection:
        """A connection that is not made yet."""
        if not self.tls:
            return http.client.HTTPConnection(host, port, timeout=timeout_s)
        context = ssl.create_default_context()
        if not self.verified:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)

    @property
    def headers(self) -> dict[str, str]:
        if not self.login:
            return {}
        return {"Authorization": f"Basic {base64.b64encode(self.login.encode()).decode()}"}


PLAIN: Final = Access()


def local_access(ports: Mapping[str, Any]) -> Access:
    """For a broker of this host with that ``ports.json``."""
    return Access(tls=bool(ports.get("http_tls")), verified=False)


def access_of(url: str) -> Access:
    """The scheme, user and password of a URL that :func:`place_of` takes."""
    parts = urlsplit(url if "//" in url else f"//{url}")
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
    return Access(tls=parts.scheme == "https", login=login)


def rows_of_url(url: str) -> dict[str, Any]:
    """The group as the broker at ``url`` knows it, each member asked itself.

    Raises:
        NothingThereError: nobody answers there, or not as a broker does.
    """
    host, port = place_of(url)
    access = access_of(url)
    first = _ask(host, port, access)
    if first is None or "broker" not in first:
        why = f": {first['error']}" if first is not None and "error" in first else ""
        raise NothingThereError(f"no broker answers at {'https' if access.tls else 'http'}://{host}:{port}/status{why}")
    brokers = [_from_store(broker, shown, access) for broker, shown in first.get("known_brokers", {}).items()]
    others = [known for known in brokers if known.broker != first["broker"]]
    rows = [first, *_live_rows(others)]
    return _group(_with_members(rows, leader_of(rows) or first, "the store", DOWN), first)


def rows_of_directory(directory: Path) -> dict[str, Any]:
    """All brokers of a directory: of a cluster (``understudy cluster --data``), or the data directory of one broker.

    Raises:
        NothingThereError: there is none.
        ConfigError: a broker's file cannot be read.
    """
    known = list(_known_in(directory))
    if not known:
        raise NothingThereError(
            f"{directory} holds no broker: neither {PORTS_NAME} nor a configuration file"
            if directory.is_dir()
            else f"{directory} is not a directory"
        )
    rows = _live_rows(known)
    store: Mapping[str, Any] = {}
    if not all(map(answers, rows)):
        store = _store_of(known)
        for row in rows:
            if not answers(row):
                row["epoch"] = store.get("epoch")
    if read_ports(directory) is None:  # else it is that of one broker, and of that one alone something is shown
        rows = _with_members(rows, leader_of(rows) or store, str(directory), UNKNOWN)
    return _group(rows, store)


def place_of(url: str) -> tuple[str, int]:
    """Host and port of a broker's HTTP port.

    Raises:
        NothingThereError: that is no URL.
    """
    try:
        parts = urlsplit(url if "//" in url else f"//{url}")
        host, port = parts.hostname or "127.0.0.1", parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise NothingThereError(f"{url} is no URL: {error}") from error
    return host, port


def leader_of(rows: Iterable[Row]) -> Row | None:
    """The row of the broker that leads, by the newest epoch if more than one says so; None if none does."""
    leading = [row for row in rows if row.get("role") in LEADING_ROLES]
    return max(leading, key=lambda row: row.get("epoch") or 0, default=None)


def answers(row: Row) -> bool:
    """True if the row comes from the broker itself; of one that does not answer less is known."""
    return row["status"] not in (DOWN, UNRESPONSIVE, UNKNOWN)


def row_of_member(broker: str, epoch: int | None, where: str, status: str = DOWN) -> Row:
    """The row of a listed member of which nothing is shown ``where`` it should be."""
    return {
        "broker": broker,
        "pid": None,
        "port": None,
        "amqp": "",
        "http": "",
        "role": None,
        "status": status,
        "epoch": epoch,
        "position": None,
        "blockers": [f"it is in the in-sync set, and {where} shows nothing of it"],
        "queues": [],
        "lag": {},
    }


def ask_page(
    host: str, port: object, path: str, timeout_s: float = HTTP_TIMEOUT_S, access: Access = PLAIN
) -> tuple[int, Row] | None:
    """Status code and JSON object of a page of whoever listens there; None if nobody does or the answer is not ours."""
    if not isinstance(port, int) or not port:
        return None
    connection = access.connection(host, port, timeout_s)
    try:
        connection.request("GET", path, headers=access.headers)
        response = connection.getresponse()
        page = json.loads(response.read())
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return (response.status, page) if isinstance(page, dict) else None


def with_all_queues(row: Row, ask: Callable[[str], tuple[int, Row] | None]) -> Row:
    """Add the queues that a page had no room for; those that cannot be had stay in ``queues_left_out``.

    Args:
        row: a ``/status``.
        ask: for another page of the same broker.
    """
    while link := row.get("queues_next"):
        found = ask(str(link))
        if found is None or found[0] != OK:
            break
        queues = found[1]["queues"]
        row["queues"] += queues
        row["queues_left_out"] = max(0, row["queues_left_out"] - len(queues))
        row["queues_next"] = found[1]["queues_next"]
    return row


def _known_in(directory: Path) -> Iterable[KnownBroker]:
    ports = read_ports(directory)
    if ports is not None:
        yield KnownBroker(broker=str(ports.get("broker")), ports=ports)
        return
    seen = set()
    for path in sorted(directory.glob("*.toml")):
        config = load(path)
        seen.add(config.broker.data.resolve())
        ports = read_ports(config.broker.data) or {"amqp": config.amqp.port}
        yield KnownBroker(broker=config.broker.id, ports=ports, config=config)
    for path in sorted(directory.glob(f"*/{PORTS_NAME}")):
        ports = read_ports(path.parent)
        if ports is not None and path.parent.resolve() not in seen:
            yield KnownBroker(broker=str(ports.get("broker")), ports=ports)


def _from_store(broker: str, shown: Mapping[str, Any], access: Access) -> KnownBroker:
    """A broker that another one knows; all of a group are asked alike."""
    http_host, _, http_port = str(shown.get("http", "")).rpartition(":")
    amqp_port = str(shown.get("amqp", "")).rpartition(":")[2]
    ports = {
        "amqp": int(amqp_port) if amqp_port.isdecimal() else None,
        "http": int(http_port) if http_port.isdecimal() else None,
        "http_host": http_host,
        "pid": shown.get("pid"),
    }
    return KnownBroker(broker=broker, ports=ports, access=access)


def _live_rows(known: list[KnownBroker]) -> list[Row]:
    if not known:
        return []
    with ThreadPoolExecutor(len(known)) as pool:
        return list(pool.map(_row, known))


def _row(known: KnownBroker) -> Row:
    ports = known.ports
    pid = ports.get("pid")
    access = known.access or local_access(ports)
    page = _ask(str(ports.get("http_host") or "127.0.0.1"), ports.get("http"), access)
    if page is not None and page.get("broker") == known.broker and page.get("pid") == pid:
        return page
    row: Row = {
        "broker": known.broker,
        "pid": None,
        "port": ports.get("amqp"),
        "role": None,
        "status": DOWN,
        "epoch": None,
        "blockers": ["its process is not running"],
        "queues": [],
        "lag": {},
    }
    if page is None and isinstance(pid, int) and _is_broker_process(pid):
        row |= {
            "pid": pid,
            "status": UNRESPONSIVE,
            "blockers": [f"process {pid} does not answer within {HTTP_TIMEOUT_S:g} s"],
        }
    return row


def _is_broker_process(pid: int) -> bool:
    """True if the process is there and is one of ours, not a later one of the same number."""
    try:
        return b"understudy" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return False
    except OSError:
        return False
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _ask(host: str, port: object, access: Access) -> Row | None:
    """``/status`` of whoever listens there, with all queues; None if nobody does or the answer is not ours."""
    found = ask_page(host, port, "/status", access=access)
    if found is None:
        return None
    return with_all_queues(found[1], lambda path: ask_page(host, port, path, access=access))


def _store_of(known: list[KnownBroker]) -> Mapping[str, Any]:
    """The store's page, by the plugin of the first configuration that has one; {} if nothing can be read."""
    for each in known:
        if each.config is None:
            continue
        enabled = [name for name, switched_on in each.config.plugins.items() if switched_on]
        for plugin in find_plugins(enabled):
            with contextlib.suppress(UnderstudyError):
                found: Mapping[str, Any] | None = plugin.read_store(each.config)
                if found is not None:
                    return found
    return {}


def _with_members(rows: list[Row], best: Mapping[str, Any], where: str, status: str) -> list[Row]:
    """The rows, and one for each listed member that has none."""
    missing = sorted({*(best.get("in_sync") or ())} - {row["broker"] for row in rows})
    return [*rows, *(row_of_member(broker, best.get("epoch"), where, status) for broker in missing)]


def _group(rows: list[Row], store: Mapping[str, Any]) -> dict[str, Any]:
    """Facts of the whole group, by the best source: the leader, else the store, else any row."""
    best = leader_of(rows) or store or (rows[0] if rows else {})
    return {
        "group": best.get("group") or next((row["group"] for row in rows if row.get("group")), None),
        "epoch": best.get("epoch"),
        "primary": best.get("primary"),
        "in_sync": best.get("in_sync") or [],
        "min_insync": best.get("min_insync"),
        "brokers": sorted(rows, key=lambda row: str(row["broker"])),
    }


__all__ = [
    "DOWN",
    "UNKNOWN",
    "ConfigError",
    "NothingThereError",
    "Row",
    "access_of",
    "answers",
    "ask_page",
    "leader_of",
    "local_access",
    "place_of",
    "row_of_member",
    "rows_of_directory",
    "rows_of_url",
    "with_all_queues",
]
