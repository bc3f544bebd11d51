"""Known bugs that are put into the core are found by the ordinary sweep. All of them: ``scripts/simulate --mutations``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from tests.model.mutations import MUTATIONS as MODEL
from tests.simulator.campaign import Found, Task, look_for
from tests.simulator.command import main
from tests.simulator.mutations import MUTATIONS, REQUIRED
from tests.simulator.sweep import cores, over_processes
from understudy.broker.state_table import StateTable

QUICK = (
    "clients-flushed-before-the-journal-answers",
    "a-lazy-flush-is-forgotten",
    "the-last-acknowledgement-ends-no-turn",
    "answered-before-acknowledged",
    "acknowledged-before-fsync",
    "primary-does-not-wait-for-its-disk",
    "applied-before-stable",
    "log-collected-too-early",
    "dequeues-released-by-commit",
    "open-work-is-seen",
    "open-at-promotion-is-committed",
    "expelled-after-instead-of-before",
    "set-below-its-minimum",
    "listed-before-its-guard",
    "an-epoch-ends-what-is-in-doubt",
    "a-new-primary-decides-for-the-manager",
    "active-before-its-epoch-is-known",
    "tail-compared-by-length",
    "cut-is-not-durable",
    "nothing-is-dropped",
    "redelivery-not-marked",
    "ids-used-again",
    "requeued-at-the-end",
    "a-commit-number-is-used-twice",
    "prefetch-is-not-looked-at",
    "a-requeue-within-a-transaction-is-lost",
    "written-anew-without-a-proof",
)
"""Those that a few seeds find."""
LIKELY = {
    "active-before-its-epoch-is-known": 4,
    "a-new-primary-decides-for-the-manager": 13,
    "a-requeue-within-a-transaction-is-lost": 2,
    "an-epoch-ends-what-is-in-doubt": 15,
    "cut-is-not-durable": 14,
    "epoch-not-checked": 1,
    "expelled-after-instead-of-before": 2,
    "nothing-is-dropped": 4,
    "prefetch-is-not-looked-at": 1,
    "set-below-its-minimum": 2,
    "tail-compared-by-length": 4,
    "written-anew-without-a-proof": 235,
}
"""Where a search from seed 0 on ended. If a change makes them other stories, the search goes on from there."""
HARMLESS = [name for name, mutation in MUTATIONS.items() if mutation.harmless]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_sweep_finds_known_bugs() -> None:
    tasks = [Task(name, LIKELY.get(name, 0)) for name in (*REQUIRED, *QUICK)]
    found = list(over_processes(look_for, tasks, cores()))
    lines = "\n".join(one.line() for one in found)
    print(lines)
    assert all(one.ok and one.strikes for one in found), lines


def test_there_are_enough_mutations() -> None:
    assert len(REQUIRED) == 3
    assert len(MUTATIONS) >= 14
    assert set(QUICK) <= MUTATIONS.keys()


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_known_to_be_harmless_is_safe_in_the_model(name: str) -> None:
    assert MODEL[MUTATIONS[name].model].safe
    found = look_for(Task(name, 0, limit=3))
    assert found.ok
    assert found.strikes
    assert found.line().startswith(f"{name}: not found, harmless (tests/model: {MUTATIONS[name].model}), in 3 seeds")


def test_few_are_harmless() -> None:
    assert len(HARMLESS) <= len(MUTATIONS) // 20


@pytest.mark.parametrize("caught_by", [("G4",), ("G9",)], ids=["as expected", "otherwise"])
def test_a_bug_that_is_said_to_be_harmless_fails_the_campaign(
    caught_by: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "answered-before-acknowledged"
    said = attrs.evolve(MUTATIONS[name], harmless="nobody asks", model="seen-first", caught_by=caught_by)
    monkeypatch.setitem(MUTATIONS, name, said)
    assert main(["--mutation", name, "--jobs", "1"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{name}: SAID TO BE HARMLESS, and found by checkers/answers")
    assert lines[-1].startswith(
        f"FAILED, not shown to be harmless: {name}: 0 of 0 mutations found, 1 known to be harmless"
    )


def test_what_never_ran_is_not_shown_to_be_harmless() -> None:
    found = Found(name="stable-told-ahead", start=0, seeds=200, seed=None, strikes=0, harmless=True)
    assert not found.ok
    assert attrs.evolve(found, strikes=1).ok
    assert not attrs.evolve(found, strikes=1, harmless=False).ok


def _function(attribute: Any) -> Callable[..., Any]:
    """The function called, of a method, a static method or a property."""
    inner = getattr(attribute, "__func__", None) or getattr(attribute, "fget", None) or attribute
    assert callable(inner)
    return inner  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_takes_what_the_real_code_takes(name: str) -> None:
    """Else it ends runs by a TypeError, which finds no bug, as soon as the real code gets another argument."""
    with MUTATIONS[name].in_force() as bug:
        for owner, attribute, before in bug._before:
            if isinstance(before, frozenset | StateTable):  # a table that a mutation puts another one in the place of
                continue
            parameters = inspect.signature(_function(before)).parameters.values()
            places = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
            needed = [one for one in places if one.default is one.empty]
            named = {one.name: None for one in parameters if one.kind is one.KEYWORD_ONLY}
            new = inspect.signature(_function(vars(owner)[attribute]))
            for count in (len(needed), len(places)):
                new.bind(*[None] * count, **named)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_leaves_nothing_behind(name: str) -> None:
    mutation = MUTATIONS[name]
    with mutation.in_force() as bug:
        replaced = [(owner, attribute, before) for owner, attribute, before in bug._before]
        assert replaced
        assert all(vars(owner)[attribute] is not before for owner, attribute, before in replaced)
    assert all(vars(owner)[attribute] is before for owner, attribute, before in replaced)
