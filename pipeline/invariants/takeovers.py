"""Rules of G2, G6 and G7 about how a broker begins to lead: what it has noted, ends, and waits for. As `reigns`: of tallies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from understudy.pipeline.invariants.violation import found
from understudy.pipeline.tallies.evidence import JOURNAL
from understudy.pipeline.tallies.look import LOST, NEVER, Lives, Tally, life_of, primaries

_Place = tuple[int, int]
"""(number of a segment, number of an event in it)."""


def unnoted(tallies: Sequence[Tally], lives: Lives) -> Iterator[dict[str, Any]]:
    """A broker notes durably that there is an epoch before it holds a record of it: so it never follows a lower one again.

    A journal of which the feed does not have the beginning may have noted it there: it is not judged.
    """
    noted: dict[tuple[str, int], list[tuple[int, _Place]]] = defaultdict(list)
    held: dict[tuple[str, int, str, int], tuple[_Place, int]] = {}
    late: set[tuple[str, int]] = set()
    for each in tallies:
        journal = JOURNAL.fullmatch(each.incarnation or "")
        if journal is None:
            continue
        of, place = (each.broker or "", life_of(each, lives)), (int(journal[1]), each.first or 0)
        if journal[2]:
            late.add(of)
        if each.event == "epoch_seen":
            noted[of].append((each.epoch or 0, place))
        elif each.event == "append" and each.founding:
            log = *of, each.founding, each.epoch or 0
            held[log] = min(held.get(log, ((NEVER, 0), 0)), (place, each.first_offset or 0))
    for (broker, life, founding, epoch), (place, offset) in sorted(held.items()):
        known = any(seen >= epoch and at < place for seen, at in noted[broker, life])
        if not known and (broker, life) not in late:
            text = (
                f"{broker} has records of epoch {epoch}, from offset {offset} on, and had not noted that epoch before"
            )
            yield found("G6", "unnoted", text, founding=founding, broker=broker, epoch=epoch, offset=offset)


def transients_kept(tallies: Sequence[Tally]) -> Iterator[dict[str, Any]]:
    """A broker that has restarted and begins to lead says in its EPOCH that transient messages are lost: all brokers end them.

    It has lost its own unless a primary has brought it up since, in the life of the same process.
    """
    linked: dict[tuple[str, str], int] = {}
    begun: dict[tuple[str, int], dict[str, tuple[str, int]]] = defaultdict(dict)
    for each in tallies:
        process = each.broker or "", each.incarnation or ""
        if each.event == "status" and each.said.partition(" ")[0] in ("catchup", "ready"):
            linked[process] = min(linked.get(process, NEVER), each.first or 0)
        elif each.event == "promote":
            begun[each.founding or "", each.epoch or 0][process[0]] = process[1], each.first or 0
    kept = {
        (each.founding or "", each.epoch or 0)
        for each in tallies
        if each.event == "epoch" and not each.said.partition(" ")[0].endswith(LOST)
    }
    for founding, epoch, primary, offset in primaries(tallies):
        incarnation, number = begun[founding, epoch].get(primary, ("", 0))
        restarted = number and linked.get((primary, incarnation), NEVER) > number
        if founding and offset > 1 and restarted and (founding, epoch) in kept:
            text = (
                f"{primary} began epoch {epoch} at offset {offset}, and kept transient messages; its process had restarted,"
                " and no primary had brought it up since"
            )
            yield found("G2", "transients_kept", text, founding=founding, broker=primary, epoch=epoch, offset=offset)


def active_too_early(tallies: Sequence[Tally]) -> Iterator[dict[str, Any]]:
    """A new primary is active when the first record of its epoch is stable: no member follows another one any more."""
    starts = {(founding, epoch, primary): offset for founding, epoch, primary, offset in primaries(tallies)}
    for each in tallies:
        if (each.event, each.said) != ("status", "active"):
            continue
        place = each.founding or "", each.epoch or 0, each.broker or ""
        stable = each.stable if each.stable is not None else -1
        if 0 <= stable < starts.get(place, 0):
            text = (
                f"{place[2]} was active in epoch {place[1]}, which begins at offset {starts[place]}, when it knew the log to be"
                f" stable up to {stable}"
            )
            columns = {"founding": place[0], "broker": place[2], "epoch": place[1], "offset": starts[place]}
            yield found("G6", "active_too_early", text, **columns)


def handed_over_early(tallies: Sequence[Tally]) -> Iterator[dict[str, Any]]:
    """A broker to which a primary hands over holds all that this primary has sent to any broker: its epoch begins behind that.

    A primary writes each batch that it sends into its own journal.
    """
    begun = primaries(tallies)
    ends: dict[tuple[str, str, int], int] = {}
    for each in tallies:
        if each.event == "append":
            log = each.founding or "", each.broker or "", each.epoch or 0
            ends[log] = max(ends.get(log, 0), each.high or 0)
    for each in tallies:
        if each.event != "step_down" or not each.said:
            continue
        founding, epoch = each.founding or "", each.epoch or 0
        later = [(of, primary, start) for group, of, primary, start in begun if group == founding and of > epoch]
        of, primary, start = min(later, default=(0, "", NEVER))
        end = ends.get((founding, each.broker or "", epoch), 0)
        if primary == each.said and start <= end:
            text = (
                f"{each.broker} handed over to {primary}; its log of epoch {epoch} goes up to offset {end}, and epoch {of} of"
                f" {primary} begins at {start}"
            )
            yield found("G7", "handed_over_early", text, founding=founding, broker=primary, epoch=of, offset=start)


def of_takeovers(tallies: Sequence[Tally], lives: Mapping[tuple[str, str], int]) -> Iterator[dict[str, Any]]:
    """All rules here."""
    yield from unnoted(tallies, lives)
    yield from transients_kept(tallies)
    yield from active_too_early(tallies)
    yield from handed_over_early(tallies)
