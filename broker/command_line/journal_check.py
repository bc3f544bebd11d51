"""``understudy journal check``: what a data directory holds, and whether it may be believed. Nothing is changed.

It reads as a start would (`journal_recovery.scan`), without the lock: the broker may run. Of its journal the last group is then in
motion, and may look torn. And what a start would call damage may be what was written, or dropped, between two reads of one scan: a
group's note was not there yet, and then a later one was. Damage stands still, so it is believed when a second scan finds it at the
same byte: the broker has written that by then, for it begins no group before the one before it is synced.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

import attrs

from understudy.broker.log import frame, record
from understudy.broker.log.frame import BatchHeader
from understudy.broker.log.journal_damage import segment_numbers, survey
from understudy.broker.log.journal_recovery import ScanReport, TornTail, scan
from understudy.broker.log.segment import (
    SEGMENT_HEADER_BYTES,
    JournalDamagedError,
    NoJournalError,
    SegmentHeader,
    segment_name,
)
from understudy.broker.log.storage import REPAIR_NAME
from understudy.broker.server.files.file_storage import FileStorage

SCANS: Final = 5
"""So often a journal is read that looks different each time; then its broker writes faster than it can be read."""


class Tally:
    """Counts what a scan shows it; knows how far the log was read when the scan fails.

    Attributes:
        records: how many of each kind, by name; those of dead batches, which a cut ended, too.
        epochs: the epochs of the batches, in the order in which they came.
        last_offset: of the last batch; a cut takes it back.
    """

    def __init__(self) -> None:
        self.records: Counter[str] = Counter()
        self.epochs: list[int] = []
        self.last_offset = 0

    def on_batch(self, header: BatchHeader, data: bytes) -> None:
        if not self.epochs or self.epochs[-1] != header.epoch:
            self.epochs.append(header.epoch)
        self.last_offset = header.first_offset + header.count - 1
        at = frame.BATCH_HEADER_BYTES
        while at + record.HEAD.size <= len(data):
            byte, length = record.HEAD.unpack_from(data, at)
            kind = byte & ~record.TRANSIENT
            count = int.from_bytes(data[at + 5 : at + 9], "big") if kind == record.HOLE else 1
            self.records[record.KIND_NAMES.get(kind, f"unknown kind {kind}")] += count
            at += record.HEAD.size + length

    def on_note(self, kind: int, payload: bytes, place: int = 0) -> None:
        if kind == frame.KIND_CUT:
            self.last_offset, _ = frame.decode_cut(payload)


@attrs.frozen(kw_only=True)
class Reading:
    """One scan.

    Attributes:
        numbers: of the segments that were listed.
        tally: what it was shown.
        report: None if it did not get to the end.
        damage: why it did not; of a broker that runs it may be none.
    """

    numbers: list[int]
    tally: Tally
    report: ScanReport | None = None
    damage: JournalDamagedError | None = None

    def stands_where(self, before: Reading) -> bool:
        """The damage is where the scan ``before`` found it."""
        one, other = self.damage, before.damage
        return one is not None and other is not None and (one.file, one.position) == (other.file, other.position)


def check_journal(directory: Path) -> dict[str, Any]:
    """Read the whole journal in ``directory``.

    Returns:
        directory, group, broker; damaged: None, or file, position and reason; torn: the same; segments, bytes, groups, batches,
        notes and first_offset (None if its end was not reached: not known); last_offset, epochs, records; warnings; doubt: why
        files may be missing behind the last one, "" if that is not so; loss: what a repair would do, None if nothing is damaged.

    Raises:
        NoJournalError: there is no directory, or no segment in it.
        JournalFormatError, WrongIdentityError: a newer program's, or segments of two brokers.
    """
    if not directory.is_dir():
        raise NoJournalError(f"{directory} is {'no directory' if directory.exists() else 'not there'}")
    storage = FileStorage(directory, read_only=True)
    try:
        reading, stands = _read_until_it_stands(storage)
        found: dict[str, Any] = {"directory": str(directory), **_owner(storage, reading.numbers)}
        found["loss"] = _loss(storage, reading.damage) if reading.damage is not None and stands else None
    finally:
        storage.close()
    report, tally, damage = reading.report, reading.tally, reading.damage
    torn = report.torn if report is not None else None
    if damage is not None and not stands:
        torn, damage = _in_motion(damage), None
    counted = {name: getattr(report, name, None) for name in ("bytes", "groups", "batches", "notes", "first_offset")}
    return {
        **found,
        **counted,
        "damaged": _place(damage),
        "torn": _place(torn),
        "segments": report.segments if report is not None else len(reading.numbers),
        "last_offset": report.last_offset if report is not None else tally.last_offset,
        "epochs": tally.epochs,
        "records": dict(sorted(tally.records.items())),
        "warnings": list(report.warnings) if report is not None else [],
        "doubt": report.doubt if report is not None else "",
    }


def _loss(storage: FileStorage, damage: JournalDamagedError) -> dict[str, Any] | None:
    """The gain and the loss of a repair; None if one was begun and is to be finished, or a listed file leads nowhere."""
    try:
        found = survey(storage, damage)
    except (JournalDamagedError, FileNotFoundError):
        return None
    if found is None:
        return None
    return {
        "keeps_nothing": not found.cut.segment,
        "offset": found.cut.offset,
        "lost_offset": found.lost.last_offset,
        "records": sum(found.lost.records.values()),
        "messages": found.lost.messages,
        "transactions": len(found.lost.transactions),
        "aside": [segment_name(number) for number in found.aside],
        "text": str(found),
    }


def _read_until_it_stands(storage: FileStorage) -> tuple[Reading, bool]:
    """The last scan, and whether the damage that it found is believed."""
    reading = _read(storage)
    for _ in range(SCANS - 1):
        if reading.damage is None:
            break
        before, reading = reading, _read(storage)
        if reading.stands_where(before):
            return reading, True
    return reading, False


def _read(storage: FileStorage) -> Reading:
    numbers = segment_numbers(storage)
    if not numbers and REPAIR_NAME not in storage.names():
        raise NoJournalError(f"there is no journal in {storage}: no file is named like {segment_name(1)}")
    tally = Tally()
    try:
        return Reading(numbers=numbers, tally=tally, report=scan(storage, tally))
    except JournalDamagedError as error:
        damage = error
    except FileNotFoundError as error:  # dropped since it was listed
        damage = JournalDamagedError(storage, Path(error.filename).name, 0, "the file is listed, and not there")
    return Reading(numbers=numbers, tally=tally, damage=damage)


def _in_motion(damage: JournalDamagedError) -> TornTail:
    reason = f"its broker has written, or dropped, what {SCANS} scans were about to read; what follows was not read"
    return TornTail(file=damage.file, position=damage.position, reason=reason)


def _owner(storage: FileStorage, numbers: list[int]) -> dict[str, str | None]:
    """Whose journal it is, by the first segment that says so."""
    for number in numbers:
        try:
            file = storage.open(segment_name(number))
        except FileNotFoundError:
            continue  # dropped meanwhile
        try:
            header = SegmentHeader.decode(file.read(0, SEGMENT_HEADER_BYTES), segment_name(number))
        finally:
            file.close()
        if header is not None:
            return {"group": header.identity.group_id, "broker": header.identity.broker_id}
    return {"group": None, "broker": None}


def _place(found: JournalDamagedError | TornTail | None) -> dict[str, Any] | None:
    return None if found is None else {"file": found.file, "position": found.position, "reason": found.reason}


def check_text(found: dict[str, Any]) -> str:
    """The same for people."""
    owner = (
        f"broker {found['broker']} of group {found['group']}"
        if found["broker"] is not None
        else "nobody can tell whose"
    )
    lines = [f"journal {found['directory']}: {owner}"]
    damaged, torn = found["damaged"], found["torn"]
    if found["bytes"] is not None:
        size = f"{found['segments']} segments, {found['bytes']:,} bytes"
        lines.append(
            f"  holds    {size}: {found['groups']:,} groups, {found['batches']:,} batches, {found['notes']:,} notes"
        )
    log = f"up to offset {found['last_offset']:,}"
    if found["first_offset"] is not None:
        log = f"from offset {found['first_offset']:,} {log}"
    lines.append(f"  log      {log}, epochs {', '.join(map(str, found['epochs'])) or 'none'}")
    lines.extend(f"           {count:>12,}  {name}" for name, count in found["records"].items())
    lines.extend(f"  warning  {warning}" for warning in found["warnings"])
    if damaged is not None:
        lines.append(f"  DAMAGED  {damaged['file']} at byte {damaged['position']:,}: {damaged['reason']}")
        lines += [
            "           It was synced once, and may have been answered for: the broker does not start with it. What stands above",
            "           is what can be read before it. Keep the directory; see docs/configuration.md, A damaged journal.",
        ]
        if found["loss"] is not None:
            lines.append(f"  --repair {found['loss']['text']}")
    elif torn is not None:
        lines += [
            f"  torn     {torn['file']} at byte {torn['position']:,}: {torn['reason']}",
            "           What was being written when the process died, and nobody was told of: the next start cuts it. The end of a",
            "           journal whose disk has lost what was synced looks the same: other brokers of the group know more.",
            "           (Of a broker that runs, this is what it is writing now.)",
        ]
    elif found["doubt"]:
        lines += [
            f"  DOUBTFUL {found['doubt']}",
            "           A crash at one moment looks like that, and so does a file that was removed. More may have stood behind",
            f"           offset {found['last_offset']:,}; other brokers of the group know, and a longer log leads.",
        ]
    else:
        lines.append("  whole    every byte that was synced is there")
    return "\n".join(lines) + "\n"
