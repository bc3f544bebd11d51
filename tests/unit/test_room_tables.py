"""The table of files in the docstring of a room names each file and each room in it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("broker", "client", "ha", "observers", "pipeline", "replicator", "scripts", "testing", "tests", "xa")
LEAST_ROWS = 3
"""A docstring with fewer rows that begin with a file has no table of files."""
OTHER_TABLES = {"pipeline/invariants"}
"""Their rows are no files."""


def files_of(room: Path) -> set[str]:
    """The modules and rooms of a room, but for tests and programs."""
    modules = {path.stem for path in room.glob("*.py") if not path.stem.startswith(("__", "test_"))}
    return modules | {path.parent.name for path in room.glob("*/__init__.py")}


def table_of(room: Path) -> str:
    """The docstring of a room if it has a table of files, else ""."""
    text = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))) or ""
    rows = re.findall(r"^ *`{0,2}(\w+)\b.*? {2,}\S", text, re.MULTILINE)
    return text if len(files_of(room).intersection(rows)) >= LEAST_ROWS else ""


TABLES = [
    path.parent
    for top in ROOMS
    for path in sorted((ROOT / top).rglob("__init__.py"))
    if str(path.parent.relative_to(ROOT)) not in OTHER_TABLES and table_of(path.parent)
]


def test_many_rooms_have_a_table() -> None:
    assert len(TABLES) > 15


@pytest.mark.parametrize("room", TABLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_table_names_each_file(room: Path) -> None:
    assert files_of(room) - set(re.findall(r"\w+", table_of(room))) == set()
