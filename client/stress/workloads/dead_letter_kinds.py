"""The queues of the workload ``deadletters``: a row of `KINDS` for each way in which a message may leave its queue, or come late.

A row names the queues through which its messages go, and what must hold of them at the end (``placing``). A further way is a
further row; if clients have to do something for it, also a class of workers (``dead_letters``).

What a consumer does with a message, and how late a delayed message comes, are fixed by the message's id (:func:`fate_of`,
:func:`delay_ms_of`). So a reader of a report knows them, and a message that is a dead letter without a cause is found.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, Final

import attrs

MOST: Final = 5
DELAYS_MS: Final = (50, 2_500)
"""Of delayed messages: some are due at once, some behind a failover."""
RECEIPTS: Final = "dl-receipts"

Arguments = Mapping[str, Any]


class Fate(StrEnum):
    """A consumer's way to settle a message."""

    ACKNOWLEDGED = "acknowledged"
    REJECTED = "rejected"
    RETURNED = "returned once, then rejected"


class Drop(StrEnum):
    """A rule of docs/amqp.md by which a message may be gone."""

    NONE = ""
    HEAD = "drop-head without a dead-letter exchange"
    CYCLE = "a cycle without a rejection"


@attrs.frozen(kw_only=True)
class Kind:
    """One way in which messages leave their queue.

    Attributes:
        name: of the first queue, to which clients publish; also of the place that all of its queues are together.
        queues: with their arguments; a message goes from one to a later one, except in a cycle.
        passing: queues that hold nothing when the load is over and time has passed.
        most: so many messages at most are in the first queue at the end; None for no limit.
        drops: the rule by which a message may be gone.
        consumed: clients take messages from the first queue.
        in_transactions: clients publish to it in transactions too.
        rejected_within: clients reject its messages in transactions; the last queue has what such transactions have rejected.
        counted: what comes back too often is a dead letter, whatever its fate: the end of a consumer's connection counts too.
        refusal_moves: a message that was refused may be in the last queue.
        delayed: messages are published with a delay, and come to the first queue when that is over.
        exchange: clients publish to it; "" is the default exchange.
    """

    name: str
    queues: Mapping[str, Arguments]
    passing: Collection[str] = ()
    most: int | None = None
    drops: Drop = Drop.NONE
    consumed: bool = False
    in_transactions: bool = True
    rejected_within: bool = False
    counted: bool = False
    refusal_moves: bool = False
    delayed: bool = False
    exchange: str = ""

    @property
    def last(self) -> str:
        """The last of its queues."""
        return list(self.queues)[-1]


def _to(queue: str) -> dict[str, Any]:
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}


EXPIRED: Final = Kind(
    name="dl-expired",
    queues={
        "dl-expired": {"x-message-ttl": 300, **_to("dl-expired-late")},
        "dl-expired-late": {"x-message-ttl": 200, **_to("dl-expired-dead")},
        "dl-expired-dead": {},
    },
    passing=("dl-expired", "dl-expired-late"),
)
OVERFLOW: Final = Kind(
    name="dl-overflow",
    queues={"dl-overflow": {"x-max-length": MOST, **_to("dl-overflow-dead")}, "dl-overflow-dead": {}},
    most=MOST,
)
BYTES: Final = Kind(
    name="dl-bytes",
    queues={"dl-bytes": {"x-max-length-bytes": 2_000, **_to("dl-bytes-dead")}, "dl-bytes-dead": {}},
)
REJECTED: Final = Kind(
    name="dl-rejected", queues={"dl-rejected": _to("dl-rejected-dead"), "dl-rejected-dead": {}}, consumed=True
)
REJECTED_WITHIN: Final = Kind(
    name="dl-within",
    queues={"dl-within": _to("dl-within-dead"), "dl-within-dead": {}},
    consumed=True,
    rejected_within=True,
)
LIMITED: Final = Kind(
    name="dl-limited",
    queues={"dl-limited": {"x-delivery-limit": 2, **_to("dl-limited-dead")}, "dl-limited-dead": {}},
    consumed=True,
    counted=True,
)
DELAYED: Final = Kind(
    name="dl-delayed",
    queues={
        "dl-delayed": {
            "x-delivery-limit": 2,
            "x-delayed-retry-type": "all",
            "x-delayed-retry-min": 100,
            "x-delayed-retry-max": 300,
            **_to("dl-delayed-dead"),
        },
        "dl-delayed-dead": {},
    },
    consumed=True,
    counted=True,
)
REFUSED: Final = Kind(
    name="dl-refused",
    queues={"dl-refused": {"x-max-length": MOST, "x-overflow": "reject-publish"}},
    most=MOST,
    consumed=True,
)
REFUSED_MOVED: Final = Kind(
    name="dl-refused-dlx",
    queues={
        "dl-refused-dlx": {"x-max-length": MOST, "x-overflow": "reject-publish-dlx", **_to("dl-refused-dlx-dead")},
        "dl-refused-dlx-dead": {},
    },
    most=MOST,
    consumed=True,
    in_transactions=False,
    refusal_moves=True,
)
DROPPED: Final = Kind(
    name="dl-dropped",
    queues={"dl-dropped": {"x-max-length": MOST}},
    most=MOST,
    drops=Drop.HEAD,
    in_transactions=False,
)
CYCLE: Final = Kind(
    name="dl-cycle",
    queues={
        "dl-cycle": {"x-message-ttl": 150, **_to("dl-cycle-back")},
        "dl-cycle-back": {"x-message-ttl": 150, **_to("dl-cycle")},
    },
    passing=("dl-cycle", "dl-cycle-back"),
    drops=Drop.CYCLE,
    in_transactions=False,
)
LATER: Final = Kind(
    name="dl-later",
    queues={"dl-later": {"x-delayed-publish": True, **_to("dl-later-dead")}, "dl-later-dead": {}},
    consumed=True,
    delayed=True,
)
BY_EXCHANGE: Final = Kind(
    name="dl-by-exchange",
    queues={"dl-by-exchange": _to("dl-by-exchange-dead"), "dl-by-exchange-dead": {}},
    consumed=True,
    delayed=True,
    exchange="dl-delays",
)
KINDS: Final = (
    EXPIRED,
    OVERFLOW,
    BYTES,
    REJECTED,
    REJECTED_WITHIN,
    LIMITED,
    DELAYED,
    REFUSED,
    REFUSED_MOVED,
    DROPPED,
    CYCLE,
    LATER,
    BY_EXCHANGE,
)
BY_NAME: Final = {kind.name: kind for kind in KINDS}
ARGUMENTS: Final[Mapping[str, Arguments]] = {
    **{queue: arguments for kind in KINDS for queue, arguments in kind.queues.items()},
    RECEIPTS: {},
}
"""Of all queues, in the order in which they are read: a message that moves meanwhile is found in the later one."""


def fate_of(message_id: str) -> Fate:
    """The way in which consumers settle the message: a quarter each is acknowledged and returned, half is rejected."""
    drawn = zlib.crc32(message_id.encode()) % 4
    return {0: Fate.ACKNOWLEDGED, 1: Fate.RETURNED}.get(drawn, Fate.REJECTED)


def delay_ms_of(message_id: str, queue: str) -> int:
    """How late the message comes to the queue to which a client has published it; 0 for a message without a delay."""
    kind = BY_NAME.get(queue)
    if kind is None or not kind.delayed:
        return 0
    least, most = DELAYS_MS
    return least + zlib.crc32(message_id.encode()) // 4 % (most - least)
