"""The deletion of exchanges. Bindings go with either end, and an auto-delete exchange goes with the last binding that it had.

So one deletion may end a chain of exchanges. The broker that leads decides which of them go, and writes a record for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from understudy.broker.log import record

if TYPE_CHECKING:
    from understudy.broker.core.topology.exchanges import Exchange
    from understudy.broker.core.topology.registry import Registry

AppendRecord = Callable[[bytes], int]
"""Appends a whole record; returns its offset."""


def delete_exchange(registry: Registry, append_record: AppendRecord, exchange: Exchange) -> None:
    """Delete ``exchange``, and auto-delete exchanges that were bound to nothing else."""
    going = [exchange]
    while going:
        gone = going.pop()
        sources = registry.sources_of(gone)
        append_record(record.encode_exchange_delete(gone.vhost, gone.name, gone.durable))
        going += _unbound(sources)


def delete_unbound(registry: Registry, append_record: AppendRecord, exchanges: Iterable[Exchange]) -> None:
    """Delete those of ``exchanges`` that are auto-delete and have just lost their last binding."""
    for exchange in _unbound(exchanges):
        delete_exchange(registry, append_record, exchange)


def _unbound(exchanges: Iterable[Exchange]) -> list[Exchange]:
    return [exchange for exchange in exchanges if exchange.auto_delete and not exchange.bindings]
