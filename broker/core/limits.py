"""Every bound of the broker, by name, with what happens when it is reached."""

from __future__ import annotations

from typing import Final

import attrs

from understudy.broker.core.queues.moved_bodies import NO_BODIES, MovedBodies
from understudy.broker.core.queues.paging import PAGING, PagingLimits

MESSAGE_SIZE: Final = "message size"
TX_SIZE: Final = "transaction size"
CONNECTIONS: Final = "connections"
MANY_READS_BYTES: Final = 64 << 10
"""A message of that size is large: it comes in several reads, so a turn may end more of them than it has read."""
REFUSING: Final = frozenset({MESSAGE_SIZE, TX_SIZE, CONNECTIONS})
"""Limits that refuse one message, transaction or connection, and say nothing of other work: how metrics name them."""


@attrs.frozen(kw_only=True)
class Limits:
    """Bounds of one broker. Bytes are of message bodies and properties.

    Attributes:
        unstable_bytes: received and not yet stable, all connections, unfinished messages included: publishers are not read any
            more. One connection at a time is read on until its message is whole (``large_permit``).
        unstable_bytes_per_connection: the same for one connection.
        outgoing_bytes_per_client: written and not taken by a client: no more deliveries to it, basic.get waits; with as much
            again of other answers it is not read any more.
        tx_bytes: content of one transaction, and what each of its operations takes: 506 and rolled back above it.
        tx_memory_bytes: bodies and properties of one transaction: bodies beyond it are spilled to a file.
        parted_bytes: a body from which on it stands in the log in parts (``parted_bodies``): no setting.
        part_bytes: of a part; ``parts_in_flight_bytes``: of parts that are not stable.
        message_bytes: one body: 406 above it, before anything of it is kept.
        connections: open at once: 530 at connection.open for a further one.
        channel_max, frame_max, heartbeat_s: what is offered in connection.tune.
        hold_commits: commits wait until the driver ends a turn with ``flush`` (``group.min_wait_ms``), for others to join them.
        group_count: or until so many have come; 0: no number ends the wait.
        mandatory_at_commit: an unroutable mandatory message of a transaction comes back at the commit, not at the publish.
        tx_idle_timeout_ms: a transaction without an operation for that long is rolled back (406).
        dtx_timeout_ms: a branch that is not prepared so long after it was started is rolled back; its client may say otherwise.
        consumer_timeout_ms: a consumer that holds a message so long is cancelled (`consumer_timeouts`), unless it or its queue has
            a time-out of its own.
        outcome_ttl_ms, outcome_limit: how long, and how many, outcomes are kept.
        auto_delete_grace_ms: so long after a promotion, or the last use since, an auto-delete queue lives that has no consumer
            any more, and an exchange that has no binding any more.
        paging: when bodies leave the memory, and which stay.
        moved_bodies: the queues for which a MOVE carries the body (`moved_bodies`).
    """

    unstable_bytes: int = 64 << 20
    unstable_bytes_per_connection: int = 4 << 20
    outgoing_bytes_per_client: int = 8 << 20
    tx_bytes: int = 1 << 30
    tx_memory_bytes: int = 16 << 20
    parted_bytes: int = 2 << 20
    part_bytes: int = 1 << 20
    parts_in_flight_bytes: int = 4 << 20
    message_bytes: int = 128 << 20
    connections: int = 10_000
    hold_commits: bool = False
    group_count: int = 0
    mandatory_at_commit: bool = False
    channel_max: int = 2047
    frame_max: int = 131072
    heartbeat_s: int = 60
    handshake_timeout_ms: int = 10_000
    tx_idle_timeout_ms: int = 30 * 60_000
    dtx_timeout_ms: int = 60_000
    consumer_timeout_ms: int = 30 * 60_000
    outcome_ttl_ms: int = 3_600_000
    outcome_limit: int = 1_000_000
    auto_delete_grace_ms: int = 60_000
    moved_bodies: MovedBodies = NO_BODIES
    paging: PagingLimits = PAGING
