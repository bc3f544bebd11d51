"""Simulated runs, written as feeds: clean ones are proved, and known bugs of the simulator are found.

All seeds and all bugs: ``python -m tests.pipeline.sim_feeds`` and ``python -m tests.pipeline.sim_mutations``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tests.pipeline.sim_feeds import Wanted, judge, merge, write
from tests.pipeline.sim_mutations import Wanted as WantedBug
from tests.pipeline.sim_mutations import write_found
from tests.simulator.campaign import run_mutated
from tests.simulator.unheeded import unheeded
from understudy.pipeline.audit.verdict import PROVED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLEAN = (17,)
"""With catch-ups, cuts, step-downs, directories that are lost, and a log that is let go."""
BUGS = {
    "redelivery-not-marked": (0, "G9 unmarked"),
}
"""Where a search from seed 0 on ends, and what the audit must find. If a change makes them other stories, the search goes on."""


def test_clean_runs_are_proved_and_known_bugs_are_found(spark: SparkSession, tmp_path: Path) -> None:
    clean = [write(Wanted(seed, tmp_path / f"seed-{seed}")) for seed in CLEAN]
    assert all(each.whole and each.result.held and not each.lost for each in clean)
    for name, (start, _) in BUGS.items():
        assert write_found(WantedBug(name, start, tmp_path / name)) is not None
    folders = [*(each.folder for each in clean), *(tmp_path / name for name in BUGS)]
    judged = judge(spark, folders, tmp_path / "together")
    for seed in CLEAN:
        assert judged[f"seed-{seed}"].word == PROVED, judged[f"seed-{seed}"].as_json()
    for name, (_, wanted) in BUGS.items():
        assert wanted in judged[name].violations, judged[name].as_json()


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
    ended, _, before = run_mutated("redelivery-not-marked", BUGS["redelivery-not-marked"][0])
    with unheeded() as complaints:
        _, _, after = run_mutated("redelivery-not-marked", BUGS["redelivery-not-marked"][0])
    assert complaints.first is not None
    assert (complaints.first.promise, complaints.first.text) == (ended.promise, ended.text)
    assert before.world.now_us < after.world.now_us
    assert not before.healed_ms
