"""AMQP verbs for programs of simulated clients: each sends one method and waits for its answer."""

from __future__ import annotations

from typing import Any

from tests.simulation.sim_client import Program, SimClient
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_CANCEL,
    BASIC_CANCEL_OK,
    BASIC_CONSUME,
    BASIC_CONSUME_OK,
    BASIC_GET,
    BASIC_GET_EMPTY,
    BASIC_GET_OK,
    BASIC_NACK,
    BASIC_QOS,
    BASIC_QOS_OK,
    BASIC_RECOVER,
    BASIC_RECOVER_OK,
    BASIC_REJECT,
    CONFIRM_SELECT,
    CONFIRM_SELECT_OK,
    EXCHANGE_DECLARE,
    EXCHANGE_DECLARE_OK,
    EXCHANGE_DELETE,
    EXCHANGE_DELETE_OK,
    QUEUE_BIND,
    QUEUE_BIND_OK,
    QUEUE_DECLARE,
    QUEUE_DECLARE_OK,
    QUEUE_DELETE,
    QUEUE_DELETE_OK,
    QUEUE_PURGE,
    QUEUE_PURGE_OK,
    QUEUE_UNBIND,
    QUEUE_UNBIND_OK,
    TX_COMMIT,
    TX_COMMIT_OK,
    TX_ROLLBACK,
    TX_ROLLBACK_OK,
    TX_SELECT,
    TX_SELECT_OK,
    encode_method,
)

Table = dict[str, Any]


def declare(
    client: SimClient,
    name: str,
    *,
    passive: bool = False,
    durable: bool = True,
    exclusive: bool = False,
    auto_delete: bool = False,
    arguments: Table | None = None,
) -> Program:
    """Declare a queue; returns (name, messages, consumers)."""
    frames = encode_method(1, QUEUE_DECLARE, name, passive, durable, exclusive, auto_delete, False, arguments or {})
    event = yield from client.call(frames, QUEUE_DECLARE_OK)
    return event[2]


def delete(client: SimClient, name: str, *, if_unused: bool = False, if_empty: bool = False) -> Program:
    """Delete a queue; returns how many messages it held."""
    event = yield from client.call(encode_method(1, QUEUE_DELETE, name, if_unused, if_empty, False), QUEUE_DELETE_OK)
    return event[2][0]


def purge(client: SimClient, name: str) -> Program:
    """Purge a queue; returns how many messages went."""
    event = yield from client.call(encode_method(1, QUEUE_PURGE, name, False), QUEUE_PURGE_OK)
    return event[2][0]


def declare_exchange(
    client: SimClient, name: str, kind: str, *, durable: bool = True, auto_delete: bool = False
) -> Program:
    frames = encode_method(1, EXCHANGE_DECLARE, name, kind, False, durable, auto_delete, False, False, {})
    yield from client.call(frames, EXCHANGE_DECLARE_OK)


def delete_exchange(client: SimClient, name: str) -> Program:
    yield from client.call(encode_method(1, EXCHANGE_DELETE, name, False, False), EXCHANGE_DELETE_OK)


def bind(client: SimClient, queue: str, exchange: str, key: str, arguments: Table | None = None) -> Program:
    yield from client.call(encode_method(1, QUEUE_BIND, queue, exchange, key, False, arguments or {}), QUEUE_BIND_OK)


def unbind(client: SimClient, queue: str, exchange: str, key: str, arguments: Table | None = None) -> Program:
    yield from client.call(encode_method(1, QUEUE_UNBIND, queue, exchange, key, arguments or {}), QUEUE_UNBIND_OK)


def get(client: SimClient, queue: str, *, no_ack: bool = False) -> Program:
    """The get-ok event, or None if the queue is empty."""
    event = yield from client.call(encode_method(1, BASIC_GET, queue, no_ack), BASIC_GET_OK, BASIC_GET_EMPTY)
    return event if event[1] == BASIC_GET_OK else None


def consume(client: SimClient, queue: str, tag: str, *, no_ack: bool = False, exclusive: bool = False) -> Program:
    frames = encode_method(1, BASIC_CONSUME, queue, tag, False, no_ack, exclusive, False, {})
    yield from client.call(frames, BASIC_CONSUME_OK)


def cancel(client: SimClient, tag: str) -> Program:
    yield from client.call(encode_method(1, BASIC_CANCEL, tag, False), BASIC_CANCEL_OK)


def qos(client: SimClient, count: int, *, everybody: bool = False) -> Program:
    yield from client.call(encode_method(1, BASIC_QOS, 0, count, everybody), BASIC_QOS_OK)


def recover(client: SimClient) -> Program:
    yield from client.call(encode_method(1, BASIC_RECOVER, True), BASIC_RECOVER_OK)


def ack(client: SimClient, tag: int, *, multiple: bool = False) -> None:
    client.write(encode_method(1, BASIC_ACK, tag, multiple))


def nack(client: SimClient, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
    client.write(encode_method(1, BASIC_NACK, tag, multiple, requeue))


def reject(client: SimClient, tag: int, *, requeue: bool = False) -> None:
    client.write(encode_method(1, BASIC_REJECT, tag, requeue))


def confirm_select(client: SimClient) -> Program:
    yield from client.call(encode_method(1, CONFIRM_SELECT, False), CONFIRM_SELECT_OK)


def tx_select(client: SimClient) -> Program:
    yield from client.call(encode_method(1, TX_SELECT), TX_SELECT_OK)


def commit(client: SimClient) -> Program:
    yield from client.call(encode_method(1, TX_COMMIT), TX_COMMIT_OK)


def rollback(client: SimClient) -> Program:
    yield from client.call(encode_method(1, TX_ROLLBACK), TX_ROLLBACK_OK)
