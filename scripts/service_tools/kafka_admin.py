"""Topics and ACLs of a Kafka cluster: Kafka makes and allows nothing by itself here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import TopicAlreadyExistsError, for_code
from aiokafka.protocol.admin import CreateAclsRequest

from understudy.ha.trial.edge.java_servers import ServersError

LEADERS_S: Final = 60.0
RESOURCES: Final = {"topic": 2, "group": 3, "cluster": 4, "transactional id": 5}
OPERATIONS: Final = {"Read": 3, "Write": 4, "Create": 5, "Describe": 8, "DescribeConfigs": 10, "IdempotentWrite": 12}
_LITERAL: Final = 3
_PREFIXED: Final = 4
_ALLOW: Final = 3


async def create_topic(
    hosts: str, name: str, partitions: int = 1, *, replicas: int = 1, settings: Mapping[str, str] | None = None
) -> None:
    """Make a topic, and wait until each of its partitions has a leader. One that is there already stays as it is.

    Args:
        hosts: bootstrap servers of a plain listener.
        name: of the topic.
        partitions: how many.
        replicas: of each partition.
        settings: such as ``{"min.insync.replicas": "2"}``.

    Raises:
        ServersError: Kafka refuses it, or no leaders are chosen.
    """
    admin = AIOKafkaAdminClient(bootstrap_servers=hosts)
    await admin.start()
    try:
        topic = NewTopic(name, partitions, replicas, topic_configs=dict(settings or {}))
        answer = await admin.create_topics([topic])
        for _, code, *why in answer.topic_errors:
            error = for_code(code)
            if code and error is not TopicAlreadyExistsError:
                raise ServersError(f"topic {name}: {error.__name__}: {why[0] if why else ''}")
        deadline = time.monotonic() + LEADERS_S
        while not _led(await admin.describe_topics([name])):
            if time.monotonic() > deadline:
                raise ServersError(f"topic {name} has no leaders within {LEADERS_S:g} s")
            await asyncio.sleep(0.05)
    finally:
        await admin.close()


async def allow(hosts: str, user: str, operation: str, resource: str, name: str, *, prefixed: bool = False) -> None:
    """Add an ACL.

    Args:
        hosts: bootstrap servers of a plain listener.
        user: who may; of a client certificate its subject, such as ``CN=localhost``.
        operation: one of `OPERATIONS`.
        resource: one of `RESOURCES`.
        name: of the resource.
        prefixed: all resources whose names begin like that.

    Raises:
        ServersError: Kafka refuses it.
    """
    client = AIOKafkaClient(bootstrap_servers=hosts)
    await client.bootstrap()
    try:
        request = CreateAclsRequest(
            RESOURCES[resource],
            name,
            _PREFIXED if prefixed else _LITERAL,
            f"User:{user}",
            "*",
            OPERATIONS[operation],
            _ALLOW,
        )
        answer = await client.send(client.get_random_node(), request)
    finally:
        await client.close()
    for code, why in answer.creation_responses:
        if code:
            raise ServersError(f"an ACL for {user}: {for_code(code).__name__}: {why}")


def _led(described: list[dict[str, Any]]) -> bool:
    partitions = [each for topic in described for each in topic["partitions"]]
    return bool(partitions) and all(each["leader"] >= 0 and not each["error_code"] for each in partitions)
