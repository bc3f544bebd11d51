"""Words of strangers get into the log escaped, and in bounded number."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs

from understudy.broker.server.process.log_setup import LogFormat, configure_logging
from understudy.broker.server.sockets import stranger_log
from understudy.broker.server.sockets.stranger_log import LINES, StrangerLog

EVIL = "x\x1b[2J\r2026-01-01T00:00:00Z info    serving\n\x00\x7f\x9b31m\u202e\u2028\ud800y"


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    config = structlog.get_config()
    yield
    structlog.configure(**config)
    structlog.contextvars.clear_contextvars()


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_nothing_that_a_terminal_obeys_comes_through(log_format: LogFormat, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(log_format, "info", broker="b1")
    log = structlog.get_logger("fresh")
    log.warning("login refused", user=EVIL)
    log.warning("login refused", user=EVIL.replace(" ", ""))
    log.warning(EVIL, reason=ValueError(EVIL))
    lines = capsys.readouterr().err.split("\n")
    assert len(lines) == 4, "three lines, each with its end"
    assert all(line.replace("\x7f", "").isprintable() for line in lines)
    if log_format == "json":
        assert json.loads(lines[0])["user"] == EVIL
    else:
        assert "\\x1b[2J\\r2026" in lines[0]


def test_a_report_of_several_lines_cannot_be_taken_for_other_lines(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("text", "info")
    structlog.get_logger("fresh").critical("a crash", traceback=f"Traceback\nValueError: {EVIL}\n")
    first, *rest = capsys.readouterr().err.rstrip("\n").split("\n")
    assert first.endswith("a crash")
    assert len(rest) == 3
    assert all(line.startswith("    ") and line.isprintable() for line in rest)


def test_a_flood_is_counted_each_minute() -> None:
    now_s = [100.0]
    with capture_logs() as logs:
        log = StrangerLog(structlog.get_logger(), lambda: now_s[0])
        for number in range(13_000):
            log.warning("peer refused", reason=f"kind {number}")
        log.warning("login refused", user="x")
        now_s[0] += 61
        log.warning("peer refused", reason="again")
    said = [entry["event"] for entry in logs]
    assert said == [
        *["peer refused"] * LINES,
        "login refused",
        "peer refused: and 12,990 more in the last 60 s",
        "peer refused",
    ]
    assert logs[-2]["more"] == 12_990


@pytest.mark.asyncio
async def test_a_count_is_written_when_its_minute_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stranger_log, "WINDOW_S", 0.01)
    with capture_logs() as logs:
        log = StrangerLog(structlog.get_logger())
        for _ in range(LINES + 2):
            log.warning("peer refused")
        async with asyncio.timeout(10):
            while len(logs) <= LINES:  # noqa: ASYNC110  # a log tells nobody
                await asyncio.sleep(0.001)
    assert logs[LINES]["more"] == 2
