"""Rules of G4 and G7 about in-sync sets: which brokers may be, or must be, members, and how small a set may get. Of tallies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from understudy.pipeline.invariants.violation import found
from understudy.pipeline.tallies.look import EARLY, UNLISTED, Lives, Tally, primaries
from understudy.pipeline.tallies.reigns import Told, epochs_caught_up


def unlisted_primary(sets: Sequence[Told], tallies: Sequence[Tally]) -> Iterator[dict[str, Any]]:
    """A primary is a member of each in-sync set that it tells of its own epoch.

    A primary that is replaced learns from the store that another broker leads: it does not take over that other's set.
    """
    led = {(founding, epoch, primary) for founding, epoch, primary, _ in primaries(tallies)}
    for each in sets:
        if (each.founding, each.epoch, each.broker) in led and each.broker not in each.members:
            text = f"{each.broker} leads epoch {each.epoch}, and the in-sync set is {', '.join(each.members)}"
            yield found("G7", "unlisted_primary", text, **_of(each))


def listed_catches_up(sets: Sequence[Told], tallies: Sequence[Tally], lives: Lives) -> Iterator[dict[str, Any]]:
    """A broker that catches up is not in the in-sync set meanwhile: its primary has taken it out before.

    So it is not in each of the sets that this primary has told in the epoch in which the catch-up ended.
    """
    members: dict[tuple[str, int], list[frozenset[str]]] = defaultdict(list)
    led = {(founding, epoch): primary for founding, epoch, primary, _ in primaries(tallies)}
    for each in sets:
        if led.get((each.founding, each.epoch)) == each.broker:
            members[each.founding, each.epoch].append(frozenset(each.members))
    for founding, broker, epoch, offset in epochs_caught_up(tallies, lives):
        told = members.get((founding, epoch), [])
        if told and all(broker in each for each in told):
            text = (
                f"{broker} caught up in epoch {epoch}, up to offset {offset}, and was in the in-sync set all the time"
            )
            yield found("G7", "listed_catches_up", text, founding=founding, broker=broker, epoch=epoch, offset=offset)


def below_minimum(sets: Sequence[Told], tallies: Sequence[Tally]) -> Iterator[dict[str, Any]]:
    """No broker that holds what it was listed for leaves the set below its minimum. Work waits for such a one.

    A broker whose disk was lost or replaced is no copy, and leaves in any case.
    """
    for each in tallies:
        if each.event != "expel":
            continue
        number, data, backup = each.said.split(" ", 2)
        before = [told for told in sets if told.incarnation == each.incarnation and told.broker == each.broker]
        told = max((told for told in before if told.number < int(number)), key=lambda told: told.number, default=None)
        if data == "whole" and told is not None and len(told.members) < told.least:
            text = (
                f"{each.broker} took {backup} out of the in-sync set in epoch {told.epoch}: {', '.join(told.members)} are"
                f" left, and there must be {told.least}"
            )
            yield found("G4", "below_minimum", text, **_of(told) | {"broker": backup})


def barred_listed(sets: Sequence[Told], tallies: Sequence[Tally]) -> Iterator[dict[str, Any]]:
    """A broker that an operator keeps out of the in-sync set is in no set that its primary tells until the bar is lifted.

    Each epoch is judged by itself. While no broker leads, an operator lifts a bar in the coordination store: no feed tells that.
    """
    facts: dict[tuple[str, int], list[tuple[int, Told | str, bool]]] = defaultdict(list)
    for told in sets:
        facts[told.founding, told.epoch].append((told.number, told, False))
    for each in tallies:
        if each.event == "bar":
            number, backup, how = each.said.split(" ", 2)
            facts[each.founding or "", each.epoch or 0].append((int(number), backup, bool(how)))
    for some in facts.values():
        barred: set[str] = set()
        for _, fact, lifted in sorted(some, key=lambda one: one[0]):
            if isinstance(fact, Told):
                for backup in sorted(barred & {*fact.members}):
                    text = (
                        f"{fact.broker} has {backup} in the in-sync set of epoch {fact.epoch}; an operator keeps it out"
                    )
                    yield found("G7", "barred_listed", text, **_of(fact) | {"broker": backup})
            elif lifted:
                barred.discard(fact)
            else:
                barred.add(fact)


def admitted_early(tallies: Sequence[Tally]) -> Iterator[dict[str, Any]]:
    """A broker that is put into the in-sync set has acknowledged all that is stable, and all pieces of its catch-up."""
    for each in tallies:
        if each.event == "admit" and each.said.startswith(f"{EARLY} "):
            backup = each.said.removeprefix(f"{EARLY} ")
            text = (
                f"{each.broker} put {backup} into the in-sync set in epoch {each.epoch}, and it lacked what was stable, or"
                " pieces of its catch-up"
            )
            place = {"founding": each.founding or "", "epoch": each.epoch or 0, "offset": each.low or 0}
            yield found("G7", "admitted_early", text, broker=backup, **place)


def ready_unlisted(tallies: Sequence[Tally]) -> Iterator[dict[str, Any]]:
    """A broker that says that it is ready has seen itself in the in-sync set."""
    for each in tallies:
        if (each.event, each.said) == ("status", UNLISTED):
            text = f"{each.broker} said in epoch {each.epoch} that it is ready, and it was not in the in-sync set that it had seen"
            place = {"founding": each.founding or "", "epoch": each.epoch or 0, "offset": each.low or 0}
            yield found("G7", "ready_unlisted", text, broker=each.broker or "", **place)


def _of(told: Told) -> dict[str, Any]:
    return {"founding": told.founding, "broker": told.broker, "epoch": told.epoch, "offset": told.offset}
