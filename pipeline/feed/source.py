"""Where a feed comes from: files (JSON lines and Parquet, also mixed), or a Kafka topic; as a table, and as a stream.

    cluster/feed/b1/000000000001.jsonl      a directory a broker   (`understudy cluster --feed`, `understudy feed --out`)
    feed/b1.jsonl  feed/b2.jsonl            a file a broker        (`scripts/simulate --feed`)
    feed.jsonl                              one file               (`understudy feed --json`)

Every reader gives the columns of `feed.schema`, filled with defaults, and two more:

* ``corrupt``: the text of a line or message that is no event; null in all others.
* ``origin``: the file or the topic partition from which the row came, for messages about it.

Spark reads when rows are asked for. So what is wrong inside of files comes out then: `feed.check` looks, and names the file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation
from pyspark.sql.types import StringType

from understudy.pipeline.feed.kafka_topic import check_hosts, check_topic
from understudy.pipeline.feed.schema import feed_schema, filled
from understudy.pipeline.spark.errors import FeedError

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamReader

CORRUPT: Final = "corrupt"
ORIGIN: Final = "origin"
JSON_LINES: Final = ".jsonl"
PARQUET: Final = ".parquet"
_KAFKA_TIMEOUT_MS: Final = "15000"
_READ: Final = feed_schema().add(CORRUPT, StringType())
_REMOTE: Final = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_PATTERN: Final = re.compile(r"[\\*?\[\]{}]")
_ONE_OBJECT: Final = r"""^\s*+\{(?:[^"{}]++|"(?:[^"\\]++|\\.)*+")*+\}\s*+$"""
"""A line that is one flat object: without this, Spark passes over what stands behind the first object of a line."""


# -- files ------------------------------------------------------------------------------------------------------------


def read_files(spark: SparkSession, paths: Sequence[str | Path]) -> DataFrame:
    """The feed in ``paths``.

    Args:
        spark: the session.
        paths: files, directories of files, or directories of such directories; or addresses of a file system that Spark knows
            (``s3a://...``), below which every file with the ending of a feed is read.

    Raises:
        FeedError: a path is not there, or there is no file of a feed in it.
    """
    found: list[DataFrame] = []
    for suffix, files in _by_suffix(paths).items():
        local = [each for each in files if not _REMOTE.match(each)]
        for some in ([local] if local else []) + [[each] for each in files if _REMOTE.match(each)]:
            reader = (
                spark.read.format("text")
                if suffix == JSON_LINES
                else spark.read.format("parquet").schema(feed_schema())
            )
            if some is not local:
                reader = reader.options(recursiveFileLookup=True, pathGlobFilter=f"*{suffix}")
            found.append(_rows(reader.load(some), suffix))
    feed = found[0]
    for each in found[1:]:
        feed = feed.unionByName(each)
    return feed


def stream_files(
    spark: SparkSession, paths: Sequence[str | Path], suffix: str = JSON_LINES, limits: dict[str, str] | None = None
) -> DataFrame:
    """The same as a stream: files that are there, and those that come. All are of one format.

    Args:
        spark: the session.
        paths: directories, or addresses. Files are looked for below them, two levels deep.
        suffix: ``.jsonl`` or ``.parquet``.
        limits: options of Spark's file source, such as ``maxFilesPerTrigger``.

    Raises:
        FeedError: a path is not there, or is no directory.
    """
    found: DataFrame | None = None
    for path in paths:
        text = str(path)
        if not _REMOTE.match(text) and not Path(text).is_dir():
            raise FeedError(f"{text} is {'no directory' if Path(text).exists() else 'not there'}")
        reader: DataStreamReader = spark.readStream.format("parquet" if suffix == PARQUET else "text")
        reader = (reader.schema(feed_schema()) if suffix == PARQUET else reader).options(**(limits or {}))
        rows = _rows(reader.options(recursiveFileLookup=True, pathGlobFilter=f"*{suffix}").load(text), suffix)
        found = rows if found is None else found.unionByName(rows)
    if found is None:
        raise FeedError("no path of a feed was given")
    return found


HELD_PIECES: Final = 2
"""Two cores are nearly everywhere. More pieces would cost more tasks than they spare."""


def held(events: DataFrame) -> DataFrame:
    """Few events, read once, and then held by Spark: a table whose plan is itself alone.

    Spark looks at a whole plan again with each step that is added to it. Of few events that takes longer than all tasks.
    """
    return events.coalesce(HELD_PIECES).localCheckpoint()


def _rows(read: DataFrame, suffix: str) -> DataFrame:
    origin = F.col("_metadata.file_path").alias(ORIGIN)
    if suffix == PARQUET:
        return filled(read.select("*", origin).withColumn(CORRUPT, F.lit(None).cast(StringType())))
    lines = read.select(F.col("value"), origin).filter(F.length(F.trim("value")) > 0)
    return _parsed(lines)


def _parsed(lines: DataFrame) -> DataFrame:
    """Events of ``lines``, each of which has a text ``value`` and its ``origin``.

    A line that is no event must be seen, and named: "permissive" keeps its text, and no other mode keeps anything.
    """
    parsed = F.from_json("value", _READ, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT})
    rows = lines.select(parsed.alias("row"), "value", ORIGIN).select("row.*", "value", ORIGIN)
    corrupt = F.when(F.col("value").rlike(_ONE_OBJECT), F.col(CORRUPT)).otherwise(F.col("value"))
    return filled(rows.withColumn(CORRUPT, corrupt).drop("value"))


def _by_suffix(paths: Sequence[str | Path]) -> dict[str, list[str]]:
    """Files by their endings; an address of another file system stands under both."""
    found: dict[str, list[str]] = {JSON_LINES: [], PARQUET: []}
    for path in paths:
        text = str(path)
        if _REMOTE.match(text):
            for files in found.values():
                files.append(text)
            continue
        files_of = _files_of(Path(text))
        for file in files_of:
            found[file.suffix].append(literal_path(file.absolute()))
    if not any(found.values()):
        raise FeedError("no path of a feed was given")
    return found


def literal_path(path: str | Path) -> str:
    """``path`` for Spark's readers, which would take brackets, braces, ``*`` and ``?`` in it for a pattern.

    An address of another file system stays as it is: there a pattern is the user's.
    """
    text = str(path)
    return text if _REMOTE.match(text) else _PATTERN.sub(r"\\\g<0>", text)


def _files_of(path: Path) -> list[Path]:
    try:
        if path.is_file():
            if path.suffix not in (JSON_LINES, PARQUET):
                raise FeedError(
                    f"{path} is no file of a feed: its name ends neither with {JSON_LINES} nor with {PARQUET}"
                )
            return [path]
        if not path.is_dir():
            raise FeedError(f"{path} is not there")
        within = sorted(each for pattern in ("*", "*/*") for each in path.glob(pattern))
        files = [each for each in within if each.suffix in (JSON_LINES, PARQUET) and each.name[0] not in "._"]
    except OSError as error:
        raise FeedError(f"{path}: {error.strerror}") from error
    if not files:
        raise FeedError(f"{path} holds no file of a feed (*{JSON_LINES} or *{PARQUET})")
    return [each for each in files if each.is_file() and each.stat().st_size] or _empty(path)


def _empty(path: Path) -> list[Path]:
    raise FeedError(f"{path}: the feed is empty")


# -- Kafka ------------------------------------------------------------------------------------------------------------


def read_kafka(spark: SparkSession, hosts: str, topic: str, options: dict[str, str] | None = None) -> DataFrame:
    """The feed in a topic, from its beginning to where it ends now.

    Args:
        spark: a session with the jars `connector_jars.KAFKA`.
        hosts: ``host:port,...`` of some servers of the Kafka cluster.
        topic: its name. A message holds one event as JSON.
        options: of Spark's connector, such as ``kafka.security.protocol``.

    Raises:
        FeedError: none of ``hosts`` can be reached, or there is no such topic.
    """
    check_hosts(hosts)
    check_topic(spark, hosts, topic, options or {})
    reader = spark.read.format("kafka").options(**_kafka_options(hosts, topic, options))
    return _messages(reader.option("endingOffsets", "latest").load())


def stream_kafka(spark: SparkSession, hosts: str, topic: str, options: dict[str, str] | None = None) -> DataFrame:
    """The same as a stream, from the topic's beginning; arguments and errors as of `read_kafka`."""
    check_hosts(hosts)
    check_topic(spark, hosts, topic, options or {})
    return _messages(spark.readStream.format("kafka").options(**_kafka_options(hosts, topic, options)).load())


def _kafka_options(hosts: str, topic: str, options: dict[str, str] | None) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": hosts,
        "subscribe": topic,
        "startingOffsets": "earliest",
        # What an aborted transaction of a producer has left is no part of the feed.
        "kafka.isolation.level": "read_committed",
        "kafka.request.timeout.ms": _KAFKA_TIMEOUT_MS,
        "kafka.default.api.timeout.ms": _KAFKA_TIMEOUT_MS,
        # Events that the topic has let go of are missing evidence: the numbers of the events show it.
        "failOnDataLoss": "false",
        **(options or {}),
    }


def _messages(read: DataFrame) -> DataFrame:
    origin = F.concat_ws("/", F.col("topic"), F.col("partition").cast(StringType())).alias(ORIGIN)
    return _parsed(read.select(F.col("value").cast(StringType()).alias("value"), origin))
