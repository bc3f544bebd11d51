"""Which CPUs each broker of a group on one host gets."""

from __future__ import annotations

import pytest

from understudy.ha.trial.cpu_plan import NoCpusError, cpu_plan, cpus_beside

THREE = ("b1", "b2", "b3")


def shares(
    brokers: tuple[str, ...], cpus: list[int], leader: str | None, pin: bool | None = None, *, full: bool = True
) -> list[set[int]]:
    """In order of the brokers."""
    plan = cpu_plan(brokers, cpus, pin)
    assert plan is not None
    found = plan(leader, full)
    assert set(found) == set(brokers)
    return [set(found[broker]) for broker in brokers]


@pytest.mark.parametrize(
    ("leader", "expected"), [("b1", [{4}, {7}, {7}]), ("b2", [{7}, {4}, {7}]), ("b3", [{7}, {7}, {4}])]
)
def test_the_primary_has_a_cpu_and_the_backups_share_the_other(leader: str, expected: list[set[int]]) -> None:
    assert shares(THREE, [4, 7], leader) == expected


@pytest.mark.parametrize(
    ("leader", "expected"), [("b1", [{4}, {7}, {4}]), ("b2", [{7}, {4}, {4}]), ("b3", [{7}, {4}, {4}])]
)
def test_while_its_cpu_has_room_the_primary_shares_it(leader: str, expected: list[set[int]]) -> None:
    assert shares(THREE, [4, 7], leader, full=False) == expected
    assert shares(THREE, [4, 7], None, full=False) == [{4, 7}] * 3
    assert shares(THREE, [2, 4, 5], leader, full=False) == [{2}, {4}, {5}]


def test_several_backups_take_the_other_cpus_in_turn() -> None:
    assert shares(("b1", "b2", "b3", "b4", "b5"), [0, 1, 2], "b3") == [{1}, {2}, {0}, {1}, {2}]


def test_while_nobody_leads_all_run_where_they_may() -> None:
    assert shares(THREE, [4, 7], None) == [{4, 7}] * 3


@pytest.mark.parametrize("leader", [None, *THREE])
@pytest.mark.parametrize("cpus", [[2, 4, 5], [2, 4, 5, 7], [2, 4, 5, 7, 9]])
def test_with_as_many_cpus_as_brokers_each_keeps_its_own(leader: str | None, cpus: list[int]) -> None:
    assert shares(THREE, cpus, leader) == [{2}, {4}, {5}]


@pytest.mark.parametrize("cpus", [[], [3], list(range(6)), list(range(64))])
def test_one_cpu_or_plenty_are_left_to_the_scheduler(cpus: list[int]) -> None:
    assert cpu_plan(THREE, cpus, None) is None


def test_the_user_has_the_last_word() -> None:
    assert shares(THREE, list(range(8)), "b2", pin=True) == [{0}, {1}, {2}]
    assert shares(THREE, [3], "b2", pin=True) == [{3}] * 3
    assert cpu_plan(THREE, [0, 1], False) is None


def test_pinning_to_nothing_is_refused() -> None:
    with pytest.raises(NoCpusError, match="--pin: this operating system"):
        cpu_plan(THREE, [], True)


def test_a_store_beside_the_brokers_keeps_off_the_cpu_of_the_primary() -> None:
    assert cpus_beside(THREE, [4, 7], None) == frozenset({7})
    assert cpus_beside(("b1", "b2", "b3", "b4"), [1, 2, 5], None) == frozenset({2, 5})


@pytest.mark.parametrize("cpus", [[], [3], [2, 4, 5], list(range(12))])
def test_a_store_runs_where_it_likes_if_the_primary_has_no_cpu_of_its_own(cpus: list[int]) -> None:
    assert cpus_beside(THREE, cpus, None) is None
    assert cpus_beside(THREE, [4, 7], pin=False) is None
