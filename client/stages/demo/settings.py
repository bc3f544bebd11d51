"""Environment variables that tell a worker of the demonstration where it is."""

from __future__ import annotations

from typing import Final

BROKER: Final = "UNDERSTUDY_DEMO_BROKER"
DATABASE: Final = "UNDERSTUDY_DEMO_DATABASE"
ONCE: Final = "UNDERSTUDY_DEMO_ONCE"
"""``yes``: with inbox and outbox."""
