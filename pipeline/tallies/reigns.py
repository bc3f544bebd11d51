"""Primaries as tallies show them: their epochs, the in-sync sets that they tell, brokers that catch up. Pure, as `tallies.look`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import attrs

from understudy.pipeline.tallies.chosen_log import JOINERS, ChosenLog, Joiner
from understudy.pipeline.tallies.look import (
    BASE,
    CAUGHT_UP,
    NEVER,
    PARTED,
    PAUSE_MS,
    SKEW_MS,
    Lives,
    Tally,
    is_piece,
    life_of,
    members_of,
    primaries,
    told_at,
)

_SPANS: Final = 64
"""So many times between pauses are told apart of each broker: those with the longest pauses."""


def joiners(tallies: Sequence[Tally], chosen: ChosenLog, lives: Lives) -> list[Joiner]:
    """Brokers whose last catch-up is over, within the group's log. One that has let go of messages is none."""
    let_go = {
        (each.founding or "", each.broker or "", life_of(each, lives))
        for each in tallies
        if each.event == "cut" and each.said == "let_go"
    }
    found: dict[tuple[str, str, int], dict[str, Tally]] = defaultdict(dict)
    first_epoch: dict[tuple[str, str, int], int] = {}
    for each in tallies:
        for what in (BASE, CAUGHT_UP):
            if is_piece(each, what):
                of = each.founding or "", each.broker or "", life_of(each, lives)
                found[of][what] = max(found[of].get(what, each), each, key=told_at)
                if what == BASE:
                    first_epoch[of] = min(first_epoch.get(of, NEVER), each.epoch or 0)
    number: dict[str, int] = defaultdict(int)
    over: list[Joiner] = []
    for (founding, broker, life), pieces in sorted(found.items()):
        if pieces.keys() != {BASE, CAUGHT_UP} or told_at(pieces[CAUGHT_UP]) < told_at(pieces[BASE]):
            continue
        base, caught_up = (
            min(each.high or 0, chosen.kept.get((founding, each.epoch or 0), NEVER))
            for each in (pieces[BASE], pieces[CAUGHT_UP])
        )
        if 0 < base <= caught_up and (founding, broker, life) not in let_go and number[founding] < JOINERS:
            bit = 1 << number[founding]
            number[founding] += 1
            place = founding, broker, life
            applied = _applied(tallies, place, first_epoch[place], chosen, lives)
            over.append(
                Joiner(
                    founding=founding,
                    broker=broker,
                    life=life,
                    bit=bit,
                    base=base,
                    caught_up=caught_up,
                    applied=min(applied, base),
                )
            )
    return over


def _applied(tallies: Sequence[Tally], of: tuple[str, str, int], epoch: int, chosen: ChosenLog, lives: Lives) -> int:
    """How far a broker told that it has applied its log, in epochs below ``epoch``: before it caught up."""
    return max(
        (
            min(each.high or 0, chosen.kept.get((each.founding or "", each.epoch or 0), NEVER))
            for each in tallies
            if each.event == "apply"
            and not each.said
            and (each.founding or "", each.broker or "", life_of(each, lives)) == of
            and (each.epoch or 0) < epoch
        ),
        default=0,
    )


TOLD_OF: Final = 10
"""So many transactions that one primary has prepared and committed: at detail "messages" some client was told of one of them."""


@attrs.frozen(kw_only=True)
class Reign:
    """One primary's epoch, by what the feeds have of it.

    Attributes:
        commits: transactions prepared and committed in it, about; without bodies in parts, of which a confirm tells, if any fact.
        works: a record of a client's is in it.
        has_facts: the primary's own facts say that it has begun to lead in it.
        has_told: they say something that was told to a client.
    """

    primary: str
    epoch: int
    commits: int
    works: bool
    has_facts: bool
    has_told: bool

    @property
    def is_silent(self) -> bool:
        """True if the primary's facts leave out what clients were told."""
        return self.has_facts and not self.has_told and self.commits >= TOLD_OF


_TOLD: Final = ("told", "confirm")
LEADS: Final = ("in_sync", "promote")
"""Facts of a process that leads."""
_OF_CLIENTS: Final = ("enqueue", "prepare", "commit")
_PARTED: Final = "body in parts"


def reigns(tallies: Iterable[Tally]) -> list[Reign]:
    """Of each EPOCH record its primary's epoch."""
    tallies = list(tallies)
    events: dict[tuple[str, int, str, str], int] = defaultdict(int)
    own: set[tuple[str, int, str, str]] = set()
    for each in tallies:
        place = each.founding or "", each.epoch or 0
        if each.event in _OF_CLIENTS:
            events[*place, each.event, each.broker or ""] += each.events
            if each.said == PARTED:
                events[*place, _PARTED, each.broker or ""] += each.events
        elif each.event in (*_TOLD, *LEADS):
            own.add((*place, each.broker or "", "told" if each.event in _TOLD else "leads"))
    most: dict[tuple[str, int, str], int] = defaultdict(int)
    for (founding, epoch, name, _), number in events.items():  # brokers have about the same
        most[founding, epoch, name] = max(most[founding, epoch, name], number)
    found = []
    for founding, epoch, primary, _ in primaries(tallies):
        prepared, committed, parted = (most[founding, epoch, name] for name in ("prepare", "commit", _PARTED))
        found.append(
            Reign(
                primary=primary,
                epoch=epoch,
                commits=max(0, min(prepared, committed) - parted),
                works=any(most[founding, epoch, name] for name in _OF_CLIENTS),
                has_facts=(founding, epoch, primary, "leads") in own,
                has_told=(founding, epoch, primary, "told") in own,
            )
        )
    return found


def short_logs(tallies: Iterable[Tally], chosen: ChosenLog) -> list[str]:
    """Feeds that lack records which their brokers must have had, a sentence each.

    First, primaries whose feeds end before a position of their own epochs that another broker knew to be stable.

    What is stable, its primary has fsynced. A batch that a primary has sent, and that is not stable, may be in the journals of
    backups alone: a killed primary had not written it, and if it never comes back its log ends before that.

    Then, brokers that have applied more than their feeds hold: a broker applies what stands in its own journal.
    """
    tallies = list(tallies)
    ends: dict[tuple[str, str], int] = {}
    for reach in chosen.reaches:
        ends[reach.founding, reach.broker] = max(reach.end, ends.get((reach.founding, reach.broker), 0))
    stable: dict[tuple[str, int], dict[str, int]] = defaultdict(dict)
    for each in tallies:
        if each.event in ("append", "applied"):
            place, broker = (each.founding or "", each.epoch or 0), each.broker or ""
            end = min(each.stable or 0, chosen.kept.get(place, NEVER))
            stable[place][broker] = max(stable[place].get(broker, 0), end)
    found = [
        f"{reach.broker}: it has applied its log up to offset {reach.applied}, and its feed has that up to offset {reach.end}"
        for reach in chosen.reaches
        if reach.applied > reach.end
    ]
    for founding, epoch, primary, _ in primaries(tallies):
        others = ((upto, name) for name, upto in stable[founding, epoch].items() if name != primary)
        end, other = max(others, default=(0, ""))
        own = ends.get((founding, primary))
        if own is not None and own < end:
            found.append(
                f"{primary}: its feed ends at offset {own}; {other} knew the log of epoch {epoch}, which {primary} led, to be"
                f" stable up to offset {end}"
            )
    return found


@attrs.frozen(kw_only=True)
class Told:
    """An in-sync set, as a primary has told it.

    Attributes:
        number: of the fact, in its process.
        offset: the end of the primary's log then.
        least: so many members there must be.
    """

    founding: str
    broker: str
    incarnation: str
    number: int
    epoch: int
    offset: int
    members: tuple[str, ...]
    least: int


def sets_told(tallies: Iterable[Tally]) -> list[Told]:
    """All in-sync sets, those of a process in its order."""
    found = [each for each in tallies if each.event == "in_sync"]
    found.sort(key=lambda each: (each.founding or "", each.broker or "", each.incarnation or "", each.first or 0))
    return [
        Told(
            founding=each.founding or "",
            broker=each.broker or "",
            incarnation=each.incarnation or "",
            number=each.first or 0,
            epoch=each.epoch or 0,
            offset=each.high or 0,
            members=tuple(members_of(each).split(",")),
            least=int(each.said.split(" ")[2]),
        )
        for each in found
    ]


def bases(tallies: Iterable[Tally], lives: Lives) -> dict[tuple[str, str, int], list[tuple[int, int]]]:
    """By (founding, broker, life): lowest and highest offset of the bases that are in one tally."""
    found: dict[tuple[str, str, int], list[tuple[int, int]]] = defaultdict(list)
    for each in tallies:
        if is_piece(each, BASE):
            place = each.founding or "", each.broker or "", life_of(each, lives)
            found[place].append((each.low or 0, each.high or 0))
    return found


def epochs_caught_up(tallies: Iterable[Tally], lives: Lives) -> list[tuple[str, str, int, int]]:
    """(founding, broker, epoch, offset) of the end of each broker's catch-ups in an epoch.

    The epoch is that of the primary, which the broker has noted before, maybe in an earlier segment: the log may have no record
    of it yet.
    """
    tallies = list(tallies)
    noted: dict[tuple[str, int], list[tuple[tuple[int, int], int]]] = defaultdict(list)
    for each in tallies:
        if each.event == "epoch_seen":
            noted[each.broker or "", life_of(each, lives)].append((told_at(each), each.epoch or 0))
    found = []
    for each in tallies:
        if is_piece(each, CAUGHT_UP):
            seen = noted[each.broker or "", life_of(each, lives)]
            epochs = (epoch for at, epoch in seen if at < told_at(each))
            found.append((each.founding or "", each.broker or "", max([each.epoch or 0, *epochs]), each.high or 0))
    return sorted(found)


def takeovers(tallies: Iterable[Tally]) -> dict[str, list[tuple[int, int]]]:
    """By founding: of each epoch its first offset, and the end of its primary's log when that was active."""
    tallies = list(tallies)
    active: dict[tuple[str, int, str], int] = {}
    for each in tallies:
        if (each.event, each.said) == ("status", "active"):
            place = each.founding or "", each.epoch or 0, each.broker or ""
            active[place] = min(active.get(place, NEVER), each.low or 0)
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for founding, epoch, primary, offset in primaries(tallies):
        if (founding, epoch, primary) in active:
            found[founding].append((offset, active[founding, epoch, primary]))
    return found


_SPAN: Final = ("since_ms", "until_ms", "end")
Span = tuple[int, int, int]
"""(from, until, end): by the broker's clock, its log ended at ``end``, or before, from the one moment until the other."""


@attrs.frozen
class SetInForce:
    """An in-sync set, from one number of its primary's facts to another.

    Attributes:
        lowest: (end, broker, clock): the member that holds least of the log, and when its feed ends.
        bare: (offset, broker): the member of which the feed has nothing before the highest offset.
        held: of each member, its name and its spans, as JSON: as a tree of literals they take Spark long to plan.
        few: it has fewer members than there must be.
    """

    founding: str
    broker: str
    incarnation: str
    since: int
    until: int
    members: str
    lowest: tuple[int, str, int]
    held: str
    few: bool
    bare: tuple[int, str]


def begins_of(tallies: Iterable[Tally]) -> dict[tuple[str, str], int]:
    """By (founding, broker): the offset before which its feed has nothing of the log, by no batch and no base of any life."""
    found: dict[tuple[str, str], int] = {}
    for each in tallies:
        if each.event == "append" or is_piece(each, BASE):
            place = each.founding or "", each.broker or ""
            first = (each.first_offset or 0) - 1 if each.event == "append" else each.low or 0
            found[place] = min(found.get(place, NEVER), first)
    return found


def sets_in_force(
    tallies: Iterable[Tally], chosen: ChosenLog, ended_ms: Mapping[str, int], lives: Lives
) -> list[SetInForce]:
    """In-sync sets that primaries have told, and what their members are known to hold."""
    tallies = list(tallies)
    ends: dict[tuple[str, str], int] = {}
    for reach in chosen.reaches:
        key = reach.founding, reach.broker
        ends[key] = max(reach.end, ends.get(key, 0))
    told: dict[tuple[str, str], list[Tally]] = defaultdict(list)
    for each in tallies:
        if each.event == "in_sync":
            told[each.broker or "", each.incarnation or ""].append(each)
    spans, begins = spans_of(tallies, chosen, lives), begins_of(tallies)
    found = []
    for (broker, incarnation), some in told.items():
        some.sort(key=lambda each: each.first or 0)
        for each, after in zip(some, [*(one.first or 0 for one in some[1:]), NEVER], strict=True):
            members, founding = members_of(each), each.founding or ""
            # Of a member whose log is not in the feed nothing is known to be held.
            names = members.split(",")
            least = min((ends.get((founding, name), 0), name, ended_ms.get(name, 0)) for name in names)
            held = json.dumps(
                [
                    {"broker": name, "spans": [dict(zip(_SPAN, span, strict=True)) for span in spans[founding, name]]}
                    for name in names
                    if (founding, name) in spans
                ]
            )
            few = len(names) < int(each.said.split(" ")[2])
            bare = max((begins.get((founding, name), 0), name) for name in names)
            in_force = founding, broker, incarnation, each.first or 0, after
            found.append(SetInForce(*in_force, members, least, held, few, bare))
    return found


def spans_of(tallies: Iterable[Tally], chosen: ChosenLog, lives: Lives) -> dict[tuple[str, str], list[Span]]:
    """By (founding, broker): how far its journal held the group's log, between pauses of more than `PAUSE_MS`.

    Times follow one another: the first begins with 0, and the last one does not end. Within a time the end is the highest one.
    A founding has none if clocks of its brokers are further apart than `SKEW_MS`, or if that is not known: a clock that jumps
    looks like a pause.
    """
    tallies = list(tallies)
    trusted = _trusted(tallies)
    rows: dict[tuple[str, str], list[tuple[int, int, int, int]]] = defaultdict(list)
    for each in tallies:
        founding = each.founding or ""
        if founding in trusted and (each.event == "append" or is_piece(each, BASE)):
            end = min(each.high or 0, chosen.kept.get((founding, each.epoch or 0), NEVER))
            row = each.begun_ms or 0, each.ended_ms or 0, end, life_of(each, lives)
            rows[founding, each.broker or ""].append(row)
    return {place: _spans(sorted(some)) for place, some in rows.items()}


def _trusted(tallies: Sequence[Tally]) -> set[str]:
    """Foundings of whose brokers clocks agree: the last COMMITs of each epoch came to each journal when they were decided."""
    last: dict[tuple[str, str, int], tuple[int, int]] = {}
    for each in tallies:
        if each.event == "commit" and each.lag_ms is not None:
            place = each.founding or "", each.broker or "", each.epoch or 0
            last[place] = max(last.get(place, (0, 0)), (each.begun_ms or 0, each.lag_ms))
    apart = {founding for (founding, _, _), (_, lag_ms) in last.items() if abs(lag_ms) > SKEW_MS}
    return {founding for founding, _, _ in last} - apart


def _spans(rows: Sequence[tuple[int, int, int, int]]) -> list[Span]:
    """Of one broker: its rows (begun, ended, end, life), by their beginnings."""
    pauses = [max(0, after[0] - before[1]) for before, after in pairwise(rows)]
    least = sorted(pauses, reverse=True)[_SPANS] if len(pauses) > _SPANS else 0
    found: list[Span] = []
    for number, (begun, _, end, life) in enumerate(rows):
        before = rows[number - 1]
        new_life = number > 0 and life != before[3]
        if not found or new_life or pauses[number - 1] > max(PAUSE_MS, least):
            if found:
                found[-1] = found[-1][0], begun, found[-1][2]
            held = end if new_life or not found else max(end, found[-1][2])
            found.append((begun if found else 0, NEVER, held))
        else:
            found[-1] = found[-1][0], NEVER, max(end, found[-1][2])
    return found
