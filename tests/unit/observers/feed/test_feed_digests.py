"""A feed says where it ends, and the digest of what it has: at each end of a file, wherever it was killed, whoever reads on."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.observers.feed.feed_command_kit import run
from tests.unit.observers.feed.feed_speed import write_journal
from understudy.broker.server.files.file_storage import FileStorage
from understudy.observers.events_schema import (
    BY_NAME,
    DEFAULTS,
    EVENT_TYPES,
    FREQUENT,
    GROUPS,
    HEADS,
    OF_ALL,
    Append,
    Dequeue,
    End,
    Enqueue,
    Event,
    Gap,
    P,
    Segment,
    event_name,
)
from understudy.observers.feed.edge import directory as feed_directory
from understudy.observers.feed.edge.directory import FeedDirectory
from understudy.observers.feed.edge.sink_files import JsonLines, RollingFiles
from understudy.observers.feed.event_digest import digest_of
from understudy.observers.feed.feed import Selection
from understudy.observers.feed.reader import FeedReader

Row = dict[str, Any]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cluster")
    for broker in ("b1", "b2"):
        write_journal(folder / broker, 100, broker=broker, salt=int(broker[1]))
    return folder


def read(directory: Path) -> list[Event]:
    storage = FileStorage(directory, read_only=True)
    reader = FeedReader(storage)
    try:
        return [event for events in reader.events() for event in events]
    finally:
        reader.close()
        storage.close()


def ends_hold(rows: list[Row]) -> int:
    """Each `end` states the digest of the events before it. Returns: how many there are."""
    before: dict[str, list[Event]] = defaultdict(list)
    ends = 0
    for row in rows:
        if row["event"] == "end":
            events = before[row["incarnation"]]
            assert (row["events"], row["event_digest"]) == (len(events), digest_of(events))
            assert row["seq"] == 0
            ends += 1
        else:
            fields = {name: value for name, value in row.items() if name != "event"}
            before[row["incarnation"]].append(BY_NAME[row["event"]](**fields))
    return ends


def test_a_feed_says_where_it_ends(cluster: Path) -> None:
    rows = [json.loads(line) for line in run("feed", "--data", cluster, "--json").stdout.splitlines()]
    assert [row["event"] for row in rows[-2:]] == ["end", "end"]
    assert {row["broker"] for row in rows[-2:]} == {"b1", "b2"}
    assert ends_hold(rows) == 2
    assert '"end"' not in run("feed", "--data", cluster, "--json", "--queue", "q.1").stdout, "that is a part"
    assert " end " not in run("feed", "--data", cluster).stdout, "of no use to a person"


def test_each_file_ends_with_its_ends_wherever_the_feed_was_killed(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_directory, "ROUND_EVENTS", 100)
    chance = random.Random(7)
    out = tmp_path / "out"
    for _ in range(4):
        files = RollingFiles(out, JsonLines(), 20_000, 3600.0)
        feeds = FeedDirectory(cluster, files)
        for _ in range(chance.randrange(1, 5)):
            feeds._round(files, Selection())
        feeds.close()  # what was not saved is lost, as by a kill
        files.close()
    files = RollingFiles(out, JsonLines(), 20_000, 3600.0)
    feeds = FeedDirectory(cluster, files)
    feeds.read_in_rounds(files, Selection())
    feeds.close()
    files.close()
    found = sorted(out.glob("[0-9]*"))
    rows = [[json.loads(line) for line in file.read_bytes().splitlines()] for file in found]
    assert len(found) > 3
    assert all(some[-1]["event"] == "end" for some in rows)
    assert ends_hold([row for some in rows for row in some]) >= len(found)


def test_a_batch_states_the_digest_of_what_stands_before_it(cluster: Path) -> None:
    events = read(cluster / "b1")
    appends = [each for each in events if isinstance(each, Append)]
    for each in appends:
        assert each.event_digest == digest_of(events[: each.seq - 1])
    others = [each for each in read(cluster / "b2") if isinstance(each, Append)]
    assert [each.content_crc for each in appends] == [each.content_crc for each in others], "one log"
    assert len({each.content_crc for each in appends}) == len(appends)
    first = events[0]
    assert isinstance(first, Segment)
    assert (first.previous, first.previous_event_digest) == ("", -1)


def test_whoever_goes_on_at_a_cursor_states_the_same(cluster: Path) -> None:
    expected = read(cluster / "b1")
    storage = FileStorage(cluster / "b1", read_only=True)
    reader, found = FeedReader(storage), list[Event]()
    for number, events in enumerate(reader.events()):
        found += events
        if number == 2:
            break
    cursor = reader.cursor()
    reader.close()
    reader = FeedReader(storage, cursor)
    found += [event for events in reader.events() for event in events]
    end = reader.end()
    reader.close()
    assert end is not None
    assert (end.events, end.event_digest) == (len(expected), digest_of(expected))
    assert found == expected
    older = msgspec.json.decode(cursor or b"")
    del older["event_digest"]
    reader = FeedReader(storage, msgspec.json.encode(older))
    assert {each.event_digest for events in reader.events() for each in events if isinstance(each, Append)} == {-1}
    end = reader.end()
    assert end is not None
    assert end.event_digest == -1, "what an older program has read is not in it"
    reader.close()
    storage.close()


@pytest.mark.parametrize(
    "name", [name for names in (HEADS[1:], *GROUPS) for name in names if name not in ("segment", "previous_events")]
)
def test_a_field_that_is_changed_changes_the_digest(name: str) -> None:
    kind = next(each for each in EVENT_TYPES if name in each.__struct_fields__)
    needed = [field for field in msgspec.structs.fields(kind) if field.default is msgspec.NODEFAULT]
    values: dict[str, Any] = {field.name: {int: 7, str: "x", bool: True}[field.type] for field in needed}
    event = kind(**values)
    value = getattr(event, name)
    others: list[Any] = [not value] if isinstance(value, bool) else ["y", ""] if isinstance(value, str) else []
    others = others or [value + 1, value + P + 1, 1 << 57]
    for other in others:
        if other != value:
            assert digest_of([msgspec.structs.replace(event, **{name: other})]) != digest_of([event])


def test_events_that_exchange_a_value_have_another_digest(cluster: Path) -> None:
    events = read(cluster / "b1")
    for kind, name in ((Enqueue, "queue_id"), (Enqueue, "routing_key"), (Dequeue, "id"), (Append, "stable")):
        one, two = [each for each in events if isinstance(each, kind)][3:5]
        other = [msgspec.structs.replace(one, **{name: getattr(two, name)})]
        other.append(msgspec.structs.replace(two, **{name: getattr(one, name)}))
        if getattr(one, name) != getattr(two, name):
            assert digest_of(other) != digest_of([one, two])
    assert digest_of([*reversed(events)]) == digest_of(events), "a sum has no order"
    assert digest_of(events[5:], digest_of(events[:5])) == digest_of(events)


def test_a_default_counts_as_nothing_in_every_event() -> None:
    """So the digest of a row that has a column for each field of all events is that of its event."""
    for kind in EVENT_TYPES:
        for field in msgspec.structs.fields(kind):
            if field.default is not msgspec.NODEFAULT:
                nothing = "" if field.type is str else DEFAULTS.get(field.name, 0)
                assert field.default == nothing, (kind, field.name)


def test_every_field_is_covered_but_names_of_streams_and_digests_themselves() -> None:
    """A new field comes into a group: one of `OF_ALL` if it is of a frequent event."""
    names = {"schema", "group", "broker", "incarnation", "seq", "previous", "previous_event_digest"}
    of_all = {*names, *HEADS, *(name for group in GROUPS[:OF_ALL] for name in group)}
    every = {*of_all, *(name for group in GROUPS for name in group)}
    for kind in EVENT_TYPES:
        if kind not in (Gap, End):
            covered = of_all | {"segment", "previous_events"} if event_name(kind.__name__) in FREQUENT else every
            assert set(kind.__struct_fields__) <= covered, kind
    everything = [name for group in GROUPS for name in group]
    assert len(everything) == len(set(everything))
