"""Grouping: which units share one Kafka transaction.

A Kafka transaction costs some milliseconds, whatever is in it, so units share one. A unit is never divided: a group is closed
before a unit that would pass a limit, and a unit that is larger than the limits has a group of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from understudy.observers.outlet.reading.units import Unit


@attrs.frozen(kw_only=True)
class GroupLimits:
    """Of one Kafka transaction; a single unit may pass both.

    Attributes:
        messages: Kafka records, one for each message and queue.
        octets: of bodies and properties.
    """

    messages: int = 2_000
    octets: int = 4 << 20

    def __attrs_post_init__(self) -> None:
        if self.messages < 1 or self.octets < 1:
            raise ValueError(f"limits of a group are positive, not {self.messages} messages and {self.octets} bytes")


class Grouping:
    """Gathers units, in their order.

    Args:
        limits: of one group.
    """

    def __init__(self, limits: GroupLimits) -> None:
        self._limits = limits
        self._units: list[Unit] = []
        self._messages = self._octets = 0

    @property
    def oldest(self) -> int:
        """The offset of the oldest record of the units that wait; 0 if none waits."""
        return min((unit.first for unit in self._units), default=0)

    def add(self, units: Iterable[Unit]) -> list[list[Unit]]:
        """Take ``units``; the groups that are closed by them, in order, none empty."""
        closed: list[list[Unit]] = []
        for unit in units:
            messages, octets = len(unit.messages), unit.size_bytes
            limits = self._limits
            if self._units and (self._messages + messages > limits.messages or self._octets + octets > limits.octets):
                closed.append(self.close())
            self._units.append(unit)
            self._messages += messages
            self._octets += octets
        return closed

    def close(self) -> list[Unit]:
        """End the group and return its units, perhaps none. A new group begins."""
        units, self._units = self._units, []
        self._messages = self._octets = 0
        return units
