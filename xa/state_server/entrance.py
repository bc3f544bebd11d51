"""Entrance: the options of a state server that say who comes in, checked before anything else is done."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping

import attrs

from understudy.xa.core.errors import ConfigError
from understudy.xa.core.profiles.servers import checked_address
from understudy.xa.core.register.access import Access
from understudy.xa.sockets.secret_file import check_key_file, read_secret


@attrs.frozen(kw_only=True)
class Entrance:
    """Where a server listens, and what its clients prove.

    Attributes:
        address: see `listening`.
        secrets: what a client may do to the secret that proves it; empty: the server asks for none.
        tls: of ``host:port``; None: the connection is in the open.
    """

    address: str
    secrets: Mapping[Access, bytes] = attrs.field(factory=dict, repr=False)
    tls: ssl.SSLContext | None = None


@attrs.frozen(kw_only=True)
class Doors:
    """The options, as they were given. All texts but `listen` are paths; "" is none."""

    listen: str
    secret_file: str = ""
    read_secret_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    open_network: bool = False

    def checked(self) -> Entrance:
        """The entrance that the options make.

        Raises:
            ConfigError: an option cannot be used, or strangers could change the record.
        """
        host, _, port = self.listen.rpartition(":")
        if port != "0" or not host:
            checked_address(self.listen, "--listen")
        files = {
            Access.CHANGE: ("--secret-file", self.secret_file),
            Access.READ: ("--read-secret-file", self.read_secret_file),
        }
        secrets = {access: read_secret(path, option) for access, (option, path) in files.items() if path}
        if Access.CHANGE not in secrets and secrets:
            raise ConfigError(
                "--read-secret-file needs --secret-file: with the first one alone no client could change anything"
            )
        if len(set(secrets.values())) < len(secrets):
            raise ConfigError(
                "--secret-file and --read-secret-file hold the same secret: readers could change everything"
            )
        tls = self._tls()
        if self.listen.startswith("unix:"):
            if tls is not None:
                raise ConfigError(f"--listen {self.listen}: TLS is of host:port")
            return Entrance(address=self.listen, secrets=secrets)
        self._check_network(host.strip("[]"), proves=bool(secrets or self.tls_ca))
        return Entrance(address=self.listen, secrets=secrets, tls=tls)

    def _check_network(self, host: str, *, proves: bool) -> None:
        if not proves:
            raise ConfigError(
                f"--listen {self.listen}: every user of this machine can connect to a port, and change what is recorded: "
                "TCP needs --secret-file, or --tls-ca for client certificates; the default is the socket of a file"
            )
        if not _is_loopback(host) and not (self.open_network and self.tls_cert):
            raise ConfigError(
                f"--listen {self.listen}: another address than loopback needs --open-network, and TLS: --tls-cert and --tls-key"
            )

    def _tls(self) -> ssl.SSLContext | None:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("--tls-cert and --tls-key belong together")
        if not self.tls_cert:
            if self.tls_ca:
                raise ConfigError("--tls-ca needs --tls-cert and --tls-key")
            return None
        check_key_file(self.tls_key, "--tls-key")
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.load_cert_chain(self.tls_cert, self.tls_key)
            if self.tls_ca:
                context.load_verify_locations(self.tls_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except OSError as error:
            files = ", ".join(one for one in (self.tls_cert, self.tls_key, self.tls_ca) if one)
            raise ConfigError(f"TLS: {files} cannot be used: {error}") from error
        return context


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
