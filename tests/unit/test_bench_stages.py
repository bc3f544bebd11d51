"""``scripts/bench stages``: its rows in their order, and the CPU of a rival's processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    return import_module("bench_tools.stages.cells"), import_module("bench_tools.stages.rivals")


def test_each_rival_stands_behind_ours_and_is_compared_with_the_bare_consumer(bench: Any) -> None:
    cells, rivals = bench
    assert (
        *("bare", "nothing", "once", "xa"),
        *("faststream", "faststream-safe", "celery", "celery-late"),
        *("bare-last", "inbox"),
    ) == cells.ALL
    rates = {"celery": 30.0, "once": 50.0, "bare": 100.0}
    found = [
        cells.Cell(database="sqlite", side=side, round=number, rate=rate * (number + 1), cpu_ms=1.0)
        for side, rate in rates.items()
        for number in range(3)
    ]
    lines = [line.split("|")[2:6] for line in cells.table(found).splitlines()[2:]]
    assert [(side.strip(), ratio.strip()) for side, _, _, ratio in lines] == [
        ("bare", ""),
        ("once", "0.50"),
        ("celery", "0.30"),
    ]
    assert rivals.RIVALS["celery-late"].safe


def test_the_cpu_of_a_process_has_that_of_its_children(bench: Any) -> None:
    _, rivals = bench
    spins = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    parent = subprocess.Popen([sys.executable, "-c", spins], start_new_session=True)
    try:
        end_s = time.monotonic() + 60
        while rivals.cpu_of(parent.pid) < 0.3:
            assert time.monotonic() < end_s
    finally:
        os.killpg(parent.pid, 9)
        parent.wait()
    assert rivals.cpu_of(parent.pid) == 0.0
