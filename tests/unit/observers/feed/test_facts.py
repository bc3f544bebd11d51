"""Facts that are no record: gathered in the core, written by the edge, read by the feed, numbered over what is missing."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from understudy.broker.core.watching.facts import UNTOLD, Facts
from understudy.broker.log.log import Log
from understudy.broker.server.files import fact_log
from understudy.broker.server.files.fact_log import FactLog, fact_file_name, fact_files
from understudy.ha.leading.backup_readiness import BackupReadiness
from understudy.ha.showing.events import (
    BrokerBarred,
    SetChanged,
    StatusChanged,
    TrackerAdded,
    TrackerCleared,
    TransactionRefused,
)
from understudy.ha.showing.feed_facts import HaFacts
from understudy.observers.events_schema import Admit, Dropped, End, Event, Expel, Gap, LinkDown, LinkUp, Readiness
from understudy.observers.feed.edge.fact_reader import FactReader, UnknownFactError
from understudy.observers.feed.reader import CursorError


class Process:
    """One life of a broker process, as far as facts go."""

    def __init__(self, directory: Path, limit: int = 100, incarnation: str = "") -> None:
        self.facts = Facts(lambda: 7, limit)
        self.now_s = 0.0
        self.log = FactLog(directory, "g", "b1", self.facts, lambda: self.now_s, incarnation)

    def say(self, *peers: str) -> None:
        for peer in peers:
            self.facts.tell("link_up", peer=peer)
        self.log.write()


Readers = Callable[..., FactReader]


@pytest.fixture
def reading(tmp_path: Path) -> Iterator[Readers]:
    """Makes readers, and closes them."""
    with ExitStack() as stack:
        yield lambda cursor=None: stack.enter_context(closing(FactReader(tmp_path, cursor)))


def read(reader: FactReader) -> list[Event]:
    return [event for events in reader.events() for event in events]


def shown(events: list[Event]) -> list[tuple[int, str]]:
    """Number, and peer or name and count."""
    return [
        (each.seq, each.peer if isinstance(each, LinkUp) else f"{type(each).__name__} {getattr(each, 'count', '')}")
        for each in events
    ]


def test_what_is_told_is_read_with_its_place(reading: Readers, tmp_path: Path) -> None:
    process = Process(tmp_path)
    log = Log(0)
    process.facts.follow(log)
    process.facts.founding = "abc"
    process.say("b2", "b3")
    reader = reading()
    (first, second) = read(reader)
    assert isinstance(first, LinkUp)
    assert (first.peer, first.seq, first.at_ms, first.founding) == ("b2", 1, 7, "abc")
    assert (first.group, first.broker, first.epoch, first.offset) == ("g", "b1", log.epochs.newest, log.end)
    assert first.incarnation.startswith("p")
    assert second.seq == 2
    assert read(reader) == []
    process.say("b4")
    assert shown(read(reader)) == [(3, "b4")]
    assert (tmp_path / fact_file_name(1)).stat().st_mode & 0o777 == 0o600
    assert UNTOLD.take() == ([], 0)
    UNTOLD.tell("link_up", peer="b2")
    assert UNTOLD.take() == ([], 0)


def test_a_full_buffer_is_an_event(reading: Readers, tmp_path: Path) -> None:
    process = Process(tmp_path, limit=2)
    process.say("b2", "b3", "b4", "b5")
    process.say("b6")
    assert shown(read(reading())) == [(1, "b2"), (2, "b3"), (5, "Dropped 2"), (6, "b6")]


def refusing(*, after: int) -> Callable[[int, bytes], int]:
    """``os.write`` of a disk with so much room."""
    real = os.write
    room = [after]

    def write(file: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real(file, data[: room[0]])
        room[0] -= written
        return written

    return write


@pytest.mark.parametrize("room", [0, 50, 150, 400])
def test_a_disk_that_refuses_costs_facts_and_nothing_else(
    reading: Readers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    process = Process(tmp_path)
    process.say("b2")
    with monkeypatch.context() as patched:
        patched.setattr("understudy.broker.server.files.fact_log.os.write", refusing(after=room))
        process.say(*(f"x{number}" for number in range(9)))
        process.say("later")
    assert process.facts.waiting, "it is not tried again at once"
    process.now_s = 1.0
    process.say("b3")
    found = read(reading())
    told = [each for each in found if not isinstance(each, Dropped)]
    assert shown(told)[-2:] == [(12, "later"), (13, "b3")]
    (dropped,) = [each for each in found if isinstance(each, Dropped)]
    assert (dropped.seq, dropped.count) == (11, 9)
    assert [each.seq for each in told] == [*range(1, len(told) - 1), 12, 13], "half a line is no fact"


def test_a_reader_goes_on_at_any_place(reading: Readers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over files and incarnations; each event once, and no gap."""
    monkeypatch.setattr(fact_log, "FILE_BYTES", 300)
    reader = reading()
    told: list[tuple[int, str]] = []
    expected = []
    for life in range(3):
        process = Process(tmp_path, incarnation=f"p{life}-7")  # by their starts they might be one
        for number in range(5):
            peer = f"b{life}.{number}"
            process.say(peer)
            expected.append((number + 1, peer))
            if number % 2:
                told += shown(read(reader))
                cursor = reader.cursor()
                reader.close()
                reader = reading(cursor)
        process.log.close()
    found = told + shown(read(reader))
    assert [each for each in found if each[0]] == expected
    assert [each for each in found if not each[0]] == [(0, "End ")] * 2, "a process that another one follows"
    assert len(fact_files(tmp_path)) > 4


def test_files_are_bounded_and_what_is_gone_is_a_gap(
    reading: Readers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fact_log, "FILE_BYTES", 1)
    monkeypatch.setattr(fact_log, "FILES", 3)
    process = Process(tmp_path)
    process.say("b2")
    reader = reading()
    assert shown(read(reader)) == [(1, "b2")]
    cursor = reader.cursor()
    for number in range(6):
        process.say(f"c{number}")
    assert fact_files(tmp_path) == [5, 6, 7]
    for each in (reader, reading(cursor)):
        gap, *rest = read(each)
        assert isinstance(gap, Gap)
        assert (gap.reason, gap.from_segment, gap.to_segment, gap.seq) == ("facts_dropped", 1, 5, 0)
        assert shown(rest) == [(5, "c3"), (6, "c4"), (7, "c5")]


def test_a_directory_that_was_replaced(reading: Readers, tmp_path: Path) -> None:
    Process(tmp_path).say("b2")
    reader = reading()
    read(reader)
    (tmp_path / fact_file_name(1)).unlink()
    fact = Process(tmp_path)
    fact.log._head["incarnation"] = "other"
    fact.say("b3")
    end, gap, *rest = read(reading(reader.cursor()))
    assert isinstance(end, End)
    assert end.events == 1
    assert isinstance(gap, Gap)
    assert gap.reason == "facts_rewritten"
    assert shown(rest) == [(1, "b3")]


def test_a_newer_program(reading: Readers, tmp_path: Path) -> None:
    process = Process(tmp_path)
    process.facts.tell("invented")
    process.log.write()
    with pytest.raises(UnknownFactError, match="a fact that this program does not know"):
        read(reading())
    (tmp_path / fact_file_name(1)).write_text('{"facts":2}\n')
    with pytest.raises(UnknownFactError, match="facts of version 2; this program reads version 1"):
        read(reading())
    for cursor in (b"{", b'{"version":2}'):
        with pytest.raises(CursorError):
            reading(cursor)


class PeerLink:
    """``replicator.fabric.Link``, as far as facts go."""

    wire_version = newest_record_format = 1

    def __init__(self, peer: str) -> None:
        self.peer = peer

    def send(self, message: bytes) -> None: ...

    def close(self, reason: str) -> None: ...


def test_what_the_ha_plugin_tells(reading: Readers, tmp_path: Path) -> None:
    """Each of its facts is an event of the schema."""
    process = Process(tmp_path)
    ha = HaFacts(process.facts)
    ha.founding(0xABC)
    status: dict[str, Any] = {"epoch": 1, "primary": "b1", "blockers": ""}
    ha.happened(StatusChanged(status="ready", was="joining", **status), 2)
    ha.happened(StatusChanged(status="recovering", was="ready", **status), 2)
    ha.happened(StatusChanged(status="active", was="recovering", **status), 2)
    left: dict[str, Any] = {"left": ("b2",), "reason": "silent", "lost": ("b2",)}
    joined: dict[str, Any] = {"joined": ("b3",), "acked": (7,), "catching_up": ("b3",), "stable": 6}
    ha.happened(SetChanged(epoch=1, in_sync=("b1", "b3"), **joined, **left), 2)
    ha.happened(TransactionRefused(backup="b3", tx="1.7", prepare_offset=9, reason="lacks it"), 2)
    ha.happened(TrackerAdded(backup="b3", tx="1.7", queue="q", left=3), 2)
    ha.happened(TrackerCleared(backup="b3", tx="1.7"), 2)
    lost, closed = PeerLink("b2"), PeerLink("b3")
    for link in (lost, closed):
        ha.link_up(link)
    for _ in range(2):  # the second time it is gone already
        ha.link_down(lost, "reset")
        ha.look_at_links(lambda link: link is closed)
    ha.happened(BrokerBarred(barred="b3", lifted=False, by="guest"), 2)
    ha.step_down("a higher epoch")
    process.facts.tell("work_refused", cause="disk", reason="full")
    process.facts.tell("work_taken", cause="disk")
    process.log.write()
    found = read(reading())
    names = (
        "role status promote role status status in_sync expel admit vote tracker_add tracker_clear "
        "link_up link_up link_down link_down bar step_down"
    )
    assert [each.__struct_config__.tag for each in found] == [*names.split(), "work_refused", "work_taken"]
    assert {getattr(each, "tx", "abc/1.7") for each in found} == {"abc/1.7"}
    expel, admit = found[names.split().index("expel")], found[names.split().index("admit")]
    assert isinstance(expel, Expel)
    assert (expel.backup, expel.data) == ("b2", "lost")
    assert isinstance(admit, Admit)
    assert (admit.backup, admit.acked, admit.catches_up, admit.stable) == ("b3", 7, True, 6)
    downs = [(each.peer, each.reason) for each in found if isinstance(each, LinkDown)]
    assert downs == [("b2", "reset"), ("b3", "closed by this broker")]


def test_readiness_is_told_when_what_blocks_it_changes() -> None:
    facts = Facts(lambda: 7)
    ha = HaFacts(facts)

    def told(**changes: Any) -> list[str]:
        row: dict[str, Any] = {"broker": "b2", "listed": False, "linked": True, "lag_records": 0, "since_ms": 0}
        ha.look([BackupReadiness(**(row | changes))])
        return [each.name for each in facts.take()[0]]

    assert told(lag_bytes=0, catching_up=True, queues=(("q", 30), ("r", 1))) == ["readiness", "blocker", "blocker"]
    assert told(lag_bytes=0, catching_up=True, queues=(("q", 20), ("r", 1))) == []
    assert told(lag_bytes=0, catching_up=True, queues=(("q", 10),)) == ["readiness", "blocker"]
    assert told(lag_bytes=0, transactions=(("1.7", "q", 2),)) == ["readiness", "blocker"]
    assert told(lag_bytes=0, listed=True) == ["readiness"]
    assert told(lag_bytes=0, listed=True) == []
    assert told(lag_bytes=0, listed=True, linked=False) == ["readiness", "blocker"]
    assert Readiness.__struct_fields__[-1] == "blockers"
