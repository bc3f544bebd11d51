"""The repair of a damaged journal: what it keeps, what it says is lost, and a power cut at each of its steps."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.unit.log.journal_kit import SMALL, fill, new_journal, open_journal
from understudy.broker.log import frame as frames
from understudy.broker.log import journal_gate, journal_repair
from understudy.broker.log.journal_damage import of_no_plugin, survey
from understudy.broker.log.journal_gate import NoteFormatError
from understudy.broker.log.journal_recovery import scan
from understudy.broker.log.journal_repair import NEW_NAME, Plan, repair, was_repaired
from understudy.broker.log.repaired_note import RepairedNote
from understudy.broker.log.segment import JournalDamagedError, JournalFormatError, segment_name
from understudy.broker.log.storage import REPAIR_NAME, RESERVE_NAME, StorageFullError
from understudy.testing.disk import MemoryStorage, PowerCutError

ONE, TWO, THREE = map(segment_name, (1, 2, 3))
GROUPS = 32
"""Thirteen or so fit into a segment, so there are three segments."""

Damage = Callable[[MemoryStorage, list[bytes]], None]


def journal(groups: int = GROUPS) -> tuple[MemoryStorage, list[bytes]]:
    """A disk whose broker was killed, and the batches on it."""
    disk = MemoryStorage("/data/b1")
    batches = fill(new_journal(disk), groups)
    disk.crash_soft()
    return disk, batches


def place(disk: MemoryStorage, name: str, frame: bytes) -> int:
    return disk.content(name).index(frame)


def first_of(disk: MemoryStorage, name: str, batches: list[bytes]) -> int:
    """The number of the first batch in a segment."""
    content = disk.content(name)
    return next(number for number, each in enumerate(batches) if each in content)


def overwrite(disk: MemoryStorage, name: str, at: int, data: bytes) -> None:
    file = disk.open(name)
    file.write([data], at)
    file.sync()


def flip(offset: int, name: str, beside: int) -> Damage:
    """Damages one octet of, or before, the batch ``offset`` of a segment, counted from its first one."""

    def damage(disk: MemoryStorage, batches: list[bytes]) -> None:
        batch = batches[first_of(disk, name, batches) + offset]
        disk.flip_bit(name, place(disk, name, batch) + beside, 3)

    return damage


def hole(disk: MemoryStorage, batches: list[bytes]) -> None:
    """Two groups of the second segment read as zeros."""
    at = place(disk, TWO, batches[first_of(disk, TWO, batches) + 2])
    overwrite(disk, TWO, at // 512 * 512, bytes(1024))


def truncated(disk: MemoryStorage, batches: list[bytes]) -> None:
    disk.truncate(TWO, place(disk, TWO, batches[first_of(disk, TWO, batches) + 3]) + 100)


DAMAGES: dict[str, tuple[Damage, int, str, int]] = {
    "checksum of a frame": (flip(3, TWO, 60), 3, TWO, 2),
    "magic of a frame": (flip(3, TWO, 0), 3, TWO, 2),
    "length of a frame": (flip(3, TWO, 33), 3, TWO, 2),
    "note of a group": (flip(3, TWO, -20), 3, TWO, 2),
    "an earlier segment": (flip(4, ONE, 60), 4, ONE, 1),
    "the newest segment": (flip(1, THREE, 60), 1, THREE, 3),
    "header of a segment": (lambda disk, _: disk.flip_bit(TWO, 40, 0), 0, TWO, 1),
    "first frame of a segment": (
        lambda disk, _: disk.flip_bit(TWO, disk.content(TWO).index(b"checkpoint"), 0),
        0,
        TWO,
        1,
    ),
    "a missing segment": (lambda disk, _: disk.lose_file(TWO), 0, TWO, 1),
    "a hole": (hole, 2, TWO, 2),
    "a file that is too short": (truncated, 3, TWO, 2),
}
"""Damage; how many batches of which segment stand before it; the segment that is cut."""


@pytest.mark.parametrize("what", DAMAGES)
def test_a_journal_is_cut_before_the_damage(what: str) -> None:
    """A start refuses it; the repair keeps each batch before the damage, and each damaged file; the journal goes on."""
    damage, behind, name, cut = DAMAGES[what]
    disk, batches = journal()
    kept = first_of(disk, name, batches) + behind
    damage(disk, batches)
    with pytest.raises(JournalDamagedError):
        open_journal(disk)
    before = {each: disk.content(each) for each in disk.names()}
    found = survey(disk)
    assert found is not None
    assert (found.cut.segment, found.cut.offset) == (cut, kept)
    assert f"the log can be kept up to offset {kept}; lost behind it: " in str(found.error)
    assert "`understudy journal check --repair /data/b1` does that and keeps the damaged files" in str(found.error)
    assert {each: disk.content(each) for each in disk.names()} == before

    plan = repair(disk, of_no_plugin)
    assert plan is not None
    assert (plan.segment, plan.offset, plan.lost_offset) == (cut, kept, GROUPS)
    assert [disk.content(each) for each in plan.kept.values()] == [before[each] for each in plan.kept]
    assert set(disk.names()) == {*(set(before) - set(plan.kept)), segment_name(cut), *plan.kept.values()}
    recorder, recovered = open_journal(disk)
    assert recorder.batches == batches[:kept]
    kind, payload = frames.verify_note(recorder.frames[-1])  # the kit's checkpoint has a kind of a plugin
    assert (kind, RepairedNote.decode(payload)) == (journal_gate.REPAIRED, RepairedNote(1, kept, GROUPS, of_group=True))

    assert repair(disk, of_no_plugin) is None
    more = fill(recovered.journal, GROUPS, first=kept + 1)
    recovered.journal.close()
    assert open_journal(disk)[0].batches == batches[:kept] + more


def test_what_stands_behind_is_counted_though_it_begins_in_the_damaged_group() -> None:
    """A group of three batches is damaged in the second: the third is found by the length that the second states."""
    disk = MemoryStorage()
    log = new_journal(disk)
    first = fill(log, 2)
    group = [frames.encode_batch(4, 3 + at, 1, 0, [bytes((2,)) + (9).to_bytes(4) + bytes(9)]) for at in range(3)]
    for each in group:
        log.append(each)
    log.sync_now()
    fill(log, 2, first=6)
    disk.crash_soft()
    at = place(disk, ONE, group[1])
    disk.flip_bit(ONE, at + 42, 0)
    found = survey(disk)
    assert found is not None
    assert (found.cut.offset, found.lost.last_offset, found.lost.epoch) == (3, 7, 4)
    assert found.lost.unreadable_frames == 1
    assert found.damage.position == at
    repair(disk, of_no_plugin)
    assert open_journal(disk)[0].batches == [*first, group[0]]


def test_a_journal_whose_older_segments_have_gone_since_is_no_state() -> None:
    """The floor of the cut lies below the oldest file: what was taken away behind the damage has taken files before it."""
    disk = MemoryStorage("/data/b1")
    log = new_journal(disk)
    batches = fill(log, GROUPS)
    assert log.drop_before(first_of(disk, TWO, batches)) == 1
    log.close()
    disk.crash_soft()
    newest, older = disk.clone(), disk.clone()
    older.flip_bit(TWO, place(disk, TWO, batches[15]) + 60, 0)
    found = survey(older)
    assert found is not None
    assert "what stands before the damage is no state, so a repair keeps nothing" in str(found.error)
    plan = repair(older, of_no_plugin)
    assert plan is not None
    assert (plan.segment, sorted(plan.kept)) == (0, [TWO, THREE])
    assert not [name for name in older.names() if name.endswith(".journal")]
    assert was_repaired(older)
    assert open_journal(older)[0].frames == []
    # The floor is stated in the newest segment: damage behind that leaves a state.
    more = new_journal(newest)
    fill(more, 2, first=GROUPS + 1)
    newest.crash_soft()
    newest.flip_bit(THREE, newest.content(THREE).rindex(f"1/{GROUPS + 1}/1.".encode()), 0)
    plan = repair(newest, of_no_plugin)
    assert plan is not None
    assert (plan.segment, plan.offset) == (3, GROUPS)
    assert open_journal(newest)[0].batches == batches[first_of(newest, TWO, batches) : GROUPS]


def test_a_damaged_first_header_leaves_nothing() -> None:
    disk, _ = journal()
    disk.flip_bit(ONE, 30, 0)
    plan = repair(disk, of_no_plugin)
    assert plan is not None
    assert (plan.segment, len(plan.kept), plan.lost_offset) == (0, 3, GROUPS)
    assert repair(disk, of_no_plugin) is None


def test_a_torn_tail_and_a_whole_journal_are_left_alone() -> None:
    disk, batches = journal()
    assert repair(disk, of_no_plugin) is None
    disk.flip_bit(THREE, place(disk, THREE, batches[-1]) + 60, 0)
    before = {name: disk.content(name) for name in disk.names()}
    assert repair(disk, of_no_plugin) is None
    assert {name: disk.content(name) for name in disk.names()} == before
    assert open_journal(disk)[0].batches == batches[:-1]


def test_files_of_an_earlier_repair_are_never_replaced() -> None:
    disk, batches = journal()
    disk.flip_bit(TWO, place(disk, TWO, batches[20]) + 60, 0)
    first = repair(disk, of_no_plugin)
    assert first is not None
    kept = {name: disk.content(name) for name in first.kept.values()}
    fill(open_journal(disk)[1].journal, GROUPS, first=21)
    disk.crash_soft()
    disk.flip_bit(TWO, place(disk, TWO, batches[15]) + 60, 0)
    second = repair(disk, of_no_plugin)
    assert second is not None
    assert (second.number, second.offset) == (2, 15)
    assert set(second.kept.values()).isdisjoint(kept)
    assert {name: disk.content(name) for name in kept} == kept
    assert open_journal(disk)[0].batches == batches[:15]


def test_a_full_segment_has_room_for_the_notes_of_a_repair() -> None:
    """The last group of a segment that is full to its last block is damaged."""
    for size in range(120, 460, 20):
        disk = MemoryStorage()
        batches = fill(new_journal(disk), 60, size=size)
        disk.crash_soft()
        last = max(at for at, each in enumerate(batches) if each in disk.content(ONE))
        disk.flip_bit(ONE, place(disk, ONE, batches[last]) + 60, 0)
        plan = repair(disk, of_no_plugin)
        assert plan is not None
        assert plan.offset == last
        assert open_journal(disk)[0].batches == batches[:last]


def damaged_in_the_middle() -> tuple[MemoryStorage, list[bytes]]:
    disk, batches = journal()
    disk.flip_bit(TWO, place(disk, TWO, batches[15]) + 60, 0)
    return disk, batches[:15]


def damaged_in_the_newest() -> tuple[MemoryStorage, list[bytes]]:
    disk, batches = journal()
    at = first_of(disk, THREE, batches)
    disk.flip_bit(THREE, place(disk, THREE, batches[at]) + 60, 0)
    return disk, batches[:at]


def with_nothing_to_keep() -> tuple[MemoryStorage, list[bytes]]:
    disk, _ = journal()
    disk.flip_bit(ONE, 30, 0)
    return disk, []


@pytest.mark.parametrize("made", [damaged_in_the_middle, damaged_in_the_newest, with_nothing_to_keep])
def test_a_power_cut_at_any_step_starts_no_broker_and_the_next_run_finishes(
    made: Callable[[], tuple[MemoryStorage, list[bytes]]],
) -> None:
    """After each operation, with twelve choices of what the disk has kept, and a second cut in the run that finishes."""
    whole, kept = made()
    damaged = {name: whole.content(name) for name in whole.names()}
    whole.power_cut_in = None
    states = finished = 0
    at = 0
    while True:
        for seed in range(12):
            disk, rng = whole.clone(), Random(f"{at}/{seed}")
            disk.power_cut_in = at
            try:
                repair(disk, of_no_plugin)
            except PowerCutError:
                disk.crash(rng)
            else:
                assert at > 8
                assert finished > 0
                return
            states += 1
            disk.power_cut_in = rng.randrange(12)
            try:
                open_journal_refused_or_cut(disk, kept)
                repair(disk, of_no_plugin)
            except PowerCutError:
                disk.crash(rng)
            disk.power_cut_in = None
            open_journal_refused_or_cut(disk, kept)
            plan = repair(disk, of_no_plugin)
            finished += plan is not None
            assert open_journal(disk)[0].batches == kept, f"cut at operation {at}, seed {seed}"
            assert not {REPAIR_NAME, NEW_NAME} & set(disk.names())
            files = [name for name in disk.names() if ".damaged-" in name]
            assert files
            assert [disk.content(name) for name in files] == [damaged[name.partition(".damaged-")[0]] for name in files]
        at += 1


def open_journal_refused_or_cut(disk: MemoryStorage, kept: list[bytes]) -> None:
    """A start, in the midst of a repair: it is refused, or the repair was over. It changes nothing else."""
    copy = disk.clone()
    copy.power_cut_in = None
    try:
        recorder, _ = open_journal(copy)
    except JournalDamagedError:
        return
    assert recorder.batches == kept
    assert any(".damaged-" in name for name in disk.names())


def test_a_repair_that_was_begun_is_said_so() -> None:
    disk, _ = damaged_in_the_middle()
    disk.power_cut_in = 12
    with pytest.raises(PowerCutError):
        repair(disk, of_no_plugin)
    disk.crash_soft()
    assert REPAIR_NAME in disk.names()
    with pytest.raises(
        JournalDamagedError, match="not finished: `understudy journal check --repair /data/b1` finishes it"
    ):
        open_journal(disk)


def test_without_room_for_a_copy_the_reserve_goes_and_else_nothing() -> None:
    disk, kept = damaged_in_the_middle()
    disk.full = True
    before = {name: disk.content(name) for name in disk.names()}
    with pytest.raises(StorageFullError):
        repair(disk, of_no_plugin)
    assert {name: disk.content(name) for name in disk.names()} == before
    disk.full = False
    disk.create(RESERVE_NAME, 32 << 10)
    disk.full = True
    assert repair(disk, of_no_plugin) is not None
    assert RESERVE_NAME not in disk.names()
    disk.full = False
    assert open_journal(disk)[0].batches == kept


def test_a_plan_of_a_newer_program_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, _ = damaged_in_the_middle()
    monkeypatch.setattr(journal_repair, "_PLAN_FORMAT", 2)
    disk.power_cut_in = 12
    with pytest.raises(PowerCutError):
        repair(disk, of_no_plugin)
    disk.crash_soft()
    monkeypatch.undo()
    with pytest.raises(JournalFormatError, match="format of a repair 2"):
        repair(disk, of_no_plugin)


def test_a_note_of_a_newer_format_is_refused() -> None:
    payload = RepairedNote(3, 10, 20, True, True).encode()
    assert RepairedNote.decode(payload) == RepairedNote(3, 10, 20, True, True)
    with pytest.raises(NoteFormatError, match="note of a repair"):
        RepairedNote.decode(bytes((2,)) + payload[1:])


@pytest.mark.parametrize("kind", [frames.FIRST_OWNER_KIND, frames.FIRST_BOUND_KIND, frames.LAST_KIND])
def test_a_journal_of_a_plugin_is_known_by_its_notes(kind: int) -> None:
    """Notes of a plugin before the damage, or behind it, are known by their kind; the plugin says which epoch they state."""

    def epoch_of(noted: int, payload: bytes) -> int:
        assert noted == kind
        return int.from_bytes(payload)

    for notes_before in (True, False):
        disk = MemoryStorage()
        log = new_journal(disk, SMALL)
        other = frames.encode_note(journal_gate.AGAIN, b"other")
        plugins = frames.encode_note(kind, bytes((7,)))
        log.append(plugins if notes_before else other)
        log.sync_now()
        batches = fill(log, 3)
        log.append(other if notes_before else plugins)
        log.sync_now()
        disk.crash_soft()
        disk.flip_bit(ONE, place(disk, ONE, batches[1]) + 60, 0)
        plan = repair(disk, epoch_of)
        assert plan is not None
        assert plan.of_group
        payload = open_journal(disk)[0].frames[-1][frames.NOTE_HEADER_BYTES :]
        assert RepairedNote.decode(payload) == RepairedNote(7, 1, 3, True)


@pytest.mark.parametrize("damaged", [1, 3], ids=["note_lost", "note_kept"])
def test_a_second_repair_knows_what_the_first_one_said(damaged: int) -> None:
    """The mark of a group, and the epoch, stood in what the first repair has cut off."""
    disk = MemoryStorage()
    log = new_journal(disk, SMALL)
    batches = fill(log, 3)
    log.append(frames.encode_note(frames.FIRST_OWNER_KIND, b"of a plugin"))
    log.sync_now()
    disk.crash_soft()
    disk.flip_bit(ONE, place(disk, ONE, batches[2]) + 60, 0)
    assert repair(disk, lambda _kind, _payload: 7) is not None
    batches[2:] = fill(open_journal(disk)[1].journal, 4, first=3)
    disk.crash_soft()
    disk.flip_bit(ONE, place(disk, ONE, batches[damaged]) + 60, 0)
    plan = repair(disk, of_no_plugin)
    assert plan is not None
    assert plan.of_group
    payload = open_journal(disk)[0].frames[-1][frames.NOTE_HEADER_BYTES :]
    note = RepairedNote.decode(payload)
    assert (note.epoch, note.of_group) == (7, True)


def test_a_plan_survives_its_octets() -> None:
    disk, _ = damaged_in_the_middle()
    plan = repair(disk, of_no_plugin)
    assert plan is not None
    assert Plan.decode(plan.encode() + bytes(100)) == plan
    assert Plan.decode(plan.encode()[:-1] + bytes(101)) is None
    assert Plan.decode(bytes(4096)) is None
    scan(disk, open_journal(disk)[0])
