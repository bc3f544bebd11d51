"""The digests of their queues that brokers state over HTTP, and whether they agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from understudy.client.runs.broker_group import GroupError
from understudy.client.verdicts.differing import differing
from understudy.client.verdicts.evidence.content import BrokerContent, QueueContent

DIGEST_PAGE: Final = "/digest"
READER: Final = "a client"
"""Stands for the broker in what a client has read."""


def digests_of(broker: str, page: Mapping[str, Any]) -> BrokerContent:
    """The page ``/digest``: ``{"queues": [{"vhost": "/", "name": ..., "messages": 12, "digest": "<sha256>"}, ...]}``."""
    try:
        queues = {each["name"]: QueueContent(count=each["messages"], digest=each["digest"]) for each in page["queues"]}
    except (KeyError, TypeError) as error:
        raise GroupError(f"{DIGEST_PAGE} is not as it should be: {str(page)[:200]}") from error
    return BrokerContent(broker=broker, queues=queues)


def agree(brokers: Sequence[BrokerContent]) -> bool:
    """All brokers state the same of the same queues; without a broker there is no agreement."""
    return bool(brokers) and not differing(brokers)
