"""Commands of the reserved exchange ``understudy.admin``: for the broker and for plugins that bring some."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from understudy.broker.errors import UnderstudyError


class CommandRefusedError(UnderstudyError):
    """A command is not carried out: its client is answered ``{"error": text}``."""


@attrs.frozen(kw_only=True)
class CommandRequest:
    """One request that was permitted.

    Attributes:
        arguments: what stands beside the command's name.
        user, vhost: who has asked, and where.
        answer: sends the answer, an object that JSON can hold. Called once, on the event loop's thread, now or later; later, it
            goes out with the next turn, which comes within 50 ms. Of a core that was dropped meanwhile it goes nowhere.
    """

    arguments: Mapping[str, Any]
    user: str
    vhost: str
    answer: Callable[[Mapping[str, Any]], object]

    def take_nothing(self) -> None:
        """For a command without arguments.

        Raises:
            CommandRefusedError: there are some.
        """
        if self.arguments:
            raise CommandRefusedError(f"{next(iter(self.arguments))!r:.80} is nothing that this command takes")


Command = Callable[[CommandRequest], None]
"""Carries a request out, or begins to. It may raise `CommandRefusedError` instead of answering."""

Commands = Mapping[str, Command]
"""By name."""
