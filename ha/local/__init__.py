"""Coordination for brokers of one host: a SQLite file, leases in it, and a look at each other's processes."""

from understudy.ha.local.commands import force_epoch, forced_epochs, read_store
from understudy.ha.local.file_coordination import FileCoordination
from understudy.ha.local.store import StoreBusyError, StoreError

__all__ = ["FileCoordination", "StoreBusyError", "StoreError", "force_epoch", "forced_epochs", "read_store"]
