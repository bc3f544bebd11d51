"""Scenarios as text: every strike comes back as it was, and what is wrong in a text is named with its file and line."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from tests.simulator.knobs import Knobs
from tests.simulator.nemesis.ambushes import MOMENTS
from tests.simulator.nemesis.at_brokers import (
    ClockJump,
    Crash,
    CrashAll,
    DiskFilled,
    DiskFull,
    DiskHang,
    DiskLow,
    FsyncError,
    LostTail,
    Pause,
    Power,
    PowerAll,
    VoteNo,
    Wipe,
    WipePrimary,
)
from tests.simulator.nemesis.at_network import (
    ClientReset,
    GroupLost,
    GroupSetBack,
    LinkReset,
    LostAnswer,
    Partition,
    PartitionOneWay,
    SessionLoss,
    SlowClient,
    SlowNetwork,
    StaleStore,
    StoreOutage,
    SwizzleClog,
    UnheardAdd,
)
from tests.simulator.nemesis.at_operators import Order
from tests.simulator.nemesis.strike import Lurking, Struck
from tests.simulator.nemesis.strikes import STRIKES
from tests.simulator.shrinking import Finding, Script, ScriptError, parse, read, show
from tests.simulator.shrinking.script import PLAIN, without_chance
from tests.simulator.shrinking.script_text import KNOBS, get_knob
from tests.simulator.shrinking.strike_text import brokers_of, read_strike, show_strike

EACH = (
    Crash(broker="b1", back_ms=20),
    Power(broker="b2", back_ms=9_000),
    CrashAll(back_ms=(("b1", 1), ("b3", 20))),
    PowerAll(back_ms=(("b2", 7),)),
    Pause(broker="b3", for_ms=300),
    ClockJump(broker="b1", by_ms=-7_200_000),
    VoteNo(broker="b2"),
    FsyncError(broker="b1"),
    DiskFull(broker="b1", for_ms=500),
    DiskLow(broker="b2", for_ms=300),
    DiskHang(broker="b3", for_ms=3_000),
    DiskFilled(broker="b3", for_ms=9_000),
    WipePrimary(broker="b1", back_ms=20),
    Wipe(broker="b3", back_ms=5),
    LostTail(broker="b1", octets=600, back_ms=1),
    LostTail(broker="b1", octets=600, back_ms=1, others_ms=(("b2", 7), ("b3", 9))),
    Partition(cut=(("b1", "b2"), ("b2", "b1")), for_ms=200, store="b1"),
    Partition(cut=(("b1", "b2"), ("b2", "b1")), for_ms=200),
    PartitionOneWay(cut=(("b1", "b2"),), for_ms=0),
    SwizzleClog(clog_ms=(("b1", 0), ("b2", 30)), mend_ms=(("b2", 60), ("b1", 90))),
    LinkReset(link=(("b2", "b1"),)),
    SlowNetwork(path=(("b3", "b1"),), add_ms=50, for_ms=600),
    ClientReset(client="teller0", broker="b1"),
    SlowClient(client="consumer", broker="b1", for_ms=70),
    SessionLoss(broker="b1", for_ms=500),
    StoreOutage(for_ms=4_000),
    StaleStore(broker="b2", lag_ms=300, for_ms=2_000),
    LostAnswer(broker="b1"),
    UnheardAdd(broker="b1", for_ms=4_000),
    UnheardAdd(broker="b3", for_ms=1_500, back_ms=20),
    GroupLost(for_ms=500, wholly=False),
    GroupLost(for_ms=3_000, wholly=True, at_promotion=True),
    GroupSetBack(for_ms=700),
    Order(command="step-down", broker="b1"),
    Order(command="expel", about="b2"),
)
TEXT = """\
# what it shows
seed 7
mutation half-a-transaction
finds G1 by checkers/replicas
brokers 3
min_insync 2
tellers 1

at 1200.5 crash broker=b1 back_ms=20
leave 1300
heal 0
"""


def test_every_strike_is_among_the_examples() -> None:
    assert {type(strike) for strike in EACH} == set(STRIKES.values())


@pytest.mark.parametrize("strike", EACH, ids=lambda strike: strike.verb)
def test_a_strike_comes_back(strike: Crash) -> None:
    by_clock = Struck(at_us=1_234_567, strike=strike)
    in_ambush = Struck(at_us=2_000_000, strike=strike, lurking=Lurking(moment="the set shrank", skip=3, after_us=300))
    for struck in (by_clock, in_ambush):
        first, *words = show_strike(struck).split()
        assert first == "at"
        assert read_strike(words) == struck


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_moment_comes_back(moment: str) -> None:
    struck = Struck(at_us=0, strike=EACH[0], lurking=Lurking(moment=moment, skip=0, after_us=0))
    assert read_strike(show_strike(struck).split()[1:]) == struck


def test_who_is_named() -> None:
    assert [sorted(brokers_of(strike)) for strike in EACH[:4]] == [["b1"], ["b2"], ["b1", "b3"], ["b2"]]
    assert sorted(brokers_of(PartitionOneWay(cut=(("b1", "b2"),), for_ms=0))) == ["b1", "b2"]
    assert brokers_of(StoreOutage(for_ms=1)) == set()


def test_a_plain_scenario_says_little() -> None:
    script = Script(seed=1, knobs=PLAIN, strikes=())
    assert show(script) == "seed 1\nholds\nbrokers 3\nmin_insync 2\ntellers 2\nheal 0\n"
    assert parse("seed 1\nholds\n", "text") == script


def test_what_a_text_says() -> None:
    script = parse(TEXT, "text")
    assert script.seed == 7
    assert script.mutation == "half-a-transaction"
    assert script.finds == Finding("G1", "checkers/replicas")
    assert script.knobs == attrs.evolve(PLAIN, tellers=1)
    assert script.strikes == (Struck(at_us=1_200_500, strike=Crash(broker="b1", back_ms=20)),)
    assert (script.leave_ms, script.heal_ms) == (1_300, 0)
    assert show(script) == TEXT.replace("# what it shows\n", "").replace("\n\n", "\n")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("seed 7", "seed seven", "text:2: seed: 'seven' is not a whole number"),
        ("seed 7\n", "", "text:10: the line seed is missing"),
        ("finds G1 by checkers/replicas\n", "", "text:10: the line finds (or holds) is missing"),
        ("finds G1 by checkers/replicas", "finds G1", "text:4: finds: 'G1' is not of the form PROMISE by CHECKER"),
        ("half-a-transaction", "half-a-queue", "text:3: mutation: 'half-a-queue' is not known"),
        ("brokers 3", "brokers 6", "text:5: brokers: '6' is more than 5"),
        ("brokers 3", "brokers 3\nshared_turns 2", "text:6: shared_turns: '2' is not a share from 0 to 1"),
        ("brokers 3", "brokers 0", "text:5: brokers: '0' is less than 1"),
        ("brokers 3", "brokers 1", "text:11: min_insync 2 is more than brokers 1"),
        ("brokers 3\nmin_insync 2", "brokers 1\nmin_insync 1\nseed 7", "text:7: 'seed 7' says seed again"),
        ("tellers 1", "workloads fifo bingo", "text:7: workloads: 'bingo' is no workload"),
        ("tellers 1", "fsync_us 5..5", "text:7: fsync_us: '5..5' is not of the form A..B"),
        ("tellers 1", "moved_bodies some", "text:7: moved_bodies: 'some' is neither none nor all"),
        ("tellers 1", "mandatory_at_commit 1", "text:7: mandatory_at_commit: '1' is neither yes nor no"),
        ("tellers 1", "holds", "text:7: 'holds' says holds again"),
        ("tellers 1", "brokers3 1", "text:7: 'brokers3 1' says nothing that a scenario can say"),
        ("1200.5", "1200.5555", "text:9: '1200.5555' is not a time"),
        ("1200.5", "-1", "text:9: '-1' is not a time"),
        ("crash", "smash", "text:9: 'smash' is no strike; there are crash, "),
        ("back_ms=20", "back_ms=soon", "text:9: back_ms: 'soon' is not a whole number"),
        ("back_ms=20", "back_ms=-20", "text:9: back_ms: '-20' is negative"),
        ("back_ms=20", "back_ms=20 back_ms=21", "text:9: 'back_ms=21' is the second back_ms"),
        ("back_ms=20", "for_ms=20", "text:9: 'for_ms=20' is none of broker=, back_ms="),
        (" back_ms=20", "", "text:9: back_ms= is missing"),
        ("broker=b1", "broker=b4", "text:11: 'at 1200.5 crash broker=b4 back_ms=20' names b4; there are 3 brokers"),
        ("crash broker=b1 back_ms=20", "crash-all back_ms=20", "text:9: back_ms: '20' is not of the form b1:20,b2:300"),
        ("crash broker=b1 back_ms=20", "link-reset link=b1-b2", "text:9: link: 'b1-b2' is not of the form b1>b2,b2>b1"),
        ("crash broker", "ambush NOON skip=0 after_us=0 crash broker", "text:9: 'NOON' is no moment; there are SYNC, "),
        ("crash broker", "ambush PREPARE skip=0 crash broker", "text:9: 'crash' is none of skip=, after_us="),
        ("leave 1300", "leave 13.5", "text:10: leave: '13.5' is not a whole number"),
    ],
)
def test_what_is_wrong_is_named(old: str, new: str, words: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(ScriptError) as caught:
        parse(TEXT.replace(old, new), "text")
    assert words in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match=r"nothing\.txt: cannot be read"):
        read(tmp_path / "nothing.txt")


def test_every_knob_may_stand_in_a_text() -> None:
    script = Script(seed=1, knobs=PLAIN, strikes=())
    for name, knob in KNOBS.items():
        value = {
            "workloads": "fifo fan",
            "fsync_us": "10..20",
            "min_insync": "1",
            "tellers": "3",
            "segment_bytes": "65536",
            "shared_turns": "0.5",
            "inline_syncs": "0.5",
            "unruly_commits": "0.5",
            "compaction": "0,16,100,1",
            "moved_bodies": "all",
            "paging": "0,1,2,100,3,10",
            "mandatory_at_commit": "yes",
            "slice": "3",
        }.get(name, "2")
        text = "\n".join(line for line in show(script).splitlines() if not line.startswith(f"{name} "))
        changed = parse(f"{text}\n{name} {value}\n", "text")
        assert get_knob(changed.knobs, name) == knob.read(value) != get_knob(PLAIN, name), name
        assert parse(show(changed), "again") == changed, name


def test_every_knob_that_a_seed_draws_is_in_the_text() -> None:
    """Without the run: `test_scripted_nemesis` runs some seeds from their texts."""
    for seed in range(400):
        script = Script(seed=seed, knobs=without_chance(Knobs.draw(seed)), strikes=())
        assert parse(show(script), "text") == script, seed
