"""Alterations of a feed: each kind of event, dropped, doubled, changed, moved or given away, on one broker or on all.

The numbers of events are closed up after each alteration: no hole shows, and each segment says how many events the one before it
has. So only what the events say can show it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import attrs
import msgspec

from tests.pipeline.base_feeds import Feed
from understudy.observers.events_schema import BY_NAME

Event = dict[str, Any]
Place = tuple[str, int]
"""(broker, index in its list)."""
UNREADABLE: Final = ("schema", "group")
"""Fields whose change makes no feed of it."""
_HEAD: Final = (*UNREADABLE, "incarnation", "seq")
_UNNUMBERED: Final = ("gap", "end")
"""Facts of the reader."""
_MOVES: Final = 6
"""An event that is moved passes so many others of its stream."""
_FACTS: Final = "p"
_OTHER: Final = {
    "committed": "rolled back",
    "rolled back": "committed",
    "prepared": "committed",
    "queue": "exchange",
    "exchange": "queue",
    "local": "operator",
    "ready": "catchup",
    "active": "ready",
}
"""A value that means something else, of texts that have few values."""


@attrs.frozen
class Alteration:
    """One broken feed.

    Attributes:
        kind: of the event, with what tells its variants apart.
        how: what is done to it.
        put: makes it of a copy of the base feed, which it may change.
        closes: the numbers of events are closed up behind it.
    """

    kind: str
    how: str
    put: Callable[[Feed], None]
    closes: bool = True

    @property
    def name(self) -> str:
        return f"{self.kind}: {self.how}" if self.kind else self.how


def altered(base: Feed, alteration: Alteration) -> Feed:
    """A copy of ``base``, altered, its numbers closed up."""
    feed = copied(base)
    alteration.put(feed)
    if alteration.closes:
        close_up(feed)
    return feed


def copied(base: Feed) -> Feed:
    return {broker: [dict(event) for event in events] for broker, events in base.items()}


def close_up(feed: Feed) -> None:
    """Number the events of each stream 1, 2, 3, ... in their order; segments state what the one before them has now."""
    last: dict[tuple[str, str], int] = defaultdict(int)
    for events in feed.values():
        for event in events:
            if event["event"] not in _UNNUMBERED:
                stream = event["broker"], event["incarnation"]
                last[stream] += 1
                event["seq"] = last[stream]
    for events in feed.values():
        for event in events:
            if event["event"] == "segment" and event.get("previous"):
                event["previous_events"] = last[event["broker"], event["previous"]]


# -- all kinds ----------------------------------------------------------------------------------------------------------


def variant(event: Event) -> str:
    """The kind of an event, and what tells its variants apart."""
    said = [event["event"]]
    if event["event"] in ("enqueue", "dequeue"):
        said.append("of a transaction" if event["tx"] else "plain")
    elif event["event"] in ("apply", "applied"):
        said.append("of a transaction" if event.get("tx") else "of a position")
    names: tuple[str, ...] = () if event["event"] == "outcome" else ("answer", "outcome", "what", "vote")
    names += ("reason",) if event["event"] == "cut" else ()
    return " ".join([*said, *(event[name] for name in names if event.get(name))])


def all_alterations(base: Feed, nth: float = 0.5) -> Iterator[Alteration]:
    """Each variant of event, in each way.

    Args:
        base: the feed.
        nth: which of a variant's events is altered: from 0, the first, to 1, the last.
    """
    found: dict[str, dict[tuple[Any, ...], list[Place]]] = defaultdict(lambda: defaultdict(list))
    for broker, events in base.items():
        seen: dict[tuple[Any, ...], int] = defaultdict(int)
        for index, event in enumerate(events):
            key = event["event"], event["epoch"], event["offset"], "" if _is_record(event) else broker
            seen[key] += 1
            found[variant(event)][*key, seen[key]].append((broker, index))
    for kind, records in sorted(found.items()):
        most = max(map(len, records.values()))
        copies = [places for places in records.values() if len(places) == most]
        yield from _of_event(base, kind, copies[round(nth * (len(copies) - 1))])


def _is_record(event: Event) -> bool:
    """True if all brokers have the event: it is of the group's log."""
    return not event["incarnation"].startswith(_FACTS) and event["event"] not in ("segment", "checkpoint", "epoch_seen")


def _of_event(base: Feed, kind: str, places: Sequence[Place]) -> Iterator[Alteration]:
    scopes = [("on one", places[len(places) // 2 :][:1])]
    if len(places) > 1:
        scopes.append(("on all", places))
    broker, index = places[0]
    event = base[broker][index]
    for scope, some in scopes:
        yield Alteration(kind, f"dropped {scope}", _each(some, drop))
        yield Alteration(kind, f"doubled {scope}", _each(some, double))
        yield Alteration(kind, f"moved {scope}", _each(some, move))
        for name in fields_of(event):
            yield Alteration(kind, f"{name} changed {scope}", _each(some, _changes(name)), closes=name != _CLOSED_UP)
    yield Alteration(kind, "given to another broker", _each(scopes[0][1], give))


def fields_of(event: Event) -> list[str]:
    """Fields of such an event that may be changed."""
    return [field.name for field in msgspec.structs.fields(BY_NAME[event["event"]]) if field.name not in _HEAD]


def _each(places: Sequence[Place], do: Callable[[Feed, str, int], None]) -> Callable[[Feed], None]:
    def put(feed: Feed) -> None:
        for broker, index in places:
            do(feed, broker, index)

    return put


def drop(feed: Feed, broker: str, index: int) -> None:
    del feed[broker][index]


def double(feed: Feed, broker: str, index: int) -> None:
    feed[broker].insert(index, dict(feed[broker][index]))


def move(feed: Feed, broker: str, index: int) -> None:
    """Behind some others of its stream; before them if it is among the last."""
    events = feed[broker]
    event = events[index]
    stream = [at for at, each in enumerate(events) if each["incarnation"] == event["incarnation"]]
    here = stream.index(index)
    there = here + _MOVES if here + _MOVES < len(stream) else max(0, here - _MOVES)
    to = stream[there]
    events.insert(to, events.pop(index))


def give(feed: Feed, broker: str, index: int) -> None:
    """Another broker has it, in a stream of the same kind, where that comes to its clock."""
    event = feed[broker].pop(index)
    names = sorted(feed)
    other = names[(names.index(broker) + 1) % len(names)]
    kind = event["incarnation"][:1]
    stream = [at for at, each in enumerate(feed[other]) if each["incarnation"].startswith(kind)]
    before = [at for at in stream if feed[other][at]["at_ms"] <= event["at_ms"]] or stream[:1]
    event |= {"broker": other, "incarnation": feed[other][before[-1]]["incarnation"]}
    feed[other].insert(before[-1] + 1, event)


_CLOSED_UP: Final = "previous_events"
"""Of `segment`: closing up the numbers states it anew, so that it is changed in a feed whose numbers are right."""


def _changes(name: str) -> Callable[[Feed, str, int], None]:
    def change(feed: Feed, broker: str, index: int) -> None:
        event = feed[broker][index]
        event[name] = other_value(event, name)

    return change


def other_value(event: Event, name: str) -> Any:
    """Another value of a field."""
    (field,) = (each for each in msgspec.structs.fields(BY_NAME[event["event"]]) if each.name == name)
    value = event.get(name, field.default)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if name.endswith("digest"):
        return f"{int(value or '0', 16) ^ 1:08x}"
    return _OTHER.get(value, f"{value}x")
