"""Branches: those of one transaction, and the small steps that their verbs and the state server's answers take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from understudy.xa.core.codes import Answer, XaCode
from understudy.xa.core.errors import ProtocolError, RecoverFirstError, StateServerError, StateServerLostError
from understudy.xa.core.manager.steps import Flag, Steps, Tell, Verb, VerbName
from understudy.xa.core.register.wire import Ok, Refused, Reply, Request
from understudy.xa.core.states import BranchState, TxState
from understudy.xa.core.xid import Xid, branch_of


@attrs.define
class Branches:
    """The state of a transaction and of its branches.

    Args:
        gid: the global id.
        job: the container in which it is recovered.

    Attributes:
        identities: resource manager to its identity, if it has one; see `entry`.
        branches: label to the state of its branch, in the order of their start; those of other programs come at the end.
        proofs: label of each prepared branch to its proof; see `codes.Answer`.
        state: an illegal call raises `ProtocolError` and changes nothing.
    """

    gid: str
    job: str
    identities: Mapping[str, str] = attrs.field(factory=dict, kw_only=True)
    proofs: dict[str, str] = attrs.field(factory=dict, init=False)
    branches: dict[str, BranchState] = attrs.field(factory=dict, init=False)
    state: TxState = attrs.field(default=TxState.NEW, init=False)

    @property
    def all_complete(self) -> bool:
        """True if no branch remains to be completed."""
        return all(state is BranchState.COMPLETE for state in self.branches.values())

    @property
    def leaves(self) -> bool:
        """True if a branch is left to recovery when the transaction is over."""
        return not self.all_complete

    def label(self, resource: str) -> str:
        """The label of this program's branch of a resource manager."""
        return resource

    def xid(self, label: str) -> Xid:
        """The branch of a label."""
        return branch_of(self.gid, label, self.job)

    def _start(self, name: str, flags: Flag = Flag.NONE) -> Steps[Answer]:
        answer: Answer = yield Verb(VerbName.START, name, self.xid(name), flags)
        if answer.code == XaCode.OK:
            self.branches[name] = BranchState.ACTIVE
        elif answer.code == XaCode.RMFAIL:
            self.branches[name] = BranchState.ENDED  # it may have been started
        return answer

    def _end(self, names: Iterable[str]) -> Steps[dict[str, Answer]]:
        """End the association of branches; returns what was not OK."""
        failures: dict[str, Answer] = {}
        for name in names:
            self.branches[name] = BranchState.ENDED
            answer: Answer = yield Verb(VerbName.END, name, self.xid(name))
            if answer.code != XaCode.OK:
                failures[name] = answer
        return failures

    def _answer_to(self, request: Request) -> Steps[Reply | None]:
        """Tell the state server what it need not have heard: without it recovery asks the resource managers again.

        Returns:
            What it answers; None if that is lost.
        """
        try:
            reply: Reply = yield Tell(request)
        except StateServerLostError:
            return None
        return reply

    def _told(self, request: Request) -> Steps[bool]:
        """As `_answer_to`; whether the server took it."""
        return isinstance((yield from self._answer_to(request)), Ok)

    def _over(self, request: Request) -> Steps[None]:
        self.state = TxState.OVER
        yield from self._told(request)

    def _must(self, reply: object) -> None:
        if isinstance(reply, Refused):
            if reply.code == "recover_first":
                raise RecoverFirstError(reply.text)
            raise StateServerError(f"the state server refused transaction {self.gid}: {reply.text}")

    def _in_state(self, state: BranchState) -> list[str]:
        return [name for name, found in self.branches.items() if found is state]

    def _require(self, verb: str, *states: TxState) -> None:
        if self.state not in states:
            raise ProtocolError(f"transaction {self.gid} is {self.state.value}: {verb} is out of turn")
