"""BrokerStatus: what a broker is, as Qpid HA named it; since when, in words."""

from __future__ import annotations

import datetime as dt
from enum import Enum


class BrokerStatus(Enum):
    """The state of a broker.

    standalone: no HA. joining: no primary found yet. catchup: linked, not promotable or not there yet. ready: listed and
    linked. recovering: promoted, members not yet with it. active: serving.
    """

    STANDALONE = "standalone"
    JOINING = "joining"
    CATCHUP = "catchup"
    READY = "ready"
    RECOVERING = "recovering"
    ACTIVE = "active"


def since_text(wall_ms: int) -> str:
    """``wall_ms`` (since 1970) as people read it."""
    return f"{dt.datetime.fromtimestamp(wall_ms // 1_000, dt.UTC):%Y-%m-%d %H:%M:%SZ}"


def explained(blockers: str, since: str) -> str:
    """Blockers of a broker and the time since when, as the store shows them; "" if nothing blocks it."""
    return f"{blockers} (since {since})" if blockers else ""
