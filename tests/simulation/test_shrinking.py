"""Shrinking: delta debugging leaves nothing that could be left out; what comes of a seed fails the same way, and is short."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import pytest

from tests.simulator.cluster import SimCluster
from tests.simulator.command import main
from tests.simulator.ledger import Violation
from tests.simulator.nemesis.at_brokers import CrashAll, Pause
from tests.simulator.nemesis.at_network import Partition, StoreOutage
from tests.simulator.nemesis.strike import Struck
from tests.simulator.scenario_command import FOLDER
from tests.simulator.seed_run import SeedResult, run_seed
from tests.simulator.shrinking import Finding, Script, read, shrink
from tests.simulator.shrinking.ddmin import ddmin
from tests.simulator.shrinking.shrinker import among

MUTATION = "closed-at-promotion-is-aborted"
LIKELY = 5
"""Such a seed, whose runs are short. It is looked at first: the search takes half a minute, and finds one whose runs are long."""


@pytest.fixture(scope="module")
def failing() -> tuple[Script, SeedResult]:
    """The first seed that fails with the mutation and has strikes to leave out: its script, and the seed's own run."""
    for seed in chain((LIKELY,), range(200)):
        script, result = Script.of_seed(seed, MUTATION)
        if script.finds == Finding("G2", "checkers/reference") and len(script.strikes) >= 8:
            return script, result
    raise AssertionError(f"no seed finds {MUTATION}")


class Question:
    """Fails if ``wanted`` is there; counts how often it is asked."""

    def __init__(self, *wanted: int) -> None:
        self.wanted = set(wanted)
        self.asked = 0

    def __call__(self, part: Sequence[int]) -> bool:
        self.asked += 1
        assert list(part) == sorted(part), "the order is kept"
        return self.wanted <= set(part)


@pytest.mark.parametrize(
    "wanted", [(), (0,), (63,), (17,), (0, 63), (5, 6, 7), (1, 20, 40, 60), tuple(range(0, 64, 8))]
)
def test_ddmin_finds_what_matters(wanted: tuple[int, ...]) -> None:
    assert ddmin(range(64), Question(*wanted)) == list(wanted)


def test_ddmin_asks_few_questions_about_one() -> None:
    question = Question(37)
    assert ddmin(range(1024), question) == [37]
    assert question.asked <= 2 * 10 + 1


def test_ddmin_where_each_needs_another() -> None:
    """Only an even number of items fails, more than none: two are the least."""
    left = ddmin(range(9 + 1), lambda part: len(part) % 2 == 0 and len(part) > 0)
    assert len(left) == 2


@pytest.mark.parametrize("items", [[], [4], [4, 5]])
def test_ddmin_of_little(items: list[int]) -> None:
    assert ddmin(items, Question(*items)) == items


def test_ddmin_gives_what_failed_when_there_were_enough_questions() -> None:
    question = Question(3, 50)
    left = ddmin(range(64), lambda part: question.asked < 8 and question(part))
    assert {3, 50} <= set(left)


def test_a_strike_among_fewer_brokers() -> None:
    def left_of(strike: CrashAll | Pause | Partition | StoreOutage) -> object:
        left = among(Struck(at_us=5, strike=strike), 2)
        return left.strike if left is not None else None

    assert left_of(Pause(broker="b3", for_ms=1)) is None
    assert left_of(Pause(broker="b2", for_ms=1)) == Pause(broker="b2", for_ms=1)
    assert left_of(CrashAll(back_ms=(("b1", 1), ("b3", 3)))) == CrashAll(back_ms=(("b1", 1),))
    both = (("b1", "b2"), ("b1", "b3"), ("b3", "b1"))
    assert left_of(Partition(cut=both, store="b3", for_ms=9)) == Partition(cut=(("b1", "b2"),), for_ms=9)
    assert left_of(Partition(cut=(("b1", "b3"),), for_ms=9)) is None
    assert left_of(StoreOutage(for_ms=9)) == StoreOutage(for_ms=9)


def test_a_recorded_seed_fails_as_the_seed_did(failing: tuple[Script, SeedResult]) -> None:
    script, result = failing
    again = script.run()
    assert again.finding == script.finds
    assert again.result.text == result.text
    assert again.result.report.trace_hash == result.report.trace_hash
    assert script.run(sound=True).result.held


def test_a_failing_seed_becomes_a_short_scenario(
    failing: tuple[Script, SeedResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Few runs are enough for some of it."""
    before, _ = failing
    path = tmp_path / "short.txt"
    asked = ["--shrink", "--seed", str(before.seed), "--mutation", MUTATION, "--most-runs", "12"]
    assert main([*asked, "--output", str(path)]) == 0
    script = read(path)
    assert script.mutation == MUTATION
    assert script.finds == before.finds
    assert len(script.strikes) < len(before.strikes)
    said = capsys.readouterr()
    assert "; 12 runs" in said.out + said.err
    assert f"scripts/simulate --scenario {path} --trace" in said.out.splitlines()[-1]
    assert len(re.findall(r"^run \d+: ", said.err, re.MULTILINE)) > 1
    assert main(["--scenario", str(path), "--trace"]) == 0
    told = capsys.readouterr().out
    assert "NEMESIS" in told
    assert told.splitlines()[-1] == f"PASSED: {path} finds {script.finds}; its text says that it finds {script.finds}"


def test_a_failure_at_the_end_is_shrunk_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure found after the nemesis has left: here a final check that does not like a restarted b2."""

    def check(self: SimCluster) -> None:
        if self.world.faults["crash-backup"]:
            raise Violation("G2", "a backup has crashed")

    monkeypatch.setattr(SimCluster, "final_check", check)
    seed = next(seed for seed in range(40) if not run_seed(seed).held)
    shrunk = shrink(seed, most_runs=12)
    assert [struck.strike.verb for struck in shrunk.after.strikes] == ["crash"]
    assert shrunk.after.leave_ms is not None
    assert shrunk.after.finds == Finding("G2", "tests/simulation/test_shrinking")


def test_a_seed_that_holds_is_not_shrunk(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--shrink", "--seed", "1"]) == 1
    assert "seed 1 holds: there is nothing to shrink" in capsys.readouterr().err


def test_a_scenario_that_ends_otherwise_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wrong.txt"
    path.write_text("seed 1\nfinds G9 by checkers/order\nleave 1500\n")
    assert main(["--scenario", str(path)]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"FAILED: {path} holds; its text says that it finds G9 by checkers/order"


def test_a_text_that_is_no_scenario_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.txt"
    path.write_text("seed 1\nholds\nat noon crash broker=b1 back_ms=1\n")
    assert main(["--scenario", str(path)]) == 2
    assert f"{path}:3: 'noon' is not a time" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--shrink"], "--shrink needs --seed"),
        (["--output", "x"], "--output needs --shrink"),
        (["--scenario", "x", "--seed", "1"], "--scenario says by itself"),
        (["--trace"], "--trace needs --seed or --scenario"),
    ],
)
def test_options_that_contradict(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert words in capsys.readouterr().err


def test_scenarios_are_kept_where_the_tests_look() -> None:
    assert (FOLDER / "test_scenario_files.py").is_file()
