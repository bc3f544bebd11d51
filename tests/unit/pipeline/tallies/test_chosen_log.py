"""The group's log is the way back from the newest epoch; what other epochs have behind it was cut."""

from __future__ import annotations

from understudy.pipeline.tallies.chosen_log import NEVER_ENDS, Before, EpochLog, choose


def epoch(broker: str, number: int, first: int, last: int, *, base: int = 0, applied: int = 0) -> EpochLog:
    return EpochLog(founding="f", broker=broker, epoch=number, first=first, last=last, base=base, applied=applied)


def test_the_tail_of_a_replaced_primary_is_not_the_group_s() -> None:
    found = choose(
        [epoch("b1", 1, 1, 120), epoch("b2", 1, 1, 100), epoch("b2", 2, 101, 150), epoch("b1", 2, 101, 150)],
        [Before("f", 2, 1)],
    )
    assert found.kept == {("f", 1): 100, ("f", 2): NEVER_ENDS}
    assert [(each.broker, each.began, each.end) for each in found.reaches] == [("b1", 0, 150), ("b2", 0, 150)]


def test_an_epoch_that_nobody_went_on_with_is_passed_over() -> None:
    """Epoch 5 began at 100 on one broker alone. Epoch 6 goes on with the log of epoch 4, behind 109."""
    found = choose(
        [epoch("b1", 4, 1, 109), epoch("b1", 6, 110, 130), epoch("b3", 4, 1, 99), epoch("b3", 5, 100, 104)],
        [Before("f", 5, 4), Before("f", 6, 4)],
    )
    assert found.kept == {("f", 4): 109, ("f", 5): 99, ("f", 6): NEVER_ENDS}
    assert {each.broker: each.end for each in found.reaches} == {"b1": 130, "b3": 99}


def test_an_epoch_on_top_of_one_that_was_passed_over_shares_what_that_shares() -> None:
    logs = [epoch("b1", 4, 1, 109), epoch("b1", 8, 110, 130), epoch("b3", 5, 100, 104), epoch("b3", 6, 105, 107)]
    found = choose(logs, [Before("f", 5, 4), Before("f", 6, 5), Before("f", 8, 4)])
    assert found.kept["f", 6] == found.kept["f", 5] == 99


def test_what_came_by_a_catch_up_is_not_held_by_the_log() -> None:
    found = choose([epoch("b1", 1, 1, 90), epoch("b2", 1, 61, 90, base=60, applied=80)], [])
    assert [(each.began, each.end, each.applied) for each in found.reaches] == [(0, 90, 0), (60, 90, 80)]


def test_each_life_of_a_data_directory_holds_what_it_got_itself() -> None:
    """b2's directory was replaced when it had 60 records; a catch-up brought the new one what stands up to 80."""
    second = EpochLog(founding="f", broker="b2", epoch=1, life=1, first=81, last=90, base=80, applied=85)
    found = choose([epoch("b1", 1, 1, 90), epoch("b2", 1, 1, 60, applied=50), second], [])
    lives = [(each.broker, each.life, each.number) for each in found.reaches]
    assert lives == [("b1", 0, 0), ("b2", 0, 1), ("b2", 1, 2)]
    assert [(each.began, each.end, each.applied) for each in found.reaches[1:]] == [(0, 60, 50), (80, 90, 85)]


def test_a_missing_way_back_is_a_problem_and_condemns_nothing() -> None:
    found = choose([epoch("b1", 1, 1, 100), epoch("b1", 3, 101, 120)], [])
    assert found.problems == ("no feed shows which record epoch 3 of founding f follows",)
    assert found.kept["f", 1] == 100


def test_foundings_are_apart() -> None:
    other = EpochLog(founding="g", broker="b1", epoch=1, first=1, last=9)
    found = choose([epoch("b1", 1, 1, 100), epoch("b1", 2, 50, 120), other], [Before("f", 2, 1)])
    assert found.kept["g", 1] == NEVER_ENDS
    assert found.kept["f", 1] == 49
