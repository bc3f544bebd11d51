"""MirroredFile: the status of one shard in two images of fixed records, engine `mirrored`.

The protocol is that of a mirrored status file with digests: change the records of one image, sync it, copy the changed records to
the other one, and go on there. So at every moment one image is that of the last sync, and each sync point costs one device sync.

Digests of single records are not enough. A crash in the middle of a sync leaves intact new records beside intact old ones, and
each has a good digest. So the first record of an image, the control record, holds a generation and a checksum over the digests of
all records. An image whose checksum does not fit is a mixture, and is refused. Of two good images the higher generation counts.

A record is a head (32 bits, odd while it is changed and not signed), a payload, and a digest of 16 octets over both. An entry
takes as many records as it needs.
"""

from __future__ import annotations

import copy
import hashlib
import struct
from collections.abc import Iterator, Sequence
from typing import Final

import attrs
import msgspec

from understudy.xa.core.errors import NewerStatusError, StatusFileError
from understudy.xa.core.register.entry import STATUS_FORMAT, Begun, Entry, Image, Owned, Record, Ruled, apply
from understudy.xa.core.status.durable_mark import DurableMark
from understudy.xa.core.status.journal_file import Disk, FileStore

RECORD_OCTETS: Final = 512
_HEAD: Final = struct.Struct(">I")
_DIGEST: Final = 16
_PAYLOAD: Final = RECORD_OCTETS - _HEAD.size - _DIGEST
_CONTROL: Final = struct.Struct(">4sIIQI16s")
"""Magic, format, shard, generation, number of records, checksum over their digests."""
_PART: Final = struct.Struct(">IHHH")
"""Of an entry: its number, this part's, how many parts it has, the octets of this part."""
_ROOM: Final = _PAYLOAD - _PART.size
_MAGIC: Final = b"UXSM"
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Entry)
_copies: Final = msgspec.msgpack.Decoder(Record)


@attrs.frozen
class GoodImage:
    """An image as a sync has left it.

    Attributes:
        records: without the control record.
    """

    generation: int
    records: list[bytes]


@attrs.frozen
class _Sealed:
    """The bytes that one sync writes.

    Attributes:
        sequence: of the last group of records in it.
        parts: offset and octets; the control record is the last one.
    """

    sequence: int
    generation: int
    parts: list[tuple[int, bytes]]


class MirroredFile(FileStore):
    """The records of one shard; see `status.journal_file.StatusFile`, whose interface this is.

    Args:
        shard: from 0.
        accept_loss: see `FileStore`.

    Attributes:
        sequence: of the last group of records that was appended.
        durable: of the last one that is durable.
    """

    wants_rotation = False

    def __init__(self, disk: Disk, shard: int, *, accept_loss: bool = False) -> None:
        super().__init__(disk, DurableMark(disk, f"mirror-{shard}.mark", shard), accept_loss=accept_loss)
        self._disk = disk
        self._shard = shard
        self._generation = 0
        self._side = "a"
        self._records: list[bytearray] = []
        self._digests = bytearray()
        self._places: dict[str, list[int]] = {}
        self._free: list[int] = []
        self._changed: set[int] = set()
        self._sealed: _Sealed | None = None
        self._entries: dict[str, Entry] = {}
        self.sequence = 0
        self.durable = 0

    def name(self, side: str) -> str:
        return f"mirror-{self._shard}.{side}"

    # -- opening --------------------------------------------------------------------------------------------------------

    def open(self) -> dict[str, Entry]:
        """Analyse both images, make them equal, and return the entries.

        Raises:
            StatusFileError: no image is intact, or it is of another format or shard, or the newest one is missing. All is
                left as it is.
        """
        there = [side for side in "ab" if self.name(side) in self._disk.names()]
        if not there:
            self.check(0, f"mirror-{self._shard}", "generation")
            self.mark.reset(0)  # before the images: images without mark have lost it
            self._format()
            return {}
        images = {side: self.image(side) for side in there}
        good = {side: image for side, image in images.items() if image is not None}
        if not good:
            names = " and ".join(self.name(side) for side in there)
            raise StatusFileError(f"{names}: no image is intact")
        best = max(good, key=lambda side: good[side].generation)
        found = good[best]
        anew = self.check(found.generation, self.name(best), "generation")
        self.notes += [
            f"{self.name(side)} is {'not there' if side not in there else 'no image of a sync'}: it is made anew from "
            f"{self.name(best)}"
            for side in "ab"
            if side not in good
        ]
        self._generation = found.generation
        self._records = [bytearray(record) for record in found.records]
        self._digests = bytearray(b"".join(record[-_DIGEST:] for record in found.records))
        entries = self._read_entries(self.name(best))
        self._side = "b" if best == "a" else "a"
        self._disk.sync(self.name(best))  # of a killed process: the image may be in the cache of the system alone
        self._rewrite(self._side)
        (self.mark.reset if anew else self.mark.go_on)(self._generation)
        return entries

    def image(self, side: str) -> GoodImage | None:
        """One image, if it is that of a sync; None if it is damaged or a mixture."""
        data = self._disk.read(self.name(side))
        records = [data[at : at + RECORD_OCTETS] for at in range(0, len(data), RECORD_OCTETS)]
        if not records or not is_signed(records[0]):
            return None
        magic, form, shard, generation, count, checksum = _CONTROL.unpack_from(records[0], _HEAD.size)
        if magic == _MAGIC and form != STATUS_FORMAT:
            raise NewerStatusError(f"{self.name(side)} is of format {form}, and this server reads {STATUS_FORMAT}")
        if magic == _MAGIC and shard != self._shard:
            raise StatusFileError(f"{self.name(side)} is of shard {shard}, and stands where {self._shard} belongs")
        kept = records[1 : count + 1]
        if magic != _MAGIC or len(kept) < count or not all(map(is_signed, kept)):
            return None
        return GoodImage(generation, kept) if self._fits(kept, checksum) else None

    def _fits(self, records: Sequence[bytes], checksum: bytes) -> bool:
        return checksum_of(records) == checksum

    def _read_entries(self, name: str) -> dict[str, Entry]:
        parts: dict[int, dict[int, tuple[int, bytes]]] = {}
        for number, record in enumerate(self._records):
            entry, part, of, length = _PART.unpack_from(record, _HEAD.size)
            if of == 0:
                self._free.append(number)
            else:
                start = _HEAD.size + _PART.size
                parts.setdefault(entry, {})[part] = (number, bytes(record[start : start + length]))
        for chunks in parts.values():
            ordered = [chunks[part] for part in sorted(chunks)]
            try:
                found = _decoder.decode(b"".join(octets for _, octets in ordered))
            except msgspec.MsgspecError as error:
                raise NewerStatusError(f"{name}: an intact record is not of format {STATUS_FORMAT}: {error}") from error
            self._entries[found.gid] = found
            self._places[found.gid] = [number for number, _ in ordered]
        return copy.deepcopy(self._entries)

    def _format(self) -> None:
        """Sign everything under other names first: a crash meanwhile leaves nothing that looks like damage."""
        control = self._control()
        for side in "ab":
            new = f"{self.name(side)}.new"
            if new in self._disk.names():
                self._disk.remove(new)
            self._disk.append(new, control)
            self._disk.sync(new)
        for side in "ab":
            self._disk.rename(f"{self.name(side)}.new", self.name(side))
        self._disk.sync_names()

    def _rewrite(self, side: str) -> None:
        """Make an image anew from the one that counts: under another name, since it may be the better part of the truth."""
        new = f"{self.name(side)}.new"
        if new in self._disk.names():
            self._disk.remove(new)
        self._disk.append(new, self._control() + b"".join(map(bytes, self._records)))
        self._disk.sync(new)
        self._disk.rename(new, self.name(side))
        self._disk.sync_names()

    # -- changes --------------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[Record]) -> int:
        """Change the records of the entries in memory; returns the sequence number to wait for."""
        for record in records:
            assert not isinstance(record, (Image, Owned)), record
            own = _copies.decode(_encoder.encode(record))  # the caller goes on with the entry of the record
            gid = own.entry.gid if isinstance(own, (Begun, Ruled)) else own.gid
            apply(self._entries, own)
            self._put(gid, self._entries.get(gid))
        self.sequence += 1
        return self.sequence

    def _put(self, gid: str, entry: Entry | None) -> None:
        octets = b"" if entry is None else _encoder.encode(entry)
        chunks = [octets[at : at + _ROOM] for at in range(0, len(octets), _ROOM)]
        places = self._places.pop(gid, [])
        while len(places) < len(chunks):
            if not self._free:
                self._free.append(len(self._records))
                self._records.append(bytearray(RECORD_OCTETS))
                self._digests += bytes(_DIGEST)
            places.append(self._free.pop())
        for part, (number, chunk) in enumerate(zip(places, chunks, strict=False)):
            self._change(number, _PART.pack(places[0], part, len(chunks), len(chunk)) + chunk)
        for number in places[len(chunks) :]:
            self._change(number, b"")
            self._free.append(number)
        if chunks:
            self._places[gid] = places[: len(chunks)]

    def _change(self, number: int, payload: bytes) -> None:
        record = self._records[number]
        (head,) = _HEAD.unpack_from(record)
        if head % 2 == 0:
            _HEAD.pack_into(record, 0, (head + 1) % (1 << 32))
            self._changed.add(number)
        record[_HEAD.size : RECORD_OCTETS - _DIGEST] = payload.ljust(_PAYLOAD, b"\0")

    def seal(self) -> None:
        """Sign what was changed, and keep its octets: what is changed from now on belongs to the next sync."""
        changed = sorted(self._changed)
        for number in changed:
            record = self._records[number]
            (head,) = _HEAD.unpack_from(record)
            assert head % 2 == 1, (number, head)
            _HEAD.pack_into(record, 0, (head + 1) % (1 << 32))
            record[-_DIGEST:] = digest = digest_of(record)
            self._digests[number * _DIGEST : (number + 1) * _DIGEST] = digest
        self._changed.clear()
        self._generation += 1
        parts = [
            ((first + 1) * RECORD_OCTETS, b"".join(self._records[first : first + count]))
            for first, count in _runs(changed)
        ]
        self._sealed = _Sealed(self.sequence, self._generation, [*parts, (0, self._control())])

    def sync(self) -> None:
        """Write what is sealed into one image, sync that, copy it to the other image. Records may be changed meanwhile."""
        if self._sealed is None:
            self.seal()
        sealed, self._sealed = self._sealed, None
        assert sealed is not None
        side = self._side
        self._write(side, sealed)
        self._disk.sync(self.name(side))
        self.mark.note(sealed.generation)
        self._side = "b" if side == "a" else "a"
        self._write(self._side, sealed)
        self.durable = sealed.sequence

    def _write(self, side: str, sealed: _Sealed) -> None:
        for offset, octets in sealed.parts:
            self._disk.write(self.name(side), offset, octets)

    def rotate(self, entries: Sequence[Entry]) -> None:
        """Images do not grow behind what was in use at a time: nothing is to be done."""
        self.sync()

    def _control(self) -> bytes:
        record = bytearray(RECORD_OCTETS)
        fields = (_MAGIC, STATUS_FORMAT, self._shard, self._generation, len(self._records))
        _CONTROL.pack_into(record, _HEAD.size, *fields, _checksum(self._digests))
        record[-_DIGEST:] = digest_of(record)
        return bytes(record)


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Numbers in rising order as runs: the first of each, and how many follow each other."""
    at = 0
    while at < len(numbers):
        end = at + 1
        while end < len(numbers) and numbers[end] == numbers[end - 1] + 1:
            end += 1
        yield numbers[at], end - at
        at = end


def digest_of(record: bytes | bytearray) -> bytes:
    """Over head and payload."""
    return hashlib.blake2b(record[:-_DIGEST], digest_size=_DIGEST).digest()


def is_signed(record: bytes | bytearray) -> bool:
    """True if a record is whole, not being changed, and has the digest of its octets."""
    if len(record) != RECORD_OCTETS or _HEAD.unpack_from(record)[0] % 2:
        return False
    return bytes(record[-_DIGEST:]) == digest_of(record)


def checksum_of(records: Sequence[bytes | bytearray]) -> bytes:
    """Over the digests of all records, in order."""
    return _checksum(b"".join(bytes(one[-_DIGEST:]) for one in records))


def _checksum(digests: bytes | bytearray) -> bytes:
    return hashlib.blake2b(digests, digest_size=_DIGEST).digest()
