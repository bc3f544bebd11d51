"""Digests of events: what a feed states of its own rows, so that an audit sees whether the rows are those that were written.

    a(group) = the sum of weight(field) * value(field)              over the fields of a group in `GROUPS`
    s        = weight(seq) * seq
    h        = the sum of weight(field) * value(field)              over `HEADS`
    digest   = the sum of a * (a + s) over the groups, and of h * s, over the events of an incarnation; all of it modulo P

The products tie a value to its event and to the event's number: two events that exchange a value have another digest. A sum has no
order, so an audit that folds rows in parallel, as Spark does, gets the same number. ``P`` is ``2**31 - 1``: products fit into 64
bits, and ``2**31`` is 1 modulo P, so a wide number may be taken as the sum of its two parts.

A value is a number; a truth value as 0 or 1; of a text the CRC-32 of its UTF-8. The default of a field counts as nothing, so a row
that has a column for each field of all events has the digest of its event. Fields that stand in no group are not covered: names of
streams, the digest of the stream before a segment, and the fields of `gap`, which has no number. What a batch states of the events
before it is covered. Groups keep the method that Spark makes of each small enough for Java's compiler.

A change of the rows that happens by itself is missed once in ``2**31``. Whoever knows this file can make a feed that agrees with
itself.

Refused: a checksum of the lines (Parquet has no lines), and xxhash64, which Spark has (Python's standard library has it not).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final
from zlib import crc32

import msgspec

from understudy.observers.events_schema import (
    DEFAULTS,
    EVENT_TYPES,
    FREQUENT,
    GROUPS,
    HEADS,
    OF_ALL,
    Event,
    P,
    event_name,
    text_value,
    weight,
)

_KNOWN_TEXTS: Final = 1 << 14


class _Texts(dict[str, int]):
    """CRC-32 of texts. Most texts of a feed come again soon."""

    def __missing__(self, text: str) -> int:
        if len(self) >= _KNOWN_TEXTS:
            self.clear()
        found = self[text] = crc32(text.encode())
        return found


def _terms(kind: type[Event], names: Iterable[str]) -> list[str]:
    """Of each of ``names`` that is a field of ``kind``: an expression of its event ``e``."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    terms = []
    for field in (fields[name] for name in names if name in fields):
        value = f"e.{field.name}"
        if field.type is str:
            value = f"texts[{value}]"
        elif default := DEFAULTS.get(field.name, 0):
            value = f"({value} - {default})"
        terms.append(f"{weight(field.name)} * {value}")
    return terms


def _digester(kind: type[Event]) -> Callable[[Any], int]:
    """The function that gives what an event of ``kind`` adds to a digest, not yet modulo P. Made: it runs for each event."""
    heads = [str(text_value(event_name(kind.__name__)) * weight("event")), *_terms(kind, HEADS)]
    counted = GROUPS[:OF_ALL] if event_name(kind.__name__) in FREQUENT else GROUPS
    groups = [terms for names in counted if (terms := _terms(kind, names))]
    products = [f"({' + '.join(heads)}) * s"]
    products += [f"(a := ({' + '.join(terms)}) % {P}) * (a + s)" for terms in groups]
    text = f"def digester(e):\n s = e.seq * {weight('seq')}\n return {' + '.join(products)}"
    made: dict[str, Any] = {"texts": _TEXTS}
    exec(text, made)  # noqa: S102  # of our own schema alone
    return made["digester"]  # type: ignore[no-any-return]


_TEXTS: Final = _Texts()
_DIGESTERS: Final[dict[type[Event], Callable[[Any], int]]] = {each: _digester(each) for each in EVENT_TYPES}


def digest_of(events: Iterable[Event], before: int = 0) -> int:
    """The digest of ``events``, and of those before them in their incarnation, whose digest is ``before``."""
    digesters = _DIGESTERS
    return (before + sum([digesters[type(each)](each) for each in events])) % P
