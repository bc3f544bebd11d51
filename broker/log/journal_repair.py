"""The repair of a damaged journal: cut it before the damage, and keep the files as they were beside it.

1. NEW is made: the last segment that is kept, up to the cut, a group with the REPAIRED note, and an empty group, which proves it.
2. REPAIR is made, with the plan. From here on no broker starts, and nothing is planned anew.
3. The damaged segments, and all behind them, get other names: ``0000000000000007.journal.damaged-1``.
4. NEW gets the name of the segment that it replaces.
5. REPAIR is removed.

Each step is synced, files and directory, before the next one is begun. A process that dies before the end of 2 has changed nothing
that a start looks at. After that the next run goes on with the plan, for each step sees whether it was done.

Refused: to cut in place (the damaged octets are evidence, and may be all that is left of a message); to keep what stands behind the
damage (records there may take back, or need, what is lost); to let a repaired member resume (it has acknowledged what it lost).
"""

from __future__ import annotations

import json
from typing import Any, Final

import attrs

from understudy.broker.log import frame as frames
from understudy.broker.log import journal_gate
from understudy.broker.log.journal_damage import Count, Cut, EpochOf, Survey, survey
from understudy.broker.log.journal_recovery import scan
from understudy.broker.log.repaired_note import RepairedNote
from understudy.broker.log.segment import (
    GROUP_BYTES,
    SEGMENT_HEADER_BYTES,
    GroupHeader,
    JournalFormatError,
    SegmentHeader,
    align_up,
    segment_name,
    segment_number,
)
from understudy.broker.log.storage import REPAIR_NAME, RESERVE_NAME, File, Storage, StorageFullError

NEW_NAME: Final = "REPAIR-NEW"
_KEPT: Final = ".damaged-"
_PLAN_FORMAT: Final = 1
_PLAN_BYTES: Final = 4096
_EXTRA_BLOCKS: Final = 4
"""Room for the two groups of a repair in a segment that is full."""
_CHUNK_BYTES: Final = 1 << 20


@attrs.frozen(kw_only=True)
class Plan:
    """The decided steps of a repair, as REPAIR keeps them.

    Attributes:
        number: of the repair; the kept files bear it.
        segment: the segment that is replaced; 0: none, the journal begins anew.
        aside: numbers of the segments that are set aside.
        file, position, reason: the damage.
        offset: the last log offset that is kept.
        lost_offset: the last log offset that was read behind the cut.
        records, messages, transactions: how many were read behind the cut.
        of_group: the journal is that of a member of a group.
    """

    number: int
    segment: int
    aside: list[int]
    file: str
    position: int
    reason: str
    offset: int
    lost_offset: int
    records: int
    messages: int
    transactions: int
    of_group: bool

    @property
    def kept(self) -> dict[str, str]:
        """Names of the segments that are set aside, each with the name under which it is kept."""
        return {segment_name(each): f"{segment_name(each)}{_KEPT}{self.number}" for each in self.aside}

    def encode(self) -> bytes:
        """The octets of the file REPAIR."""
        payload = json.dumps({"format": _PLAN_FORMAT, **attrs.asdict(self)})
        return frames.encode_note(journal_gate.REPAIRED, payload.encode())

    @classmethod
    def decode(cls, data: bytes) -> Plan | None:
        """The plan in these octets; None if they were not all written.

        Raises:
            JournalFormatError: a newer program has written it.
        """
        try:
            _, payload = frames.verify_note(data[: frames.frame_length(data)])
        except frames.CorruptFrameError:
            return None
        found: dict[str, Any] = json.loads(payload)
        if (form := found.pop("format")) != _PLAN_FORMAT:
            raise JournalFormatError(REPAIR_NAME, "format of a repair", form, _PLAN_FORMAT)
        return cls(**found)


def repair(storage: Storage, epoch_of: EpochOf) -> Plan | None:
    """Repair a journal, or finish a repair that was begun; None if nothing is to be repaired.

    Args:
        storage: the directory, locked by the caller.
        epoch_of: of notes of plugins (``plugin_api.journal_notes.epoch_of``).

    Raises:
        JournalDamagedError: it is damaged in yet another way after the repair; the next one goes on from there.
        JournalFormatError, WrongIdentityError, NoteFormatError: as for `survey`. Nothing was changed.
        StorageFullError: there is no room for a copy of one segment. Nothing was changed.
        OSError: the disk.
    """
    plan = _begun(storage)
    if plan is None:
        found = survey(storage, epoch_of=epoch_of)
        if found is None:
            return None
        plan = _begin(storage, found)
    _set_aside(storage, plan)
    if NEW_NAME in storage.names():
        storage.rename(NEW_NAME, segment_name(plan.segment))
        storage.sync_directory()
    storage.remove(REPAIR_NAME)
    storage.sync_directory()
    if plan.segment:
        scan(storage, Count())
    return plan


def was_repaired(storage: Storage) -> bool:
    """True if files of an earlier repair are kept in the directory."""
    return any(_number_of(name) for name in storage.names())


def _number_of(name: str) -> int:
    """The number of the repair that has set this file aside; 0 if none has."""
    stem, _, number = name.rpartition(_KEPT)
    return int(number) if segment_number(stem) is not None and number.isdecimal() and number.isascii() else 0


def _begun(storage: Storage) -> Plan | None:
    """The plan of a repair that was begun. What is left of one that had not got to its plan is removed."""
    names = storage.names()
    plan = None
    if REPAIR_NAME in names:
        file = storage.open(REPAIR_NAME)
        try:
            plan = Plan.decode(file.read(0, file.size))
        finally:
            file.close()
    if plan is not None:
        storage.sync_directory()  # a rename that was seen, and not synced, may not count as done
        return plan
    leftovers = [name for name in (NEW_NAME, REPAIR_NAME) if name in names]
    for name in leftovers:
        storage.remove(name)
    if leftovers:
        storage.sync_directory()
    return None


def _begin(storage: Storage, found: Survey) -> Plan:
    """Make NEW and REPAIR."""
    cut, lost = found.cut, found.lost
    plan = Plan(
        number=1 + max(map(_number_of, storage.names()), default=0),
        segment=cut.segment,
        aside=found.aside,
        file=found.damage.file,
        position=found.damage.position,
        reason=found.damage.reason,
        offset=cut.offset,
        lost_offset=lost.last_offset,
        records=sum(lost.records.values()),
        messages=lost.messages,
        transactions=len(lost.transactions),
        of_group=found.before.of_group or lost.of_group,
    )
    if cut.segment:
        epoch = max(found.before.epoch, lost.epoch)
        _make_new(storage, cut, RepairedNote(epoch, cut.offset, max(lost.last_offset, cut.offset), plan.of_group))
    data = plan.encode()
    try:
        file = _create(storage, REPAIR_NAME, align_up(len(data), _PLAN_BYTES))
    except StorageFullError:
        if NEW_NAME in storage.names():
            storage.remove(NEW_NAME)
        raise
    try:
        file.write([data], 0)
        file.sync()
    finally:
        file.close()
    storage.sync_directory()
    return plan


def _set_aside(storage: Storage, plan: Plan) -> None:
    """Give the damaged segments, and all behind them, the names under which they are kept."""
    names = storage.names()
    for name, kept in plan.kept.items():
        if kept not in names and name in names:
            storage.rename(name, kept)
    storage.sync_directory()


def _create(storage: Storage, name: str, size_bytes: int) -> File:
    """Make a file; if there is no room, the reserve goes first: the next start makes it again."""
    try:
        return storage.create(name, size_bytes)
    except StorageFullError:
        if RESERVE_NAME not in storage.names():
            raise
    storage.remove(RESERVE_NAME)
    storage.sync_directory()
    return storage.create(name, size_bytes)


def _make_new(storage: Storage, cut: Cut, note: RepairedNote) -> None:
    """Make the segment that takes the place of the cut one, durably."""
    old = storage.open(segment_name(cut.segment))
    try:
        header = SegmentHeader.decode(old.read(0, SEGMENT_HEADER_BYTES), segment_name(cut.segment))
        assert header is not None, f"{segment_name(cut.segment)} was read, and has no header now"
        header = attrs.evolve(header, size_bytes=header.size_bytes + _EXTRA_BLOCKS * header.alignment)
        new = _create(storage, NEW_NAME, header.size_bytes)
        try:
            new.write([header.encode()], 0)
            for at in range(SEGMENT_HEADER_BYTES, cut.position, _CHUNK_BYTES):
                new.write([old.read(at, min(_CHUNK_BYTES, cut.position - at))], at)
            _end(new, header, cut, frames.encode_note(journal_gate.REPAIRED, note.encode()))
            new.sync()
        finally:
            new.close()
    finally:
        old.close()
    storage.sync_directory()


def _end(new: File, header: SegmentHeader, cut: Cut, note: bytes) -> None:
    """Write the group that says where the frames end, and why, and the empty one that proves it."""
    at, previous_end = align_up(cut.position, header.alignment), cut.position
    for sequence, data in ((cut.sequence + 1, note), (cut.sequence + 2, b"")):
        group = GroupHeader(
            sequence=sequence,
            segment=header.number,
            position=at,
            length=len(data),
            previous_end=previous_end,
            floor=cut.floor,
            salt=header.salt,
        )
        assert GROUP_BYTES + len(data) <= header.alignment, "a group of a repair is longer than a block"
        new.write([(group.encode(header.format) + data).ljust(header.alignment, b"\0")], at)
        at, previous_end = at + header.alignment, group.end
