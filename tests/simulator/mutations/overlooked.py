"""More bugs that reviews have found and no sweep: in what brokers say of each other, and in what nothing was logged for."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulator.mutations.mutation import Bug, mutation
from understudy.broker.core.branches.dtx_manager import Answer, BranchWork, DtxManager
from understudy.broker.core.clients.channel import Channel
from understudy.broker.core.clients.transacting import Session, Transacting
from understudy.broker.core.turn.open_batch import OpenBatch
from understudy.broker.transactions.tx_buffer import TxBuffer
from understudy.broker.transactions.xa_status import XaStatus
from understudy.ha.ha_broker import HaBroker
from understudy.ha.leading.remote_backup import RemoteBackup
from understudy.replicator import wire
from understudy.replicator.fabric import Link
from understudy.replicator.receiving.broker_replicator import BrokerReplicator
from understudy.replicator.receiving.transaction_replicator import TransactionReplicator, Vote


@mutation("G4")
def a_former_log_is_acknowledged(bug: Bug) -> None:
    """Between CATCH_UP and the base a joiner acknowledges what its log held before, perhaps of another primary."""
    real = BrokerReplicator._begin_catch_up

    def begin_catch_up(self: BrokerReplicator, epoch: int, founding: int) -> None:
        real(self, epoch, founding)
        bug.strike()
        self._awaits_base = False

    bug.replace(BrokerReplicator, "_begin_catch_up", begin_catch_up)


@mutation("liveness")
def a_link_is_progress(bug: Bug) -> None:
    """A listed backup is waited for as long as it links again and again."""
    real = RemoteBackup.linked

    def linked(self: RemoteBackup, link: Link, now_ms: int) -> None:
        real(self, link, now_ms)
        if self.progress_ms != now_ms:
            bug.strike()
            self.progress_ms = now_ms

    bug.replace(RemoteBackup, "linked", linked)


@mutation("G1", "G7")
def a_base_put_again_forgets_refusals(bug: Bug) -> None:
    """A joiner forgets that it has refused a branch which the base lets it keep."""
    real = BrokerReplicator._take_base

    def take_base(self: BrokerReplicator, message: bytes) -> None:
        if wire.base_form(message) == wire.BASE_AGAIN and self.no_votes:
            bug.strike()
            self.no_votes.clear()
        real(self, message)

    bug.replace(BrokerReplicator, "_take_base", take_base)


@mutation("G1")
def a_hole_weakens_every_vote(bug: Bug) -> None:
    """Once a journal had a hole, transient events may be missing of whatever transaction comes later."""

    def vote(self: BrokerReplicator, tx: TxBuffer) -> None:
        strict, why = TransactionReplicator.vote(tx, self.restarted_after, False)
        verdict, why = TransactionReplicator.vote(tx, self.restarted_after, self._state.taking.holes)
        if strict is not verdict:
            bug.strike()
        if verdict is Vote.FAILED:
            self.say_no(tx, why)

    bug.replace(BrokerReplicator, "_vote", vote)


@mutation("G1", "G2")
def a_refounded_group_is_the_same(bug: Bug) -> None:
    """The journal of a group's former life is taken for a copy of the new one, if it has seen no higher epoch."""
    real = BrokerReplicator.is_foreign

    def is_foreign(self: BrokerReplicator, founding: int) -> bool:
        if real(self, founding):
            bug.strike()
        return False

    bug.replace(BrokerReplicator, "is_foreign", is_foreign)


@mutation("G6")
def reached_again_is_leading_still(bug: Bug) -> None:
    """A primary alone in its set confirms as soon as it reaches the store again, and has not read what that holds."""

    def look_again(self: HaBroker) -> None:
        bug.strike()
        if self.primary is not None:
            self.primary.suspended = False

    bug.replace(HaBroker, "_look_again", look_again)


@mutation("G4", "G6")
def what_has_no_record_is_told_at_once(bug: Bug) -> None:
    """A confirm, commit-ok or topology answer for which nothing was appended waits for nothing."""
    real = OpenBatch.provable

    def provable(self: OpenBatch) -> int:
        log = self.state.log
        if log.end == log.closed_end:
            bug.strike()
            return log.end
        return real(self)

    bug.replace(OpenBatch, "provable", provable)


@mutation("G1", "G3")
def a_stale_answer_releases_what_is_held(bug: Bug) -> None:
    """The answer of a method that a close has given up lets what stands behind a later one be done before that."""
    real = Channel.answered

    def answered(self: Channel, answer: Callable[[], None], awaited: int) -> None:
        if awaited != self.abandoned:
            bug.strike()
        real(self, answer, self.abandoned)

    bug.replace(Channel, "answered", answered)


@mutation("G8")
def a_bar_ends_when_it_expires(bug: Bug) -> None:
    """A transaction that was open when its later name was asked for commits under it once the bar is trimmed."""
    real = Transacting._may_be_barred

    def may_be_barred(self: Transacting, session: Session) -> bool:
        if real(self, session):
            bug.strike()
        return False

    bug.replace(Transacting, "_may_be_barred", may_be_barred)


@mutation("G8")
def a_failure_is_forgotten_untold(bug: Bug) -> None:
    """A branch that has failed is forgotten when somebody asks for it, whether or not anybody is told."""

    def say_and_forget(self: DtxManager, channel: Channel, work: BranchWork, answer: Answer, status: XaStatus) -> None:
        bug.strike()
        self._branches.pop(work.name, None)
        self._say(answer, status)

    bug.replace(DtxManager, "_say_and_forget", say_and_forget)
