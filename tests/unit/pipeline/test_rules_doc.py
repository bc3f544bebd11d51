"""docs/pipeline.md marks rules that find nothing for certain while evidence is missing: those that the audit takes for such."""

from __future__ import annotations

import re
from pathlib import Path

from understudy.pipeline import invariants
from understudy.pipeline.audit import client_logs

DOC = Path(__file__).parents[3] / "docs" / "pipeline.md"


def test_rules_with_a_star_are_those_that_speak_of_what_is_absent() -> None:
    rows = [line for line in DOC.read_text().splitlines() if re.match(r"\| (?:G\d \| )?`\w+`", line)]
    cells = [re.sub(r"^\| (?:G\d \| )?", "", row).split(" | ")[0] for row in rows]
    starred = {kind for cell in cells for kind in re.findall(r"`(\w+)` \*", cell)}
    assert starred == invariants.ABSENCES | client_logs.ABSENCES
