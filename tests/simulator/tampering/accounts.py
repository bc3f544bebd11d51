"""A client's books are falsified, so that the accounts do not come out."""

from __future__ import annotations

from functools import partial

from tests.simulator import calls
from tests.simulator.ledger import ClientTransaction, Ledger, Told
from tests.simulator.scenario import Scenario, named, publish_confirmed
from tests.simulator.tampering.tampering import tampering

complaint = partial(tampering, "checkers/accounts")
KEPT = ("q", "plain")


def check(group: Scenario) -> None:
    group.cluster.accounts.check(KEPT)


def books(group: Scenario) -> Ledger:
    """ "made" brings two messages to queue q; "taker" takes the first and brings another; "undone" is rolled back. A plain one was
    published with a confirm, and taken. All of it is in the books, and they are in order."""
    ledger = group.cluster.ledger
    plain, hand = group.hand(), group.hand(transactional=True)
    for queue in KEPT:
        plain(calls.declare, queue)
    for label, makes, takes in (("made", 2, ()), ("taker", 1, ("#made/0",)), ("undone", 1, ())):
        transaction = ClientTransaction(label=label, question=label, consumed=list(takes))
        transaction.produced = {f"#{label}/{i}": "q" for i in range(makes)}
        ledger.enter(transaction)
        assert hand.take("q", len(takes)) == [stamp.encode() for stamp in takes]
        hand.publish("q", *[stamp.encode() for stamp in transaction.produced], properties=named(label))
        if label == "undone":
            hand(calls.rollback)
            ledger.told(transaction, Told.ROLLED_BACK)
        else:
            hand.committed(label)
            ledger.told(transaction, Told.COMMITTED)
    plain(publish_confirmed, "plain", b"#plain")
    ledger.confirmed.add("#plain")
    assert plain.take("plain") == [b"#plain"]
    ledger.taken.add("#plain")
    group.everywhere("plain")
    check(group)
    return ledger


@complaint("G8", "has no outcome")
def nobody_has_learned_what_became_of_one(group: Scenario) -> None:
    books(group).transactions["made"].told = Told.UNKNOWN
    check(group)


@complaint("G8", "was told to be rolled back, and is committed")
def one_that_committed_was_told_to_be_rolled_back(group: Scenario) -> None:
    books(group).transactions["taker"].told = Told.ROLLED_BACK
    check(group)


@complaint("G4", "was told to be committed, and is")
def one_that_was_rolled_back_was_told_to_be_committed(group: Scenario) -> None:
    books(group).transactions["undone"].told = Told.COMMITTED
    check(group)


@complaint("G1", "was consumed by {} and by")
def two_have_consumed_the_same(group: Scenario) -> None:
    books(group).transactions["made"].consumed.append("#made/0")
    check(group)


@complaint("G1", "lies in {} {} times")
def the_log_holds_a_message_twice(group: Scenario) -> None:
    books(group)
    queue = group.cluster.checkers.reference.queue_named("q")
    assert queue is not None
    newest = max(queue.entries)
    queue.entries[newest + 1] = queue.entries[newest]
    check(group)


@complaint("G3", "consumed, but never committed")
def one_has_consumed_what_nobody_committed(group: Scenario) -> None:
    books(group).transactions["taker"].consumed.append("#undone/0")
    check(group)


@complaint("G1", "was committed and never came to")
def one_has_committed_what_nobody_holds(group: Scenario) -> None:
    books(group).transactions["made"].produced["#made/2"] = "q"
    check(group)


@complaint("G1", "and is still in")
def one_has_consumed_what_is_still_there(group: Scenario) -> None:
    books(group).transactions["taker"].consumed.append("#made/1")
    check(group)


@complaint("G1", "was never consumed and left")
def what_has_left_was_consumed_by_nobody(group: Scenario) -> None:
    books(group).transactions["taker"].consumed.clear()
    check(group)


@complaint("G3", "is there; its transaction was rolled back")
def what_is_there_was_rolled_back(group: Scenario) -> None:
    made = books(group).transactions["made"].produced
    made.pop("#made/1")
    group.cluster.ledger.transactions["undone"].produced["#made/1"] = "q"
    check(group)


@complaint("G4", "was confirmed and never was in the log")
def what_was_never_there_was_confirmed(group: Scenario) -> None:
    books(group).confirmed.add("#never")
    check(group)


@complaint("G8", "was refused and is in the log")
def what_was_there_was_refused(group: Scenario) -> None:
    books(group).refused.add("#plain")
    check(group)


@complaint("G4", "and no client took it")
def nobody_has_taken_what_was_acknowledged(group: Scenario) -> None:
    books(group).taken.clear()
    check(group)


@complaint("G4", "for reason")
def a_kept_queue_was_purged(group: Scenario) -> None:
    books(group)
    hand = group.hand()
    hand.publish("plain", b"#purged")
    hand(calls.purge, "plain")
    check(group)
