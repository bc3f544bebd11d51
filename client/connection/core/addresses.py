"""Addresses of a group of brokers: a list of hosts, or a group that is found through ZooKeeper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

import attrs

from understudy.client.connection.errors import ArgumentError

SCHEMES: Final = ("amqp", "amqps")
ZOOKEEPER: Final = "zookeeper"
DEFAULT_GROUP: Final = "understudy"
DEFAULT_LOGIN: Final = "guest:guest"
_CHROOT: Final = "chroot"
_VHOST: Final = "vhost"
_TLS: Final = "tls"


@attrs.frozen
class ListedBrokers:
    """One URL for each broker."""

    urls: tuple[str, ...]


@attrs.frozen(kw_only=True)
class ZooKeeperGroup:
    """A group that shows its brokers in ZooKeeper.

    Attributes:
        hosts: of ZooKeeper, with ports, separated by commas; and the chroot.
        group: the group's name.
        login: ``user:password`` for the brokers, as a URL has it.
        vhost: as a URL has it, without the slash.
        scheme: ``amqp`` or ``amqps``.
    """

    hosts: str
    group: str = DEFAULT_GROUP
    login: str = DEFAULT_LOGIN
    vhost: str = ""
    scheme: str = "amqp"

    def url_of(self, address: str) -> str:
        """The URL of a broker that listens at ``host:port``."""
        return f"{self.scheme}://{self.login}@{address}/{self.vhost}"


Brokers = ListedBrokers | ZooKeeperGroup


def brokers_of(addresses: str | Sequence[str]) -> Brokers:
    """Read addresses.

    Args:
        addresses: ``amqp://user:word@b1,b2:5673/vhost`` names two brokers; several such URLs;
            or ``zookeeper://z1,z2:2181/group``, with a login for the brokers before ``@`` and ``?chroot=/production``,
            ``?vhost=name``, ``?tls=yes`` behind it.

    Raises:
        ArgumentError: a URL is none, or there is none.
    """
    urls = [addresses] if isinstance(addresses, str) else list(addresses)
    groups = [url for url in urls if url.partition(":")[0] == ZOOKEEPER]
    if groups and len(urls) > 1:
        raise ArgumentError(f"{groups[0]!r} stands beside other addresses: a group is one address")
    if groups:
        return _group_of(groups[0])
    return ListedBrokers(tuple(listed(urls)))


def listed(urls: Sequence[str]) -> list[str]:
    """One URL for each host.

    Raises:
        ArgumentError: a URL is none, or there is none.
    """
    made: list[str] = []
    for url in urls:
        parts = _split(url)
        if parts.scheme not in SCHEMES or not parts.netloc:
            raise ArgumentError(f"{url!r}: an address of brokers is amqp://host:port/ or amqp://host1,host2/")
        login, at, hosts = parts.netloc.rpartition("@")
        path = parts.path or "/"
        made += [parts._replace(netloc=f"{login}{at}{host}", path=path).geturl() for host in hosts.split(",") if host]
    if not made:
        raise ArgumentError("no address is given")
    for url in made:
        _split(url)
    return made


def _split(url: str) -> SplitResult:
    """The parts of a URL. Raises: ArgumentError: its host or port is none."""
    try:
        parts = urlsplit(url)
        hosts = parts.netloc.rpartition("@")[2]
        if "," not in hosts:
            parts.port  # noqa: B018  # it is read, and checked, here
        elif "[" in hosts:  # some versions of Python take it, and some do not
            raise ValueError("a host in brackets beside others")
    except ValueError as error:
        raise ArgumentError(
            f"{url!r}: {error}; an IPv6 address needs an address of its own, amqp://[::1]:port/"
        ) from error
    return parts


def named(url: str) -> str:
    """The host and port of a URL, for logs and errors: without the password."""
    return urlsplit(url).netloc.rpartition("@")[2]


def with_option(url: str, name: str, value: str) -> str:
    """The URL with an option, unless it has that already."""
    parts = urlsplit(url)
    options = parse_qsl(parts.query, keep_blank_values=True)
    if any(key == name for key, _ in options):
        return url
    return parts._replace(query=urlencode([*options, (name, value)])).geturl()


def _group_of(url: str) -> ZooKeeperGroup:
    parts = _split(url)
    login, _, hosts = parts.netloc.rpartition("@")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(options) - {_CHROOT, _VHOST, _TLS})
    group = unquote(parts.path.strip("/"))
    chroot = options.get(_CHROOT, "").rstrip("/")
    if not hosts.strip(",") or "/" in group or unknown or (chroot and not chroot.startswith("/")):
        raise ArgumentError(
            f"{url!r}: a group is zookeeper://host1,host2:2181/group, and then ?chroot=/path, vhost=name, tls=yes"
        )
    tls = options.get(_TLS, "no")
    if tls not in {"yes", "no"}:
        raise ArgumentError(f"{url!r}: tls={tls!r} is neither yes nor no")
    return ZooKeeperGroup(
        hosts=hosts + chroot,
        group=group or DEFAULT_GROUP,
        login=login or DEFAULT_LOGIN,
        vhost=quote(options.get(_VHOST, ""), safe=""),
        scheme="amqps" if tls == "yes" else "amqp",
    )
