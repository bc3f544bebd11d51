"""Where in a journal an offset stands: with which segment a reader begins, and from which one on it needs them.

Segments begin with a checkpoint, so reading may begin with any of them. A queue that was declared just before a checkpoint, and was
not applied then, has its name in the segment before that alone; so the segment before the right one is taken.
"""

from __future__ import annotations

from understudy.broker.log import frame as frames
from understudy.broker.log.journal_tail import JournalTail, Place
from understudy.broker.log.segment import SEGMENT_HEADER_BYTES, Segment, SegmentHeader, segment_name, segment_number
from understudy.broker.log.storage import Storage


class JournalSegments:
    """The segments of one journal, by the first offset in each.

    Args:
        storage: the directory.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._first: dict[int, tuple[Place, int]] = {}

    def place_of(self, offset: int) -> Place | None:
        """Where a reader begins that needs everything from ``offset`` on; None: at the first segment that is kept."""
        numbers = sorted(number for name in self._storage.names() if (number := segment_number(name)) is not None)
        self._first = {number: self._first[number] for number in numbers if number in self._first}
        found: Place | None = None
        for before, number in zip([0, *numbers], numbers, strict=False):
            first = self._look(number)
            if first and first <= offset and before in self._first:
                found = self._first[before][0]
        return found

    def needed_segment(self, offset: int) -> int:
        """The number of the first segment that such a reader needs; 0: there is no journal yet."""
        place = self.place_of(offset)
        return place.segment if place is not None else min(self._first, default=0)

    def _look(self, number: int) -> int:
        """The first offset in a segment; 0 if it has no batch yet, or was dropped since it was listed."""
        known = self._first.get(number)
        if known is not None and known[1]:
            return known[1]
        try:
            file = self._storage.open(segment_name(number))
        except (FileNotFoundError, KeyError):
            return 0
        try:
            header = SegmentHeader.decode(
                file.read(0, SEGMENT_HEADER_BYTES), f"journal {self._storage}: segment {number}"
            )
        finally:
            file.close()
        if header is None:
            return 0
        start = Segment.from_header(header).data_start
        place = Place(segment=number, salt=header.salt, position=start, group=0, proof=0)
        first = self._first_batch(place)
        self._first[number] = (place, first)
        return first

    def _first_batch(self, place: Place) -> int:
        tail = JournalTail(self._storage, place)
        try:
            for each in tail.frames():
                segment = tail.segment
                if segment is None or segment.number != place.segment:
                    return 0
                if isinstance(each, bytes) and each[3] == frames.BATCH_MAGIC[3]:
                    return int(frames.BATCH_PLACE.unpack_from(each, frames.BATCH_PLACE_AT)[1])
        finally:
            tail.close()
        return 0
