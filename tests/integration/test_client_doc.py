"""The examples of docs/client.md work when they are pasted."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.broker_process import BrokerProcess

pytestmark = [pytest.mark.integration]

DOC = (Path(__file__).parents[2] / "docs" / "client.md").read_text(encoding="utf-8")
TIMEOUT_S = 60.0


def test_the_examples_do_what_the_page_says(broker: BrokerProcess, tmp_path: Path) -> None:
    told = []
    for number, text in enumerate(re.findall(r"^```python\n(.*?)^```", DOC, re.DOTALL | re.MULTILINE)):
        example = tmp_path / f"example{number}.py"
        example.write_text(re.sub(r'"amqp://127[^"]+"', f'"amqp://127.0.0.1:{broker.port}/"', text), encoding="utf-8")
        done = subprocess.run([sys.executable, example], timeout=TIMEOUT_S, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        told.append(done.stdout.strip())
    assert told == [re.findall(r"^It prints `(.*?)`", DOC, re.MULTILINE)[0], "Outcome.COMMITTED"]
