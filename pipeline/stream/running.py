"""Running: starts the queries of a stream, tells their progress, and ends them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, Final

import attrs
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from understudy.pipeline.spark.errors import PipelineError
from understudy.pipeline.stream.checkpoint import Checkpoint
from understudy.pipeline.stream.latency import latency
from understudy.pipeline.stream.sinks import Sink
from understudy.pipeline.stream.watch import AlertTopic, Watch, watched
from understudy.pipeline.stream.windows import lag, throughput
from understudy.pipeline.stream.wishes import StreamWishes

LOOK_S: Final = 0.5
_CAUSE: Final = re.compile(r"(?:[\w$]+\.)+[\w$]*(?:Error|Exception): ")
QUERIES: Final = ("throughput", "latency", "watch")


class StreamFailedError(PipelineError):
    """A query has ended with an error. The checkpoint stands before the batch that failed."""


@attrs.define(kw_only=True)
class Totals:
    """Work of one query in this run.

    Attributes:
        batches, rows: how many, of the source.
        late: rows that came behind the watermark, and are in no window.
        last: number of the last batch; -1: none.
    """

    batches: int = 0
    rows: int = 0
    late: int = 0
    last: int = -1


class Stream:
    """The three queries.

    Args:
        spark: the session.
        events: the feed as a stream, of the columns of `feed.source`.
        wishes: what was asked for.
        checkpoint: opened for these wishes.
        sink: of the tables.
        topic: of alerts; None for none.
    """

    def __init__(
        self,
        spark: SparkSession,
        events: DataFrame,
        wishes: StreamWishes,
        checkpoint: Checkpoint,
        sink: Sink,
        topic: AlertTopic | None,
    ) -> None:
        self._events = events
        self._wishes = wishes
        self._checkpoint = checkpoint
        self._sink = sink
        self._watch = Watch(spark, checkpoint, sink, wishes, topic)
        self._queries: dict[str, StreamingQuery] = {}
        self.totals = {name: Totals() for name in QUERIES}

    def start(self, *, once: bool, every_s: float) -> None:
        """Start the queries.

        Args:
            once: take what is there now, then end.
            every_s: else a batch begins so often, if there is something new.
        """
        trigger: dict[str, Any] = {"availableNow": True} if once else {"processingTime": f"{every_s} seconds"}
        readable = self._events.where("event is not null and corrupt is null")
        frames: dict[str, tuple[DataFrame, Callable[[DataFrame, int], None]]] = {
            "throughput": (throughput(readable, self._wishes), self._windows),
            "latency": (latency(readable, self._wishes), self._latency),
            "watch": (watched(self._events), self._watch.take),
        }
        for name, (frame, take) in frames.items():
            writer = frame.writeStream.queryName(name).outputMode("append").foreachBatch(take)
            writer = writer.option("checkpointLocation", self._checkpoint.of_query(name))
            self._queries[name] = writer.trigger(**trigger).start()

    def _windows(self, rows: DataFrame, batch: int) -> None:
        closed = rows.persist()
        try:
            self._sink.write("throughput", batch, closed)
            self._sink.write("lag", batch, lag(closed))
        finally:
            closed.unpersist()

    def _latency(self, rows: DataFrame, batch: int) -> None:
        closed = rows.persist()
        try:
            self._sink.write("latency", batch, closed)
        finally:
            closed.unpersist()

    def run(self, say: Callable[[str, dict[str, Any]], None], stop_asked: Callable[[], bool]) -> None:
        """Until the queries end, or one fails, or a stop is asked for.

        Args:
            say: told each batch: the query's name, and Spark's progress of it.
            stop_asked: looked at twice a second.

        Raises:
            StreamFailedError: a query has failed; the others are stopped.
        """
        try:
            while any(query.isActive for query in self._queries.values()) and not stop_asked():
                self._look(say)
                time.sleep(LOOK_S)
        finally:
            self.stop()
        self._look(say)

    def _look(self, say: Callable[[str, dict[str, Any]], None]) -> None:
        for name, query in self._queries.items():
            totals = self.totals[name]
            for progress in query.recentProgress:
                told: dict[str, Any] = progress if isinstance(progress, dict) else progress.jsonValue
                if told["batchId"] > totals.last:
                    totals.last = told["batchId"]
                    totals.batches += 1
                    totals.rows += told["numInputRows"]
                    totals.late += sum(each["numRowsDroppedByWatermark"] for each in told["stateOperators"])
                    say(name, told)
            if (failure := query.exception()) is not None:
                raise StreamFailedError(f"{name}: {reason_of(failure)}") from failure

    def stop(self) -> None:
        """Stop what still runs. A batch that is under way runs again when the stream goes on."""
        for query in self._queries.values():
            if query.isActive:
                query.stop()


def reason_of(failure: StreamingQueryException) -> str:
    """The innermost cause, in one line; of Python's or of Java's trace."""
    told = [line.strip() for line in str(failure).splitlines() if line.strip()]
    lines = [line.removeprefix("Caused by: ").removeprefix(": ") for line in told]
    causes = [line for line in lines if _CAUSE.match(line)]
    return (causes[-1] if causes else lines[0] if lines else "no reason told")[:500]
