"""The command says what it found, in words and for machines, and its exit code is the verdict."""

from __future__ import annotations

import json
import re
from math import comb
from typing import Any

import attrs
import pytest

from tests.simulator.campaign import Found, medians
from tests.simulator.cluster import SimCluster
from tests.simulator.command import main, seed_range
from tests.simulator.crash_points import CRASH_POINTS as POINTS
from tests.simulator.knobs import ALL_WORKLOADS, Fixed, Knobs
from tests.simulator.ledger import Violation
from tests.simulator.minima import BAD_LUCK, CRASH_POINTS, DEEDS, FAULTS_OF_KIND, HAPPENINGS, least, sweep_shortfalls
from tests.simulator.seed_run import End, SeedResult, run_seed
from tests.simulator.sim_client import Program
from tests.simulator.sweep import Sweep, sweep
from tests.simulator.workloads.fan import Fan
from tests.simulator.workloads.fleeting import Fleeting
from tests.simulator.workloads.plain import Producer
from tests.simulator.workloads.ring import Runner
from tests.simulator.workloads.stages import Feeder

SEED = 1


@pytest.fixture(scope="module")
def result() -> SeedResult:
    return run_seed(SEED)


def _last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def test_one_seed_that_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", str(SEED)]) == 0
    assert _last_line(capsys).startswith("PASSED: 1 seeds, ")


def test_a_story_and_a_report_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", str(SEED), "--trace", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    report = json.loads(lines[-1])
    assert report["ok"]
    assert report["transactions"] >= 100
    assert sum(report["faults"].values()) >= 5
    assert any("tx.commit-ok" in line for line in lines)
    assert any("NEMESIS" in line for line in lines)


def test_what_is_fixed_is_not_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    seed = next(seed for seed in range(100) if Knobs.draw(seed).brokers == 2)
    only = ["--workload", "bank", "--workload", "fifo", "--brokers", "4"]
    assert main(["--seed", str(seed), *only, "--minima", "0"]) == 0
    assert capsys.readouterr().out.startswith(f"seed {seed}: 4 brokers, min_insync 2; ")
    fixed = Fixed(brokers=3, workloads=frozenset())
    found = sweep(range(seed, seed + 2), jobs=1, factor=0.0, fixed=fixed)
    assert [result.held for result in found.results] == [True, True]
    assert {result.options for result in found.results} == {" --workload bank --brokers 3"}
    assert found.results[0].report.trace_hash != run_seed(seed).report.trace_hash


def test_a_replay_of_what_is_fixed_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: SimCluster) -> None:
        raise Violation("G4", "b2 lacks a record")

    monkeypatch.setattr(SimCluster, "final_check", broken)
    assert main(["--seeds", f"{SEED}", "--jobs", "1", "--workload", "bank"]) == 1
    assert f"scripts/simulate --seed {SEED} --workload bank --trace" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--workload", "tank"],
        ["--brokers", "6"],
        ["--mutations", "--brokers", "3"],
        ["--coverage", "--workload", "bank"],
    ],
)
def test_what_cannot_be_fixed_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)


def test_a_seed_that_fails_names_the_promise_and_its_replay(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: SimCluster) -> None:
        raise Violation("G4", "b2 lacks a record")

    monkeypatch.setattr(SimCluster, "final_check", broken)
    assert main(["--seeds", f"{SEED}..{SEED}", "--jobs", "1"]) == 1
    out = capsys.readouterr().out
    assert f"seed {SEED}: G4: b2 lacks a record" in out
    assert f"scripts/simulate --seed {SEED} --trace" in out
    assert out.splitlines()[-1].startswith("FAILED: 1 seeds, ")


def test_an_error_is_no_violation_but_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: SimCluster) -> None:
        raise KeyError("nothing there")

    monkeypatch.setattr(SimCluster, "final_check", broken)
    result = run_seed(SEED)
    assert result.end is End.ERROR
    assert result.promise == "KeyError"
    assert "in final_check" in result.traceback or "in broken" in result.traceback
    assert result.where.startswith("tests/simulation/")


def test_a_known_bug_is_found_by_a_checker(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--mutation", "half-a-transaction", "--json"]) == 0
    [found] = json.loads(_last_line(capsys))["mutations"]
    assert found["ok"]
    assert found["found_by"] == "checkers/replicas"
    assert found["promise"] == "G1"
    assert found["strikes"] > 0


def test_a_bug_that_is_not_found_fails_the_campaign(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--mutation", "names-are-not-barred", "--start", str(SEED), "--within", "1"]) == 1
    assert f"NOT FOUND in 1 seeds from {SEED} on" in capsys.readouterr().out


def test_several_starting_points_give_a_median(capsys: pytest.CaptureFixture[str]) -> None:
    starts = [word for start in (5, 7, 9) for word in ("--start", str(start))]
    assert main(["--mutation", "answered-before-acknowledged", *starts, "--jobs", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert table[0] == "| mutation | from 5 | from 7 | from 9 | median |"
    assert re.fullmatch(r"\| answered-before-acknowledged \| \d+ \| \d+ \| \d+ \| \d+ \|", table[2])
    assert lines[-1].startswith("PASSED: 1 of 1 mutations found")


def test_a_median_is_that_of_the_seeds_it_took() -> None:
    def row(*seeds: int | None) -> str:
        found = [Found(name="bug", start=i, seeds=count or 200, seed=count, strikes=1) for i, count in enumerate(seeds)]
        return medians(found)[-1]

    assert row(7, 1, 30) == "| bug | 7 | 1 | 30 | 7 |"
    assert row(7, None, 200) == "| bug | 7 | >200 | 200 | 200 |"
    assert row(None, 3, None) == "| bug | >200 | 3 | >200 | >200 |"


def test_a_sweep_that_saw_too_little_fails(result: SeedResult) -> None:
    many = [attrs.evolve(result, seed=seed) for seed in range(1_500)]
    assert result.held
    found = "\n".join(Sweep(results=many).shortfalls)
    hit = {kind for kind, count in result.report.faults.items() if count}
    assert {kind for kind in FAULTS_OF_KIND if f"faults {kind} in 0 of 1500 seeds, at least" in found} == {
        *FAULTS_OF_KIND
    } - hit
    assert not Sweep(results=many).ok
    assert Sweep(results=many, factor=0.0).ok


@pytest.mark.parametrize(
    ("share", "seeds", "needed"),
    [
        (0.1, 0, 0),
        (0.1, 131, 0),
        (0.1, 132, 1),
        (0.1, 1_500, 98),
        (0.014, 979, 0),
        (0.014, 980, 1),
        (0.65, 13, 0),
        (0.65, 14, 1),
        (1.0, 3, 1),
        (0.0, 9, 0),
    ],
)
def test_what_is_asked_for_is_there_but_for_bad_luck(share: float, seeds: int, needed: int) -> None:
    assert least(share, seeds) == needed
    fewer = sum(comb(seeds, count) * share**count * (1 - share) ** (seeds - count) for count in range(needed))
    assert fewer <= BAD_LUCK


def test_a_small_sweep_is_asked_for_little(result: SeedResult) -> None:
    """A kind of fault that one seed in nine draws is missed by one sweep of twenty seeds in ten, and proves nothing by that."""
    frequent = attrs.evolve(
        result.report,
        faults={},
        failovers=1,
        happened={"resume": 1, "checkpoint": 1, "bodies read back": 1, "Bank transactions": 1},
    )
    assert sweep_shortfalls([attrs.evolve(frequent, workloads=frozenset())] * 20) == []


def test_a_seed_that_decided_too_little_fails(result: SeedResult) -> None:
    short = attrs.evolve(result, report=attrs.evolve(result.report, transactions=99))
    found = Sweep(results=[short])
    assert not found.ok
    assert "99 decided transactions, 100 are needed" in found.problems()[0]


def test_everything_that_is_counted_has_a_minimum(result: SeedResult) -> None:
    """Everything missing from 1,500 seeds that have every workload is named, each time that and nothing else."""
    deeds = [deed for each in DEEDS.values() for deed in each]
    assert {*POINTS} == {*CRASH_POINTS} | {deed for deed in deeds if deed.startswith("CP-")}
    happened = dict.fromkeys((*HAPPENINGS, *CRASH_POINTS, *deeds), 100)
    plenty = attrs.evolve(
        result.report,
        workloads=frozenset(ALL_WORKLOADS),
        faults=dict.fromkeys(FAULTS_OF_KIND, 100),
        failovers=100,
        happened=happened,
    )
    assert sweep_shortfalls([plenty] * 1_500) == []
    for what in happened:
        missed = attrs.evolve(plenty, happened={**happened, what: 0})
        (found,) = sweep_shortfalls([missed] * 1_500)
        assert found.startswith(f"{what} in 0 of 1500 seeds")


def test_what_a_small_sweep_has_never_seen_is_said(result: SeedResult) -> None:
    """The sweep passes; but its summary does not look as if it spoke of everything."""
    plenty = attrs.evolve(
        result.report,
        faults=dict.fromkeys(FAULTS_OF_KIND, 100),
        happened=dict.fromkeys((*HAPPENINGS, *CRASH_POINTS), 100),
    )
    all_of_it = [attrs.evolve(result, seed=seed, report=plenty) for seed in range(2)]
    assert "never seen" not in Sweep(results=all_of_it).summary()
    few = attrs.evolve(
        plenty, faults={**plenty.faults, "clock-jump": 0}, happened={**plenty.happened, "CP-35": 0, "CP-38": 0}
    )
    assert (
        Sweep(results=[attrs.evolve(each, report=few) for each in all_of_it])
        .summary()
        .endswith(", never seen: clock-jump, CP-35, CP-38")
    )
    assert Sweep(results=[all_of_it[0], attrs.evolve(all_of_it[1], report=few)]).unseen == []


def publishes_nothing(*_: Any) -> None:
    """Instead of a method that publishes."""


def has_nothing_to_do(self: Any, *_: Any) -> Program:
    """Instead of a transaction's work."""
    yield from self.client.pause(5, 60)
    return None


def ends_at_once(*_: Any) -> Program:
    """Instead of a client's program."""
    yield from ()


@pytest.mark.parametrize(
    ("workload", "producer", "method", "instead", "deed"),
    [
        ("ring", Runner, "_put", publishes_nothing, "ring hops"),
        ("mixed", Producer, "program", ends_at_once, "mixed: of the plain producer"),
        ("stages", Feeder, "work", has_nothing_to_do, "stages passed"),
        ("fan", Fan, "work", has_nothing_to_do, "fan messages got"),
        ("fleeting", Fleeting, "_fill", publishes_nothing, "fleeting messages got"),
    ],
)
def test_a_workload_whose_producer_stands_still_is_seen(
    workload: str, producer: type, method: str, instead: Any, deed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A workload that stands still breaks no promise, so nothing else complains."""
    monkeypatch.setattr(producer, method, instead)
    monkeypatch.setattr(Fleeting, "_exclusive", Fleeting._redeclared)  # it looks at what it has published
    fixed = Fixed(workloads=frozenset({workload}))
    results = [run_seed(seed, fixed=fixed) for seed in range(2)]
    assert all(one.held for one in results), [one.text for one in results]
    assert f"{deed} in 0 of 40 seeds with {workload}" in "\n".join(
        sweep_shortfalls([one.report for one in results] * 20)
    )


@pytest.mark.parametrize(("text", "seeds"), [("3..5", range(3, 6)), ("7", range(7, 8)), ("0..0", range(1))])
def test_a_range_holds_both_ends(text: str, seeds: range) -> None:
    assert seed_range(text) == seeds


@pytest.mark.parametrize("text", ["5..3", "x", "1..", "..4", "-1..x"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(SystemExit):
        main(["--seeds", text])
