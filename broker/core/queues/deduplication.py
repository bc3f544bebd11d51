"""Publisher deduplication: which queues and exchanges drop a message that was published before, and by which header.

A client that publishes a message again, because it lost the answer, gives it the same id in a header. A queue, or an exchange,
with the argument ``x-message-deduplication`` remembers the ids of messages that came, and drops what comes with one of these.

The arguments are LavinMQ's: ``x-cache-size`` is how many ids are remembered, ``x-cache-ttl`` for how many milliseconds,
``x-deduplication-header`` which header has the id. RabbitMQ's plugin of that name forgets an id when its message leaves the queue,
which lets through what a slow client repeats: here, as in LavinMQ, an acknowledged message is remembered like any other.

A message that the broker moves (a dead letter) was not published to where it goes: it is not judged, and its id not remembered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from understudy.broker.amqp.properties import has_headers, header

ENABLED: Final = "x-message-deduplication"
SIZE: Final = "x-cache-size"
TTL: Final = "x-cache-ttl"
HEADER: Final = "x-deduplication-header"
ARGUMENTS: Final = (ENABLED, SIZE, TTL, HEADER)
DEFAULT_SIZE: Final = 1_000
MAX_SIZE: Final = 65_536
ID_BYTES: Final = 255

_TEXT: Final = b"t"
_NUMBER: Final = b"n"


@attrs.frozen
class DeduplicationRule:
    """The rule by which one queue or exchange remembers ids.

    Attributes:
        header: the name of the header that has the id of a message.
        size: the number of ids that are remembered, the newest; 1 to `MAX_SIZE`.
        ttl_ms: the time for which an id is remembered; None for as long as ``size`` allows.
    """

    header: str
    size: int
    ttl_ms: int | None

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> DeduplicationRule | None:
        """The rule of a queue or exchange with these arguments, which have been checked; None if it drops no duplicates."""
        if not arguments.get(ENABLED):
            return None
        return cls(arguments.get(HEADER, HEADER), arguments.get(SIZE, DEFAULT_SIZE), arguments.get(TTL))

    @property
    def granularity_ms(self) -> int:
        """The largest error of the time with which an id is remembered; 0 without ``ttl_ms``."""
        return 0 if self.ttl_ms is None else min(1_000, max(10, self.ttl_ms // 10))

    def id_of(self, properties: bytes) -> bytes | None:
        """The id of a message with these properties, None if it has none that can be one.

        Text and octets of the same bytes are one id; a number is never a text.
        """
        return id_octets(header(properties, self.header)) if has_headers(properties) else None


def id_octets(value: object) -> bytes | None:
    """A header's value as an id; None if it is none: an id is text or octets of 1 to `ID_BYTES`, or an integer."""
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")
    if isinstance(value, bytes):
        return _TEXT + value if 1 <= len(value) <= ID_BYTES else None
    if isinstance(value, int) and not isinstance(value, bool):
        return _NUMBER + b"%d" % value
    return None


def contradiction(arguments: Mapping[str, Any]) -> str:
    """The argument that belongs to deduplication, which the others do not switch on; "" if there is none."""
    if arguments.get(ENABLED):
        return ""
    return next((argument for argument in ARGUMENTS[1:] if argument in arguments), "")
