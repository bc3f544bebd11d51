"""Rows of event feeds in tests: waited for, and compared so that a difference is told in a few lines.

``assert found == whole`` would do for rows that are equal. Where they differ, pytest explains it by a diff of all lines, which
takes minutes for a feed of some thousand rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, TypeVar

from tests.integration.broker_process import wait_until

Row = dict[str, Any]
Rows = Mapping[str, Sequence[Row]]
"""By source."""

SHOWN_CHARACTERS = 400
LOOK_S = 0.2
_NONE = object()

K = TypeVar("K", bound=Hashable)


def source_of(row: Row) -> str:
    """A broker's journal, or its facts: between these two, and between brokers, the order is that of clocks."""
    return str(row["broker"]) + ("/facts" if row["incarnation"][:1] == "p" else "")


def by_source(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each source, in the order of ``rows``."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[source_of(row)].append(row)
    return dict(found)


def told_once(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The same without what was told twice, by a reader that was killed before it had kept its cursor, and without `end`."""
    seen: dict[tuple[str, str, int], Row] = {}
    for row in rows:
        if row["event"] == "end":
            continue
        assert seen.setdefault((row["broker"], row["incarnation"], row["seq"]), row) == row
    return by_source(seen.values())


def difference(found: Mapping[K, Sequence[object]], whole: Mapping[K, Sequence[object]]) -> str:
    """Text that says where ``found`` is not ``whole``: how many rows each source has, and the first that differ; "" if equal."""
    said = []
    for source in [*whole, *(each for each in found if each not in whole)]:
        theirs, ours = found.get(source, ()), whole.get(source, ())
        pairs = enumerate(zip_longest(theirs, ours, fillvalue=_NONE))
        at, pair = next(((at, pair) for at, pair in pairs if pair[0] != pair[1]), (-1, (_NONE, _NONE)))
        if at >= 0:
            shown = ["nothing" if each is _NONE else repr(each)[:SHOWN_CHARACTERS] for each in pair]
            said.append(f"{source}: {len(theirs)} rows, not {len(ours)}; row {at} is\n{shown[0]}, not\n{shown[1]}")
    return "\n".join(said)


def wait_for_rows(what: str, read: Callable[[], Rows], whole: Rows, timeout_s: float = 300.0) -> None:
    """Wait until ``read`` has as many rows as ``whole``; they must be the same.

    Args:
        what: as `wait_until` says it.
        read: finds the rows that are there now.
        whole: all rows.
        timeout_s: seconds.
    """
    count = sum(map(len, whole.values()))
    try:
        wait_until(f"{what}, {count} rows", lambda: sum(map(len, read().values())) >= count, timeout_s, every_s=LOOK_S)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{difference(read(), whole)}") from None
    check_same(read(), whole, what)


def check_same(found: Mapping[K, Sequence[object]], whole: Mapping[K, Sequence[object]], what: str = "") -> None:
    """Assert that ``found`` is ``whole``; fails with the text of `difference` alone."""
    differs = difference(found, whole)
    if differs:
        raise AssertionError(f"{what}\n{differs}".strip())
