"""Simulated runs, written as feeds: their names in a feed of several runs, and complaints that end no run.

`test_mutator` audits some of them.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.pipeline.sim_feeds import merge
from tests.simulator.campaign import run_mutated
from tests.simulator.unheeded import unheeded

BUG, SEED = "redelivery-not-marked", 0
"""A mutation that its seed finds."""


def test_branches_of_merged_runs_have_the_name_that_their_managers_are_told(tmp_path: Path) -> None:
    """A rule compares both: with different names it would find nothing in simulated runs."""
    xid, feed = "1:global:branch", tmp_path / "run" / "feed"
    feed.mkdir(parents=True)
    events = [{"event": "dtx_prepare", "xid": xid}, {"event": "told", "outcome": "unknown", "name": xid}]
    (feed / "b1.jsonl").write_text("".join(json.dumps(each) + "\n" for each in events))
    (merged,) = (merge([feed.parent], tmp_path / "merged") / "feed").iterdir()
    prepared, told = map(json.loads, merged.read_text().splitlines())
    assert prepared["xid"] == told["name"] == f"run.{xid}"


def test_a_run_whose_checkers_are_not_heeded_is_the_same_and_goes_on() -> None:
    """Up to the complaint that ends the other one."""
    ended, _, before = run_mutated(BUG, SEED)
    with unheeded() as complaints:
        _, _, after = run_mutated(BUG, SEED)
    assert complaints.first is not None
    assert (complaints.first.promise, complaints.first.text) == (ended.promise, ended.text)
    assert before.world.now_us < after.world.now_us
    assert not before.healed_ms
