"""Docs of the audit's rules: the stars in docs/pipeline.md, and the files of each promise in docs/GLOSSARY.md."""

from __future__ import annotations

import re
from pathlib import Path

from understudy.pipeline import invariants
from understudy.pipeline.audit import client_logs

ROOT = Path(__file__).parents[3]
DOC = ROOT / "docs" / "pipeline.md"


def test_rules_with_a_star_are_those_that_speak_of_what_is_absent() -> None:
    rows = [line for line in DOC.read_text().splitlines() if re.match(r"\| (?:G\d \| )?`\w+`", line)]
    cells = [re.sub(r"^\| (?:G\d \| )?", "", row).split(" | ")[0] for row in rows]
    starred = {kind for cell in cells for kind in re.findall(r"`(\w+)` \*", cell)}
    assert starred == invariants.ABSENCES | client_logs.ABSENCES


def test_the_glossary_names_the_files_of_each_promise() -> None:
    rows = re.findall(r"^\| (G\d) .*\| ([^|]*) \|$", (ROOT / "docs" / "GLOSSARY.md").read_text(), re.MULTILINE)
    named = {promise: set(re.findall(r"`(\w+)`", cell)) for promise, cell in rows}
    has: dict[str, set[str]] = {f"G{n}": set() for n in range(1, 10)}
    for path in (ROOT / "pipeline" / "invariants").glob("*.py"):
        for promise in re.findall(r'"(G\d)", "\w+"', path.read_text()):
            has[promise].add(path.stem)
    assert named == has
