"""Branches that programs leave behind: none is dropped from the record, and none is prepared after its record has gone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.xa.programs_world import ALL, GID, RESOURCES, World, entry, joined, run, say
from tests.unit.xa.rig import JOB, NOW_MS
from understudy.xa.commands.operator import has_branch
from understudy.xa.core.codes import XaCode
from understudy.xa.core.errors import RolledBackError, StateServerLostError
from understudy.xa.core.manager.program import ProgramWork
from understudy.xa.core.manager.recovery import recover
from understudy.xa.core.manager.steps import Step, Steps
from understudy.xa.core.manager.transaction import GlobalTransaction
from understudy.xa.core.register.entry import Entry, is_complete
from understudy.xa.core.register.wire import (
    Begin,
    Claim,
    Claimed,
    Done,
    Doom,
    Failed,
    Heuristic,
    Ok,
    Refused,
    Request,
    Settle,
    Take,
    Vote,
)


def claimed(world: World, connection: int, request: Request) -> Entry:
    reply = say(world, connection, request)
    assert isinstance(reply, Claimed), reply
    return reply.entry


def test_a_heuristic_completion_does_not_hide_what_a_program_leaves_meanwhile() -> None:
    """The first program was told that program 1 works still. It dies before the heuristic completion is recorded."""
    world, first, second = joined()
    say(world, first, Doom(GID, "raised"))
    world.cut(second)
    assert say(world, first, Heuristic(GID, {"bank": int(XaCode.HEURCOM)})) == Ok()
    assert say(world, first, Settle(GID, RESOURCES)) == Ok()
    other = world.connection()
    left = claimed(world, other, Claim())
    assert left.resources == ALL[2:]
    run(world, recover(left), other)
    assert is_complete(entry(world))
    assert entry(world).heuristics == {"bank": XaCode.HEURCOM}


def test_what_recovery_meets_does_not_hide_it_either() -> None:
    world, first, second = joined()
    world.cut(first)
    other = world.connection()
    assert claimed(world, other, Claim()).resources == RESOURCES
    world.cut(second)
    assert say(world, other, Heuristic(GID, {"bank": int(XaCode.HEURCOM)})) == Ok()
    assert say(world, other, Settle(GID, RESOURCES)) == Ok()
    assert claimed(world, other, Claim()).resources == ALL[2:]


def advanced(world: World, steps: Steps[Any], step: Step, connection: int) -> Step:
    try:
        return steps.send(world.done(step, connection))
    except StateServerLostError as error:
        return steps.throw(error)


def to_the_end(world: World, steps: Steps[Any], step: Step, connection: int) -> None:
    """Until the steps raise."""
    while True:
        step = advanced(world, steps, step, connection)


def test_a_branch_that_is_started_after_recovery_has_looked_for_it_is_rolled_back() -> None:
    """The state server is started again, and recovery runs, between the record of a dynamic branch and its start."""
    world = World()
    first, second = world.connection(), world.connection()
    owner, part = GlobalTransaction(GID, JOB), ProgramWork(GID, JOB)
    run(world, owner.begin([]), first)
    run(world, owner.share(), first)
    run(world, part.enter([]), second)
    steps = part.join("bank~1")
    step = advanced(world, steps, next(steps), second)
    assert step.label == "start.bank~1"
    world.restart()
    world.recover()
    assert world.core.image(0) == []
    with pytest.raises(RolledBackError, match="lost"):
        to_the_end(world, steps, step, second)
    assert not world.check()


def test_so_is_one_of_a_program_that_works_alone() -> None:
    world = World()
    connection = world.connection()
    alone = GlobalTransaction(GID, JOB)
    run(world, alone.begin([]), connection)
    steps = alone.join("bank")
    step = advanced(world, steps, next(steps), connection)
    assert step.label == "start.bank"
    world.restart()
    world.recover()
    assert world.core.image(0) == []
    with pytest.raises(RolledBackError, match="lost"):
        to_the_end(world, steps, step, connection)
    assert not world.check()


def test_what_an_operator_has_completed_in_part_is_parked_no_more() -> None:
    world, first, second = joined(max_attempts=1)
    world.cut(first)
    other = world.connection()
    claimed(world, other, Claim())
    assert say(world, other, Failed(GID, "the bank refuses", refused=True)) == Ok()
    assert entry(world).parked
    run(world, recover(claimed(world, other, Take(GID))), other)
    world.cut(second)
    world.recover()
    assert not world.check()


def test_the_vote_of_the_program_that_began_is_refused_and_changes_nothing() -> None:
    world, first, _ = joined()
    reply = say(world, first, Vote(GID, RESOURCES))
    assert reply == Refused("protocol", f"transaction {GID}: the program that began it does not vote")
    assert entry(world).programs == [False]


def test_an_entry_is_found_by_a_branch_that_was_completed_heuristically() -> None:
    """Its label is not among the branches any more that may be there."""
    found = Entry(GID, "job", "profile", "f", ["queues~1"], NOW_MS, heuristics={"bank~2": 7})
    assert has_branch(found, ["bank"])
    assert has_branch(found, ["queues"])
    assert not has_branch(found, ["other"])


def test_what_one_connection_leaves_is_recovered_in_the_order_of_its_begin() -> None:
    world = World()
    connection, other = world.connection(), world.connection()
    gids = [f"{number:064x}" for number in range(12, 0, -1)]
    for gid in gids:
        say(world, connection, Begin(gid, []))
    world.cut(connection)
    found = []
    for _ in gids:
        found.append(claimed(world, other, Claim()).gid)
        say(world, other, Done(found[-1]))
    assert found == gids
