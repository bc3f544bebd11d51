"""The options that name a feed: ``--feed PATH|kafka:TOPIC``, ``--kafka HOSTS`` and ``--kafka-option KEY=VALUE``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from understudy.pipeline.feed.kafka_topic import check_hosts, check_topic
from understudy.pipeline.feed.size import estimated_events
from understudy.pipeline.spark.errors import FeedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC_PREFIX: Final = "kafka:"
SUFFIXES: Final = (".jsonl", ".parquet")


@attrs.frozen(kw_only=True)
class FeedOption:
    """A feed, as the user named it.

    Attributes:
        text: of ``--feed``, for messages.
        topic: of Kafka; "": the feed is in files.
        hosts: ``host:port,...`` of Kafka; "" if there is no topic.
        options: of Spark's Kafka connector.
    """

    text: str
    topic: str = ""
    hosts: str = ""
    options: dict[str, str] = attrs.field(factory=dict)

    def check(self) -> None:
        """Look for files, or for Kafka, before Spark starts, which takes seconds.

        Raises:
            FeedError: they are not there, or cannot be looked at.
        """
        if self.topic:
            check_hosts(self.hosts)
            return
        try:
            found = "://" in self.text or Path(self.text).exists()
        except OSError as error:
            raise FeedError(f"--feed {self.text} cannot be read: {error.strerror}") from error
        if not found:
            raise FeedError(f"--feed {self.text} is not there")

    def events(self, spark: SparkSession) -> int | None:
        """About how many there are: by the sizes of files, or by the offsets of the topic; None: this is not known.

        Raises:
            FeedError: the feed is not there.
        """
        return check_topic(spark, self.hosts, self.topic, self.options) if self.topic else estimated_events([self.text])

    def table(self, spark: SparkSession) -> DataFrame:
        """All that is there now.

        Raises:
            FeedError: the feed is not there.
        """
        from understudy.pipeline.feed.source import read_files, read_kafka  # noqa: PLC0415  # PySpark is an extra

        return read_kafka(spark, self.hosts, self.topic, self.options) if self.topic else read_files(spark, [self.text])

    def stream(self, spark: SparkSession, batch_files: int, batch_messages: int) -> DataFrame:
        """The feed as a stream: present events, and those that come.

        Args:
            spark: the session.
            batch_files: at most so many files in one batch.
            batch_messages: at most so many messages of a topic in one batch.

        Raises:
            FeedError: the feed is not there.
        """
        from understudy.pipeline.feed.source import stream_files, stream_kafka  # noqa: PLC0415  # PySpark is an extra

        if self.topic:
            limit = {"maxOffsetsPerTrigger": str(batch_messages)}
            return stream_kafka(spark, self.hosts, self.topic, {**limit, **self.options})
        limit = {"maxFilesPerTrigger": str(batch_files)}
        return stream_files(spark, [self.text], suffix_of(Path(self.text)), limit)


def feed_option(feed: str, hosts: str, options: Sequence[str]) -> FeedOption:
    """Read the options.

    Args:
        feed: of ``--feed``.
        hosts: of ``--kafka``; "" if it was not given.
        options: each a text of ``--kafka-option``.

    Raises:
        FeedError: a topic has no name or no hosts, or an option is not of the form KEY=VALUE.
    """
    named = topic_name("--feed", feed, hosts) if feed.startswith(TOPIC_PREFIX) else ""
    found = {}
    for text in options:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise FeedError(f"--kafka-option {text}: KEY=VALUE is needed")
        found[key] = value
    return FeedOption(text=feed, topic=named, hosts=hosts if named else "", options=found)


def topic_name(option: str, text: str, hosts: str) -> str:
    """The topic of ``kafka:TOPIC``.

    Args:
        option: its name, for messages.
        text: its value.
        hosts: of ``--kafka``.

    Raises:
        FeedError: it names no topic, or there are no hosts.
    """
    topic = text.removeprefix(TOPIC_PREFIX)
    if topic == text or not topic:
        raise FeedError(f"{option} {text}: kafka:TOPIC is needed")
    if not hosts:
        raise FeedError(f"{option} {text} needs --kafka HOST:PORT,...")
    return topic


def suffix_of(directory: Path) -> str:
    """The ending of the files in a directory that is read as a stream: one format.

    Raises:
        FeedError: the directory is not there, or holds both formats, or no file yet.
    """
    if not directory.is_dir():
        raise FeedError(f"{directory} is {'no directory' if directory.exists() else 'not there'}")
    names = {path.suffix for pattern in ("*", "*/*") for path in directory.glob(pattern) if path.name[0] not in "._"}
    found = sorted(names.intersection(SUFFIXES))
    if len(found) == 1:
        return found[0]
    reason = (
        f"holds files of both formats ({', '.join(found)})"
        if found
        else f"holds no file of a feed yet ({', '.join(SUFFIXES)})"
    )
    raise FeedError(f"{directory} {reason}: a stream reads one format")
