"""Vandal: breaks the protocol in every way that the broker answers with a close, and looks at the code it gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulator import calls
from tests.simulator.ledger import Violation
from tests.simulator.sim_client import Closed, Lost, Program, SimClient
from tests.simulator.workloads.bank import ACCOUNTS
from tests.simulator.workloads.run import PERSISTENT, Run
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_CONSUME,
    BASIC_QOS,
    CHANNEL_CLOSE_OK,
    CHANNEL_FLOW,
    CHANNEL_FLOW_OK,
    CHANNEL_OPEN,
    CONFIRM_SELECT,
    CONNECTION_TUNE_OK,
    EXCHANGE_BIND,
    EXCHANGE_BIND_OK,
    EXCHANGE_DECLARE,
    EXCHANGE_DECLARE_OK,
    EXCHANGE_DELETE,
    QUEUE_BIND,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    QUEUE_DELETE,
    TX_COMMIT,
    TX_COMMIT_OK,
    TX_SELECT,
    encode_method,
)
from understudy.broker.amqp.properties import encode_properties

ACCOUNT = ACCOUNTS[0]
Wanted = tuple[bytes, int]


def _declare(
    name: str, *, passive: bool = False, durable: bool = True, arguments: dict[str, Any] | None = None
) -> bytes:
    return encode_method(1, QUEUE_DECLARE, name, passive, durable, False, False, False, arguments or {})


def _exchange(name: str, kind: str, *, passive: bool = False, arguments: dict[str, Any] | None = None) -> bytes:
    return encode_method(1, EXCHANGE_DECLARE, name, kind, passive, True, False, False, False, arguments or {})


BREACHES: dict[str, Wanted] = {
    "passive declare of nothing": (_declare("nothing", passive=True), 404),
    "declare otherwise": (_declare(ACCOUNT, durable=False), 406),
    "reserved queue": (_declare("understudy.mine"), 403),
    "unknown argument": (_declare("odd", arguments={"x-odd": 1}), 406),
    "bad ttl": (_declare("odd", arguments={"x-message-ttl": -1}), 406),
    "last queue of none": (encode_method(1, QUEUE_DELETE, "", False, False, False), 404),
    "passive exchange": (_exchange("nothing", "direct", passive=True), 404),
    "exchange otherwise": (_exchange("amq.direct", "fanout"), 406),
    "exchange of no type": (_exchange("odd", "odd"), 406),
    "reserved exchange": (_exchange("amq.mine", "direct"), 403),
    "exchange argument": (_exchange("odd", "direct", arguments={"x-delayed-type": "x"}), 406),
    "the default exchange": (_exchange("", "topic"), 403),
    "delete the default exchange": (encode_method(1, EXCHANGE_DELETE, "", False, False), 403),
    "exchange to itself": (encode_method(1, EXCHANGE_BIND, "amq.direct", "amq.direct", "", False, {}), 406),
    "bind to nothing": (encode_method(1, QUEUE_BIND, ACCOUNT, "nothing", "", False, {}), 404),
    "bind to the default": (encode_method(1, QUEUE_BIND, ACCOUNT, "", "", False, {}), 403),
    "bad x-match": (encode_method(1, QUEUE_BIND, ACCOUNT, "amq.headers", "", False, {"x-match": "some"}), 406),
    "unknown tag": (encode_method(1, BASIC_ACK, 77, False), 406),
    "unknown tags": (encode_method(1, BASIC_ACK, 77, True), 406),
    "prefetch size": (encode_method(1, BASIC_QOS, 10, 0, False), 540),
    "consume nothing": (encode_method(1, BASIC_CONSUME, "nothing", "", False, False, False, False, {}), 404),
    "consumer argument": (
        encode_method(1, BASIC_CONSUME, ACCOUNT, "", False, False, False, False, {"x-priority": ""}),
        406,
    ),
    "commit without select": (encode_method(1, TX_COMMIT), 406),
    "tx then confirm": (encode_method(1, TX_SELECT) + encode_method(1, CONFIRM_SELECT, False), 406),
    "confirm then tx": (encode_method(1, CONFIRM_SELECT, True) + encode_method(1, TX_SELECT), 406),
    "open twice": (encode_method(1, CHANNEL_OPEN), 504),
    "channel not open": (encode_method(9, QUEUE_DELETE, ACCOUNT, False, False, False), 504),
    "channel too high": (encode_method(3000, CHANNEL_OPEN), 530),
    "close-ok to nothing": (encode_method(1, CHANNEL_CLOSE_OK), 503),
    "tune again": (encode_method(0, CONNECTION_TUNE_OK, 0, 0, 0), 503),
    "not a method": (b"\x01\x00\x01\x00\x00\x00\x04\x00\x63\x00\x63\xce", 503),
    "garbage": (b"\xff" * 16, 501),
}


class Vandal:
    """One breach a connection; then it looks whether everybody else's queue is still there."""

    def __init__(self, client: SimClient, run: Run) -> None:
        self.client = client
        self.run = run
        self._calls: tuple[Callable[[], Program], ...] = (self._publish, self._second_tag, self._in_tx, self._flow)

    def program(self) -> Program:
        client, rng = self.client, self.client.rng
        breaches = sorted(BREACHES)
        while not self.run.enough():
            try:
                yield from client.connect()
                if rng.random() < 0.7:
                    name = rng.choice(breaches)
                    yield from self._expect(name, *BREACHES[name])
                else:
                    yield from rng.choice(self._calls)()
                client.disconnect("done")
            except (Lost, Closed) as end:
                if not (isinstance(end, Closed) and "was idle for" in end.text):
                    self._judge("what the protocol allows", end, 320)
                client.disconnect("again")
            yield from client.pause(20, 150)

    def _judge(self, name: str, end: Lost | Closed, *codes: int) -> None:
        if isinstance(end, Closed) and end.code not in (*codes, 320):
            raise Violation("protocol", f"{name}: {self.client.name} was closed with {end}, expected {codes}")

    def _expect(self, name: str, frames: bytes, *codes: int) -> Program:
        try:
            yield from self.client.call(frames, QUEUE_DECLARE_OK, EXCHANGE_DECLARE_OK, EXCHANGE_BIND_OK)
        except Closed as closed:
            self._judge(name, closed, *codes)
            self.run.did("breaches closed", closed.code in codes)
        else:
            raise Violation("protocol", f"{name} was accepted")

    def _publish(self) -> Program:
        """Publishes that close the channel, or the connection."""
        client = self.client
        exchange, properties, code = client.rng.choice(
            (
                ("nothing", PERSISTENT, 404),
                ("", encode_properties(expiration="soon"), 406),
                ("", encode_properties(user_id="somebody"), 406),
                ("understudy.tx", PERSISTENT, 406),
                ("understudy.tx", encode_properties(reply_to="x"), 406),
            )
        )
        client.publish(exchange, ACCOUNT, properties, b"what is this")
        yield from self._expect(f"publish to {exchange!r}", b"", code)

    def _second_tag(self) -> Program:
        client = self.client
        queue = f"vandal-{client.name}-{client.rng.randrange(1 << 30)}"
        yield from calls.declare(client, queue, exclusive=True, durable=False)
        if client.rng.random() < 0.5:
            yield from calls.consume(client, queue, "c")
            again = encode_method(1, BASIC_CONSUME, queue, "c", False, False, False, False, {})
            yield from self._expect("a consumer tag in use", again, 530)
        else:
            yield from calls.consume(client, queue, "c", exclusive=True)
            again = encode_method(1, BASIC_CONSUME, queue, "d", False, False, False, False, {})
            yield from self._expect("an exclusive consumer", again, 403)

    def _in_tx(self) -> Program:
        """A name that is none; a second name; anything while a commit is pending. New work may be refused just then (506)."""
        client = self.client
        yield from calls.tx_select(client)
        choice = client.rng.randrange(3)
        name = f"{client.name}-{client.rng.randrange(1 << 30)}"
        named = encode_properties(delivery_mode=2, headers={"x-understudy-tx": name})
        if choice == 0:
            bad = encode_properties(headers={"x-understudy-tx": "1.2"})
            client.publish("", "nowhere", bad, b"")
            yield from self._expect("a name like an own id", b"", 406, 506)
            return
        client.publish("", "nowhere", named, b"")
        if choice == 1:
            other = encode_properties(headers={"x-understudy-tx": name + "x"})
            client.publish("", "nowhere", other, b"")
            yield from self._expect("a second name", b"", 406, 506)
            return
        try:
            queue, _, _ = yield from calls.declare(client, "", exclusive=True, durable=False)
            client.publish("", queue, named, b"into a queue that nobody logs")
            two = encode_method(1, TX_COMMIT) + _declare(ACCOUNT, passive=True)
            yield from client.call(two, TX_COMMIT_OK)
        except Closed as closed:
            self._judge("a method while tx.commit is pending", closed, 406, 506)

    def _flow(self) -> Program:
        """Stop and resume deliveries; close channels and open them again."""
        client = self.client
        yield from client.call(encode_method(1, CHANNEL_FLOW, False), CHANNEL_FLOW_OK)
        yield from calls.declare(client, ACCOUNT, passive=True)
        yield from client.call(encode_method(1, CHANNEL_FLOW, True), CHANNEL_FLOW_OK)
