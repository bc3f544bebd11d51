"""PacedTransport: a TLS transport that encrypts a large write a portion at a time.

What is written to a plain socket is not touched: the kernel takes as much as its buffer holds. A TLS transport encrypts all of
it at once, which holds the event loop for a quarter of a second for 250 MB. Here it gets a portion, then the loop goes round, and
the next portion follows when most of the one before has gone to the kernel.

The TLS transport is never given as much as the limit. So it tells the protocol nothing of limits: it does not know what waits
here, and two that tell would contradict each other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

PORTION_BYTES: Final = 1 << 20
"""Encrypted in 1 ms or less."""
LOOK_S: Final = 0.005
"""So often is looked whether the kernel has taken what it was given,"""
MAX_LOOK_S: Final = 0.1
"""and so often if the other end takes nothing."""
PORTIONS_IN_LIMIT: Final = 3
"""Two that the TLS transport may hold, and room for what encryption adds."""


class PacedTransport:
    """Has those methods of an ``asyncio.Transport`` that sessions and links use.

    Args:
        transport: the TLS transport.
        protocol: told, as by a transport, when more waits than the limit, and when that is over.
        loop: whose thread calls everything here.
    """

    __slots__ = (
        "_ending",
        "_high_bytes",
        "_look_s",
        "_loop",
        "_paused",
        "_portion_bytes",
        "_protocol",
        "_scheduled",
        "_transport",
        "_waiting",
        "_waiting_bytes",
    )

    def __init__(
        self, transport: asyncio.Transport, protocol: asyncio.BaseProtocol, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._transport = transport
        self._protocol = protocol
        self._loop = loop
        self._waiting: deque[bytes | memoryview] = deque()
        self._waiting_bytes = 0
        self._look_s = LOOK_S
        self._scheduled = False
        self._paused = False
        self._ending: Callable[[], None] | None = None
        self.set_write_buffer_limits(PORTIONS_IN_LIMIT * PORTION_BYTES)

    @property
    def inner(self) -> asyncio.Transport:
        """The TLS transport."""
        return self._transport

    def write(self, chunk: bytes) -> None:
        self.writelines((chunk,))

    def writelines(self, chunks: Sequence[bytes]) -> None:
        """Write them all, in order, after what waits."""
        size = sum(map(len, chunks))
        portion = self._portion_bytes
        if size <= portion and not self._waiting and self._transport.get_write_buffer_size() <= portion:
            self._transport.writelines(chunks)
            return
        self._waiting.extend(chunks)
        self._waiting_bytes += size
        if not self._paused and self.get_write_buffer_size() > self._high_bytes:
            self._paused = True
            self._protocol.pause_writing()
        if not self._scheduled:
            self._go_on()

    def _go_on(self) -> None:
        """Hand on a portion, or wait until the last one has gone."""
        self._scheduled = False
        transport = self._transport
        if transport.is_closing():
            self._drop()
            return
        if transport.get_write_buffer_size() > self._portion_bytes:
            self._scheduled = True
            self._loop.call_later(self._look_s, self._go_on)
            self._look_s = min(2 * self._look_s, MAX_LOOK_S)
            return
        self._look_s = LOOK_S
        transport.writelines(self._portion())
        if self._waiting:
            self._scheduled = True
            self._loop.call_soon(self._go_on)
            return
        if self._paused:
            self._paused = False
            self._protocol.resume_writing()
        if self._ending is not None and not self._waiting:
            self._ending()

    def _portion(self) -> list[bytes | memoryview]:
        waiting = self._waiting
        portion: list[bytes | memoryview] = []
        room = self._portion_bytes
        while waiting and room:
            chunk = waiting.popleft()
            if len(chunk) > room:
                view = memoryview(chunk)
                waiting.appendleft(view[room:])
                chunk = view[:room]
            portion.append(chunk)
            room -= len(chunk)
        self._waiting_bytes -= self._portion_bytes - room
        return portion

    def _drop(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + self._waiting_bytes

    def set_write_buffer_limits(self, high: int) -> None:
        self._high_bytes = high
        self._portion_bytes = min(PORTION_BYTES, high // PORTIONS_IN_LIMIT)
        self._transport.set_write_buffer_limits(high=high)

    def get_extra_info(self, name: str) -> Any:
        return self._transport.get_extra_info(name)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def can_write_eof(self) -> bool:
        """TLS cannot."""
        return False

    def write_eof(self) -> None:
        raise NotImplementedError("one direction of TLS cannot end alone")

    def is_closing(self) -> bool:
        return self._ending is not None or self._transport.is_closing()

    def close(self) -> None:
        """Close after what waits."""
        if self._waiting:
            self._ending = self._transport.close
        else:
            self._transport.close()

    def abort(self) -> None:
        self._drop()
        self._transport.abort()


def paced(transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> asyncio.Transport | PacedTransport:
    """``transport`` itself, unless it encrypts."""
    if transport.get_extra_info("ssl_object") is None:
        return transport
    return PacedTransport(transport, protocol, asyncio.get_running_loop())
