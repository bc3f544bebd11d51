"""Bars: whom an operator may expel, by what the store holds."""

from __future__ import annotations

import attrs
import pytest

from understudy.broker.plugin_api.plugin_commands import CommandRefusedError
from understudy.ha.operators.bars import admission, expulsion, expulsion_without_primary
from understudy.ha.store.coordination import Bar, BrokerInfo, GroupState

GROUP = GroupState(epoch=4, primary="b1", members=("b1", "b2", "b3"), version=9, min_insync=2)
KNOWN = ("b1", "b2", "b3", "b4")
BAR = Bar("b3", "guest at b1", "today")


def brokers(*running: str) -> dict[str, BrokerInfo]:
    return {name: BrokerInfo(broker=name, link="", amqp="", alive=name in running) for name in KNOWN}


def test_a_listed_broker_leaves_the_set_and_is_barred_until_it_is_admitted() -> None:
    barred = expulsion(GROUP, KNOWN, BAR)
    assert (barred.members, barred.barred) == (("b1", "b2"), (BAR,))
    assert expulsion(barred, KNOWN, Bar("b3", "another", "later")) is barred, "it is so already"
    admitted = admission(barred, KNOWN, "b3")
    assert (admitted.members, admitted.barred) == (("b1", "b2"), ()), "it has to be caught up first"
    assert admission(admitted, KNOWN, "b3") is admitted


def test_an_unlisted_broker_is_barred_whatever_the_minimum_is() -> None:
    small = attrs.evolve(GROUP, members=("b1", "b2"))
    assert expulsion(small, KNOWN, Bar("b4")).members == ("b1", "b2")


@pytest.mark.parametrize(
    ("broker", "why"),
    [
        ("b9", "there is no broker 'b9' in this group: its brokers are b1, b2, b3, b4"),
        ("b1", "b1 is the primary of epoch 4: another broker has to lead first (understudy step-down)"),
    ],
)
def test_who_cannot_be_expelled_is_named(broker: str, why: str) -> None:
    with pytest.raises(CommandRefusedError) as caught:
        expulsion(GROUP, KNOWN, Bar(broker))
    assert str(caught.value) == why


def test_the_set_does_not_shrink_below_its_minimum() -> None:
    small = attrs.evolve(GROUP, members=("b1", "b3"))
    with pytest.raises(CommandRefusedError, match=r"\{b1, b3\} would shrink to 1 without b3, and min_insync is 2"):
        expulsion(small, KNOWN, BAR)


def test_without_a_primary_the_last_listed_broker_that_runs_stays() -> None:
    """The others of the set may have lost their disks: nobody has looked."""
    with pytest.raises(CommandRefusedError, match=r"b3 runs and is in the in-sync set, and none of \{b1, b2\} runs"):
        expulsion_without_primary(GROUP, brokers("b3", "b4"), BAR)
    for running in ((), ("b2", "b3"), ("b4",)):
        assert expulsion_without_primary(GROUP, brokers(*running), BAR).members == ("b1", "b2")
