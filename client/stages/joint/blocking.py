"""BlockingJointSession: a transaction over both for an initiation without asyncio."""

from __future__ import annotations

from collections.abc import Callable

from understudy.client.stages.joint.session import JointSession
from understudy.xa.core.xid import Xid


class BlockingJointSession:
    """A session, as `initiations.blocking` uses it."""

    def __init__(self, below: JointSession) -> None:
        self._below = below

    def begin(self) -> None:
        self._below.begin_blocking()

    def claim(self, stage: str, message_id: str, now_ms: int) -> bool:
        return self._below.claim_blocking(stage, message_id, now_ms)

    def commit(self, part: Callable[[Xid], None] | None) -> None:
        """See `JointSession.commit`."""
        self._below.commit_blocking(part)

    def rollback(self) -> None:
        self._below.rollback_blocking()

    def let_go(self) -> None:
        self._below.let_go()

    def ended_by_stage(self, *, failed: bool = False) -> str:
        return self._below.ended_by_stage(failed=failed)

    def argument(self) -> object:
        return self._below.argument()
