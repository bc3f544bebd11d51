"""ProgramWork: the part of a global transaction that a joined program does, on branches of its own.

1. ``Enter`` or ``Join`` is durable before a branch is started, and ``Started`` is taken after it: from then on a recovery finds
   the branch. A recovery that came before it has found none, perhaps dropped the record, and ``Started`` is refused.
2. All its branches are prepared before ``Vote``. The vote is durable before the program says that its part is done.
3. After the vote it touches its branches no more: the program that began the transaction completes them, or recovery does.
4. Before it rolls back, ``Doom`` says that all must be. ``Settle`` names the branches that are rolled back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from understudy.xa.core.codes import Answer
from understudy.xa.core.errors import (
    OutcomeUnknownError,
    ProtocolError,
    RolledBackError,
    StateServerError,
    StateServerLostError,
    TicketError,
    WrongProfileError,
    WrongResourceManagerError,
)
from understudy.xa.core.manager.steps import Steps, Tell
from understudy.xa.core.manager.transaction import GlobalTransaction
from understudy.xa.core.register.wire import Doom, Enter, Refused, Settle, Vote, Welcome
from understudy.xa.core.states import BranchState, Outcome, TxState
from understudy.xa.core.xid import label_of


@attrs.define
class ProgramWork(GlobalTransaction):
    """The part of one program. Its branches have labels with its number.

    Attributes:
        program: the number; 0 before it has joined.
        voted: the vote is durable.
    """

    program: int = attrs.field(default=0, init=False)
    voted: bool = attrs.field(default=False, init=False)
    _recorded: list[str] = attrs.field(factory=list, init=False)

    @property
    def leaves(self) -> bool:
        """Prepared branches are left to the program that began the transaction, once the vote is durable."""
        return not self.voted and not self.all_complete

    def label(self, resource: str) -> str:
        return label_of(resource, self.program)

    def enter(self, resources: Iterable[str]) -> Steps[None]:
        """Join the transaction, and start branches.

        Args:
            resources: names of resource managers.

        Raises:
            TicketError: the transaction is not known, takes no program, or can only be rolled back; nothing was done.
            WrongProfileError: it is of another job or profile; nothing was done. `WrongResourceManagerError`: a resource manager of
                this program is another server than that of the transaction.
            StateServerError: the server refused, or its answer is lost; no branch was started.
            RolledBackError: a resource manager refused to start; the whole transaction is rolled back.
        """
        self._require("join", TxState.NEW)
        names = list(resources)
        self.state = TxState.OVER  # until the record is there
        reply = yield Tell(Enter(self.gid, names, self._identities_of(self.identities)))
        match reply:
            case Welcome(program):
                self.program = program
            case Refused("unknown" | "closed" | "doomed", text):
                raise TicketError(text)
            case Refused("wrong_profile", text):
                raise WrongProfileError(text)
            case Refused("wrong_resource", text):
                raise WrongResourceManagerError(text)
            case _:
                raise StateServerError(f"the state server lets nobody join transaction {self.gid}: {reply}")
        self._recorded = [self.label(name) for name in names]
        yield from self._start_all(self._recorded)

    def join(self, resource: str) -> Steps[None]:
        if resource not in self._recorded:
            self._recorded.append(resource)
        yield from super().join(resource)

    def share(self) -> Steps[None]:
        """A ticket is given by the program that began the transaction."""
        yield from self._refuse("gives a ticket")

    def commit(self) -> Steps[Outcome]:
        """The program that began the transaction commits."""
        yield from self._refuse("commits")
        raise AssertionError(self.gid)

    def vote(self) -> Steps[None]:
        """Prepare all branches and record the vote.

        Raises:
            RolledBackError: a resource manager refused, or the transaction can only be rolled back.
            OutcomeUnknownError: the answer to the vote is lost; the branches are left to the others, or to recovery.
        """
        self._require("vote", TxState.ACTIVE)
        self.state = TxState.ENDING
        yield from self._roll_back_if((yield from self._end(self._in_state(BranchState.ACTIVE))))
        yield from self._prepare_all()
        try:
            prepared = self._in_state(BranchState.PREPARED)
            reply = yield Tell(
                Vote(self.gid, prepared, {name: self.proofs[name] for name in prepared if self.proofs[name]})
            )
        except StateServerLostError as error:
            self.state = TxState.OVER
            raise OutcomeUnknownError(
                f"transaction {self.gid}: program {self.program} has prepared, and the answer to its vote is lost ({error})"
            ) from error
        if isinstance(reply, Refused):
            yield from self._roll_back_all(reply.text)
            raise RolledBackError(self.gid, {"": reply.text})
        self.state, self.voted = TxState.OVER, True

    def _refuse(self, verb: str) -> Steps[None]:
        yield from ()
        raise ProtocolError(f"transaction {self.gid} was begun by another program: only that one {verb}")

    def _withdraw(self, reason: str) -> Steps[None]:
        yield from self._answer_to(Doom(self.gid, f"program {self.program}: {reason}"))

    def _settle(
        self, heuristics: Mapping[str, Answer], failed: Mapping[str, Answer], *, committed: bool
    ) -> Steps[None]:
        """Settle all but the branches that could not be rolled back: the others or recovery meet those again and record them."""
        left = {*heuristics, *failed}
        yield from self._over(Settle(self.gid, [label for label in self._recorded if label not in left]))
