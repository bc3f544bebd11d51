"""Disorder: messages out of order, and redelivered=0 said twice.

Rule (G9): in a queue, the messages of one client stand in the order in which it published them, within a transaction and from one
transaction to the next. Between clients there is no order. Rule (G9): redelivered=0 proves that a message was never handed out
before, by this primary or an earlier one.
"""

from __future__ import annotations

from collections import Counter

from understudy.client.verdicts.evidence.case import Case
from understudy.client.verdicts.evidence.history import Place, place_of
from understudy.client.verdicts.violation import Kind, Violation

Rank = tuple[int, int]


def unordered(case: Case) -> list[Violation]:
    """Each client's messages stand in a queue in the order in which it published them."""
    ranks = _ranks(case)
    newest: dict[tuple[str, str, bool], tuple[Rank, str]] = {}
    found = []
    for queue, message in case.content.messages():
        ranked = ranks.get((message.id, queue))
        if ranked is None:
            continue
        client, transactional, rank = ranked
        before = newest.get((queue, client, transactional))
        if before is not None and rank < before[0]:
            found.append(
                Violation(
                    kind=Kind.UNORDERED,
                    promise="G9",
                    text=f"{message.id} stands in {queue} behind {before[1]}, which {client} published later",
                    transaction=maker.name if (maker := case.makers.get(message.id)) else "",
                    message=message.id,
                    queue=queue,
                    expected=f"before {before[1]}",
                    found=f"behind {before[1]}",
                )
            )
        else:
            newest[queue, client, transactional] = (rank, message.id)
    return found


def stale(case: Case) -> list[Violation]:
    """No message is delivered with redelivered=0 after it was delivered.

    What is known of the order of deliveries: those of one client follow each other, and the reading at the end comes last. Of two
    that said redelivered=0 one was the later, whatever their order.
    """
    fresh: Counter[Place] = Counter()
    again: set[Place] = set()
    seen: set[tuple[str, Place]] = set()
    for receipt in case.history.received:
        place = place_of(receipt.message)
        delivery = (receipt.client, place)
        if not receipt.redelivered:
            fresh[place] += 1
            if fresh[place] > 1 or delivery in seen:
                again.add(place)
        seen.add(delivery)
    received = {place for _, place in seen}
    for queue, content in case.content.queues.items():
        again.update(place for message_id in content.fresh if (place := (message_id, queue)) in received)
    return [
        Violation(
            kind=Kind.STALE,
            promise="G9",
            text=f"{message_id} of {queue} was delivered before, and was delivered with redelivered=0",
            message=message_id,
            queue=queue,
            expected="redelivered=1",
            found="redelivered=0",
        )
        for message_id, queue in sorted(again)
    ]


def _ranks(case: Case) -> dict[Place, tuple[str, bool, Rank]]:
    """By place: the client, whether it was within a transaction, and where in that client's order.

    A client publishes on one channel, so within transactions or outside of them; between the two nothing is compared.
    """
    ranks = {
        place_of(message): (tx.client, True, (tx.number, index))
        for tx in case.history.transactions.values()
        for index, message in enumerate(tx.makes)
    }
    return ranks | {place: (sent.client, False, (sent.number, 0)) for place, sent in case.history.sent.items()}
