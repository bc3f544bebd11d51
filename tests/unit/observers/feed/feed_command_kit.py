"""The command ``feed`` in this process, and the rows that it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner, Result

SEGMENT = "0000000000000001.journal"

app = typer.Typer()


def run(*words: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exit_code == code, result.output
    return result


def rows(result: Result) -> list[dict[str, Any]]:
    """The events of brokers. Where a feed ends depends on when it was asked (`test_feed_digests`)."""
    found = [json.loads(line) for line in result.stdout.splitlines()]
    return [row for row in found if row["event"] != "end"]
