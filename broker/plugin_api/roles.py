"""Roles of a broker, as ``/status`` and supervisors are told them. A broker without a plugin that extends the core is alone."""

from __future__ import annotations

from typing import Final

LEADING_ROLES: Final = ("standalone", "primary")
"""Roles of a broker that leads: its own, and that of the leader of a group."""
