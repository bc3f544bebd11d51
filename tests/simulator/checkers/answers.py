"""Answers: what a client is told must be so on the brokers at the moment when it is told.

A client notes on itself what it waits for (``expected``); the session shows every answer when the broker sends it, before the
wire delays it. So a commit-ok, a confirm, a refusal or an outcome that is given a moment too early is seen, whether a
failover follows or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from tests.simulator.checkers.chosen_log import ChosenLog
from tests.simulator.checkers.lost_transients import fell_into_a_hole
from tests.simulator.checkers.reference import Fate, Reference
from tests.simulator.ledger import Ledger, Told, Violation
from understudy.broker.amqp.frames import Event
from understudy.broker.amqp.methods import (
    BASIC_ACK,
    BASIC_DELIVER,
    BASIC_NACK,
    CHANNEL_CLOSE,
    DTX_COMMIT_OK,
    DTX_PREPARE_OK,
    DTX_ROLLBACK_OK,
    QUEUE_DECLARE_OK,
    TX_COMMIT_OK,
    method_name,
)
from understudy.broker.amqp.properties import correlation_id
from understudy.broker.transactions.dtx_branch import BranchName
from understudy.broker.transactions.outcome_query import is_own_id, parse_tx_id
from understudy.broker.transactions.xa_status import XaStatus

if TYPE_CHECKING:
    from tests.simulator.sim_client import Session


BRANCH_ANSWERS = (DTX_PREPARE_OK, DTX_COMMIT_OK, DTX_ROLLBACK_OK)


@attrs.define
class Expected:
    """The answers that a client's program waits for on its present connection.

    Attributes:
        commit: question (name or own id) of the transaction whose tx.commit was sent; "" for none.
        confirms: publisher confirms outstanding: tag to stamp ("" for a message that is not tracked).
        repeated: tags of messages that have been published before, and may have come then.
        nacked: tags of those that were refused: an ack of several that comes later does not speak of them.
        outcome: correlation id that marks answers of the outcome query; "" for none.
        branch: the branch whose prepare, commit or rollback was sent; None for none.
        stamps: of messages that a one-phase commit of a branch brings.
    """

    commit: str = ""
    confirms: dict[int, str] = attrs.field(factory=dict)
    nacked: set[int] = attrs.field(factory=set)
    repeated: set[int] = attrs.field(factory=set)
    outcome: str = ""
    branch: BranchName | None = None
    stamps: tuple[str, ...] = ()


class Answers:
    """G4 durable and G8 no silent outcome, at the client's side; G3 for counts."""

    def __init__(self, chosen: ChosenLog, reference: Reference, ledger: Ledger) -> None:
        self._chosen = chosen
        self._reference = reference
        self._ledger = ledger
        self.given = 0

    def said(self, session: Session, event: Event) -> None:
        """A broker sends ``event`` to a client."""
        key = event[1]
        expected: Expected | None = session.client.expected
        if key == QUEUE_DECLARE_OK:
            self._depth(session, event[2])
        if expected is None:
            return
        if expected.branch is not None and key in BRANCH_ANSWERS:
            self._branch(session, expected, key, event[2][0])
        if key == TX_COMMIT_OK and expected.commit:
            self._committed(session, expected.commit)
        elif key == CHANNEL_CLOSE and expected.commit and "rolled back:" in event[2][1]:
            self._rolled_back(session, expected.commit)
        elif key in (BASIC_ACK, BASIC_NACK) and expected.confirms:
            self._confirmed(session, expected, event[2][0], event[2][1], key == BASIC_ACK)
        elif key == BASIC_DELIVER and expected.outcome and correlation_id(event[3]) == expected.outcome:  # type: ignore[misc]
            self.outcome(session.node.name, expected.outcome, event[4].decode())  # type: ignore[misc]

    def _branch(self, session: Session, expected: Expected, key: int, status: int) -> None:
        """A dtx verb is answered; what it says must stand in the chosen log (G4)."""
        name = expected.branch
        assert name is not None
        if status != XaStatus.OK:
            return
        self.given += 1
        reference = self._reference
        fate = reference.branch_fates.get(name)
        if key == DTX_PREPARE_OK:
            good = name in reference.branches or fate is not None
        elif key == DTX_COMMIT_OK:
            good = fate is Fate.COMMITTED or (
                fate is None and all(stamp in reference.ever for stamp in expected.stamps)
            )
        else:
            good = name not in reference.branches and fate is not Fate.COMMITTED
        if not good:
            said = (
                f"{method_name(key)} to branch {name[1]}, which is {fate or 'in no such state'} on the listed brokers"
            )
            raise Violation("G4", f"{session.node.name} says {said}")
        self._chosen.check_all()

    def _fate(self, question: str) -> Fate | None:
        if is_own_id(question):
            return self._reference.fates.get(parse_tx_id(question))
        return self._reference.names.get(question)

    def _committed(self, session: Session, question: str) -> None:
        self.given += 1
        if self._fate(question) is not Fate.COMMITTED:
            text = f"{session.node.name} says commit-ok to {question}, which is not on every listed broker"
            raise Violation("G4", text)
        self._chosen.check_all()

    def _rolled_back(self, session: Session, question: str) -> None:
        self.given += 1
        if self._fate(question) is not Fate.ROLLED_BACK:
            text = (
                f"{session.node.name} says that {question} is rolled back before its ROLLBACK is on every listed broker"
            )
            raise Violation("G8", text)

    def _confirmed(self, session: Session, expected: Expected, tag: int, multiple: bool, acknowledged: bool) -> None:
        tags = [t for t in expected.confirms if t <= tag] if multiple else [tag]
        for one in tags:
            stamp = expected.confirms.get(one, "")
            if not stamp or one in expected.nacked:
                continue
            if not acknowledged:
                expected.nacked.add(one)
            self.given += 1
            there = stamp in self._reference.ever
            if acknowledged and not there and not fell_into_a_hole(session.node, self._reference, stamp):
                raise Violation("G4", f"{session.node.name} confirms {stamp}, which is not on every listed broker")
            if not acknowledged and there and one not in expected.repeated:
                raise Violation("G8", f"{session.node.name} refuses {stamp}, which is in the log")

    def outcome(self, who: str, question: str, text: str) -> None:
        """``who`` answers the outcome query."""
        self.given += 1
        fate = self._fate(question)
        if text == Told.COMMITTED.value and fate is not Fate.COMMITTED:
            raise Violation("G8", f"{who} answers that {question} is committed; it is {fate}")
        if text == Told.ROLLED_BACK.value:
            self._ledger.hear(question, Told.ROLLED_BACK)
            if fate is Fate.COMMITTED:
                raise Violation("G8", f"{who} answers that {question} is rolled back; it is committed")
            if fate is None and not is_own_id(question):
                raise Violation(
                    "G8", f"{who} answers that {question} is rolled back before its name is barred for good"
                )
        if text == "expired" and not self._may_be_forgotten(question):
            raise Violation("G8", f"{who} answers that the outcome of {question} is forgotten; it must be kept")

    def forgotten(self, question: str) -> Told | None:
        """The outcome of the transaction, if that may be forgotten by now; else None."""
        if not self._may_be_forgotten(question):
            return None
        return Told.COMMITTED if self._fate(question) is Fate.COMMITTED else Told.ROLLED_BACK

    def _may_be_forgotten(self, question: str) -> bool:
        """Of names that nobody has used some pass for forgotten (`ForgottenNames`), once there are such."""
        reference = self._reference
        if is_own_id(question):
            tx_id = parse_tx_id(question)
            return tx_id <= reference.low_water and reference.committed_at.get(tx_id, 0) <= reference.trimmed
        return 0 < reference.named_at.get(question, 1) <= reference.trimmed

    def _depth(self, session: Session, args: tuple[Any, ...]) -> None:
        name, count, _ = args
        queue = self._reference.queue_named(name)
        if (
            queue is not None
            and queue.logged
            and session.node.node.broker.role.epoch == self._reference.epoch
            and session.node.node.state.log.applied >= self._reference.applied  # else it answers what was so before
            and count > len(queue.entries) + self._unknown(session, queue.id)
        ):
            text = f"{session.node.name} counts {count} messages in {name}; {len(queue.entries)} are committed"
            raise Violation("G3", text)

    def _unknown(self, session: Session, queue_id: int) -> int:
        """Transient messages of that queue at the session's broker while the log has a HOLE: the reference may not know them."""
        queue = session.node.node.state.queues.get(queue_id)
        if queue is None or self._reference.all[-1] is not None:
            return 0
        return sum(not (queue.durable and each.message.persistent) for each in queue.entries.values())
