"""The state servers of a file of profiles: where each one listens, and what its clients prove.

The tables are::

    [[state_servers]]
    id = "main"
    address = "unix:~/.understudy/state-server.sock"   # the default; or "host:port"; or addresses = [...], of which one serves
    secret_file = "/etc/shop/state.secret"             # of a server with --secret-file
    tls = true                                         # of a server with --tls-cert; only host:port
    tls_ca = "ca.pem"
    tls_cert = "shop.pem"                              # of a server with --tls-ca
    tls_key = "shop.key"
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from understudy.xa.core.errors import ConfigError
from understudy.xa.core.profiles.tables import check_keys, flag_of, tables_of, text_of

DEFAULT_ADDRESS: Final = "unix:~/.understudy/state-server.sock"
"""Of programs and of the server alike; ``~`` is the home of the user who runs them."""
_TLS_KEYS: Final = ("tls_ca", "tls_cert", "tls_key")
_KEYS: Final = {"id", "address", "addresses", "secret_file", "tls", *_TLS_KEYS}


@attrs.frozen(kw_only=True)
class Login:
    """Proofs of a client to a state server, and of the server to it. All texts are paths; "" is none.

    Attributes:
        secret_file: holds the secret that client and server share.
        tls: the connection is TLS. The server's certificate must be for the host of the address.
        tls_ca: PEM certificates, one of which has signed the server's; "": those of the system.
        tls_cert, tls_key: what the client shows to a server that asks for a certificate.
    """

    secret_file: str = ""
    tls: bool = False
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""


NO_LOGIN: Final = Login()
"""The socket of a file, which only its user may connect to, needs no more."""


@attrs.frozen
class ServerConfig:
    """One state server.

    Attributes:
        address: or several with commas between them.
    """

    address: str
    login: Login


def servers_of(document: Mapping[str, Any], where: str) -> dict[str, ServerConfig]:
    """The state servers of a file, by id.

    Raises:
        ConfigError: a key or a value cannot be used.
    """
    servers: dict[str, ServerConfig] = {}
    for number, table in enumerate(tables_of(document, "state_servers", where), 1):
        place = f"{where}: state server {number}"
        check_keys(table, _KEYS, place)
        identity = text_of(table, "id", place)
        if identity in servers:
            raise ConfigError(f"{where}: two state servers have the id {identity!r}")
        place = f"{place} ({identity})"
        address = _addresses(table, place)
        servers[identity] = ServerConfig(address, _login(table, address, place))
    return servers


def checked_address(address: str, place: str) -> str:
    """The address of a state server, if it has the form ``host:port``, ``unix:/path`` or ``unix:~/path``.

    Raises:
        ConfigError: it has not.
    """
    host, _, port = address.rpartition(":")
    good = address.startswith(("unix:/", "unix:~/")) or (host and port.isdecimal() and 1 <= int(port) <= 65535)
    if good and "," not in address:
        return address
    raise ConfigError(f"{place}: address {address!r} is neither host:port nor unix:/path")


def _addresses(table: Mapping[str, Any], place: str) -> str:
    if "addresses" not in table:
        return checked_address(text_of(table, "address", place, DEFAULT_ADDRESS), place)
    addresses = table["addresses"]
    if "address" in table:
        raise ConfigError(f"{place}: there may be address or addresses, and not both")
    if not isinstance(addresses, list) or not addresses or not all(isinstance(one, str) for one in addresses):
        raise ConfigError(f"{place}: addresses must be a list of texts, and is {addresses!r}")
    if len(set(addresses)) < len(addresses):
        raise ConfigError(f"{place}: an address is there twice: {', '.join(addresses)}")
    return ",".join(checked_address(one, place) for one in addresses)


def _login(table: Mapping[str, Any], address: str, place: str) -> Login:
    login = Login(
        secret_file=text_of(table, "secret_file", place, ""),
        tls=flag_of(table, "tls", place),
        **{key: text_of(table, key, place, "") for key in _TLS_KEYS},
    )
    for key in _TLS_KEYS:
        if key in table and not login.tls:
            raise ConfigError(f"{place}: {key} needs tls = true")
    if bool(login.tls_cert) != bool(login.tls_key):
        raise ConfigError(f"{place}: tls_cert and tls_key belong together")
    if login.tls and any(one.startswith("unix:") for one in address.split(",")):
        raise ConfigError(f"{place}: tls is of host:port, and {address} has the socket of a file")
    return login
