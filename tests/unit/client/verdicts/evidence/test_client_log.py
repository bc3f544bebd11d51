"""The format of a client's log: what is written is read again, and what is no such line is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from understudy.client.verdicts import ClientLog, Entry, Event, LogError, Message, read_logs

A = Message("c-0/0", "a", 12)
B = Message("p/0", "b")


def write(folder: Path, client: str = "c") -> list[Entry]:
    """A log with every event; what its watcher was told."""
    told: list[Entry] = []
    with ClientLog(folder / f"{client}.jsonl", client, told.append, clock=lambda: 1.5) as log:
        log.connected("127.0.0.1:1")
        log.began(f"{client}-0", broker="127.0.0.1:1", question="1-7")
        log.sent([A], f"{client}-0")
        log.received(B, redelivered=False)
        log.received(B, redelivered=True)
        log.acknowledged([B], f"{client}-0")
        log.commit_sent(f"{client}-0")
        log.committed(f"{client}-0")
        log.began(f"{client}-1")
        log.rolled_back(f"{client}-1", "client", "on purpose")
        log.unknown(f"{client}-1", "the connection closed")
        log.resolved(f"{client}-1", "rolled back", 3)
        log.sent([B])
        log.confirmed([B])
        log.refused([B], "NO_ROUTE")
        log.acknowledged([B])
        log.lost("reset")
        log.sent([])
    return told


def test_what_is_written_is_read(tmp_path: Path) -> None:
    told = write(tmp_path)
    assert list(read_logs(tmp_path / "c.jsonl")) == told
    assert [entry.number for entry in told] == list(range(len(told)))
    assert {entry.event for entry in told} == set(Event)
    assert told[1] == Entry(
        client="c", number=1, event=Event.BEGAN, at_s=1.5, tx="c-0", question="1-7", broker="127.0.0.1:1"
    )


def test_a_folder_is_all_its_logs(tmp_path: Path) -> None:
    told = write(tmp_path, "d") + write(tmp_path, "e")
    (tmp_path / "kills.txt").write_text("not a log")
    assert list(read_logs(tmp_path)) == told


def test_a_line_is_as_documented(tmp_path: Path) -> None:
    write(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "c.jsonl").read_text().splitlines()]
    assert lines[2] == {
        "version": 1,
        "client": "c",
        "number": 2,
        "event": "sent",
        "at_s": 1.5,
        "tx": "c-0",
        "messages": [{"id": "c-0/0", "queue": "a", "amount": 12}],
    }
    assert [line["redelivered"] for line in lines if line["event"] == "received"] == [False, True]


def test_a_log_is_written_once(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(FileExistsError):
        write(tmp_path)


def test_a_line_is_there_before_the_client_goes_on(tmp_path: Path) -> None:
    with ClientLog(tmp_path / "c.jsonl", "c") as log:
        log.began("t")
        assert [entry.tx for entry in read_logs(tmp_path)] == ["t"]


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    told = write(tmp_path)
    path = tmp_path / "c.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    assert list(read_logs(path)) == told[:-1]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "no line of a client log"),
        ("{}", "no line of a client log .*version"),
        (
            '{"version":2,"client":"c","number":0,"event":"began","colour":"red"}',
            "version 2; this program reads version 1",
        ),
        ('{"version":1,"client":"c","number":0,"event":"flown"}', "flown"),
        ('{"version":1,"client":"c","number":0,"event":"lost","colour":"red"}', "colour"),
        ('{"version":1,"client":"c","number":"0","event":"lost"}', "Expected `int`"),
        ('{"version":1,"client":"c","number":0,"event":"began"}', "lacks what began needs"),
        ('{"version":1,"client":"c","number":0,"event":"sent","tx":"t"}', "lacks what sent needs"),
        (
            '{"version":1,"client":"c","number":0,"event":"received","messages":[{"id":"i","queue":"q"}]}',
            "lacks what received needs",
        ),
    ],
)
def test_what_is_no_line_is_refused_and_named(tmp_path: Path, line: str, complaint: str) -> None:
    write(tmp_path)
    path = tmp_path / "c.jsonl"
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(LogError, match=rf"c\.jsonl:18: .*{complaint}"):
        list(read_logs(tmp_path))
