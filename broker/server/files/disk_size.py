"""The disk space of a data directory: how large the reserve is, and which disk is too small for a broker at all.

An empty broker needs ``least_bytes``. With less it would refuse new work for ever, and nobody would know why.
"""

from __future__ import annotations

from typing import Final

import structlog

from understudy.broker.config.schema import JournalConfig
from understudy.broker.errors import UnderstudyError
from understudy.broker.server.files.file_storage import FileStorage

MIB: Final = 1 << 20
MOST_RESERVED_BYTES: Final = 256 * MIB
RESERVED_FRACTION: Final = 8
"""Of the disk, one part in so many is reserved, if that is less than MOST_RESERVED_BYTES and no less than a segment."""

OTHER_FILES_BYTES: Final = MIB
"""Room for what is no journal: the lock, the ports file, the directory itself."""

_log: Final = structlog.get_logger()


class DiskTooSmallError(UnderstudyError):
    """The disk cannot hold what an empty broker needs, whoever makes room on it."""


def reserve_bytes(section: JournalConfig, capacity_bytes: int) -> int:
    """The reserve on a disk of that capacity: as the operator says, else an eighth of it.

    A reserve that is given up has to make room for a whole segment, so by itself it is never smaller than one.
    """
    if section.reserve_bytes is not None:
        return section.reserve_bytes
    return min(MOST_RESERVED_BYTES, max(capacity_bytes // RESERVED_FRACTION, section.segment_bytes))


def least_bytes(reserve: int, segment_bytes: int) -> int:
    """The least space of an empty broker: the reserve, what has to be free beside it, the newest segment and the next one."""
    free = max(reserve, segment_bytes) if reserve else 0
    return reserve + free + 2 * segment_bytes + OTHER_FILES_BYTES


def check_disk(storage: FileStorage, section: JournalConfig) -> None:
    """Say at the start what would else be found out one refused message at a time.

    Too little room on a disk that is large enough is logged as an error, and the broker starts: what takes messages out goes on.

    Raises:
        DiskTooSmallError: with the numbers, and the keys to change.
    """
    capacity = storage.capacity_bytes()
    reserve = reserve_bytes(section, capacity)
    needed = least_bytes(reserve, section.segment_bytes)
    free = storage.free_bytes()
    keys = (
        f"journal.reserve_bytes ({_mib(reserve)} MiB, kept and as much free beside it) and journal.segment_bytes "
        f"({_mib(section.segment_bytes)} MiB, the newest and the next one)"
    )
    if capacity < needed:
        raise DiskTooSmallError(
            f"the disk of data directory {storage} is too small: {_mib(capacity)} MiB in all, {_mib(free)} MiB free, "
            f"{_mib(needed)} MiB needed for {keys}; use a larger disk, or lower these keys"
        )
    if free + storage.used_bytes() < needed:
        _log.error(
            "too little free disk space: new work is refused until there is more",
            directory=str(storage),
            free_mib=_mib(free),
            needed_mib=_mib(needed),
            needed_for=keys,
        )


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:,.{0 if size_bytes >= 10 * MIB else 1}f}"
