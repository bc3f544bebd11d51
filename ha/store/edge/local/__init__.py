"""Coordination for brokers of one host: a SQLite file, leases in it, and a look at each other's processes."""

from understudy.ha.store.coordination import StoreError
from understudy.ha.store.edge.local.commands import FileAdmin
from understudy.ha.store.edge.local.file_coordination import FileCoordination
from understudy.ha.store.edge.local.store import StoreBusyError

__all__ = [
    "FileAdmin",
    "FileCoordination",
    "StoreBusyError",
    "StoreError",
]
