"""Reception: the connections of a broker, and what becomes of clients that come now: served, refused, or carried elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from understudy.broker.core.clients.carrying import Carrying, Destination
    from understudy.broker.core.clients.connection import Connection


class Reception:
    """One per core.

    Attributes:
        connections: all that have not ended, from their first octet on.
        refusal: why clients are turned away at connection.open ("" if they are not), with `refusal_name` in front.
        carrying: carries clients that would be refused to the broker that serves them; None: they are refused.
        elsewhere: the broker that serves them, if it is known.
        cluster, founding: told to clients by connection.start: name of the group, and number of its founding in hexadecimal;
            of a broker alone the identity of its data directory. "" is not told.
        on_argument_refused: are told of each method that is refused with 406 for an argument: connection, method, error's text.
    """

    def __init__(self) -> None:
        self.connections: set[Connection] = set()
        self.refusal = "the broker is starting"
        self.refusal_name = "CONNECTION_FORCED"
        self.carrying: Carrying | None = None
        self.elsewhere: Destination | None = None
        self.cluster = self.founding = ""
        self.on_argument_refused: list[Callable[[Connection, int, str], None]] = []

    # -- clients that come ----------------------------------------------------------------------------------------

    def admit(self) -> None:
        """Serve clients that come from now on."""
        self.refusal = ""

    def refuse(self, refusal: str, name: str = "") -> None:
        """Turn clients away that come from now on, or have them carried. ``name``: the new `refusal_name`; "": as before."""
        self.refusal = refusal
        self.refusal_name = name or self.refusal_name

    def served_by(self, elsewhere: Destination | None) -> None:
        """Note the broker that serves clients while this one refuses them; None: it is not known."""
        self.elsewhere = elsewhere

    def carried_by(self, carrying: Carrying | None) -> None:
        """Have clients carried that would be refused."""
        self.carrying = carrying

    def belongs_to(self, cluster: str, founding: str = "") -> None:
        """Tell clients the name of the group, and ``founding``, unless that is ""."""
        self.cluster = cluster
        self.founding = founding or self.founding

    def founded_as(self, founding: str) -> None:
        """Tell clients which founding of the group this is."""
        self.founding = founding

    # -- connections ----------------------------------------------------------------------------------------------

    def recheck_paused(self) -> None:
        """A bound of the broker is not reached any more: connections that are not read may be read again."""
        for connection in list(self.connections):
            if connection.paused:
                connection.check_bounds()

    def recheck_all(self) -> None:
        """The reason why work is refused has changed: connections are told so."""
        for connection in list(self.connections):
            connection.check_bounds()

    def close_all(self, name: str, text: str) -> None:
        """Turn every client away with connection.close 320."""
        for connection in list(self.connections):
            connection.force_close(name, text)

    def tick(self, now_ms: int) -> None:
        """Time passes."""
        for connection in list(self.connections):
            connection.tick(now_ms)
