"""Readers: each checks one value of the TOML file, and says what it expects where that is not what it finds.

A field of a section class is `Annotated` with its reader; `Table` reads a whole class by them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, get_type_hints

from attrs import NOTHING, evolve, fields, frozen

from understudy.broker.config.errors import ConfigError
from understudy.broker.security import PasswordHashError, check_password_hash

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB


@frozen
class Place:
    """Where in which file a value stands.

    Attributes:
        file: as errors call it.
        base: where relative paths begin.
        key: the dotted path of the value; "" for a value that is no key of a file, such as that of an option.
        root: the class of the whole configuration: an unknown key may belong to another of its tables.
    """

    file: str
    base: Path
    key: str = ""
    root: type | None = None

    def child(self, name: str) -> Place:
        shown = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'
        return evolve(self, key=f"{self.key}.{shown}" if self.key else shown)

    def item(self, index: int) -> Place:
        return evolve(self, key=f"{self.key}[{index}]")

    def refuse(self, value: object, expected: str) -> ConfigError:
        problem = f"{_shown(value)} is not valid, expected {expected}"
        return ConfigError(file=self.file, key=self.key or None, problem=problem, value=value, expected=expected)

    def missing(self, expected: str) -> ConfigError:
        return ConfigError(file=self.file, key=self.key, problem=f"missing, expected {expected}", expected=expected)


class Reader(Protocol):
    """Checks one value of the TOML file and returns it as the field wants it."""

    @property
    def expected(self) -> str: ...

    def read(self, value: object, place: Place) -> Any: ...


@frozen
class Text:
    """A string that is not empty; `secret` ones are never shown."""

    expected: str = "a string that is not empty"
    pattern: str = r"(?s).+"
    secret: bool = False

    def read(self, value: object, place: Place) -> str:
        if isinstance(value, str) and re.fullmatch(self.pattern, value):
            return value
        if self.secret:
            problem = f"the value (not shown) is not valid, expected {self.expected}"
            raise ConfigError(file=place.file, key=place.key, problem=problem, expected=self.expected)
        raise place.refuse(value, self.expected)


@frozen
class Host:
    """A host name or an address; whether there is such a host is seen when it is used."""

    expected: str = "a host name or an address"

    def read(self, value: object, place: Place) -> str:
        text = Text(self.expected, r"[^\s/\x00]+").read(value, place)
        try:
            # As looking it up does, which has no error of its own for a label that is empty or too long.
            text.encode("idna")
        except UnicodeError as error:
            raise place.refuse(value, self.expected) from error
        return text


@frozen
class PasswordHash:
    """A scrypt hash; never shown."""

    expected: str = "a hash that `understudy user hash` printed"

    def read(self, value: object, place: Place) -> str:
        text = Text(self.expected, secret=True).read(value, place)
        try:
            check_password_hash(text)
        except PasswordHashError as error:
            raise ConfigError(file=place.file, key=place.key, problem=str(error), expected=self.expected) from error
        return text


@frozen
class Pattern:
    """A regular expression; one that is empty only if ``empty``."""

    expected: str = "a regular expression, or an empty string to allow nothing"
    empty: bool = True

    def read(self, value: object, place: Place) -> str:
        if not isinstance(value, str) or not (value or self.empty):
            raise place.refuse(value, self.expected)
        try:
            re.compile(value)
        except (re.error, OverflowError) as error:
            raise place.refuse(value, f"{self.expected}: {error}") from error
        return value


@frozen
class Flag:
    """A boolean."""

    expected: str = "true or false"

    def read(self, value: object, place: Place) -> bool:
        if not isinstance(value, bool):
            raise place.refuse(value, self.expected)
        return value


@frozen
class Number:
    """A number from `low` to `high`, both included; or a string of number and unit, if there are `units`."""

    low: float
    high: float
    whole: bool = True
    what: str = ""
    units: Mapping[str, float] | None = None
    example: str = ""

    @property
    def expected(self) -> str:
        kind = self.what or ("a whole number" if self.whole else "a number")
        example = f", or a string such as '{self.example}'" if self.example else ""
        return f"{kind} from {_plain(self.low)} to {_plain(self.high)}{example}"

    def read(self, value: object, place: Place) -> float:
        number = self._converted(value) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise place.refuse(value, self.expected)
        # The comparison also refuses TOML's nan and inf.
        if not self.low <= number <= self.high or (self.whole and number != int(number)):
            raise place.refuse(value, self.expected)
        return int(number) if self.whole else float(number)

    def _converted(self, text: str) -> float | None:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", text)
        factor = (self.units or {}).get(match[2]) if match else None
        if match is None or factor is None:
            return None
        # "100ms" in seconds is 0.1 and not 0.1000000000000001.
        return round(float(match[1]) * factor, 9)


@frozen
class FilePath:
    """A path; a relative one begins at the configuration file."""

    expected: str = "a path"

    def read(self, value: object, place: Place) -> Path:
        return place.base / Text(self.expected, r"[^\x00]+").read(value, place)


@frozen
class Texts:
    """A list of different strings, at least one."""

    expected: str
    item: Reader

    def read(self, value: object, place: Place) -> tuple[str, ...]:
        if not isinstance(value, list) or not value:
            raise place.refuse(value, self.expected)
        texts = tuple(self.item.read(item, place.item(index)) for index, item in enumerate(value))
        if len(set(texts)) < len(texts):
            raise place.refuse(value, self.expected)
        return texts


@frozen
class Table:
    """A table with the keys of the attrs class `of`, each optional unless the class gives no default."""

    of: type
    expected: str = "a table"

    def read(self, value: object, place: Place) -> Any:
        if not isinstance(value, dict):
            raise place.refuse(value, self.expected)
        readers = readers_of(self.of)
        for name in value:
            if name not in readers:
                raise _unknown(name, readers, place)
        found: dict[str, Any] = {}
        for attribute in fields(self.of):
            name, default = attribute.name, attribute.default
            if name in value:
                found[name] = readers[name].read(value[name], place.child(name))
            elif default is NOTHING:
                raise place.child(name).missing(readers[name].expected)
            elif isinstance(default, Path):
                found[name] = place.base / default
            elif isinstance(readers[name], Table) and default is not None:
                found[name] = readers[name].read({}, place.child(name))  # for the paths among its defaults
        return self.of(**found)


@frozen
class Tables:
    """An array of tables."""

    of: type
    expected: str = "an array of tables"

    def read(self, value: object, place: Place) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise place.refuse(value, self.expected)
        return tuple(Table(self.of).read(item, place.item(index)) for index, item in enumerate(value))


@frozen
class Named:
    """A table with names of the user's choice, each value read alike."""

    reader: Reader
    build: Callable[[Any], Any] = lambda value: value

    @property
    def expected(self) -> str:
        return f"a table of names, each with {self.reader.expected}"

    def read(self, value: object, place: Place) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise place.refuse(value, self.expected)
        return {name: self.build(self.reader.read(item, place.child(name))) for name, item in value.items()}


_SECONDS: Final = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3_600.0}
_SIZES: Final = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 1024 * GIB}
DAY_S: Final = 86_400


def seconds(low: float, high: float = DAY_S, *, whole: bool = False) -> Number:
    what = "whole seconds" if whole else "seconds"
    return Number(low, high, whole=whole, what=what, units=_SECONDS, example="5s" if whole else "100ms")


def milliseconds_of(low: float, high: float) -> Number:
    units = {unit: factor * 1_000 for unit, factor in _SECONDS.items()}
    return Number(low, high, whole=False, what="milliseconds", units=units, example="2ms")


def size(low: int, high: int = 1024 * GIB) -> Number:
    # "64MB" is refused: half its readers take it for 64 * 10^6.
    return Number(low, high, what="bytes", units=_SIZES, example="64MiB")


# ----------------------------------------------------------------------------------------------------- keys and values


def readers_of(cls: type) -> dict[str, Reader]:
    """The reader of each field of a section class, in order of definition."""
    hints = get_type_hints(cls, include_extras=True)
    return {attribute.name: hints[attribute.name].__metadata__[0] for attribute in fields(cls)}


def _unknown(name: str, known: Mapping[str, Reader], place: Place) -> ConfigError:
    nearest = _nearest(name, known, place)
    at = place.child(name)
    problem = f"unknown key, the nearest known one is {nearest}"
    return ConfigError(file=at.file, key=at.key, problem=problem, nearest=nearest)


def _nearest(name: str, known: Mapping[str, Reader], place: Place) -> str:
    """The dotted path of the key most like `name`: in its own table, else in any, else what is least unlike in its own."""
    like = difflib.get_close_matches(name, known, n=1)
    if not like:
        elsewhere: dict[str, str] = {}
        for path in _paths(place.root) if place.root is not None else ():
            elsewhere.setdefault(path.rpartition(".")[2], path)
        found = difflib.get_close_matches(name, elsewhere, n=1, cutoff=0.75)
        if found:
            return elsewhere[found[0]]
        like = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return place.child(like[0]).key


def _paths(cls: type, prefix: str = "") -> Iterator[str]:
    for name, reader in readers_of(cls).items():
        yield prefix + name
        if isinstance(reader, Table):
            yield from _paths(reader.of, f"{prefix}{name}.")


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


def _shown(value: object) -> str:
    """A value as an operator wrote it, or nearly, and not without end."""
    try:
        text = str(value).lower() if isinstance(value, bool) else repr(value)
    except ValueError:  # a hexadecimal number may have more digits than a decimal one
        return "a number of too many digits"
    return text if len(text) <= 80 else text[:77] + "..."
