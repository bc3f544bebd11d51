"""ResourceManager: what the transaction manager asks of an adapter."""

from __future__ import annotations

import abc
import contextlib
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from understudy.xa.core.codes import OK, Answer, XaCode
from understudy.xa.core.errors import ResourceManagerError
from understudy.xa.core.manager.steps import Flag, Verb, VerbName
from understudy.xa.core.xid import Xid

LEAST_S: Final = 0.001


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
    a branch whose connection is gone connects anew. Of a COMMIT or ROLLBACK of a prepared branch, RMFAIL means that it may succeed
    later, and every other code but RETRY that a later attempt meets the same.
    """

    identity: str = ""
    """Which server and which database it is, or which group of brokers: 1 to 256 printable ASCII characters, that no other one has.

    It is read after `open`, is recorded with a transaction, and is compared before a branch is recovered. "": not compared.
    """

    timeout_s: float = 30
    """How long a verb takes at most, opening included; as long again if its answer is lost, and asked for. Then it is RMFAIL."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._deadline: float | None = None

    @abc.abstractmethod
    def open(self) -> None:
        """Connect, and learn the identity. Does nothing if it is open.

        Raises:
            ResourceManagerError: it cannot be reached, or cannot do it.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Disconnect. What is not prepared is rolled back by the resource manager."""

    @property
    @abc.abstractmethod
    def resource(self) -> Any:
        """The object that the application uses while a transaction is active."""

    def give_back(self) -> None:  # noqa: B027  # most have nothing to do
        """Make available again what was taken in a transaction that was rolled back, such as messages."""

    @contextlib.contextmanager
    def bounded(self, *, anew: bool = False) -> Iterator[float]:
        """Calls inside take `timeout_s` at most, together.

        Args:
            anew: the time begins anew: a lost answer is asked for.

        Returns:
            The deadline, of `time.monotonic`.
        """
        before = self._deadline
        if before is None or anew:
            self._deadline = time.monotonic() + self.timeout_s
        try:
            assert self._deadline is not None
            yield self._deadline
        finally:
            self._deadline = before

    def left_s(self) -> float:
        """How many seconds the verb may still take; above 0."""
        left = self.timeout_s if self._deadline is None else self._deadline - time.monotonic()
        return max(left, LEAST_S)

    def check_identity(self, found: str) -> None:
        """Keep the identity that a new connection tells. A connection is never opened anew to another server.

        Raises:
            ResourceManagerError: it is another one than before.
        """
        if self.identity and self.identity != found:
            raise ResourceManagerError(
                f"resource manager {self.name} was {self.identity}, and at the same address is {found} now"
            )
        self.identity = found

    def check_two_phases(self, why: str) -> None:  # noqa: B027  # most have nothing to check
        """See that branches can be prepared.

        Args:
            why: they must be, for the error.

        Raises:
            ResourceManagerError: they cannot.
        """

    def after_fork(self) -> None:
        """In a child: let go of the connection, which is the parent's, without a word to the server."""
        self.close()

    def call(self, verb: Verb) -> Answer:
        """Carry out one verb."""
        with self.bounded():
            return self._called(verb)

    def _called(self, verb: Verb) -> Answer:
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
            case VerbName.OUTCOME:
                return self.outcome(verb.xid, verb.proof)

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

    def outcome(self, xid: Xid, proof: str) -> Answer:
        """The outcome of a prepared branch that is gone; see `VerbName.OUTCOME`.

        Args:
            xid: of the branch.
            proof: what `prepare` gave with its answer.
        """
        return Answer(XaCode.HEURHAZ, "this resource manager does not tell what became of a branch")

    def outcome_of_lost(self, xid: Xid, proof: str, *, commits: bool) -> Answer:
        """The answer to COMMIT or ROLLBACK of a prepared branch whose own answer was lost, and that is gone now.

        Args:
            xid: of the branch.
            proof: of the branch; "" if it has none: then the lost verb is taken for done.
            commits: the verb was COMMIT.

        Returns:
            OK if the branch was completed as the verb says; NOTA if an operator has been quicker.
        """
        if not proof:
            return OK
        told = self.outcome(xid, proof)
        if told.code.passing:
            return told
        return OK if told.code == (XaCode.HEURCOM if commits else XaCode.HEURRB) else Answer(XaCode.NOTA, told.text)

    @abc.abstractmethod
    def recover(self) -> list[InDoubt]:
        """All branches that it has in doubt, of every program.

        Raises:
            ResourceManagerError: it cannot say.
        """
