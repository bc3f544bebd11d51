"""AMQP verbs for programs of simulated clients: each sends one method and waits for its answer."""

from __future__ import annotations

from typing import Any

from tests.simulator.sim_client import Program, SimClient
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
    DTX_COMMIT,
    DTX_COMPLETE,
    DTX_END,
    DTX_FORGET,
    DTX_GET_TIMEOUT,
    DTX_PREPARE,
    DTX_RECOVER,
    DTX_RECOVER_OK,
    DTX_ROLLBACK,
    DTX_SELECT,
    DTX_SELECT_OK,
    DTX_SET_TIMEOUT,
    DTX_START,
    EXCHANGE_BIND,
    EXCHANGE_BIND_OK,
    EXCHANGE_DECLARE,
    EXCHANGE_DECLARE_OK,
    EXCHANGE_DELETE,
    EXCHANGE_DELETE_OK,
    EXCHANGE_UNBIND,
    EXCHANGE_UNBIND_OK,
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
from understudy.broker.transactions.xid import Xid

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
    client: SimClient,
    name: str,
    kind: str,
    *,
    durable: bool = True,
    auto_delete: bool = False,
    alternate: str = "",
    arguments: Table | None = None,
) -> Program:
    arguments = {**(arguments or {}), **({"alternate-exchange": alternate} if alternate else {})}
    frames = encode_method(1, EXCHANGE_DECLARE, name, kind, False, durable, auto_delete, False, False, arguments)
    yield from client.call(frames, EXCHANGE_DECLARE_OK)


def delete_exchange(client: SimClient, name: str) -> Program:
    yield from client.call(encode_method(1, EXCHANGE_DELETE, name, False, False), EXCHANGE_DELETE_OK)


def bind(client: SimClient, queue: str, exchange: str, key: str, arguments: Table | None = None) -> Program:
    yield from client.call(encode_method(1, QUEUE_BIND, queue, exchange, key, False, arguments or {}), QUEUE_BIND_OK)


def unbind(client: SimClient, queue: str, exchange: str, key: str, arguments: Table | None = None) -> Program:
    yield from client.call(encode_method(1, QUEUE_UNBIND, queue, exchange, key, arguments or {}), QUEUE_UNBIND_OK)


def bind_exchange(
    client: SimClient, destination: str, source: str, key: str, arguments: Table | None = None
) -> Program:
    frames = encode_method(1, EXCHANGE_BIND, destination, source, key, False, arguments or {})
    yield from client.call(frames, EXCHANGE_BIND_OK)


def unbind_exchange(
    client: SimClient, destination: str, source: str, key: str, arguments: Table | None = None
) -> Program:
    frames = encode_method(1, EXCHANGE_UNBIND, destination, source, key, False, arguments or {})
    yield from client.call(frames, EXCHANGE_UNBIND_OK)


def get(client: SimClient, queue: str, *, no_ack: bool = False) -> Program:
    """The get-ok event, or None if the queue is empty."""
    event = yield from client.call(encode_method(1, BASIC_GET, queue, no_ack), BASIC_GET_OK, BASIC_GET_EMPTY)
    return event if event[1] == BASIC_GET_OK else None


def consume(
    client: SimClient,
    queue: str,
    tag: str,
    *,
    no_ack: bool = False,
    exclusive: bool = False,
    arguments: Table | None = None,
) -> Program:
    frames = encode_method(1, BASIC_CONSUME, queue, tag, False, no_ack, exclusive, False, arguments or {})
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


# -- class 100 ------------------------------------------------------------------------------------------------------


def dtx_select(client: SimClient) -> Program:
    yield from client.call(encode_method(1, DTX_SELECT), DTX_SELECT_OK)


def _of_branch(key: int, client: SimClient, xid: Xid, *args: Any) -> Program:
    """Ask something of a branch; returns what the answer says: a status, or a time-out in seconds."""
    frames = encode_method(1, key, xid.format_id, xid.global_id, xid.branch_id, *args)
    event = yield from client.call(frames, key + 1)
    return event[2][0]


def dtx_start(client: SimClient, xid: Xid, *, join: bool = False, resume: bool = False) -> Program:
    return (yield from _of_branch(DTX_START, client, xid, join, resume))


def dtx_end(client: SimClient, xid: Xid, *, fail: bool = False, suspend: bool = False) -> Program:
    return (yield from _of_branch(DTX_END, client, xid, fail, suspend))


def dtx_prepare(client: SimClient, xid: Xid) -> Program:
    return (yield from _of_branch(DTX_PREPARE, client, xid))


def dtx_commit(client: SimClient, xid: Xid, *, one_phase: bool = False) -> Program:
    return (yield from _of_branch(DTX_COMMIT, client, xid, one_phase))


def dtx_rollback(client: SimClient, xid: Xid) -> Program:
    return (yield from _of_branch(DTX_ROLLBACK, client, xid))


def dtx_forget(client: SimClient, xid: Xid) -> Program:
    return (yield from _of_branch(DTX_FORGET, client, xid))


def dtx_complete(client: SimClient, xid: Xid, *, commit: bool) -> Program:
    return (yield from _of_branch(DTX_COMPLETE, client, xid, commit))


def dtx_get_timeout(client: SimClient, xid: Xid) -> Program:
    return (yield from _of_branch(DTX_GET_TIMEOUT, client, xid))


def dtx_set_timeout(client: SimClient, xid: Xid, timeout_s: int) -> Program:
    return (yield from _of_branch(DTX_SET_TIMEOUT, client, xid, timeout_s))


def dtx_recover(client: SimClient) -> Program:
    """Everything that is in doubt in the vhost: {xid: state}, over as many answers as it takes."""
    found: dict[Xid, int] = {}
    more, after = True, b""
    while more:
        event = yield from client.call(encode_method(1, DTX_RECOVER, after), DTX_RECOVER_OK)
        more, packed = event[2]
        at = 0
        while at < len(packed):
            xid, end = Xid.decode(packed, at + 1)
            found[xid] = packed[at]
            after = packed[at + 1 : end]
            at = end
    return found
