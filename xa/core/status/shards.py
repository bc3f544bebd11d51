"""How many shards a folder of status files has, and whether it has lost one.

Names of files begin with ``status-N.``, of engine `journal`, or ``mirror-N.``, of engine `mirrored`. The file `durable_mark.SHARDS`
holds the number of shards: else a folder whose last shard is gone would look like a smaller one.
"""

from __future__ import annotations

import re
from typing import Final

from understudy.xa.core.errors import LostRecordsError
from understudy.xa.core.status.durable_mark import SHARDS
from understudy.xa.core.status.journal_file import Disk

STATUS: Final = "status"
MIRROR: Final = "mirror"
_FILE: Final = re.compile(r"(status|mirror)-(\d+)\.(\d+|[ab]|mark)")
"""Of one shard; not the ``.new`` of a crash."""


def shards_on(disk: Disk, prefix: str, *, accept_loss: bool = False) -> int:
    """How many shards of one engine a folder has; 0 if it has none. A shard of which only the mark is left counts.

    Args:
        disk: the folder.
        prefix: `STATUS` or `MIRROR`.
        accept_loss: shards that are missing between others count, too.

    Raises:
        LostRecordsError: all files of a shard between others are missing.
    """
    matches = (_FILE.fullmatch(name) for name in disk.names())
    found = {int(match[2]) for match in matches if match is not None and match[1] == prefix}
    count = max(found, default=-1) + 1
    missing = sorted(set(range(count)) - found)
    if missing and not accept_loss:
        raise LostRecordsError(f"there are status files of shards {sorted(found)}, and none of {missing}")
    return count


def is_of(name: str, shard: int) -> bool:
    """True if this is the name of a file of a shard."""
    match = _FILE.fullmatch(name)
    return match is not None and int(match[2]) == shard


def recorded_shards(disk: Disk) -> int:
    """The number of shards that a folder says it has; 0 if it does not say.

    Raises:
        LostRecordsError: the file that says so is damaged.
    """
    if SHARDS not in disk.names():
        return 0
    text = disk.read(SHARDS).strip()
    if not text.isdigit():
        raise LostRecordsError(f"the file {SHARDS} is damaged: how many shards there were cannot be told")
    return int(text)


def record_shards(disk: Disk, count: int) -> None:
    """Say durably how many shards the folder has, when each has a mark."""
    names = disk.names()
    marked = {match[2] for match in map(_FILE.fullmatch, names) if match is not None and match[3] == "mark"}
    if len(marked) < count or (SHARDS in names and disk.read(SHARDS) == b"%d\n" % count):
        return
    new = f"{SHARDS}.new"
    if new in names:  # of a crash
        disk.remove(new)
    disk.append(new, b"%d\n" % count)
    disk.sync(new)
    disk.rename(new, SHARDS)
    disk.sync_names()
