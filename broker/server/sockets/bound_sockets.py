"""Listening sockets for a name and a port: on every address that the name stands for here, and all on the same port.

A name may stand for an address that this machine has not: the usual ``/etc/hosts`` has ``::1 localhost``, also where IPv6 is
switched off. That address is left out, as long as there is another one.
"""

from __future__ import annotations

import errno
import socket
from typing import Final

import structlog

_NOT_HERE: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})

_log: Final = structlog.get_logger()


def bound_sockets(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Bind and listen. The sockets do not block.

    Args:
        host: a name or an address.
        port: 0 for any free one.
        backlog: how many connections the kernel queues.

    Returns:
        At least one; the caller closes them.

    Raises:
        OSError: in use, not allowed, the host is unknown here, or none of its addresses is this machine's (which the error names).
            Nothing is bound then.
    """
    bound: list[socket.socket] = []
    missing: dict[str, OSError] = {}
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                bound.append(_listening(family, kind, protocol, (address[0], port, *address[2:]), backlog))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                missing[str(address[0])] = error
            else:
                port = bound[-1].getsockname()[1]  # the second address gets the port that the first one got
        if not bound:
            first = next(iter(missing.values()))
            raise OSError(first.errno, f"{first.strerror} ({', '.join(missing)})")
    except OSError:
        for each in bound:
            each.close()
        raise
    for name, why in missing.items():
        _log.info("not listened on: the address is not this machine's", host=host, address=name, reason=why.strerror)
    return bound


def _listening(family: int, kind: int, protocol: int, address: tuple[object, ...], backlog: int) -> socket.socket:
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.setblocking(False)
        made.bind(address)
        made.listen(backlog)
    except OSError:
        made.close()
        raise
    return made
