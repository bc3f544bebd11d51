"""A message: what the log carries once and queues refer to."""

from __future__ import annotations

from typing import Final, Protocol

from understudy.broker.log.body_place import AT_OFFSET, AWAITED, NOWHERE
from understudy.broker.octets.chunks import named_bytes

MESSAGE_BYTES: Final = 256
"""What a message takes at least, besides its properties, its routing key and its body."""


_IN_MEMORY: Final = (bytes, bytearray, memoryview)


class SpilledBody(Protocol):
    """A body that is not in memory, or the bodies of many messages."""

    def read(self, message: Message) -> bytes:
        """All of the body of ``message``, which refers to this."""


class Spill(Protocol):
    """Where bodies go that are too many for the memory. The journal has them too; this is only for reading them again."""

    def put(self, body: bytes) -> SpilledBody | None:
        """Keep ``body``; None if there is no room, and it has to stay in memory."""


class Message:
    """One published message, shared by every queue it was routed to. Its bytes never change.

    ``properties`` are the raw bytes of the AMQP content header after the body size (flags and list), forwarded as they
    came. ``body`` may be elsewhere than in memory: :meth:`content` reads it; a large one is no ``bytes``
    (``broker.octets.chunks``), but has their methods, or those of a ``memoryview``; ``size`` is its length in bytes. ``offset`` is
    that of the log record that carries the body, or its first part; 0 for a message that was never logged. After a compaction it is
    the place of a note that says the message again (``core/life/compaction.py``). ``place`` says where in the journal the body is,
    if that is not at ``offset`` (``log/body_place.py``). ``shared``: it was put into several queues.
    """

    __slots__ = ("body", "exchange", "offset", "persistent", "place", "properties", "routing_key", "shared", "size")

    def __init__(self, exchange: str, routing_key: str, properties: bytes, body: bytes, persistent: bool) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.properties = properties
        self.body: bytes | SpilledBody = body
        self.size = len(body)
        self.persistent = persistent
        self.offset = 0
        self.place = AT_OFFSET
        self.shared = False

    def again_at(self, offset: int, place: int) -> Message:
        """The same message, with the same body, which stands at ``offset`` and ``place`` from now on."""
        again = _new(self.__class__)
        for name in _FIELDS:
            setattr(again, name, getattr(self, name))
        again.offset = offset
        again.place = place
        return again

    def is_as(self, other: Message) -> bool:
        """True if it is ``other``, or a copy: the body of both stands at one place of the journal, and nothing else differs."""
        return self is other or (
            self.body is other.body
            and not isinstance(self.body, _IN_MEMORY)
            and self.__class__ is other.__class__
            and (self.offset, self.place, self.size) == (other.offset, other.place, other.size)
            and (self.exchange, self.routing_key) == (other.exchange, other.routing_key)
            and self.properties == other.properties
        )

    def put_at(self, place: int) -> None:
        """Its body stands at ``place`` of the journal."""
        self.place = place

    def stay(self) -> None:
        """Keep the body in memory from now on: the message lies where nothing keeps its record."""
        self.body = self.content()
        self.place = NOWHERE

    @property
    def moved(self) -> bool:
        """True if the broker has moved it to where it is: its ``x-death`` header is the broker's own."""
        return False

    @property
    def held_bytes(self) -> int:
        """About what it takes of the memory, body and properties included."""
        return MESSAGE_BYTES + len(self.routing_key) + self.size + len(self.properties)

    def content(self) -> bytes:
        """The body."""
        body = self.body
        return body if isinstance(body, _IN_MEMORY) else body.read(self)

    def give_body(self, body: bytes, offset: int) -> None:
        """Its body, which stands in the log from ``offset`` on, is whole. No one record carries it."""
        self.body = body
        self.place = NOWHERE
        self.size = len(body)
        self.offset = offset

    def begin_parts(self, offset: int) -> None:
        """Record the body in parts, the first of which stands at ``offset``: its type, no ``bytes`` any more, says so."""
        self.offset = offset
        self.place = NOWHERE
        if type(self.body) is bytes:
            self.body = named_bytes(memoryview(self.body))

    def join_body(self) -> None:
        """Hold the body as one ``bytes`` in memory."""
        self.body = bytes(self.content())

    def share(self) -> None:
        """Note that it is put into several queues."""
        self.shared = True

    def stand_at(self, offset: int) -> None:
        """Count the message at ``offset``: its record's place in the old log means nothing in the new one."""
        self.offset = offset

    def leave(self, bodies: SpilledBody, log_start: int, known: dict[bytes, bytes]) -> bool:
        """Let the body go from memory, if the journal has it, too. Returns whether it has gone.

        The message lies in a durable queue of the log, and its record is applied. Equal properties are held as one object: many
        messages have the same, of 60 octets each.

        Args:
            bodies: gives it back.
            log_start: of the log that goes on.
            known: properties that others have.
        """
        properties = self.properties
        self.properties = known.setdefault(properties, properties)
        if self.may_leave(log_start):
            self.body = bodies
            return True
        return False

    def may_leave(self, log_start: int) -> bool:
        """True if :meth:`leave` lets the body go."""
        place = self.place
        return (
            self.persistent
            and (self.offset > log_start if place == AT_OFFSET else place > AT_OFFSET)
            and isinstance(self.body, _IN_MEMORY)
        )

    def page_in(self, body: bytes) -> None:
        """Its body is in memory again."""
        self.body = body

    def spill(self, spill: Spill) -> None:
        """Let the body go from memory, if it is there and ``spill`` has room. An empty one takes none."""
        if self.size and isinstance(self.body, _IN_MEMORY):
            self.body = spill.put(self.body) or self.body


_FIELDS: Final = Message.__slots__
_new = object.__new__


def made(
    kind: type[Message],
    exchange: str,
    routing_key: str,
    properties: bytes,
    body: bytes | SpilledBody,
    size: int,
    persistent: bool,
    offset: int = 0,
) -> Message:
    """A message of the class ``kind``, without the call of that class, which takes 0.2 us: of each message on each broker."""
    message = _new(kind)
    message.exchange = exchange
    message.routing_key = routing_key
    message.properties = properties
    message.body = body
    message.size = size
    message.persistent = persistent
    message.offset = offset
    message.place = AT_OFFSET
    message.shared = False
    return message


def made_again(
    kind: type[Message],
    exchange: str,
    routing_key: str,
    properties: bytes,
    body: SpilledBody,
    size: int,
    offset: int,
    place: int,
    shared: bool,
) -> Message:
    """A persistent message whose body is not in memory, with all that was known of it."""
    message = made(kind, exchange, routing_key, properties, body, size, True, offset)
    message.place = place
    message.shared = shared
    return message


class DelayedMessage(Message):
    """A message that no client gets before it is due (``core/moving/delayed_publish.py``).

    ``due_ms`` is in ms since 1970; before it is published, or committed, it is `FROM_COMMIT` and a delay. ``everywhere``: in all
    its queues; else in those that take delays. ``delay_ms`` is known to the broker that has taken it from the client, and 0
    elsewhere.
    """

    __slots__ = ("delay_ms", "due_ms", "everywhere")

    def __init__(
        self,
        exchange: str,
        routing_key: str,
        properties: bytes,
        body: bytes,
        persistent: bool,
        *,
        due_ms: int = 0,
        delay_ms: int = 0,
        everywhere: bool = False,
    ) -> None:
        super().__init__(exchange, routing_key, properties, body, persistent)
        self.due_ms = due_ms
        self.delay_ms = delay_ms
        self.everywhere = everywhere

    def come_late(self, due_ms: int, everywhere: bool) -> None:
        """Note what its record says of its delay."""
        self.due_ms = due_ms
        self.delay_ms = 0
        self.everywhere = everywhere

    def fall_due(self, at_ms: int) -> None:
        """Fix the time, in ms since 1970, at which it is due: it is published, or committed."""
        self.due_ms = at_ms

    def again_at(self, offset: int, place: int) -> DelayedMessage:
        """As of any message."""
        again = super().again_at(offset, place)
        assert isinstance(again, DelayedMessage), f"{again.__class__} made of a delayed message"
        again.due_ms, again.delay_ms, again.everywhere = self.due_ms, self.delay_ms, self.everywhere
        return again


class MovedMessage(Message):
    """A message that left a queue for others. It may share the body of the message that left (``log/move_record.py``).

    ``offset`` is that of the record that carries the body, which is older than the MOVE: what keeps the body in the journal keeps
    the MOVE, too.
    """

    __slots__ = ()

    @property
    def moved(self) -> bool:
        return True

    def share_body(self, source: Message) -> None:
        """Take the body of ``source``, wherever that is."""
        self.body = source.body
        self.size = source.size
        self.offset = source.offset
        self.place = source.place if source.place != AWAITED else NOWHERE

    def carry_body(self, source: Message, offset: int) -> None:
        """Take the body of ``source`` into the record at ``offset``, which carries it once more."""
        self.share_body(source)
        self.offset = offset
        self.place = AT_OFFSET

    def leave_body_out(self, size_bytes: int) -> None:
        """Note the size of a body that its record does not carry."""
        self.size = size_bytes
