"""The steps of an audit that runs as a child process are told as they begin."""

from __future__ import annotations

import asyncio

import pytest

from understudy.client.runs.audited import _steps
from understudy.pipeline.commands import audit as audit_command


async def read(*lines: bytes) -> tuple[str, list[str]]:
    stream, told = asyncio.StreamReader(), list[str]()
    for line in lines:
        stream.feed_data(line)
    stream.feed_eof()
    return await _steps(stream, told.append), told


def test_each_step_is_told_without_its_time_and_all_lines_are_kept() -> None:
    kept, told = asyncio.run(
        read(b"audit:    0 s  starting Spark on local[*]\n", b"WARN from Spark\n", b"audit:  112 s  the clients' logs")
    )
    assert told == ["audit: starting Spark on local[*]", "audit: the clients' logs"]
    assert kept.splitlines()[1] == "WARN from Spark"


def test_the_lines_of_the_audit_are_such_lines(capsys: pytest.CaptureFixture[str]) -> None:
    audit_command._say("the clients' logs")
    _, told = asyncio.run(read(capsys.readouterr().err.encode()))
    assert told == ["audit: the clients' logs"]
