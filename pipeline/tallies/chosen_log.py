"""Which records are the group's log, and how far each broker holds it. Pure: rows of epochs in, tables out.

Records of one epoch at one offset are the same on every broker, and a log that goes on with an epoch has, before that
epoch's first record, one certain other log (docs/replication.md, One log). So the logs of all epochs are a tree, and
the group's log is the way from the newest epoch back to the beginning. For each epoch E let

    kept(E) = the last offset up to which the log of a broker whose newest epoch is E is the group's log

A record that such a broker holds is the group's iff ``offset <= kept(E)``. What stands behind was cut when the broker
rejoined, or will be. Anything that was said of such a record, to a client or by ``apply``, was said of a record that is
lost.

The newest epoch's log is taken although its first record may not be stable: whoever led it was listed, so it held all that was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import attrs

NEVER_ENDS: Final = 1 << 62
"""`kept` of the newest epoch."""


@attrs.frozen(kw_only=True)
class EpochLog:
    """The part of one epoch's log that one broker's feed has, in one life of its data directory.

    Attributes:
        first, last: of the offsets that it has appended in this epoch; 0 if none.
        base: of the last catch-up that began with a position of this epoch; 0 if none did.
        base_at: (segment, number) of the event that says so.
        applied: the last position that it told as applied while this was its newest epoch.
        life: number of the data directory, from 0.
    """

    founding: str
    broker: str
    epoch: int
    life: int = 0
    first: int = 0
    last: int = 0
    base: int = 0
    base_at: tuple[int, int] = (0, 0)
    applied: int = 0


@attrs.frozen
class Before:
    """On one broker, the record before the first record of ``epoch`` is of the epoch ``before``."""

    founding: str
    epoch: int
    before: int


@attrs.frozen(kw_only=True)
class Reach:
    """How far one broker holds the group's log, in one life of its data directory.

    A directory that is made anew begins with nothing. So each life is judged by itself, as if it were a broker.

    Attributes:
        number: of the broker and life, from 0; the same over foundings.
        began: it holds what stands behind this offset by the log itself; what is before came by a catch-up, or is not in the feed.
        end: the last record of the group's log that it has appended.
        applied: the last one that it told as applied.
    """

    founding: str
    broker: str
    life: int
    number: int
    began: int
    end: int
    applied: int


@attrs.frozen(kw_only=True)
class Joiner:
    """A broker that has caught up, in one life of its data directory.

    Attributes:
        bit: one bit of a number; of the joiners of one founding each has another one.
        base: the last record that its last base contains.
        caught_up: the end of its log when that catch-up was over.
        applied: what it had applied by its log before, at least.
    """

    founding: str
    broker: str
    life: int
    bit: int
    base: int
    caught_up: int
    applied: int


JOINERS: Final = 62
"""So many of one founding are judged: a bit each."""


@attrs.frozen(kw_only=True)
class ChosenLog:
    """The group's log.

    Attributes:
        kept: by (founding, epoch).
        starts: by (founding, epoch): offset of its first record.
        reaches: of each broker, life and founding.
        problems: epochs of which no feed shows what they follow.
    """

    kept: Mapping[tuple[str, int], int]
    starts: Mapping[tuple[str, int], int]
    reaches: tuple[Reach, ...]
    problems: tuple[str, ...]

    def applied(self, founding: str) -> int:
        """The furthest position that any broker has applied."""
        return max((each.applied for each in self.reaches if each.founding == founding), default=0)


def starts_of(logs: Iterable[EpochLog]) -> dict[tuple[str, int], int]:
    """By (founding, epoch): the offset of its first record, as far as feeds show."""
    found: dict[tuple[str, int], int] = {}
    for each in logs:
        if each.first:
            key = each.founding, each.epoch
            found[key] = min(found.get(key, each.first), each.first)
    return found


def choose(logs: Iterable[EpochLog], befores: Iterable[Before]) -> ChosenLog:
    """Find the group's log, and how far each broker holds it."""
    logs = list(logs)
    starts = starts_of(logs)
    before = {(each.founding, each.epoch): each.before for each in befores}
    kept: dict[tuple[str, int], int] = {}
    problems: list[str] = []
    for founding in sorted({each.founding for each in logs}):
        found, missing = _kept_of(
            {epoch: start for (of, epoch), start in starts.items() if of == founding},
            {epoch: each for (of, epoch), each in before.items() if of == founding},
        )
        kept |= {(founding, epoch): offset for epoch, offset in found.items()}
        problems += [f"no feed shows which record epoch {epoch} of founding {founding} follows" for epoch in missing]
    for each in logs:  # an epoch in which a broker has appended nothing: it has all that is known
        kept.setdefault((each.founding, each.epoch), NEVER_ENDS)
    return ChosenLog(kept=kept, starts=starts, reaches=tuple(_reaches(logs, kept)), problems=tuple(problems))


def _kept_of(starts: Mapping[int, int], before: Mapping[int, int]) -> tuple[dict[int, int], list[int]]:
    """Of one founding: `kept` by epoch, and the epochs whose predecessor is missing."""
    kept: dict[int, int] = {}
    missing: list[int] = []
    if not starts:
        return kept, missing
    epoch, end = max(starts), NEVER_ENDS
    while True:
        kept[epoch] = end
        end = min(end, starts[epoch] - 1)
        if not end or epoch == min(starts):
            break
        if epoch not in before:
            missing.append(epoch)
            break
        epoch = before[epoch]
        if epoch not in starts:
            break
    for each in sorted(starts):  # ascending: what an epoch follows is known already
        if each not in kept:
            # Where the way back ends, all that is older counts as the group's: evidence is missing, and nothing more is said.
            kept[each] = end if missing else min(kept.get(before.get(each, 0), NEVER_ENDS), starts[each] - 1)
    return kept, missing


def _reaches(logs: list[EpochLog], kept: Mapping[tuple[str, int], int]) -> Iterable[Reach]:
    numbers = {place: number for number, place in enumerate(sorted({(each.life, each.broker) for each in logs}))}
    by_broker: dict[tuple[str, str, int], list[EpochLog]] = defaultdict(list)
    for each in logs:
        by_broker[each.founding, each.broker, each.life].append(each)
    for (founding, broker, life), found in sorted(by_broker.items()):
        first = min((each.first for each in found if each.first), default=0)
        # A catch-up that begins anew takes back what the one before it has brought: its base may stand before that one's.
        last = max(found, key=lambda each: (each.base > 0, each.base_at))
        base = min(last.base, kept[founding, last.epoch])
        yield Reach(
            founding=founding,
            broker=broker,
            life=life,
            number=numbers[life, broker],
            began=max(base, first - 1 if first else 0),
            end=max(base, *(min(each.last, kept[founding, each.epoch]) for each in found)),
            applied=max(base, *(min(each.applied, kept[founding, each.epoch]) for each in found)),
        )
