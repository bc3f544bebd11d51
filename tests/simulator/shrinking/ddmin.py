"""Delta debugging (A. Zeller, R. Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE TSE 28(2), 2002)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

_T = TypeVar("_T")


def ddmin(items: Sequence[_T], fails: Callable[[Sequence[_T]], bool]) -> list[_T]:
    """As few of ``items`` as still fail, in their order: without any single one of them it does not.

    ``fails`` is asked about parts only: that all of ``items`` fail is taken for granted. It may say no because it has had
    enough; the result fails in any case, and is then perhaps not the least. It takes at most about n² questions, and about
    2 log2 n if one item is to blame.
    """
    left = list(items)
    if left and fails([]):
        return []
    pieces = 2
    while len(left) >= 2:
        bounds = [len(left) * i // pieces for i in range(pieces + 1)]
        parts = [left[start:end] for start, end in pairwise(bounds)]
        rests = [left[:start] + left[end:] for start, end in pairwise(bounds)]
        part = next((part for part in parts if len(part) < len(left) and fails(part)), None)
        if part is not None:
            left, pieces = part, 2
            continue
        rest = next((rest for rest in rests if pieces > 2 and fails(rest)), None)
        if rest is not None:
            left, pieces = rest, max(pieces - 1, 2)
        elif pieces == len(left):
            break
        else:
            pieces = min(pieces * 2, len(left))
    return left
