"""Check: one thing that every coordinator must do, with the numbers of the requirements that it holds."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import attrs

from understudy.testing.coordinator_kit.subject import Subject


class NotMetError(AssertionError):
    """A coordinator does not do what a requirement asks.

    Attributes:
        requirement: its number in docs/requirements.md, such as ``C-07``.
    """

    def __init__(self, requirement: str, what: str) -> None:
        super().__init__(f"{requirement}: {what}")
        self.requirement = requirement


def require(holds: object, requirement: str, what: str) -> None:
    """Raises `NotMetError` unless ``holds``."""
    if not holds:
        raise NotMetError(requirement, what)


class Whose(Enum):
    """Which coordinators a check says something of: all, those that are asked, or those that never are (`NullCoordinator`)."""

    ALL = "all"
    ASKED = "asked"
    NULL = "null"


@attrs.frozen
class Check:
    """One check of the kit.

    Attributes:
        name: of the function.
        requirements: those that it names when it fails.
        title: what it asks for, in a line.
        whose: it is run on these.
        last_if_it_fails: True if the other checks would take too long on a coordinator that does not meet this one.
    """

    name: str
    requirements: tuple[str, ...]
    title: str
    whose: Whose
    _run: Callable[[Subject], None] = attrs.field(repr=False)
    last_if_it_fails: bool = False

    def concerns(self, subject: Subject) -> bool:
        """True if the check applies to that coordinator."""
        return self.whose in (Whose.ALL, Whose.ASKED if subject.is_asked else Whose.NULL)

    def run(self, subject: Subject) -> None:
        """Run it.

        Raises:
            NotMetError: a requirement is not met; its number stands before the text.
        """
        self._run(subject)

    def __str__(self) -> str:
        return self.name


def check(
    *requirements: str, whose: Whose = Whose.ASKED, last_if_it_fails: bool = False
) -> Callable[[Callable[[Subject], None]], Check]:
    """Make a function a check; the first line of its docstring is the title."""

    def made(function: Callable[[Subject], None]) -> Check:
        title = (function.__doc__ or "").partition("\n")[0]
        return Check(function.__name__, requirements, title, whose, function, last_if_it_fails)

    return made
