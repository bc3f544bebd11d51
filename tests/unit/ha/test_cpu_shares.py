"""Which CPU each broker of a cluster on one machine gets."""

from __future__ import annotations

import pytest

from understudy.ha.cluster_command import ClusterError, cpu_shares

ANY: frozenset[int] = frozenset()


def one(cpu: int) -> frozenset[int]:
    return frozenset({cpu})


def test_few_cpus_are_dealt_out_in_turn() -> None:
    assert cpu_shares(3, [0, 1], None) == [one(0), one(1), one(0)]
    assert cpu_shares(3, [2, 4, 5, 7], None) == [one(2), one(4), one(5)]


@pytest.mark.parametrize("cpus", [[], [3], list(range(6)), list(range(64))])
def test_one_cpu_or_plenty_are_left_to_the_scheduler(cpus: list[int]) -> None:
    assert cpu_shares(3, cpus, None) == [ANY] * 3


def test_the_user_has_the_last_word() -> None:
    assert cpu_shares(3, list(range(8)), True) == [one(0), one(1), one(2)]
    assert cpu_shares(2, [0, 1], False) == [ANY] * 2


def test_pinning_to_nothing_is_refused() -> None:
    with pytest.raises(ClusterError, match="--pin: this operating system"):
        cpu_shares(3, [], True)
