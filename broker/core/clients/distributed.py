"""Distributed transactions on a channel: class 100, ``dtx``, and the same verbs as messages (``dtx_messages.py``).

What belongs to the channel is here: that it was selected, on which branch it works, which ones it has suspended. The branches
themselves belong to the broker (``dtx_manager.py``); most verbs only ask it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol

from understudy.broker.amqp.constants import FRAME_OVERHEAD
from understudy.broker.amqp.methods import (
    DTX_COMMIT,
    DTX_COMMIT_OK,
    DTX_COMPLETE,
    DTX_COMPLETE_OK,
    DTX_END,
    DTX_END_OK,
    DTX_FORGET,
    DTX_FORGET_OK,
    DTX_GET_TIMEOUT,
    DTX_GET_TIMEOUT_OK,
    DTX_PREPARE,
    DTX_PREPARE_OK,
    DTX_RECOVER,
    DTX_RECOVER_OK,
    DTX_ROLLBACK,
    DTX_ROLLBACK_OK,
    DTX_SELECT,
    DTX_SELECT_OK,
    DTX_SET_TIMEOUT,
    DTX_SET_TIMEOUT_OK,
    DTX_START,
    DTX_START_OK,
)
from understudy.broker.core.branches.dtx_lists import prepared_in
from understudy.broker.core.branches.dtx_manager import BranchState, BranchWork
from understudy.broker.core.clients.association import Association
from understudy.broker.core.watching.told import Told
from understudy.broker.errors import DtxCommandInvalidError, IllegalStateError, PreconditionFailedError
from understudy.broker.transactions.dtx_branch import BranchName
from understudy.broker.transactions.outcome_query import tx_id_text
from understudy.broker.transactions.outcomes import Outcome
from understudy.broker.transactions.xa_status import XaStatus
from understudy.broker.transactions.xid import Xid

if TYPE_CHECKING:
    from understudy.broker.core.clients.channel import Channel, Handler

OPERATORS_NAME = "understudy.dtx"
"""Whoever may configure an exchange of this name in a vhost may complete its branches by hand."""
RECOVER_OVERHEAD = FRAME_OVERHEAD + 16
"""Octets of a frame of recover-ok beside the list."""


class Asker(Protocol):
    """The sender of a verb, to whom the answer goes.

    Attributes:
        key: of the method by which the request came: what a close names.
    """

    @property
    def key(self) -> int: ...

    def answer(self, *values: Any) -> bool:
        """Answer, with the arguments of the method's ``-ok``. Returns whether the answer has left: a reply queue may be gone."""


class MethodAsker:
    """The sender of a verb by its method. It has no state: one for all requests of a channel."""

    def __init__(self, channel: Channel, key: int, ok_key: int) -> None:
        self.key = key
        self._channel = channel
        self._ok_key = ok_key

    def answer(self, *values: Any) -> bool:
        self._channel.send(self._ok_key, *values)
        return True


class _ToldAsker(NamedTuple):
    """An `Asker` whose answer is heard by others, too."""

    key: int
    answer: Callable[..., bool]


_DECIDED: Final = {
    ("dtx.prepare-ok", XaStatus.OK): "prepared",
    ("dtx.prepare-ok", XaStatus.RBROLLBACK): Outcome.ROLLED_BACK.text,
    ("dtx.prepare-ok", XaStatus.RBTIMEOUT): Outcome.ROLLED_BACK.text,
    ("dtx.commit-ok", XaStatus.OK): Outcome.COMMITTED.text,
    ("dtx.commit-ok", XaStatus.RBROLLBACK): Outcome.ROLLED_BACK.text,
    ("dtx.commit-ok", XaStatus.RBTIMEOUT): Outcome.ROLLED_BACK.text,
    ("dtx.rollback-ok", XaStatus.OK): Outcome.ROLLED_BACK.text,
    ("dtx.rollback-ok", XaStatus.RBTIMEOUT): Outcome.ROLLED_BACK.text,
}
_METHODS: Final = {
    "select": (DTX_SELECT, DTX_SELECT_OK),
    "start": (DTX_START, DTX_START_OK),
    "end": (DTX_END, DTX_END_OK),
    "prepare": (DTX_PREPARE, DTX_PREPARE_OK),
    "commit": (DTX_COMMIT, DTX_COMMIT_OK),
    "rollback": (DTX_ROLLBACK, DTX_ROLLBACK_OK),
    "recover": (DTX_RECOVER, DTX_RECOVER_OK),
    "forget": (DTX_FORGET, DTX_FORGET_OK),
    "get-timeout": (DTX_GET_TIMEOUT, DTX_GET_TIMEOUT_OK),
    "set-timeout": (DTX_SET_TIMEOUT, DTX_SET_TIMEOUT_OK),
    "complete": (DTX_COMPLETE, DTX_COMPLETE_OK),
}
"""Verb: its method, and what that is answered with."""


class Distributed:
    """The distributed side of a channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._broker = channel.broker
        self.selected = False
        self._works_on: Association | None = None
        self._suspended: dict[BranchName, Association] = {}

    def handlers(self) -> dict[int, Handler]:
        return {key: self._handler(name, MethodAsker(self._channel, key, ok)) for name, (key, ok) in _METHODS.items()}

    def _handler(self, name: str, asker: MethodAsker) -> Handler:
        return lambda args: self.carry_out(name, asker, args)

    def carry_out(self, name: str, asker: Asker, args: tuple[Any, ...]) -> None:
        """Do what the verb ``name`` says, with the arguments of its method.

        A broker that does not answer yet does not know its branches either: whatever is asked of them waits.
        """
        verb = self._VERBS[name]
        if self._broker.role.answering or name == "select":
            verb(self, asker, args)
        else:
            self._channel.carry_out_when_applied(asker.key, verb, self, asker, args)

    def _name(self, args: tuple[Any, ...]) -> BranchName:
        """The branch that a method's first three arguments name."""
        return self._channel.connection.vhost, Xid.checked(*args[:3])

    def _answer(self, asker: Asker) -> Callable[[Any], None]:
        """The channel takes nothing more until this is called, with what ``asker`` is answered; nothing overtakes that verb.

        Its record may be appended only at the end of the turn (PREPARE), so that a close waits for it as well.
        """
        channel = self._channel
        channel.wait_for(asker.key)
        awaited = channel.abandoned
        return lambda value: channel.answered(lambda: asker.answer(int(value)), awaited)

    def _decision(self, asker: Asker, method: str, args: tuple[Any, ...]) -> Callable[[Any], None]:
        """`_answer` of a verb that prepares or decides a branch; whoever listens hears what the manager is told."""
        if not self._broker.hooks.on_told:
            return self._answer(asker)
        name = self._name(args)
        tx = self._broker.dtx.content(name)
        channel = self._channel
        answer = asker.answer

        def tell(status: int) -> bool:
            if not answer(status):
                return False
            xa = XaStatus(status)
            outcome = _DECIDED.get((method, xa), xa.name.lower())
            self._broker.hooks.tell_outcome(Told(method, outcome, channel, tx, str(name[1])))
            return True

        return self._answer(_ToldAsker(asker.key, tell))

    def _select(self, asker: Asker, args: tuple[Any, ...]) -> None:
        channel = self._channel
        if channel.publishing.confirming or channel.transacting.active:
            mode = "confirm" if channel.publishing.confirming else "tx"
            raise PreconditionFailedError(f"cannot switch from {mode} to dtx mode")
        self.selected = True
        asker.answer()

    # -- association ----------------------------------------------------------------------------------------------

    def _start(self, asker: Asker, args: tuple[Any, ...]) -> None:
        join, resume = args[3:]
        if not self.selected:
            raise DtxCommandInvalidError("dtx.start before dtx.select")
        if join and resume:
            raise DtxCommandInvalidError("dtx.start with both join and resume")
        name = self._name(args)
        if self._works_on is not None:
            raise DtxCommandInvalidError(f"dtx.start of {name[1]} while this channel works on {self._works_on.work}")
        if resume:
            association = self._suspended.pop(name, None)
            if association is None:
                raise DtxCommandInvalidError(f"branch {name[1]} is not suspended on this channel")
            association.resume()
            if association.work.state is BranchState.FAILED:
                association.leave()
                self._has_failed(asker, association.work)
                return
            self._work_on(association)
        elif join:
            work = self._broker.dtx.joined(self._channel, asker.key, name)
            if work is None:
                return
            if work.state is BranchState.FAILED:
                self._has_failed(asker, work)
                return
            if name in self._suspended:
                raise DtxCommandInvalidError(f"{work} is suspended on this channel; resume it")
            self._work_on(Association(self._channel, work))
        else:
            self._work_on(Association(self._channel, self._broker.dtx.start(name)))
        asker.answer(XaStatus.OK)

    def _has_failed(self, asker: Asker, work: BranchWork) -> None:
        """Nothing is started. A replaced broker must not say so: its successor may have one of that name that has not failed."""
        status = work.failed
        self._channel.answer_when_acknowledged(asker.key, lambda: asker.answer(status))

    def _work_on(self, association: Association | None) -> None:
        """Publishes and acknowledgements go to the branch from now on; with None, are done at once."""
        self._works_on = association
        channel = self._channel
        demarcation = association if association is not None else channel.transacting
        channel.publishing.demarcate(demarcation)
        channel.consuming.demarcate(demarcation)

    def _end(self, asker: Asker, args: tuple[Any, ...]) -> None:
        fail, suspend = args[3:]
        name = self._name(args)
        association = self._suspended.get(name)
        if association is None:
            association = self._works_on
            if association is None:
                raise IllegalStateError(f"this channel works on no branch, and has not suspended {name[1]}")
            if association.work.name != name:
                raise DtxCommandInvalidError(f"dtx.end of {name[1]} while this channel works on {association.work}")
        work = association.work
        if fail:
            self._broker.dtx.fail(work, XaStatus.RBROLLBACK, "its client ended it with fail")
        if suspend and not fail:
            if association.suspended:
                raise DtxCommandInvalidError(f"{work} is suspended already")
            association.record_accepts()
            association.suspend()
            self._suspended[name] = association
            self._work_on(None)
        else:
            association.leave()
            if self._suspended.pop(name, None) is None:
                self._work_on(None)
        if fail and suspend:
            raise DtxCommandInvalidError(f"dtx.end with both fail and suspend; {work} has failed")
        asker.answer(work.failed)

    # -- what a transaction manager asks --------------------------------------------------------------------------

    def _prepare(self, asker: Asker, args: tuple[Any, ...]) -> None:
        content = self._broker.dtx.content(self._name(args))
        transaction = tx_id_text(content.tx_id) if content is not None else ""
        told = asker.answer
        asker = _ToldAsker(asker.key, lambda status: told(status, "" if status else transaction))
        answer = self._decision(asker, "dtx.prepare-ok", args)
        self._broker.dtx.prepare(self._channel, asker.key, self._name(args), answer)

    def _commit(self, asker: Asker, args: tuple[Any, ...]) -> None:
        answer = self._decision(asker, "dtx.commit-ok", args)
        self._broker.dtx.commit(self._channel, asker.key, self._name(args), args[3], answer)

    def _rollback(self, asker: Asker, args: tuple[Any, ...]) -> None:
        answer = self._decision(asker, "dtx.rollback-ok", args)
        self._broker.dtx.rollback(self._channel, asker.key, self._name(args), answer)

    def _forget(self, asker: Asker, args: tuple[Any, ...]) -> None:
        answer = self._answer(asker)
        self._broker.dtx.forget(self._channel, asker.key, self._name(args), answer)

    def _get_timeout(self, asker: Asker, args: tuple[Any, ...]) -> None:
        answer = self._answer(asker)
        self._broker.dtx.timeout_s(self._channel, asker.key, self._name(args), answer)

    def _set_timeout(self, asker: Asker, args: tuple[Any, ...]) -> None:
        answer = self._answer(asker)
        self._broker.dtx.set_timeout(self._channel, asker.key, self._name(args), args[3], answer)

    def _complete(self, asker: Asker, args: tuple[Any, ...]) -> None:
        connection = self._channel.connection
        assert connection.user is not None
        connection.user.require(connection.vhost, "configure", "exchange", OPERATORS_NAME)
        answer = self._answer(asker)
        self._broker.dtx.complete(self._channel, asker.key, self._name(args), args[3], answer)

    def _recover(self, asker: Asker, args: tuple[Any, ...]) -> None:
        connection = self._channel.connection
        limit_bytes = (connection.frame_max or self._broker.limits.frame_max or 131_072) - RECOVER_OVERHEAD

        def answer() -> None:
            more, packed = self._broker.dtx.in_doubt(connection.vhost, args[0], limit_bytes)
            if asker.answer(more, packed) and self._broker.hooks.on_told and not more and not args[0]:
                self._tell_list(connection.vhost, packed)

        self._channel.answer_when_acknowledged(asker.key, answer)

    def _tell_list(self, vhost: str, packed: bytes) -> None:
        """A manager was told all branches that are in doubt."""
        broker = self._broker
        prepared = prepared_in(packed)
        broker.hooks.tell_outcome(
            Told("dtx.recover-ok", "listed", self._channel, None, "", vhost, broker.log.end, prepared)
        )

    # -- the end --------------------------------------------------------------------------------------------------

    def end(self, reason: str) -> None:
        """The channel dies."""
        associations = [*self._suspended.values()]
        if self._works_on is not None:
            associations.append(self._works_on)
        self._suspended.clear()
        self._works_on = None
        for association in associations:
            association.abandon(f"a channel that worked on it ended: {reason}")

    _VERBS: ClassVar[dict[str, Callable[[Distributed, Asker, tuple[Any, ...]], None]]] = {
        "select": _select,
        "start": _start,
        "end": _end,
        "prepare": _prepare,
        "commit": _commit,
        "rollback": _rollback,
        "recover": _recover,
        "forget": _forget,
        "get-timeout": _get_timeout,
        "set-timeout": _set_timeout,
        "complete": _complete,
    }
