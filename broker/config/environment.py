"""Keys of the configuration that environment variables give.

Brokers in containers share one file and differ in few keys, and a secret reaches a container by its environment. So
`UNDERSTUDY__LINK__SECRET` is `link.secret`: the words of the key in capitals, each after two underscores. What a variable says goes
before what the file says. A variable that is empty says nothing: `${SECRET:-}` of a compose file is not a key.

A value is text where the key takes that text, and TOML otherwise: `5672`, `true`, `["zk1:2181", "zk2:2181"]`.

Single underscores were refused: keys have some (`ha.min_insync`), and an orchestrator that makes variables for each service may
set `UNDERSTUDY_LINK_PORT`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from understudy.broker.config.errors import ConfigError
from understudy.broker.config.readers import Named, Place, Reader, Table, readers_of
from understudy.broker.config.schema import Config

PREFIX: Final = "UNDERSTUDY__"


@frozen
class Given:
    """One variable.

    Attributes:
        variable: its name.
        path: the words of the key, in small letters.
        text: its value.
    """

    variable: str
    path: tuple[str, ...]
    text: str

    @property
    def key(self) -> str:
        """The dotted path."""
        return ".".join(self.path)

    def is_blamed_by(self, error: ConfigError) -> bool:
        """True if the error is in this variable."""
        wrong = error.key or ""
        inside = wrong == self.key or wrong.startswith((f"{self.key}.", f"{self.key}["))
        return inside or (error.nearest is not None and self.key.startswith(f"{wrong}."))


def given_by(variables: Mapping[str, str]) -> list[Given]:
    """The variables that give a key, in order of their names: a table comes before its keys."""
    found = (
        (name, name.removeprefix(PREFIX).lower().split("__")) for name in sorted(variables) if name.startswith(PREFIX)
    )
    return [Given(name, tuple(path), variables[name]) for name, path in found if variables[name]]


def overlay(table: dict[str, Any], given: Sequence[Given]) -> None:
    """Put what variables give into the tables of a file.

    Raises:
        ConfigError: a variable is about a key inside something that is no table.
    """
    for each in given:
        inner: Any = table
        for word in each.path[:-1]:
            inner = inner.setdefault(word, {})
            if not isinstance(inner, dict):
                raise ConfigError(file=each.variable, key=each.key, problem=f"{word} has no keys")
        inner[each.path[-1]] = _value(each.text, _reader(each.path))


def _reader(path: Sequence[str]) -> Reader | None:
    """The reader of a key's value; None of an unknown key, which is refused where it is read."""
    reader: Reader = Table(Config)
    for word in path:
        inner = readers_of(reader.of).get(word) if isinstance(reader, Table) else None
        if isinstance(reader, Named):
            inner = reader.reader
        if inner is None:
            return None
        reader = inner
    return reader


def _value(text: str, reader: Reader | None) -> object:
    try:
        if reader is not None:
            reader.read(text, Place("", Path()))
            return text
    except ConfigError:
        pass  # no text is wanted, or not this one: the message will say so
    try:
        found = tomllib.loads(f"value = {text}")
    except ValueError:
        return text
    return found["value"] if len(found) == 1 else text
