"""Flipped bits of small images: a start, a read of bodies and a tail never take what was not written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

from tests.power_cuts.cut_images import Image, storage_of
from tests.power_cuts.life import TINY, BrokenError, Life
from tests.unit.log.journal_kit import IDENTITY, Recorder
from understudy.broker.log import frame as frames
from understudy.broker.log import journal_recovery, record
from understudy.broker.log.body_read import WantedBody
from understudy.broker.log.journal import Journal
from understudy.broker.log.journal_tail import JournalTail
from understudy.broker.log.segment import JournalDamagedError, JournalFormatError, segment_number
from understudy.broker.message import Message
from understudy.testing.disk import MemoryStorage

Bits = Callable[[int], Iterator[int]]
"""The bits of the octet at a place that are flipped, one after the other."""


def one_bit(position: int) -> Iterator[int]:
    """One of the eight, another one from octet to octet."""
    yield (position * 5 + 3) % 8


def all_bits(position: int) -> Iterator[int]:
    """Each of the eight."""
    yield from range(8)


def eventful(life: Life) -> None:
    """Rolls, a torn tail that was cut, a CUT, segments that have gone, a spare, groups of one frame and of several."""
    for _ in range(3):
        life.group(1100)
    life.drop(1)
    life.batches(300, 300, 300)
    life.break_off(1)
    life.lose_power(Random(3))
    life.cut(max(life.journal.last_offset - 1, 0))
    life.group(900)
    life.spare()
    life.group(100, 200)
    life.note(300)
    life.group(60, 60)


def ended(*, closed: bool) -> tuple[Image, list[bytes], int]:
    """An image at the end of `eventful`, its frames, and how many of them a start must find whatever bit is flipped.

    The last group of a journal that was not closed cannot be told from a torn one: damage there shortens it.
    """
    life = Life()
    eventful(life)
    proven = len(life.history) - 3  # note and two batches
    if closed:
        life.close()
        proven = len(life.history)
    return {name: life.disk.content(name) for name in life.disk.names()}, life.history, proven


def flip_each(image: Image, bits: Bits) -> Iterator[tuple[str, int, MemoryStorage]]:
    """(file, place, disk) with one bit flipped there, for each octet of each file."""
    for name in sorted(image):
        for position in range(len(image[name])):
            for bit in bits(position):
                disk = storage_of(image)
                disk.flip_bit(name, position, bit)
                yield name, position, disk


def start_each(image: Image, expected: list[bytes], proven: int, bits: Bits) -> Counter[str]:
    """Start from each flipped image; returns how often each outcome came: refused, format, dead octet, shorter.

    Raises:
        BrokenError: a start believed something, or named a wrong place.
    """
    outcomes: Counter[str] = Counter()
    for name, position, disk in flip_each(image, bits):
        recorder = Recorder()
        try:
            journal_recovery.recover(disk, IDENTITY, TINY, recorder)
        except JournalDamagedError as error:
            _see_place(error, name, position)
            outcomes["refused"] += 1
        except JournalFormatError as error:
            if name not in str(error):
                raise BrokenError(f"bit of {name}, byte {position}: {error}") from error
            outcomes["format"] += 1
        else:
            found = recorder.frames
            if found != expected[: len(found)] or len(found) < proven:
                raise BrokenError(f"bit of {name}, byte {position}: {len(found)} frames of {len(expected)} are found")
            outcomes["dead octet" if found == expected else "shorter"] += 1
    return outcomes


def _see_place(error: JournalDamagedError, name: str, position: int) -> None:
    """The error must name the file, and a place that is not behind the bit."""
    if (
        error.file != name
        or error.position > position
        or f"{name} is damaged at byte {error.position}" not in str(error)
    ):
        raise BrokenError(f"bit of {name}, byte {position}: {error}")


def tail_each(image: Image, expected: list[bytes], bits: Bits) -> Counter[str]:
    """Follow each flipped image with a tail: it yields what was written, up to damage that it names.

    Raises:
        BrokenError: it yielded something else.
    """
    outcomes: Counter[str] = Counter()
    for name, position, disk in flip_each(image, bits):
        tail = JournalTail(disk)
        found: list[bytes] = []
        try:
            found += [each for each in tail.frames() if isinstance(each, bytes)]
            tail.find_damage()
        except (JournalDamagedError, JournalFormatError) as error:
            if name not in str(error):
                raise BrokenError(f"bit of {name}, byte {position}: {error}") from error
            outcomes["refused"] += 1
        else:
            outcomes["dead octet" if found == expected else "shorter"] += 1
        if found != expected[: len(found)]:
            raise BrokenError(f"bit of {name}, byte {position}: a tail yields what was not written")
    return outcomes


# -- bodies -----------------------------------------------------------------------------------------------------------


def with_bodies() -> tuple[Journal, MemoryStorage, dict[int, bytes]]:
    """A journal with a body in each record, some of which were cut and written anew; the disk; the bodies by offset."""
    life = Life()
    bodies: dict[int, bytes] = {}
    for epoch, first, last in ((1, 1, 9), (2, 6, 12)):
        if epoch > 1:
            life.append(frames.encode_cut(first - 1, b"%d" % epoch))
        for offset in range(first, last + 1):
            bodies[offset] = b"body %d of epoch %d." % (offset, epoch) * (3 + offset % 7)
            message = Message("", "q", b"\0\0", bodies[offset], True)
            payload = record.encode_enqueue([(1, offset, 0)], message, False) + b"\0\0" + bodies[offset]
            life.append(frames.encode_batch(epoch, offset, 1, 0, [payload]))
            life.sync()
    return life.journal, life.disk, bodies


def read_each(bits: Bits) -> Counter[str]:
    """Read all bodies while one bit is flipped, for each octet: a journal that has started reads it later.

    Raises:
        BrokenError: a body was wrong or missing, or the damage was not named.
    """
    journal, disk, bodies = with_bodies()
    outcomes: Counter[str] = Counter()
    wanted = [WantedBody(offset, len(body)) for offset, body in bodies.items()]
    for name in sorted(each for each in disk.names() if segment_number(each) is not None):
        for position in range(len(disk.content(name))):
            for bit in bits(position):
                disk.flip_bit(name, position, bit)
                outcomes[_read(journal, wanted, bodies, name, position)] += 1
                disk.flip_bit(name, position, bit)
    return outcomes


def _read(journal: Journal, wanted: list[WantedBody], bodies: dict[int, bytes], name: str, position: int) -> str:
    job = journal.begin_read(wanted)
    try:
        job.run()
    except JournalDamagedError as error:
        if error.file != name or f"{name} is damaged at byte" not in str(error):
            raise BrokenError(f"bit of {name}, byte {position}: {error}") from error
        return "refused"
    finally:
        journal.finish_read(job)
        if any(bodies[offset] != body for offset, body in job.bodies.items()):
            raise BrokenError(f"bit of {name}, byte {position}: a wrong body is read")
    if job.bodies != bodies:
        raise BrokenError(f"bit of {name}, byte {position}: {len(job.bodies)} bodies of {len(bodies)} are read")
    return "dead octet"


def batches_each(bits: Bits) -> Counter[str]:
    """Read all batches, as for a backup that comes, while one bit is flipped, for each octet.

    Raises:
        BrokenError: one is missing or wrong, or the damage was not named.
    """
    journal, disk, _ = with_bodies()
    first = journal.first_offset
    assert first is not None
    expected = list(journal.read_batches(first))
    outcomes: Counter[str] = Counter()
    for name in sorted(each for each in disk.names() if segment_number(each) is not None):
        for position in range(len(disk.content(name))):
            for bit in bits(position):
                disk.flip_bit(name, position, bit)
                found: list[bytes] = []
                try:
                    found += journal.read_batches(first)
                except JournalDamagedError as error:
                    if error.file != name:
                        raise BrokenError(f"bit of {name}, byte {position}: {error}") from error
                    outcomes["refused"] += 1
                else:
                    outcomes["dead octet"] += 1
                    if len(found) != len(expected):
                        raise BrokenError(f"bit of {name}, byte {position}: {len(found)} of {len(expected)} batches")
                if found != expected[: len(found)]:
                    raise BrokenError(f"bit of {name}, byte {position}: batches are wrong, or one is missing")
                disk.flip_bit(name, position, bit)
    return outcomes
