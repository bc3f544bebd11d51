"""The command ``understudy report``: a feed in, one HTML page out."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from understudy.pipeline.feed.option import FeedOption, feed_option
from understudy.pipeline.feed.size import estimated_events, is_small, partitions_for
from understudy.pipeline.spark.errors import PipelineError
from understudy.pipeline.spark.session import LOCAL, MEMORY, SessionSettings, require_pyspark, session, shrink, small

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from understudy.pipeline.report.gathered import Report

BAD_INPUT: Final = 2


class OutputError(PipelineError):
    """The page cannot be written; the message names the path."""


def report(
    feed: Annotated[
        str,
        typer.Option(metavar="PATH|kafka:TOPIC", help="Files of a feed, or a Kafka topic.", show_default=False),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page, an HTML file.", show_default=False)],
    kafka: Annotated[str, typer.Option(metavar="HOSTS", help="host:port,... of Kafka, for kafka:TOPIC.")] = "",
    kafka_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="Of Spark's Kafka connector, as kafka.security.protocol=SSL; repeatable."
        ),
    ] = None,
    master: Annotated[str, typer.Option(help="Where Spark runs; not used under spark-submit.")] = LOCAL,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Of Spark's driver.")] = MEMORY,
    work: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="For intermediate files; on a cluster one that all its hosts see.", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="What the page shows, as JSON on stdout.")] = False,
) -> None:
    """Make a page of an event feed: throughput, latency, roles, failovers, readiness, lag, and the slowest transactions.

    The page needs no network. Exit codes: 0 written; 2 the feed cannot be read, or the page cannot be written.
    """
    try:
        check_output(out)
        option = feed_option(feed, kafka, kafka_option or [])
        option.check()
        found = _gathered(option, master, memory, work)
        from understudy.pipeline.report.page import make_page  # noqa: PLC0415  # plotly is an extra

        write_page(out, make_page(found, feed))
    except PipelineError as error:
        refuse(str(error))
    except ImportError as error:
        refuse(f"{error.name} is missing: pip install 'understudy[pipeline]'")
    if as_json:
        print(json.dumps(as_mapping(found)))  # noqa: T201  # a command prints
    else:
        print(f"{out}: {summary(found)}")  # noqa: T201


def _gathered(option: FeedOption, master: str, memory: str, work: Path | None) -> Report:
    require_pyspark()
    from understudy.pipeline.feed.check import check_feed, feed_errors  # noqa: PLC0415
    from understudy.pipeline.feed.source import held  # noqa: PLC0415
    from understudy.pipeline.report.gathered import gather  # noqa: PLC0415
    from understudy.pipeline.spark.connector_jars import KAFKA  # noqa: PLC0415  # PySpark is an extra

    name = f"understudy report {option.text}"
    jars = [KAFKA] if option.topic else []
    about = None if option.topic else estimated_events([option.text])
    tasks = partitions_for(about)
    settings = SessionSettings(name=name, master=master, memory=memory, shuffle_partitions=tasks, jars=jars, work=work)
    with (
        session(small(settings) if is_small(about) else settings) as spark,
        working(work, spark.sparkContext.master or LOCAL) as folder,
        feed_errors(option.text),
    ):
        if option.topic and is_small(about := option.events(spark)):
            shrink(spark, partitions_for(about))
        events = option.table(spark)
        events = held(events) if is_small(about) else _staged(spark, events, folder)
        check_feed(events, option.text)
        return gather(events, say)


def _staged(spark: SparkSession, events: DataFrame, folder: Path) -> DataFrame:
    """The events as Parquet: they are read several times, and a topic does not stand still."""
    files = events.inputFiles()
    if files and all(name.endswith(".parquet") for name in files):
        return events
    say("converting to Parquet")
    path = str(folder / "feed")
    events.write.parquet(path)
    return spark.read.schema(events.schema).parquet(path)


@contextmanager
def working(work: Path | None, master: str) -> Iterator[Path]:
    """A new directory for intermediate files, which is removed at the end.

    Args:
        work: where it is made; None: in the system's own place.
        master: of the session; on a cluster ``work`` must be given.

    Raises:
        OutputError: it cannot be made.
    """
    if work is None and not master.startswith("local"):
        raise OutputError(f"--master {master} needs --work DIR, a directory that all hosts of the cluster see")
    try:
        folder = Path(tempfile.mkdtemp(prefix="understudy-report-", dir=work))
    except OSError as error:
        raise OutputError(f"--work {work}: {error.strerror}") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_output(out: Path) -> None:
    """See that the page can be written, before the feed is read.

    Raises:
        OutputError: it cannot.
    """
    if out.is_dir():
        raise OutputError(f"{out} is a directory; --out names the file of the page")
    try:
        with tempfile.TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise OutputError(f"{out} cannot be written: {out.parent}: {error.strerror}") from error


def write_page(out: Path, page: str) -> None:
    """In one step: what was there stays until the new page is complete.

    Raises:
        OutputError: it cannot be written.
    """
    new = out.with_name(f".{out.name}.new")
    try:
        new.write_text(page, encoding="utf-8")
        new.replace(out)
    except OSError as error:
        raise OutputError(f"{out} cannot be written: {error.strerror}") from error


def summary(found: Report) -> str:
    """One line for a terminal."""
    fates = ", ".join(f"{count:,} {fate}" for fate, count in sorted(found.fates.items()))
    stopped = max((each.commits_stopped_ms or 0 for each in found.failovers), default=0)
    worst = f", worst stop of commits {stopped:,} ms" if stopped else ""
    missing = f"; {len(found.gaps)} gaps" if found.gaps else ""
    return f"{found.content.events:,} events, transactions: {fates or 'none'}, {len(found.failovers):,} failovers{worst}{missing}"


def as_mapping(found: Report) -> dict[str, Any]:
    """Content of the page, as JSON takes it."""
    import attrs  # noqa: PLC0415

    mapping = attrs.asdict(found)
    for each, taken in zip(mapping["failovers"], found.failovers, strict=True):
        each |= {"takeover_ms": taken.takeover_ms, "commits_stopped_ms": taken.commits_stopped_ms}
    return mapping


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def refuse(reason: str) -> NoReturn:
    """Exit with code 2."""
    print(f"understudy: {reason}", file=sys.stderr)  # noqa: T201
    raise typer.Exit(BAD_INPUT)
