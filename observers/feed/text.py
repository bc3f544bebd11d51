"""One readable line an event, for the terminal.

    12:03:04.567  b2  3/1042  commit          tx 3.17  csn 95

Wall clock of the broker (of the primary, where only that is known), broker, epoch/offset, event, and what it says. Fields that are
empty are left out; a founding is left out of a transaction's name.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from understudy.broker.printable import escaped
from understudy.broker.transactions.outcome_query import tx_id_text
from understudy.observers.events_schema import EVENT_TYPES, Event, event_name

_HEAD: Final = frozenset(Event.__struct_fields__)
_FIELDS: Final[dict[type[Event], tuple[str, ...]]] = {
    each: tuple(name for name in each.__struct_fields__ if name not in _HEAD and name != "primary_ms")
    for each in EVENT_TYPES
}
_NAMES: Final = {each: f"{event_name(each.__name__):<14}" for each in EVENT_TYPES}
_LABELS: Final = {
    "queue_id": "",
    "vhost": "",
    "what": "",
    "reason": "because",
    "routing_key": "key",
    "first_offset": "from",
    "from_offset": "after",
    "durable_events": "durable",
    "place": "#",
}
"""Words in front of a value, where the field's name is not it. Without one the field is left out, or stands by itself."""
_ALONE: Final = frozenset(("what", "vote", "status", "role"))
_USUAL: Final = frozenset(("persistent", "durable", "messages_logged", "listed", "linked", "ready"))
"""Truth values that are said only if they are false."""
_HIDDEN: Final = frozenset(
    ("queue_id", "vhost", "previous", "previous_events", "durable_digest", "from_epoch", "sync")
) | {*("content_crc", "event_digest", "previous_event_digest")}


def event_line(event: Event) -> str:
    """The line, without its end. Names in it are clients': what a terminal would obey is escaped."""
    kind = type(event)
    words = [f"{_clock(event)}  {event.broker}  {event.epoch}/{event.offset}  {_NAMES[kind]}"]
    for name in _FIELDS[kind]:
        value = getattr(event, name)
        if name not in _HIDDEN and (value or value is False):
            word = _word(event, name, value)
            if word:
                words.append(word)
    return escaped("  ".join(words))


def _word(event: Event, name: str, value: Any) -> str:
    written = _WORDS.get(name)
    if written is not None:
        return written(value)
    if name == "queue":
        vhost = getattr(event, "vhost", "/")
        return f"queue {value}" if vhost in ("", "/") else f"queue {value} in {vhost}"
    if isinstance(value, bool):
        return _truth(name, value)
    if name in _ALONE:
        return "" if getattr(event, value, "") else str(value)
    label = _LABELS.get(name, name.replace("_", " "))
    return f"{label} {value}" if label else str(value)


def _truth(name: str, value: bool) -> str:  # it is what is to be written
    usual = name in _USUAL
    if value is usual:
        return ""
    return name.replace("_", " ") if value else f"not {name.replace('_', ' ')}"


def _clock(event: Event) -> str:
    at_ms = event.at_ms or getattr(event, "primary_ms", 0)
    return _time(at_ms) if at_ms else "           -"


def _time(at_ms: int) -> str:
    return f"{_second(at_ms // 1000)}.{at_ms % 1000:03d}"


@lru_cache(maxsize=64)
def _second(at_s: int) -> str:
    return f"{datetime.fromtimestamp(at_s).astimezone():%H:%M:%S}"


def _if_known(label: str) -> Callable[[int], str]:
    """Of a number that is -1 where the event does not say it."""
    return lambda value: "" if value < 0 else f"{label} {value}"


_WORDS: Final[dict[str, Callable[[Any], str]]] = {
    **{name: _if_known(name) for name in ("stable", "acked", "branches")},
    "tx": lambda value: f"tx {value.rpartition('/')[2]}",
    "id": lambda value: f"id {tx_id_text(value)}",  # an epoch above a number, too
    "count": lambda value: "" if value == 1 else f"count {value}",
    "ttl_ms": lambda value: "" if value < 0 else f"lives {value} ms from its commit on",
    "deadline_ms": lambda value: f"expires {_time(value)}",
}


def event_json(event: Event) -> bytes:
    """The same as one line of JSON, without its end."""
    return _encode(event)


_encode: Final = msgspec.json.Encoder().encode
