"""Access: where an ensemble is, and as whom a session comes to it."""

from __future__ import annotations

import attrs

from understudy.broker.config import CoordinationConfig
from understudy.ha.store.coordination import StoreError
from understudy.ha.store.edge.zookeeper.tls import Trust


@attrs.frozen(kw_only=True)
class Access:
    """Where an ensemble is, and as whom to come.

    Attributes:
        hosts: ``host:port``, separated by commas.
        chroot: the path above all nodes, "" for none. It is not given to kazoo, which does not make one of several parts.
        session_s: the session ends so long after its last heartbeat; the servers allow 2 to 20 of their ticks.
        user, password: digest credentials, "" for none. Nodes that are made belong to them alone, and anybody may read them.
        tls: connect over TLS, to servers of this trust alone. None: not over TLS.
    """

    hosts: str
    chroot: str = ""
    session_s: float = 10.0
    user: str = ""
    password: str = attrs.field(default="", repr=False)
    tls: Trust | None = None


def access_of(section: CoordinationConfig) -> Access:
    """Access to ZooKeeper, as the configuration gives it.

    Raises:
        StoreError: the file with the password cannot be read.
    """
    tls, password = section.tls, section.password or ""
    if section.password_file is not None:
        try:
            password = section.password_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeError) as error:
            raise StoreError(f"coordination.password_file {section.password_file} cannot be read: {error}") from error
    return Access(
        hosts=",".join(section.hosts),
        chroot=section.chroot,
        session_s=section.session_s,
        user=section.user,
        password=password,
        tls=Trust(ca=tls.ca, cert=tls.cert, key=tls.key) if tls is not None else None,
    )
