"""Watch: what is told of each batch as it is: readiness and blockers, open and in-doubt transactions, and alerts."""

from __future__ import annotations

from typing import Final

import attrs
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that Spark's own documentation gives it

from understudy.pipeline.stream import alerts, open_set
from understudy.pipeline.stream.checkpoint import Checkpoint
from understudy.pipeline.stream.sinks import Sink
from understudy.pipeline.stream.state import State
from understudy.pipeline.stream.wishes import StreamWishes

KINDS: Final = tuple(
    sorted({"applied", "blocker", "dtx_prepare", "open", "role", "status", *open_set.ENDS, *alerts.FACT_KINDS})
)
FIELDS: Final = (
    *("event", "group", "founding", "broker", "incarnation", "seq", "epoch", "offset", "at_ms", "primary_ms"),
    *("tx", "xid", "reason", "primary", "backup", "ready", "listed", "linked", "blockers", "what", "queue", "left"),
    *("cause", "count", "corrupt", "origin"),
)
READINESS: Final = (
    *("group", "broker", "epoch", "at_ms", "seq", "event", "backup", "ready", "listed", "linked", "blockers"),
    *("what", "queue", "tx", "left"),
)


@attrs.frozen(kw_only=True)
class AlertTopic:
    """Where alerts are sent, beside the table of alerts.

    Attributes:
        options: of Spark's Kafka connector.
    """

    hosts: str
    topic: str
    options: dict[str, str] = attrs.field(factory=dict)

    def send(self, rows: DataFrame) -> None:
        """Send alerts, each a JSON object with its ``id`` as key. A batch that runs again sends them again."""
        value = F.to_json(F.struct(*rows.columns))
        writer = rows.select(F.col("id").alias("key"), value.alias("value")).write.format("kafka")
        writer.options(**{"kafka.bootstrap.servers": self.hosts, "topic": self.topic, **self.options}).save()


def watched(events: DataFrame) -> DataFrame:
    """The events that this query reads, and the fields of them; lines that are no events stay in."""
    return events.where(F.col("event").isin(*KINDS) | F.col("corrupt").isNotNull()).select(*FIELDS)


class Watch:
    """Takes the batches of `watched`, one after the other.

    Args:
        spark: the session.
        checkpoint: state is kept beside it.
        sink: of the tables.
        wishes: what is too long.
        topic: of alerts; None for none.
    """

    def __init__(
        self, spark: SparkSession, checkpoint: Checkpoint, sink: Sink, wishes: StreamWishes, topic: AlertTopic | None
    ) -> None:
        self._sink = sink
        self._wishes = wishes
        self._topic = topic
        self._open = State(spark, checkpoint.of_state("open"), open_set.OPEN_TYPES)
        self._brokers = State(spark, checkpoint.of_state("brokers"), open_set.BROKER_TYPES)

    def take(self, batch: DataFrame, number: int) -> None:
        """Write the state after one batch, then its tables and alerts. All of it can be done again."""
        events = batch.persist()
        try:
            readable = events.where(F.col("event").isNotNull() & F.col("corrupt").isNull())
            brokers = self._brokers.write(number, open_set.next_brokers(self._brokers.before(number), readable))
            after = open_set.next_open(self._open.before(number), readable)
            ages = open_set.aged(after, brokers).persist()
            self._open.write(number, open_set.with_told(after, self._told(ages)))
            self._tables(number, readable, ages, brokers)
            self._alerts(number, events, readable, ages)
            ages.unpersist()
        finally:
            events.unpersist()

    def _told(self, ages: DataFrame) -> DataFrame:
        return ages.select("group", "founding", "tx", self._open_too_long("now_open"), self._in_doubt("now_doubt"))

    def _open_too_long(self, name: str) -> Column:
        return alerts.too_long_open(self._wishes.open_s).alias(name)

    def _in_doubt(self, name: str) -> Column:
        return alerts.too_long_in_doubt(self._wishes.in_doubt_s).alias(name)

    def _tables(self, number: int, events: DataFrame, ages: DataFrame, brokers: DataFrame) -> None:
        told = events.where(F.col("event").isin("readiness", "blocker")).select(*READINESS)
        self._sink.write("readiness", number, told)
        self._sink.write("open", number, open_set.gauge(ages, brokers))
        too_long = ages.where(
            alerts.too_long_open(self._wishes.open_s) | alerts.too_long_in_doubt(self._wishes.in_doubt_s)
        )
        shown = (
            "group",
            "founding",
            "tx",
            "xid",
            "broker",
            "now_ms",
            "opened_ms",
            "open_ms",
            "prepared_ms",
            "in_doubt_ms",
        )
        self._sink.write("open_transactions", number, too_long.select(*shown))

    def _alerts(self, number: int, events: DataFrame, readable: DataFrame, ages: DataFrame) -> None:
        found = alerts.of_facts(readable).unionByName(
            alerts.of_ages(ages, self._wishes.open_s, self._wishes.in_doubt_s)
        )
        rows = found.unionByName(alerts.of_unreadable(events)).persist()
        try:
            self._sink.write("alerts", number, rows)
            if self._topic is not None and not rows.isEmpty():
                self._topic.send(rows)
        finally:
            rows.unpersist()
