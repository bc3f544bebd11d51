"""Rules of G2, G4, G6 and G7 about epochs and in-sync sets: leaders, members, and the records with which a log goes on.

Epochs, sets and catch-ups are few. So these rules read tallies of the driver (`tallies.look`), and give rows of violations; Spark
does nothing for them. `members` has those of sets, `takeovers` those of how a broker begins to lead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from understudy.pipeline.invariants.members import (
    admitted_early,
    barred_listed,
    below_minimum,
    listed_catches_up,
    ready_unlisted,
    unlisted_primary,
)
from understudy.pipeline.invariants.takeovers import of_takeovers
from understudy.pipeline.invariants.violation import COLUMNS, found
from understudy.pipeline.tallies.chosen_log import ChosenLog
from understudy.pipeline.tallies.look import NEVER, Lives, Tally, epoch_logs, primaries
from understudy.pipeline.tallies.reigns import bases, sets_told

ABSENCES: Final = frozenset(
    {"forked", "listed_catches_up", "unnoted", "transients_kept", "below_minimum", "barred_listed"}
)


def of_reigns(tallies: Iterable[Tally], chosen: ChosenLog, lives: Lives) -> list[tuple[Any, ...]]:
    """Rows of all rules here, in the order of `violation.COLUMNS`."""
    tallies = list(tallies)
    sets = sets_told(tallies)
    rows = [
        *unfit(tallies),
        *forked(tallies, chosen, lives),
        *of_takeovers(tallies, lives),
        *unlisted_primary(sets, tallies),
        *listed_catches_up(sets, tallies, lives),
        *below_minimum(sets, tallies),
        *barred_listed(sets, tallies),
        *admitted_early(tallies),
        *ready_unlisted(tallies),
    ]
    return [tuple(each.get(name, "" if kind == "string" else 0) for name, kind in COLUMNS.items()) for each in rows]


def unfit(tallies: Sequence[Tally]) -> Iterator[dict[str, Any]]:
    """A broker that begins an epoch holds all that was stable before: what a broker of a lower epoch had stated, or applied.

    What is stated later, by a broker that catches up with a lower epoch's records, says nothing of that moment. A broker whose disk
    has lost some of what it had synced learns that from others: if it steps down before it is active, no client has worked with it.
    A broker whose log is empty knows that itself.
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
    said = {(each.founding or "", each.epoch or 0, each.broker or "", each.event, each.said) for each in tallies}
    for founding, epoch, primary, offset in primaries(tallies):
        reign = founding, epoch, primary
        if offset > 1 and (*reign, "step_down", "") in said and (*reign, "status", "active") not in said:
            continue
        at_ms = begun[founding, epoch]
        before = [(upto, of, by) for of, upto, ended, by in stated[founding] if of < epoch and ended <= at_ms]
        highest, of, by = max(before, default=(0, 0, ""))
        if highest >= offset:
            text = f"{primary} began epoch {epoch} at offset {offset}; {by} had the log stable up to {highest} in epoch {of}"
            yield found("G7", "unfit", text, founding=founding, broker=primary, epoch=epoch, offset=offset)


def forked(tallies: Sequence[Tally], chosen: ChosenLog, lives: Lives) -> Iterator[dict[str, Any]]:
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
            yield found(
                "G6", "forked", text, founding=each.founding, broker=each.broker, epoch=each.epoch, offset=start
            )
