"""ResourceManager: what the transaction manager asks of an adapter."""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

from understudy.xa.core.codes import Answer
from understudy.xa.core.steps import Flag, Verb, VerbName
from understudy.xa.core.xid import Xid


class InDoubt(NamedTuple):
    """A branch that a resource manager lists.

    Attributes:
        state: `prepared`, `heuristically committed` or `heuristically rolled back`.
    """

    xid: Xid
    state: str = "prepared"


class ResourceManager(abc.ABC):
    """One resource manager, for one thread of control at a time.

    The verbs answer and do not raise: a lost connection is RMFAIL, what the library refuses is the code that fits best. A verb on
    a branch whose connection is gone connects anew.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @abc.abstractmethod
    def open(self) -> None:
        """Connect, and check that two-phase commit is possible. Does nothing if it is open.

        Raises:
            ResourceManagerError: it cannot be reached, or cannot do it.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Disconnect. What is not prepared is rolled back by the resource manager."""

    @property
    @abc.abstractmethod
    def resource(self) -> Any:
        """What the application works with while a transaction is active."""

    def give_back(self) -> None:  # noqa: B027  # most have nothing to do
        """Make available again what was taken in a transaction that was rolled back, such as messages."""

    def call(self, verb: Verb) -> Answer:
        """Carry out one verb."""
        match verb.name:
            case VerbName.START:
                return self.start(verb.xid, verb.flags)
            case VerbName.END:
                return self.end(verb.xid, verb.flags)
            case VerbName.PREPARE:
                return self.prepare(verb.xid)
            case VerbName.COMMIT:
                return self.commit(verb.xid, one_phase=Flag.ONE_PHASE in verb.flags)
            case VerbName.ROLLBACK:
                return self.rollback(verb.xid)
            case VerbName.FORGET:
                return self.forget(verb.xid)

    @abc.abstractmethod
    def start(self, xid: Xid, flags: Flag) -> Answer: ...

    @abc.abstractmethod
    def end(self, xid: Xid, flags: Flag) -> Answer: ...

    @abc.abstractmethod
    def prepare(self, xid: Xid) -> Answer: ...

    @abc.abstractmethod
    def commit(self, xid: Xid, *, one_phase: bool) -> Answer: ...

    @abc.abstractmethod
    def rollback(self, xid: Xid) -> Answer: ...

    @abc.abstractmethod
    def forget(self, xid: Xid) -> Answer: ...

    @abc.abstractmethod
    def recover(self) -> list[InDoubt]:
        """All branches that it has in doubt, of every program.

        Raises:
            ResourceManagerError: it cannot say.
        """
