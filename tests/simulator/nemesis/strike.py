"""The form of a strike: whom it hits, how and for how long, as plain values. Chance has no part in it.

``hit`` does it and says whether there was anything to hit; a fault counts when it hits. A strike names its target: done again
where another broker leads meanwhile, it hits the same broker, and what it is counted as says what that one is now.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from tests.simulator.nemesis.havoc import Havoc

Times = tuple[tuple[str, int], ...]
"""Brokers, and a number of milliseconds for each."""


@attrs.frozen
class Strike:
    """Base. Subclasses are frozen attrs classes whose fields are of type int, str, `Times` or tuple[Path, ...]."""

    verb: ClassVar[str]

    def hit(self, havoc: Havoc, why: str = "") -> bool:
        """Do it. ``why`` is for the story: the moment that it lay in ambush for."""
        raise NotImplementedError


@attrs.frozen(kw_only=True)
class Lurking:
    """How a strike lay in ambush.

    Attributes:
        moment: one of `ambushes.MOMENTS`.
        skip: how many such moments passed before the one at which it sprang.
        after_us: microseconds between that moment and the hit.
    """

    moment: str
    skip: int
    after_us: int


@attrs.frozen(kw_only=True)
class Struck:
    """A strike that hit, or shall hit.

    Attributes:
        at_us: microseconds since the run began: when it hits, or begins to lie in ambush.
        lurking: None for one that comes by the clock.
    """

    at_us: int
    strike: Strike
    lurking: Lurking | None = None

    @property
    def why(self) -> str:
        """For the story."""
        return f"{self.strike.verb} at {self.lurking.moment}" if self.lurking is not None else ""
