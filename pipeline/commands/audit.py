"""``understudy audit``: options in, verdict and exit code out. PySpark is imported when the command runs: others do without."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from understudy.pipeline.feed.option import FeedOption, feed_option
from understudy.pipeline.feed.size import estimated_events, is_small, partitions_for
from understudy.pipeline.spark.errors import FeedError, PipelineError
from understudy.pipeline.spark.session import (
    LOCAL,
    MEMORY,
    SessionSettings,
    is_submitted,
    session,
    shrink,
    small,
    watched,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from understudy.pipeline.audit.verdict import Verdict

EXIT_CODES: Final = {"PROVED": 0, "VIOLATED": 1, "INCOMPLETE": 3}
UNREADABLE: Final = 2
_BEGAN_S: Final = time.monotonic()


def audit(
    feed: Annotated[
        list[str],
        typer.Option(
            metavar="PATH|kafka:TOPIC",
            help="Files of feeds, directories of them (may be repeated), or a topic.",
            show_default=False,
        ),
    ],
    kafka: Annotated[str, typer.Option(metavar="HOST:PORT,...", help="With a topic.", show_default=False)] = "",
    kafka_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="Of Spark's Kafka connector, as kafka.security.protocol=SSL; repeatable."
        ),
    ] = None,
    clients: Annotated[
        Path | None, typer.Option(help="The clients' logs of the same run (docs/verdicts.md).", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write violations there, as Parquet and JSON lines.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The verdict on one line, the last of stdout.")] = False,
    master: Annotated[str, typer.Option(help="Where Spark runs: local[N], or spark://host:port.")] = LOCAL,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="For Spark, such as 4g.")] = MEMORY,
    partitions: Annotated[
        int | None,
        typer.Option(min=1, help="Tasks behind an exchange, at most. [by the size of the feed]", show_default=False),
    ] = None,
    work: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="For intermediate files; on a cluster one that all its hosts see. [a temporary one]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Prove from the feeds of all brokers that every transaction was atomic on each of them, or show the one that was not.

    Exit codes: 0 the evidence is complete, and no promise is violated; 1 one is; 2 there is no verdict, as
    if the feed cannot be read; 3 evidence is missing.
    """
    began_s = time.monotonic()
    try:
        events_about = estimated_events(feed)
        tasks = partitions or partitions_for(events_about)
        settings = SessionSettings(name="understudy audit", master=master, memory=memory, shuffle_partitions=tasks)
        settings = small(settings) if is_small(events_about) else watched(settings)
        option = _option(feed, kafka, kafka_option or [])
        _check_out(out)
        about = "" if events_about is None else f", for about {events_about:,} events"
        _say(f"starting Spark on {master}{about}")
        with _working(work, master) as folder, _session(settings, folder, with_kafka=bool(option.topic)) as spark:
            if option.topic and is_small(events_about := option.events(spark)):
                shrink(spark, partitions or partitions_for(events_about))
            events, where = _feed(spark, feed, option, folder, few=is_small(events_about))
            verdict, stories = _audited(spark, events, where, clients, out)
    except PipelineError as error:
        typer.echo(f"understudy: {error}", err=True)
        raise typer.Exit(UNREADABLE) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except Exception as error:  # noqa: BLE001  # Python would end with 1, and 1 says that a promise is violated
        typer.echo(f"understudy: no verdict on {', '.join(feed)}: {type(error).__name__}: {_one_line(error)}", err=True)
        raise typer.Exit(UNREADABLE) from None
    took_s = time.monotonic() - began_s
    typer.echo(verdict_text(verdict, stories, took_s, out), err=as_json)
    if as_json:
        typer.echo(json.dumps(verdict_json(verdict, stories, took_s)))
    raise typer.Exit(EXIT_CODES[verdict.word])


def _check_out(out: Path | None) -> None:
    """See that violations can be written, before Spark starts and a large feed is read. Raises: FeedError: they cannot be."""
    if out is None:
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise FeedError(f"--out {out}: {error.strerror}") from error


def _one_line(error: Exception) -> str:
    """The first words of an error: of one that comes from Java a stack follows."""
    return next(iter(str(error).splitlines()), "")[:400]


@contextmanager
def _working(work: Path | None, master: str) -> Iterator[Path]:
    if work is None and (is_submitted() or not master.startswith("local")):
        raise FeedError("on a cluster --work is needed too: a directory that all its hosts see")
    try:
        if work is not None:
            work.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="understudy-audit-", dir=work))
    except OSError as error:
        raise FeedError(f"--work {work}: {error.strerror}") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _option(feed: list[str], kafka: str, options: list[str]) -> FeedOption:
    """The first of the feeds; with a topic, the only one. All of them are there.

    Raises:
        FeedError: one is not, or a topic is one of several.
    """
    found = [feed_option(each, kafka, options) for each in feed]
    if len(found) > 1 and any(each.topic for each in found):
        raise FeedError(f"--feed {', '.join(feed)}: one topic, or paths")
    for each in found:
        each.check()
    return found[0]


def _session(settings: SessionSettings, folder: Path, *, with_kafka: bool) -> AbstractContextManager[SparkSession]:
    import attrs  # noqa: PLC0415  # beside what it is used for

    from understudy.pipeline.spark.connector_jars import KAFKA  # noqa: PLC0415  # as above

    return session(attrs.evolve(settings, work=folder, jars=(KAFKA,) if with_kafka else ()))


def _feed(
    spark: SparkSession, feed: list[str], option: FeedOption, folder: Path, *, few: bool
) -> tuple[DataFrame, str]:
    """The events, as Parquet or, if they are few, in memory; and what to call them."""
    from understudy.pipeline.feed.check import feed_errors  # noqa: PLC0415  # PySpark is an extra
    from understudy.pipeline.feed.source import PARQUET, held, literal_path, read_files  # noqa: PLC0415  # as above

    where = ", ".join(feed)
    events = option.table(spark) if option.topic else read_files(spark, feed)
    if few:
        with feed_errors(where):
            return held(events), where
    if not option.topic and all(name.endswith(PARQUET) for name in events.inputFiles()):
        return events, where
    _say("converting to Parquet")
    staged = str(folder / "feed")
    with feed_errors(where):
        events.write.parquet(staged)
    return spark.read.schema(events.schema).parquet(literal_path(staged)), where


def _audited(
    spark: SparkSession, events: DataFrame, where: str, clients: Path | None, out: Path | None
) -> tuple[Verdict, list[list[str]]]:
    from understudy.pipeline.audit.client_logs import read_client_logs  # noqa: PLC0415  # as above
    from understudy.pipeline.audit.story import story  # noqa: PLC0415  # as above
    from understudy.pipeline.audit.verdict import Audit  # noqa: PLC0415  # PySpark is an extra
    from understudy.pipeline.feed.source import literal_path  # noqa: PLC0415  # as above

    lines = read_client_logs(spark, clients) if clients is not None else None
    table = str((out / "violations").absolute()) if out is not None else ""
    job = Audit(spark=spark, feed=events, where=where, out=table, clients=lines, say=_say)
    verdict = job.run()
    if out is not None:
        spark.read.parquet(literal_path(table)).write.mode("overwrite").json(str((out / "violations-json").absolute()))
    return verdict, [story(job.feed, each) for each in verdict.examples[:STORIES]]


STORIES: Final = 5
"""So many violations are told with all their events."""


def verdict_text(verdict: Verdict, stories: list[list[str]], took_s: float, out: Path | None) -> str:
    """For people."""
    counts = verdict.counts
    lines = []
    for number, each in enumerate(verdict.examples):
        lines.append(f"{each['promise']} {each['kind']}: {each['text']}")
        if number < len(stories):
            lines += [f"    {line}" for line in stories[number]]
    lines += [f"missing: {each}" for each in verdict.problems]
    if verdict.suspected:
        suspected = ", ".join(f"{n} {promise} {kind}" for (promise, kind), n in sorted(verdict.suspected.items()))
        lines.append(f"suspected, and not certain since evidence is missing: {suspected}")
    looked_at = (
        f"{counts['transactions']:,} transactions ({counts['committed']:,} committed, {counts['rolled_back']:,} rolled back,"
        f" {counts['in_doubt']:,} in doubt) on {counts['brokers']} brokers, {counts['events']:,} events, in {took_s:.0f} s"
    )
    if verdict.word == "PROVED":
        lines.append(f"PROVED: G1 to G9 hold for {looked_at}")
    elif verdict.word == "VIOLATED":
        found = ", ".join(f"{n:,} {promise} {kind}" for (promise, kind), n in sorted(verdict.violations.items()))
        lines.append(f"VIOLATED: {found}; of {looked_at}{f'; all of them are in {out}' if out else ''}")
    else:
        lines.append(f"INCOMPLETE: evidence is missing, and nothing is proved; of {looked_at}")
    return "\n".join(lines)


def verdict_json(verdict: Verdict, stories: list[list[str]], took_s: float) -> dict[str, Any]:
    """For machines."""

    def by_kind(found: Any) -> dict[str, int]:
        return {f"{promise} {kind}": n for (promise, kind), n in sorted(found.items())}

    return {
        "verdict": verdict.word,
        **verdict.counts,
        "violations": by_kind(verdict.violations),
        "suspected": by_kind(verdict.suspected),
        "missing": list(verdict.problems),
        "examples": [
            {**each, "story": stories[number] if number < len(stories) else []}
            for number, each in enumerate(verdict.examples)
        ],
        "took_s": round(took_s, 1),
    }


def _say(text: str) -> None:
    """Tell what begins now, and when: seconds since this process has started."""
    print(f"audit: {time.monotonic() - _BEGAN_S:4.0f} s  {text}", file=sys.stderr, flush=True)  # noqa: T201  # progress of a command
