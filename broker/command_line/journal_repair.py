"""``understudy journal check --repair``: cuts a damaged journal before the damage, and keeps the damaged files beside it.

What is cut, and why so: ``log/journal_damage.py`` and ``log/journal_repair.py``.
"""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

import attrs

from understudy.broker.command_line.journal_check import check_journal, check_text
from understudy.broker.log.journal_damage import segment_numbers
from understudy.broker.log.journal_repair import Plan, repair, was_repaired
from understudy.broker.log.segment import NoJournalError, segment_name
from understudy.broker.log.storage import REPAIR_NAME
from understudy.broker.plugin_api.journal_notes import after_repair, epoch_of
from understudy.broker.server.files.file_storage import FileStorage

WIDTH: Final = 117
"""Of the lines that `repair_text` wraps."""


def repair_journal(directory: Path) -> dict[str, Any]:
    """Repair the journal in ``directory``, or finish a repair that was begun.

    Returns:
        directory; repaired: None if nothing was to be repaired, else the steps with what was kept and lost; journal: as
        ``check_journal`` finds it afterwards, None if it begins anew.

    Raises:
        NoJournalError: there is no directory, or no segment in it.
        DirectoryLockedError: a broker has the directory.
        JournalDamagedError, JournalFormatError, WrongIdentityError, StorageFullError: as for ``log.journal_repair.repair``.
        PluginError, NoteFormatError: notes of a plugin cannot be read. Nothing was changed.
        OSError: the disk, or a directory of another user.
    """
    if not directory.is_dir():
        raise NoJournalError(f"{directory} is {'no directory' if directory.exists() else 'not there'}")
    _check_is_journal(directory)
    storage = FileStorage(directory)
    try:
        plan = repair(storage, epoch_of)
        there = bool(segment_numbers(storage))
    finally:
        storage.close()
    return {
        "directory": str(directory),
        "repaired": _outcome(plan) if plan is not None else None,
        "journal": check_journal(directory) if there else None,
    }


def _check_is_journal(directory: Path) -> None:
    """Do nothing if a journal of this user is, or was, in the directory: before a lock is made there."""
    storage = FileStorage(directory, read_only=True)
    try:
        numbers = segment_numbers(storage)
        known = numbers or REPAIR_NAME in storage.names() or was_repaired(storage)
    finally:
        storage.close()
    if numbers:
        owner = (directory / segment_name(numbers[0])).lstat().st_uid
        if owner != os.geteuid():
            raise PermissionError(
                f"the journal in {directory} belongs to user {owner}, and this is user {os.geteuid()}: the broker could not open "
                "what a repair makes. Nothing was changed"
            )
    if not known:
        raise NoJournalError(f"there is no journal in {directory}: no file is named like {segment_name(1)}")


def _outcome(plan: Plan) -> dict[str, Any]:
    return {**attrs.asdict(plan), "keeps_nothing": not plan.segment, "aside": list(plan.kept), "kept": plan.kept}


def repair_text(found: dict[str, Any]) -> str:
    """The same for people."""
    done, journal = found["repaired"], found["journal"]
    state = check_text(journal) if journal is not None else f"journal {found['directory']}: empty\n"
    if done is None:
        return f"{state}  repair   nothing to repair; nothing was changed\n"
    lost = (
        f"{done['records']:,} readable records, {done['messages']:,} messages, of {done['transactions']:,} transactions"
    )
    lines = [f"  REPAIRED {done['file']} was damaged at byte {done['position']:,}: {done['reason']}"]
    if done["keeps_nothing"]:
        lines.append(f"           No state stood before the damage: the journal begins anew, empty. Lost: {lost}.")
    else:
        lines.append(f"           The log ends at offset {done['offset']:,} now. Lost behind it: {lost}, up to offset")
        lines.append(f"           {done['lost_offset']:,}, and what could not be read.")
    lines += [f"  kept     {name} as {kept}" for name, kept in done["kept"].items()]
    if done["of_group"]:
        for name, text in after_repair().items():
            lines += wrap(text, WIDTH, initial_indent=f"  {name:<8} ", subsequent_indent=" " * 11)
    return state + "\n".join(lines) + "\n"
