"""DtxManager: the branches of distributed transactions that the leading broker knows, and what may be asked of them.

A branch is one :class:`BranchWork` from start to the answer that ends it::

    ACTIVE --prepare--> PREPARING --stable--> PREPARED --commit----> COMMITTING   --stable--> gone
       |                    |                    |-----rollback--> ROLLING_BACK --stable--> gone
       |---commit one-phase-+--------------------+---------------> COMMITTING
       '---anything that goes wrong (or PREPARING, by a member's no)---> FAILED --told, or forgotten--> gone

Before DTX_PREPARE stands in the log a branch is this process's alone, and anything may end it. From PREPARED on it is a
fact of the log: a broker that is promoted, or started, finds it there (:meth:`DtxManager.adopt`) and locks what it takes away.

Nothing here waits: a verb that is not answered at once is answered by the log, through the channel's ``answered``. Who asks for a
branch that is not there is told so only when every listed broker has acknowledged this one since (``OpenBatch.barrier``): a
broker that was replaced knows nothing of branches that its successor has prepared, and a manager takes 404 for "that commit was
done".

Source: AMQP 0-10, class dtx; X/Open XA. For clients: docs/dtx.md.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs

from understudy.broker.core.branches.dtx_lists import InDoubtLists
from understudy.broker.core.queues.entry import ACQUIRED
from understudy.broker.core.watching.told import Told
from understudy.broker.errors import (
    BranchKnownError,
    IllegalStateError,
    InvalidArgumentError,
    NotFoundError,
    ResourceErrorSoft,
)
from understudy.broker.log import record
from understudy.broker.transactions.dtx_branch import BranchName, Owner
from understudy.broker.transactions.tx_buffer import TxBuffer, TxState
from understudy.broker.transactions.xa_status import XaStatus

if TYPE_CHECKING:
    from understudy.broker.core.branches.port import AskingChannel, BranchesPort, Worker
    from understudy.broker.core.queues.queue import Queue

MAX_TIMEOUT_S: Final = 3_600
MAX_BRANCHES: Final = 65_536
"""Branches that are known at once, prepared and failed ones too: 506 beyond."""


class BranchState(Enum):
    """Where a branch is on its way; see the head of this file."""

    ACTIVE = "active"
    FAILED = "failed"
    PREPARING = "preparing"
    PREPARED = "prepared"
    COMMITTING = "committing"
    ROLLING_BACK = "rolling back"


Answer = Callable[[XaStatus], None]


@attrs.define(eq=False)
class BranchWork:
    """One branch, as the broker that leads knows it.

    Attributes:
        tx: what it holds; None once it has failed.
        workers: channels that work on it, or have suspended it.
        failed: what its manager is told: RBROLLBACK or RBTIMEOUT.
        reason: why it failed.
        deadline_ms: of the broker's ``running_ms``: an ACTIVE one fails then; a FAILED one that nobody asks for is forgotten.
        waiting: who is told when what is under way is stable: (method, answer).
    """

    name: BranchName
    tx: TxBuffer | None
    timeout_ms: int
    deadline_ms: int
    state: BranchState = BranchState.ACTIVE
    workers: set[Worker] = attrs.field(factory=set)
    failed: XaStatus = XaStatus.OK
    reason: str = ""
    waiting: list[tuple[str, Answer]] = attrs.field(factory=list)

    def __str__(self) -> str:
        return f"branch {self.name[1]} in vhost '{self.name[0]}'"


class DtxManager:
    """One per broker. ``answer`` of a verb is called once, with its status; what it raises instead closes the asking channel."""

    def __init__(self, broker: BranchesPort) -> None:
        self._broker = broker
        self._clock = broker.clock
        self._branches: dict[BranchName, BranchWork] = {}
        self._look_ms = 0
        self._lists = InDoubtLists()

    @property
    def undecided(self) -> int:
        """Branches that hold something, or may."""
        return sum(work.tx is not None for work in self._branches.values())

    # -- the broker begins to lead --------------------------------------------------------------------------------

    def adopt(self) -> None:
        """Take over what the log holds in doubt, and lock what these branches take away. All of the log before is applied."""
        broker = self._broker
        locked: dict[Queue, None] = {}
        for tx in broker.state.prepared_branches():
            assert tx.branch is not None
            name = (tx.branch.vhost, tx.branch.xid)
            # Otherwise this broker has refused it before it was promoted, and its ROLLBACK is on its way.
            state = BranchState.PREPARED if tx.in_doubt else BranchState.ROLLING_BACK
            work = self._branches[name] = BranchWork(name, tx, 0, 0, state)
            tx.asks_commit(partial(self._decided, work))
            for queue_id, entry_id in tx.dequeues():
                queue = broker.state.queues.get(queue_id)
                if queue is not None:
                    queue.lock(entry_id)
                    locked[queue] = None
            if broker.state.applying.deduplicates:
                broker.deduplicating.adopt(tx)
        for queue in locked:
            queue.drop_places()

    def content(self, name: BranchName) -> TxBuffer | None:
        """The content of the branch; None if there is none of that name, or it has failed."""
        work = self._branches.get(name)
        return work.tx if work is not None else None

    # -- work -----------------------------------------------------------------------------------------------------

    def start(self, name: BranchName) -> BranchWork:
        """A new branch.

        Raises:
            BranchKnownError: there is one of that name.
            ResourceErrorSoft: there are too many.
        """
        known = self._branches.get(name)
        if known is not None or name in self._broker.state.applying.completions:
            state = known.state.value if known is not None else "completed by an operator"
            raise BranchKnownError(
                f"branch {name[1]} in vhost '{name[0]}' is known ({state}); start with join to work on it"
            )
        if len(self._branches) >= MAX_BRANCHES:
            raise ResourceErrorSoft(f"{len(self._branches)} branches are known, {MAX_BRANCHES} are the most")
        broker = self._broker
        tx = TxBuffer(broker.transactions.next_id(), opened_ms=self._clock.now_ms)
        timeout_ms = broker.limits.dtx_timeout_ms
        work = self._branches[name] = BranchWork(name, tx, timeout_ms, self._clock.running_ms + timeout_ms)
        self._look_ms = min(self._look_ms, work.deadline_ms)
        return work

    def joined(self, channel: AskingChannel, key: int, name: BranchName) -> BranchWork | None:
        """A branch that is there, to work on it; None if it is not, which the channel will be told.

        Raises:
            IllegalStateError
        """
        work = self._branches.get(name)
        if work is None:
            self._not_there(channel, key, name)
            return None
        if work.state not in (BranchState.ACTIVE, BranchState.FAILED):
            raise IllegalStateError(f"{work} is {work.state.value}: nobody can join it")
        return work

    def fail(self, work: BranchWork, status: XaStatus, reason: str, *, died: bool = False) -> None:
        """An ACTIVE branch can only be rolled back from now on, and is: its messages go home at once.

        ``died``: a channel has ended that worked on it, so that its messages count as failed.
        """
        if work.state is not BranchState.ACTIVE:
            return
        work.state = BranchState.FAILED
        work.failed, work.reason = status, reason
        work.deadline_ms = self._clock.running_ms + work.timeout_ms
        self._discard(work, reason, died)

    def _discard(self, work: BranchWork, reason: str, died: bool = False) -> None:
        """Roll back what was not prepared."""
        tx, work.tx = work.tx, None
        assert tx is not None
        transactions = self._broker.transactions
        transactions.roll_back(tx, reason)
        transactions.forget_id(tx.tx_id)
        self._unlock(tx, died)
        for worker in work.workers:
            worker.branch_failed(died)

    def _unlock(self, tx: TxBuffer, died: bool = False) -> None:
        """Put back the messages that the branch had acknowledged; they have failed if a client ``died`` of them."""
        broker = self._broker
        for queue_id, entry_id in tx.dequeues():
            queue = broker.state.queues.get(queue_id)
            entry = queue.entries.get(entry_id) if queue is not None else None
            if queue is not None and entry is not None and entry.state == ACQUIRED:
                broker.requeue(queue, entry, died)

    def tick(self, running_ms: int) -> None:
        """Time passes: branches that were not prepared in time fail; what failed and interests nobody is forgotten."""
        if running_ms < self._look_ms or not self._branches:
            return
        due = [work for work in self._branches.values() if work.tx is None or work.state is BranchState.ACTIVE]
        for work in due:
            if work.deadline_ms > running_ms:
                continue
            if work.state is BranchState.ACTIVE:
                self.fail(work, XaStatus.RBTIMEOUT, f"it was not prepared within {work.timeout_ms / 1000:g} s")
            elif not work.workers:
                del self._branches[work.name]
            else:
                work.deadline_ms = running_ms + work.timeout_ms
        self._look_ms = min([work.deadline_ms for work in due if work.deadline_ms > running_ms], default=1 << 62)

    # -- what a transaction manager asks --------------------------------------------------------------------------

    def prepare(self, channel: AskingChannel, key: int, name: BranchName, answer: Answer) -> None:
        work = self._ended(channel, key, name)
        if work is None:
            return
        if work.state is BranchState.FAILED:
            self._say(answer, work.failed)
        elif work.state is BranchState.PREPARED:
            self._say(answer, XaStatus.OK)
        elif work.state is BranchState.PREPARING:
            work.waiting.append(("prepare", answer))
        elif work.state is BranchState.ACTIVE:
            assert work.tx is not None
            self._check_room(work, record.DTX_PREPARE)
            refused = self._broker.transactions.coordinator.prepare(work.tx, name)
            if refused:
                self.fail(work, XaStatus.RBROLLBACK, refused)
                self._say_and_forget(channel, work, answer, work.failed)
                return
            work.state = BranchState.PREPARING
            work.tx.asks_commit(partial(self._decided, work))
            work.waiting.append(("prepare", answer))
            self._broker.deduplicating.claim(work.tx)
            self._broker.transactions.prepare_branch(work.tx, name, lambda _: self._prepared(work))
        else:
            raise IllegalStateError(f"{work} is {work.state.value}")

    def _check_room(self, work: BranchWork, kind: int = record.PREPARE) -> None:
        """Refuse what would be new work, before it enters the log."""
        broker = self._broker
        assert work.tx is not None
        refused = broker.commit_refused(work.tx)
        broker.work.count(refused)
        if not refused and not broker.log.may_hold(kind):
            refused = (
                "a broker of the group, or one that is expected, cannot read records of prepared branches: upgrade it"
            )
        if refused:
            raise ResourceErrorSoft(refused)

    def _prepared(self, work: BranchWork) -> None:
        """DTX_PREPARE is stable. Whoever has asked for a rollback meanwhile is answered by that."""
        if work.state is BranchState.PREPARING:
            work.state = BranchState.PREPARED
        waiting, work.waiting = work.waiting, []
        for verb, answer in waiting:
            if verb == "prepare":
                answer(XaStatus.OK)
            else:
                work.waiting.append((verb, answer))

    def commit(self, channel: AskingChannel, key: int, name: BranchName, one_phase: bool, answer: Answer) -> None:
        work = self._ended(channel, key, name, answer)
        if work is None:
            return
        state = work.state
        if state is BranchState.FAILED:
            self._say_and_forget(channel, work, answer, work.failed)
            return
        prepared = state is BranchState.PREPARED or (
            state is BranchState.COMMITTING and work.tx is not None and work.tx.branch is not None
        )
        if state in (BranchState.PREPARING, BranchState.ROLLING_BACK) or prepared is one_phase:
            how = "in one phase" if one_phase else "in two phases"
            raise IllegalStateError(f"{work} is {state.value} and cannot be committed {how}")
        assert work.tx is not None
        if state is BranchState.ACTIVE:
            self._check_room(work)
            if not work.tx.events:  # an empty transaction creates nothing anywhere
                self._broker.transactions.forget_id(work.tx.tx_id)
                del self._branches[name]
                self._say(answer, XaStatus.OK)
                return
        work.waiting.append(("commit", answer))
        if state is not BranchState.COMMITTING:
            self._commit(work, Owner.MANAGER if prepared else Owner.LOCAL)

    def _commit(self, work: BranchWork, owner: Owner) -> None:
        tx = work.tx
        assert tx is not None
        work.state = BranchState.COMMITTING
        tx.decided_by(owner)
        if not tx.first_offset:  # the log knows nothing of it before PREPARE
            self._broker.state.transactions[tx.tx_id] = tx
        self._broker.deduplicating.claim(tx)
        self._broker.transactions.coordinator.log_and_order(tx, partial(self._decided, work))

    def rollback(self, channel: AskingChannel, key: int, name: BranchName, answer: Answer) -> None:
        work = self._ended(channel, key, name, answer)
        if work is None:
            return
        if work.state is BranchState.COMMITTING:
            raise IllegalStateError(f"{work} is being committed")
        if work.state in (BranchState.ACTIVE, BranchState.FAILED):
            if work.state is BranchState.ACTIVE:
                self._discard(work, "rolled back by its transaction manager")
                del self._branches[name]
                self._say(answer, XaStatus.OK)
            else:
                status = work.failed if work.failed is XaStatus.RBTIMEOUT else XaStatus.OK
                self._say_and_forget(channel, work, answer, status)
            return
        work.waiting.append(("rollback", answer))
        if work.state is not BranchState.ROLLING_BACK:
            assert work.tx is not None
            work.state = BranchState.ROLLING_BACK
            if work.tx.in_doubt:  # else a member has refused it, and its ROLLBACK stands
                self._broker.transactions.roll_back_closed(work.tx, "rolled back by its transaction manager")

    def complete(self, channel: AskingChannel, key: int, name: BranchName, commit: bool, answer: Answer) -> None:
        """An operator decides a prepared branch; the log remembers it."""
        work = self._branches.get(name)
        if work is None and name not in self._broker.state.applying.completions:
            self._not_there(channel, key, name)
            return
        if work is None or work.state is not BranchState.PREPARED:
            state = work.state.value if work is not None else "completed already"
            raise IllegalStateError(
                f"branch {name[1]} in vhost '{name[0]}' is {state}: only what is prepared can be completed by hand"
            )
        assert work.tx is not None
        if not self._broker.log.may_hold(record.DTX_ROLLBACK):
            raise ResourceErrorSoft(
                "a broker of the group, or one that is expected, cannot read records of completed branches: upgrade it"
            )
        work.waiting.append(("complete", answer))
        if commit:
            self._commit(work, Owner.OPERATOR)
        else:
            work.state = BranchState.ROLLING_BACK
            self._broker.transactions.roll_back_for_operator(work.tx)

    def forget(self, channel: AskingChannel, key: int, name: BranchName, answer: Answer) -> None:
        broker = self._broker
        if name in broker.state.applying.completions:
            if not broker.log.may_hold(record.DTX_FORGET):
                raise ResourceErrorSoft(
                    "a broker of the group, or one that is expected, cannot read that this is forgotten: upgrade it"
                )
            broker.completions.complete(
                broker.batch.append_record(record.encode_dtx_forget(*name)), answer, XaStatus.OK
            )
        elif name in self._branches:
            raise IllegalStateError(
                f"{self._branches[name]} is {self._branches[name].state.value}: no operator has completed it"
            )
        else:
            self._not_there(channel, key, name)

    def timeout_s(self, channel: AskingChannel, key: int, name: BranchName, answer: Callable[[int], None]) -> None:
        """0 for a branch that has none any more."""
        work = self._branches.get(name)
        if work is None:
            self._not_there(channel, key, name)
            return
        answer(work.timeout_ms // 1000 if work.state is BranchState.ACTIVE else 0)

    def set_timeout(self, channel: AskingChannel, key: int, name: BranchName, timeout_s: int, answer: Answer) -> None:
        if timeout_s > MAX_TIMEOUT_S:
            raise InvalidArgumentError(f"a time-out of {timeout_s} s is above {MAX_TIMEOUT_S} s")
        work = self._branches.get(name)
        if work is None:
            self._not_there(channel, key, name)
            return
        if work.state is BranchState.FAILED:
            self._say(answer, work.failed)
            return
        if work.state is not BranchState.ACTIVE:
            raise IllegalStateError(f"{work} is {work.state.value}: it has no time-out any more")
        broker = self._broker
        work.timeout_ms = timeout_s * 1000 or broker.limits.dtx_timeout_ms
        work.deadline_ms = self._clock.running_ms + work.timeout_ms
        self._look_ms = min(self._look_ms, work.deadline_ms)
        answer(XaStatus.OK)

    def in_doubt(self, vhost: str, after: bytes, limit_bytes: int) -> tuple[bool, bytes]:
        """(whether there are more, the packed list) of what is in doubt in ``vhost``, from ``after`` on; see docs/dtx.md."""
        return self._lists.page(self._broker.state, vhost, after, limit_bytes)

    # -- what the log answers -------------------------------------------------------------------------------------

    def _decided(self, work: BranchWork, tx: TxBuffer) -> None:
        """A branch is committed or rolled back, stably: by whoever asked, or because a member has refused it."""
        committed = tx.state is TxState.COMMITTED
        waiting, work.waiting = work.waiting, []
        work.tx = None
        if not committed:
            self._unlock(tx)
        told = [verb for verb, _ in waiting if verb != "prepare"]
        if told or committed:
            del self._branches[work.name]
        else:
            work.state = BranchState.FAILED
            work.failed, work.reason = XaStatus.RBROLLBACK, tx.reason
            work.timeout_ms = work.timeout_ms or self._broker.limits.dtx_timeout_ms
            work.deadline_ms = self._clock.running_ms + work.timeout_ms
            self._look_ms = min(self._look_ms, work.deadline_ms)
        tell = partial(_tell_decision, committed, work.name in self._broker.state.applying.completions)
        returning = self._broker.returning
        if returning.gathered and not committed:  # what the branch had taken is back when that is stable
            returning.write()
            self._broker.completions.complete(self._broker.log.end, tell, waiting)
        else:
            tell(waiting)

    # -- finding a branch -----------------------------------------------------------------------------------------

    def _ended(
        self, channel: AskingChannel, key: int, name: BranchName, answer: Answer | None = None
    ) -> BranchWork | None:
        """The branch, on which nobody works any more; None if the question has been dealt with.

        ``answer``: is told HEURHAZ of what an operator has completed.
        """
        work = self._branches.get(name)
        if work is None:
            if name not in self._broker.state.applying.completions:
                self._not_there(channel, key, name)
            elif answer is None:
                raise IllegalStateError(f"branch {name[1]} in vhost '{name[0]}' was completed by an operator")
            else:
                self._say(answer, XaStatus.HEURHAZ)
            return None
        if work.workers:
            raise IllegalStateError(f"{len(work.workers)} channels work on {work}, or have suspended it")
        return work

    def _say(self, answer: Answer, status: XaStatus) -> None:
        """Answer what is known here, once every listed broker has acknowledged this one since now.

        A broker that was replaced must not: its successor may have rolled back what is prepared here, or prepared anew what has
        failed here.
        """
        self._broker.completions.complete(self._broker.batch.barrier(), answer, status)

    def _say_and_forget(self, channel: AskingChannel, work: BranchWork, answer: Answer, status: XaStatus) -> None:
        """The same of a branch that has failed. It is forgotten when somebody was there to be told; else when its time is over."""

        def tell(status: XaStatus) -> None:
            if not channel.ended and not channel.closing and self._branches.get(work.name) is work:
                del self._branches[work.name]
            answer(status)

        self._say(tell, status)

    def _not_there(self, channel: AskingChannel, key: int, name: BranchName) -> None:
        broker = self._broker
        asked_at = broker.log.end

        def say() -> None:
            broker.hooks.tell_outcome(Told("channel.close", "unknown", channel, None, str(name[1]), name[0], asked_at))
            raise _unknown(name)

        channel.hold_all()  # what comes next is not done
        channel.answer_when_acknowledged(key, say)


def _tell_decision(committed: bool, by_hand: bool, waiting: list[tuple[str, Answer]]) -> None:
    """Answer all who wait for the decision of a branch; an operator made it if ``by_hand``."""
    for verb, answer in waiting:
        if verb == "complete":
            answer(XaStatus.OK)
        elif by_hand:
            answer(XaStatus.HEURHAZ)
        else:
            answer(XaStatus.OK if committed or verb == "rollback" else XaStatus.RBROLLBACK)


def _unknown(name: BranchName) -> NotFoundError:
    return NotFoundError(f"no branch {name[1]} in vhost '{name[0]}'")
