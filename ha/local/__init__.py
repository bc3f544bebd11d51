"""Coordination for brokers of one host: a SQLite file, leases in it, and a look at each other's processes."""

from understudy.ha.coordination import StoreError
from understudy.ha.local.commands import FileAdmin, force_epoch, forced_epochs, read_store
from understudy.ha.local.file_coordination import FileCoordination
from understudy.ha.local.store import StoreBusyError

__all__ = [
    "FileAdmin",
    "FileCoordination",
    "StoreBusyError",
    "StoreError",
    "force_epoch",
    "forced_epochs",
    "read_store",
]
