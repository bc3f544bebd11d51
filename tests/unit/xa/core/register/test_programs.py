"""One transaction that several programs work on: what the state server records, and what becomes of all orders of events."""

from __future__ import annotations

import copy

import msgspec
import pytest

from tests.unit.xa.crash_disk import CrashDisk
from tests.unit.xa.programs_world import ALL, GID, RESOURCES, Program, World, any_order, entry, joined, opened, say
from tests.unit.xa.rig import NOW_MS, hello
from understudy.xa.core.register.entry import Begun, Entry, Record
from understudy.xa.core.register.state import StateCore
from understudy.xa.core.register.wire import (
    MAX_LINE_OCTETS,
    WIRE_VERSION,
    Begin,
    Claim,
    Claimed,
    Decide,
    Done,
    Doom,
    Enter,
    Gather,
    Gathered,
    Hello,
    Heuristic,
    Join,
    List,
    Listing,
    Nothing,
    Ok,
    Refused,
    Reply,
    Settle,
    Share,
    Started,
    Take,
    Vote,
    Welcome,
    line_of,
)
from understudy.xa.core.status.journal_log import frame, image_frame, replay
from understudy.xa.core.status.mirrored_file import MirroredFile


def code(reply: Reply) -> str:
    assert isinstance(reply, Refused), reply
    return reply.code


def test_two_programs_vote_and_one_decision_is_for_all() -> None:
    world = World()
    first = Program(world, joins=False, ends="")
    first.opens()
    second = Program(world, joins=True, ends="")
    second.ends()
    first.ends()
    assert (first.told, second.told) == ("COMMITTED", "voted")
    assert second.trace == [
        "tell.enter", "start.bank~1", "start.queues~1", "tell.started", "end.bank~1", "end.queues~1",
        "prepare.bank~1", "prepare.queues~1", "tell.vote",
    ]  # fmt: skip
    assert first.trace[5:] == [
        "end.bank", "end.queues", "tell.gather", "prepare.bank", "prepare.queues", "tell.decide",
        "commit.bank", "commit.queues", "commit.bank~1", "commit.queues~1", "tell.settle",
    ]  # fmt: skip
    assert world.check()


def test_a_commit_waits_for_the_vote_and_prepares_nothing_before() -> None:
    world = World()
    first = Program(world, joins=False, ends="")
    first.opens()
    second = Program(world, joins=True, ends="")
    second.advance()
    for _ in range(20):
        first.advance()
    assert first.trace[-2:] == ["tell.gather", "wait"]
    assert "prepare.bank" not in first.trace
    late = world.connection()
    assert code(say(world, late, Enter(GID, RESOURCES))) == "closed"


def test_a_program_that_is_late_rolls_all_back_and_its_vote_is_refused() -> None:
    world = World()
    first = Program(world, joins=False, ends="", wait_ms=100)
    first.opens()
    second = Program(world, joins=True, ends="")
    second.advance()
    first.ends()
    assert first.told == "ProgramsLateError"
    assert first.trace.count("tell.gather") == 6
    assert entry(world).resources == ["bank~1", "queues~1"]  # they are the other program's, until it has ended
    second.ends()
    assert second.told == "RolledBackError"
    assert not world.check()


@pytest.mark.parametrize(("ends", "told"), [("raises", "rolled back"), ("refuses", "RolledBackError")])
def test_the_first_program_rolls_back_what_the_others_have_prepared(ends: str, told: str) -> None:
    world = World()
    first = Program(world, joins=False, ends=ends)
    first.opens()
    second = Program(world, joins=True, ends="")
    second.ends()
    first.ends()
    assert (first.told, second.told) == (told, "voted")
    assert not world.check()  # without a recovery


@pytest.mark.parametrize(("ends", "told"), [("raises", "rolled back"), ("refuses", "RolledBackError")])
def test_a_program_that_gives_up_rolls_all_back(ends: str, told: str) -> None:
    world = World()
    first = Program(world, joins=False, ends="")
    first.opens()
    second = Program(world, joins=True, ends=ends)
    second.ends()
    assert entry(world).doomed.startswith("program 1: ")
    assert entry(world).resources == RESOURCES
    first.ends()
    assert (first.told, second.told) == ("RolledBackError", told)
    assert first.trace.count("tell.gather") == 1
    assert not world.check()


@pytest.mark.parametrize("seed", range(400))
def test_whatever_happens_all_or_nothing_is_committed(seed: int) -> None:
    world, programs = any_order(seed)
    committed = world.check()
    told = [one.told for one in programs]
    assert not (committed and any(one in ("rolled back", "RolledBackError", "ProgramsLateError") for one in told)), told
    if told[0] in ("COMMITTED", "COMMIT_PENDING"):
        assert committed


@pytest.mark.parametrize("dies", ["first", "second", "both", "server"])
@pytest.mark.parametrize("steps", range(10))
def test_dead_at_each_step_of_the_second_program(steps: int, dies: str) -> None:
    world = World()
    first = Program(world, joins=False, ends="")
    first.opens()
    second = Program(world, joins=True, ends="")
    for _ in range(steps):
        if not second.told:
            second.advance()
    voted = second.told == "voted"
    assert voted == (steps == 9)
    if dies == "server":
        world.restart()
    if dies in ("first", "both"):
        first.die()
    if dies in ("second", "both") and not voted:
        second.die()
    world.recover()  # while the other one still works
    for one in (second, first):
        one.ends()
    world.recover()
    assert world.check() == (dies == "second" and (voted or not steps))


def test_the_decision_needs_all_votes_and_no_doom() -> None:
    world, first, second = joined()
    assert code(say(world, first, Decide(GID))) == "doomed"
    assert say(world, first, Gather(GID)) == Gathered([], [1])
    assert say(world, second, Vote(GID, ["bank~1"])) == Ok()
    assert entry(world).resources == [*RESOURCES, "bank~1"]  # the other branch has nothing to commit
    assert say(world, first, Gather(GID)) == Gathered(["bank~1"], [], {"bank~1": ""})
    assert code(say(world, second, Vote(GID, []))) == "not_owner"
    assert say(world, first, Decide(GID)) == Ok()
    assert code(say(world, first, Doom(GID, "late"))) == "protocol"
    assert say(world, first, Settle(GID, ["bank~1"])) == Ok()
    assert world.core.image(0) == []


def test_a_program_with_another_resource_manager_of_the_same_name_cannot_join() -> None:
    """Two hosts with one profile, whose address 127.0.0.1 is another server on each."""
    world = World()
    first, other, third = world.connection(), world.connection(), world.connection()
    assert say(world, first, Begin(GID, ["bank"], {"bank": "postgresql 1/5"})) == Ok()
    assert say(world, first, Share(GID)) == Ok()
    refused = say(world, other, Enter(GID, ["bank"], {"bank": "postgresql 2/5"}))
    assert refused == Refused(
        "wrong_resource",
        f"transaction {GID} has its branch of resource manager 'bank' in postgresql 1/5, and here 'bank' is postgresql 2/5",
    )
    assert say(world, third, Enter(GID, ["bank"], {"bank": "postgresql 1/5", "queues": "group a"})) == Welcome(1)
    assert say(world, third, Join(GID, "queues~1", "group a")) == Ok()
    assert code(say(world, first, Join(GID, "queues", "group b"))) == "wrong_resource"
    assert entry(world).identities == {"bank": "postgresql 1/5", "queues": "group a"}


def test_a_doom_outlives_the_server_and_an_operator_cannot_commit() -> None:
    world, first, second = joined()
    assert isinstance(say(world, second, Doom(GID, "program 1: no")), Gathered)
    refused = say(world, first, Gather(GID))
    assert refused == Refused("doomed", f"transaction {GID} can only be rolled back: program 1: no")
    world.restart()
    operator = world.connection()
    assert isinstance(say(world, operator, Take(GID)), Claimed)
    assert code(say(world, operator, Decide(GID))) == "doomed"
    assert entry(world).doomed == "program 1: no"


def test_a_vote_outlives_the_server_and_the_job_rolls_back_what_is_not_decided() -> None:
    world, _, second = joined()
    say(world, second, Vote(GID, ["bank~1", "queues~1"]))
    world.restart()
    other = world.connection()
    reply = say(world, other, Claim())
    assert isinstance(reply, Claimed)
    assert (reply.entry.resources, reply.entry.programs, reply.entry.commit) == (ALL, [True], False)


def test_what_a_program_works_on_is_left_to_it() -> None:
    """The first program dies. Its job recovers its branches, and the other program learns of it when it votes."""
    world, first, second = joined()
    world.cut(first)
    other = world.connection()
    reply = say(world, other, Claim())
    assert isinstance(reply, Claimed)
    assert reply.entry.resources == RESOURCES
    assert code(say(world, other, Settle(GID, ["bank~1"]))) == "protocol"
    assert say(world, other, Settle(GID, RESOURCES)) == Ok()
    assert say(world, other, Claim()) == Nothing()
    assert code(say(world, other, Take(GID))) == "not_owner"
    listing = say(world, other, List())
    assert isinstance(listing, Listing)
    assert [one.state for one in listing.entries] == ["active"]
    assert say(world, other, Begin("2" * 64, RESOURCES)) == Ok()  # the job goes on
    assert code(say(world, second, Join(GID, "third~1"))) == "doomed"
    assert code(say(world, second, Vote(GID, ALL[2:]))) == "doomed"
    world.cut(second)
    reply = say(world, other, Claim())
    assert isinstance(reply, Claimed)
    assert reply.entry.resources == ALL[2:]
    assert say(world, other, Settle(GID, ALL[2:])) == Ok()
    assert [one.gid for one in world.core.image(0)] == ["2" * 64]


def test_what_must_be_durable_before_the_reply() -> None:
    world, first = opened()
    second, third = world.connection(), world.connection()
    waits = {}
    for connection, request in (
        (second, Enter(GID, ["bank"])),
        (third, Enter(GID, ["bank"])),
        (second, Started(GID, {"bank~1": 0})),
        (second, Vote(GID, ["bank~1"])),
        (third, Doom(GID, "no")),
        (third, Settle(GID, ["bank~2"])),
        (first, Settle(GID, ["bank~1"])),
    ):
        reaction = world.core.received(connection, request, NOW_MS)
        assert reaction.record is not None
        waits[type(request).__name__] = not reaction.at_once
    assert waits == {"Enter": True, "Started": False, "Vote": True, "Doom": True, "Settle": False}
    assert world.core.image(0) == []


def test_who_may_join() -> None:
    world, first = opened()
    for name, job, fingerprint in ((91, "other", "f"), (92, "job", "g")):
        world.core.received(name, hello(job, fingerprint), NOW_MS)
        assert code(say(world, name, Enter(GID, []))) == "wrong_profile"
    other = world.connection()
    before = copy.deepcopy(entry(world))
    assert code(say(world, other, Enter("9" * 64, []))) == "unknown"
    assert code(say(world, first, Enter(GID, []))) == "protocol"
    assert code(say(world, other, Enter(GID, ["bank~7"]))) == "protocol"
    assert code(say(world, other, Enter(GID, ["x"] * 999))) == "protocol"
    for request in (Vote(GID, []), Doom(GID, ""), Gather(GID), Settle(GID, []), Share(GID), Started(GID, {})):
        assert code(say(world, other, request)) == "not_owner"
    assert entry(world) == before
    assert say(world, other, Enter(GID, ["bank"])) == Welcome(1)
    assert code(say(world, other, Enter(GID, ["bank"]))) == "protocol"
    assert code(say(world, other, Join(GID, "bank"))) == "protocol"
    assert code(say(world, other, Join(GID, "bank~2"))) == "protocol"
    assert say(world, other, Join(GID, "third~1")) == Ok()
    assert code(say(world, other, Vote(GID, ["bank"]))) == "protocol"
    assert code(say(world, first, Done(GID))) == "protocol"
    assert code(say(world, other, Gather(GID))) == "not_owner"
    world.cut(first)
    assert code(say(world, world.connection(), Enter(GID, []))) == "closed"


def test_what_is_not_open_or_is_decided_takes_no_program() -> None:
    world = World()
    first, other = world.connection(), world.connection()
    say(world, first, Begin(GID, RESOURCES))
    assert code(say(world, other, Enter(GID, []))) == "closed"
    assert code(say(world, first, Gather(GID))) == "protocol"
    say(world, first, Share(GID))
    say(world, first, Decide(GID))
    assert code(say(world, other, Enter(GID, []))) == "closed"
    assert code(say(world, first, Share(GID))) == "closed"
    say(world, first, Settle(GID, []))
    assert code(say(world, other, Enter(GID, []))) == "unknown"


# -- what is recorded -------------------------------------------------------------------------------------------------


def records() -> tuple[list[Record], Entry]:
    """All records of a transaction of two programs up to the doom, and its entry then."""
    world, first = opened()
    second, third = world.connection(), world.connection()
    made: list[Record | None] = []
    for connection, request in (
        (second, Enter(GID, RESOURCES)),
        (third, Enter(GID, ["bank"])),
        (second, Vote(GID, ["bank~1"])),
        (third, Doom(GID, "no")),
        (third, Settle(GID, ["bank~2"])),
    ):
        made.append(world.core.received(connection, request, NOW_MS).record)
    world.cut(first)
    return [one for one in made if one is not None], entry(world)


def test_both_kinds_of_file_read_what_was_recorded() -> None:
    made, expected = records()
    assert len(made) == 5
    begun = Entry(GID, "job", "profile", "f", [*RESOURCES], NOW_MS)
    octets = image_frame(1, 0, [begun]) + frame(2, 1, made)
    assert replay(octets, "file", 0).entries == {GID: expected}
    assert (expected.resources, expected.programs) == ([*RESOURCES, "bank~1"], [True, False])
    disk = CrashDisk()
    mirrored = MirroredFile(disk, 0)
    mirrored.open()
    mirrored.append([Begun(copy.deepcopy(begun)), *made])
    mirrored.sync()
    assert MirroredFile(disk, 0).open() == {GID: expected}


def test_an_old_file_reads_and_an_old_server_refuses_a_new_one() -> None:
    """A transaction of one program is recorded as ever."""

    class OldEntry(msgspec.Struct, forbid_unknown_fields=True):
        gid: str
        job: str
        profile: str
        fingerprint: str
        resources: list[str]
        began_ms: int

    old = OldEntry(GID, "job", "profile", "f", list(RESOURCES), NOW_MS)
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=Entry)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plain), type=OldEntry) == old
    _, shared = records()
    with pytest.raises(msgspec.ValidationError, match=r"unknown field `(programs|doomed|prepared)`"):
        msgspec.msgpack.decode(msgspec.msgpack.encode(shared), type=OldEntry)


def test_a_transaction_of_many_votes_can_be_listed() -> None:
    """The bounds are those of all programs together: else one entry could be longer than a line, and no list could be read."""
    core = StateCore([{}])
    for connection in range(1, 6):
        assert core.received(connection, Hello(WIRE_VERSION, "j", "p", "f"), 0).reply == Ok()
    assert core.received(1, Begin("g", []), 0).reply == Ok()
    assert core.received(1, Share("g"), 0).reply == Ok()
    names = [f"{number:03}".ljust(256, "x") for number in range(250)]
    votes: list[Reply] = []
    for connection in range(2, 6):
        welcome = core.received(connection, Enter("g", names), 0).reply
        assert isinstance(welcome, Welcome)
        labels = [f"{name}~{welcome.program}" for name in names]
        assert core.received(connection, Started("g", dict.fromkeys(labels, 0)), 0).reply == Ok()
        for prepared, proofs in ((labels, {}), (labels[:100], dict.fromkeys(labels[:100], "p" * 256)), ([], {})):
            votes.append(core.received(connection, Vote("g", prepared, proofs), 0).reply)
            if votes[-1] == Ok():
                break
    codes = {f"{name}~{number}": 6 for name in names for number in range(1, 5)}
    core.received(1, Heuristic("g", codes), 0)
    assert len(line_of(core.received(1, List(), 0).reply)) <= MAX_LINE_OCTETS
    assert any(isinstance(vote, Refused) and "octets for proof" in vote.text for vote in votes)
