"""`understudy audit`: each exit code.

One audit runs as a user runs it, in processes of its own. Starting Java for each of them would take most of the time.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from tests.pipeline.made_feed import write_parquet
from tests.pipeline.made_rows import BROKERS, Size, made
from tests.pipeline.plants import caught_up, second_life
from tests.pipeline.restated import closed, restated
from tests.pipeline.sim_feeds import Wanted, write
from understudy.pipeline.submit import app

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNDERSTUDY = str(Path(sys.executable).with_name("understudy"))
WHERE = ("--json", "--master", "local[2]", "--memory", "1g", "--partitions", "2")
SMALL = Size(segment=5, segments=4)
Audit = Callable[..., tuple[int, dict[str, Any], str]]
"""Arguments in; exit code, the JSON, and what people read."""


def audit_in_processes(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """The command that is installed."""
    command = [UNDERSTUDY, "audit", *WHERE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    return done.returncode, _last(done.stdout), done.stderr


@pytest.fixture
def audit(spark: SparkSession) -> Audit:
    """The command in this process, with the session of this process."""

    def run(*arguments: str) -> tuple[int, dict[str, Any], str]:
        done = CliRunner().invoke(app, ["audit", *WHERE, *arguments])
        assert spark.version  # it stays
        return done.exit_code, _last(done.stdout), done.stderr

    return run


def _last(told: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(told.splitlines()[-1] if told else "{}")
    return found


@pytest.fixture
def feed(tmp_path: Path) -> Path:
    """A small feed that is clean, to be changed."""
    (tmp_path / "feed").mkdir()
    for broker in BROKERS:
        rows = (each for each in made(Size(segment=3, segments=4)) if each["broker"] == broker)
        events = ({name: value for name, value in each.items() if name not in ("k", "step")} for each in rows)
        (tmp_path / "feed" / f"{broker}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in events))
    return tmp_path / "feed"


@pytest.mark.slow
def test_the_command_names_the_feed_that_is_missing(tmp_path: Path) -> None:
    """A simulated run: feeds of two of its three brokers, and its clients' logs. `test_mutator` proves a whole one."""
    run = tmp_path / "run"
    write(Wanted(1, run))
    (run / "feed" / "b2.jsonl").unlink()
    code, verdict, told = audit_in_processes("--feed", str(run / "feed"), "--clients", str(run / "clients"))
    assert (code, verdict["verdict"]) == (3, "INCOMPLETE"), told
    assert any("b2: named by other feeds, and its own feed is missing" in each for each in verdict["missing"])
    assert "nothing is proved" in told
    assert re.search(
        r"^audit: +\d+ s  starting Spark on local\[(\*|\d+)\], for about [\d,]+ events$", told, re.MULTILINE
    )
    assert verdict["brokers"] == 2


def test_a_clean_feed_is_proved(audit: Audit, tmp_path: Path) -> None:
    """Events that are there twice, as after a reader that was killed, are counted once; so is what a new directory gets again.

    One broker has caught up.
    """
    rows = closed(caught_up(second_life(made(SMALL), "b1"), SMALL))
    write_parquet(rows + [row for row in rows if row["k"] in range(10, 15)], tmp_path / "clean" / "1.parquet")
    code, verdict, told = audit("--feed", str(tmp_path / "clean"))
    assert (code, verdict["verdict"], verdict["missing"]) == (0, "PROVED", []), told
    assert "PROVED: G1 to G9 hold for" in told
    assert verdict["transactions"] == verdict["committed"] == SMALL.transactions
    assert verdict["brokers"] == 3
    assert verdict["deliver"] == 10 * SMALL.transactions


def test_a_torn_transaction_is_shown_with_its_events_on_all_brokers(audit: Audit, feed: Path, tmp_path: Path) -> None:
    torn = _tear(feed / "b2.jsonl")
    code, verdict, told = audit("--feed", str(feed), "--out", str(tmp_path / "out"))
    assert (code, verdict["verdict"]) == (1, "VIOLATED"), told
    assert "G1 partial" in verdict["violations"]
    assert any(each["tx"] == torn and each["broker"] == "b2" for each in verdict["examples"])
    assert f"transaction {torn} is partial on b2" in told
    assert any("prepare" in line for each in verdict["examples"] for line in each["story"])
    files = (tmp_path / "out" / "violations-json").glob("*.json")
    rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    assert {"promise", "kind", "tx", "broker", "text"} <= rows[0].keys()


def _tear(path: Path) -> str:
    """One message of a committed transaction goes from one broker's feed: a record that says nothing stands for it."""
    events = [json.loads(line) for line in path.read_text().splitlines()]
    applied = {each["tx"] for each in events if each["event"] == "apply" and each.get("tx")}
    torn = next(
        each for each in events if each["event"] == "enqueue" and each.get("tx") in applied and each.get("persistent")
    )
    tx: str = torn["tx"]
    head = ("schema", "group", "founding", "broker", "incarnation", "seq", "epoch", "offset", "at_ms")
    events[events.index(torn)] = {"event": "hole", "count": 1, **{name: torn[name] for name in head}}
    path.write_text("".join(json.dumps(each) + "\n" for each in restated(events)))
    return tx


def test_bad_input_ends_with_code_2_and_a_name(audit: Audit, feed: Path, tmp_path: Path) -> None:
    """Code 1 would say that a promise is violated."""
    (tmp_path / "file").write_text("")
    for arguments, said in (
        (["--feed", str(tmp_path / "gone")], f"{tmp_path / 'gone'} is not there"),
        (["--feed", str(tmp_path / ("a" * 300))], "cannot be read: File name too long"),
        (["--feed", "kafka:events"], "--feed kafka:events needs --kafka HOST:PORT,..."),
        (["--feed", str(tmp_path), "--memory", "much"], "--memory much: a number with k, m, g or t"),
        (
            ["--feed", str(feed), "--out", str(tmp_path / "file" / "out")],
            f"--out {tmp_path / 'file' / 'out'}: Not a directory",
        ),
    ):
        code, verdict, told = audit(*arguments)
        assert (code, verdict) == (2, {})
        assert said in told, told
