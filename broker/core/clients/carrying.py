"""Carrying: decides what becomes of clients that have reached a broker which does not serve them.

A client arrives at connection.open. It waits while no broker is known to lead; then a connection to that broker is dialed for it,
and the octets of both go to and fro. A dial that fails because another broker is about to lead is tried again. A broker that begins
to serve takes its waiting clients in. After ``wait_ms`` a client is handed back to the broker of the moment, which refuses it
(320). This object lives as long as the process, whose cores come and go: the edge asks it again at each tick.

A client that was carried here is not carried on: the broker that leads is the end of the way, and there is no loop.
"""

from __future__ import annotations

from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

import attrs

if TYPE_CHECKING:
    from understudy.broker.core.clients.carrier_header import CarrierHeader
    from understudy.broker.core.clients.connection import Transport
    from understudy.broker.core.clients.reception import Reception

RETRY_MS: Final = 200
"""After a dial that failed no other is made for so long, unless another broker leads by then."""
DIALS: Final = 8
"""So many dials are under way at once: the other end keeps places for 64 handshakes, of all brokers."""
PARTING_MS: Final = 2_000
"""So long a broker that led has to end its connections itself, with its last answers."""


@attrs.frozen
class Destination:
    """Where clients are carried: a broker's id, and the address of its link port as the store shows it."""

    broker: str
    address: str


def clients_are(reception: Reception) -> str:
    """Fate of a client that comes now: ``served``, ``carried``, ``waiting`` (for a broker that leads) or ``refused``."""
    if not reception.refusal:
        return "served"
    if reception.carrying is None:
        return "refused"
    return "waiting" if reception.elsewhere is None else "carried"


class CarriedEnd(Protocol):
    """The sockets of one client. No call of these calls `Carrying` before it returns."""

    def dial(self, to: Destination) -> None:
        """Connect the client to a broker; then :meth:`Carrying.accepted` or :meth:`Carrying.failed` is called, once."""

    def cancel_dial(self) -> None:
        """Neither is to be called any more."""

    def beat(self) -> None:
        """Send the client a heartbeat."""

    def hand_back(self) -> None:
        """Give the client to the broker that takes clients at the moment, which serves or refuses it."""

    def cut(self) -> None:
        """End both connections."""


class CarrierPort(Protocol):
    """The edge, as far as `Carrying` asks it."""

    def leave(self, transport: Transport, carried: Carried) -> CarriedEnd:
        """The connection on ``transport`` is a carried one from now on."""


class _Stage(Enum):
    WAITS = "waits"
    DIALS = "dials"
    CARRIED = "is carried"
    GONE = "is gone"


class Carried:
    """One client.

    Attributes:
        client: as the broker that leads is told of it.
        rest: octets behind its connection.open, so far.
        end: its sockets.
        to: the broker that it is carried to, or that is dialed for it; None while it waits.
        reason: why the last dial failed, "" before one did.
    """

    __slots__ = ("beat_ms", "client", "end", "reason", "rest", "since_ms", "stage", "to")

    end: CarriedEnd

    def __init__(self, client: CarrierHeader, rest: bytes, now_ms: int) -> None:
        self.client = client
        self.rest = rest
        self.since_ms = self.beat_ms = now_ms
        self.stage = _Stage.WAITS
        self.to: Destination | None = None
        self.reason = ""

    def keep(self, octets: bytes) -> None:
        """The client has sent these, before it has its answer."""
        self.rest += octets


@attrs.frozen(kw_only=True)
class CarryingStatistics:
    """Counts: of the moment (waiting, carried), and since the process began.

    ``refused`` clients found no room, or no broker that leads in time.
    """

    waiting: int
    carried: int
    accepted: int
    failed: int
    refused: int


class Carrying:
    """All clients that this process carries, or that wait for it.

    Args:
        port: the edge.
        connections: so many at most, 1 or more; a further client is refused at once.
        wait_ms: see above; 0 refuses a client whose first dial fails.

    Attributes:
        now_ms: monotonic time of the last :meth:`look`.
    """

    def __init__(self, port: CarrierPort, connections: int, wait_ms: int) -> None:
        self.now_ms = 0
        self._port = port
        self._connections = connections
        self._wait_ms = wait_ms
        self._waiting: dict[Carried, None] = {}
        self._dialing = 0
        self._last_to: Destination | None = None
        self._not_before_ms = 0
        self._carried: dict[str, dict[Carried, None]] = {}
        self._parting_ms: dict[str, int] = {}
        self._accepted = self._failed = self._refused = 0
        self._stopped = False

    @property
    def busy(self) -> bool:
        """A look may change something."""
        return bool(self._waiting or self._carried)

    @property
    def count(self) -> int:
        """Clients that wait or are carried."""
        return len(self._waiting) + sum(map(len, self._carried.values()))

    def statistics(self) -> CarryingStatistics:
        return CarryingStatistics(
            waiting=len(self._waiting),
            carried=self.count - len(self._waiting),
            accepted=self._accepted,
            failed=self._failed,
            refused=self._refused,
        )

    # -- clients come ---------------------------------------------------------------------------------------------

    def has_room(self) -> bool:
        """True if one more client may wait; a False is counted as a refusal."""
        if self.count < self._connections and not self._stopped:
            return True
        self._refused += 1
        return False

    def leave(self, reception: Reception, transport: Transport, client: CarrierHeader, rest: bytes) -> None:
        """The broker of ``reception`` does not serve this client; :meth:`has_room` has said that it may be carried."""
        carried = Carried(client, rest, self.now_ms)
        carried.end = self._port.leave(transport, carried)
        self._waiting[carried] = None
        self.go_on(reception)

    def look(self, reception: Reception, now_ms: int) -> None:
        """Time passes.

        Args:
            reception: of the broker that takes clients at the moment.
            now_ms: monotonic time.
        """
        self.now_ms = now_ms
        if not self.busy:
            return
        for carried in list(self._waiting):
            self._look_at(carried, reception)
        self.go_on(reception)
        self._part(reception)

    def go_on(self, reception: Reception) -> None:
        """Dial for the clients that have waited longest, as many as may be dialed for at once."""
        to = reception.elsewhere
        if to is None or not reception.refusal:
            return
        if to != self._last_to:
            self._last_to, self._not_before_ms = to, 0
        if self.now_ms < self._not_before_ms or self._dialing >= DIALS:
            return
        waiting = (carried for carried in self._waiting if carried.stage is _Stage.WAITS)
        for carried in list(islice(waiting, DIALS - self._dialing)):
            carried.stage = _Stage.DIALS
            carried.to = to
            self._dialing += 1
            carried.end.dial(to)

    def _look_at(self, carried: Carried, reception: Reception) -> None:
        now_ms, to = self.now_ms, reception.elsewhere
        if carried.stage is _Stage.DIALS and carried.to != to:
            self._cancel(carried)
        tried = bool(self._wait_ms or carried.reason) or to is None
        if not reception.refusal or (tried and now_ms - carried.since_ms >= self._wait_ms):
            self._hand_back(carried, refused=bool(reception.refusal))
            return
        heartbeat_ms = carried.client.heartbeat_s * 1_000
        if heartbeat_ms and now_ms - carried.beat_ms >= heartbeat_ms // 2:
            carried.beat_ms = now_ms
            carried.end.beat()

    def _cancel(self, carried: Carried) -> None:
        self._stop_dial(carried)
        carried.end.cancel_dial()

    def _hand_back(self, carried: Carried, *, refused: bool) -> None:
        if carried.stage is _Stage.DIALS:
            self._cancel(carried)
        del self._waiting[carried]
        carried.stage = _Stage.GONE
        self._refused += refused
        carried.end.hand_back()
        del carried.end  # the two point at each other

    def _stop_dial(self, carried: Carried) -> None:
        self._dialing -= 1
        carried.stage = _Stage.WAITS
        carried.to = None

    # -- what the edge tells --------------------------------------------------------------------------------------

    def accepted(self, carried: Carried) -> None:
        """The broker that leads has taken the client: octets go to and fro."""
        assert carried.stage is _Stage.DIALS, f"a client that {carried.stage.value} was accepted"
        assert carried.to is not None
        self._dialing -= 1
        self._accepted += 1
        del self._waiting[carried]
        carried.stage = _Stage.CARRIED
        carried.rest = b""
        self._carried.setdefault(carried.to.broker, {})[carried] = None

    def failed(self, carried: Carried, reason: str, *, final: bool) -> None:
        """The dial for a client has come to nothing. ``final``: another would, too, so that the client waits no longer."""
        assert carried.stage is _Stage.DIALS, f"the dial of a client that {carried.stage.value} failed"
        self._stop_dial(carried)
        self._failed += 1
        carried.reason = reason
        if final:
            carried.since_ms = self.now_ms - self._wait_ms
        self._not_before_ms = self.now_ms + RETRY_MS

    def gone(self, carried: Carried) -> None:
        """One of the two connections has ended; the edge ends the other."""
        if carried.stage is _Stage.DIALS:
            self._cancel(carried)
        self._waiting.pop(carried, None)
        if carried.stage is _Stage.CARRIED and carried.to is not None:
            others = self._carried[carried.to.broker]
            del others[carried]
            if not others:
                del self._carried[carried.to.broker]
        carried.stage = _Stage.GONE
        del carried.end  # the two point at each other

    # -- the end --------------------------------------------------------------------------------------------------

    def _part(self, reception: Reception) -> None:
        """A broker that leads no more ends its connections itself; one that is cut off or stands still does not."""
        if not self._carried:
            self._parting_ms.clear()
            return
        to = reception.elsewhere
        leaders = {to.broker} if to is not None else set()
        for name in list(self._carried):
            if name in leaders or (to is None and reception.refusal):
                self._parting_ms.pop(name, None)
            elif self.now_ms >= self._parting_ms.setdefault(name, self.now_ms + PARTING_MS):
                for carried in list(self._carried[name]):
                    carried.end.cut()

    def destinations(self) -> list[Destination]:
        """Where clients are carried at the moment, one of each broker."""
        return [to for each in self._carried.values() if (to := next(iter(each)).to) is not None]

    def stop(self) -> None:
        """Hand back all that wait, and take none from now on: the process stops."""
        self._stopped = True
        for carried in list(self._waiting):
            self._hand_back(carried, refused=True)

    def cut_all(self) -> None:
        """End all that are carried."""
        for name in list(self._carried):
            for carried in list(self._carried[name]):
                carried.end.cut()
