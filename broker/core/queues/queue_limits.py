"""How much a queue may hold: ``x-max-length``, ``x-max-length-bytes``, and what becomes of what is too much (``x-overflow``).

Counted is what is ready or withheld: messages that a consumer holds, and those of undecided transactions, are not. Bytes are those
of bodies.

*drop-head*: when a message has become ready, the oldest ones leave until the rest fits. *reject-publish*: the publisher is told no
(``basic.nack``), and the message does not enter the queue; *reject-publish-dlx*: nor that, but it goes to the queue's dead-letter
exchange. Who returns a message to a queue is never refused, so there may be more than the limit for a while.

Source: RabbitMQ 4.3, queue length limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from understudy.broker.core.queues.entry import Entry
    from understudy.broker.core.queues.queue import Queue

MAX_LENGTH: Final = "x-max-length"
MAX_LENGTH_BYTES: Final = "x-max-length-bytes"
OVERFLOW: Final = "x-overflow"
DROP_HEAD: Final = "drop-head"
REJECT_PUBLISH: Final = "reject-publish"
REJECT_PUBLISH_DLX: Final = "reject-publish-dlx"
OVERFLOWS: Final = (DROP_HEAD, REJECT_PUBLISH, REJECT_PUBLISH_DLX)

_UNLIMITED: Final = 1 << 63


class QueueLimits:
    """The limits of one queue, and what counts for them.

    Attributes:
        ready_bytes: of the bodies of messages that are ready or withheld.
        coming: messages that were published to the queue, outside of transactions, and are not applied.
        coming_bytes: of their bodies.
        drops: too much is dropped, at the head.
        dead_letters: what is refused goes to the dead-letter exchange.
    """

    __slots__ = ("_most", "_most_bytes", "_overfull", "coming", "coming_bytes", "dead_letters", "drops", "ready_bytes")

    def __init__(self, arguments: dict[str, Any], overfull: Callable[[Queue], None]) -> None:
        """``overfull`` is told of a queue that holds too much, and drops it."""
        self._most: int = arguments.get(MAX_LENGTH, _UNLIMITED)
        self._most_bytes: int = arguments.get(MAX_LENGTH_BYTES, _UNLIMITED)
        overflow = arguments.get(OVERFLOW, DROP_HEAD)
        self.drops = overflow == DROP_HEAD
        self.dead_letters = overflow == REJECT_PUBLISH_DLX
        self._overfull = overfull
        self.ready_bytes = 0
        self.coming = self.coming_bytes = 0

    @classmethod
    def of(cls, arguments: dict[str, Any], overfull: Callable[[Queue], None]) -> QueueLimits | None:
        """The limits of a queue with these arguments, which have been checked; None if it has none."""
        if MAX_LENGTH in arguments or MAX_LENGTH_BYTES in arguments:
            return cls(arguments, overfull)
        return None

    def begin(self, queue: Queue) -> None:
        """This broker begins to lead: everything in ``queue`` is ready."""
        self.coming = self.coming_bytes = 0
        self.ready_bytes = sum(entry.message.size for entry in queue.entries.objects())
        self.ready_bytes += sum(page.size_bytes() for page in queue.entries.packed())
        self.look(queue)

    def published(self, size_bytes: int) -> None:
        """A message with a body of that size has been published to the queue."""
        self.coming += 1
        self.coming_bytes += size_bytes

    def applied(self, size_bytes: int) -> None:
        """Such a message is applied."""
        self.coming -= 1
        self.coming_bytes -= size_bytes

    def entered(self, queue: Queue, entry: Entry) -> None:
        """``entry`` is ready, or withheld."""
        self.ready_bytes += entry.message.size
        self.look(queue)

    def left(self, entry: Entry) -> None:
        """``entry`` is neither any more."""
        self.ready_bytes -= entry.message.size

    def left_bytes(self, size_bytes: int) -> None:
        """A message with a body of that size, which was ready, has left."""
        self.ready_bytes -= size_bytes

    def purged(self) -> None:
        """Nothing is ready or withheld any more."""
        self.ready_bytes = 0

    def look(self, queue: Queue) -> None:
        """Report ``queue`` if it has to drop something."""
        if self.drops and self.exceeded(queue):
            self._overfull(queue)

    def exceeded(self, queue: Queue) -> bool:
        """True if more counts than may be there."""
        return len(queue.entries) - queue.acquired > self._most or self.ready_bytes > self._most_bytes

    def __str__(self) -> str:
        said = []
        if self._most != _UNLIMITED:
            said.append(f"{self._most} messages are the most")
        if self._most_bytes != _UNLIMITED:
            said.append(f"{self._most_bytes} bytes are the most")
        return ", ".join(said)

    def takes(self, queue: Queue, count: int, size_bytes: int) -> bool:
        """True if ``count`` more messages with bodies of ``size_bytes`` may be published to ``queue``."""
        if self.drops:
            return True
        held = queue.depth + queue.withheld + self.coming + count
        return held <= self._most and self.ready_bytes + self.coming_bytes + size_bytes <= self._most_bytes
