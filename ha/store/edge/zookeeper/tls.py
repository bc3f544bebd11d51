"""A TLS connection to a ZooKeeper server: signed by a named CA, and named as in the configuration.

kazoo makes such connections by itself, but adds the system's CAs to the named one. A certificate of any public CA would do then:
the password of ``[coordination]`` would go to whoever holds one. So the connection is made here.
"""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import attrs


@attrs.frozen(kw_only=True)
class Trust:
    """Which servers are trusted, and what is shown to them.

    Attributes:
        ca: PEM certificates. A server's certificate must be signed by one of them; no other CA is trusted.
        cert, key: PEM files that this client shows to a server that asks for a certificate; None for none.
    """

    ca: Path
    cert: Path | None = None
    key: Path | None = None

    def connect(self, address: tuple[str, int], hostname: str, timeout_s: float | None) -> ssl.SSLSocket:
        """Connect, and check the server. The files are read anew each time, so they may be replaced while the broker runs.

        Args:
            address: IP address and port.
            hostname: the configured host name or IP address; the server's certificate must be for it.
            timeout_s: for each step: the connection, and each message of the handshake.

        Raises:
            OSError: no connection; a file cannot be read; the server is not trusted (``ssl.SSLCertVerificationError``).
            ValueError: the host name cannot be one.
        """
        context = ssl.create_default_context(cafile=self.ca)  # loads no system CAs where a file is named
        if self.cert is not None:
            context.load_cert_chain(self.cert, self.key)
        connection = socket.create_connection(address, timeout_s)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return context.wrap_socket(connection, server_hostname=hostname)
        except BaseException:
            connection.close()
            raise
