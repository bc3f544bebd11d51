"""Readers of [[policy]]: a definition with RabbitMQ's keys, and errors that name the policy."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from understudy.broker.config.errors import ConfigError
from understudy.broker.config.readers import Place, Table
from understudy.broker.core.topology.policies import KEYS


@frozen
class Definition:
    """A table of settings, at least one."""

    expected: str = "a table of settings, such as { max-length = 1000 }"

    def read(self, value: object, place: Place) -> Mapping[str, Any]:
        if not isinstance(value, dict) or not value:
            raise place.refuse(value, self.expected)
        for key, item in value.items():
            at = place.child(key)
            if key not in KEYS:
                nearest = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.0)[0]
                raise ConfigError(
                    file=at.file,
                    key=at.key,
                    problem=f"unknown setting, the nearest known one is {nearest}",
                    nearest=place.child(nearest).key,
                )
            wrong = KEYS[key].check(item)
            if wrong:
                raise ConfigError(file=at.file, key=at.key, problem=f"{item!r} {wrong}", value=item, expected=wrong)
        return dict(value)


@frozen
class PolicyTables:
    """An array of policies. What is wrong with one is told with its name."""

    of: type
    expected: str = "an array of tables"

    def read(self, value: object, place: Place) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise place.refuse(value, self.expected)
        return tuple(self._policy(item, place.item(index)) for index, item in enumerate(value))

    def _policy(self, value: object, place: Place) -> Any:
        if isinstance(value, dict) and "apply-to" in value and "apply_to" not in value:
            value = {"apply_to" if key == "apply-to" else key: item for key, item in value.items()}
        try:
            return Table(self.of).read(value, place)
        except ConfigError as error:
            name = value.get("name") if isinstance(value, dict) else None
            if not isinstance(name, str):
                raise
            raise error.about(f"policy {name!r}") from error
