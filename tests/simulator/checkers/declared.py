"""Declarations and bindings of the chosen log: the reference's own account of queues, exchanges and bindings.

Brokers that all forget the same exchange agree with each other. So this keeps the records that are in force, without a registry
and without an index, and `routes` compares every broker with it at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from understudy.broker.core.topology.registry import DEFAULT_EXCHANGES
from understudy.broker.log import record
from understudy.broker.log.exchange_bind_record import ExchangeBindKey, decode_exchange_bind

ALWAYS_THERE = frozenset(name for name, _ in DEFAULT_EXCHANGES)


def _is_durable(raw: bytes) -> bool:
    return bool(record.decode_exchange_declare(raw, 5, len(raw))[3] & record.DURABLE)


def _marks(raw: bytes, held: bytes) -> bool:
    """True if ``raw`` only notes the first binding of the exchange that ``held`` declares."""
    *declared, flags, arguments = record.decode_exchange_declare(raw, 5, len(raw))
    if not flags & record.USED:
        return False
    *before, held_flags, held_arguments = record.decode_exchange_declare(held, 5, len(held))
    return (declared, arguments, flags) == (before, held_arguments, held_flags | record.USED)


def whole(buf: bytes, at: int, end: int) -> bytes:
    """The record whose content begins at ``at``, without its transient bit."""
    return bytes((buf[at - 5] & 0x7F,)) + buf[at - 4 : end]


class Declared:
    """The declare and bind records that are in force.

    Attributes:
        queues: by id.
        exchanges: by vhost and name.
        bindings: by vhost, exchange, queue id or destination exchange, routing key and arguments.
    """

    def __init__(self) -> None:
        self.queues: dict[int, bytes] = {}
        self.exchanges: dict[tuple[str, str], bytes] = {}
        self.bindings: dict[tuple[str, str, int | str, str, bytes], bytes] = {}

    def takers(self) -> dict[int, tuple[Callable[[bytes, int, int], Any], Callable[[int, Any], None]]]:
        """How a record of each kind is read, and what it does. Those of queues are the reference's."""
        return {
            record.EXCHANGE_DECLARE: (whole, self._exchange),
            record.EXCHANGE_DELETE: (lambda b, at, end: record.decode_exchange_delete(b, at), self._exchange_gone),
            record.BIND: (whole, self._bind),
            record.UNBIND: (record.decode_bind, self._unbind),
            record.EXCHANGE_BIND: (whole, self._bind_exchange),
            record.EXCHANGE_UNBIND: (decode_exchange_bind, self._unbind),
        }

    def queue(self, queue_id: int, raw: bytes) -> None:
        """A queue is declared."""
        self.queues[queue_id] = raw

    def queue_gone(self, queue_id: int) -> None:
        """A queue is deleted, and what was bound to it is not."""
        if self.queues.pop(queue_id, None) is not None:
            self.bindings = {key: raw for key, raw in self.bindings.items() if key[2] != queue_id}

    def _exchange(self, offset: int, raw: bytes) -> None:
        """One of that name which differs was deleted by a record that is a hole now."""
        name = record.decode_exchange_declare(raw, 5, len(raw))[:2]
        held = self.exchanges.get(name, raw)
        if held != raw and not _marks(raw, held):
            self._exchange_gone(offset, name)
        self.exchanges[name] = raw

    def _exchange_gone(self, offset: int, name: tuple[str, str]) -> None:
        self.exchanges.pop(name, None)
        self.bindings = {key: raw for key, raw in self.bindings.items() if name not in (key[:2], (key[0], key[2]))}

    def _bind(self, offset: int, raw: bytes) -> None:
        """Bind, unless the record that declared the queue or the exchange is a hole: then there is nothing to bind."""
        key = record.decode_bind(raw, 5, len(raw))
        if key[2] in self.queues and self._has_exchange(key[0], key[1]):
            self.bindings[key] = raw

    def _bind_exchange(self, offset: int, raw: bytes) -> None:
        """Likewise, of two exchanges."""
        key = decode_exchange_bind(raw, 5, len(raw))
        if self._has_exchange(key[0], key[1]) and self._has_exchange(key[0], key[2]):
            self.bindings[key] = raw

    def _has_exchange(self, vhost: str, name: str) -> bool:
        return name in ALWAYS_THERE or (vhost, name) in self.exchanges

    def _unbind(self, offset: int, key: tuple[str, str, int, str, bytes] | ExchangeBindKey) -> None:
        self.bindings.pop(key, None)

    def transients_lost(self, offset: int) -> None:
        """An EPOCH ends the exchanges that are not durable. (Its queues are ended by the reference.)"""
        for name in [name for name, raw in self.exchanges.items() if not _is_durable(raw)]:
            self._exchange_gone(offset, name)
