"""docs/verdicts.md names every kind, event and field, and its examples are what the code reads."""

from __future__ import annotations

import re
from pathlib import Path

import attrs

from understudy.client import verdicts
from understudy.client.verdicts import Entry, Event, History, Kind, Violation
from understudy.client.verdicts.evidence.client_log import entry_of

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8")


def test_every_kind_has_a_row_that_names_its_file() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (`\w+\.py`.*?) \|", TEXT, re.MULTILINE))
    assert rows.keys() == {kind.value for kind in Kind}
    folder = ROOT / "client" / "verdicts"
    for kind, files in rows.items():
        for file in re.findall(r"`(\w+\.py)`", files):
            assert f"Kind.{Kind(kind).name}" in (folder / file).read_text(encoding="utf-8"), (kind, file)


def test_every_event_and_every_field_is_named() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", TEXT, re.MULTILINE))
    assert [event.value for event in Event if event.value not in rows] == []
    named = set(re.findall(r"`(\w+)`", TEXT))
    assert {field.name for field in (*attrs.fields(Entry), *attrs.fields(Violation))} <= named


def test_the_example_of_a_log_is_one() -> None:
    (example,) = re.findall(r"^```json\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    history = History.of(entry_of(line.encode()) for line in example.splitlines())
    assert history.transactions["c-0"].committed


def test_every_file_is_in_the_list_of_the_room() -> None:
    files = {path.stem for path in (ROOT / "client" / "verdicts").rglob("*.py")} - {"__init__"}
    assert set(re.findall(r"^``(\w+)``", verdicts.__doc__ or "", re.MULTILINE)) == files
