"""``scripts/bench``: ratios of the same round, and what of a rate is kept when links are slower."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    return {name: import_module(f"bench_tools.{name}") for name in ("report", "rows", "runner", "sample")}


def _outcome(tools: Any, row: str, side: str, number: int, rate: float) -> Any:
    sample = tools["sample"].make_sample(
        tools["sample"].CpuUse(seconds=1.0, brokers=1.0, generator=0.1, machine=1.2, feeds=0.0, cores=2),
        seconds=1.0,
        commits=None,
        messages=rate,
        latencies_us={"p50": 1000.0},
        checks=(),
    )
    return tools["runner"].Outcome(row=row, side=side, round=number, sample=sample)


def test_ratios_are_those_of_a_round_to_each_other_side(tools: Any) -> None:
    (row,) = tools["rows"].select_rows("flow-8")
    sides = ("rabbitmq", "quorum", "understudy")
    rates = {"rabbitmq": (10.0, 100.0, 50.0), "quorum": (20.0, 50.0, 25.0), "understudy": (40.0, 200.0, 200.0)}
    outcomes = [_outcome(tools, row.name, side, number, rates[side][number]) for side in sides for number in range(3)]
    (entry,) = tools["report"].summarise([row], sides, outcomes)
    assert entry["ratios"]["rabbitmq"]["messages_per_s"] == 4  # of 4, 2 and 4; the medians' would be 200 / 50, too
    assert entry["ratios"]["quorum"]["messages_per_s"] == 4  # of 2, 4 and 8; the medians' would be 200 / 25
    assert entry["ratios"]["quorum"] | {"lowest": 2, "highest": 8} == entry["ratios"]["quorum"]
    assert entry["ratio"] == entry["ratios"]["rabbitmq"]
    assert entry["kept"] == dict.fromkeys(sides)


def test_a_delayed_row_keeps_a_share_of_its_rate_at_the_first_delay(tools: Any) -> None:
    rows = tools["rows"].at_delays(tools["rows"].select_rows("tx-1x1,rpc-1"), [0, 2])
    assert [row.name for row in rows] == ["tx-1x1+0ms", "tx-1x1+2ms", "rpc-1+0ms", "rpc-1+2ms"]
    rates = {"tx-1x1+0ms": (100.0, 10.0), "tx-1x1+2ms": (50.0, 8.0), "rpc-1+0ms": (30.0, 30.0), "rpc-1+2ms": (3.0, 3.0)}
    outcomes = [
        _outcome(tools, row.name, "understudy", number, rates[row.name][number]) for row in rows for number in range(2)
    ]
    entries = tools["report"].summarise(rows, ("understudy",), outcomes)
    assert [entry["kept"]["understudy"] for entry in entries] == [None, 0.65, None, 0.1]
    assert "0.65" in tools["report"].table(entries, ("understudy",))
