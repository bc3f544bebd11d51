"""BrokerStatus: what a broker is, as Qpid HA named it, and the changes that are legal."""

from __future__ import annotations

from enum import Enum

from understudy.broker.errors import UnderstudyError


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


_LEGAL = {
    BrokerStatus.STANDALONE: set[BrokerStatus](),
    BrokerStatus.JOINING: {BrokerStatus.CATCHUP, BrokerStatus.READY, BrokerStatus.RECOVERING},
    BrokerStatus.CATCHUP: {BrokerStatus.READY, BrokerStatus.JOINING, BrokerStatus.RECOVERING},
    BrokerStatus.READY: {BrokerStatus.CATCHUP, BrokerStatus.JOINING, BrokerStatus.RECOVERING},
    BrokerStatus.RECOVERING: {BrokerStatus.ACTIVE, BrokerStatus.JOINING},
    BrokerStatus.ACTIVE: {BrokerStatus.JOINING},
}


class IllegalStatusError(UnderstudyError):
    """A change of status that cannot be; the status is unchanged."""


def check_change(old: BrokerStatus, new: BrokerStatus) -> None:
    """Raises :class:`IllegalStatusError` unless ``old`` may become ``new``."""
    if new is not old and new not in _LEGAL[old]:
        raise IllegalStatusError(f"a broker that is {old.value} cannot become {new.value}")
