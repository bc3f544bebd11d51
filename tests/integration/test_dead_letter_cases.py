"""Dead letters and limits as RabbitMQ has them: a table of cases, asked of Understudy and, if one is named, of a RabbitMQ.

Run against both, a RabbitMQ of one's own listening on that address:

    RABBITMQ_ADDRESS=127.0.0.1:5672 python -m pytest tests/integration/test_dead_letter_cases.py

RabbitMQ 3.10 has been asked. Where 4.3 documents another value than 3.10 has, the value of 4.3 is the row's, and ``older`` has the
other one. Where Understudy differs on purpose, ``docs/amqp.md`` says so, and the row has ``ours``.

A case has queues (``w`` is where messages die, ``d`` where dead letters go), steps, and what lies in all of its queues at the end.
A message is written as its body; what a case shows beside, of :data:`SHOWN`, follows in brackets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import pika
import pika.exceptions
import pytest

from tests.integration.broker_process import wait_until
from tests.integration.rabbitmq_peer import PEERS, address_of, connect

pytestmark = pytest.mark.integration

TTL_MS: Final = 60
HELD_MS: Final = 1_000
"""So soon after the publish at the latest a message is in the hands of its consumer."""
LONG_MS: Final = 600_000
QUIET_S: Final = 0.25
"""Messages that must not come would have come by then."""
DLX, RK = "x-dead-letter-exchange", "x-dead-letter-routing-key"
TTL, LENGTH, BYTES, OVERFLOW = "x-message-ttl", "x-max-length", "x-max-length-bytes", "x-overflow"


class Bench:
    """One case at one broker: its names are its own, and are deleted afterwards."""

    def __init__(self, connection: Any, prefix: str) -> None:
        self.connection = connection
        self.channel = connection.channel()
        self.prefix = prefix
        self.refused: list[str] = []
        self._tags: list[int] = []

    def name(self, short: str) -> str:
        """The name at the broker; "" and what begins with ``amq.`` stay."""
        return short if short in ("", "nowhere") or short.startswith("amq.") else f"{self.prefix}.{short}"

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        named = {DLX, RK, "alternate-exchange"}
        return {key: self.name(value) if key in named else value for key, value in given.items()}

    def declare(self, queue: str, given: Mapping[str, Any]) -> None:
        self.channel.queue_delete(self.name(queue))
        self.channel.queue_declare(self.name(queue), durable=True, arguments=self.arguments(given))

    def count(self, queue: str) -> int:
        return int(self.connection_channel().queue_declare(self.name(queue), passive=True).method.message_count)

    def connection_channel(self) -> Any:
        """The channel of the case; a new one if the broker has closed it."""
        if not self.channel.is_open:
            self.channel = self.connection.channel()
        return self.channel

    # -- steps ----------------------------------------------------------------------------------------------------------

    def exchange(self, exchange: str, kind: str, **arguments: str) -> None:
        given = self.arguments({key.replace("_", "-"): value for key, value in arguments.items()})
        self.channel.exchange_declare(self.name(exchange), kind, durable=True, arguments=given)

    def bind(self, queue: str, exchange: str, key: str = "", arguments: dict[str, Any] | None = None) -> None:
        self.channel.queue_bind(self.name(queue), self.name(exchange), key, arguments)

    def publish(self, key: str, *bodies: str, exchange: str = "", **properties: Any) -> None:
        headers = properties.get("headers")
        if headers:
            properties["headers"] = {
                name: [self.name(each) for each in value] if name in ("CC", "BCC") else value
                for name, value in headers.items()
            }
        about = pika.BasicProperties(**{"delivery_mode": 2, **properties})
        routing_key = key if exchange else self.name(key)
        for body in bodies:
            try:
                self.channel.basic_publish(self.name(exchange), routing_key, body.encode(), about)
            except pika.exceptions.NackError:
                self.refused.append(body)

    def confirms(self) -> None:
        self.channel.confirm_delivery()

    def transaction(self) -> None:
        self.channel.tx_select()

    def commit(self) -> None:
        try:
            self.channel.tx_commit()
        except pika.exceptions.ChannelClosedByBroker as error:
            self.refused.append(str(error.reply_code))

    def rollback(self) -> None:
        self.channel.tx_rollback()

    def close(self) -> None:
        """Close the channel: what is held goes back."""
        self.channel.close()

    def hold(self, queue: str, count: int = 1) -> None:
        """Get messages, and neither acknowledge nor return them yet."""

        def got() -> bool:
            method = self.channel.basic_get(self.name(queue))[0]
            if method is not None:
                self._tags.append(method.delivery_tag)
            return method is not None

        for _ in range(count):
            wait_until("a message is there", got, 20, every_s=0.01)

    def reject(self, queue: str = "", *, requeue: bool = False) -> None:
        """Reject what is held; of ``queue``, what is got first."""
        if queue:
            self.hold(queue)
        for tag in self._given():
            self.channel.basic_reject(tag, requeue=requeue)

    def nack(self, *, multiple: bool = False, requeue: bool = False) -> None:
        tags = self._given()
        for tag in tags[-1:] if multiple else tags:
            self.channel.basic_nack(tag, multiple=multiple, requeue=requeue)

    def acknowledge(self) -> None:
        for tag in self._given():
            self.channel.basic_ack(tag)

    def reject_last(self) -> None:
        """Reject the last of what is held."""
        self.channel.basic_reject(self._tags.pop(), requeue=False)

    def _given(self) -> list[int]:
        tags, self._tags = self._tags, []
        return tags

    def purge(self, queue: str) -> None:
        self.channel.queue_purge(self.name(queue))

    def delete(self, queue: str) -> None:
        self.channel.queue_delete(self.name(queue))
        self.channel.queue_declare(self.name(queue), durable=True)

    def unbind(self, queue: str, exchange: str, key: str = "") -> None:
        self.channel.queue_unbind(self.name(queue), self.name(exchange), key)

    def wait(self, queue: str, count: int) -> None:
        """Until so many messages are ready in it."""
        wait_until(f"{queue} has {count}", lambda: self.count(queue) == count, 20, every_s=0.01)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    # -- the end --------------------------------------------------------------------------------------------------------

    def found(self, queue: str, shown: Sequence[str]) -> list[str]:
        texts = []
        while (got := self.connection_channel().basic_get(self.name(queue), auto_ack=True))[0] is not None:
            texts.append(self._text(got, shown))
        return texts

    def _text(self, got: tuple[Any, Any, bytes], shown: Sequence[str]) -> str:
        method, properties, body = got
        said = [SHOWN[name](method, properties) for name in shown]
        text = body.decode() if len(body) < 20 else f"{len(body)} octets"
        return (f"{text} [{'; '.join(said)}]" if said else text).replace(self.prefix + ".", "")


Step = Callable[[Bench], None]


def _deaths(_: Any, properties: Any) -> str:
    """Reason, queue and count of each, the latest first."""
    deaths = (properties.headers or {}).get("x-death") or []
    return ", ".join(f"{each['reason']} {each['queue']} {each.get('count')}" for each in deaths)


def _from(_: Any, properties: Any) -> str:
    """Exchange, keys and expiration in the tables of the deaths."""
    deaths = (properties.headers or {}).get("x-death") or []
    return ", ".join(
        f"{each['exchange']}<{'+'.join(each['routing-keys'])}>{each.get('original-expiration', '')}" for each in deaths
    )


def _ends(end: str) -> Callable[[Any, Any], str]:
    def ends(_: Any, properties: Any) -> str:
        headers = properties.headers or {}
        return " ".join(str(headers.get(f"x-{end}-death-{field}", "-")) for field in ("reason", "queue", "exchange"))

    return ends


def _own(_: Any, properties: Any) -> str:
    """Headers that are not about deaths."""
    headers = properties.headers or {}
    return ", ".join(f"{key}={value}" for key, value in sorted(headers.items()) if "-death" not in key)


def _kept(_: Any, properties: Any) -> str:
    names = (
        "content_type",
        "delivery_mode",
        "priority",
        "correlation_id",
        "reply_to",
        "message_id",
        "timestamp",
        "type",
        "app_id",
    )
    return ", ".join(f"{getattr(properties, name)}" for name in names)


def _age(_: Any, properties: Any) -> str:
    """Fresh if the first death is of the last minute, by the clock of this host."""
    died = properties.headers["x-death"][0]["time"].timestamp()
    return "fresh" if abs(time.time() - died) < 60 else f"at {died}"


SHOWN: Final[dict[str, Callable[[Any, Any], str]]] = {
    "deaths": _deaths,
    "from": _from,
    "first": _ends("first"),
    "last": _ends("last"),
    "own": _own,
    "kept": _kept,
    "age": _age,
    "key": lambda method, _: f"{method.exchange}/{method.routing_key}",
    "expiration": lambda _, properties: str(properties.expiration),
    "redelivered": lambda method, _: str(method.redelivered),
}


@attrs.frozen(kw_only=True)
class Case:
    """A row.

    Attributes:
        queues: with their arguments; names of exchanges and queues in them are the case's own.
        finds: what lies in each queue at the end; a queue that is not named is empty.
        show: of each message.
        refused: bodies that were nacked, and reply codes of commits.
        quiet: something might come that must not.
        older: ``finds`` of RabbitMQ 3.10.
        ours: ``finds`` and ``refused`` of Understudy, where it differs on purpose.
    """

    name: str
    queues: Mapping[str, Mapping[str, Any]]
    steps: Sequence[Step]
    finds: Mapping[str, Sequence[str]]
    show: Sequence[str] = ("deaths",)
    refused: Sequence[str] = ()
    quiet: bool = False
    older: Mapping[str, Sequence[str]] | None = None
    ours: tuple[Mapping[str, Sequence[str]], Sequence[str]] | None = None

    def expected(self, peer: str) -> tuple[dict[str, list[str]], list[str]]:
        finds, refused = self.finds, self.refused
        if peer == "understudy" and self.ours is not None:
            finds, refused = self.ours
        elif peer != "understudy" and self.older is not None:
            finds = self.older
        return {queue: list(finds.get(queue, ())) for queue in self.queues}, list(refused)


def step(method: Callable[..., None]) -> Callable[..., Step]:
    """The method of :class:`Bench`, as a step with these arguments."""

    def with_arguments(*args: Any, **kwargs: Any) -> Step:
        return lambda bench: method(bench, *args, **kwargs)

    return with_arguments


publish, exchange, bind, unbind = step(Bench.publish), step(Bench.exchange), step(Bench.bind), step(Bench.unbind)
hold, reject, nack, acknowledge = step(Bench.hold), step(Bench.reject), step(Bench.nack), step(Bench.acknowledge)
reject_last, purge, delete, wait = step(Bench.reject_last), step(Bench.purge), step(Bench.delete), step(Bench.wait)
confirms, transaction, commit = step(Bench.confirms)(), step(Bench.transaction)(), step(Bench.commit)()
rollback, close, sleep = step(Bench.rollback)(), step(Bench.close)(), step(Bench.sleep)
TO_D: Final = {DLX: "", RK: "d"}
D: Final[dict[str, Any]] = {"d": {}}


def work(**arguments: Any) -> dict[str, dict[str, Any]]:
    """``w`` with dead letters to ``d``, and these arguments: ``x_max_length=1``."""
    return {"w": {**TO_D, **{key.replace("_", "-"): value for key, value in arguments.items()}}, **D}


EVENTS = [
    Case(name="reject", queues=work(), steps=[publish("w", "a"), reject("w")], finds={"d": ["a [rejected w 1]"]}),
    Case(name="nack", queues=work(), steps=[publish("w", "a"), hold("w"), nack()], finds={"d": ["a [rejected w 1]"]}),
    Case(
        name="nack-of-several",
        queues=work(),
        steps=[publish("w", "a", "b", "c"), hold("w", 2), nack(multiple=True)],
        finds={"w": ["c []"], "d": ["a [rejected w 1]", "b [rejected w 1]"]},
    ),
    Case(
        name="rejected-in-the-order-of-the-rejections",
        queues=work(),
        steps=[publish("w", "a", "b"), hold("w", 2), reject_last(), reject()],
        finds={"d": ["b [rejected w 1]", "a [rejected w 1]"]},
    ),
    Case(name="requeue", queues=work(), steps=[publish("w", "a"), reject("w", requeue=True)], finds={"w": ["a []"]}, quiet=True),
    Case(
        name="nack-with-requeue",
        queues=work(),
        steps=[publish("w", "a"), hold("w"), nack(requeue=True)],
        finds={"w": ["a []"]},
        quiet=True,
    ),
    Case(name="acknowledge", queues=work(), steps=[publish("w", "a"), hold("w"), acknowledge()], finds={}, quiet=True),
    Case(name="purge", queues=work(), steps=[publish("w", "a"), wait("w", 1), purge("w")], finds={}, quiet=True),
    Case(name="deletion", queues=work(), steps=[publish("w", "a"), wait("w", 1), delete("w")], finds={}, quiet=True),
    Case(name="a-dead-letter-is-new-there", queues=work(), steps=[publish("w", "a"), reject("w")], finds={"d": ["a [False]"]},
         show=["redelivered"]),
    Case(
        name="without-an-exchange-a-rejection-drops", queues={"w": {}, **D}, steps=[publish("w", "a"), reject("w")], finds={},
        quiet=True,
    ),
]  # fmt: skip
TIMES = [
    Case(name="time-of-the-queue", queues=work(x_message_ttl=TTL_MS), steps=[publish("w", "a")], finds={"d": ["a [expired w 1]"]}),
    Case(
        name="time-of-the-message",
        queues=work(),
        steps=[publish("w", "a", expiration=str(TTL_MS))],
        finds={"d": ["a [expired w 1; None; <w>60]"]},
        show=["deaths", "expiration", "from"],
    ),
    Case(
        name="the-shorter-is-the-queues",
        queues=work(x_message_ttl=TTL_MS),
        steps=[publish("w", "a", expiration=str(LONG_MS))],
        finds={"d": [f"a [None; <w>{LONG_MS}]"]},
        show=["expiration", "from"],
    ),
    Case(
        name="the-shorter-is-the-messages",
        queues=work(x_message_ttl=LONG_MS),
        steps=[publish("w", "a", expiration=str(TTL_MS))],
        finds={"d": ["a [None; <w>60]"]},
        show=["expiration", "from"],
    ),
    Case(name="no-time-of-the-queue", queues=work(x_message_ttl=0), steps=[publish("w", "a")], finds={"d": ["a [expired w 1]"]}),
    Case(
        name="no-time-of-the-message", queues=work(), steps=[publish("w", "a", expiration="0")], finds={"d": ["a [expired w 1]"]}
    ),
    Case(
        name="behind-one-that-lives-longer",
        queues=work(),
        steps=[publish("w", "a", expiration=str(LONG_MS)), publish("w", "b", expiration=str(TTL_MS)), sleep(3 * TTL_MS / 1_000),
               wait("w", 2), purge("w")],
        finds={},
        quiet=True,
    ),
    Case(
        name="when-the-one-before-has-gone",
        queues=work(),
        steps=[
            publish("w", "a", expiration=str(LONG_MS)), publish("w", "b", expiration=str(TTL_MS)),
            sleep(2 * TTL_MS / 1_000), hold("w"), acknowledge(),
        ],
        finds={"d": ["b [expired w 1]"]},
    ),
    Case(
        name="no-expiry-in-the-hands-of-a-consumer",
        queues=work(x_message_ttl=HELD_MS),
        steps=[publish("w", "a"), hold("w"), sleep(1.3 * HELD_MS / 1_000), acknowledge()],
        finds={},
        quiet=True,
    ),
    Case(
        name="expired-when-given-back",
        queues=work(x_message_ttl=HELD_MS),
        steps=[publish("w", "a"), hold("w"), sleep(1.3 * HELD_MS / 1_000), reject(requeue=True)],
        finds={"d": ["a [expired w 1]"]},
    ),
    Case(
        name="without-an-exchange-expiry-drops", queues={"w": {TTL: TTL_MS}, **D}, steps=[publish("w", "a")], finds={}, quiet=True
    ),
    Case(
        name="the-time-does-not-go-along",
        queues={"w": {**TO_D}, "d": {}},
        steps=[publish("w", "a", expiration=str(TTL_MS)), wait("d", 1), sleep(2 * TTL_MS / 1_000)],
        finds={"d": ["a [expired w 1]"]},
        quiet=True,
    ),
    Case(
        name="the-time-of-the-next-queue",
        queues={"w": {DLX: "", RK: "e"}, "e": {TTL: TTL_MS, **TO_D}, **D},
        steps=[publish("w", "a", expiration=str(TTL_MS))],
        finds={"d": ["a [expired e 1, expired w 1; <e>, <w>60]"]},
        show=["deaths", "from"],
    ),
]  # fmt: skip
LIMITS = [
    Case(
        name="the-oldest-leave",
        queues=work(x_max_length=2),
        steps=[publish("w", "a", "b", "c", "d")],
        finds={"w": ["c []", "d []"], "d": ["a [maxlen w 1]", "b [maxlen w 1]"]},
    ),
    Case(
        name="too-many-bytes",
        queues=work(x_max_length_bytes=100),
        steps=[publish("w", "x" * 40, "y" * 50, "z" * 60)],
        finds={"w": ["60 octets []"], "d": ["40 octets [maxlen w 1]", "50 octets [maxlen w 1]"]},
    ),
    Case(
        name="one-that-is-too-large-alone",
        queues=work(x_max_length_bytes=100),
        steps=[publish("w", "a", "z" * 101)],
        finds={"d": ["a [maxlen w 1]", "101 octets [maxlen w 1]"]},
    ),
    Case(
        name="both-limits",
        queues=work(x_max_length=2, x_max_length_bytes=100),
        steps=[publish("w", "a", "b", "c", "z" * 99)],
        finds={"w": ["c []", "99 octets []"], "d": ["a [maxlen w 1]", "b [maxlen w 1]"]},
    ),
    Case(name="room-for-nothing", queues=work(x_max_length=0), steps=[publish("w", "a")], finds={"d": ["a [maxlen w 1]"]}),
    Case(
        name="without-an-exchange-the-oldest-are-dropped",
        queues={"w": {LENGTH: 1}, **D},
        steps=[publish("w", "a", "b")],
        finds={"w": ["b []"]},
        quiet=True,
    ),
    Case(
        name="drop-head-by-name",
        queues=work(x_max_length=1, x_overflow="drop-head"),
        steps=[publish("w", "a", "b")],
        finds={"w": ["b []"], "d": ["a [maxlen w 1]"]},
    ),
    Case(
        name="what-a-consumer-holds-does-not-count",
        queues=work(x_max_length=2),
        steps=[publish("w", "a", "b"), hold("w", 2), publish("w", "c", "d"), wait("w", 2), acknowledge()],
        finds={"w": ["c []", "d []"]},
        quiet=True,
    ),
    Case(
        name="what-comes-back-is-too-much",
        queues=work(x_max_length=1),
        steps=[publish("w", "a"), hold("w"), publish("w", "b"), wait("w", 1), reject(requeue=True)],
        finds={"w": ["b []"], "d": ["a [maxlen w 1]"]},
    ),
    Case(
        name="refused",
        queues=work(x_max_length=1, x_overflow="reject-publish"),
        steps=[confirms, publish("w", "a", "b")],
        finds={"w": ["a []"]},
        refused=["b"],
        quiet=True,
    ),
    Case(
        name="refused-for-bytes",
        queues=work(x_max_length_bytes=10, x_overflow="reject-publish"),
        steps=[confirms, publish("w", "123456", "1234567", "1234")],
        finds={"w": ["123456 []", "1234 []"]},
        refused=["1234567"],
    ),
    Case(
        name="refused-without-confirms",
        queues=work(x_max_length=1, x_overflow="reject-publish"),
        steps=[publish("w", "a", "b")],
        finds={"w": ["a []"]},
        quiet=True,
    ),
    Case(
        name="room-again",
        queues=work(x_max_length=1, x_overflow="reject-publish"),
        steps=[confirms, publish("w", "a", "b"), hold("w"), publish("w", "c"), acknowledge()],
        finds={"w": ["c []"]},
        refused=["b"],
        quiet=True,
    ),
    Case(
        name="refused-and-moved",
        queues=work(x_max_length=1, x_overflow="reject-publish-dlx"),
        steps=[confirms, publish("w", "a", "b", "c")],
        finds={"w": ["a []"], "d": ["b [maxlen w 1]", "c [maxlen w 1]"]},
        refused=["b", "c"],
    ),
    Case(
        name="refused-and-moved-without-confirms",
        queues=work(x_max_length=1, x_overflow="reject-publish-dlx"),
        steps=[publish("w", "a", "b")],
        finds={"w": ["a []"], "d": ["b [maxlen w 1]"]},
    ),
    Case(
        name="one-of-two-queues-refuses",
        queues={"w": {LENGTH: 1, OVERFLOW: "reject-publish"}, "d": {}},
        steps=[
            exchange("x", "fanout"), bind("w", "x"), bind("d", "x"), confirms, publish("k", "a", "b", exchange="x"),
        ],
        finds={"w": ["a"], "d": ["a", "b"]},
        show=[],
        refused=["b"],
    ),
    Case(
        name="a-limit-of-the-dead-letter-queue",
        queues={"w": TO_D, "d": {LENGTH: 1, DLX: "", RK: "e"}, "e": {}},
        steps=[publish("w", "a", "b"), reject("w"), reject("w")],
        finds={"d": ["b [rejected w 1]"], "e": ["a [maxlen d 1, rejected w 1]"]},
    ),
    Case(name="an-overflow-without-a-limit", queues=work(x_overflow="reject-publish"), steps=[confirms, publish("w", "a", "b")],
         finds={"w": ["a []", "b []"]}),
    Case(
        name="a-consumer-that-waits-gets-what-there-is-no-room-for",
        queues=work(x_max_length=1),
        steps=[publish("w", "a"), hold("w"), acknowledge(), publish("w", "b")],
        finds={"w": ["b []"]},
        quiet=True,
    ),
]  # fmt: skip
ROUTES = [
    Case(
        name="the-exchange-is-not-there", queues={"w": {DLX: "none"}, **D}, steps=[publish("w", "a"), reject("w")], finds={},
        quiet=True,
    ),
    Case(
        name="the-exchange-is-not-there-for-what-expires", queues={"w": {DLX: "none", TTL: TTL_MS}, **D}, steps=[publish("w", "a")],
        finds={}, quiet=True,
    ),
    Case(
        name="the-exchange-is-not-there-for-what-is-too-much", queues={"w": {DLX: "none", LENGTH: 1}, **D},
        steps=[publish("w", "a", "b")], finds={"w": ["b []"]}, quiet=True,
    ),
    Case(
        name="the-exchange-comes-later",
        queues={"w": {DLX: "x"}, **D},
        steps=[exchange("x", "fanout"), bind("d", "x"), publish("w", "a"), reject("w")],
        finds={"d": ["a [rejected w 1]"]},
    ),
    Case(
        name="no-queue-is-bound", queues={"w": {DLX: "x"}, **D}, steps=[exchange("x", "direct"), publish("w", "a"), reject("w")],
        finds={}, quiet=True,
    ),
    Case(
        name="the-queue-is-not-there", queues={"w": {DLX: "", RK: "nowhere"}, **D}, steps=[publish("w", "a"), reject("w")],
        finds={}, quiet=True,
    ),
    Case(
        name="several-queues",
        queues={"w": {DLX: "x"}, **D, "e": {}},
        steps=[exchange("x", "fanout"), bind("d", "x"), bind("e", "x"), publish("w", "a"), reject("w")],
        finds={"d": ["a [x/w]"], "e": ["a [x/w]"]},
        show=["key"],
    ),
    Case(
        name="its-own-key",
        queues={"w": {DLX: "x"}, **D},
        steps=[
            exchange("y", "topic"), bind("w", "y", "#"), exchange("x", "topic"), bind("d", "x", "a.*"),
            publish("a.b", "1", exchange="y"), publish("b.b", "2", exchange="y"), reject("w"), reject("w"),
        ],
        finds={"d": ["1 [x/a.b; y<a.b>; rejected w y]"]},
        show=["key", "from", "first"],
        quiet=True,
    ),
    Case(
        name="the-key-of-the-queue",
        queues={"w": {DLX: "x", RK: "k"}, **D},
        steps=[exchange("x", "direct"), lambda bench: bench.bind("d", "x", bench.name("k")), publish("w", "a"), reject("w")],
        finds={"d": ["a [x/k]"]},
        show=["key"],
    ),
    Case(
        name="an-empty-key-is-a-key",
        queues={"w": {DLX: "x", RK: ""}, **D},
        steps=[exchange("x", "direct"), bind("d", "x", ""), publish("w", "a"), reject("w")],
        finds={"d": ["a [x/]"]},
        show=["key"],
    ),
    Case(
        name="by-headers",
        queues={"w": {DLX: "x"}, **D, "e": {}},
        steps=[
            exchange("x", "headers"), bind("d", "x", "", {"n": 1, "x-match": "all"}), bind("e", "x", "", {"n": 2}),
            publish("w", "a", headers={"n": 1}), reject("w"),
        ],
        finds={"d": ["a [n=1]"]},
        show=["own"],
    ),
    Case(
        name="an-alternate-exchange-of-the-dead-letter-exchange",
        queues={"w": {DLX: "x"}, **D},
        steps=[
            exchange("y", "fanout"), bind("d", "y"), exchange("x", "direct", alternate_exchange="y"),
            publish("w", "a"), reject("w"),
        ],
        finds={"d": ["a [rejected w 1; x/w]"]},
        show=["deaths", "key"],
    ),
    Case(
        name="by-an-alternate-exchange-into-the-queue",
        queues=work(),
        steps=[
            exchange("y", "fanout"), bind("w", "y"), exchange("x", "direct", alternate_exchange="y"),
            publish("k", "a", exchange="x"), reject("w"),
        ],
        finds={"d": ["a [x<k>; rejected w x]"]},
        show=["from", "first"],
    ),
    Case(
        name="copies-go-along",
        queues={"w": {DLX: "x"}, **D, "e": {}},
        steps=[
            exchange("x", "direct"), lambda bench: bench.bind("d", "x", bench.name("w")),
            lambda bench: bench.bind("e", "x", bench.name("c")), publish("w", "a", headers={"CC": ["c"]}), reject("w"),
        ],
        finds={"d": ["a [<w+c>; CC=['c']]"], "e": ["a [<w+c>; CC=['c']]"]},
        show=["from", "own"],
    ),
    Case(
        name="copies-end-with-a-key-of-the-queue",
        queues=work(),
        steps=[publish("w", "a", headers={"CC": ["c"], "n": 1}), reject("w")],
        finds={"d": ["a [<w+c>; n=1]"]},
        show=["from", "own"],
    ),
    Case(
        name="hidden-copies",
        queues={"w": {DLX: "x"}, **D, "e": {}},
        steps=[
            exchange("x", "direct"), lambda bench: bench.bind("d", "x", bench.name("w")),
            lambda bench: bench.bind("e", "x", bench.name("c")), publish("w", "a", headers={"BCC": ["c"]}), reject("w"),
        ],
        finds={"d": ["a [<w>; ]"], "e": ["a [<w>; ]"]},
        show=["from", "own"],
        ours=({"d": ["a [<w>; ]"]}, []),
    ),
    Case(
        name="into-a-queue-that-refuses",
        queues={"w": TO_D, "d": {LENGTH: 1, OVERFLOW: "reject-publish"}},
        steps=[publish("w", "a", "b"), reject("w"), wait("d", 1), reject("w")],
        finds={"d": ["a"]},
        show=[],
        quiet=True,
        ours=({"d": ["a", "b"]}, []),
    ),
    Case(
        name="each-queue-of-a-fanout-has-its-deaths",
        queues={"w": TO_D, "v": TO_D, **D},
        steps=[
            exchange("x", "fanout"), bind("w", "x"), bind("v", "x"), publish("k", "a", exchange="x"), reject("w"), wait("d", 1),
            reject("v"),
        ],
        finds={"d": ["a [rejected w 1]", "a [rejected v 1]"]},
    ),
    Case(
        name="the-strategy-changes-nothing",
        queues=work(x_dead_letter_strategy="at-most-once", x_queue_type="quorum"),
        steps=[publish("w", "a"), reject("w")],
        finds={"d": ["a [rejected w 1]"]},
    ),
]  # fmt: skip
AGAIN = [publish("w", "a"), reject("w"), wait("w", 1), reject("w"), wait("w", 1)]
RETRY = {"w": {DLX: "", RK: "r"}, "r": {TTL: TTL_MS, DLX: "", RK: "w"}, **D}
MINE = {"queue": "o", "reason": "rejected", "count": 7, "exchange": "", "routing-keys": []}
HEADERS = [
    Case(
        name="of-the-first-death",
        queues=work(),
        steps=[publish("w", "a"), reject("w")],
        finds={"d": ["a [<w>; rejected w ; rejected w ; fresh]"]},
        show=["from", "first", "last", "age"],
        older={"d": ["a [<w>; rejected w ; - - -; fresh]"]},
    ),
    Case(
        name="first-and-last",
        queues={"w": {DLX: "", RK: "e"}, "e": {TTL: TTL_MS, **TO_D}, **D},
        steps=[publish("w", "a"), reject("w")],
        finds={"d": ["a [rejected w ; expired e ; expired e 1, rejected w 1]"]},
        show=["first", "last", "deaths"],
        older={"d": ["a [rejected w ; - - -; expired e 1, rejected w 1]"]},
    ),
    Case(
        name="three-queues",
        queues={"w": {DLX: "", RK: "e"}, "e": {DLX: "", RK: "f", LENGTH: 0}, "f": {TTL: TTL_MS, **TO_D}, **D},
        steps=[publish("w", "a"), reject("w")],
        finds={"d": ["a [expired f 1, maxlen e 1, rejected w 1; <f>, <e>, <w>]"]},
        show=["deaths", "from"],
        older={"d": ["a [expired f 1, rejected w 1, maxlen e 1; <f>, <w>, <e>]"]},
    ),
    Case(
        name="counts",
        queues=RETRY,
        steps=[*AGAIN, *AGAIN[3:]],
        finds={"w": ["a [expired r 3, rejected w 3]"]},
    ),
    Case(
        name="of-what-was-first",
        queues={"w": {DLX: "", RK: "r"}, "r": {TTL: TTL_MS, DLX: "x", RK: "k"}, **D},
        steps=[exchange("x", "fanout"), bind("w", "x"), *AGAIN],
        finds={"w": ["a [expired r 2, rejected w 2; <r>, <w>; rejected w ; expired r ]"]},
        show=["deaths", "from", "first", "last"],
        older={"w": ["a [expired r 2, rejected w 2; <r>, <w>; rejected w ; - - -]"]},
    ),
    Case(
        name="each-reason-has-its-count",
        queues={"w": {LENGTH: 1, **TO_D}, "d": {DLX: "", RK: "w"}},
        steps=[publish("w", "a"), reject("w"), wait("d", 1), reject("d"), wait("w", 1), publish("w", "b")],
        finds={"w": ["b []"], "d": ["a [maxlen w 1, rejected d 1, rejected w 1]"]},
        older={"w": ["b []"], "d": ["a [maxlen w 1, rejected w 1, rejected d 1]"]},
    ),
    Case(
        name="properties-stay",
        queues=work(),
        steps=[
            publish(
                "w", "a", content_type="t/p", priority=3, correlation_id="c", reply_to="r", message_id="m", timestamp=1, type="y",
                app_id="p",
            ),
            reject("w"),
        ],
        finds={"d": ["a [t/p, 2, 3, c, r, m, 1, y, p]"]},
        show=["kept"],
    ),
    Case(
        name="transient-stays-transient",
        queues=work(),
        steps=[publish("w", "a", delivery_mode=1), reject("w")],
        finds={"d": ["a [None, 1, None, None, None, None, None, None, None]"]},
        show=["kept"],
    ),
    Case(
        name="headers-stay",
        queues=work(),
        steps=[publish("w", "a", headers={"a": 1, "b": "text", "c": True, "d": [1, "x"]}), reject("w")],
        finds={"d": ["a [a=1, b=text, c=True, d=[1, 'x']]"]},
        show=["own"],
    ),
    Case(
        name="a-clients-own-x-death-counts-for-nothing",
        queues=work(),
        steps=[publish("w", "a", headers={"x-death": [{**MINE, "queue": "w"}]}), reject("w")],
        finds={"d": ["a [rejected w 1]"]},
        older={"d": ["a [rejected w 1, rejected w 7]"]},
    ),
    Case(
        name="a-clients-own-x-death-of-another-queue",
        queues=work(),
        steps=[publish("w", "a", headers={"x-death": [MINE]}), reject("w")],
        finds={"d": ["a [rejected w 1]"]},
        older={"d": ["a [rejected w 1, rejected o 7]"]},
    ),
    Case(
        name="a-clients-own-x-death-without-a-death",
        queues=work(),
        steps=[publish("w", "a", headers={"x-death": [MINE]})],
        finds={"w": ["a [rejected o 7]"]},
    ),
    Case(
        name="a-clients-own-first-death",
        queues=work(),
        steps=[publish("w", "a", headers={"x-first-death-reason": "mine"}), reject("w")],
        finds={"d": ["a [rejected w ]"]},
        show=["first"],
    ),
    Case(
        name="the-original-expiration-of-the-first-death",
        queues={"w": {DLX: "", RK: "e"}, "e": {DLX: "", RK: "d"}, **D},
        steps=[publish("w", "a", expiration=str(TTL_MS)), wait("e", 1), reject("e")],
        finds={"d": ["a [rejected e 1, expired w 1; <e>, <w>60]"]},
        show=["deaths", "from"],
    ),
    Case(
        name="a-rejection-takes-the-expiration-out-too",
        queues=work(),
        steps=[publish("w", "a", expiration=str(LONG_MS)), reject("w")],
        finds={"d": [f"a [None; <w>{LONG_MS}]"]},
        show=["expiration", "from"],
    ),
]  # fmt: skip
CYCLES = [
    Case(
        name="to-itself-by-expiry",
        queues={"w": {DLX: "", RK: "w", TTL: TTL_MS}, **D},
        steps=[publish("w", "a"), wait("w", 0)],
        finds={},
        quiet=True,
    ),
    Case(
        name="to-itself-without-a-key",
        queues={"w": {DLX: "", TTL: TTL_MS}, **D},
        steps=[publish("w", "a"), wait("w", 0)],
        finds={},
        quiet=True,
    ),
    Case(
        name="to-itself-by-length",
        queues={"w": {DLX: "", RK: "w", LENGTH: 1}, **D},
        steps=[publish("w", "a", "b")],
        finds={"w": ["b []"]},
        quiet=True,
    ),
    Case(
        name="to-itself-by-rejection",
        queues={"w": {DLX: "", RK: "w"}, **D},
        steps=[publish("w", "a"), reject("w")],
        finds={"w": ["a [rejected w 1]"]},
    ),
    Case(
        name="by-two-queues",
        queues={"w": {DLX: "", RK: "d", TTL: TTL_MS}, "d": {DLX: "", RK: "w", TTL: TTL_MS}},
        steps=[publish("w", "a"), sleep(4 * TTL_MS / 1_000)],
        finds={},
        quiet=True,
    ),
    Case(
        name="a-rejection-in-between",
        queues=RETRY,
        steps=[publish("w", "a"), reject("w"), wait("w", 1)],
        finds={"w": ["a [expired r 1, rejected w 1]"]},
    ),
    Case(
        name="a-rejection-before-the-cycle-does-not-count",
        queues={"w": {DLX: "", RK: "r"}, "r": {TTL: 200, DLX: "", RK: "s"}, "s": {LENGTH: 0, DLX: "", RK: "r"}, **D},
        steps=[publish("w", "a"), reject("w"), sleep(0.6)],
        finds={},
        show=[],
        quiet=True,
        older={"r": ["a"]},
    ),
    Case(
        name="one-target-alone-would-be-a-cycle",
        queues={"w": {DLX: "x", TTL: TTL_MS}, **D},
        steps=[exchange("x", "fanout"), bind("w", "x"), bind("d", "x"), publish("w", "a")],
        finds={"d": ["a [expired w 1]"]},
        quiet=True,
    ),
]  # fmt: skip
TRANSACTIONS = [
    Case(
        name="rejected-and-committed",
        queues=work(),
        steps=[publish("w", "a"), wait("w", 1), transaction, reject("w"), commit],
        finds={"d": ["a [rejected w 1; <w>; rejected w ]"]},
        show=["deaths", "from", "first"],
    ),
    Case(
        name="rejected-and-rolled-back",
        queues=work(),
        steps=[publish("w", "a"), wait("w", 1), transaction, reject("w"), rollback, close, wait("w", 1)],
        finds={"w": ["a []"]},
        quiet=True,
    ),
    Case(
        name="acknowledged-and-rejected-in-one",
        queues=work(),
        steps=[publish("w", "a", "b"), wait("w", 2), transaction, hold("w", 2), reject_last(), acknowledge(), commit],
        finds={"d": ["b [rejected w 1]"]},
        quiet=True,
    ),
    Case(
        name="too-much-in-one",
        queues=work(x_max_length=1),
        steps=[transaction, publish("w", "a", "b", "c"), commit],
        finds={"w": ["c []"], "d": ["a [maxlen w 1]", "b [maxlen w 1]"]},
    ),
    Case(
        name="too-much-and-rolled-back",
        queues=work(x_max_length=1),
        steps=[publish("w", "z"), wait("w", 1), transaction, publish("w", "a", "b"), rollback],
        finds={"w": ["z []"]},
        quiet=True,
    ),
    Case(
        name="expired-after-the-commit",
        queues=work(),
        steps=[transaction, publish("w", "a", expiration=str(TTL_MS)), commit],
        finds={"d": ["a [expired w 1]"]},
    ),
    Case(
        name="a-limit-with-room-for-a-transaction",
        queues=work(x_max_length=2, x_overflow="reject-publish"),
        steps=[transaction, publish("w", "a", "b"), commit],
        finds={"w": ["a []", "b []"]},
    ),
    Case(
        name="more-than-a-queue-takes-that-refuses",
        queues=work(x_max_length=1, x_overflow="reject-publish"),
        steps=[transaction, publish("w", "a", "b"), commit],
        finds={"w": ["a []"]},
        refused=["406"],
        quiet=True,
        ours=({}, ["506"]),
    ),
    Case(
        name="published-and-rejected-in-one",
        queues={**work(), "e": {}},
        steps=[publish("w", "a"), wait("w", 1), transaction, reject("w"), publish("e", "r"), commit],
        finds={"d": ["a"], "e": ["r"]},
        show=[],
    ),
]  # fmt: skip
TABLE: Final = {
    "events": EVENTS, "times": TIMES, "limits": LIMITS, "routes": ROUTES, "headers": HEADERS, "cycles": CYCLES,
    "transactions": TRANSACTIONS,
}  # fmt: skip
CASES: Final = [pytest.param(case, id=f"{room}-{case.name}") for room, cases in TABLE.items() for case in cases]


@pytest.fixture(scope="module", params=PEERS)
def peer(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any]]:
    """The name of the broker that is asked, and a connection to it."""
    connection = connect(*address_of(request))
    yield str(request.param), connection
    connection.close()


@pytest.fixture
def bench(peer: tuple[str, Any], request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(peer[1], f"cases.{request.node.callspec.id.partition('-')[2]}")
    yield made
    channel = made.connection_channel()
    for queue in "wdevrfs":
        channel.queue_delete(made.name(queue))
    for name in "xy":
        channel.exchange_delete(made.name(name))


@pytest.mark.parametrize("case", CASES)
def test_a_case(bench: Bench, peer: tuple[str, Any], case: Case) -> None:
    """After its steps each queue of the case holds what its row says."""
    for queue, arguments in case.queues.items():
        bench.declare(queue, arguments)
    for each in case.steps:
        each(bench)
    expected, refused = case.expected(peer[0])

    def counted() -> dict[str, int]:
        return {queue: bench.count(queue) for queue in expected}

    counts = {queue: len(texts) for queue, texts in expected.items()}
    try:
        wait_until("the messages are where they belong", lambda: counted() == counts, 5, every_s=0.01)
    except AssertionError:
        pytest.fail(f"{counted()}, not {counts}: { {queue: bench.found(queue, case.show) for queue in expected} }")
    if case.quiet:
        time.sleep(QUIET_S)
    assert {queue: bench.found(queue, case.show) for queue in expected} == expected
    assert bench.refused == refused


# -- declarations -----------------------------------------------------------------------------------------------------

QUORUM: Final = {"x-queue-type": "quorum", DLX: "a"}
STRATEGY, EXPIRES = "x-dead-letter-strategy", "x-expires"
DAY_MS: Final = 86_400_000
OK = ""
SAME: Final[list[tuple[dict[str, Any], dict[str, Any], str]]] = [
    ({LENGTH: 5}, {LENGTH: 5}, OK),
    ({LENGTH: 0}, {LENGTH: 0}, OK),
    ({LENGTH: 5, BYTES: 6}, {BYTES: 6, LENGTH: 5}, OK),
    ({LENGTH: 5}, {LENGTH: 6}, LENGTH),
    ({LENGTH: 5}, {LENGTH: 1 << 33}, LENGTH),
    ({LENGTH: 5}, {}, LENGTH),
    ({}, {LENGTH: 5}, LENGTH),
    ({LENGTH: 5}, {LENGTH: True}, LENGTH),
    ({LENGTH: 5}, {LENGTH: "5"}, LENGTH),
    ({BYTES: 5}, {BYTES: 6}, BYTES),
    ({LENGTH: 5}, {LENGTH: 5, OVERFLOW: "drop-head"}, OVERFLOW),
    ({OVERFLOW: "drop-head"}, {OVERFLOW: "reject-publish"}, OVERFLOW),
    ({DLX: ""}, {DLX: ""}, OK),
    ({DLX: "a"}, {DLX: b"a"}, OK),
    ({DLX: "a"}, {DLX: "b"}, DLX),
    ({DLX: "a"}, {}, DLX),
    ({DLX: "a", RK: "k"}, {DLX: "a", RK: "l"}, RK),
    ({DLX: "a", RK: "k"}, {DLX: "a"}, RK),
    ({DLX: "a"}, {DLX: "a", RK: "k"}, RK),
    ({TTL: 100}, {TTL: 200}, TTL),
    ({TTL: 100}, {}, TTL),
    ({EXPIRES: 100_000}, {EXPIRES: 100_001}, EXPIRES),
    ({**QUORUM, STRATEGY: "at-most-once"}, {**QUORUM, STRATEGY: "at-least-once"}, STRATEGY),
    ({LENGTH: 5, "note": 1}, {LENGTH: 5}, OK),
]
"""Arguments, those of a second declaration, and the argument that the refusal names."""
TAKEN: Final[list[tuple[dict[str, Any], str]]] = [
    ({LENGTH: (1 << 63) - 1}, OK),
    ({LENGTH: -1}, LENGTH),
    ({LENGTH: "5"}, LENGTH),
    ({LENGTH: True}, LENGTH),
    ({BYTES: -1}, BYTES),
    ({OVERFLOW: "drop-tail"}, OVERFLOW),
    ({OVERFLOW: 1}, OVERFLOW),
    ({RK: "k"}, RK),
    ({DLX: "a", RK: 1}, RK),
    ({DLX: 1}, DLX),
    ({TTL: -1}, TTL),
    ({TTL: "1"}, TTL),
    ({TTL: 3_650 * DAY_MS}, OK),
    ({TTL: 3_650 * DAY_MS + 1}, TTL),
    ({EXPIRES: 0}, EXPIRES),
    ({EXPIRES: 3_650 * DAY_MS}, OK),
    ({**QUORUM, STRATEGY: "at-once"}, STRATEGY),
]
"""Arguments of a first declaration, and the argument that the refusal names."""


def named(row: object) -> str:
    """A row, as the name of a test."""
    return str(row).replace(" ", "")


def refusal(channel: Any, queue: str, arguments: dict[str, Any]) -> tuple[int, str]:
    """Reply code and text of a declaration; (0, "") if it is taken."""
    try:
        channel.queue_declare(queue, durable=True, arguments=arguments)
    except pika.exceptions.ChannelClosedByBroker as error:
        return error.reply_code, error.reply_text
    return 0, ""


@pytest.mark.parametrize(("first", "second", "wrong"), SAME, ids=named)
def test_a_queue_is_declared_again(
    peer: tuple[str, Any], first: dict[str, Any], second: dict[str, Any], wrong: str
) -> None:
    channel = peer[1].channel()
    channel.queue_delete("cases.again")
    assert refusal(channel, "cases.again", first) == (0, "")
    code, text = refusal(channel, "cases.again", second)
    assert code == (406 if wrong else 0)
    about = f"PRECONDITION_FAILED - inequivalent arg '{wrong}' for queue 'cases.again' in vhost '/': received "
    assert text.startswith(about if wrong else ""), text
    peer[1].channel().queue_delete("cases.again")


@pytest.mark.parametrize(("arguments", "wrong"), TAKEN, ids=named)
def test_a_queue_is_declared(peer: tuple[str, Any], arguments: dict[str, Any], wrong: str) -> None:
    channel = peer[1].channel()
    channel.queue_delete("cases.taken")
    code, text = refusal(channel, "cases.taken", arguments)
    assert code == (406 if wrong else 0)
    assert f"'{wrong}' " in text or not wrong
    assert text.startswith("PRECONDITION_FAILED - invalid ") or not wrong
    peer[1].channel().queue_delete("cases.taken")
