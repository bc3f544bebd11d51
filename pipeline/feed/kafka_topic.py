"""Is there a Kafka, and has it the topic? Looked at before a feed is read or alerts are sent, so that the message names both.

Spark's connector itself tries for minutes, and then names no address. Alerts to a topic that is not there would fail with the first
batch that has any.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from understudy.pipeline.spark.errors import FeedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT_S: Final = 5.0
CONNECTOR_PREFIX: Final = "kafka."
"""Of those options of Spark's connector that are meant for Kafka's own client."""
_TIMEOUTS: Final = {"kafka.request.timeout.ms": "5000", "kafka.default.api.timeout.ms": "15000"}
_ADMIN: Final = "org.apache.kafka.clients.admin.AdminClient"
_REASONS: Final = (
    ("UnknownTopicOrPartition", "Kafka has no such topic"),
    ("InvalidTopic", "that is no name of a topic"),
    ("TopicAuthorization", "this user lacks an ACL on the topic"),
    ("Authentication", "Kafka refuses the credentials"),
    ("TimeoutException", "Kafka does not answer"),
)
"""Part of a Java exception's name, and what it means: the first that fits."""


def check_hosts(hosts: str) -> None:
    """Raises: FeedError: none of ``host:port,...`` takes a connection, or one is not of that form."""
    reasons = []
    for each in hosts.split(","):
        host, colon, port = each.strip().rpartition(":")
        if not (host and colon and port.isdigit() and 0 < int(port) < 65_536):
            raise FeedError(f"--kafka {hosts}: {each!r} is not of the form host:port")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
        except OSError as error:
            reasons.append(f"{each}: {error.strerror or error}")
        else:
            return
    raise FeedError(f"Kafka cannot be reached at {'; '.join(reasons)}")


def check_topic(spark: SparkSession, hosts: str, topic: str, options: Mapping[str, str]) -> int:
    """Ask Kafka for the topic, with the client that Spark's connector brings along.

    Args:
        spark: a session with the jars `connector_jars.KAFKA`.
        hosts: ``host:port,...``.
        topic: its name.
        options: of Spark's connector; those of Kafka's client are used.

    Returns:
        How many offsets its partitions have, from the first to the last: at least the number of its messages.

    Raises:
        FeedError: Kafka does not answer, has no such topic, or does not show it to this user.
    """
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415  # PySpark is an extra

    jvm: Any = spark._jvm  # noqa: SLF001  # PySpark has no other way to a Java class
    settings = jvm.java.util.Properties()
    for name, value in {"kafka.bootstrap.servers": hosts, **_TIMEOUTS, **options}.items():
        if name.startswith(CONNECTOR_PREFIX):
            settings.setProperty(name.removeprefix(CONNECTOR_PREFIX), value)
    try:
        admin = getattr(jvm, _ADMIN).create(settings)
        try:
            asked = admin.describeTopics(jvm.java.util.Collections.singletonList(topic)).allTopicNames().get()
            partitions = [each.partition() for each in asked.get(topic).partitions()]
            first, last = (_offsets(jvm, admin, topic, partitions, which) for which in ("earliest", "latest"))
        finally:
            admin.close(jvm.java.time.Duration.ZERO)
    except Py4JJavaError as error:
        said = str(error.java_exception)
        reason = next((words for part, words in _REASONS if part in said), said.splitlines()[0])
        raise FeedError(f"topic {topic!r} at {hosts}: {reason}") from error
    return sum(last) - sum(first)


def _offsets(jvm: Any, admin: Any, topic: str, partitions: Sequence[int], which: str) -> list[int]:
    """The ``earliest`` or the ``latest`` offset of each partition."""
    asked = jvm.java.util.HashMap()
    for each in partitions:
        spec = getattr(jvm.org.apache.kafka.clients.admin.OffsetSpec, which)()
        asked.put(jvm.org.apache.kafka.common.TopicPartition(topic, each), spec)
    return [int(found.offset()) for found in admin.listOffsets(asked).all().get().values()]
