"""Confirmer: a pika program that streams messages with publisher confirms, and remembers which were confirmed, and when."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pika
import pika.exceptions

from tests.integration.broker_process import wait_until
from tests.stress.clients import PERSISTENT, End, Found, content_of, end_of
from understudy.client.verdicts import BrokerContent, Case, History, Message, Sent, judge
from understudy.client.verdicts.evidence.history import place_of


class Confirmer:
    """Streams ``total`` messages to one queue of the broker at ``port``, with at most ``window`` of them unconfirmed.

    One connection, no heartbeats: if the broker stops it waits, and hears what the broker says when it goes on. When the connection
    ends, or everything is confirmed, that is the end.

    Attributes:
        sent: messages written to the socket's buffer; their stamps are ``worker.number.0``.
        confirmed, nacked: numbers.
        confirmed_at: when each of them was; monotonic seconds.
        end: how the connection ended, None if by ourselves.
    """

    def __init__(self, worker: str, port: int, queue: str, *, total: int = 1 << 40, window: int = 500) -> None:
        self.worker = worker
        self.queue = queue
        self.sent = 0
        self.confirmed: set[int] = set()
        self.nacked: set[int] = set()
        self.confirmed_at: dict[int, float] = {}
        self.end: End | None = None
        self.fault: BaseException | None = None
        self._total = total
        self._window = window
        self._low = 0
        self._channel: Any = None
        self._properties = pika.BasicProperties(delivery_mode=PERSISTENT)
        self._connection: Any = pika.SelectConnection(
            pika.ConnectionParameters("127.0.0.1", port, heartbeat=0, socket_timeout=60, stack_timeout=60),
            on_open_callback=self._opened,
            on_open_error_callback=self._not_opened,
            on_close_callback=self._closed,
        )
        self._thread = threading.Thread(target=self._run, name=f"confirmer {worker}")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Close the connection as a client does."""
        if self._thread.is_alive():
            self._connection.ioloop.add_callback_threadsafe(self._close)

    def join(self, timeout_s: float = 60.0) -> None:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"confirmer {self.worker}: {len(self.confirmed)} of {self.sent} confirmed"
        if self.fault is not None:
            raise self.fault

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._connection.ioloop.start()
        except BaseException as error:  # noqa: BLE001  # join raises it
            self.fault = error
        finally:
            self._connection.ioloop.close()

    def _close(self) -> None:
        if self._connection.is_open:
            self._connection.close()

    def _opened(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._channel_opened)

    def _not_opened(self, connection: Any, error: Any) -> None:
        self.fault = AssertionError(f"confirmer {self.worker} cannot connect: {error!r}")
        connection.ioloop.stop()

    def _closed(self, connection: Any, error: BaseException) -> None:
        if not isinstance(error, pika.exceptions.ConnectionClosedByClient):
            self.end = end_of(error)
        connection.ioloop.stop()

    def _channel_opened(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._channel_closed)
        channel.confirm_delivery(self._answered, callback=lambda _: self._publish())

    def _channel_closed(self, _: Any, error: Any) -> None:
        if isinstance(error, pika.exceptions.ChannelClosedByBroker):
            self.fault = AssertionError(f"confirmer {self.worker}: {error!r}")
            self._close()

    def _answered(self, frame: Any) -> None:
        method = frame.method
        low = self._low if method.multiple else method.delivery_tag - 1
        numbers = range(low, method.delivery_tag)
        if isinstance(method, pika.spec.Basic.Ack):
            now = time.monotonic()
            for number in numbers:
                if number not in self.nacked and number not in self.confirmed:
                    self.confirmed.add(number)
                    self.confirmed_at[number] = now
        else:
            self.nacked.update(numbers)
        while self._low in self.confirmed or self._low in self.nacked:
            self._low += 1
        if self._low >= self._total:
            self._close()
        else:
            self._publish()

    def _publish(self) -> None:
        """Fill the window."""
        upto = min(self._low + self._window, self._total)
        publish, queue, prefix, properties = (
            self._channel.basic_publish,
            self.queue,
            self.worker.encode(),
            self._properties,
        )
        while self.sent < upto and self._channel.is_open:
            body = b"%b.%d.0" % (prefix, self.sent)
            self.sent += 1
            publish("", queue, body, properties)

    # -- what must be -------------------------------------------------------------------------------------------------

    def wait_confirmed(self, count: int, timeout_s: float = 90.0) -> None:
        """Until so many more messages are confirmed than are now."""
        goal = len(self.confirmed) + count

        def reached() -> bool:
            if self.fault is not None:
                raise self.fault
            assert self.end is None, f"the connection ended: {self.end}"
            return len(self.confirmed) >= goal

        wait_until(f"{count} more messages are confirmed", reached, timeout_s)

    def check(self, found: Sequence[Found]) -> None:
        """Everything that was confirmed is there, once and in order; what was not may be; nothing that was never sent is."""
        own = [each for each in found if each.stamp.startswith(self.worker + ".")]
        sent = [Sent(self.worker, number, Message(self._stamp(number), self.queue)) for number in range(self.sent)]
        history = History(
            sent={place_of(each.message): each for each in sent},
            confirmed={(self._stamp(number), self.queue) for number in self.confirmed},
            refused={(self._stamp(number), self.queue) for number in self.nacked},
        )
        content = BrokerContent(broker="a client", queues={self.queue: content_of(self.queue, own)})
        violations = judge(Case(history=history, content=content))
        assert not violations, f"{len(violations)} problems: " + "\n".join(each.text for each in violations[:20])

    def _stamp(self, number: int) -> str:
        return f"{self.worker}.{number}.0"
