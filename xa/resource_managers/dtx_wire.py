"""The verbs of docs/dtx.md on a channel of py-amqp: as methods of class 100, or as messages to ``understudy.dtx``.

py-amqp takes a method of any class in `send_method`, and decodes the answers that a channel class lists in ``_METHODS``: both are
how its own methods are made. The message form needs neither, and so works with every client library.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final, Protocol
from urllib.parse import quote_from_bytes, unquote_to_bytes

import amqp
from amqp import spec

from understudy.xa.core.xid import Xid

CLASS_ID: Final = 100
EXCHANGE: Final = "understudy.dtx"
CAPABILITY: Final = "understudy.dtx"
TRANSACTION_CAPABILITY: Final = "understudy.dtx.transaction"
"""Of brokers that tell the number of the transaction with the answer to prepare."""
OUTCOME_EXCHANGE: Final = "understudy.tx"
_NUMBERS: Final = {
    "select": 10,
    "start": 20,
    "end": 30,
    "prepare": 40,
    "commit": 50,
    "rollback": 60,
    "recover": 70,
    "forget": 80,
}
_BITS: Final = {"start": ("join", "resume"), "end": ("fail", "suspend"), "commit": ("one_phase",)}
_ANSWERS: Final = {"select": "", "recover": "bx"}
_STATUS: Final = "B"


class DtxChannel(amqp.Channel):  # type: ignore[misc]  # py-amqp has no types
    """A channel of py-amqp that understands the answers of class 100."""

    _METHODS = {  # noqa: RUF012  # so it is in py-amqp
        **amqp.Channel._METHODS,  # noqa: SLF001  # the table that py-amqp's own subclasses extend
        **{
            (CLASS_ID, number + 1): spec.method((CLASS_ID, number + 1), _ANSWERS.get(verb, _STATUS))
            for verb, number in _NUMBERS.items()
        },
    }


class TransactionChannel(DtxChannel):
    """The same for brokers that tell the number of the transaction."""

    _METHODS = {  # noqa: RUF012  # as above
        **DtxChannel._METHODS,  # noqa: SLF001  # as above
        (CLASS_ID, _NUMBERS["prepare"] + 1): spec.method((CLASS_ID, _NUMBERS["prepare"] + 1), "Bs"),
    }


class DtxConnection(amqp.Connection):  # type: ignore[misc]  # as above
    """A connection whose channels are `DtxChannel`."""

    Channel = DtxChannel

    def tells_transactions(self, tells: bool) -> None:
        """The broker tells the number of a transaction with the answer to prepare, or does not; before a channel is opened."""
        self.Channel = TransactionChannel if tells else DtxChannel


class DtxWire(Protocol):
    """The verbs. Errors are those of py-amqp: of a refusal, `AMQPError` with the reply code, on an open connection."""

    def select(self) -> None:
        """The channel may take part in branches."""

    def status(self, verb: str, xid: Xid, **bits: bool) -> int:
        """Carry out a verb whose answer is a status."""

    def prepare(self, xid: Xid) -> tuple[int, str]:
        """The status of prepare, and the number of the transaction; "" if the broker does not tell it."""

    def outcome(self, transaction: str) -> str:
        """The outcome of a transaction, by its number: committed, rolled back, pending, expired, or an error."""

    def recover(self) -> list[tuple[int, Xid]]:
        """All branches in doubt, with their state."""


class MethodWire:
    """Methods of class 100.

    Args:
        left_s: how many seconds one answer may take; `TimeoutError` afterwards, and the connection is of no use any more.
    """

    def __init__(self, channel: Any, left_s: Callable[[], float]) -> None:
        self._channel = channel
        self._left_s = left_s

    def select(self) -> None:
        self._call("select", None, ())

    def status(self, verb: str, xid: Xid, **bits: bool) -> int:
        flags = [bits.get(name, False) for name in _BITS.get(verb, ())]
        return int(self._call(verb, "lxx" + "b" * len(flags), (*xid, *flags)))

    def prepare(self, xid: Xid) -> tuple[int, str]:
        status, *told = self._call("prepare", "lxx", xid, returns_tuple=True)
        return int(status), str(told[0]) if told else ""

    def outcome(self, transaction: str) -> str:
        return MessageWire(self._channel, self._left_s).outcome(transaction)

    def recover(self) -> list[tuple[int, Xid]]:
        found: list[tuple[int, Xid]] = []
        after, more = b"", True
        while more:
            more, octets = self._call("recover", "x", (after,), returns_tuple=True)
            found += _in_doubt(bytes(octets))
            after = _octets_of(found[-1][1]) if found else b""
        return found

    def _call(self, verb: str, layout: str | None, args: tuple[Any, ...], *, returns_tuple: bool = False) -> Any:
        number = _NUMBERS[verb]
        self._channel.send_method((CLASS_ID, number), layout, args)
        return self._channel.wait((CLASS_ID, number + 1), timeout=self._left_s(), returns_tuple=returns_tuple)


class MessageWire:
    """Messages to the exchange ``understudy.dtx``, on the same channel; answers come on a channel of their own."""

    def __init__(self, channel: Any, left_s: Callable[[], float]) -> None:
        self._channel = channel
        self._left_s = left_s
        self._number = 0
        self._answers: dict[str, str] = {}
        replies = channel.connection.channel()
        self._queue = replies.queue_declare("", exclusive=True).queue
        replies.basic_consume(self._queue, callback=self._came, no_ack=True)

    def select(self) -> None:
        self._ask({"verb": "select"})

    def status(self, verb: str, xid: Xid, **bits: bool) -> int:
        wanted = {name: value for name, value in bits.items() if value}
        return int(self._ask({"verb": verb, "xid": _parts_of(xid), **wanted})["status"])

    def prepare(self, xid: Xid) -> tuple[int, str]:
        answer = self._ask({"verb": "prepare", "xid": _parts_of(xid)})
        return int(answer["status"]), str(answer.get("transaction", ""))

    def outcome(self, transaction: str) -> str:
        return self._asked(OUTCOME_EXCHANGE, f"outcome {transaction}")

    def recover(self) -> list[tuple[int, Xid]]:
        found: list[tuple[int, Xid]] = []
        request: dict[str, Any] = {"verb": "recover"}
        while True:
            answer = self._ask(request)
            found += [(int(row["state"]), _xid_of(row["xid"])) for row in answer["in_doubt"]]
            if not answer["more"]:
                return found
            request["after"] = _parts_of(found[-1][1])

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._asked(EXCHANGE, json.dumps(request)))
        return answer

    def _asked(self, exchange: str, body: str) -> str:
        self._number += 1
        number = str(self._number)
        message = amqp.Message(body, reply_to=self._queue, correlation_id=number)
        self._channel.basic_publish(message, exchange=exchange, routing_key="")
        deadline = time.monotonic() + self._left_s()
        while number not in self._answers:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no answer to {body:.80} in time")
            self._channel.connection.drain_events(timeout=left)
        return self._answers.pop(number)

    def _came(self, message: Any) -> None:
        body = message.body
        self._answers[message.correlation_id] = body.decode() if isinstance(body, bytes) else body


def _in_doubt(octets: bytes) -> list[tuple[int, Xid]]:
    """The list of recover-ok: state, format id, and two ids with their lengths, for each branch."""
    found = []
    at = 0
    while at < len(octets):
        state, format_id = octets[at], int.from_bytes(octets[at + 1 : at + 5], "big")
        at += 5
        ids = []
        for _ in range(2):
            end = at + 1 + octets[at]
            ids.append(octets[at + 1 : end])
            at = end
        found.append((state, Xid(format_id, *ids)))
    return found


def _octets_of(xid: Xid) -> bytes:
    format_id, global_id, branch_id = xid
    lengths = bytes((len(global_id),)), bytes((len(branch_id),))
    return format_id.to_bytes(4, "big") + lengths[0] + global_id + lengths[1] + branch_id


def _parts_of(xid: Xid) -> dict[str, Any]:
    return {
        "format_id": xid.format_id,
        "global_id": quote_from_bytes(xid.global_id, ""),
        "branch_id": quote_from_bytes(xid.branch_id, ""),
    }


def _xid_of(parts: dict[str, Any]) -> Xid:
    return Xid(parts["format_id"], unquote_to_bytes(parts["global_id"]), unquote_to_bytes(parts["branch_id"]))
