"""`understudy audit` as a user runs it, on the feed of a simulated cluster: each exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.pipeline.sim_feeds import Wanted, write

UNDERSTUDY = str(Path(sys.executable).with_name("understudy"))


def audit(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the JSON, and what people read."""
    command = [UNDERSTUDY, "audit", "--json", "--master", "local[2]", "--memory", "1g", "--partitions", "2", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    last = done.stdout.splitlines()[-1] if done.stdout else "{}"
    return done.returncode, json.loads(last), done.stderr


def test_the_command_proves_and_shows(tmp_path: Path) -> None:
    """Also in words: a torn transaction is shown with its events on all brokers."""
    write(Wanted(1, tmp_path))
    feed = tmp_path / "feed"
    code, verdict, told = audit(
        "--feed", str(feed), "--clients", str(tmp_path / "clients"), "--out", str(tmp_path / "out")
    )
    assert (code, verdict["verdict"], verdict["missing"]) == (0, "PROVED", []), told
    assert "PROVED: G1 to G9 hold for" in told
    assert verdict["brokers"] == 3

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

    (feed / "b2.jsonl").unlink()
    code, verdict, told = audit("--feed", str(feed))
    assert (code, verdict["verdict"]) == (3, "INCOMPLETE"), told
    assert any("b2: named by other feeds, and its own feed is missing" in each for each in verdict["missing"])
    assert "nothing is proved" in told


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
    path.write_text("".join(json.dumps(each) + "\n" for each in events))
    return tx


def test_bad_input_ends_with_code_2_and_a_name(tmp_path: Path) -> None:
    for arguments, said in (
        (["--feed", str(tmp_path / "gone")], f"{tmp_path / 'gone'} is not there"),
        (["--feed", str(tmp_path / ("a" * 300))], "cannot be read: File name too long"),
        (["--feed", "kafka:events"], "--feed kafka:events needs --kafka HOST:PORT,..."),
        (["--feed", str(tmp_path), "--memory", "much"], "--memory much: a number with k, m, g or t"),
    ):
        code, _, told = audit(*arguments)
        assert code == 2
        assert said in told, told


def test_a_failure_of_spark_is_no_violation(tmp_path: Path) -> None:
    """The table of violations cannot be written below a file. Code 1 would say that a promise is violated."""
    write(Wanted(2, tmp_path))
    (tmp_path / "file").write_text("")
    feed = tmp_path / "feed"
    code, verdict, told = audit("--feed", str(feed), "--out", str(tmp_path / "file" / "out"))
    assert (code, verdict) == (2, {}), told
    assert f"{feed}: Spark did not come to the end: " in told
    assert "Traceback" not in told
