"""Environment variables that tell a worker of the demonstration where it is."""

from __future__ import annotations

from typing import Final

POSTGRESQL: Final = "postgresql:"
"""Begins the address of a database that is no file; a connection string of libpq follows."""
BROKER: Final = "UNDERSTUDY_DEMO_BROKER"
DATABASE: Final = "UNDERSTUDY_DEMO_DATABASE"
STATE_SERVER: Final = "UNDERSTUDY_DEMO_STATE_SERVER"
"""The address of the state server of a shop with ``xa=True``."""
ONCE: Final = "UNDERSTUDY_DEMO_ONCE"
"""``yes``: with inbox and outbox."""
