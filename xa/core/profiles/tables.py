"""How tables of a TOML file are read. Each error names the place, the key and the value."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from understudy.xa.core.errors import ConfigError


def tables_of(table: Mapping[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    """The array of tables at a key; empty if there is none."""
    found = table.get(key, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ConfigError(f"{where}: {key} must be an array of tables, [[{key}]]")
    return found


def text_of(table: Mapping[str, Any], key: str, place: str, default: str | None = None) -> str:
    """The text at a key, which is not empty; the default if the key is not there and there is a default."""
    if default is not None and key not in table:
        return default
    value = table.get(key)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{place}: the key {key!r} must be a text, and is {value!r}")
    return value


def flag_of(table: Mapping[str, Any], key: str, place: str) -> bool:
    """True or false at a key; false if the key is not there."""
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise ConfigError(f"{place}: {key} must be true or false, and is {value!r}")
    return value


def check_keys(table: Mapping[str, Any], keys: set[str], place: str) -> None:
    """Refuse a key that is none of these."""
    for key in table:
        if key not in keys:
            known = ", ".join(sorted(keys))
            raise ConfigError(f"{place}: the key {key!r} is not known{nearest(key, keys)}; known: {known}")


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint at the known word that is nearest; "" if none is near."""
    near = difflib.get_close_matches(word, list(known), 1)
    return f" (did you mean {near[0]!r}?)" if near else ""
