"""After any changes the indexes of bindings hold what a walk through all bindings finds, and messages go where that leads."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy.broker.amqp.properties import encode_properties
from understudy.broker.core.state import BrokerState
from understudy.broker.core.topology.exchanges import EXCHANGE_TYPES, AnyBinding, Exchange, ExchangeBinding
from understudy.broker.core.topology.grouped import Grouped
from understudy.broker.core.topology.registry import BINDS
from understudy.broker.core.topology.routing import route
from understudy.broker.log import record
from understudy.broker.log.exchange_bind_record import decode_exchange_bind, encode_exchange_bind

NO_ARGUMENTS = bytes(4)
vhosts = st.sampled_from(["/", "v"])
queues = st.integers(1, 4)
kinds = st.sampled_from([*EXCHANGE_TYPES])
exchanges = st.sampled_from(["x", "x", "amq.direct", "amq.topic"])
keys = st.sampled_from(["k", "#", "#.#"])


def queue_declare(queue_id: int, name: str) -> bytes:
    """Queues of odd ids are of one virtual host, the others of the other; two may have the same name."""
    return record.encode_queue_declare(queue_id, vhost_of(queue_id), name, record.DURABLE, NO_ARGUMENTS)


def vhost_of(queue_id: int) -> str:
    return "/v"[queue_id % 2]


def exchange_declare(vhost: str, name: str, kind: str, auto_delete: bool, used: bool = False) -> bytes:
    flags = record.DURABLE | (record.AUTO_DELETE if auto_delete else 0) | (record.USED if used else 0)
    return record.encode_exchange_declare(vhost, name, kind, flags, NO_ARGUMENTS)


def bind(remove: bool, queue_id: int, exchange: str, key: str) -> bytes:
    return record.encode_bind(remove, vhost_of(queue_id), exchange, queue_id, key, NO_ARGUMENTS, True)


def pass_on(remove: bool, vhost: str, source: str, destination: str, key: str) -> bytes:
    """An exchange is bound to another one, or to itself: no broker writes that, and a log with it must do no harm."""
    return encode_exchange_bind(remove, vhost, source, destination, key, NO_ARGUMENTS, True)


changes = st.one_of(
    st.builds(queue_declare, queues, st.sampled_from(["a", "b"])),
    st.builds(record.encode_queue_delete, queues, st.just(True)),
    st.builds(exchange_declare, vhosts, st.just("x"), kinds, st.booleans()),
    st.builds(exchange_declare, vhosts, st.just("x"), st.just("direct"), st.just(False), st.booleans()),
    st.builds(record.encode_exchange_delete, vhosts, st.just("x"), st.just(True)),
    st.builds(bind, st.just(False), queues, exchanges, keys),
    st.builds(bind, st.just(False), queues, exchanges, keys),
    st.builds(bind, st.booleans(), queues, exchanges, keys),
    st.builds(pass_on, st.just(False), vhosts, exchanges, exchanges, keys),
    st.builds(pass_on, st.booleans(), vhosts, exchanges, exchanges, keys),
)


class Walked:
    """The image without an index: whatever is removed is looked for among all."""

    def __init__(self) -> None:
        self.queues: dict[int, bytes] = {}
        self.exchanges: dict[tuple[str, str], bytes] = {}
        self.bindings: dict[tuple[str, str, int | str, str, bytes], bytes] = {}

    def apply(self, raw: bytes) -> None:
        kind, end = raw[0], len(raw)
        if kind == record.QUEUE_DECLARE:
            self.queues[record.decode_queue_declare(raw, 5, end)[0]] = raw
        elif kind == record.QUEUE_DELETE:
            queue_id = record.decode_queue_delete(raw, 5)
            self.queues.pop(queue_id, None)
            self.bindings = {key: raw for key, raw in self.bindings.items() if key[2] != queue_id}
        elif kind == record.BIND:
            self.bindings[record.decode_bind(raw, 5, end)] = raw
        elif kind == record.UNBIND:
            self.bindings.pop(record.decode_bind(raw, 5, end), None)
        elif kind == record.EXCHANGE_BIND:
            self.bindings[decode_exchange_bind(raw, 5, end)] = raw
        elif kind == record.EXCHANGE_UNBIND:
            self.bindings.pop(decode_exchange_bind(raw, 5, end), None)
        elif kind == record.EXCHANGE_DELETE:
            self.remove_exchange(*record.decode_exchange_delete(raw, 5))
        else:
            vhost, name, *_ = record.decode_exchange_declare(raw, 5, end)
            held = self.exchanges.get((vhost, name), raw)
            marked = exchange_declare(vhost, name, "direct", False, True)
            if held != raw and (raw != marked or held != exchange_declare(vhost, name, "direct", False)):
                self.remove_exchange(vhost, name)
            self.exchanges[vhost, name] = raw

    def remove_exchange(self, vhost: str, name: str) -> None:
        self.exchanges.pop((vhost, name), None)
        self.bindings = {
            key: raw for key, raw in self.bindings.items() if key[0] != vhost or name not in (key[1], key[2])
        }

    def reached(self, vhost: str, first: str, kinds: dict[str, str]) -> set[int]:
        """The queues of a message with the key "k", found by steps along all bindings until nothing is new."""
        visited: set[int | str] = {first}
        while True:
            more = {
                end
                for of, exchange, end, key, _ in self.bindings
                if of == vhost and exchange in visited and (kinds[exchange] != "direct" or key == "k")
            }
            if more <= visited:
                return {each for each in visited if isinstance(each, int)}
            visited |= more

    def records(self) -> list[bytes]:
        return [*self.exchanges.values(), *self.queues.values(), *self.bindings.values()]


def assert_as_walked(state: BrokerState, walked: Walked) -> None:
    assert state.topology.image.records() == walked.records()
    for name, vhost in state.topology.registry.vhosts.items():
        found: dict[int | Exchange, set[tuple[Exchange, AnyBinding]]] = {}
        kinds = {exchange.name: exchange.kind for exchange in vhost.exchanges.values()}
        for exchange in vhost.exchanges.values():
            wanted = [key[2:] for key in walked.bindings if key[:2] == (name, exchange.name)]
            assert list(exchange.bindings) == wanted
            for binding in exchange.bindings.values():
                end = binding.destination if isinstance(binding, ExchangeBinding) else binding.queue.id
                found.setdefault(end, set()).add((exchange, binding))
            assert exchange.onward == sum(isinstance(key[0], str) for key in wanted)
            ids = [queue.id for queue in route(vhost.exchanges, exchange, ("k",), encode_properties())[0]]
            assert len(ids) == len(set(ids))
            assert set(ids) == walked.reached(name, exchange.name, kinds)
        for exchange in vhost.exchanges.values():
            assert set(vhost.onward.of(exchange)) == found.get(exchange, set())
        for queue_id, queue in state.queues.items():
            assert set(vhost.bound.of(queue_id)) == found.get(queue_id, set())
            if queue.vhost == name:
                of_it = state.topology.registry.exchanges_of(queue)
                assert len(of_it) == len(set(of_it))
                assert set(of_it) == {exchange for exchange, _ in found.get(queue_id, ())}
        assert (
            vhost.bound._groups.keys() | vhost.onward._groups.keys() == found.keys()
        )  # nothing is kept of what is gone
    assert state.topology.image.onward == sum(isinstance(key[2], str) for key in walked.bindings)


@settings(max_examples=300, deadline=None)
@given(st.lists(changes, max_size=60), st.booleans())
def test_bindings_by_queue_and_by_exchange(raws: list[bytes], rebuilt: bool) -> None:
    state, walked = BrokerState(), Walked()
    begun = [queue_declare(queue_id, "a") for queue_id in (1, 2, 3, 4)]
    begun += [exchange_declare(vhost, "x", "direct", False) for vhost in ("/", "v")]
    for raw in begun + raws:
        if raw[0] in BINDS and not state.topology.image.holds_what_is_bound(raw):
            continue
        if raw[0] == record.QUEUE_DECLARE and record.decode_queue_declare(raw, 5, len(raw))[0] in state.queues:
            continue  # an id is given once
        state.taking.append_record(raw)
        state.log.apply_up_to(state.log.end)
        walked.apply(raw)
        assert_as_walked(state, walked)
    if rebuilt:
        state.topology.rebuild_registry()
        assert_as_walked(state, walked)
    for queue_id in (1, 2, 3, 4):
        state.taking.append_record(record.encode_queue_delete(queue_id, True))
    for vhost in ("/", "v"):
        for exchange in ("x", "amq.direct", "amq.topic"):
            state.taking.append_record(record.encode_exchange_delete(vhost, exchange, True))
    state.log.apply_up_to(state.log.end)
    assert not state.topology.image.bindings
    assert not state.topology.image.onward
    assert not state.topology.image._bound._groups
    assert not state.topology.image._bound_to._groups
    assert not any(vhost.bound or vhost.onward for vhost in state.topology.registry.vhosts.values())


@given(
    st.lists(st.tuples(st.sampled_from(["add", "remove", "pop"]), st.integers(0, 2), st.integers(0, 3)), max_size=40)
)
def test_groups_keep_the_order_in_which_things_came(changes: list[tuple[str, int, int]]) -> None:
    grouped: Grouped[int, int] = Grouped()
    walked: list[tuple[int, int]] = []
    for change, group, thing in changes:
        if change == "add":
            grouped.add(group, thing)
            if (group, thing) not in walked:
                walked.append((group, thing))
        elif change == "pop":
            assert list(grouped.pop(group)) == [thing for each, thing in walked if each == group]
            walked = [each for each in walked if each[0] != group]
        elif (group, thing) in walked:
            grouped.remove(group, thing)
            walked.remove((group, thing))
        else:
            with pytest.raises(KeyError):
                grouped.remove(group, thing)
        for each in range(3):
            assert list(grouped.of(each)) == [thing for group, thing in walked if group == each]
