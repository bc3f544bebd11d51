"""Rules of G4, G6 and G7 about epochs and in-sync sets: who may lead, who is listed, what a log may go on with.

Epochs, sets and catch-ups are few. So these rules read tallies of the driver (`feed_look`), and give rows of violations; Spark
does nothing for them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from understudy.pipeline.chosen_log import ChosenLog
from understudy.pipeline.feed_look import NEVER, Lives, Tally, epoch_logs, primaries
from understudy.pipeline.feed_reigns import Told, bases, epochs_caught_up, sets_told
from understudy.pipeline.invariants.violation import COLUMNS

Found = dict[str, Any]
ABSENCES: Final = frozenset({"forked", "unlisted_primary", "listed_catches_up"})


def of_reigns(tallies: Iterable[Tally], chosen: ChosenLog, lives: Lives) -> list[tuple[Any, ...]]:
    """Rows of all rules here, in the order of `violation.COLUMNS`."""
    tallies = list(tallies)
    sets = sets_told(tallies)
    found = [
        *unfit(tallies),
        *forked(tallies, chosen, lives),
        *unlisted_primary(sets, tallies),
        *listed_catches_up(sets, tallies),
    ]
    return [tuple(each.get(name, "" if kind == "string" else 0) for name, kind in COLUMNS.items()) for each in found]


def unfit(tallies: Sequence[Tally]) -> Iterator[Found]:
    """A broker that begins an epoch holds all that was stable before: what a broker of a lower epoch had stated, or applied.

    What is stated later, by a broker that catches up with a lower epoch's records, says nothing of that moment.
    """
    stated: dict[str, list[tuple[int, int, int, str]]] = defaultdict(list)
    for each in tallies:
        if each.event == "append" or (each.event == "apply" and not each.said):
            upto = (each.stable if each.event == "append" else each.high) or 0
            stated[each.founding or ""].append((each.epoch or 0, upto, each.ended_ms or 0, each.broker or ""))
    begun: dict[tuple[str, int], int] = {}
    for each in tallies:
        if each.event == "epoch":
            place = each.founding or "", each.epoch or 0
            begun[place] = min(begun.get(place, NEVER), each.begun_ms or 0)
    for founding, epoch, primary, offset in primaries(tallies):
        at_ms = begun[founding, epoch]
        before = [(upto, of, by) for of, upto, ended, by in stated[founding] if of < epoch and ended <= at_ms]
        highest, of, by = max(before, default=(0, 0, ""))
        if highest >= offset:
            text = f"{primary} began epoch {epoch} at offset {offset}; {by} had the log stable up to {highest} in epoch {of}"
            yield _found("G7", "unfit", text, founding=founding, broker=primary, epoch=epoch, offset=offset)


def forked(tallies: Sequence[Tally], chosen: ChosenLog, lives: Lives) -> Iterator[Found]:
    """A log that goes on with an epoch has that epoch's first record, unless a base stands in front of what it has."""
    starts = bases(tallies, lives)
    for each in epoch_logs(tallies, lives):
        start = chosen.starts.get((each.founding, each.epoch), 0)
        place = each.founding, each.broker, each.life
        if each.first > start and not any(low <= each.first - 1 <= high for low, high in starts.get(place, ())):
            text = (
                f"the log of {each.broker} has epoch {each.epoch} from offset {each.first} on, without a base before it;"
                f" that epoch begins at {start}"
            )
            yield _found(
                "G6", "forked", text, founding=each.founding, broker=each.broker, epoch=each.epoch, offset=start
            )


def unlisted_primary(sets: Sequence[Told], tallies: Sequence[Tally]) -> Iterator[Found]:
    """A primary is a member of the in-sync set with which it begins to lead."""
    led = {(founding, epoch, primary) for founding, epoch, primary, _ in primaries(tallies)}
    seen: set[tuple[str, int, str]] = set()
    for each in sets:
        reign = each.founding, each.epoch, each.broker
        if reign in led and reign not in seen and each.broker not in each.members:
            text = f"{each.broker} leads epoch {each.epoch}, and the in-sync set is {', '.join(each.members)}"
            yield _found("G7", "unlisted_primary", text, **_of(each))
        seen.add(reign)


def listed_catches_up(sets: Sequence[Told], tallies: Sequence[Tally]) -> Iterator[Found]:
    """A broker that catches up is not in the in-sync set meanwhile: its primary has taken it out before.

    So it is not in each of the sets that this primary has told in the epoch in which the catch-up ended.
    """
    members: dict[tuple[str, int], list[frozenset[str]]] = defaultdict(list)
    led = {(founding, epoch): primary for founding, epoch, primary, _ in primaries(tallies)}
    for each in sets:
        if led.get((each.founding, each.epoch)) == each.broker:
            members[each.founding, each.epoch].append(frozenset(each.members))
    for founding, broker, epoch, offset in epochs_caught_up(tallies):
        told = members.get((founding, epoch), [])
        if told and all(broker in each for each in told):
            text = (
                f"{broker} caught up in epoch {epoch}, up to offset {offset}, and was in the in-sync set all the time"
            )
            yield _found("G7", "listed_catches_up", text, founding=founding, broker=broker, epoch=epoch, offset=offset)


def _found(promise: str, kind: str, text: str, **columns: Any) -> Found:
    return {"promise": promise, "kind": kind, "text": text, **columns}


def _of(told: Told) -> Found:
    return {"founding": told.founding, "broker": told.broker, "epoch": told.epoch, "offset": told.offset}
