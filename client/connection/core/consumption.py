"""Consumption: deliveries of one queue, taken up again on another link after a loss."""

from __future__ import annotations

from functools import partial

from understudy.client.connection.core.backoff import Backoff
from understudy.client.connection.core.failover import Failover
from understudy.client.connection.core.messages import Message
from understudy.client.connection.core.port import Channel, Procedure
from understudy.client.connection.errors import ArgumentError, LostError


class Consumption:
    """One consumer, with a channel of its own in transaction mode.

    After a loss the broker delivers again what was not acknowledged; what had arrived and was not taken is dropped here.

    Args:
        prefetch: so many deliveries may be unacknowledged at once, 1 to 65,535.

    Raises:
        ArgumentError: the prefetch is out of its range.
    """

    def __init__(self, failover: Failover, queue: str, prefetch: int) -> None:
        if not 1 <= prefetch <= 65_535:
            raise ArgumentError(f"prefetch = {prefetch} of queue {queue!r}: 1 to 65,535 are allowed")
        self._failover = failover
        self._queue = queue
        self._prefetch = prefetch
        self._channel: Channel | None = None
        self._pauses = Backoff()
        self.closed = False

    def next(self, timeout_s: float | None = None) -> Procedure[Message | None]:
        """The next delivery; None if none comes in time, or the consumer is closed.

        Raises:
            RefusedError: the broker refuses the consumer, for example because there is no such queue.
            NoBrokerError, LoginRefusedError: as of each call.
        """
        driver = self._failover.driver
        while not self.closed:
            channel = self._channel or (yield from self._opened())
            if channel is None:
                return None
            try:
                message: Message | None = yield partial(channel.next, timeout_s)
            except LostError as error:
                if self._channel is not channel:  # closed meanwhile
                    return None
                self._channel = None
                driver.warn(f"the consumer of queue {self._queue!r} begins again: {error}")
                yield channel.close
                yield partial(driver.pause, self._pauses.next_s(driver.chance()))
            else:
                if message is not None:
                    self._pauses.done()
                return message
        return None

    def close(self) -> Procedure[None]:
        """End it; the broker delivers to others what was not acknowledged."""
        self.closed = True
        channel, self._channel = self._channel, None
        if channel is not None:
            yield channel.close

    def _opened(self) -> Procedure[Channel | None]:
        """A new channel that delivers; None if the consumer was closed meanwhile, when `close` had no channel to close."""
        channel = self._channel = yield from self._failover.channel(self._begin)
        if not self.closed:
            return channel
        self._channel = None
        yield channel.close
        return None

    def _begin(self, channel: Channel) -> Procedure[None]:
        yield channel.select
        yield partial(channel.consume, self._queue, self._prefetch)
