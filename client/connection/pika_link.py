"""PikaLink: a connection of pika to one broker, with a thread of its own in which pika runs.

The thread answers heartbeats and takes deliveries while the program does other things. Every other thread hands it calls, and waits
for their answers. pika's BlockingConnection was refused: it belongs to one thread, and is closed by the broker when that thread is
busy for longer than the heartbeats allow.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pika

from understudy.client.connection.core.numbers import ChannelNumbers
from understudy.client.connection.core.port import ANSWER_TIMEOUT_S, CLOSE_TIMEOUT_S, CONNECT_TIMEOUT_S, capabilities_of
from understudy.client.connection.errors import LostError
from understudy.client.connection.pika_channel import PikaChannel
from understudy.client.connection.pika_errors import as_ours, fail, give

_log = logging.getLogger("understudy.client")


class PikaLink:
    """See `understudy.client.connection.core.port.Link`. Opened when it is made.

    Raises:
        LostError: no broker that leads is there.
        LoginRefusedError: the broker refuses the login.
    """

    def __init__(self, parameters: Any) -> None:
        self.capabilities: frozenset[str] = frozenset()
        self._parameters = parameters
        self._opened: Future[None] = Future()
        self._ended = threading.Event()
        self._waiting: set[Future[Any]] = set()
        self._channels: set[PikaChannel] = set()
        self._connection: Any = None
        self._numbers = ChannelNumbers(0)
        self._thread = threading.Thread(target=self._run, name="understudy.client", daemon=True)
        self._thread.start()
        try:
            self._opened.result(2 * CONNECT_TIMEOUT_S)
        except TimeoutError:
            self.close()
            raise LostError(f"no answer within {2 * CONNECT_TIMEOUT_S:g} s") from None

    @property
    def lives(self) -> bool:
        return not self._ended.is_set()

    def channel(self, *, spare: bool = False) -> PikaChannel:
        made: PikaChannel = self.asked(lambda done: self._open_channel(done, spare=spare))
        return made

    def forget(self, channel: PikaChannel) -> None:
        """The channel has ended."""
        self._channels.discard(channel)

    def close(self) -> None:
        self.soon(self._end)
        self._ended.wait(CLOSE_TIMEOUT_S)

    def soon(self, call: Callable[[], Any]) -> None:
        """Have the link's thread make a call; nothing happens if the link has ended."""
        if self._connection is not None and self.lives:
            self._connection.ioloop.add_callback_threadsafe(lambda: self._guarded(call, None))

    def asked(self, request: Callable[[Callable[[Any], None]], Any], waiting: set[Future[Any]] | None = None) -> Any:
        """Have the link's thread make a request, and wait for its answer.

        Args:
            request: is given a function that takes the answer.
            waiting: has the future of the answer while it is awaited.

        Raises:
            LostError: the link or the channel ended, or there was no answer in time.
            RefusedError: the broker closed the channel.
        """
        answer: Future[Any] = Future()
        holders = [self._waiting] if waiting is None else [self._waiting, waiting]
        for holder in holders:
            holder.add(answer)
        try:
            self.soon(lambda: self._guarded(lambda: request(lambda result: give(answer, result)), answer))
            if not self.lives:
                fail(answer, LostError("the connection is closed"))
            return answer.result(ANSWER_TIMEOUT_S)
        except TimeoutError:
            raise LostError(f"no answer within {ANSWER_TIMEOUT_S:g} s") from None
        finally:
            for holder in holders:
                holder.discard(answer)

    # -- in the link's thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        error: Exception = LostError("the connection closed")
        try:
            self._connection = pika.SelectConnection(
                self._parameters,
                on_open_callback=self._when_opened,
                on_open_error_callback=self._when_ended,
                on_close_callback=self._when_ended,
            )
            self._connection.ioloop.start()
        except Exception as raised:  # noqa: BLE001  # pika's own faults, of sockets that close while it writes
            error = raised
        finally:
            self._finish(error)
            if self._connection is not None:
                try:
                    self._connection.ioloop.close()
                except Exception as raised:  # noqa: BLE001  # as above
                    _log.debug("pika: %s", raised)

    def _open_channel(self, done: Callable[[Any], None], *, spare: bool) -> None:
        number = self._numbers.free(self._connection._channels, spare=spare)  # noqa: SLF001  # pika shows them nowhere else
        self._connection.channel(number, on_open_callback=lambda opened: done(self._note(opened)))

    def _note(self, opened: Any) -> PikaChannel:
        made = PikaChannel(self, opened)
        self._channels.add(made)
        return made

    def _when_opened(self, connection: Any) -> None:
        self._numbers = ChannelNumbers(connection.params.channel_max)
        self.capabilities = capabilities_of(connection.server_properties)
        give(self._opened, None)

    def _when_ended(self, _: Any, error: BaseException) -> None:
        self._finish(error)
        self._connection.ioloop.stop()

    def _finish(self, error: BaseException) -> None:
        """Everything that waits is told the reason."""
        reason = as_ours(error)
        self._ended.set()
        fail(self._opened, reason)
        for answer in list(self._waiting):
            fail(answer, reason)
        for channel in list(self._channels):
            channel.end(reason)

    def _end(self) -> None:
        if self._connection.is_closing or self._connection.is_closed:
            return
        self._connection.close()

    def _guarded(self, call: Callable[[], Any], answer: Future[Any] | None) -> None:
        """Make a call; its error goes to the thread that waits."""
        try:
            call()
        except Exception as error:  # noqa: BLE001  # pika's errors, and its assertions
            if answer is not None:
                fail(answer, as_ours(error))
