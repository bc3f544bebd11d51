"""BrokerStatus: what a broker is, as Qpid HA named it."""

from __future__ import annotations

from enum import Enum


class BrokerStatus(Enum):
    """What a broker is.

    standalone: no HA. joining: no primary found yet. catchup: linked, not promotable or not there yet. ready: listed and
    linked. recovering: promoted, members not yet with it. active: serving.
    """

    STANDALONE = "standalone"
    JOINING = "joining"
    CATCHUP = "catchup"
    READY = "ready"
    RECOVERING = "recovering"
    ACTIVE = "active"
