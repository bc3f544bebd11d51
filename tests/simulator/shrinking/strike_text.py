"""One strike as a line of a scenario, and back.

    at 412.251 crash broker=b1 back_ms=200
    at 1300 ambush PREPARE skip=1 after_us=300 pause broker=b2 for_ms=3000

Times are milliseconds since the run began, as in stories. A field's text follows from its type: a number, a name,
``b1:20,b2:300`` for a time a broker, ``b1>b2,b2>b1`` for paths between brokers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import attrs

from tests.simulator.nemesis.ambushes import MOMENTS
from tests.simulator.nemesis.havoc import Path
from tests.simulator.nemesis.strike import Lurking, Strike, Struck, Times
from tests.simulator.nemesis.strikes import STRIKES

Paths = tuple[Path, ...]
_MOMENTS = {moment.replace(" ", "-"): moment for moment in MOMENTS}


def show_time(at_us: int) -> str:
    """Milliseconds, with as many decimals as it takes."""
    whole, rest = divmod(at_us, 1_000)
    return f"{whole}.{rest:03}".rstrip("0") if rest else str(whole)


def read_time(text: str) -> int:
    """Raises ValueError."""
    found = re.fullmatch(r"(\d+)(?:\.(\d{1,3}))?", text)
    if found is None:
        raise ValueError(f"{text!r} is not a time in milliseconds, with at most three decimals")
    return int(found[1]) * 1_000 + int((found[2] or "").ljust(3, "0"))


# -- fields -------------------------------------------------------------------------------------------------------


def _int(text: str) -> int:
    if re.fullmatch(r"-?\d+", text) is None:
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _name(text: str) -> str:
    return text


def _times(text: str) -> Times:
    found = re.fullmatch(r"\w+:\d+(,\w+:\d+)*", text)
    if found is None:
        raise ValueError(f"{text!r} is not of the form b1:20,b2:300")
    pairs = [part.split(":") for part in text.split(",")]
    return tuple((broker, int(ms)) for broker, ms in pairs)


def _paths(text: str) -> Paths:
    found = re.fullmatch(r"\w+>\w+(,\w+>\w+)*", text)
    if found is None:
        raise ValueError(f"{text!r} is not of the form b1>b2,b2>b1")
    pairs = [part.split(">") for part in text.split(",")]
    return tuple((source, target) for source, target in pairs)


def _truth(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError(f"{text!r} is neither yes nor no")
    return text == "yes"


_FORMS: dict[Any, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    bool: (lambda truth: "yes" if truth else "no", _truth),
    int: (str, _int),
    str: (str, _name),
    Times: (lambda times: ",".join(f"{broker}:{ms}" for broker, ms in times), _times),
    Paths: (lambda paths: ",".join(f"{a}>{b}" for a, b in paths), _paths),
}
"""Type to how it is shown and read."""
for _kind in (*STRIKES.values(), Lurking):
    attrs.resolve_types(_kind)


def _show_fields(thing: Any, *left_out: str) -> list[str]:
    shown = []
    for field in attrs.fields(type(thing)):
        value = getattr(thing, field.name)
        if field.name not in left_out and value != field.default:
            shown.append(f"{field.name}={_FORMS[field.type][0](value)}")
    return shown


def _read_fields(kind: type[Any], words: list[str], **given: Any) -> Any:
    fields = {field.name: field for field in attrs.fields(kind) if field.name not in given}
    values = dict(given)
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or name not in fields:
            raise ValueError(f"{word!r} is none of {', '.join(f'{name}=' for name in fields)}")
        if name in values:
            raise ValueError(f"{word!r} is the second {name}")
        try:
            values[name] = _FORMS[fields[name].type][1](text)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        if name.endswith(("_us", "_ms")) and name != "by_ms" and isinstance(values[name], int) and values[name] < 0:
            raise ValueError(f"{name}: {text!r} is negative")
    missing = [name for name, field in fields.items() if name not in values and field.default is attrs.NOTHING]
    if missing:
        raise ValueError(f"{', '.join(f'{name}=' for name in missing)} is missing")
    return kind(**values)


# -- strikes ------------------------------------------------------------------------------------------------------


def show_strike(struck: Struck) -> str:
    """The line."""
    words = ["at", show_time(struck.at_us)]
    lurking = struck.lurking
    if lurking is not None:
        words += ["ambush", lurking.moment.replace(" ", "-"), *_show_fields(lurking, "moment")]
    return " ".join([*words, struck.strike.verb, *_show_fields(struck.strike)])


def read_strike(words: list[str]) -> Struck:
    """Of a line's words after ``at``; raises ValueError."""
    if len(words) < 2:
        raise ValueError("a strike is 'at TIME KIND NAME=VALUE ...'")
    at_us = read_time(words[0])
    rest = words[1:]
    lurking = None
    if rest[0] == "ambush":
        lurking, rest = _read_ambush(rest[1:])
    if rest[0] not in STRIKES:
        raise ValueError(f"{rest[0]!r} is no strike; there are {', '.join(STRIKES)}")
    strike: Strike = _read_fields(STRIKES[rest[0]], rest[1:])
    return Struck(at_us=at_us, strike=strike, lurking=lurking)


def _read_ambush(words: list[str]) -> tuple[Lurking, list[str]]:
    if len(words) < 4:
        raise ValueError("an ambush is 'at TIME ambush MOMENT skip=N after_us=N KIND NAME=VALUE ...'")
    if words[0] not in _MOMENTS:
        raise ValueError(f"{words[0]!r} is no moment; there are {', '.join(_MOMENTS)}")
    return _read_fields(Lurking, words[1:3], moment=_MOMENTS[words[0]]), words[3:]


def brokers_of(strike: Strike) -> set[str]:
    """Whom it names."""
    named: set[str] = set()
    for field in attrs.fields(type(strike)):
        value = getattr(strike, field.name)
        if field.name in ("broker", "store", "about"):
            named |= {value} - {""}
        elif field.type == Times:
            named |= {broker for broker, _ in value}
        elif field.type == Paths:
            named |= {broker for path in value for broker in path}
    return named
