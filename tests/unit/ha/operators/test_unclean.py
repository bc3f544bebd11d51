"""Warnings to the operator before a broker is promoted that may lack what others have confirmed."""

from __future__ import annotations

import attrs
import pytest

from understudy.ha.operators.unclean import PromotionRefusedError, Survivor, check, losses
from understudy.ha.store.coordination import BrokerInfo, GroupState

GROUP = GroupState(epoch=7, primary="b1", members=("b1", "b2"), version=9, min_insync=2)


def survivor(**changes: object) -> Survivor:
    given = {
        "broker": "b3",
        "group": "g",
        "epoch": 5,
        "end": 900,
        "stable": 890,
        "epoch_seen": 6,
        "part": False,
    } | changes
    return Survivor(**given)  # type: ignore[arg-type]


def shown(broker: str, *, alive: bool = False, position: int = 1_000) -> BrokerInfo:
    return BrokerInfo(broker=broker, link="l", amqp="a", status="ready", position=position, pid=77, alive=alive)


def brokers(*infos: BrokerInfo) -> dict[str, BrokerInfo]:
    return {info.broker: info for info in infos}


@pytest.mark.parametrize("alive", ["b1", "b2"])
def test_no_listed_broker_may_be_alive(alive: str) -> None:
    known = brokers(shown("b1", alive=alive == "b1"), shown("b2", alive=alive == "b2"), shown("b4"))
    with pytest.raises(PromotionRefusedError, match=rf"{alive} \(pid 77\) runs and is in the in-sync set"):
        check(survivor(), GROUP, known, {})


def test_a_listed_broker_that_accepts_connections_is_not_taken_for_gone() -> None:
    known = brokers(shown("b1"), shown("b2"), shown("b4"))
    told = r"b2 \(pid 77\) accepts connections at b2:5672: .* may hang, .* --gone b2"
    with pytest.raises(PromotionRefusedError, match=told):
        check(survivor(), GROUP, known, {"b2": "b2:5672"})
    check(survivor(), GROUP, known, {"b4": "b4:5672"})


def test_a_broker_that_is_shown_as_down_is_named_with_what_is_needed_to_stop_it() -> None:
    text = "\n".join(losses(survivor(), GROUP, brokers(shown("b1"), shown("b3"), shown("b4"))))
    assert "shows these as down, which is no proof" in text
    assert "  b1: pid 77, AMQP at a, link at l" in text
    assert "pid" not in text.replace("b1: pid", "", 1)


def test_the_stored_primary_counts_as_listed() -> None:
    group = GroupState(epoch=7, primary="b4", members=("b1", "b2"), version=9, min_insync=2)
    with pytest.raises(PromotionRefusedError, match="b4"):
        check(survivor(), group, brokers(shown("b4", alive=True)), {})


def test_a_broker_that_is_not_listed_may_wait_for_the_outcome() -> None:
    check(survivor(), GROUP, brokers(shown("b1"), shown("b4", alive=True)), {})


def test_without_a_group_in_the_store_nobody_may_be_alive() -> None:
    with pytest.raises(PromotionRefusedError, match="b4"):
        check(survivor(), None, brokers(shown("b4", alive=True)), {})
    check(survivor(), None, brokers(shown("b4")), {})


def test_it_must_not_run_itself() -> None:
    with pytest.raises(PromotionRefusedError, match=r"b3 \(pid 77\) runs"):
        check(survivor(), GROUP, brokers(shown("b3", alive=True)), {})


def test_a_broker_without_data_has_nothing_to_lead_with() -> None:
    with pytest.raises(PromotionRefusedError, match="journal of b3 is empty"):
        check(survivor(epoch=0, end=0, stable=0, epoch_seen=0), GROUP, {}, {})


def test_nor_has_one_that_has_heard_of_an_epoch_and_died_before_its_catch_up() -> None:
    with pytest.raises(PromotionRefusedError, match="journal of b3 is empty"):
        check(survivor(epoch=0, end=0, stable=0, epoch_seen=6), GROUP, {}, {})


def test_a_broker_whose_catch_up_was_broken_off_holds_no_state_of_the_group() -> None:
    with pytest.raises(PromotionRefusedError, match="catch-up of b3 was broken off"):
        check(survivor(part=True), GROUP, {}, {})


def test_an_unlisted_broker_may_lack_anything_since_it_left() -> None:
    text = "\n".join(losses(survivor(), GROUP, brokers(shown("b1", position=1_100), shown("b2"))))
    assert "b3 holds the log up to 5/900 and has seen epoch 6" in text
    assert "the store: epoch 7, primary b1, in-sync {b1, b2}, min_insync 2" in text
    assert "b1: last shown at position 1100, 200 records beyond b3" in text
    assert "Everything that was confirmed after b3 left the in-sync set is lost" in text


def test_a_listed_broker_loses_nothing_that_was_confirmed() -> None:
    text = "\n".join(losses(survivor(broker="b2"), GROUP, {}))
    assert "b2 is in the in-sync set: nothing that was confirmed is lost" in text
    assert "start it instead" in text


def test_a_damaged_broker_is_said_to_lose_what_it_lacks() -> None:
    """The broker is listed; what was confirmed is lost all the same."""
    lacks = "its log lacks the records 901 to 950, which b1 holds as stable"
    group = attrs.evolve(GROUP, damaged=GROUP.with_damage("b2", lacks))
    text = "\n".join(losses(survivor(broker="b2"), group, brokers(shown("b1"), shown("b2"))))
    assert f"b2 is damaged: {lacks}." in text
    assert "nothing that was confirmed is lost" not in text
    about_b3 = "\n".join(losses(survivor(), group, {}))
    assert f"  b2 is marked as damaged: {lacks}" in about_b3


def test_a_lost_store_says_nothing_about_who_was_in_sync() -> None:
    text = "\n".join(losses(survivor(), None, {}))
    assert "the store knows no group 'g'" in text
    assert "nobody can say" in text


def test_a_store_that_is_behind_the_journal_says_nothing_either() -> None:
    """The store was restored from a backup: a broker that is listed there may have been expelled since."""
    old = GroupState(epoch=3, primary="b3", members=("b3",), version=4, min_insync=1)
    text = "\n".join(losses(survivor(), old, {}))
    assert "behind" in text
    assert "nobody can say" in text
    assert "nothing that was confirmed is lost" not in text


def test_a_repaired_broker_may_be_the_base_and_is_said_to_lose_what_stood_behind_the_damage() -> None:
    """The broker is listed, and the store has no mark of it yet."""
    repaired = survivor(broker="b2", repaired=True)
    check(repaired, GROUP, {}, {})
    text = "\n".join(losses(repaired, GROUP, {}))
    assert "its journal was damaged, and a repair has cut it there" in text
    assert "Everything that was confirmed behind offset 900 is lost with this" in text
    assert "nothing that was confirmed is lost" not in text
