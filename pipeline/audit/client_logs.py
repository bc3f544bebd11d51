"""The clients' own logs (docs/verdicts.md), as a table of transactions, held against the group's log by the clients' names of them.

A client writes what it does before it does it, and what it is told after it was told. So its log says more than a
broker's facts: a broker that is killed loses the facts of its last turn. Messages have ids of the clients there, which
no feed has. So transactions are compared, by name, and by how many messages they bring and take.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import reduce
from operator import or_
from os import SEEK_END
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import attrs
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.feed.check import spark_said
from understudy.pipeline.feed.source import literal_path
from understudy.pipeline.invariants.violation import violations
from understudy.pipeline.spark.errors import ClientLogError

VERSION: Final = 1
_CUT: Final = "\ufffd"
"""What a character reads as that is cut off within."""
TAIL_BYTES: Final = 1 << 20
"""A line is shorter."""
_LINE: Final = (
    "version long, client string, number long, event string, tx string, question string, outcome string, `by` string,"
    " messages array<struct<id string, queue string, amount long>>, corrupt string"
)


@attrs.frozen
class ClientLogs:
    """The logs of one run.

    Attributes:
        lines: a row a line.
        problems: a sentence for each client of whose log lines are missing.
    """

    lines: DataFrame
    problems: tuple[str, ...]


def read_client_logs(spark: SparkSession, path: Path) -> ClientLogs:
    """Read them. What a killed client had written of its last line is left out: that client did not go on.

    Raises:
        ClientLogError: there is no log in ``path``, a line cannot be read, or is of another version.
    """
    try:
        files = _files_of(path)
    except OSError as error:
        raise ClientLogError(f"{error.filename or path} cannot be read: {error.strerror}") from error
    reader = spark.read.schema(_LINE).option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", "corrupt")
    lines = reader.json([literal_path(file.absolute()) for file in files])
    lines = lines.withColumn("file", F.col("_metadata.file_name")).withColumn("wrong", _is_wrong())
    try:
        looks = _looks_at(lines).collect()
    except (PySparkException, Py4JError) as error:
        raise ClientLogError(f"{path}: the clients' logs cannot be read: {spark_said(error)}") from error
    unfinished = {file.name: _unfinished(file) for file in files}
    for each in looks:
        for text, version in (each["a"], each["b"]) if each["wrong"] else ():
            if not text or text.rstrip(_CUT) != unfinished.get(unquote(each["file"])):
                raise ClientLogError(
                    f"{path}, {each['file']}: {(text or 'a line')[:120]!r} is no line of a client's log of version"
                    f" {VERSION}, but of {version}"
                )
    return ClientLogs(lines.filter(~F.col("wrong")).drop("corrupt", "wrong"), tuple(_missing(looks)))


def _is_wrong() -> Column:
    needed = reduce(or_, (F.col(name).isNull() for name in ("version", "client", "number", "event")))
    return F.col("corrupt").isNotNull() | needed | (F.col("version") != VERSION)


def _looks_at(lines: DataFrame) -> DataFrame:
    """A row a file and client, and one for the wrong lines of each file: the lowest and the highest text of these."""
    wrong, number = F.col("wrong"), F.when(~F.col("wrong"), F.col("number"))
    text = F.when(wrong, F.struct(F.coalesce("corrupt", F.lit("")), F.col("version")))
    return lines.groupBy("file", F.when(~wrong, F.col("client")).alias("client")).agg(
        F.count_if(wrong).alias("wrong"),
        F.min(text).alias("a"),
        F.max(text).alias("b"),
        F.count(number).alias("lines"),
        F.max(number).alias("last"),
        F.sum(number).alias("total"),
    )


def _missing(looks: Iterable[Row]) -> Iterator[str]:
    """A client's lines are numbered from 0. Logs may be put together: its lines may stand in several files."""
    found: dict[str, list[Row]] = defaultdict(list)
    for each in looks:
        if each["client"] is not None:
            found[each["client"]].append(each)
    for client, some in sorted(found.items()):
        lines, last = sum(each["lines"] for each in some), max(each["last"] for each in some)
        if lines != last + 1 or sum(each["total"] for each in some) != last * (last + 1) // 2:
            yield (
                f"client {client}: lines are missing in its log, or are there twice; it has {lines},"
                f" and the last one has number {last} (they begin with 0)"
            )


def _unfinished(file: Path) -> str:
    """The last line of ``file`` if it does not end with a newline, else ""."""
    with file.open("rb") as log:
        end = log.seek(0, SEEK_END)
        log.seek(max(0, end - TAIL_BYTES))
        tail = log.read()
    return "" if tail.endswith(b"\n") else tail.rpartition(b"\n")[2].decode("utf-8", "replace").rstrip(_CUT)


def _files_of(path: Path) -> list[Path]:
    """Logs that hold something. Raises: ClientLogError: there is none; OSError: one cannot be opened."""
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path] if path.exists() else []
    if not any(file.stat().st_size for file in files):
        raise ClientLogError(f"{path} {'holds no log of a client (*.jsonl)' if path.exists() else 'is not there'}")
    for file in files:
        file.open("rb").close()
    return [file for file in files if file.stat().st_size]


def client_transactions(lines: DataFrame) -> DataFrame:
    """A row a transaction: tx, client, what it did and was told; ``queues`` to which it has sent.

    ``name`` is what the brokers call it, "" if they were told no name.
    """
    event, outcome = F.col("event"), F.col("outcome")
    size = F.coalesce(F.size("messages"), F.lit(0))
    queues = F.transform("messages", lambda message: message["queue"])
    return (
        lines.filter(F.coalesce(F.col("tx"), F.lit("")) != "")
        .groupBy("tx")
        .agg(
            F.max("client").alias("client"),
            F.max(F.when(event == "began", F.coalesce("question", "tx"))).alias("name"),
            F.coalesce(F.sum(F.when(event == "sent", size)), F.lit(0)).alias("sent"),
            F.coalesce(F.sum(F.when(event == "acknowledged", size)), F.lit(0)).alias("taken"),
            F.bool_or(event == "commit_sent").alias("commit_sent"),
            F.bool_or((event == "committed") | ((event == "resolved") & (outcome == "committed"))).alias("ok"),
            F.bool_or((event == "rolled_back") | ((event == "resolved") & (outcome == "rolled back"))).alias("not_ok"),
            F.bool_or(event == "unknown").alias("unknown"),
            F.bool_or(event == "resolved").alias("resolved"),
            F.array_distinct(F.flatten(F.collect_list(F.when(event == "sent", queues)))).alias("queues"),
        )
    )


def matched(clients: DataFrame, transactions: DataFrame) -> DataFrame:
    """``clients`` with what the group's log has of each: ``log_tx``, ``committed``, ``rolled_back``, ``came``, ``left``.

    ``came``: messages that come and get an id. Transient messages are in no journal: if there were some, only ids are known.
    """
    come = F.when(F.col("transient") > 0, F.col("given")).otherwise(F.least("came", "given"))
    of_log = transactions.select(
        "founding",
        F.col("tx").alias("log_tx"),
        F.col("name").alias("log_name"),
        "committed",
        "rolled_back",
        come.alias("came"),
        "left",
    )
    by_name = of_log.filter("log_name <> ''").withColumn("name", F.col("log_name"))
    by_id = of_log.withColumn("name", F.substring_index("log_tx", "/", -1))
    known = by_name.unionByName(by_id)
    return clients.filter("name <> ''").join(known, "name", "left")


def require_one_run(pairs: DataFrame, where: str) -> None:
    """See whether these are logs of the run of which the feed is.

    Raises:
        ClientLogError: the log knows none of the names under which clients have committed: it is another run.
    """
    row = pairs.agg(
        F.count_if(F.col("ok")).alias("ok"), F.count_if(F.col("ok") & F.col("log_tx").isNotNull()).alias("known")
    ).collect()[0]
    if row["ok"] and not row["known"]:
        raise ClientLogError(
            f"{where}: the feed knows none of the {row['ok']} transactions that these clients have committed: logs of another run"
        )


def with_deleted(pairs: DataFrame, feed: DataFrame) -> DataFrame:
    """``pairs`` with ``deleted``: a queue to which it has sent was deleted at some time.

    Args:
        pairs: of `matched`.
        feed: events.
    """
    gone = feed.filter((F.col("event") == "delete") & (F.col("what") == "queue")).select("founding", "queue")
    sent = pairs.filter(_lacks()).select("founding", "tx", F.explode("queues").alias("queue"))
    touched = sent.join(gone.distinct(), ["founding", "queue"]).select("founding", "tx").distinct()
    found = pairs.join(touched.withColumn("deleted", F.lit(True)), ["founding", "tx"], "left")
    return found.withColumn("deleted", F.coalesce("deleted", F.lit(False)))


# -- rules ------------------------------------------------------------------------------------------------------------


def client_committed(pairs: DataFrame) -> DataFrame:
    """A transaction of which its client has heard that it is committed is committed in the group's log."""
    found = pairs.filter(F.col("ok") & ~F.coalesce("committed", F.lit(False)))
    text = F.format_string(
        "client %s was told that %s is committed, and the log does not have it", "client", F.col("tx")
    )
    return violations(found, "G4", "client_committed", text)


def client_rolled_back(pairs: DataFrame) -> DataFrame:
    """A transaction of which its client has heard that it is rolled back is not committed."""
    found = pairs.filter(F.col("not_ok") & F.coalesce("committed", F.lit(False)))
    text = F.format_string("client %s was told that %s is rolled back, and it is committed", "client", F.col("tx"))
    return violations(found, "G8", "client_rolled_back", text)


def client_unresolved(pairs: DataFrame) -> DataFrame:
    """A client that was not answered has learned the outcome by asking."""
    found = pairs.filter(F.col("unknown") & ~F.col("resolved") & ~F.col("ok") & ~F.col("not_ok"))
    text = F.format_string("client %s could not learn what became of %s", "client", F.col("tx"))
    return violations(found, "G8", "client_unresolved", text)


def client_partial(pairs: DataFrame) -> DataFrame:
    """A committed transaction brings and takes at least as many messages as its client has sent and acknowledged in it.

    What was sent to a queue that is deleted comes to nothing, and the rest of its transaction commits. So no number is known of a
    transaction that has sent to such a queue.
    """
    found = pairs.filter(_lacks() & ~F.col("deleted"))
    text = F.format_string(
        "client %s sent %d messages and took %d in %s; in the log %d come and %d leave",
        "client",
        "sent",
        "taken",
        F.col("tx"),
        "came",
        "left",
    )
    return violations(found, "G1", "client_partial", text)


def _lacks() -> Column:
    return F.col("committed") & ((F.col("came") < F.col("sent")) | (F.col("left") < F.col("taken")))


OF_CLIENTS: Final = (client_committed, client_rolled_back, client_unresolved, client_partial)
ABSENCES: Final = frozenset({"client_committed", "client_partial"})
"""As `invariants.ABSENCES`."""
