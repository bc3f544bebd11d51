"""ReplicationLevel: how much of a queue is in the log, and so on other brokers and on any disk (decision 0014).

=================  ======================  ========
level              declaration, bindings   messages
=================  ======================  ========
``all``            records                 records
``configuration``  records                 of the broker that leads, while it does
``none``           of that broker too      likewise
=================  ======================  ========

A queue that belongs to a connection (exclusive) is of level ``none``; there is no other mechanism for what is outside the log. The
argument ``x-ha-replicate`` chooses for other queues. Without a plugin that replicates, the argument is checked in the same way and
means nothing: there is one broker, whose journal keeps every queue as if it had not been given.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from understudy.broker.errors import PreconditionFailedError

REPLICATE: Final = "x-ha-replicate"


class ReplicationLevel(Enum):
    """See the head of this file."""

    ALL = "all"
    CONFIGURATION = "configuration"
    NONE = "none"

    @property
    def declared_in_log(self) -> bool:
        """The declaration, the bindings and the deletion are records."""
        return self is not ReplicationLevel.NONE

    @property
    def messages_in_log(self) -> bool:
        """True if messages that come to the queue, and those that leave it, are in records."""
        return self is ReplicationLevel.ALL


LEVELS: Final = {level.value: level for level in ReplicationLevel}


def level_asked_for(
    name: str, vhost: str, arguments: dict[str, Any], *, durable: bool, exclusive: bool
) -> ReplicationLevel | None:
    """The level that a declaration says; None if it says none.

    Raises:
        PreconditionFailedError: there is no such level, or a queue of this kind cannot have it.
    """
    if REPLICATE not in arguments:
        return None
    said = arguments[REPLICATE]
    level = LEVELS.get(said) if isinstance(said, str) else None
    place = f"invalid arg '{REPLICATE}' for queue '{name}' in vhost '{vhost}'"
    if level is None:
        raise PreconditionFailedError(f"{place}: {said!r} is none of {', '.join(repr(each) for each in LEVELS)}")
    if exclusive and level is not ReplicationLevel.NONE:
        raise PreconditionFailedError(f"{place}: {said!r}, but an exclusive queue goes with its connection")
    if durable and not exclusive and level is ReplicationLevel.NONE:
        raise PreconditionFailedError(f"{place}: {said!r}, but a durable queue has to survive the broker that leads")
    return level


def level_of(
    said: ReplicationLevel | None, default: ReplicationLevel | None, *, durable: bool, exclusive: bool
) -> ReplicationLevel:
    """The level of a new queue.

    Args:
        said: by its declaration.
        default: of queues that do not say, durable ones excepted: what "durable" promises is not taken away by a file that the
            client does not see. None: nothing replicates, so there are no levels.
        durable: as it was declared.
        exclusive: likewise.
    """
    if exclusive:
        return ReplicationLevel.NONE
    if default is None:
        return ReplicationLevel.ALL
    if said is not None:
        return said
    return ReplicationLevel.ALL if durable else default
