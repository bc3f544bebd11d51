"""EntryIndex: the entries of one queue by id, in pages, so that a long queue has no step that takes long.

A dict that grows is copied as a whole: one of 699,051 entries holds the event loop for 22 ms, and does so on every broker of
the group at the same place of the log. A *page* is a dict of the entries whose ids have all but the last ``PAGE_BITS`` bits
in common: at most 4,096, of which a copy takes 0.1 ms. Ids of one queue follow one another, so that pages are full.

A page whose messages have left the memory may be *packed* (``packed_page.py``): then it gives copies of its entries. The newest is
never packed.

Refused: one list and a base id (ids have gaps, of epochs and of a log that is filled); dicts that are closed when they are full,
whatever ids they hold (a look-up would have to ask each of them).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

from understudy.broker.core.queues.entry import Entry
from understudy.broker.core.queues.packed_page import PackedPage

if TYPE_CHECKING:
    from understudy.broker.message import SpilledBody

Page = dict[int, Entry] | PackedPage

PAGE_BITS: Final = 12


class EntryIndex:
    """Entries by id; iterates over ids, in the order in which they came, or after :meth:`sort` in their own.

    ``Queue.enqueue`` and ``Queue.remove``, which every message passes, work on the pages themselves: a method of this class would
    cost them a call.

    Attributes:
        pages: by their common bits. None is empty but the newest.
        newest: the page with the highest common bits, to which nearly every new entry goes.
        newest_number: its common bits, -1 before there is one.
        newest_end: the first id behind it.
        count: of all entries.
        growing: the packed page to which a recovery adds rows; None: it adds none. Then there may be no ``newest``.

    Invariant: ``count == sum(map(len, pages.values()))``.
    """

    __slots__ = ("count", "growing", "newest", "newest_end", "newest_number", "pages")

    def __init__(self) -> None:
        self.pages: dict[int, Page] = {}
        self.newest: dict[int, Entry] = {}
        self.newest_number = -1
        self.newest_end = 0
        self.count = 0
        self.growing: PackedPage | None = None

    def page_for(self, entry_id: int) -> dict[int, Entry]:
        """The page to which the entry of this new id is added at once; where it is not the newest, or begins one."""
        number = entry_id >> PAGE_BITS
        page = self.unpack(number)
        if page is None:
            page = self.pages[number] = {}
        if number > self.newest_number:
            if not self.newest:
                self.pages.pop(self.newest_number, None)
            self.newest = page
            self.newest_number = number
            self.newest_end = number + 1 << PAGE_BITS
        return page

    def begin(self, number: int) -> None:
        """Have the page of that number as the newest, though it may be empty, unless a later one is there."""
        if number > self.newest_number:
            self.page_for(number << PAGE_BITS)

    def emptied(self, number: int) -> None:
        """The page of that number has lost its last entry. The newest stays: the next entry goes there."""
        if number != self.newest_number:
            del self.pages[number]

    def pack(self, number: int, entries: list[Entry], bodies: SpilledBody) -> PackedPage:
        """Pack the page of that number, which holds ``entries``; see `PackedPage`."""
        page = self.pages[number] = PackedPage(number << PAGE_BITS, entries, bodies)
        return page

    def unpack(self, number: int) -> dict[int, Entry] | None:
        """The page of that number, which holds objects from now on; None if there is none."""
        page = self.pages.get(number)
        if page.__class__ is PackedPage:
            assert isinstance(page, PackedPage)
            page = self.pages[number] = page.unpacked()
        assert not isinstance(page, PackedPage)
        return page

    def grow(self, number: int, bodies: SpilledBody) -> PackedPage | None:
        """The packed page of that number, above all others or the last, to which rows are added; None if objects are there."""
        page = self.pages.get(number)
        if page is None:
            page = self.pages[number] = PackedPage.begun(number << PAGE_BITS, bodies)
            if not self.newest:
                self.pages.pop(self.newest_number, None)
            self.newest, self.newest_number, self.newest_end = {}, -1, 0
            if self.growing is not None:
                self.growing.full()
            self.growing = page
        return page if isinstance(page, PackedPage) and page.grows else None

    def grown(self, count: int) -> None:
        """So many rows were added to a page that :meth:`grow` has given."""
        self.count += count

    def end_growth(self) -> None:
        """No rows are added any more: the page with the highest common bits holds objects again."""
        if self.growing is None:
            return
        self.growing.full()
        self.growing = None
        if not self.newest:
            self.pages.pop(self.newest_number, None)
        self.newest, self.newest_number, self.newest_end = {}, -1, 0
        if self.pages:
            number = max(self.pages)
            newest = self.unpack(number)
            assert newest is not None
            self.newest, self.newest_number, self.newest_end = newest, number, number + 1 << PAGE_BITS

    def dropped(self, number: int, page: PackedPage) -> None:
        """``page``, of that number, has lost an entry."""
        self.count -= 1
        if not page:
            del self.pages[number]

    def hold(self, number: int, page: PackedPage) -> None:
        """Have this page, too, whose ids are above all others."""
        self.pages[number] = page
        self.count += len(page)

    def objects(self) -> Iterator[Entry]:
        """The entries of all pages that are not packed."""
        return chain.from_iterable(page.values() for page in self.pages.values() if not isinstance(page, PackedPage))

    def packed(self) -> list[PackedPage]:
        """The packed pages."""
        return [page for page in self.pages.values() if isinstance(page, PackedPage)]

    def ranges(self) -> Iterator[tuple[int, int]]:
        """(first, last) of ids that follow one another, ascending: few, where ids have no gaps. The index is in order."""
        for page in self.pages.values():
            if page:
                first, last = page.ends() if isinstance(page, PackedPage) else (next(iter(page)), next(reversed(page)))
                if last - first + 1 == len(page):
                    yield first, last
                else:
                    yield from _runs(page)

    def get(self, entry_id: int) -> Entry | None:
        """The entry of that id, or a copy if its page is packed; None if it is not here."""
        page = self.pages.get(entry_id >> PAGE_BITS)
        return page.get(entry_id) if page is not None else None

    def __getitem__(self, entry_id: int) -> Entry:
        return self.pages[entry_id >> PAGE_BITS][entry_id]

    def __contains__(self, entry_id: int) -> bool:
        page = self.pages.get(entry_id >> PAGE_BITS)
        return page is not None and entry_id in page

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self.pages.values())

    def values(self) -> Iterator[Entry]:
        return chain.from_iterable(page.values() for page in self.pages.values())

    def items(self) -> Iterator[tuple[int, Entry]]:
        return chain.from_iterable(page.items() for page in self.pages.values())

    def pop(self, entry_id: int) -> Entry | None:
        """Take out the entry of that id, if there is one, of a page that is not packed."""
        number = entry_id >> PAGE_BITS
        page = self.pages.get(number)
        assert not isinstance(page, PackedPage), f"{entry_id} is in a packed page"
        entry = page.pop(entry_id, None) if page is not None else None
        if entry is not None:
            self.count -= 1
            if not page:
                self.emptied(number)
        return entry

    def pop_last(self) -> Entry:
        """Take out one of the entries that came last. There must be one."""
        number, page = next(reversed(self.pages.items()))
        if not page:  # the newest: it was begun, but another has come later to an older place
            number, page = next(item for item in reversed(self.pages.items()) if item[1])
        entry = page.popitem()[1]
        self.count -= 1
        if not page:
            self.emptied(number)
        return entry

    def sort(self) -> None:
        """Put all into the order of ids."""
        self.pages = {
            number: page if isinstance(page, PackedPage) else dict(sorted(page.items()))
            for number, page in sorted(self.pages.items(), key=_number)
        }
        newest = self.pages.get(self.newest_number, self.newest)
        assert not isinstance(newest, PackedPage), f"page {self.newest_number} is the newest, and packed"
        self.newest = newest


def _number(item: tuple[int, Page]) -> int:
    return item[0]


def _runs(ids: Iterable[int]) -> Iterator[tuple[int, int]]:
    """(first, last) of ids that follow one another; ``ids`` ascend, and are not none."""
    following = iter(ids)
    first = last = next(following)
    for each in following:
        if each != last + 1:
            yield first, last
            first = each
        last = each
    yield first, last
