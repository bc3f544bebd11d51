"""docs/feed.md says of every event what `observers/events_schema.py` says.

``python -m tests.unit.test_feed_doc`` writes its generated part anew.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path

import msgspec

from understudy.observers import events_schema
from understudy.observers.events_schema import EVENT_TYPES, FIELDS, Event, event_name

DOC = Path(__file__).parents[2] / "docs" / "feed.md"
BEGIN = "<!-- begin: made from observers/events_schema.py by `python -m tests.unit.test_feed_doc` -->"
END = "<!-- end -->"
WIDTH = 100
SECTION = re.compile(r"^# -- (.+?) -+$")
TYPES = {int: "number", str: "text", bool: "truth"}


def attributes(doc: str) -> tuple[str, dict[str, str]]:
    """First words of a docstring, and its words on each field."""
    text, _, rest = inspect.cleandoc(doc).partition("\n\nAttributes:\n")
    found: dict[str, str] = {}
    for line in textwrap.dedent(rest).splitlines():
        if line.startswith(" "):
            last = next(reversed(found))
            found[last] += " " + line.strip()
        elif line:
            names, _, words = line.partition(": ")
            found[names] = words
    return text, found


def fields_of(kind: type[Event], own: bool) -> list[str]:
    """A list item for each field."""
    _, said = attributes(kind.__doc__ or "")
    by_name = {name: (name, words) for name, words in FIELDS.items()}
    for names, words in said.items():
        for name in names.split(", "):
            by_name[name] = (names, words)
    items: list[str] = []
    told = set()
    for field in msgspec.structs.fields(kind):
        if own and field.name in Event.__struct_fields__:
            continue
        names, words = by_name.get(field.name, (field.name, ""))
        if names in told:
            continue
        told.add(names)
        shown = ", ".join(f"`{name}`" for name in names.split(", ") if name in kind.__struct_fields__)
        types = dict.fromkeys(
            TYPES[each.type] for each in msgspec.structs.fields(kind) if each.name in names.split(", ")
        )
        head = f"- {shown} ({' and '.join(types)})"
        items.append(textwrap.fill(f"{head}: {words}" if words else head, WIDTH, subsequent_indent="  "))
    return items


def sections() -> dict[str, str]:
    """Class name to the heading under which the schema has it."""
    source = Path(inspect.getfile(events_schema)).read_text(encoding="utf-8")
    classes = {each.lineno: each.name for each in ast.parse(source).body if isinstance(each, ast.ClassDef)}
    heading, found = "", {}
    for number, line in enumerate(source.splitlines(), start=1):
        match = SECTION.match(line)
        heading = match[1].capitalize() if match is not None else heading
        if number in classes:
            found[classes[number]] = heading
    return found


def generated() -> str:
    parts = [BEGIN, "## Every event", textwrap.fill(attributes(Event.__doc__ or "")[0], WIDTH)]
    parts.append("\n".join(fields_of(Event, own=False)))
    heading = ""
    found = sections()
    for kind in EVENT_TYPES:
        if found[kind.__name__] != heading:
            heading = found[kind.__name__]
            parts.append(f"## {heading}")
        parts.append(f"### `{event_name(kind.__name__)}`")
        text = attributes(kind.__doc__ or "")[0]
        parts += [textwrap.fill(each.replace("\n", " "), WIDTH) for each in text.split("\n\n")]
        items = fields_of(kind, own=True)
        if items:
            parts.append("\n".join(items))
    parts.append(END)
    return re.sub(r"`{2}", "`", "\n\n".join(parts))


def test_the_page_is_what_the_schema_says() -> None:
    text = DOC.read_text(encoding="utf-8")
    assert text[text.index(BEGIN) : text.index(END) + len(END)] == generated(), "python -m tests.unit.test_feed_doc"


def test_every_field_is_explained() -> None:
    kinds: list[type[Event]] = [Event, *EVENT_TYPES]
    for kind in kinds:
        explained = {name for names in attributes(kind.__doc__ or "")[1] for name in names.split(", ")}
        assert explained <= set(kind.__struct_fields__), kind
        own = set(kind.__struct_fields__) - (set() if kind is Event else set(Event.__struct_fields__))
        assert own <= explained | set(FIELDS), f"{kind.__name__}: {sorted(own - explained - set(FIELDS))}"


def test_lines_are_short() -> None:
    assert [line for line in DOC.read_text(encoding="utf-8").splitlines() if len(line) > WIDTH] == []


if __name__ == "__main__":
    page = DOC.read_text(encoding="utf-8")
    DOC.write_text(page[: page.index(BEGIN)] + generated() + page[page.index(END) + len(END) :], encoding="utf-8")
