"""Where the decision log of engine `queue` is: a URL with all brokers of the group."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote

import attrs

from understudy.xa.core.errors import ConfigError

_URL: Final = re.compile(
    r"(?P<scheme>amqps?)://(?:(?P<login>[^/]*)@)?(?P<hosts>[^/@?#]*)(?:/(?P<vhost>[^/?#]*))?(?:\?(?P<query>[^#]*))?"
)
_HOST: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::(?P<port>[0-9]+))?")
_QUEUE: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
RESERVED: Final = ("amq.", "understudy.")
"""The broker keeps these names for itself."""
PORT: Final = {"amqp": 5672, "amqps": 5671}
TLS_FILES: Final = {"cacertfile": "ca", "certfile": "cert", "keyfile": "key"}
"""Parameters of an amqps URL, with the names of RabbitMQ's URI query parameters, to the arguments of `tls.tls_options`."""
MAX_PORT: Final = 65535


@attrs.frozen
class LogAddress:
    """A group of brokers.

    Attributes:
        hosts: each ``host:port``; they are tried in this order.
        tls: paths of files, by the arguments of `tls.tls_options`; None: without TLS.
    """

    hosts: tuple[str, ...]
    user: str = "guest"
    password: str = attrs.field(default="guest", repr=False)
    vhost: str = "/"
    tls: Mapping[str, str] | None = None


def log_address_of(url: str, where: str) -> LogAddress:
    """The group of a URL ``amqp://user:password@host:port,host:port/vhost``, or with TLS ``amqps://...?cacertfile=PATH``.

    All but one host may be left out. Percent signs in user, password, vhost and parameters are those of RFC 3986.

    Raises:
        ConfigError: it has another form. The text does not tell the password.
    """
    found = _URL.fullmatch(url)
    if found is None:
        raise ConfigError(
            f"{where}: the URL must be amqp://user:password@host:port,host:port/vhost, or begin with amqps"
        )
    hosts = []
    for text in found["hosts"].split(","):
        host = _HOST.fullmatch(text)
        port = int(host["port"] or PORT[found["scheme"]]) if host is not None else 0
        if host is None or not 1 <= port <= MAX_PORT:
            raise ConfigError(f"{where}: {text!r} is not host:port")
        hosts.append(f"{host['host']}:{port}")
    if len(set(hosts)) < len(hosts):
        raise ConfigError(f"{where}: a broker is named twice: {', '.join(hosts)}")
    user, colon, password = (found["login"] or "guest:guest").partition(":")
    if not user or not colon:
        raise ConfigError(f"{where}: before the @ there must be user:password")
    vhost = unquote(found["vhost"]) if found["vhost"] else "/"
    return LogAddress(
        tuple(hosts), unquote(user), unquote(password), vhost, _tls(found["scheme"], found["query"], where)
    )


def _tls(scheme: str, query: str | None, where: str) -> dict[str, str] | None:
    try:
        given = parse_qsl(query or "", keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise ConfigError(f"{where}: behind the ? there must be name=value, with & between them") from error
    files: dict[str, str] = {}
    for name, path in given:
        if scheme != "amqps" or name not in TLS_FILES or TLS_FILES[name] in files or not path:
            known = f"{', '.join(TLS_FILES)}, each once" if scheme == "amqps" else "none: they are of amqps"
            raise ConfigError(f"{where}: parameter {name}={path} cannot be used; known: {known}")
        files[TLS_FILES[name]] = path
    if ("cert" in files) != ("key" in files):
        raise ConfigError(f"{where}: certfile and keyfile belong together")
    return files if scheme == "amqps" else None


def checked_queue(name: str, where: str) -> str:
    """The name, if queues can be named after it.

    Raises:
        ConfigError: it is not 1 to 200 letters, digits, dots, dashes or underscores.
    """
    if _QUEUE.fullmatch(name) is None or name.startswith(RESERVED):
        raise ConfigError(
            f"{where}: {name!r} is not 1 to 200 letters, digits, '.', '-' or '_', or begins with {' or '.join(RESERVED)}"
        )
    return name
