"""Where the decision log of engine `queue` is: a URL with all brokers of the group."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

import attrs

from understudy.xa.core.errors import ConfigError

_URL: Final = re.compile(r"amqp://(?:(?P<login>[^/]*)@)?(?P<hosts>[^/@]*)(?:/(?P<vhost>[^/?#]*))?")
_HOST: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::(?P<port>[0-9]+))?")
_QUEUE: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
RESERVED: Final = ("amq.", "understudy.")
"""The broker keeps these names for itself."""
PORT: Final = 5672
MAX_PORT: Final = 65535


@attrs.frozen
class LogAddress:
    """A group of brokers.

    Attributes:
        hosts: each ``host:port``; they are tried in this order.
    """

    hosts: tuple[str, ...]
    user: str = "guest"
    password: str = attrs.field(default="guest", repr=False)
    vhost: str = "/"


def log_address_of(url: str, where: str) -> LogAddress:
    """The group of a URL ``amqp://user:password@host:port,host:port/vhost``.

    All but one host may be left out. Percent signs in user, password and vhost are those of RFC 3986.

    Raises:
        ConfigError: it has another form. The text does not tell the password.
    """
    found = _URL.fullmatch(url)
    if found is None:
        raise ConfigError(f"{where}: the URL must be amqp://user:password@host:port,host:port/vhost")
    hosts = []
    for text in found["hosts"].split(","):
        host = _HOST.fullmatch(text)
        port = int(host["port"] or PORT) if host is not None else 0
        if host is None or not 1 <= port <= MAX_PORT:
            raise ConfigError(f"{where}: {text!r} is not host:port")
        hosts.append(f"{host['host']}:{port}")
    if len(set(hosts)) < len(hosts):
        raise ConfigError(f"{where}: a broker is named twice: {', '.join(hosts)}")
    user, colon, password = (found["login"] or "guest:guest").partition(":")
    if not user or not colon:
        raise ConfigError(f"{where}: before the @ there must be user:password")
    vhost = unquote(found["vhost"]) if found["vhost"] else "/"
    return LogAddress(tuple(hosts), unquote(user), unquote(password), vhost)


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
