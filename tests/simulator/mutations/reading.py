"""Bugs of reading bodies back from a journal (`checkers/kept_bodies.py` reads them)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.simulator.mutations.mutation import Bug, mutation
from understudy.broker.log import body_read
from understudy.broker.log.journal_state import CutMark, live_until


@mutation("G1")
def killed_batches_are_read(bug: Bug) -> None:
    """A read takes a body from a batch that a CUT note has killed, and not from the one that came to its place."""
    real = live_until

    def until_its_end(cuts: Iterable[CutMark], last: int, number: int, position: int) -> int:
        if real(cuts, last, number, position) != last:
            bug.strike()
        return last

    bug.replace(body_read, "live_until", until_its_end)


@mutation("G1")
def holes_are_one_record_to_a_read(bug: Bug) -> None:
    """A read takes a HOLE for one record, however many transient ones it stands for."""
    real = body_read._records

    def records(frame: bytes, offset: int) -> Iterator[tuple[int, int, int, int]]:
        found = list(real(frame, offset))
        if found and found[-1][0] != offset + len(found) - 1:
            bug.strike()
        for place, (_, kind, at, end) in enumerate(found):
            yield offset + place, kind, at, end

    bug.replace(body_read, "_records", records)
