"""Views for passive plugins: names, ids and counts, frozen. No object of the core is reached from here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import attrs


class QueueName(NamedTuple):
    """One queue, as clients name it."""

    vhost: str
    queue: str


@attrs.frozen(kw_only=True)
class TxView:
    """A transaction, or a branch of a distributed one, at one moment.

    Attributes:
        tx_id: as people write it: ``epoch.sequence``.
        name: what its client has named it; of a branch its xid, as soon as it is prepared; else "".
        state: ``prepared``, ``committed`` or ``rolled-back``.
        enqueued: how many messages it brings to each queue that is there.
        dequeued: how many it takes out of each; of one that its client has rolled back, as far as that was recorded.
        octets: of the messages that it brings, bodies and properties.
    """

    tx_id: str
    name: str
    state: str
    enqueued: Mapping[QueueName, int]
    dequeued: Mapping[QueueName, int]
    octets: int


@attrs.frozen(kw_only=True)
class DeliveryView:
    """A message that is handed to a client.

    Attributes:
        message_id: in its queue; messages of a queue ascend by it, and it is the same on every broker.
        octets: of its body.
    """

    queue: QueueName
    message_id: int
    redelivered: bool
    octets: int
