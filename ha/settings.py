"""Settings of the HA plugin."""

from __future__ import annotations

from typing import Final

import attrs

from understudy.broker.core.queues.replication_level import ReplicationLevel
from understudy.broker.log.record import FORMAT_VERSION

PAUSE_MS: Final = 1_500
"""Half of the file store's lease."""
LEAST_PAUSE_MS: Final = 200
"""Some ticks."""


@attrs.frozen(kw_only=True)
class HaSettings:
    """Settings of the plugin's core.

    Attributes:
        broker, group: ids, 1 to 64 characters.
        founds: this broker may found the group, if store and data are empty.
        min_insync: the group's minimum, used only when it is founded.
        replicate: the level of queues that do not say one.
        pause_ms: a primary whose process stood still for longer may have been replaced: half of what the store waits for it.
        successor_wait_ms: so long the others leave the lead to a successor that the store names and that seems to run.
        store_place: where the group stands in the coordination store, for people.
        newest_record_format: of log records, that this program reads and writes.
    """

    broker: str
    group: str
    founds: bool = False
    min_insync: int = 2
    backup_timeout_ms: int = 5_000
    expected_timeout_ms: int = 10_000
    reconnect_min_ms: int = 100
    reconnect_max_ms: int = 2_000
    coordination_retry_ms: int = 1_000
    pause_ms: int = PAUSE_MS
    successor_wait_ms: int = 3_000
    link_unacknowledged_bytes: int = 64 << 20
    replicate: ReplicationLevel = ReplicationLevel.ALL
    store_place: str = "the group"
    newest_record_format: int = FORMAT_VERSION
