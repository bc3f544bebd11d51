"""G8, no silent outcome: what clients are told of a transaction is one thing, and true. Of the table of transactions."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as in Spark's documentation

from understudy.pipeline.invariants.violation import violations
from understudy.pipeline.spark.packed import epoch_of, place_of


def is_told_committed() -> Column:
    """See `told_committed`."""
    return F.col("told_committed").isNotNull() & F.col("rolled_back") & ~F.col("committed")


def is_told_rolled_back() -> Column:
    """See `told_rolled_back`."""
    return F.col("told_rolled_back").isNotNull() & F.col("committed")


def is_told_both() -> Column:
    """See `told_both`."""
    return F.col("told_committed").isNotNull() & F.col("told_rolled_back").isNotNull()


def is_told_unprepared() -> Column:
    """See `told_unprepared`."""
    stands = F.coalesce("prepare", "prepare_cut", F.lit(0))
    elsewhere = (F.col("told_committed") != stands) | (F.col("told_committed_first") != stands)
    nowhere = F.col("first").isNotNull() & (stands == 0)
    return F.col("told_committed").isNotNull() & (nowhere | elsewhere)


def is_told_branch_unprepared() -> Column:
    """See `told_branch_unprepared`."""
    stands = F.coalesce("branch", F.lit(0))
    return (F.col("told_branch") > 0) & (F.col("told_branch") != stands)


def told_committed(transactions: DataFrame) -> DataFrame:
    """A transaction whose client was told that it is committed is not rolled back."""
    found = transactions.filter(is_told_committed())
    text = F.format_string(
        "the client of %s was told that it is committed, and it was rolled back at offset %d", F.col("tx"), "rollback"
    )
    return violations(found, "G8", "told_committed", text, offset=F.col("rollback"))


def told_rolled_back(transactions: DataFrame) -> DataFrame:
    """A transaction whose client was told that it is rolled back is not committed."""
    found = transactions.filter(is_told_rolled_back())
    text = F.format_string(
        "the client of %s was told that it is rolled back, and it is committed at offset %d", F.col("tx"), "prepare"
    )
    return violations(found, "G8", "told_rolled_back", text, offset=F.col("prepare"))


def told_both(transactions: DataFrame) -> DataFrame:
    """No client is told that a transaction is committed, and that it is rolled back."""
    found = transactions.filter(is_told_both())
    text = F.format_string("clients of %s were told both that it is committed and that it is rolled back", F.col("tx"))
    return violations(found, "G8", "told_both", text)


def told_unprepared(transactions: DataFrame) -> DataFrame:
    """A transaction whose client was told that it is committed has its PREPARE where the answer says.

    A commit of nothing has no record, and its answer names offset 0. A PREPARE that was cut is judged by `durable`.
    """
    found = transactions.filter(is_told_unprepared())
    text = F.format_string(
        "the client of %s was told that it is committed, with its PREPARE at offset %d; %s",
        F.col("tx"),
        "told_committed_first",
        F.when(F.col("prepare").isNull(), F.lit("no broker's log has a PREPARE of it there")).otherwise(
            F.format_string("its PREPARE stands at offset %d", "prepare")
        ),
    )
    return violations(found, "G8", "told_unprepared", text, offset=F.coalesce("prepare", "first", "told_committed"))


def told_branch_unprepared(transactions: DataFrame) -> DataFrame:
    """A branch whose transaction manager was told that it is prepared has its DTX_PREPARE where the answer says."""
    found = transactions.filter(is_told_branch_unprepared())
    text = F.format_string(
        "the manager of %s was told that it is prepared at offset %d; %s",
        F.col("tx"),
        "told_branch",
        F.when(F.col("branch").isNull(), F.lit("the log that goes on has no DTX_PREPARE of it")).otherwise(
            F.format_string("its DTX_PREPARE stands at offset %d", "branch")
        ),
    )
    return violations(found, "G8", "told_unprepared", text, offset=F.coalesce("branch", "first", "told_branch"))


def is_told_otherwise() -> Column:
    """See `told_otherwise`."""
    told = F.col("told_committed").isNotNull() & F.col("prepare").isNotNull()
    other = told & (F.col("called_first") != F.col("called_last"))
    return F.coalesce(other, F.lit(False)) | F.coalesce(_is_decided_elsewhere(), F.lit(False))


def _is_decided_elsewhere() -> Column:
    """A new primary decides what it finds prepared once more: then the two epochs are not the same."""
    told, commit = F.col("told_decided"), F.col("commit")
    return (epoch_of(told) == epoch_of(commit)) & (told != commit)


def told_otherwise(transactions: DataFrame) -> DataFrame:
    """An answer "committed" has the commit number and the name of that transaction's PREPARE, and names the place of its COMMIT."""
    found = transactions.filter(is_told_otherwise())
    text = F.format_string(
        "the client of %s was told that it is committed, %s",
        F.col("tx"),
        F.when(
            _is_decided_elsewhere(), F.format_string("by the COMMIT at offset %d; that stands at %d", *_places())
        ).otherwise(F.format_string("with another commit number or name than its PREPARE at offset %d has", "prepare")),
    )
    return violations(found, "G8", "told_otherwise", text, offset=F.col("prepare"))


def _places() -> list[Column]:
    return [place_of(F.col("told_decided")), place_of(F.col("commit"))]


def is_told_unended() -> Column:
    """See `told_unended`."""
    return (F.col("told_ended") > 0) & (F.col("told_ended") != F.coalesce("rollback", F.lit(0)))


def told_unended(transactions: DataFrame) -> DataFrame:
    """A transaction whose client was told that it is rolled back, by a record, has its ROLLBACK where the answer says."""
    found = transactions.filter(is_told_unended())
    text = F.format_string(
        "the client of %s was told that it is rolled back, by the ROLLBACK at offset %d; %s",
        F.col("tx"),
        "told_ended",
        F.when(F.col("rollback").isNull(), F.lit("the log that goes on has no ROLLBACK of it")).otherwise(
            F.format_string("that stands at %d", "rollback")
        ),
    )
    return violations(found, "G8", "told_unended", text, offset=F.col("told_ended"))


def answered_committed(answers: DataFrame) -> DataFrame:
    """A transaction that an outcome query calls committed is committed in the group's log.

    Args:
        answers: `tables.names.answers`.
    """
    found = answers.filter((F.col("outcome") == "committed") & F.col("tx").isNull())
    text = F.format_string(
        "%s answered in epoch %d that %s is committed, and the log has no committed transaction of that name",
        "broker",
        "epoch",
        "name",
    )
    return violations(found, "G8", "answered_committed", text, "broker", "epoch", "offset")


def answered_rolled_back(answers: DataFrame) -> DataFrame:
    """A transaction that an outcome query calls rolled back is not committed, unless that outcome may be forgotten.

    Args:
        answers: `tables.names.answers`.
    """
    found = answers.filter((F.col("outcome") == "rolled back") & ~F.col("trimmed"))
    text = F.format_string(
        "%s answered in epoch %d that %s is rolled back, and transaction %s of that name is committed at offset %d",
        "broker",
        "epoch",
        "name",
        "tx",
        "prepare",
    )
    return violations(found, "G8", "answered_rolled_back", text, "broker", "epoch", "offset")


def answered_expired(answers: DataFrame) -> DataFrame:
    """An outcome that a query calls expired may be forgotten: the group has said so of all that was decided up to there.

    Args:
        answers: `tables.names.answers`.
    """
    known = (F.col("prepare") <= F.col("offset")) & ~F.col("trimmed")
    found = answers.filter((F.col("outcome") == "expired") & known)
    text = F.format_string(
        "%s answered in epoch %d that the outcome of %s is not kept; transaction %s of that name is prepared at offset %d, and"
        " its outcome is kept",
        *("broker", "epoch", "name", "tx", "prepare"),
    )
    return violations(found, "G8", "answered_expired", text, "broker", "epoch", "offset")


def answered_early(answers: DataFrame) -> DataFrame:
    """An outcome query is told "rolled back" when the record that bars the name, or the ROLLBACK, is stable.

    Args:
        answers: `tables.names.answers`.
    """
    early = (F.col("stable") >= 0) & (F.col("barred") > F.col("stable"))
    found = answers.filter((F.col("outcome") == "rolled back") & early)
    text = F.format_string(
        "%s answered in epoch %d that %s is rolled back, when the log was stable up to offset %d; that stands at %d",
        *("broker", "epoch", "name", "stable", "barred"),
    )
    return violations(found.withColumn("tx", F.lit("")), "G8", "answered_early", text, "broker", "epoch", "offset")


def barred(bars: DataFrame) -> DataFrame:
    """No transaction commits under a name that was barred, or rolled back, before: its client may have been told so.

    Args:
        bars: `tables.names.bars`.
    """
    found = bars.filter(~F.col("trimmed"))
    text = F.format_string(
        "transaction %s commits at offset %d under the name %s, which was barred, or rolled back, at %d",
        "tx",
        "prepare",
        "name",
        "barred",
    )
    return violations(found, "G8", "barred", text, offset=F.col("prepare"))
