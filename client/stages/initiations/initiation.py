"""Initiation: what the block of ``stages.begin()`` is given."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from understudy.client.stages.core.sends import Sends
from understudy.client.stages.errors import DemarcationError

Unstash = Callable[[Sends, bytes, object, timedelta | float | None], str]


class Initiation:
    """Messages and database of one initiation, between `begin` and its end.

    Attributes:
        id: of the initiation: from its name, or drawn by chance.
        sends: the messages so far.
    """

    def __init__(self, sends: Sends, database: object | None, unstash: Unstash) -> None:
        self.id = sends.origin.id
        self.sends = sends
        self._database = database
        self._unstash = unstash

    def unstash(self, stash: bytes, message: object, *, after: timedelta | float | None = None) -> str:
        """Go on with a flow that a stage has put aside by `Context.stash`: send the message of the next stage.

        A stash that is used twice sends one id twice: a stage with an inbox takes the message once.

        Raises:
            DemarcationError: the octets are no stash of this application.
        """
        return self._unstash(self.sends, stash, message, after)

    @property
    def db(self) -> Any:
        """The database, in the transaction of the initiation: in an ``async with`` what an ``async def`` stage is given.

        In a ``with`` it is what a ``def`` stage is given.

        Raises:
            DemarcationError: the application has none.
        """
        if self._database is None:
            raise DemarcationError("tx.db: the application has no database: Stages(..., database=sqlite('shop.db'))")
        return self._database
