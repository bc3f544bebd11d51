"""One channel: takes methods one after the other and hands each to the part that knows it.

A channel answers in order. While an answer waits for the log (a declare, for example) what comes next waits with it; while
a commit is pending nothing but a close may come. A close waits for nothing: what stands before it is done
then, and not answered. The parts share the channel and each keeps its own state:
``publishing`` (publish, confirms), ``consuming`` (consume, get, acknowledgements), ``naming`` (exchanges and queues),
``transacting`` (tx), ``distributed`` (dtx).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from understudy.broker.amqp.constants import TOO_LARGE
from understudy.broker.amqp.frames import Event
from understudy.broker.amqp.methods import (
    BASIC_PUBLISH,
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    CHANNEL_FLOW,
    CHANNEL_FLOW_OK,
    CHANNEL_OPEN,
    TX_COMMIT,
    method_name,
)
from understudy.broker.core.clients.consuming import Consuming
from understudy.broker.core.clients.direct_reply import DirectReply
from understudy.broker.core.clients.distributed import Distributed
from understudy.broker.core.clients.naming import Naming
from understudy.broker.core.clients.publishing import Publishing
from understudy.broker.core.clients.transacting import Transacting
from understudy.broker.core.limits import MESSAGE_SIZE
from understudy.broker.errors import (
    AmqpError,
    ChannelErrorHard,
    CommandInvalidError,
    NotImplementedAmqpError,
    PreconditionFailedError,
    SoftError,
)

if TYPE_CHECKING:
    from understudy.broker.core.clients.connection import Connection

Handler = Callable[[tuple[Any, ...]], None]

CLOSE_PATIENCE_MS = 5_000
"""So long a close waits for a command that stands before it. Then it goes on, and what stood between is not done."""
POSTPONED_BYTES = 256
"""What a frame that waits in ``inbox`` counts beside its content."""


class Channel:
    """State of one channel.

    Attributes:
        closing: we have sent channel.close; everything but the answer is passed over.
        ended: it will never say anything again.
        awaiting: key of the method whose answer waits for the log, or for room, 0 if none.
        held: that method is a command which has not been carried out yet: nothing overtakes it, a close neither.
        abandoned: so many answers a close did not wait for. They come nevertheless, while the channel may wait for another one.
        closes_ms: when the client's channel.close, which waits for that, is to go on at the latest; 0 if none does.
    """

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.broker = connection.broker
        self._role, self._complete = self.broker.role, self.broker.completions.complete
        self.number = number
        self.closing = False
        self.ended = False
        self.awaiting = 0
        self.held = False
        self.abandoned = 0
        self.closes_ms = 0
        self.flow_active = True
        self.last_queue = ""
        self.inbox: deque[Event] = deque()
        self._postponed_bytes = 0
        self._resuming = False
        self._for_room: tuple[Callable[..., None], tuple[Any, ...]] | None = None
        self.transacting = Transacting(self)
        self.publishing = Publishing(self)
        self.direct_reply = DirectReply(self)
        self.consuming = Consuming(self)
        self.naming = Naming(self)
        self.distributed = Distributed(self)
        self._publish = self.publishing.publish
        self._handlers: dict[int, Handler] = {
            CHANNEL_CLOSE: self._close,
            CHANNEL_CLOSE_OK: self._close_ok,
            CHANNEL_FLOW: self._flow,
            CHANNEL_OPEN: self._open_twice,
            TOO_LARGE: self._too_large,
            **self.publishing.handlers(),
            **self.consuming.handlers(),
            **self.naming.handlers(),
            **self.transacting.handlers(),
            **self.distributed.handlers(),
        }

    def take(self, event: Event) -> None:
        """Handle one method (with its content, if it has one), or keep it until the answer before it is out."""
        key = event[1]
        if self.closing:
            if key == CHANNEL_CLOSE_OK:
                self._close_ok(())
            elif key == CHANNEL_CLOSE:
                self.send(CHANNEL_CLOSE_OK)
            return
        if self.awaiting:
            if self.awaiting == TX_COMMIT and key != CHANNEL_CLOSE:
                raise PreconditionFailedError(f"{method_name(key)} while tx.commit is pending on channel {self.number}")
            if key != CHANNEL_CLOSE:
                self._postpone(event)
                return
        if key == BASIC_PUBLISH:
            self._publish(event[2], event[3], event[4])  # type: ignore[misc]
            return
        handler = self._handlers.get(key)
        if handler is None:
            raise NotImplementedAmqpError(f"{method_name(key)} is not implemented")
        handler(event[2])

    def send(self, key: int, *args: Any) -> None:
        self.connection.send(self.number, key, *args)

    def write(self, frames: bytes) -> None:
        self.connection.write(frames)

    # -- answers that wait for the log ----------------------------------------------------------------------------

    def after_own_publishes(self, key: int, action: Callable[..., None], *args: Any, outlives: bool = False) -> None:
        """Call ``action(*args)`` when all that this connection has published outside transactions is in its queues.

        That is now, if it is so; else when the log is applied up to its present end, whatever is published meanwhile, and the
        channel takes nothing more until then. A broker that does not answer yet has not applied what it was promoted with, so
        that everything waits for it.

        Args:
            key: the method that asks.
            action: what the method does.
            args: its arguments.
            outlives: it is a command, not a question: it is carried out though the channel may have ended by then.
        """
        broker = self.broker
        pending = broker.log.pending
        if self._role.answering and not (pending and pending[0][0] <= self.connection.published_to):
            action(*args)
            return
        self.awaiting = key
        self.held = outlives
        self._complete(broker.log.end, self._reached, (self.abandoned, action, args, outlives))

    def _reached(self, postponed: tuple[int, Callable[..., None], tuple[Any, ...], bool]) -> None:
        awaited, action, args, outlives = postponed
        if not self.ended and not self.closing:
            self.answered(lambda: action(*args), awaited)
        elif outlives:
            with suppress(AmqpError):  # there is nobody left to be told
                action(*args)

    def wait_for_outcome(self) -> None:
        """Take nothing more until the transaction whose commit the client has asked for is decided."""
        self.awaiting = TX_COMMIT

    def outcome_is_known(self) -> None:
        """The transaction is decided; `resume` goes on with what came meanwhile."""
        self.awaiting = 0

    def when_taken(self, key: int, action: Callable[..., None], *args: Any) -> None:
        """Call ``action(*args)``, which answers method ``key``, when the client takes again what it is sent."""
        self.awaiting = key
        self._for_room = (action, args)

    @property
    def waits_for_client(self) -> bool:
        """True if a method is carried out only when the client takes what it was sent."""
        return self._for_room is not None

    def go_on(self) -> None:
        """The client takes what it is sent: do what has waited for that."""
        waiting, self._for_room = self._for_room, None
        if waiting is not None:
            action, args = waiting
            self.answered(lambda: action(*args), self.abandoned)

    def carry_out_when_applied(self, key: int, action: Callable[..., None], *args: Any) -> None:
        """Carry out a command when the log is applied up to its present end; nothing on this channel overtakes it."""
        self.awaiting = key
        self.held = True
        self._complete(self.broker.log.end, self._reached, (self.abandoned, action, args, False))

    def hold(self, key: int) -> int:
        """Take nothing more until :meth:`answered` is called with what this returns: method ``key`` is being carried out."""
        self.awaiting = key
        self.held = True
        return self.abandoned

    def answer_when_stable(self, offset: int, key: int, answer: Callable[[], object] | None) -> None:
        """Call ``answer`` when the log is applied up to ``offset``; until then the channel takes nothing more.

        With ``answer`` None (no-wait) nothing waits.
        """
        if answer is None:
            return
        self.awaiting = key
        awaited = self.abandoned
        self._complete(offset, lambda answer: self.answered(answer, awaited), answer)

    def wait_for(self, key: int) -> None:
        """Take nothing more until the command ``key`` is carried out, and have a close wait for that."""
        self.awaiting = key
        self.hold_all()

    def hold_all(self) -> None:
        """Nothing overtakes the command that is under way, a close neither."""
        self.held = True

    def begin_close(self) -> None:
        """channel.close has been sent: pass over everything but the answer."""
        self.closing = True

    def declared(self, queue: str) -> None:
        """Take ``queue`` where a method names none (AMQP 0-9-1, queue.declare)."""
        self.last_queue = queue

    def answer_when_acknowledged(self, key: int, answer: Callable[[], object]) -> None:
        """Call ``answer`` when every listed broker has acknowledged this one since now: no other has replaced it."""
        self.answer_when_stable(self.broker.batch.barrier(), key, answer)

    def answered(self, answer: Callable[[], object], awaited: int) -> None:
        """The method that the channel waits for is answered by ``answer``: go on.

        ``awaited`` is what ``abandoned`` was when it began to wait: nobody waits for an older answer any more.
        """
        if self.ended or self.closing or awaited != self.abandoned:
            return
        key = self.awaiting
        self.awaiting = 0
        self.held = False
        self.connection.guard(self.number, key, answer)
        self.resume()

    def resume(self) -> None:
        """Go on with what came meanwhile."""
        if self._resuming:
            return  # what came next was answered at once: whoever goes on already does the rest, however much it is
        self._resuming = True
        try:
            inbox = self.inbox
            while inbox and not self.awaiting and not self.closing and not self.ended:
                self.connection.take_event(self._next_postponed())
        finally:
            self._resuming = False
        if self.closes_ms:
            self.hurry()
        if self.connection.paused:
            self.connection.check_bounds()
        self.connection.close_when_drained()

    def _postpone(self, event: Event) -> None:
        self.inbox.append(event)
        self._postponed_bytes += _size(event)
        self.connection.postponed(_size(event))

    def _next_postponed(self) -> Event:
        event = self.inbox.popleft()
        self._postponed_bytes -= _size(event)
        self.connection.postponed(-_size(event))
        return event

    def hurry(self) -> None:
        """The client closes: do what stands before that without waiting for any answer; but for one whose method is `held`."""
        inbox = self.inbox
        while inbox and not (self.held or self.closing or self.ended):
            if self.awaiting == TX_COMMIT:
                if inbox[0][1] != CHANNEL_CLOSE:
                    return
            elif self.awaiting:
                self.awaiting = 0
                self.abandoned += 1
                self._for_room = None
            self.connection.take_event(self._next_postponed())

    def fail(self, error: SoftError, key: int) -> None:
        """Close this channel for an error that belongs to an earlier method."""
        self.connection.fail_channel(self, error, key)

    # -- channel methods ------------------------------------------------------------------------------------------

    def _close(self, args: tuple[Any, ...]) -> None:
        self.hurry()
        if self.held:
            self.closes_ms = self.closes_ms or self.broker.clock.running_ms + CLOSE_PATIENCE_MS
            self._postpone((self.number, CHANNEL_CLOSE, args))
            return
        if self.closing:  # what stood before it was wrong, and the two closes cross
            self.send(CHANNEL_CLOSE_OK)
        if not self.closing and not self.ended:
            self._closed()

    def _closed(self) -> None:
        self.end("closed by the client")
        self.send(CHANNEL_CLOSE_OK)
        self.connection.channel_closed(self)

    def _close_ok(self, args: tuple[Any, ...]) -> None:
        if not self.closing:
            raise CommandInvalidError(f"channel.close-ok on channel {self.number}, which nobody closed")
        self.connection.channel_closed(self)

    def _flow(self, args: tuple[Any, ...]) -> None:
        self.flow_active = args[0]
        self.send(CHANNEL_FLOW_OK, args[0])
        if self.flow_active:
            self.consuming.schedule_all()

    def _open_twice(self, args: tuple[Any, ...]) -> None:
        raise ChannelErrorHard(f"second channel.open on channel {self.number}")

    def _too_large(self, args: tuple[Any, ...]) -> None:
        """A basic.publish whose header announces too much: refused with the code and the words of RabbitMQ."""
        size, most = args
        self.broker.work.count_limit(MESSAGE_SIZE)
        text = f"message size {size} is larger than configured max size {most}"
        self.fail(PreconditionFailedError(text), BASIC_PUBLISH)

    # -- the end --------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        if self.closing:
            return
        if 0 < self.closes_ms <= self.broker.clock.running_ms:
            self._closed()
        else:
            self.transacting.tick()

    def end(self, reason: str) -> None:
        """The channel dies: consumers go, an open transaction is rolled back, deliveries return to their queues.

        A transaction whose commit is under way goes on without the channel.
        """
        if self.ended:
            return
        self.ended = True
        self.held = False
        self.inbox.clear()
        self._for_room = None
        if self._postponed_bytes:
            self.connection.postponed(-self._postponed_bytes)
            self._postponed_bytes = 0
            self.connection.check_bounds()
        self.consuming.cancel_all()
        self.publishing.end(reason)
        self.transacting.end(reason)
        self.distributed.end(reason)
        self.consuming.end()

    def release(self) -> None:
        """Let go of an ended channel that its connection has forgotten.

        Channel and parts point at each other; nothing does any more after this, so that no garbage collector is needed. What
        still waits for the log (a commit, an answer that goes nowhere) has the part that it needs, and no part needs another
        one through the channel by then.
        """
        assert self.ended, f"channel {self.number} goes without having ended"
        self._handlers = {}
        del self._publish, self.publishing, self.consuming, self.naming, self.transacting, self.distributed
        del self.direct_reply


def _size(event: Event) -> int:
    """The size of a postponed event, as limits count it."""
    return POSTPONED_BYTES + (len(event[3]) + len(event[4]) if len(event) == 5 else 0)
