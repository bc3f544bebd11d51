"""Gathering: the program that began a transaction waits for the votes of the others before its own branches are prepared."""

from __future__ import annotations

from typing import Final

from understudy.xa.core.errors import ProgramsLateError, RolledBackError, StateServerLostError
from understudy.xa.core.manager.steps import Steps, Tell, Wait
from understudy.xa.core.register.wire import Gather, Gathered

WAIT_MS: Final = 30_000
POLL_MS: Final = 20


def gathered(gid: str, wait_ms: int = WAIT_MS) -> Steps[Gathered | RolledBackError]:
    """Ask the state server until all joined programs have voted yes, or one of them does not.

    Args:
        gid: of the transaction.
        wait_ms: how long, by the waits between the questions; 0 asks once.

    Returns:
        Which branches other programs have prepared; or why all must be rolled back, for the caller to raise.
    """
    waits: list[int] = []
    for left in range(wait_ms // POLL_MS, -1, -1):
        try:
            reply = yield Tell(Gather(gid))
        except StateServerLostError as error:
            return RolledBackError(gid, {"": str(error)})
        if not isinstance(reply, Gathered):
            return RolledBackError(gid, {"": getattr(reply, "text", str(reply))})
        if not reply.waits:
            return reply
        waits = reply.waits
        if left:
            yield Wait(POLL_MS)
    return ProgramsLateError(gid, waits, wait_ms)
