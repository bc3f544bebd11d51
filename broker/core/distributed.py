"""Distributed transactions on a channel: class 100, ``dtx``.

What belongs to the channel is here: that it was selected, on which branch it works, which ones it has suspended. The branches
themselves belong to the broker (``dtx_manager.py``); most verbs only ask it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
from understudy.broker.core.association import Association
from understudy.broker.core.dtx_manager import BranchState, BranchWork
from understudy.broker.errors import DtxCommandInvalidError, IllegalStateError, PreconditionFailedError
from understudy.broker.transactions.dtx_branch import BranchName
from understudy.broker.transactions.xa_status import XaStatus
from understudy.broker.transactions.xid import Xid

if TYPE_CHECKING:
    from understudy.broker.core.channel import Channel, Handler

OPERATORS_NAME = "understudy.dtx"
"""Whoever may configure an exchange of this name in a vhost may complete its branches by hand."""
RECOVER_OVERHEAD = FRAME_OVERHEAD + 16
"""Octets of a frame of recover-ok beside the list."""


class Distributed:
    """The distributed side of a channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._broker = channel.broker
        self.selected = False
        self._works_on: Association | None = None
        self._suspended: dict[BranchName, Association] = {}

    def handlers(self) -> dict[int, Handler]:
        verbs: dict[int, Handler] = {
            DTX_START: self._start,
            DTX_END: self._end,
            DTX_PREPARE: self._prepare,
            DTX_COMMIT: self._commit,
            DTX_ROLLBACK: self._rollback,
            DTX_RECOVER: self._recover,
            DTX_FORGET: self._forget,
            DTX_GET_TIMEOUT: self._get_timeout,
            DTX_SET_TIMEOUT: self._set_timeout,
            DTX_COMPLETE: self._complete,
        }
        return {DTX_SELECT: self._select, **{key: self._when_known(key, verb) for key, verb in verbs.items()}}

    def _when_known(self, key: int, verb: Handler) -> Handler:
        """A broker that does not answer yet does not know its branches either: whatever is asked of them waits."""
        channel, broker = self._channel, self._broker

        def handle(args: tuple[Any, ...]) -> None:
            if broker.answering:
                verb(args)
            else:
                channel.carry_out_when_applied(key, verb, args)

        return handle

    def _name(self, args: tuple[Any, ...]) -> BranchName:
        """The branch that a method's first three arguments name."""
        return self._channel.connection.vhost, Xid.checked(*args[:3])

    def _answer(self, key: int, ok_key: int) -> Callable[[Any], None]:
        """The channel takes nothing more until this is called, with what ``ok_key`` answers ``key``; nothing overtakes that verb.

        Its record may be appended only at the end of the turn (PREPARE), so that a close waits for it as well.
        """
        channel = self._channel
        channel.awaiting = key
        channel.held = True
        awaited = channel.given_up
        return lambda value: channel.answered(lambda: channel.send(ok_key, int(value)), awaited)

    def _select(self, args: tuple[Any, ...]) -> None:
        channel = self._channel
        if channel.publishing.confirming or channel.transacting.active:
            mode = "confirm" if channel.publishing.confirming else "tx"
            raise PreconditionFailedError(f"cannot switch from {mode} to dtx mode")
        self.selected = True
        channel.send(DTX_SELECT_OK)

    # -- association ----------------------------------------------------------------------------------------------

    def _start(self, args: tuple[Any, ...]) -> None:
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
            association.suspended = False
            if association.work.state is BranchState.FAILED:
                association.leave()
                self._has_failed(association.work)
                return
            self._work_on(association)
        elif join:
            work = self._broker.dtx.joined(self._channel, DTX_START, name)
            if work is None:
                return
            if work.state is BranchState.FAILED:
                self._has_failed(work)
                return
            if name in self._suspended:
                raise DtxCommandInvalidError(f"{work} is suspended on this channel; resume it")
            self._work_on(Association(self._channel, work))
        else:
            self._work_on(Association(self._channel, self._broker.dtx.start(name)))
        self._channel.send(DTX_START_OK, XaStatus.OK)

    def _has_failed(self, work: BranchWork) -> None:
        """Nothing is started. An ex-primary must not say so: its successor may have one of that name that has not failed."""
        channel, status = self._channel, work.failed
        channel.answer_when_acknowledged(DTX_START, lambda: channel.send(DTX_START_OK, status))

    def _work_on(self, association: Association | None) -> None:
        """Publishes and acknowledgements go to the branch from now on; with None, are done at once."""
        self._works_on = association
        channel = self._channel
        demarcation = association if association is not None else channel.transacting
        channel.publishing.demarcation = channel.consuming.demarcation = demarcation

    def _end(self, args: tuple[Any, ...]) -> None:
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
            association.suspended = True
            self._suspended[name] = association
            self._work_on(None)
        else:
            association.leave()
            if self._suspended.pop(name, None) is None:
                self._work_on(None)
        if fail and suspend:
            raise DtxCommandInvalidError(f"dtx.end with both fail and suspend; {work} has failed")
        self._channel.send(DTX_END_OK, work.failed)

    # -- what a transaction manager asks --------------------------------------------------------------------------

    def _prepare(self, args: tuple[Any, ...]) -> None:
        answer = self._answer(DTX_PREPARE, DTX_PREPARE_OK)
        self._broker.dtx.prepare(self._channel, DTX_PREPARE, self._name(args), answer)

    def _commit(self, args: tuple[Any, ...]) -> None:
        answer = self._answer(DTX_COMMIT, DTX_COMMIT_OK)
        self._broker.dtx.commit(self._channel, DTX_COMMIT, self._name(args), args[3], answer)

    def _rollback(self, args: tuple[Any, ...]) -> None:
        answer = self._answer(DTX_ROLLBACK, DTX_ROLLBACK_OK)
        self._broker.dtx.rollback(self._channel, DTX_ROLLBACK, self._name(args), answer)

    def _forget(self, args: tuple[Any, ...]) -> None:
        answer = self._answer(DTX_FORGET, DTX_FORGET_OK)
        self._broker.dtx.forget(self._channel, DTX_FORGET, self._name(args), answer)

    def _get_timeout(self, args: tuple[Any, ...]) -> None:
        answer = self._answer(DTX_GET_TIMEOUT, DTX_GET_TIMEOUT_OK)
        self._broker.dtx.timeout_s(self._channel, DTX_GET_TIMEOUT, self._name(args), answer)

    def _set_timeout(self, args: tuple[Any, ...]) -> None:
        answer = self._answer(DTX_SET_TIMEOUT, DTX_SET_TIMEOUT_OK)
        self._broker.dtx.set_timeout(self._channel, DTX_SET_TIMEOUT, self._name(args), args[3], answer)

    def _complete(self, args: tuple[Any, ...]) -> None:
        connection = self._channel.connection
        assert connection.user is not None
        connection.user.require(connection.vhost, "configure", "exchange", OPERATORS_NAME)
        answer = self._answer(DTX_COMPLETE, DTX_COMPLETE_OK)
        self._broker.dtx.complete(self._channel, DTX_COMPLETE, self._name(args), args[3], answer)

    def _recover(self, args: tuple[Any, ...]) -> None:
        connection = self._channel.connection
        limit_bytes = (connection.frame_max or self._broker.limits.frame_max or 131_072) - RECOVER_OVERHEAD

        def answer() -> None:
            self._channel.send(DTX_RECOVER_OK, *self._broker.dtx.in_doubt(connection.vhost, args[0], limit_bytes))

        self._channel.answer_when_acknowledged(DTX_RECOVER, answer)

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
