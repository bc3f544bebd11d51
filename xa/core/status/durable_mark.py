"""DurableMark: a second place that says how far the status file of a shard was durable, so that the loss of its end is seen.

A status file alone cannot tell a record that a crash has torn, which no client was told of, from one that was durable and is gone:
a file that was cut, a disk that has lost a sector, an older copy put back. The mark can. It holds the number of the last sync: of
engine `journal` the sequence number of a frame, of engine `mirrored` the generation of an image. It is written behind each sync,
and becomes durable soon after, once for many. So ``mark <= what is durable`` holds at every moment, and a crash is never taken for
a loss. Refused: a second sync before each reply, which doubles the time of each record.

The file has two slots, each in a page of its own with a checksum. Only the slot that was not synced last is written. So a torn
write leaves the other slot, and with it an earlier number, which is as true.

Not seen: records that were durable for less than a second when the power failed, and that the disk has lost by itself; and an older
copy of the whole folder.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, Protocol

from understudy.xa.core.errors import LostRecordsError

SLOT_OCTETS: Final = 4096
"""A page of the file system, and a multiple of every sector."""
SHARDS: Final = "shards"
"""The file of a folder that holds the number of its shards, and says that each has a mark."""
_SLOT: Final = struct.Struct(">4sIQI")
"""Magic, shard, number, CRC-32 of all that."""
_MAGIC: Final = b"UXDM"


class MarkDisk(Protocol):
    """The part of `status.journal_file.Disk` that a mark needs."""

    def names(self) -> list[str]: ...

    def read(self, name: str) -> bytes: ...

    def append(self, name: str, octets: bytes) -> None: ...

    def write(self, name: str, offset: int, octets: bytes) -> None: ...

    def sync(self, name: str) -> None: ...

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, name: str) -> None: ...

    def sync_names(self) -> None: ...


class DurableMark:
    """The mark of one shard.

    Args:
        name: of its file.
        shard: whose.
    """

    def __init__(self, disk: MarkDisk, name: str, shard: int) -> None:
        self.name = name
        self._disk = disk
        self._shard = shard
        self._slot = 1
        self._noted = False

    def check(self, found: int, where: str, what: str, *, accept: bool) -> str:
        """Compare what an intact status holds with what was durable. Nothing is changed.

        Args:
            found: the last number of the status; 0 if there is none.
            where: name of the status file, for errors.
            what: what is numbered, for errors.
            accept: a loss is accepted.

        Returns:
            What an operator is to be told; "" if all is there.

        Raises:
            LostRecordsError: something was durable and is not there, or the mark is gone, and that is not accepted.
        """
        names = self._disk.names()
        if self.name not in names and not (found and SHARDS in names):
            return f"{self.name} is made anew: a folder of an older version has none" if found else ""
        wrong = self._missing(found, where, what)
        if wrong and not accept:
            raise LostRecordsError(wrong)
        return f"{wrong}; the loss is accepted" if wrong else ""

    def _missing(self, found: int, where: str, what: str) -> str:
        untold = f"whether the last records of {where} are there cannot be told"
        if self.name not in self._disk.names():
            return f"{self.name} is missing: {untold}"
        numbers = [number for number in self._slots() if number is not None]
        if not numbers:
            return f"{self.name} is damaged: {untold}"
        if (durable := max(numbers)) <= found:
            return ""
        if not found:
            return f"{where} is missing: it was durable up to {what} {durable}, says {self.name}"
        return (
            f"{where} ends with {what} {found}, and {what} {durable} was durable, says {self.name}: "
            f"{durable - found} are missing"
        )

    def go_on(self, number: int) -> None:
        """The status was opened, is durable, and reaches this number. Without mark, and after a loss: `reset`.

        What an earlier process has written may be in the cache of the system alone. It is synced first: else both slots could be
        torn by one power failure.
        """
        self._disk.sync(self.name)
        first, second = self._slots()
        self._slot = 0 if first is None or (second is not None and first < second) else 1
        self.note(number)

    def _slots(self) -> list[int | None]:
        data = self._disk.read(self.name)
        return [_number(data[at : at + _SLOT.size], self._shard) for at in (0, SLOT_OCTETS)]

    def reset(self, number: int) -> None:
        """Make the file anew. It is durable."""
        new = f"{self.name}.new"
        if new in self._disk.names():  # of a crash
            self._disk.remove(new)
        self._disk.append(new, self._octets(number).ljust(2 * SLOT_OCTETS, b"\0"))
        self._disk.sync(new)
        self._disk.rename(new, self.name)
        self._disk.sync_names()
        self._slot, self._noted = 1, False

    def note(self, number: int) -> None:
        """Note that the status is durable up to this number. The file says so at once, and the disk after `sync`."""
        self._disk.write(self.name, self._slot * SLOT_OCTETS, self._octets(number))
        self._noted = True

    def sync(self) -> None:
        """Make durable what was noted."""
        if self._noted:
            self._disk.sync(self.name)
            self._slot, self._noted = 1 - self._slot, False

    def _octets(self, number: int) -> bytes:
        head = _SLOT.pack(_MAGIC, self._shard, number, 0)[:-4]
        return head + struct.pack(">I", zlib.crc32(head))


def _number(octets: bytes, shard: int) -> int | None:
    """Read a slot; None if it is torn, damaged, empty or of another shard."""
    if len(octets) < _SLOT.size:
        return None
    magic, of, number, crc = _SLOT.unpack(octets)
    good = magic == _MAGIC and of == shard and crc == zlib.crc32(octets[: _SLOT.size - 4])
    return int(number) if good else None
