"""Is the evidence complete? What a feed says of itself, held against what it has. Pure: rows in, findings out.

A feed proves something only if nothing is missing in it. Its events are numbered, so a hole shows:

* ``seq`` of each incarnation goes from 1 to its count, each number once;
* each segment's first event names the segment before it, and how many events that one has;
* a `gap` says what the reader itself could not read; `dropped` says which facts had no room;
* each incarnation has as many events as the segment behind it says, or the last `end` of it, and they have the digest stated there;
* every broker that an event names has a feed of its own;
* a primary in whose epoch clients have worked has facts of the process that led it;
* the facts of a process tell one first role, and before all others.

What is missing at the very end of a broker's feed shows by other means: by what the other feeds say of that broker.

The rows are one an incarnation: a segment of a journal (64 MiB) or a process. So they are few, and come to the driver.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import attrs

MASK: Final = 0xFFFF
"""Of the numbers whose squares are summed: their sum stays below 2**63 for 2**31 events, and is known without a look at them."""
JOURNAL: Final = re.compile(r"j(\d+)-[0-9a-f]+(?:@(\d+))?")
"""The incarnation of events of a journal: the segment, and from which on all was read, if not from the first."""
_PROCESS: Final = re.compile(r"p(\d+)-(\d+)")
SEQ_BITS: Final = 40


@attrs.frozen(kw_only=True)
class Incarnation:
    """One numbered stream of one broker, as it is in the feed.

    Attributes:
        events: how many rows; more than ``last`` if some are there twice.
        first, last: the lowest and the highest number.
        total, squares: sums of the numbers, and of the squares of their last 16 bits.
        segment, previous, previous_events: as its event `segment` says; 0 and "" of a process.
        begun_ms, ended_ms: clocks of the first and of the last event that has one.
        dropped: facts that had no room.
        begins: events `role` that are the first of a process; roles: events `role` and `status`.
        digest: of these rows (`observers.feed.event_digest`).
        previous_digest: as its event `segment` says of the segment before it; -1 if that is not said.
        end: how many events it has, and their digest (-1: not said), by the last `end`; None: no event says so.
    """

    broker: str
    name: str
    events: int
    first: int
    last: int
    total: int
    squares: int
    segment: int = 0
    previous: str = ""
    previous_events: int = 0
    begun_ms: int = 0
    ended_ms: int = 0
    dropped: int = 0
    begins: int = 0
    roles: int = 0
    digest: int = 0
    previous_digest: int = -1
    end: tuple[int, int] | None = None

    @property
    def is_journal(self) -> bool:
        return self.name.startswith("j")

    @property
    def whole(self) -> bool:
        """True if the incarnation has each number from 1 to ``last`` once."""
        return (
            self.first == 1
            and self.events == self.last
            and self.total == self.last * (self.last + 1) // 2
            and self.squares == squares_to(self.last)
        )

    @property
    def repeats(self) -> bool:
        """True if some events may be there twice."""
        return self.events > self.last - self.first + 1


def squares_to(last: int) -> int:
    """The sum of ``(n & MASK) ** 2`` for n from 1 to ``last``."""
    cycles, rest = divmod(last + 1, MASK + 1)
    return cycles * _squares(MASK) + _squares(rest - 1)


def _squares(n: int) -> int:
    return n * (n + 1) * (2 * n + 1) // 6 if n > 0 else 0


@attrs.frozen(kw_only=True)
class Evidence:
    """State of the feed as a whole, as evidence.

    Attributes:
        problems: a sentence for each thing that is missing; empty: the evidence is complete as far as the feeds themselves say.
        ranks: by (broker, incarnation): its place among that broker's, in the order in which they were written.
        lives: by (broker, incarnation): number of the data directory that it is of, where that is not the broker's first one (0).
        ended_ms: by broker: the clock of its last event.
        altered: brokers whose rows are not those that their feeds state, or not all of them.
    """

    problems: tuple[str, ...]
    ranks: Mapping[tuple[str, str], int]
    ended_ms: Mapping[str, int]
    lives: Mapping[tuple[str, str], int] = attrs.field(factory=dict)
    altered: frozenset[str] = frozenset()


def weigh(
    incarnations: Iterable[Incarnation],
    gaps: Iterable[tuple[str, str]] = (),
    named: Iterable[str] = (),
    unled: Iterable[tuple[str, int]] = (),
) -> Evidence:
    """Put together what the feed says of itself.

    Args:
        incarnations: all of them, without those of `gap` events.
        gaps: (broker, reason) of each `gap`.
        named: brokers that some event names.
        unled: (primary, epoch): clients have worked in that epoch, and no fact of its primary says that it leads.
    """
    by_broker: dict[str, list[Incarnation]] = defaultdict(list)
    for each in incarnations:
        by_broker[each.broker].append(each)
    gaps = sorted(set(gaps))
    gapped = {broker for broker, _ in gaps}
    problems = [f"{broker}: the feed has a gap ({reason})" for broker, reason in gaps]
    ranks: dict[tuple[str, str], int] = {}
    lives: dict[tuple[str, str], int] = {}
    altered = set[str]()
    for broker, found in sorted(by_broker.items()):
        said = list(_problems_of(broker, found, gapped=broker in gapped))
        altered |= {broker} if said else set()
        problems += said
        for rank, one in enumerate(_in_order(found)):
            ranks[broker, one.name] = rank
        for life, members in enumerate(_lives(found)):
            lives |= {(broker, one.name): life for one in members if life}
    problems += [
        f"{each}: named by other feeds, and its own feed is missing" for each in sorted(set(named) - {*by_broker, ""})
    ]
    problems += [
        f"{primary}: the facts of its process that led epoch {epoch} are missing"
        for primary, epoch in sorted(set(unled))
        if any(not each.is_journal for each in by_broker.get(primary, ()))  # else it has no facts at all, which is said
    ]
    ended = {broker: max(each.ended_ms for each in found) for broker, found in by_broker.items()}
    return Evidence(problems=tuple(problems), ranks=ranks, ended_ms=ended, lives=lives, altered=frozenset(altered))


def _problems_of(broker: str, found: list[Incarnation], *, gapped: bool) -> Iterator[str]:
    names = {each.name: each for each in found}
    followers = {each.previous: each for each in found if each.previous}
    for each in _in_order(found):
        if each.events:
            yield from _end_problem(broker, each, followers.get(each.name))
        elif each.end is not None:
            yield f"{broker}, {each.name}: it has {each.end[0]} events, and the feed has none of them"
            continue
        if each.repeats:
            doubled = each.events - (each.last - each.first + 1)
            yield f"{broker}, {each.name}: {doubled} numbers stand for two different events each, or for more"
        elif not each.whole:
            there = each.last - each.first + 1
            yield (
                f"{broker}, {each.name}: events are missing; it has {min(each.events, there)}, and their numbers go from "
                f"{each.first} to {each.last}"
            )
        if each.dropped:
            yield f"{broker}, {each.name}: {each.dropped} facts had no room and were dropped"
        if each.is_journal:
            yield from _chain_problem(broker, each, names, gapped=gapped)
        elif each.begins > 1:
            yield f"{broker}, {each.name}: the facts of {each.begins} processes stand under this name"
        elif each.roles and not each.begins and each.first == 1:
            yield f"{broker}, {each.name}: the first facts of this process are missing"
    if not any(each.is_journal for each in found):
        yield f"{broker}: the feed has facts, and nothing of the journal"
    if all(each.is_journal for each in found):
        yield f"{broker}: the feed has no facts: roles, links and readiness are not told ([feed] facts)"


def _end_problem(broker: str, each: Incarnation, follower: Incarnation | None) -> Iterator[str]:
    """The fault at the end of an incarnation: its rows are held against the segment behind them, or the last `end`."""
    last, digest = each.end or (0, -1)
    if follower is not None:
        last, digest = follower.previous_events, follower.previous_digest
    if not last:
        yield f"{broker}, {each.name}: no event `end` says where it ends; the feed has it up to event {each.last}"
    elif last != each.last and follower is None:
        yield f"{broker}, {each.name}: it ends with event {last}, and the feed has it up to event {each.last}"
    elif last == each.last and each.whole and digest < 0:
        yield f"{broker}, {each.name}: no digest of its {last} events is stated: an older program has read them"
    elif last == each.last and each.whole and digest != each.digest:
        yield f"{broker}, {each.name}: its {last} events are not those that were written: they have another digest"


def _chain_problem(broker: str, each: Incarnation, names: Mapping[str, Incarnation], *, gapped: bool) -> Iterator[str]:
    named = JOURNAL.fullmatch(each.name)
    late = named is not None and named[2] is not None
    if named is not None and each.previous and each.segment != int(named[1]):
        yield f"{broker}, {each.name}: its event `segment` calls it segment {each.segment}"
    if not each.previous:
        if each.previous_events or each.previous_digest >= 0:
            yield f"{broker}, {each.name}: its event `segment` speaks of a segment before it, and names none"
        if each.segment > 1 and not (late and gapped):  # a gap that stands before it says so
            yield f"{broker}, {each.name}: the journal before segment {each.segment} is missing"
        return
    previous = names.get(each.previous)
    if previous is None:
        yield f"{broker}, {each.name}: it follows {each.previous}, which is missing"
    elif previous.last != each.previous_events:
        yield f"{broker}, {each.previous}: it has {each.previous_events} events, and the feed has {previous.last}"


def _in_order(found: list[Incarnation]) -> list[Incarnation]:
    """Journal segments in the order of their lives and numbers, then processes in the order of their starts."""
    journals = [each for life in _lives(found) for each in life]
    processes = [each for each in found if not each.is_journal]
    return journals + sorted(processes, key=lambda each: (_start_of(each.name), each.begun_ms, each.name))


def _lives(found: list[Incarnation]) -> list[list[Incarnation]]:
    """Journal segments by the data directory that they are of, both in their order.

    A life of a data directory ends when it is replaced: numbers begin again with 1, and nothing precedes that segment.
    """
    journals = sorted((each for each in found if each.is_journal), key=lambda each: each.segment)
    names = {each.name: each for each in journals}
    roots: dict[str, Incarnation] = {}
    lives: dict[str, list[Incarnation]] = defaultdict(list)
    for each in journals:  # ascending numbers: what precedes a segment has its root already
        previous = names.get(each.previous)
        root = roots[previous.name] if previous is not None and previous.name in roots else each
        roots[each.name] = root
        lives[root.name].append(each)
    return sorted(lives.values(), key=lambda life: (life[0].begun_ms, life[0].name))


def _start_of(name: str) -> int:
    named = _PROCESS.fullmatch(name)
    return int(named[1]) if named is not None else 0
