"""Things by what they belong to: what goes with a queue or an exchange is found without a look at what stays."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

G = TypeVar("G", bound=Hashable)
T = TypeVar("T", bound=Hashable)


class Grouped(Generic[G, T]):
    """Each thing once in its group, in the order in which it came; a group is there as long as something is in it.

    Not sets: what is done in their order would be another history in each process.
    """

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        # Most groups are of one, and a dict for it takes 180 bytes more than a tuple.
        self._groups: dict[G, tuple[T] | dict[T, None]] = {}

    def __bool__(self) -> bool:
        """True if anything is in any group."""
        return bool(self._groups)

    def add(self, group: G, thing: T) -> None:
        things = self._groups.setdefault(group, (thing,))
        if isinstance(things, dict):
            things[thing] = None
        elif things[0] != thing:
            self._groups[group] = {things[0]: None, thing: None}

    def remove(self, group: G, thing: T) -> None:
        """Raises KeyError if it is not there."""
        things = self._groups[group]
        if isinstance(things, dict):
            del things[thing]
            if things:
                return
        elif things[0] != thing:
            raise KeyError(thing)
        del self._groups[group]

    def of(self, group: G) -> Iterable[T]:
        """The things in ``group``; nothing may be added or removed while they are gone through."""
        return self._groups.get(group, ())

    def pop(self, group: G) -> Iterable[T]:
        """Let go of all that is in ``group``."""
        return self._groups.pop(group, ())
