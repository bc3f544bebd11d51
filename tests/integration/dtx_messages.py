"""The verbs of class 100 as messages to the exchange ``understudy.dtx``: what `DtxChannel` does, for clients without the class.

The bodies are written down a second time here, as in `dtx_channel.py`. Answers come to a queue of the connection's own, on a
channel of its own, so that nothing is consumed on the channel that asks.
"""

from __future__ import annotations

import itertools
import json
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

import pika
import pika.exceptions

from tests.integration.dtx_channel import DtxChannel, Xid

EXCHANGE = "understudy.dtx"
_NUMBERS = itertools.count(1)


def xid_parts(xid: Xid) -> dict[str, Any]:
    """As docs/dtx.md has them."""
    return {
        "format_id": xid.format_id,
        "global_id": quote_from_bytes(xid.global_id, ""),
        "branch_id": quote_from_bytes(xid.branch_id, ""),
    }


def _octets(row: dict[str, Any]) -> bytes:
    parts = row["xid"]
    ids = (unquote_to_bytes(parts[name]) for name in ("global_id", "branch_id"))
    return bytes((row["state"],)) + Xid(parts["format_id"], *ids).octets()


def _parts_of_octets(octets: bytes) -> dict[str, Any]:
    length = octets[4]
    ids = octets[5 : 5 + length], octets[6 + length :]
    return xid_parts(Xid(int.from_bytes(octets[:4], "big"), *ids))


class PendingMessage:
    """A request that has been sent; see `dtx_channel.Pending`."""

    def __init__(self, channel: Any, replies: Replies, request: dict[str, Any]) -> None:
        self._channel = channel
        self._replies = replies
        self._number = str(next(_NUMBERS))
        self._raise_if_closed()
        about = pika.BasicProperties(reply_to=replies.queue, correlation_id=self._number)
        # Not the blocking channel's: that one would wait for a confirm, and for a broker that refuses new work.
        channel._impl.basic_publish(EXCHANGE, "", json.dumps(request).encode(), about)
        channel._flush_output()

    @property
    def answered(self) -> bool:
        """True if the answer has been read, or instead of it that the broker has closed the channel."""
        closed = isinstance(self._channel._closing_reason, pika.exceptions.ChannelClosedByBroker)
        return self._number in self._replies.answers or closed

    def wait(self) -> tuple[Any, ...]:
        """Wait for the content of the method's answer."""
        while self._number not in self._replies.answers:
            self._raise_if_closed()
            self._channel.connection.process_data_events(time_limit=1)
        answer = self._replies.answers.pop(self._number)
        if "in_doubt" in answer:
            return answer["more"], b"".join(map(_octets, answer["in_doubt"]))
        if "timeout" in answer:
            return (answer["timeout"],)
        assert answer["name"] == ("ok", "rbrollback", "rbtimeout", "heurhaz")[answer["status"]]
        return (answer["status"],)

    def _raise_if_closed(self) -> None:
        reason = self._channel._closing_reason
        if self._channel.is_closed and isinstance(reason, pika.exceptions.ChannelClosedByBroker):
            raise reason


class Replies:
    """Answers that have come on one connection, by correlation id."""

    def __init__(self, connection: Any) -> None:
        self.answers: dict[str, dict[str, Any]] = {}
        self.headers: dict[str, dict[str, Any]] = {}
        channel = connection.channel()
        self.queue = channel.queue_declare(f"test_replies.{next(_NUMBERS)}", exclusive=True).method.queue
        channel.basic_consume(self.queue, self._came, auto_ack=True)

    def _came(self, _channel: Any, _method: Any, about: pika.BasicProperties, body: bytes) -> None:
        assert about.content_type == "application/json"
        self.headers[about.correlation_id] = about.headers
        self.answers[about.correlation_id] = json.loads(body)


class MessageDtxChannel(DtxChannel):
    """A channel that sends messages instead of methods."""

    def __init__(self, channel: Any) -> None:
        super().__init__(channel)
        connection = channel.connection
        if not hasattr(connection, "dtx_replies"):
            connection.dtx_replies = Replies(connection)
        self.replies: Replies = connection.dtx_replies

    def send(self, method: tuple[type, type], *values: Any) -> Any:
        names = [name for name, _ in method[0].FIELDS]  # type: ignore[attr-defined]
        request: dict[str, Any] = dict(zip(names, values, strict=True))
        if "format_id" in request:
            request["xid"] = xid_parts(Xid(*(request.pop(name) for name in Xid._fields)))
        elif request.get("after") == b"":
            del request["after"]
        elif "after" in request:
            request["after"] = _parts_of_octets(request["after"])
        verb = method[0].NAME.removeprefix("dtx.")  # type: ignore[attr-defined]
        return PendingMessage(self.channel, self.replies, {"verb": verb, **request})
