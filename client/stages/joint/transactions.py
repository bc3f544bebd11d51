"""JointTransactions: the transaction manager of one worker, whose slots share it, and its recovery."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from understudy.client.stages.errors import ConfigurationError
from understudy.client.stages.joint.place import BANK, QUEUES, job_of
from understudy.client.stages.watching.points import AtPoint, Point
from understudy.in_thread import in_thread
from understudy.xa.core.codes import Answer, XaCode
from understudy.xa.core.errors import RecoveryFailedError, XaError
from understudy.xa.core.profiles.profile import Profile, ResourceConfig
from understudy.xa.core.xid import Xid
from understudy.xa.manager import TransactionManager
from understudy.xa.resource_managers.broker import BrokerResource
from understudy.xa.resource_managers.factory import make_resource_manager
from understudy.xa.resource_managers.port import ResourceManager

if TYPE_CHECKING:
    from understudy.client.stages.joint.session import JointSession

RECOVER_EVERY_S: Final = 5.0
MOST_THREADS: Final = 256
"""Calls at a time. In asyncio's own pool, calls that wait for a lock would leave no thread to the commit that frees it."""
_POINTS: Final = {
    f"prepare.{QUEUES}.after": Point.AFTER_PREPARE,
    "tell.decide.after": Point.AFTER_DECISION,
    f"commit.{BANK}.after": Point.BETWEEN_COMMITS,
}
"""Steps of the transaction manager that are points of a worker."""

_log = logging.getLogger("understudy.stages")


class BranchOfBroker(BrokerResource):
    """The broker's branch of a transaction, in which a channel of a stage works.

    The channel's part is done when the database is prepared already. So the delivery is not acknowledged before that, and is
    still in hand if the database refuses. What a branch has acknowledged goes back to its queue when the branch fails.

    Attributes:
        part: sends and acknowledges in the branch of a name.
        failed: the error of ``part``.
        done: ``part`` was done.
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__(name, options)
        self.expect(None)

    def expect(self, part: Callable[[Xid], None] | None) -> None:
        """The next transaction's part."""
        self.part = part
        self.failed: Exception | None = None
        self.done = False

    @property
    def resource(self) -> Any:
        return self

    def prepare(self, xid: Xid) -> Answer:
        return self._worked(xid) or super().prepare(xid)

    def commit(self, xid: Xid, *, one_phase: bool) -> Answer:
        return (self._worked(xid) if one_phase else None) or super().commit(xid, one_phase=one_phase)

    def _worked(self, xid: Xid) -> Answer | None:
        """Do the part; the answer if it could not be done."""
        part, self.part = self.part, None
        if part is not None:
            try:
                part(xid)
            except Exception as error:  # noqa: BLE001  # all is rolled back, and the slot raises it again
                self.failed = error
                return Answer(XaCode.RBCOMMFAIL, str(error))
            self.done = True
        return None


class JointTransactions:
    """Transactions over the database and the broker of an application.

    Args:
        application: its name; the job is the same for all workers of it.
        at_point: see `points`.
    """

    def __init__(self, application: str, profile: Profile, at_point: AtPoint) -> None:
        self._at_point = at_point
        self.threads = ThreadPoolExecutor(MOST_THREADS, "understudy-stages-xa")
        self._idle: dict[Any, list[JointSession]] = {}
        self.manager = TransactionManager(
            profile, job=job_of(application), make_resource=_resource, on_step=self._on_step
        )

    async def open(self) -> None:
        """Reach all servers, and complete what killed workers have left.

        Raises:
            ConfigurationError: one cannot be reached.
        """
        try:
            await in_thread(self.threads, self.manager.open)
        except RecoveryFailedError as error:
            _log.warning("stages: a transaction cannot be completed yet: %s", error)
        except XaError as error:
            raise ConfigurationError(f"xa=True: {error}") from error

    async def run(self) -> None:
        """Complete what other workers of the application leave, until it is cancelled.

        A begin would do that, too; but a message that is locked in such a transaction may be the only one.
        """
        while True:
            await asyncio.sleep(RECOVER_EVERY_S)
            try:
                for gid in await in_thread(self.threads, self.manager.recover):
                    _log.info("stages: transaction %s of another worker is completed", gid)
            except XaError as error:
                _log.warning("stages: nothing can be recovered: %s", error)

    def session(self, kind: Any, keep: Callable[[JointSession], None] | None = None) -> JointSession:
        """A session for one slot.

        Args:
            kind: the type of the parameter of its stage; None if it has none.
            keep: called with the session at the end of each use.
        """
        from understudy.client.stages.joint.session import JointSession  # noqa: PLC0415  # it names this module

        return JointSession(self.manager, self.threads, kind, keep)

    def take(self, kind: Any) -> JointSession:
        """A session for one initiation. Its `let_go` keeps it for the next one: its engine of SQLAlchemy is made once."""
        idle = self._idle.setdefault(kind, [])
        try:
            return idle.pop()
        except IndexError:  # not asked for beforehand: another thread may take the last one
            return self.session(kind, idle.append)

    async def close(self) -> None:
        await in_thread(self.threads, self.manager.close)
        self.threads.shutdown(wait=False)

    def close_blocking(self) -> None:
        """The same for a caller without an event loop."""
        self.manager.close()
        self.threads.shutdown(wait=False)

    def _on_step(self, label: str) -> None:
        if (point := _POINTS.get(label)) is not None:
            self._at_point(point, "")


def _resource(config: ResourceConfig) -> ResourceManager:
    if config.name == QUEUES:
        return BranchOfBroker(config.name, config.options)
    return make_resource_manager(config)
