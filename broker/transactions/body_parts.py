"""BodyParts: bodies of a transaction that stand in the log in parts.

A part is an event of its transaction, and so is the message that names the parts
(``docs/decisions/0032-large-bodies-stand-in-parts.md``). The broker that leads has the body before its first part is appended;
another gathers it, and it is whole when the message's record comes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from understudy.broker.message import Message
from understudy.broker.octets.chunks import named_bytes

if TYPE_CHECKING:
    from understudy.broker.transactions.tx_buffer import Event


class PartedBody:
    """One body.

    Attributes:
        number: in its transaction.
        offset: of the record of its first part.
        message: who has it; None while it is gathered.
        gathered: what has come of it; empty when a message has it.
    """

    __slots__ = ("gathered", "message", "number", "offset")

    def __init__(self, number: int, offset: int, message: Message | None = None) -> None:
        self.number = number
        self.offset = offset
        self.message = message
        self.gathered = bytearray()

    def octets(self) -> memoryview:
        """As far as it has come."""
        return memoryview(self.message.content() if self.message is not None else self.gathered)

    def give_to(self, message: Message, small_below: int) -> None:
        """Make the whole body that of ``message``: as ``bytes`` if it is that small, else not copied."""
        octets = memoryview(self.gathered).toreadonly()
        message.give_body(bytes(octets) if len(octets) < small_below else named_bytes(octets), self.offset)
        self.message = message
        self.gathered = bytearray()

    def keep(self, size_bytes: int) -> None:
        """Only its first octets stand in the log, or no message has it any more."""
        self.gathered = bytearray(self.octets()[:size_bytes])
        self.message = None

    def keep_of(self, other: PartedBody, size_bytes: int) -> None:
        """Its first octets have come, which are those of ``other``."""
        self.gathered = bytearray(other.octets()[:size_bytes])


Place = tuple[PartedBody, int, int]
"""Which octets of a body: from, to."""


class BodyParts:
    """The parts of the bodies of one transaction.

    Attributes:
        places: by offset, what a part has of its body; of a message whose body stands in parts, all of it.
    """

    __slots__ = ("_bodies", "places")

    def __init__(self) -> None:
        self.places: dict[int, Place] = {}
        self._bodies: dict[int, PartedBody] = {}

    def begin(self, message: Message) -> PartedBody:
        """Leading: the first part of the body of ``message`` is about to be appended at its offset."""
        number = len(self._bodies) + 1
        body = self._bodies[number] = PartedBody(number, message.offset, message)
        return body

    def gather(self, offset: int, number: int, start: int, octets: bytes) -> bool:
        """Following: take the part at ``offset``, which begins at ``start`` of its body.

        Returns:
            False if earlier parts are not here: they have gone with their segment, since their message is over.
        """
        if not start:
            self._bodies[number] = PartedBody(number, offset)
        body = self._bodies.get(number)
        if body is None or body.message is not None or len(body.gathered) != start:
            return False
        body.gathered += octets
        self.places[offset] = (body, start, start + len(octets))
        return True

    def at(self, offset: int) -> PartedBody:
        """The body whose first part stands at ``offset``."""
        return self.places[offset][0]

    def whole(self, number: int, size_bytes: int) -> PartedBody | None:
        """The body of that number, which waits for its message; None if not all of its ``size_bytes`` are here."""
        body = self._bodies.get(number)
        return body if body is not None and body.message is None and len(body.gathered) == size_bytes else None

    def continued(self, events: Iterable[Event]) -> BodyParts:
        """The same in another core, as far as ``events`` say, which are the first ones of the transaction in log order."""
        parts = BodyParts()
        stops: dict[int, int] = {}
        for offset, message, _ in events:
            place = self.places.get(offset)
            if place is None:
                continue
            body, start, stop = place
            there = parts._bodies.get(body.number)
            if there is None:
                there = parts._bodies[body.number] = PartedBody(body.number, body.offset)
            parts.places[offset] = (there, start, stop)
            if message is not None:
                there.message = message
            stops[body.number] = max(stop, stops.get(body.number, 0))
        for number, body in parts._bodies.items():
            if body.message is None:
                body.keep_of(self._bodies[number], stops[number])
        return parts

    def drop(self, gone: Iterable[Event]) -> None:
        """These events, in log order, are no part of the transaction any more. Bodies keep what stands before them."""
        left: dict[PartedBody, int] = {}
        for offset, message, _ in gone:
            place = self.places.pop(offset, None)
            if place is not None:
                body, start, end = place
                left.setdefault(body, start if message is None else end)
        for body, size_bytes in left.items():
            if size_bytes:
                body.keep(size_bytes)
            else:
                del self._bodies[body.number]
