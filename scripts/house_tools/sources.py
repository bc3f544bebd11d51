"""The files of the house, parsed once: product and tests."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs

ROOMS: Final = ("broker", "client", "ha", "observers", "pipeline", "replicator", "testing", "xa")
OPENERS: Final = ("Who", "What", "Whatever", "It", "That", "They", "Whether", "Nobody")
"""A docstring that begins so has no noun as its subject."""

_HUNK: Final = re.compile(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@")


@attrs.frozen
class Source:
    """One file of Python.

    Attributes:
        path: below the repository's root.
        text: of the file.
        tree: parsed.
    """

    path: Path
    text: str
    tree: ast.Module

    @property
    def is_product(self) -> bool:
        return self.path.parts[0] in ROOMS

    @property
    def module(self) -> str:
        """Its dotted name below ``understudy``; a folder's own for its ``__init__``."""
        parts = self.path.with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def room(self) -> str:
        """Its folder, dotted."""
        return ".".join(self.path.parts[:-1])

    def docstrings(self) -> Iterator[tuple[int, str]]:
        """(line, text) of the module's, of its classes' and of its functions'."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node, clean=True)
                if text:
                    yield node.body[0].lineno, text


def read_sources(root: Path) -> list[Source]:
    """All files of Python that git knows below ``root``."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    found = []
    for name in sorted(set(listed.stdout.splitlines())):
        path = root / name
        if path.is_file() and not path.is_symlink():
            text = path.read_text(encoding="utf-8")
            found.append(Source(Path(name), text, ast.parse(text, name)))
    return found


def begins_without_a_noun(docstring: str) -> bool:
    """``docstring`` begins with one of `OPENERS`."""
    first = docstring.split(maxsplit=1)[0].split("'", maxsplit=1)[0].rstrip(",.:;") if docstring.split() else ""
    return first in OPENERS


def product_of(sources: Sequence[Source]) -> list[Source]:
    return [each for each in sources if each.is_product]


def added_lines(root: Path, base: str) -> dict[str, set[int]]:
    """Lines that the working tree adds to the commit ``base``, by file; of a file that git does not know yet, all.

    Raises:
        subprocess.CalledProcessError: there is no such commit.
    """
    told = subprocess.run(
        ["git", "-C", str(root), "diff", "--unified=0", "--no-color", base, "--", "*.py"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found: dict[str, set[int]] = {}
    name = ""
    for line in told.splitlines():
        if line.startswith("+++ "):
            name = line[6:]
        elif (hunk := _HUNK.match(line)) is not None:
            first, many = int(hunk[1]), int(hunk[2] or 1)
            found.setdefault(name, set()).update(range(first, first + many))
    fresh = subprocess.run(
        ["git", "-C", str(root), "ls-files", "--others", "--exclude-standard", "*.py"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in fresh.splitlines():
        found[name] = set(range(1, 1 + len((root / name).read_text(encoding="utf-8").splitlines())))
    return found
