"""GlobalTransaction: what a transaction manager does, step by step, from begin to its end.

The order is what makes it safe (X/Open CAE C193; presumed abort):

1. ``Begin`` is durable on the state server before any branch is started, ``Join`` before a further one is. ``Started`` is taken
   behind the start: a recovery that came before has found no branch, perhaps dropped the record, and ``Started`` is refused.
2. All branches are prepared before the decision.
3. The decision to commit is durable before the first branch is committed. A rollback is not recorded: what has no decision is
   rolled back by recovery.
4. ``Done`` is told when all branches are complete. If it is lost, recovery finds no branch, and asks what became of it.

A transaction with one branch commits in one phase: that resource manager decides. A branch that answers RDONLY to prepare has
nothing to commit. If the answer to the decision is lost, nothing more is done to any branch: the record decides. If other programs
work on the transaction, their votes come before step 2 (`gathering`, `program`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from understudy.xa.core.codes import Answer, XaCode
from understudy.xa.core.errors import (
    OutcomeUnknownError,
    ProtocolError,
    RolledBackError,
    StateServerLostError,
)
from understudy.xa.core.manager.branches import Branches
from understudy.xa.core.manager.finish import completed
from understudy.xa.core.manager.gathering import WAIT_MS, gathered
from understudy.xa.core.manager.heuristics import heuristic_error
from understudy.xa.core.manager.steps import Flag, Steps, Tell, Verb, VerbName
from understudy.xa.core.register.wire import (
    Begin,
    Decide,
    Done,
    Doom,
    Gathered,
    Heuristic,
    Join,
    Ok,
    Refused,
    Release,
    Request,
    Settle,
    Share,
    Started,
)
from understudy.xa.core.states import BranchState, Outcome, TxState
from understudy.xa.core.xid import resource_of


@attrs.define
class GlobalTransaction(Branches):
    """One transaction over several resource managers. Each method is a generator of steps.

    Args:
        gid, job: as `Branches`.
        wait_ms: how long a commit waits for the votes of other programs.

    Attributes:
        shared: other programs may join.
    """

    wait_ms: int = WAIT_MS
    shared: bool = attrs.field(default=False, init=False)

    # -- the work -----------------------------------------------------------------------------------------------------

    def begin(self, resources: Iterable[str]) -> Steps[None]:
        """Record the transaction, and start its branches.

        Raises:
            ProtocolError: it has begun already.
            RecoverFirstError: the job has transactions to recover; no branch was started.
            StateServerError: the server refused, or its answer is lost; no branch was started.
            RolledBackError: a resource manager refused to start; the others are rolled back.
        """
        self._require("begin", TxState.NEW)
        names = list(resources)
        self.state = TxState.OVER  # until the record is there
        self._must((yield Tell(Begin(self.gid, names, self._identities_of(names)))))
        yield from self._start_all(names)

    def _start_all(self, names: Iterable[str]) -> Steps[None]:
        self.state = TxState.ACTIVE
        answers: dict[str, Answer] = {}
        for name in names:
            answers[name] = yield from self._start(name)
            if answers[name].code != XaCode.OK:
                break
        yield from self._tell_or_roll_back(
            Started(self.gid, {name: int(answer.code) for name, answer in answers.items()})
        )
        yield from self._roll_back_if({name: answer for name, answer in answers.items() if answer.code != XaCode.OK})

    def join(self, resource: str) -> Steps[None]:
        """Start the branch of one more resource manager, or go on with one that has left.

        Raises:
            ProtocolError, RolledBackError: as :meth:`begin`. A lost record rolls back, too.
        """
        self._require("join", TxState.ACTIVE)
        state = self.branches.get(resource)
        if state is BranchState.ACTIVE:
            return
        if state is None:
            identity = self.identities.get(resource_of(resource), "")
            yield from self._tell_or_roll_back(Join(self.gid, resource, identity))
        answer = yield from self._start(resource, Flag.NONE if state is None else Flag.JOIN)
        if (
            state is None
        ):  # as in `begin`: a recovery that came before the start has found no branch, and then this is refused
            yield from self._tell_or_roll_back(Started(self.gid, {resource: int(answer.code)}))
        yield from self._roll_back_if({resource: answer} if answer.code != XaCode.OK else {})

    def leave(self, resource: str) -> Steps[None]:
        """End the association with a resource manager; its branch stays part of the transaction."""
        self._require("leave", TxState.ACTIVE)
        if self.branches.get(resource) is not BranchState.ACTIVE:
            raise ProtocolError(f"transaction {self.gid}: resource manager {resource!r} is not working on it")
        yield from self._roll_back_if((yield from self._end([resource])))

    def share(self) -> Steps[None]:
        """Let other programs join.

        Raises:
            ProtocolError, RolledBackError: as :meth:`join`.
        """
        self._require("ticket", TxState.ACTIVE)
        if not self.shared:
            yield from self._tell_or_roll_back(Share(self.gid))
            self.shared = True

    def suspend(self) -> Steps[None]:
        """Dissociate the thread or task from the transaction."""
        self._require("suspend", TxState.ACTIVE)
        failures: dict[str, Answer] = {}
        for name in self._in_state(BranchState.ACTIVE):
            answer: Answer = yield Verb(VerbName.END, name, self.xid(name), Flag.SUSPEND)
            if answer.code != XaCode.OK:
                failures[name] = answer
        yield from self._roll_back_if(failures)
        self.state = TxState.SUSPENDED

    def resume(self) -> Steps[None]:
        """Associate the thread or task with the transaction again."""
        self._require("resume", TxState.SUSPENDED)
        self.state = TxState.ACTIVE
        failures: dict[str, Answer] = {}
        for name in self._in_state(BranchState.ACTIVE):
            answer: Answer = yield Verb(VerbName.START, name, self.xid(name), Flag.RESUME)
            if answer.code != XaCode.OK:
                failures[name] = answer
        yield from self._roll_back_if(failures)

    # -- the end ------------------------------------------------------------------------------------------------------

    def give_up(self) -> None:
        """A call was interrupted between two steps, perhaps when the decision was sent. So only recovery goes on, by the record."""
        self.state = TxState.OVER

    def rollback(self, reason: str = "asked for") -> Steps[None]:
        """Roll back all branches.

        Args:
            reason: that other programs are told.

        Raises:
            HeuristicError: a branch was committed heuristically.
        """
        self._require("rollback", TxState.ACTIVE, TxState.SUSPENDED)
        if self.state is TxState.SUSPENDED:  # a resource manager ends only what is associated
            try:
                yield from self.resume()
            except RolledBackError:
                return
        self.state = TxState.ENDING
        yield from self._end(self._in_state(BranchState.ACTIVE))
        yield from self._roll_back_all(reason)

    def commit(self) -> Steps[Outcome]:
        """Commit all branches, or none: `vote`, then `finish`.

        Returns:
            How; see `Outcome`.

        Raises:
            RolledBackError, OutcomeUnknownError, HeuristicError: as `vote` and `finish`.
        """
        outcome = yield from self.vote()
        return (yield from self.finish()) if outcome is None else outcome

    def vote(self) -> Steps[Outcome | None]:
        """The first phase, and the decision. Afterwards nothing but `finish` is possible.

        Returns:
            None if the decision to commit is durable and `finish` must follow; else how the transaction was committed: one branch
            commits in one phase, and branches that have written nothing need no second one.

        Raises:
            RolledBackError: a resource manager, the state server or another program refused; `ProgramsLateError`: a program has
                not voted in time.
            OutcomeUnknownError: the answer to the decision is lost.
            HeuristicError: the only resource manager decided on its own.
        """
        self._require("commit", TxState.ACTIVE)
        self.state = TxState.ENDING
        yield from self._roll_back_if((yield from self._end(self._in_state(BranchState.ACTIVE))))
        others = yield from self._gathered()
        if len(self.branches) == 1 and not others.branches:
            return (yield from self._commit_in_one_phase(next(iter(self.branches))))
        yield from self._prepare_all()
        own = {name: self.proofs[name] for name in self._in_state(BranchState.PREPARED)}
        self.branches.update(dict.fromkeys(others.branches, BranchState.PREPARED))
        self.proofs.update(others.prepared)
        if not self._in_state(BranchState.PREPARED):
            yield from self._over(self._done())
            return Outcome.READ_ONLY
        yield from self._decide(own)
        self.state = TxState.DECIDED
        return None

    def finish(self) -> Steps[Outcome]:
        """The second phase of a transaction that is decided.

        Raises:
            HeuristicError: a resource manager has completed its branch on its own, against the decision.
        """
        self._require("finish", TxState.DECIDED)
        return (yield from self._commit_all(self._in_state(BranchState.PREPARED)))

    def _gathered(self) -> Steps[Gathered]:
        """Wait for the votes of all joined programs; returns what they have prepared."""
        found = (yield from gathered(self.gid, self.wait_ms)) if self.shared else Gathered([], [])
        if isinstance(found, RolledBackError):
            yield from self._roll_back_all(found.reasons[""])
            raise found
        return found

    def _prepare_all(self) -> Steps[None]:
        for name in list(self.branches):
            answer: Answer = yield Verb(VerbName.PREPARE, name, self.xid(name))
            if answer.code == XaCode.OK:
                self.branches[name] = BranchState.PREPARED
                self.proofs[name] = answer.proof
            elif answer.code == XaCode.RDONLY:
                self.branches[name] = BranchState.COMPLETE
            else:
                if answer.code.rolled_back:
                    self.branches[name] = BranchState.COMPLETE
                yield from self._roll_back_if({name: answer})

    def _decide(self, prepared: dict[str, str]) -> Steps[None]:
        try:
            reply = yield Tell(Decide(self.gid, prepared))
        except StateServerLostError as error:
            self.state = TxState.OVER
            raise OutcomeUnknownError(
                f"transaction {self.gid} is prepared and the answer to its decision is lost ({error}); "
                "the recovery of its job completes it as the state server's record says"
            ) from error
        if isinstance(reply, Refused):
            yield from self._roll_back_all(reply.text)
            raise RolledBackError(self.gid, {"": f"the state server refused the decision: {reply.text}"})

    def _commit_all(self, prepared: list[str]) -> Steps[Outcome]:
        failed: dict[str, Answer] = {}
        heuristics: dict[str, Answer] = {}
        for name in prepared:
            answer = yield from completed(Verb(VerbName.COMMIT, name, self.xid(name)), self.proofs.get(name) or None)
            if answer.code == XaCode.NOTA and (
                yield from self._told(Heuristic(self.gid, {name: int(XaCode.HEURHAZ)}, unfinished=True))
            ):
                # This client still owns the transaction, so no recovery has committed the branch.
                answer = Answer(XaCode.HEURHAZ, "the prepared branch is gone, and nothing tells what became of it")
            if answer.code.heuristic:
                heuristics[name] = answer
            elif answer.code == XaCode.OK:
                self.branches[name] = BranchState.COMPLETE
            else:
                failed[name] = answer
        yield from self._settle(heuristics, failed, committed=True)
        return Outcome.COMMIT_PENDING if failed else Outcome.COMMITTED

    def _commit_in_one_phase(self, name: str) -> Steps[Outcome]:
        answer: Answer = yield Verb(VerbName.COMMIT, name, self.xid(name), Flag.ONE_PHASE)
        if answer.code in (XaCode.OK, XaCode.RDONLY):
            self.branches[name] = BranchState.COMPLETE
            yield from self._over(self._done())
            return Outcome.COMMITTED if answer.code == XaCode.OK else Outcome.READ_ONLY
        if answer.code.heuristic:
            yield from self._settle({name: answer}, {}, committed=True)
            return Outcome.COMMITTED
        if answer.code == XaCode.RMFAIL:
            yield from self._over(Release(self.gid, f"{name}: {answer}"))
            raise OutcomeUnknownError(
                f"transaction {self.gid}: {name} was asked to commit in one phase and its answer is lost ({answer})"
            )
        yield from self._roll_back_all(f"{name}: {answer}")
        raise RolledBackError(self.gid, {name: str(answer)})

    # -- rollback -----------------------------------------------------------------------------------------------------

    def _roll_back_if(self, failures: Mapping[str, Answer]) -> Steps[None]:
        """Roll back and say why, if there is a reason."""
        if failures:
            yield from self._end(self._in_state(BranchState.ACTIVE))
            reasons = {name: str(answer) for name, answer in failures.items()}
            yield from self._roll_back_all("; ".join(f"{name}: {text}" for name, text in reasons.items()))
            raise RolledBackError(self.gid, reasons)

    def _withdraw(self, reason: str) -> Steps[None]:
        """Keep other programs from voting. This one rolls back the branches of those that do not work any more."""
        if self.shared and isinstance(reply := (yield from self._answer_to(Doom(self.gid, reason))), Gathered):
            # They come behind the own ones: a session with a branch of its own takes each verb for one about that branch.
            for label in reply.branches:
                state = BranchState.PREPARED if label in reply.prepared else BranchState.ENDED
                self.branches.setdefault(label, state)
            self.proofs.update(reply.prepared)

    def _roll_back_all(self, reason: str) -> Steps[None]:
        yield from self._withdraw(reason)
        failed: dict[str, Answer] = {}
        heuristics: dict[str, Answer] = {}
        for name, state in list(self.branches.items()):
            if state is BranchState.COMPLETE:
                continue
            proof = self.proofs.get(name, "") if state is BranchState.PREPARED else None
            answer = yield from completed(Verb(VerbName.ROLLBACK, name, self.xid(name)), proof)
            if answer.code.heuristic:
                heuristics[name] = answer
            elif answer.code in (XaCode.OK, XaCode.NOTA) or answer.code.rolled_back:
                self.branches[name] = BranchState.COMPLETE
            else:
                failed[name] = answer
        yield from self._settle(heuristics, failed, committed=False)

    def _settle(
        self, heuristics: Mapping[str, Answer], failed: Mapping[str, Answer], *, committed: bool
    ) -> Steps[None]:
        """Tell the state server how it went. What was completed heuristically as it was decided is no error."""
        wanted = XaCode.HEURCOM if committed else XaCode.HEURRB
        against = {name: answer for name, answer in heuristics.items() if answer.code != wanted}
        codes = {name: int(answer.code) for name, answer in against.items()}
        known = not against or (yield from self._told(Heuristic(self.gid, codes, unfinished=bool(failed))))
        for name in heuristics if known else ():  # what is recorded nowhere is not to be forgotten
            yield Verb(VerbName.FORGET, name, self.xid(name))
        if failed:
            yield from self._over(Release(self.gid, "; ".join(f"{name}: {answer}" for name, answer in failed.items())))
        elif self.shared or not against:
            yield from self._over(self._done())
        self.state = TxState.OVER
        if against:
            as_decided = any(state is BranchState.COMPLETE for state in self.branches.values())
            raise heuristic_error(self.gid, against, committed=committed, as_decided=as_decided)

    def _tell_or_roll_back(self, request: Request) -> Steps[None]:
        """Tell the state server; if it does not take it, roll back.

        Raises:
            RolledBackError: it did not.
        """
        try:
            reply = yield Tell(request)
        except StateServerLostError as error:
            reason = str(error)
        else:
            if isinstance(reply, Ok):
                return
            reason = f"the state server refused: {reply.text}"
        yield from self._end(self._in_state(BranchState.ACTIVE))
        yield from self._roll_back_all(reason)
        raise RolledBackError(self.gid, {"": reason})

    def _identities_of(self, resources: Iterable[str]) -> dict[str, str]:
        return {name: self.identities[name] for name in resources if self.identities.get(name)}

    def _done(self) -> Request:
        """All branches are complete that this program knows of."""
        return Settle(self.gid, list(self.branches)) if self.shared else Done(self.gid)
