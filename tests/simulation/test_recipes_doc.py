"""The scenarios of docs/recipes.md and of the simulator's README run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["docs/recipes.md", "tests/simulator/README.md"])
def test_the_scenario_of_the_page_holds(page: str) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    exec(compile(blocks[0], page, "exec"), {})  # our own page
