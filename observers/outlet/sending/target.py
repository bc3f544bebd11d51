"""OutletTarget: where the outlet of one group sends, and on which terms."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class OutletTarget:
    """Where the outlet of one group sends.

    Attributes:
        group: id of the group.
        transactional_id: of all outlets of the group.
        position_topic: compacted, of one partition.
        topics: that are known before a message comes.
        topic_forms: patterns of those that are not.
        transaction_timeout_s: Kafka aborts a transaction that is open for longer.
        max_message_bytes: a larger message is not sent.
        create: topics that are missing are made, with Kafka's defaults.
    """

    group: str
    transactional_id: str
    position_topic: str
    topics: tuple[str, ...] = ()
    topic_forms: tuple[str, ...] = ()
    transaction_timeout_s: float = 300.0
    max_message_bytes: int = 1 << 20
    create: bool = False
