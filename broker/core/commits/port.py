"""CommitsPort: the leading broker as its transactions see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from understudy.broker.core.moving.port import MovingPort

if TYPE_CHECKING:
    from understudy.broker.core.commits.parted_bodies import PartedBodies
    from understudy.broker.core.commits.transactions import Transactions


class CommitsPort(MovingPort, Protocol):
    """See ``Broker`` for each name."""

    @property
    def transactions(self) -> Transactions: ...
    @property
    def parted_bodies(self) -> PartedBodies: ...
