"""Which transactions share a Kafka transaction: none is ever divided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.observers.outlet.outlet_kit import a_unit
from understudy.observers.outlet.reading.groups import Grouping, GroupLimits
from understudy.observers.outlet.reading.units import Unit

LIMITS = GroupLimits(messages=10, octets=1000)


def grouped(units: list[Unit], limits: GroupLimits = LIMITS) -> list[list[int]]:
    grouping = Grouping(limits)
    groups = [group for unit in units for group in grouping.add([unit])]
    last = grouping.close()
    return [[unit.offset for unit in group] for group in [*groups, *([last] if last else [])]]


def test_a_group_is_closed_before_the_unit_that_would_pass_a_limit() -> None:
    assert grouped([a_unit(1, *[10] * 4), a_unit(2, *[10] * 4), a_unit(3, *[10] * 4)]) == [[1, 2], [3]]
    assert grouped([a_unit(1, 600), a_unit(2, 400), a_unit(3, 400)]) == [[1, 2], [3]]


def test_a_unit_larger_than_the_limits_is_alone_and_whole() -> None:
    assert grouped([a_unit(1, 10), a_unit(2, *[10] * 25), a_unit(3, 10)]) == [[1], [2], [3]]
    assert grouped([a_unit(1, 5000), a_unit(2, 10)]) == [[1], [2]]


def test_the_oldest_record_of_what_waits_is_known() -> None:
    grouping = Grouping(LIMITS)
    assert grouping.oldest == 0
    grouping.add([a_unit(7, 10), a_unit(9, 10)])
    assert grouping.oldest == 7
    grouping.close()
    assert grouping.oldest == 0


@pytest.mark.parametrize(("messages", "octets"), [(0, 1), (1, 0), (-1, 5)])
def test_limits_that_let_nothing_through_are_refused(messages: int, octets: int) -> None:
    with pytest.raises(ValueError, match="limits of a group are positive"):
        GroupLimits(messages=messages, octets=octets)


@given(st.lists(st.lists(st.integers(2, 300), min_size=1, max_size=15), max_size=40), st.integers(1, 12))
def test_groups_are_the_units_in_order_and_within_limits(sizes: list[list[int]], messages: int) -> None:
    units = [a_unit(at + 1, *each) for at, each in enumerate(sizes)]
    limits = GroupLimits(messages=messages, octets=700)
    groups = grouped(units, limits)
    assert [offset for group in groups for offset in group] == [unit.offset for unit in units]
    for group in groups:
        members = [units[offset - 1] for offset in group]
        if len(members) > 1:
            assert sum(len(unit.messages) for unit in members) <= messages
            assert sum(unit.size_bytes for unit in members) <= 700
