"""The form of a mutation: a known bug as overrides of the real core's methods, in force for one run.

A mutation is a function. Its name is the bug's, its docstring's first line says what it breaks. It is called before the
cluster is made and replaces methods through its :class:`Bug`; the code it puts there calls ``bug.strike()`` whenever it does
something that the real code would not have done. So a mutation that never did what it says is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs


class Bug:
    """One mutation in force.

    Attributes:
        strikes: how often the mutated code did what the real code would not have done.
    """

    def __init__(self) -> None:
        self.strikes = 0
        self._before: list[tuple[Any, str, Any]] = []

    def strike(self) -> None:
        self.strikes += 1

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Put ``new`` in the place of ``owner.name``, a method of a class or a function of a module."""
        self._before.append((owner, name, vars(owner)[name]))
        setattr(owner, name, new)

    def undo(self) -> None:
        while self._before:
            owner, name, before = self._before.pop()
            setattr(owner, name, before)


@attrs.frozen(kw_only=True)
class Mutation:
    """A known bug.

    Attributes:
        name: of the bug, words joined by "-".
        breaks: a sentence.
        caught_by: the promises of which at least one must be seen broken; or an error by which the product itself sees it.
        within: it must be found within so many seeds.
        harmless: why no promise is broken with it, "" if one is; then nothing at all may be found within so many seeds.
        model: the mutation of the model that shows that it is harmless (`tests/model/mutations`, where it is a safe one).
    """

    name: str
    breaks: str
    caught_by: tuple[str, ...]
    within: int
    put: Callable[[Bug], None]
    harmless: str = ""
    model: str = ""

    @contextmanager
    def in_force(self) -> Iterator[Bug]:
        """The product has this bug while this lasts."""
        bug = Bug()
        try:
            self.put(bug)
            yield bug
        finally:
            bug.undo()


REQUIRED_WITHIN = 100
WITHIN = 200


def mutation(
    *caught_by: str, required: bool = False, harmless: str = "", model: str = ""
) -> Callable[[Callable[[Bug], None]], Mutation]:
    """Make a mutation of a function. ``required``: it is one of those that must be found soonest."""
    assert bool(harmless) == bool(model), "that a mutation is harmless is not a matter of opinion"

    def make(put: Callable[[Bug], None]) -> Mutation:
        assert put.__doc__, f"{put.__name__} does not say what it breaks"
        return Mutation(
            name=put.__name__.replace("_", "-"),
            breaks=put.__doc__.strip().splitlines()[0],
            caught_by=caught_by,
            within=REQUIRED_WITHIN if required else WITHIN,
            put=put,
            harmless=harmless,
            model=model,
        )

    return make
