"""Writes feeds of any size, out of `made_rows`, as Parquet or JSON lines.

    python -m tests.pipeline.made_feed --events 100000000 --out DIR [--plant partial_enqueue]

A large feed is written by patterns. What a broker says of `PERIOD` transactions repeats behind them, in other numbers, and each
number grows by the same step from one repeat to the next. So two repeats are made as rows, and Arrow computes all others, whole
columns at once. Rows near the ends of a segment, and those that a plant changes, are made one by one.

    DIR/b1/journal-000001.parquet ...    what the journal says, in its order
    DIR/b1/facts-000001.parquet ...      what a primary tells
    DIR/planted.parquet                  rows that a plant may change
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import attrs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.pipeline.made_rows import (
    BROKERS,
    MESSAGES,
    QUEUES,
    STEPS,
    Row,
    Rows,
    Size,
    facts,
    made,
    of_transaction,
    rare,
    records,
)
from tests.pipeline.plants import PLANTS, Planted, touched
from tests.pipeline.restated import restated
from tests.pipeline.table_digests import table_digests
from understudy.pipeline.feed.schema import columns

PERIOD: Final = QUEUES
FILE_EVENTS: Final = 2_000_000
WHOLE_AT_MOST: Final = 1_000_000
"""Events of a feed with a plant that changes all rows of a broker: each row is made by itself."""
_TYPES: Final = {int: pa.int64(), str: pa.string(), bool: pa.bool_()}
_NUMBERED: Final = re.compile(r"(.*?)(\d+)")

SCHEMA: Final = pa.schema([(name, _TYPES[kind]) for name, kind in columns().items()])
Told = Callable[[int, Size], Iterable[Row]]
"""What one broker says of a transaction."""


# -- rows -------------------------------------------------------------------------------------------------------------


def table_of(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The columns of a feed."""
    return pa.table([pa.array([row.get(each.name) for row in rows], each.type) for each in SCHEMA], schema=SCHEMA)


def write_parquet(rows: Sequence[Mapping[str, Any]], file: Path) -> Path:
    """``rows`` as one file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table_of(rows), file, compression="zstd")
    return file


def write_json(rows: Iterable[Mapping[str, Any]], file: Path) -> Path:
    """The same as JSON lines."""
    names = [each.name for each in SCHEMA]
    lines = ({name: row[name] for name in names if row.get(name) is not None} for row in rows)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


# -- patterns -----------------------------------------------------------------------------------------------------------


def repeated(one: Rows, two: Rows, times: int) -> pa.Table:
    """The rows of ``one``, of ``two``, and so on, ``times`` in all; a number grows from one to the next as from ``one`` to ``two``.

    So does the number at the end of a text. All else is the same in both.
    """
    at = pa.array(list(range(len(one))) * times)
    repeat = pa.array([each for each in range(times) for _ in one])
    found = []
    for each in SCHEMA:
        first, second = [row.get(each.name) for row in one], [row.get(each.name) for row in two]
        if first == second:
            found.append(_same(first, each.type, at))
        elif pa.types.is_string(each.type):
            found.append(_texts(first, second, at, repeat))
        else:
            found.append(_numbers(first, second, at, repeat))
    return pa.table(found, schema=SCHEMA)


def _same(values: list[Any], kind: pa.DataType, at: pa.Array) -> pa.Array:
    if all(value is None for value in values):
        return pa.nulls(len(at), kind)
    return pa.array(values, kind).take(at)


def _numbers(first: list[Any], second: list[Any], at: pa.Array, repeat: pa.Array) -> pa.Array:
    assert [each is None for each in first] == [each is None for each in second], (first, second)
    step = [None if one is None else two - one for one, two in zip(first, second, strict=True)]
    grown = pc.multiply(pa.array(step, pa.int64()).take(at), repeat)
    return pc.add(pa.array(first, pa.int64()).take(at), grown)


def _texts(first: list[Any], second: list[Any], at: pa.Array, repeat: pa.Array) -> pa.Array:
    parts, others = ([_parts(text) for text in texts] for texts in (first, second))
    assert [head for head, _ in parts] == [head for head, _ in others], (first, second)
    numbers = _numbers([number for _, number in parts], [number for _, number in others], at, repeat)
    heads = pa.array([head for head, _ in parts], pa.string()).take(at)
    return pc.binary_join_element_wise(heads, numbers.cast(pa.string()).fill_null(""), "")


def _parts(text: str | None) -> tuple[str | None, int | None]:
    """A text without the number at its end, and that number."""
    found = _NUMBERED.fullmatch(text or "")
    return (found[1], int(found[2])) if found is not None else (text, None)


# -- files ------------------------------------------------------------------------------------------------------------


def tables(told: Told, first: int, end: int, apart: set[int], size: Size) -> Iterator[pa.Table]:
    """Facts ``told`` of transactions from ``first`` up to ``end``, all of one segment, without those that stand ``apart``."""
    for before, after in pairwise([first - 1, *sorted(k for k in apart if first <= k < end), end]):
        begin, times = before + 1, (after - before - 1) // PERIOD
        if times < 2:  # a pattern is two repeats
            times = 0
        else:
            middle = begin + PERIOD
            one, two = _told(told, begin, middle, size), _told(told, middle, middle + PERIOD, size)
            yield repeated(one, two, times)
        rest = _told(told, begin + times * PERIOD, after, size)
        if rest:
            yield table_of(rest)


def _told(told: Told, first: int, end: int, size: Size) -> Rows:
    return [row for k in range(first, end) for row in told(k, size)]


@attrs.frozen
class Part:
    """One file: what is ``told`` of ranges of transactions, each of them of one segment."""

    name: str
    told: Told
    ranges: Sequence[tuple[int, int]]

    def write(self, folder: Path, apart: set[int], size: Size) -> tuple[int, Mapping[tuple[str, str], int]]:
        """Returns: how many events there are, and their digests."""
        file = folder / self.name
        file.parent.mkdir(parents=True, exist_ok=True)
        events, digests = 0, defaultdict[tuple[str, str], int](int)
        with pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
            for first, end in self.ranges:
                found = list(tables(self.told, first, end, apart, size))
                if found:
                    table = pa.concat_tables(found)
                    writer.write_table(table, row_group_size=len(table))
                    events += len(table)
                    for stream, digest in table_digests(table).items():
                        digests[stream] += digest
        return events, digests


def parts(size: Size) -> Iterator[Part]:
    """The files of a feed."""
    segments = [(each * size.segment, (each + 1) * size.segment) for each in range(size.segments)]
    half = len(segments) // 2
    for broker in BROKERS:
        for number, some in enumerate(_files(segments, size, len(STEPS)), 1):
            yield Part(f"{broker}/journal-{number:06}.parquet", partial(records, broker), some)
    for broker, led in (("b1", segments[:half]), ("b2", segments[half:])):
        for number, some in enumerate(_files(led, size, MESSAGES + 1), 1):
            yield Part(f"{broker}/facts-{number:06}.parquet", facts, some)


def _files(segments: Sequence[tuple[int, int]], size: Size, events: int) -> Iterator[Sequence[tuple[int, int]]]:
    """Segments of one file each, if a transaction has so many events in it."""
    each = max(1, FILE_EVENTS // (size.segment * events))
    yield from (segments[first : first + each] for first in range(0, len(segments), each))


def write_feed(
    size: Size, folder: Path, planted: Planted | None = None, say: Callable[[int], None] = lambda _: None
) -> int:
    """Write a feed below ``folder``.

    Args:
        size: of the feed.
        folder: is made.
        planted: breaks a promise, or the evidence.
        say: told how many events are written.

    Returns:
        How many events there are.
    """
    if planted is not None and planted.whole:
        rows = put(planted, made(size), size)
        write_parquet(rows, folder / "planted.parquet")
        return len(rows)
    # The first transaction of an epoch tells of the one before, in another epoch.
    apart = {0, size.half} | (touched(size) if planted is not None else set())
    rows = rare(size) + [row for k in sorted(apart) for row in of_transaction(k, size)]
    events = len(rows)
    written = defaultdict[tuple[str, str], int](int)
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # Arrow computes, and writes, without holding the interpreter
        for some, digests in pool.map(lambda part: part.write(folder, apart, size), parts(size)):
            events += some
            for stream, digest in digests.items():
                written[stream] += digest
            say(events)
    rows = restated(rows, written)
    if planted is not None:
        events -= len(rows)
        rows = put(planted, rows, size, written)
        events += len(rows)
    write_parquet(rows, folder / "planted.parquet")
    return events


def put(planted: Planted, rows: Rows, size: Size, beside: Mapping[tuple[str, str], int] | None = None) -> Rows:
    """``rows`` with a plant. One that breaks a promise leaves the evidence whole: digests are stated anew."""
    changed = planted.put(rows, size)
    return restated(changed, beside) if planted.promise else changed


def main() -> int:
    """Write a feed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, required=True, help="at least so many")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a directory that is not there yet")
    parser.add_argument("--plant", choices=sorted(PLANTS), help="break a promise, or the evidence")
    options = parser.parse_args()
    planted = PLANTS.get(options.plant)
    if options.out.exists():
        parser.error(f"--out {options.out} is there already")
    if planted is not None and planted.whole and options.events > WHOLE_AT_MOST:
        parser.error(f"--plant {options.plant} changes all rows of a broker: --events must be at most {WHOLE_AT_MOST}")
    size, began_s = Size.of(options.events), time.monotonic()
    events = write_feed(size, options.out, planted, lambda n: print(f"{n} events", file=sys.stderr, flush=True))
    print(f"{events} events, {size.transactions} transactions in {time.monotonic() - began_s:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
