"""TLS to a broker: the options that py-amqp takes.

A certificate is always verified, and must be for the host that is connected to: there is no option to trust any server.
"""

from __future__ import annotations

import ssl
from typing import Any


def tls_options(address: str, *, ca: str = "", cert: str = "", key: str = "") -> dict[str, Any]:
    """The argument `ssl` of ``amqp.Connection``.

    Args:
        address: ``host:port`` of the broker.
        ca: path of PEM certificates, one of which has signed the broker's; "" are those of the system.
        cert: path of a PEM certificate chain for brokers that ask for one; "" is none.
        key: path of its private key.
    """
    return {
        "ca_certs": ca or None,
        "certfile": cert or None,
        "keyfile": key or None,
        "cert_reqs": ssl.CERT_REQUIRED,
        "server_hostname": address.rpartition(":")[0].strip("[]"),
    }
