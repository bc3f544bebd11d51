"""A status that has lost what was durable is refused, with what is missing, and opens only if the loss is accepted."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from tests.unit.xa.crash_disk import CrashDisk
from tests.unit.xa.records_kit import entry, life
from understudy.xa.core.errors import LostRecordsError, StatusFileError
from understudy.xa.core.register.entry import Begun, Decided, Entry
from understudy.xa.core.status.durable_mark import SHARDS, SLOT_OCTETS, DurableMark
from understudy.xa.core.status.journal_file import StatusFile
from understudy.xa.core.status.mirrored_file import RECORD_OCTETS, MirroredFile
from understudy.xa.core.status.shards import STATUS, record_shards, recorded_shards, shards_on
from understudy.xa.state_server.stores import JOURNAL, MIRRORED, Where, held, opened

Kind = type[StatusFile] | type[MirroredFile]
KINDS: list[Kind] = [StatusFile, MirroredFile]
FILES = {StatusFile: ("status-0.0",), MirroredFile: ("mirror-0.a", "mirror-0.b")}
MARKS = {StatusFile: "status-0.mark", MirroredFile: "mirror-0.mark"}


def filled(kind: Kind, points: int = 4) -> CrashDisk:
    """A server that was stopped: one transaction is decided, and another has begun."""
    disk = CrashDisk()
    file = kind(disk, 0)
    file.open()
    for record in (*life(1)[:4], Begun(entry(2)))[:points]:
        file.append([record])
        file.sync()
    file.close()
    record_shards(disk, 1)
    return disk


def changed(disk: CrashDisk, **files: bytes | None) -> CrashDisk:
    """The same with other files; None: without it. In names, ``_`` stands for dash and dot."""
    there = {name.replace("-", "_").replace(".", "_"): name for name in disk.names()}
    found = CrashDisk()
    for key, name in there.items():
        content = files.get(key, disk.read(name))
        if content is not None:
            found.put(name, content)
    return found


def files_of(disk: CrashDisk) -> dict[str, bytes]:
    return {name: disk.read(name) for name in disk.names()}


def refused(kind: Kind, disk: CrashDisk) -> str:
    """Nothing is changed."""
    before = files_of(disk)
    with pytest.raises(LostRecordsError) as raised:
        kind(disk, 0).open()
    assert files_of(disk) == before
    return str(raised.value)


def accepted(kind: Kind, disk: CrashDisk) -> dict[str, Entry]:
    """Entries that are left; from then on the status is as any."""
    file = kind(disk, 0, accept_loss=True)
    found = file.open()
    assert any("the loss is accepted" in note for note in file.notes)
    file.append([Begun(entry(99))])
    file.sync()
    file.close()
    again = kind(disk, 0)
    assert again.open() == {**found, entry(99).gid: entry(99)}
    assert again.notes == []
    return found


def test_a_journal_that_is_cut_anywhere_is_refused() -> None:
    """Half a file, a file without its last frame, and each other length."""
    disk = filled(StatusFile)
    data = disk.read("status-0.0")
    seen = set()
    for length in range(len(data)):
        cut = changed(disk, status_0_0=data[:length])
        if length >= len(changed_image(disk)):
            assert "frame 5 was durable, says status-0.mark" in refused(StatusFile, cut)
            seen.add(len(accepted(StatusFile, cut)))
        else:
            with pytest.raises(StatusFileError, match=r"status-0\.0: the first frame is damaged"):
                StatusFile(cut, 0).open()
    assert seen == {0, 1}


def changed_image(disk: CrashDisk) -> bytes:
    """The first frame of the file."""
    first = CrashDisk()
    StatusFile(first, 0).open()
    octets = first.read("status-0.0")
    assert disk.read("status-0.0").startswith(octets)
    return octets


def test_a_decision_that_is_lost_is_named_and_not_rolled_back_in_silence() -> None:
    disk = filled(StatusFile)
    whole = StatusFile(changed(disk), 0).open()
    assert [one.commit for one in whole.values()] == [True]
    data = disk.read("status-0.0")
    zeroed = changed(disk, status_0_0=data[:-10] + bytes(10))
    assert refused(StatusFile, zeroed) == (
        "status-0.0 ends with frame 4, and frame 5 was durable, says status-0.mark: 1 are missing"
    )
    assert [one.commit for one in accepted(StatusFile, zeroed).values()] == [False]


def test_one_image_may_be_gone_cut_or_damaged() -> None:
    """The other one has all, and the operator is told."""
    disk = filled(MirroredFile)
    wanted = MirroredFile(changed(disk), 0).open()
    for side in "ab":
        data = disk.read(f"mirror-0.{side}")
        for left in [None, *(data[:length] for length in range(0, len(data), 100))]:
            hurt = changed(disk, **{f"mirror_0_{side}": left})
            file = MirroredFile(hurt, 0)
            assert file.open() == wanted
            assert file.notes[0].startswith(f"mirror-0.{side} is ")
            assert hurt.read("mirror-0.a") == hurt.read("mirror-0.b")


def test_an_older_image_is_refused_when_the_newest_one_is_gone() -> None:
    """After a power failure the images may differ by one sync: the disk has lost the one that was synced."""
    older, disk = filled(MirroredFile, 3), filled(MirroredFile, 4)
    for gone in "ab":
        other = "b" if gone == "a" else "a"
        stale = older.read(f"mirror-0.{other}")
        hurt = changed(disk, **{f"mirror_0_{gone}": None, f"mirror_0_{other}": stale})
        assert refused(MirroredFile, hurt) == (
            f"mirror-0.{other} ends with generation 3, and generation 4 was durable, says mirror-0.mark: 1 are missing"
        )
        assert [one.commit for one in accepted(MirroredFile, hurt).values()] == [False]


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_of_a_shard_that_are_gone_are_refused(kind: Kind) -> None:
    disk = filled(kind)
    hurt = CrashDisk()
    for name in set(disk.names()) - set(FILES[kind]):
        hurt.put(name, disk.read(name))
    assert f"-0 is missing: it was durable up to {'frame 5' if kind is StatusFile else 'generation 4'}" in refused(
        kind, hurt
    )
    assert accepted(kind, hurt) == {}


@pytest.mark.parametrize("kind", KINDS)
def test_an_older_copy_beside_the_mark_is_refused(kind: Kind) -> None:
    older, disk = filled(kind, 4), filled(kind, 5)
    hurt = CrashDisk()
    for name in disk.names():
        hurt.put(name, (older if name in FILES[kind] else disk).read(name))
    assert "1 are missing" in refused(kind, hurt)
    assert len(accepted(kind, hurt)) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_mark_that_is_gone_or_damaged_is_refused(kind: Kind) -> None:
    disk = filled(kind)
    key = MARKS[kind].replace("-", "_").replace(".", "_")
    for left, text in ((None, "is missing"), (b"", "is damaged"), (bytes(2 * SLOT_OCTETS), "is damaged")):
        hurt = changed(disk, **{key: left})
        assert f"{MARKS[kind]} {text}: whether the last records of" in refused(kind, hurt)
        assert len(accepted(kind, hurt)) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_of_an_older_version_is_taken_and_gets_a_mark(kind: Kind) -> None:
    disk = filled(kind)
    old = CrashDisk()
    for name in FILES[kind]:
        old.put(name, disk.read(name))
    file = kind(old, 0)
    assert len(file.open()) == 1
    assert file.notes == [f"{MARKS[kind]} is made anew: a folder of an older version has none"]
    assert kind(old, 0).open()
    if kind is StatusFile:
        cut = changed(old, status_0_0=old.read("status-0.0")[:-1])
        assert "1 are missing" in refused(kind, cut)


@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_while_a_loss_is_accepted_is_asked_about_again_or_done(kind: Kind) -> None:
    older, disk = filled(kind, 3), filled(kind, 4)
    outcomes: set[str] = set()

    def crash() -> None:
        for after in world.after_crash():
            try:
                found = kind(after, 0).open()
            except LostRecordsError:
                outcomes.add("asked")
                found = kind(after, 0, accept_loss=True).open()
            else:
                outcomes.add("done")
            assert [one.commit for one in found.values()] == [False]

    world = CrashDisk(crash)
    for name in disk.names():
        world.put(name, (older if name in FILES[kind] else disk).read(name))
    file = kind(world, 0, accept_loss=True)
    file.open()
    assert outcomes == {"asked", "done"}


# -- the mark -------------------------------------------------------------------------------------------------------------


def numbers(disk: CrashDisk) -> Iterator[int]:
    """Values of the mark after each state that a crash may leave."""
    for after in disk.after_crash():
        yield next(low for low in range(100) if takes(after, low))


def takes(disk: CrashDisk, found: int) -> bool:
    with contextlib.suppress(LostRecordsError):
        return DurableMark(disk, "m", 0).check(found, "f", "n", accept=False) == ""
    return False


def test_a_mark_never_goes_back_behind_its_last_sync_and_never_says_more_than_was_noted() -> None:
    synced = noted = 0

    def crash() -> None:
        if "m" in world.names():
            found = set(numbers(world))
            assert synced <= min(found) <= max(found) <= noted, (synced, found, noted)

    world = CrashDisk()
    mark = DurableMark(world, "m", 0)
    mark.reset(0)
    world.on_change = crash
    for number in range(1, 12):
        noted = number
        mark.note(number)
        if number % 3 == 0:
            mark.sync()
            synced = number
    mark.reset(noted)


@pytest.mark.parametrize("synced", range(6))
def test_no_power_failure_can_tear_both_slots(synced: int) -> None:
    """Also not when a process was killed, and the next one goes on with what the system has in its cache."""

    def one_is_sure() -> None:
        if "m" in world.names():
            now, sure = world.read("m"), world.sure("m")
            torn = [at for at in (0, SLOT_OCTETS) if now[at : at + 100] != sure[at : at + 100]]
            assert len(torn) < 2, torn

    world = CrashDisk()
    DurableMark(world, "m", 0).reset(0)
    world.on_change = one_is_sure
    for run in range(4):
        mark = DurableMark(world, "m", 0)
        mark.go_on(10 * run)
        for number in range(1, 6):
            mark.note(10 * run + number)
            if number == synced:
                mark.sync()


def test_a_damaged_octet_of_a_mark_never_says_too_much() -> None:
    disk = CrashDisk()
    mark = DurableMark(disk, "m", 0)
    mark.reset(3)
    for number in (4, 5):
        mark.note(number)
        mark.sync()
    data = disk.read("m")
    for at in (*range(20), *range(SLOT_OCTETS, SLOT_OCTETS + 20)):
        for bit in range(8):
            hurt = CrashDisk()
            hurt.put("m", data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
            DurableMark(hurt, "m", 0).check(5, "f", "n", accept=False)
            with pytest.raises(LostRecordsError):
                DurableMark(hurt, "m", 0).check(3, "f", "n", accept=False)
    with pytest.raises(LostRecordsError, match="m is damaged"):
        DurableMark(disk, "m", 1).check(5, "f", "n", accept=False)  # that of another shard


# -- the number of shards -------------------------------------------------------------------------------------------------


def test_the_number_of_shards_is_known_when_each_has_a_mark() -> None:
    disk = CrashDisk()
    for shard in range(2):
        StatusFile(disk, shard).open()
    record_shards(disk, 3)
    assert recorded_shards(disk) == 0
    record_shards(disk, 2)
    assert recorded_shards(disk) == 2
    StatusFile(disk, 2).open()
    record_shards(disk, 3)
    assert recorded_shards(disk) == 3
    broken = CrashDisk()
    broken.put(SHARDS, b"two")
    with pytest.raises(LostRecordsError, match="the file shards is damaged"):
        recorded_shards(broken)


def test_a_shard_of_which_only_the_mark_is_left_counts() -> None:
    disk = CrashDisk()
    for shard in range(2):
        StatusFile(disk, shard).open()
    only = CrashDisk()
    for name in ("status-0.0", "status-0.mark", "status-1.mark"):
        only.put(name, disk.read(name))
    assert shards_on(only, STATUS) == 2
    with pytest.raises(LostRecordsError, match="status-1 is missing: it was durable up to frame 1"):
        StatusFile(only, 1).open()


@pytest.mark.parametrize("engine", [JOURNAL, MIRRORED])
def test_a_worker_makes_no_shard_anew_when_it_is_started_again(tmp_path: Path, engine: str) -> None:
    where = Where(engine=engine, data=tmp_path)
    with held(where, 2, at_least=1, force_empty=False) as (count, lock):
        assert count == 2
        for path in tmp_path.glob("*-1.*"):
            path.unlink()
        worker = attrs.evolve(where, lock=os.dup(lock))
        with (
            pytest.raises(LostRecordsError, match=r"all files of shards \[1\] are missing in "),
            opened(worker, 0, force_empty=False, only=range(1, 2)),
        ):
            pass


def test_records_of_a_transaction_that_is_decided_survive_a_repair() -> None:
    """All octets of one image are zero, and those of the other one follow at the next start."""
    disk = filled(MirroredFile)
    gid = entry(1).gid
    hurt = changed(disk, mirror_0_a=bytes(RECORD_OCTETS * 3))
    assert MirroredFile(hurt, 0).open()[gid].commit
    again = changed(hurt, mirror_0_b=b"")
    file = MirroredFile(again, 0)
    assert file.open()[gid].commit
    file.append([Decided(gid)])
    file.sync()
