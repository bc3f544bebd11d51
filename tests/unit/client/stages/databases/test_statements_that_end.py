"""Statements of PostgreSQL that would end a stage's transaction, and those that only look so."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg import sql

from understudy.client.stages import DemarcationError
from understudy.client.stages.databases.psycopg_connections import look_for_end


@pytest.mark.parametrize(
    "statement",
    [
        "COMMIT",
        b"  rollback",
        "END",
        "INSERT INTO t VALUES (1); COMMIT",
        "/* now */ COMMIT",
        "-- now\nCOMMIT",
        "SELECT '''; '; ABORT",
        "SELECT E'it\\'s'; commit",
        "START TRANSACTION",
        "PREPARE TRANSACTION 'x'",
        "ROLLBACK AND CHAIN",
        sql.SQL("COMMIT"),
        sql.SQL("SELECT {}; COMMIT").format(sql.Literal(1)),
    ],
)
def test_a_statement_that_ends_the_transaction_is_refused(statement: Any) -> None:
    with pytest.raises(DemarcationError, match="inside of a stage"):
        look_for_end(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 'commit'",
        "INSERT INTO notes VALUES ('done; commit')",
        "INSERT INTO notes VALUES ('it''s; commit')",
        "INSERT INTO notes VALUES (E'it\\'s; commit')",
        'SELECT "a; commit" FROM t',
        "DO $$ BEGIN PERFORM 1; END; $$",
        "DO $body$ BEGIN PERFORM '$$'; END $body$",
        "SELECT 1 -- ; commit",
        "SELECT 1 /* ; commit */",
        "SELECT CASE WHEN true THEN 1 END",
        "SAVEPOINT s",
        "ROLLBACK TO SAVEPOINT s",
        "ROLLBACK TRANSACTION TO s",
        "PREPARE plan AS SELECT 1",
        "UPDATE t SET commit = 1",
        sql.SQL("INSERT INTO notes VALUES ({})").format(sql.Literal("; commit")),
    ],
)
def test_a_statement_that_only_looks_so_is_let_through(statement: Any) -> None:
    look_for_end(statement)
