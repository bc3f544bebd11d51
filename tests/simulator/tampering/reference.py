"""Records that no primary may write are shown to the reference as if they had been chosen."""

from __future__ import annotations

from functools import partial

from tests.simulator import calls
from tests.simulator.branch_steps import X
from tests.simulator.group import PERSISTENT
from tests.simulator.levels_kit import CONFIGURATION, declare
from tests.simulator.scenario import Scenario
from tests.simulator.tampering.tampering import tampering
from understudy.broker.amqp.properties import with_header
from understudy.broker.core.queues.queue import Queue
from understudy.broker.log import record
from understudy.broker.log.move_record import encode_move
from understudy.broker.log.record import Prepare
from understudy.broker.message import Message, MovedMessage
from understudy.broker.transactions.dtx_branch import DtxBranch, Owner
from understudy.broker.transactions.outcomes import Outcome

complaint = partial(tampering, "checkers/reference")
TX = 77
ROLLBACK = record.encode_rollback(TX, 0, "", "nobody knows why")


def choose(group: Scenario, raw: bytes) -> None:
    reference = group.cluster.checkers.reference
    reference.choose(raw, 0, len(raw))
    reference.advance(reference.end, lambda tx_id: False)


def filled(group: Scenario) -> tuple[Queue, int]:
    """A queue, and the id of its only message, "#1"."""
    hand = group.hand()
    hand(calls.declare, "q")
    hand.publish("q", b"#1")
    group.everywhere("q", b"#1")
    queue = group.queue(group.primary, "q")
    assert queue is not None
    (only,) = queue.entries
    return queue, only


def enqueue(queue: Queue, entry_id: int, body: bytes, deadline_ms: int = 0) -> bytes:
    return (
        record.encode_enqueue([(queue.id, entry_id, deadline_ms)], Message("", "q", PERSISTENT, body, True), False)
        + PERSISTENT
        + body
    )


def prepare(name: str = "", kind: Owner = Owner.LOCAL, first_ids: dict[int, tuple[int, int]] | None = None) -> bytes:
    """PREPARE of a transaction without events, as its counts say."""
    content = Prepare(
        TX, 1, name, 0, first_ids or {}, events=0, digest=0, durable_events=0, durable_digest=0, kind=kind
    )
    return record.encode_prepare(content)


def prepare_branch(group: Scenario, tx_id: int) -> bytes:
    """DTX_PREPARE of branch X without events."""
    offset = group.cluster.checkers.reference.end + 1
    branch = DtxBranch(
        vhost="/", xid=X, offset=offset, time_ms=0, events=0, digest=0, durable_events=0, durable_digest=0
    )
    return record.encode_dtx_prepare(tx_id, branch)


@complaint("levels", "which is not in the log")
def a_message_comes_to_a_queue_of_level_configuration(group: Scenario) -> None:
    declare(group.hand(), "q", CONFIGURATION)
    (queue,) = [queue for queue in group.primary.node.state.queues.values() if queue.name == "q"]
    choose(group, enqueue(queue, 1, b"1"))


@complaint("G9", "gives id {} of {} after")
def an_id_is_given_twice(group: Scenario) -> None:
    queue, used = filled(group)
    choose(group, enqueue(queue, used, b"#2"))


@complaint("expiry", "that expires at {}; asked for are")
def a_message_has_a_deadline_that_nobody_has_asked_for(group: Scenario) -> None:
    queue, used = filled(group)
    choose(group, enqueue(queue, used + 1, b"#2", 1))


@complaint("expiry", "for {} ms; asked for are")
def a_commit_brings_a_message_that_lives_otherwise_than_asked_for(group: Scenario) -> None:
    queue, used = filled(group)
    message = Message("", "q", PERSISTENT, b"#2", True)
    head = record.encode_tx_enqueue(TX, [(queue.id, 0, record.FROM_COMMIT | 5)], message, False)
    choose(group, head + PERSISTENT + b"#2")
    choose(group, prepare(first_ids={queue.id: (used + 1, 1)}))


@complaint("G1", "twice, the second time by record")
def a_message_comes_twice(group: Scenario) -> None:
    queue, used = filled(group)
    choose(group, enqueue(queue, used + 1, b"#1"))


@complaint("G1", "which is not there; it left")
def a_message_is_taken_that_is_not_there(group: Scenario) -> None:
    queue, used = filled(group)
    choose(group, record.encode_dequeue(record.ACKNOWLEDGED, [(queue.id, (used + 1,))]))


@complaint("expiry", "as expired at {}; the primary of epoch {} has written nothing later than")
def a_message_without_a_deadline_expires(group: Scenario) -> None:
    queue, used = filled(group)
    choose(group, record.encode_dequeue(record.EXPIRED, [(queue.id, (used,))]))


@complaint("G6", "is chosen after epoch")
def the_same_epoch_begins_again(group: Scenario) -> None:
    choose(group, record.encode_epoch(1, "b1", False, 0))


@complaint("G9", "has CSN {} after")
def a_commit_number_is_given_twice(group: Scenario) -> None:
    choose(group, prepare())
    choose(group, prepare())


@complaint("K-02", "by {}")
def a_local_transaction_is_decided_by_a_manager(group: Scenario) -> None:
    choose(group, prepare(kind=Owner.MANAGER))


@complaint("G2", "is chosen at {}; it was rolled back")
def one_that_was_rolled_back_is_committed(group: Scenario) -> None:
    choose(group, ROLLBACK)
    choose(group, record.encode_commit(TX, 1, 0))


@complaint("G2", "it was committed")
def one_that_was_committed_is_rolled_back(group: Scenario) -> None:
    choose(group, prepare())
    choose(group, ROLLBACK)


@complaint("G2", "and was closed before")
def a_branch_is_prepared_twice(group: Scenario) -> None:
    choose(group, prepare_branch(group, TX))
    choose(group, prepare_branch(group, TX))


@complaint("G2", "and is prepared or completed")
def two_branches_of_one_name_are_prepared(group: Scenario) -> None:
    choose(group, prepare_branch(group, TX))
    choose(group, prepare_branch(group, TX + 1))


@complaint("G2", "which is not in doubt")
def an_operator_rolls_back_what_nobody_has_prepared(group: Scenario) -> None:
    choose(group, record.encode_dtx_rollback(TX, 0, "/", X))


@complaint("G8", "after its name was barred or rolled back")
def one_commits_under_a_barred_name(group: Scenario) -> None:
    choose(group, record.encode_outcome("t", Outcome.ROLLED_BACK, 0))
    choose(group, prepare(name="t"))


def moved(queue: Queue, entry_id: int, reason: str, body: bytes | None = None) -> bytes:
    """MOVE of a message of ``queue`` into the same queue. Its headers say ``reason``; without ``body`` the record has none."""
    deaths = [{"queue": queue.name, "reason": reason}]
    properties = with_header(PERSISTENT, "x-death", deaths)
    message = MovedMessage("", "q", properties, body or b"", True)
    head = encode_move(queue.id, entry_id, record.REJECTED, [(queue.id, entry_id + 1, 0)], message, body is not None)
    return head + properties + (body or b"")


@complaint("G1", "and its headers say {} of that")
def a_move_whose_headers_say_another_reason(group: Scenario) -> None:
    queue, only = filled(group)
    choose(group, moved(queue, only, "expired"))


@complaint("G1", "moves {} with another body")
def a_move_with_another_body(group: Scenario) -> None:
    queue, only = filled(group)
    choose(group, moved(queue, only, "rejected", b"#2"))
