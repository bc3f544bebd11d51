"""The command ``understudy stream``: a feed in, tables and alerts out, until it is stopped."""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from understudy.pipeline.commands.report import refuse
from understudy.pipeline.feed.kafka_topic import CONNECTOR_PREFIX, check_hosts, check_topic
from understudy.pipeline.feed.option import FeedOption, feed_option, suffix_of, topic_name
from understudy.pipeline.spark.errors import PipelineError
from understudy.pipeline.spark.session import LOCAL, MEMORY, SessionSettings, require_pyspark, session
from understudy.pipeline.stream.checkpoint import Checkpoint, open_checkpoint
from understudy.pipeline.stream.wishes import Format, StreamWishes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from understudy.pipeline.stream.running import Stream

FAILED: Final = 1
SHUFFLE_PARTITIONS: Final = 4
"""A batch is small, and each partition of each stateful operator is a state store of its own."""
DELTA_SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # What a table's log has is read with 50 tasks by default, after each batch; it is a few thousand small files at most.
    "spark.databricks.delta.snapshotPartitions": "2",
}


def stream(
    feed: Annotated[
        str,
        typer.Option(
            metavar="DIR|kafka:TOPIC", help="A directory of a feed's files, or a Kafka topic.", show_default=False
        ),
    ],
    checkpoint: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the stream keeps how far it is.", show_default=False)
    ],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the tables go.", show_default=False)] = None,
    file_format: Annotated[Format, typer.Option("--format", help="Of the tables.")] = Format.PARQUET,
    kafka: Annotated[str, typer.Option(metavar="HOSTS", help="host:port,... of Kafka, for kafka:TOPIC.")] = "",
    kafka_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="Of Spark's Kafka connector, as kafka.security.protocol=SSL; repeatable."
        ),
    ] = None,
    alerts: Annotated[str, typer.Option(metavar="kafka:TOPIC", help="Send alerts there, too.")] = "",
    window: Annotated[float, typer.Option(min=0.1, help="Seconds of a window.")] = 10.0,
    late: Annotated[float, typer.Option(min=0.0, help="So many seconds an event may be late.")] = 300.0,
    open_after: Annotated[float, typer.Option(min=0.0, help="Tell transactions that are open so many seconds.")] = 30.0,
    in_doubt_after: Annotated[
        float, typer.Option(min=0.0, help="Tell branches that are in doubt so many seconds.")
    ] = 60.0,
    every: Annotated[float, typer.Option(min=0.1, help="A batch so often, in seconds.")] = 10.0,
    batch_files: Annotated[int, typer.Option(min=1, help="At most so many files a batch.")] = 1000,
    batch_messages: Annotated[int, typer.Option(min=1, help="At most so many messages of Kafka a batch.")] = 1_000_000,
    once: Annotated[bool, typer.Option("--once", help="Take what is there now, then end.")] = False,
    master: Annotated[str, typer.Option(help="Where Spark runs; not used under spark-submit.")] = LOCAL,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Of Spark's driver.")] = MEMORY,
    as_json: Annotated[bool, typer.Option("--json", help="Each batch as a line of JSON on stdout.")] = False,
) -> None:
    """Keep tables of a feed up to date: throughput, commit latency, lag, readiness, in-doubt and open transactions, alerts.

    Goes on at its checkpoint, and neither loses nor doubles anything when it is killed. Exit codes: 0 stopped, or done with --once;
    1 a query failed; 2 bad input.
    """
    try:
        option = feed_option(feed, kafka, kafka_option or [])
        topic = topic_name("--alerts", alerts, kafka) if alerts else ""
        wishes = StreamWishes(
            feed=feed if option.topic else str(Path(feed).absolute()),
            checkpoint=checkpoint.absolute(),
            out=_output(out, file_format),
            format=file_format,
            window_s=window,
            late_s=late,
            open_s=open_after,
            in_doubt_s=in_doubt_after,
        )
        if option.topic:  # before Spark starts, which takes seconds
            option.check()
        else:
            suffix_of(Path(feed))
        require_pyspark()
        kept = open_checkpoint(wishes)
        settings = _settings(wishes, master, memory, with_kafka=bool(option.topic or topic))
        with session(settings) as spark:
            running = _stream(
                spark, option.stream(spark, batch_files, batch_messages), wishes, kept, option, kafka, topic
            )
            running.start(once=once, every_s=every)
            try:
                _run(running, as_json=as_json)
            finally:
                if wishes.out is not None:
                    kept.note_tables(wishes.out)
    except PipelineError as error:
        refuse(str(error))


def _output(out: Path | None, file_format: Format) -> Path | None:
    """Raises: PipelineError: the format goes without ``--out``, or needs it."""
    if file_format is Format.CONSOLE:
        if out is not None:
            raise PipelineError(f"--out {out}: --format console prints, and writes no tables")
        return None
    if out is None:
        raise PipelineError(f"--format {file_format.value} needs --out DIR")
    return out.absolute()


def _settings(wishes: StreamWishes, master: str, memory: str, *, with_kafka: bool) -> SessionSettings:
    from understudy.pipeline.spark.connector_jars import DELTA, KAFKA  # noqa: PLC0415  # PySpark is an extra

    delta = wishes.format is Format.DELTA
    return SessionSettings(
        name=f"understudy stream {wishes.feed}",
        master=master,
        memory=memory,
        shuffle_partitions=SHUFFLE_PARTITIONS,
        jars=[*([KAFKA] if with_kafka else []), *([DELTA] if delta else [])],
        more=DELTA_SETTINGS if delta else {},
    )


def _stream(
    spark: SparkSession,
    events: DataFrame,
    wishes: StreamWishes,
    kept: Checkpoint,
    option: FeedOption,
    hosts: str,
    topic: str,
) -> Stream:
    from understudy.pipeline.stream.running import Stream  # noqa: PLC0415  # PySpark is an extra
    from understudy.pipeline.stream.sinks import make_sink  # noqa: PLC0415
    from understudy.pipeline.stream.watch import AlertTopic  # noqa: PLC0415

    security = {name: value for name, value in option.options.items() if name.startswith(CONNECTOR_PREFIX)}
    alerts = AlertTopic(hosts=hosts, topic=topic, options=security) if topic else None
    if alerts is not None:
        check_hosts(hosts)
        check_topic(spark, hosts, topic, security)
    return Stream(spark, events, wishes, kept, make_sink(wishes.format, wishes.out, kept.stream), alerts)


def _run(running: Stream, *, as_json: bool) -> None:
    """Until the stream ends, or is asked to stop by SIGINT or SIGTERM."""
    from understudy.pipeline.stream.running import StreamFailedError  # noqa: PLC0415  # PySpark is an extra

    asked = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: asked.set())
    try:
        running.run(_json_line if as_json else _text_line, asked.is_set)
    except StreamFailedError as error:
        print(f"understudy: {error}", file=sys.stderr)  # noqa: T201  # a command prints
        raise typer.Exit(FAILED) from None
    for name, totals in running.totals.items():
        late = f", {totals.late:,} too late for their windows" if totals.late else ""
        print(f"{name}: {totals.batches:,} batches, {totals.rows:,} events{late}", file=sys.stderr)  # noqa: T201


def _json_line(name: str, progress: dict[str, Any]) -> None:
    print(json.dumps({"query": name, **_figures(progress)}), flush=True)  # noqa: T201


def _text_line(name: str, progress: dict[str, Any]) -> None:
    figures = _figures(progress)
    late = f", {figures['late']:,} too late" if figures["late"] else ""
    print(  # noqa: T201
        f"{name} {figures['batch']}: {figures['events']:,} events in {figures['ms']:,} ms{late}",
        file=sys.stderr,
        flush=True,
    )


def _figures(progress: dict[str, Any]) -> dict[str, Any]:
    return {
        "batch": progress["batchId"],
        "events": progress["numInputRows"],
        "ms": progress["durationMs"].get("triggerExecution", 0),
        "late": sum(each["numRowsDroppedByWatermark"] for each in progress["stateOperators"]),
        "watermark": progress["eventTime"].get("watermark", "") if progress.get("eventTime") else "",
    }
