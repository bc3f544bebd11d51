"""Tables "In the source" of the docs name files and folders that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEADING = "## In the source\n"
DOCS = [path for path in sorted((ROOT / "docs").rglob("*.md")) if HEADING in path.read_text(encoding="utf-8")]


def test_several_docs_have_such_a_table() -> None:
    assert len(DOCS) > 5


@pytest.mark.parametrize("doc", DOCS, ids=lambda path: path.relative_to(ROOT / "docs").as_posix())
def test_each_path_exists(doc: Path) -> None:
    _, _, rest = doc.read_text(encoding="utf-8").partition(HEADING)
    section = re.split(r"^(?:## |<!--)", rest, flags=re.MULTILINE)[0]
    base = re.search(r"^Paths are below `([^`]+)`", section, re.MULTILINE)
    rows = re.findall(r"^\| .* \| ([^|]*) \|$", section, re.MULTILINE)
    named = re.findall(r"`([\w/]+(?:\.py|/))`", "\n".join(rows))
    roots = [ROOT, *([ROOT / base[1]] if base else [])]
    assert len(named) > 5
    assert [each for each in named if not any((root / each).exists() for root in roots)] == []
