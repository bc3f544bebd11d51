"""Exchanges that are bound to exchanges: where messages go, what is refused, what goes with what, and who can read it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.core.core_kit import FRAME_MAX, PERSISTENT, Core
from tests.unit.core.life.recovery_kit import KeptCore, recovered
from understudy.broker.amqp.encode import publish_frames
from understudy.broker.amqp.methods import (
    BASIC_GET,
    BASIC_REJECT,
    EXCHANGE_BIND,
    EXCHANGE_DECLARE,
    EXCHANGE_DELETE,
    EXCHANGE_UNBIND,
    QUEUE_BIND,
    QUEUE_DECLARE,
    QUEUE_DELETE,
    QUEUE_UNBIND,
    TX_COMMIT,
    TX_ROLLBACK,
    TX_SELECT,
    encode_method,
)
from understudy.broker.amqp.properties import encode_properties
from understudy.broker.core.life.meta import Meta
from understudy.broker.core.state import BrokerState
from understudy.broker.core.topology.exchanges import ExchangeBinding
from understudy.broker.errors import AccessRefusedError
from understudy.broker.log import frame, record
from understudy.broker.log.exchange_bind_record import decode_exchange_bind, encode_exchange_bind
from understudy.testing.coordinator_kit.kit_client import AnyUser

EMPTY = bytes(4)


class Shop:
    """A client of one broker; each call is answered before it returns."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.client = core.client()

    def call(self, key: int, *args: Any) -> list[str]:
        self.client.method(key, *args)
        self.core.sync()
        return self.client.heard()

    def exchange(
        self,
        name: str,
        kind: str = "fanout",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        **arguments: Any,
    ) -> None:
        given = {key.replace("_", "-"): value for key, value in arguments.items()}
        answers = self.call(EXCHANGE_DECLARE, name, kind, False, durable, auto_delete, internal, False, given)
        assert answers == ["exchange.declare-ok"]

    def queue(self, name: str, exchange: str = "", key: str = "") -> None:
        self.core.queue(self.client, name)
        if exchange:
            assert self.call(QUEUE_BIND, name, exchange, key, False, {}) == ["queue.bind-ok"]

    def bind(self, destination: str, source: str, key: str = "", arguments: dict[str, Any] | None = None) -> None:
        assert self.call(EXCHANGE_BIND, destination, source, key, False, arguments or {}) == ["exchange.bind-ok"]

    def unbind(self, destination: str, source: str, key: str = "", arguments: dict[str, Any] | None = None) -> None:
        assert self.call(EXCHANGE_UNBIND, destination, source, key, False, arguments or {}) == ["exchange.unbind-ok"]

    def publish(self, exchange: str, key: str = "", **headers: Any) -> list[str]:
        """Publish a mandatory message; return the queues that have it now, with how many, and empty them."""
        properties = encode_properties(delivery_mode=2, headers=headers) if headers else PERSISTENT
        self.client.send(publish_frames(1, exchange, key, properties, b"x", FRAME_MAX, mandatory=True))
        self.core.sync()
        said = self.client.heard()
        return said or self.taken()

    def taken(self) -> list[str]:
        found = []
        for queue in self.core.node.state.topology.registry.queues():
            found += [queue.name] * queue.depth
            for _ in range(queue.depth):
                assert self.call(BASIC_GET, queue.name, True) == ["basic.get-ok"]
        return sorted(found)

    def refused(self, key: int, *args: Any) -> tuple[int, str]:
        """Code and text with which a channel of its own is closed."""
        client = self.core.client()
        client.method(key, *args)
        self.core.sync()
        (event,) = client.events()
        return int(event[2][0]), str(event[2][1])

    def exchanges(self) -> set[str]:
        return {
            name for name in self.core.node.state.topology.registry.vhost("/").exchanges if name and "amq." not in name
        }


@pytest.fixture
def shop() -> Shop:
    return Shop(Core())


def chain(shop: Shop, **kind: Any) -> None:
    """Three exchanges, e0 to e2, each with the queue of its number."""
    for number in range(3):
        shop.exchange(f"e{number}", **kind)
        shop.queue(f"q{number}", f"e{number}")


def test_a_chain_grows_and_shrinks(shop: Shop) -> None:
    chain(shop)
    assert shop.publish("e2") == ["q2"]
    shop.bind("e1", "e2")
    assert shop.publish("e2") == ["q1", "q2"]
    shop.bind("e0", "e1")
    shop.bind("e0", "e1")
    assert shop.publish("e2") == ["q0", "q1", "q2"]
    assert shop.publish("e1") == ["q0", "q1"]
    shop.unbind("e1", "e2")
    shop.unbind("e1", "e2")
    assert shop.publish("e2") == ["q2"]


def test_a_cycle_ends_and_a_queue_gets_one_copy(shop: Shop) -> None:
    chain(shop)
    assert shop.call(QUEUE_BIND, "q1", "e0", "", False, {}) == ["queue.bind-ok"]
    for destination, source in (("e0", "e1"), ("e1", "e2"), ("e2", "e0"), ("e2", "e1")):
        shop.bind(destination, source)
    for number in range(3):
        assert shop.publish(f"e{number}") == ["q0", "q1", "q2"]


def test_each_exchange_looks_at_key_and_headers_itself(shop: Shop) -> None:
    shop.exchange("front", "topic")
    shop.exchange("by-key", "direct")
    shop.exchange("by-colour", "headers")
    shop.exchange("inside", "fanout", internal=True)
    shop.queue("exact", "by-key", "a.b")
    shop.queue("red")
    assert shop.call(QUEUE_BIND, "red", "by-colour", "", False, {"colour": "red"}) == ["queue.bind-ok"]
    shop.queue("all", "inside")
    shop.bind("by-key", "front", "a.#")
    shop.bind("by-colour", "front", "#.b")
    shop.bind("inside", "by-colour", "", {"colour": "blue", "x-match": "any"})
    assert shop.publish("front", "a.b") == ["exact"]
    assert shop.publish("front", "a.b", colour="red") == ["exact", "red"]
    assert shop.publish("front", "x.b", colour="blue") == ["all"]
    assert shop.publish("front", "a.b", colour="red") == ["exact", "red"]
    assert shop.publish("front", "a.c") == ["basic.return"]
    assert shop.publish("front", "c") == ["basic.return"]
    shop.unbind("inside", "by-colour", "", {"x-match": "any", "colour": "blue"})
    assert shop.publish("front", "x.b", colour="blue") == ["basic.return"]
    code, text = shop.refused(EXCHANGE_BIND, "inside", "by-colour", "", False, {"x-match": "some"})
    assert (code, "x-match" in text) == (406, True)


def test_an_alternate_takes_what_matches_no_binding_of_its_exchange(shop: Shop) -> None:
    """A binding that leads to an exchange is one, whatever comes of it there."""
    shop.exchange("spill")
    shop.queue("spilt", "spill")
    shop.exchange("front", "direct", alternate_exchange="spill")
    shop.exchange("behind", "direct")
    shop.exchange("careful", "direct", alternate_exchange="spill")
    shop.bind("behind", "front", "k")
    shop.bind("careful", "front", "l")
    assert shop.publish("front", "m") == ["spilt"]
    assert shop.publish("front", "k") == ["basic.return"]
    assert shop.publish("front", "l") == ["spilt"]


def test_further_keys_of_a_message(shop: Shop) -> None:
    chain(shop)
    shop.exchange("front", "direct")
    shop.exchange("behind", "direct")
    shop.bind("behind", "front", "go")
    for number in range(3):
        shop.bind(f"e{number}", "behind", f"k{number}")
    assert shop.publish("front", "k0") == ["basic.return"]
    assert shop.publish("front", "go", CC=["k0"], BCC=["k2"]) == ["q0", "q2"]
    assert shop.publish("front", "k1", CC=["go"]) == ["q1"]


def test_in_transactions(shop: Shop) -> None:
    chain(shop)
    shop.bind("e1", "e2")
    shop.call(TX_SELECT)
    assert shop.publish("e2") == []
    assert shop.call(TX_ROLLBACK) == ["tx.rollback-ok"]
    assert shop.taken() == []
    assert shop.publish("e2") == []
    assert shop.call(TX_COMMIT) == ["tx.commit-ok"]
    assert shop.taken() == ["q1", "q2"]


def test_dead_letters_go_on(shop: Shop) -> None:
    shop.exchange("died")
    shop.exchange("graves")
    shop.queue("grave", "graves")
    shop.bind("graves", "died")
    shop.core.queue(shop.client, "q", {"x-dead-letter-exchange": "died"})
    shop.client.publish("q", b"x")
    assert shop.call(BASIC_GET, "q", False) == ["basic.get-ok"]
    shop.call(BASIC_REJECT, 1, False)
    assert shop.taken() == ["grave"]


REFUSED = {
    "to the default exchange": (("", "x"), 403, "operation not permitted on the default exchange"),
    "from the default exchange": (("x", ""), 403, "operation not permitted on the default exchange"),
    "to itself": (("x", "x"), 406, "exchange 'x' in vhost '/' cannot be bound to itself"),
    "no destination": (("none", "x"), 404, "no exchange 'none' in vhost '/'"),
    "no source": (("x", "none"), 404, "no exchange 'none' in vhost '/'"),
    "neither": (("one", "other"), 404, "no exchange 'other' in vhost '/'"),
    "a reserved one": (("understudy.tx", "x"), 404, "no exchange 'understudy.tx' in vhost '/'"),
    "to one that delays": (("late", "x"), 406, "exchange 'late' in vhost '/' cannot be bound to exchange 'x'"),
    "to one that drops": (("once", "x"), 406, "exchange 'once' in vhost '/' cannot be bound to exchange 'x'"),
}


@pytest.mark.parametrize(("ends", "code", "text"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(shop: Shop, ends: tuple[str, str], code: int, text: str) -> None:
    """The error names what is wrong, and nothing is bound."""
    shop.exchange("x", "topic")
    shop.exchange("late", "x-delayed-message", x_delayed_type="fanout")
    shop.exchange("once", x_message_deduplication=True)
    said = shop.refused(EXCHANGE_BIND, *ends, "k", False, {})
    assert said[0] == code
    assert text in said[1]
    assert not shop.core.node.state.topology.image.onward


def test_one_that_delays_passes_on_what_comes_late(shop: Shop) -> None:
    chain(shop)
    shop.exchange("late", "x-delayed-message", x_delayed_type="fanout")
    shop.bind("e0", "late")
    headers = encode_properties(delivery_mode=2, headers={"x-delay": 5_000})
    shop.client.send(publish_frames(1, "late", "", headers, b"x", FRAME_MAX))
    shop.core.sync()
    assert shop.taken() == []
    shop.core.pass_ms(6_000)
    shop.core.sync()
    assert shop.taken() == ["q0"]


class Limited(AnyUser):
    """May write to ``w`` and read from ``r``, and nothing else of exchanges."""

    def require(self, vhost: str, action: str, kind: str, resource: str) -> None:
        if (action, resource) not in (("write", "w"), ("read", "r")):
            raise AccessRefusedError.missing_permission(self.name, action, kind, resource, vhost)


@pytest.mark.parametrize("method", [EXCHANGE_BIND, EXCHANGE_UNBIND])
def test_a_user_writes_to_the_destination_and_reads_from_the_source(shop: Shop, method: int) -> None:
    for name in ("r", "w"):
        shop.exchange(name)
    limited = Limited()
    shop.core.users = limited
    assert shop.refused(method, "r", "w", "", False, {})[0] == 403
    assert "exchange 'r'" in shop.refused(method, "r", "w", "", False, {})[1]
    client = shop.core.client()
    client.method(method, "w", "r", "", False, {})
    shop.core.sync()
    assert client.heard() == ["exchange.bind-ok" if method == EXCHANGE_BIND else "exchange.unbind-ok"]


def test_names_are_taken_without_line_ends(shop: Shop) -> None:
    chain(shop)
    shop.bind("e\r1", "e\n2")
    assert shop.publish("e2") == ["q1", "q2"]
    shop.unbind("e1\n", "e2\r")
    assert shop.publish("e2") == ["q2"]


def test_without_an_answer(shop: Shop) -> None:
    chain(shop)
    assert shop.call(EXCHANGE_BIND, "e1", "e2", "", True, {}) == []
    assert shop.publish("e2") == ["q1", "q2"]
    assert shop.call(EXCHANGE_UNBIND, "e1", "e2", "", True, {}) == []
    assert shop.publish("e2") == ["q2"]


@pytest.mark.parametrize("gone", ["source", "destination"])
def test_a_binding_goes_with_either_end(shop: Shop, gone: str) -> None:
    """One of that name that is declared again is another exchange."""
    chain(shop)
    shop.bind("e1", "e2")
    name = "e2" if gone == "source" else "e1"
    assert shop.call(EXCHANGE_DELETE, name, False, False) == ["exchange.delete-ok"]
    shop.exchange(name)
    assert shop.publish("e2") == (["basic.return"] if gone == "source" else ["q2"])
    image = shop.core.node.state.topology.image
    assert (image.onward, shop.core.node.state.record_format) == (0, record.OLDEST_FORMAT_VERSION)


def test_if_unused_counts_what_an_exchange_passes_on(shop: Shop) -> None:
    """As in RabbitMQ a destination is not in use by that."""
    for name in ("from", "to"):
        shop.exchange(name)
    shop.bind("to", "from")
    code, text = shop.refused(EXCHANGE_DELETE, "from", True, False)
    assert (code, "exchange 'from' in vhost '/' in use" in text) == (406, True)
    assert shop.call(EXCHANGE_DELETE, "to", True, False) == ["exchange.delete-ok"]
    assert shop.call(EXCHANGE_DELETE, "from", True, False) == ["exchange.delete-ok"]


AUTO_DELETE: dict[str, tuple[str, list[tuple[int, tuple[Any, ...]]], str]] = {
    "a loop": ("BA AB", [(EXCHANGE_UNBIND, ("A", "B", "", False, {}))], ""),
    "a chain": ("BA CB DC", [(EXCHANGE_DELETE, ("D", False, False))], ""),
    "another way stays": ("BA CB CA", [(EXCHANGE_UNBIND, ("C", "B", "", False, {}))], "AC"),
    "two ways": ("BA CB CA", [(EXCHANGE_DELETE, ("C", False, False))], ""),
    "one source of all": ("BA CB DC AS BS CS DS", [(EXCHANGE_DELETE, ("A", False, False))], "BCDS"),
    "and then": (
        "BA CB DC AS BS CS DS",
        [(EXCHANGE_DELETE, ("A", False, False)), (EXCHANGE_DELETE, ("D", False, False))],
        "",
    ),
}


@pytest.mark.parametrize(("bindings", "calls", "left"), AUTO_DELETE.values(), ids=AUTO_DELETE)
def test_auto_delete_exchanges_go_with_their_last_binding(
    shop: Shop, bindings: str, calls: list[tuple[int, tuple[Any, ...]]], left: str
) -> None:
    """``bindings``: destination and source. The cases are those of the tests of RabbitMQ's client for Java."""
    names = {name for name in bindings if name != " "}
    for name in sorted(names):
        shop.exchange(name, auto_delete=True)
    for ends in bindings.split():
        shop.bind(ends[0], ends[1])
    assert shop.exchanges() == names
    for call in calls:
        shop.call(call[0], *call[1])
    assert shop.exchanges() == set(left)


def test_a_chain_of_auto_delete_exchanges_goes_with_a_queue(shop: Shop) -> None:
    for name in ("front", "behind"):
        shop.exchange(name, auto_delete=True)
    shop.exchange("kept")
    shop.bind("behind", "front")
    shop.bind("behind", "kept")
    shop.queue("q", "behind")
    assert shop.call(QUEUE_UNBIND, "q", "amq.fanout", "", {}) == ["queue.unbind-ok"]
    assert shop.call(QUEUE_DELETE, "q", False, False, False) == ["queue.delete-ok"]
    assert shop.exchanges() == {"kept"}
    assert not shop.core.node.state.topology.registry.vhost("/").exchanges["kept"].bindings


def test_one_that_was_never_bound_stays(shop: Shop) -> None:
    shop.exchange("front", auto_delete=True)
    shop.exchange("other")
    shop.unbind("other", "front")
    assert shop.exchanges() == {"front", "other"}


@pytest.mark.parametrize("method", [EXCHANGE_BIND, EXCHANGE_UNBIND])
def test_an_older_group_binds_no_exchanges(shop: Shop, method: int) -> None:
    chain(shop)
    shop.bind("e0", "e2")
    shop.core.broker.log.confine(record.EXCHANGE_BINDINGS_VERSION - 1)
    ends = ("e1", "e2") if method == EXCHANGE_BIND else ("e0", "e2")
    code, text = shop.refused(method, *ends, "", False, {})
    assert code == 406
    assert f"of exchange '{ends[0]}' to exchange 'e2' in vhost '/' takes format 6 of the log" in text
    shop.bind("e0", "e2")
    shop.unbind("e1", "e2")
    assert shop.publish("e2") == ["q0", "q2"]


@pytest.mark.parametrize("reads", [record.EXCHANGE_BINDINGS_VERSION - 1, record.EXCHANGE_BINDINGS_VERSION])
def test_a_new_primary_answers_when_it_knows_what_its_group_reads(shop: Shop, reads: int) -> None:
    """A client that came before the others had linked was told to upgrade them."""
    chain(shop)
    broker, client = shop.core.broker, shop.core.client()
    broker.log.confine(record.OLDEST_WRITTEN_VERSION)
    broker.role.answering = False
    client.connection.receive(encode_method(1, EXCHANGE_BIND, "e1", "e2", "", False, {}))
    client.connection.receive(publish_frames(1, "e2", "", PERSISTENT, b"x", FRAME_MAX))
    assert client.heard() == []
    broker.log.confine(reads)
    broker.role.answering = True
    shop.core.sync()
    binds = reads == record.EXCHANGE_BINDINGS_VERSION
    assert client.heard() == ["exchange.bind-ok" if binds else "channel.close"]
    shop.core.sync()
    assert shop.taken() == (["q1", "q2"] if binds else [])


def described(state: BrokerState) -> set[tuple[str, str, str]]:
    return {
        (exchange.name, binding.destination.name, binding.routing_key)
        for vhost in state.topology.registry.vhosts.values()
        for exchange in vhost.exchanges.values()
        for binding in exchange.bindings.values()
        if isinstance(binding, ExchangeBinding)
    }


def test_a_journal_brings_them_back() -> None:
    """Those of two durable exchanges; what another one passed on or took is over with it."""
    core = KeptCore()
    shop = Shop(core)
    shop.exchange("lasting", "topic")
    shop.exchange("fleeting", durable=False)
    shop.bind("lasting", "amq.topic", "a.#")
    shop.bind("lasting", "amq.topic", "b.#")
    shop.unbind("lasting", "amq.topic", "b.#")
    shop.bind("fleeting", "lasting", "c")
    shop.bind("amq.fanout", "fleeting")
    assert len(described(core.node.state)) == 3
    node = recovered(core.journal.frames)
    assert described(node.state) == {("amq.topic", "lasting", "a.#")}
    assert node.state.record_format == record.EXCHANGE_BINDINGS_VERSION


def test_a_checkpoint_and_a_base_bring_them() -> None:
    shop = Shop(Core())
    chain(shop)
    shop.bind("e1", "e2")
    shop.bind("e0", "amq.topic", "k")
    meta, _ = Meta.decode(Meta.of(shop.core.node.state).encode())
    other = Core().node.state
    meta.install(other)
    assert described(other) == described(shop.core.node.state) == {("e2", "e1", ""), ("amq.topic", "e0", "k")}
    assert other.record_format == record.EXCHANGE_BINDINGS_VERSION


def test_a_tail_that_is_cut_takes_them_back() -> None:
    state = BrokerState()
    declared = [record.encode_exchange_declare("/", name, "fanout", record.DURABLE, EMPTY) for name in "xy"]
    first = [*declared, encode_exchange_bind(False, "/", "x", "y", "", EMPTY, True)]
    state.taking.receive_batch(frame.encode_batch(1, 1, 3, 0, first))
    state.log.apply_up_to(3)
    tail = [
        encode_exchange_bind(True, "/", "x", "y", "", EMPTY, True),
        encode_exchange_bind(False, "/", "y", "x", "", EMPTY, True),
    ]
    state.taking.receive_batch(frame.encode_batch(1, 4, 2, 3, tail))
    assert described(state) == {("y", "x", "")}
    state.taking.cut(3)
    assert described(state) == {("x", "y", "")}


def test_an_epoch_ends_them_with_an_exchange_that_is_not_durable() -> None:
    """And a record that binds what is not there binds nothing, now or later."""
    state = BrokerState()
    records = [
        record.encode_exchange_declare("/", "lasting", "fanout", record.DURABLE, EMPTY),
        record.encode_exchange_declare("/", "fleeting", "fanout", 0, EMPTY),
        encode_exchange_bind(False, "/", "lasting", "fleeting", "", EMPTY, False),
        encode_exchange_bind(False, "/", "fleeting", "lasting", "", EMPTY, False),
        encode_exchange_bind(False, "/", "lasting", "amq.topic", "", EMPTY, True),
        encode_exchange_bind(False, "/", "lasting", "none", "", EMPTY, True),
        encode_exchange_bind(False, "/", "none", "lasting", "", EMPTY, True),
    ]
    state.taking.receive_batch(frame.encode_batch(1, 1, len(records), 0, records))
    state.log.apply_up_to(len(records))
    assert len(state.topology.image.bindings) == 3
    state.taking.receive_batch(frame.encode_batch(2, 8, 1, 7, [record.encode_epoch(2, "b1", True, 0)]))
    state.log.apply_up_to(8)
    assert described(state) == {("lasting", "amq.topic", "")}
    assert [decode_exchange_bind(raw, 5, len(raw))[1:3] for raw in state.topology.image.bindings.values()] == [
        ("lasting", "amq.topic")
    ]


def test_a_queue_may_be_declared_between(shop: Shop) -> None:
    """Queues are found anew after each change of any exchange on the way."""
    chain(shop)
    shop.bind("e1", "e2")
    assert shop.publish("e2") == ["q1", "q2"]
    assert shop.call(QUEUE_DECLARE, "new", False, True, False, False, False, {}) == ["queue.declare-ok"]
    assert shop.call(QUEUE_BIND, "new", "e1", "", False, {}) == ["queue.bind-ok"]
    assert shop.publish("e2") == ["new", "q1", "q2"]
    assert shop.call(QUEUE_UNBIND, "q1", "e1", "", {}) == ["queue.unbind-ok"]
    assert shop.publish("e2") == ["new", "q2"]


def test_bytes_of_the_record() -> None:
    raw = encode_exchange_bind(False, "/", "from", "to", "a.#", EMPTY, True)
    assert raw[0] == record.EXCHANGE_BIND
    assert decode_exchange_bind(raw, 5, len(raw)) == ("/", "from", "to", "a.#", EMPTY)
    assert encode_exchange_bind(True, "/", "from", "to", "a.#", EMPTY, False)[0] == (
        record.EXCHANGE_UNBIND | record.TRANSIENT
    )
