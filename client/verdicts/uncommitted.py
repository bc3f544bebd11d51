"""Uncommitted: messages that were seen though their transaction did not commit.

Rule (G3): a client is handed, and a queue holds, only what a committed transaction made, or what was published outside of
transactions and not refused. While the outcome of a transaction is unknown, what it made may be seen.
"""

from __future__ import annotations

from collections.abc import Iterator

from understudy.client.verdicts.evidence.case import Case
from understudy.client.verdicts.evidence.client_log import Message
from understudy.client.verdicts.violation import Kind, Violation


def uncommitted(case: Case) -> list[Violation]:
    """Messages that clients were handed, or that lie in queues, were committed, or sent outside of transactions."""
    found = []
    for message, tx in dict.fromkeys(_handed_out(case)):
        maker = case.makers.get(message.id)
        if maker is None and message.id not in case.places:
            found.append(
                Violation(
                    kind=Kind.UNCOMMITTED,
                    promise="G3",
                    text=f"{message.id} was delivered, and no client made it",
                    transaction=tx,
                    message=message.id,
                    queue=message.queue,
                    expected="never delivered",
                    found="delivered",
                )
            )
        elif maker is not None and maker.rolled_back:
            found.append(
                Violation(
                    kind=Kind.UNCOMMITTED,
                    promise="G3",
                    text=f"{message.id} was delivered; its transaction was rolled back: {maker.name}",
                    transaction=maker.name,
                    message=message.id,
                    queue=message.queue,
                    expected="never delivered",
                    found="delivered",
                )
            )
    for message_id, queue in case.lying:
        maker = case.makers.get(message_id)
        if maker is not None and maker.rolled_back:
            found.append(
                Violation(
                    kind=Kind.UNCOMMITTED,
                    promise="G3",
                    text=f"{message_id} lies in {queue}; its transaction was rolled back: {maker.name}",
                    transaction=maker.name,
                    message=message_id,
                    queue=queue,
                    expected="nowhere",
                    found=f"in {queue}",
                )
            )
    return found


def uncommitted_in_log(case: Case) -> list[Violation]:
    """Nothing that a rolled back transaction made ever came to a queue; what was consumed did."""
    log = case.log
    if log is None:
        return []
    transactions = case.history.transactions.values()
    found = [
        Violation(
            kind=Kind.UNCOMMITTED,
            promise="G3",
            text=f"{message.id} was consumed, but never committed: by {tx.name}",
            transaction=tx.name,
            message=message.id,
            queue=message.queue,
            expected="never delivered",
            found="consumed",
        )
        for tx in transactions
        if tx.committed
        for message in tx.takes
        if message.id not in log.came
    ]
    found += [
        Violation(
            kind=Kind.UNCOMMITTED,
            promise="G3",
            text=f"{message.id} is there; its transaction was rolled back: {tx.name}",
            transaction=tx.name,
            message=message.id,
            queue=message.queue,
            expected="nowhere",
            found="in the log",
        )
        for tx in transactions
        if tx.rolled_back
        for message in tx.makes
        if message.id in log.came
    ]
    return found


def _handed_out(case: Case) -> Iterator[tuple[Message, str]]:
    """Messages that clients were handed; with the consuming transaction, where that alone shows it."""
    received = {receipt.message for receipt in case.history.received}
    for message in received:
        yield message, ""
    for tx in case.history.transactions.values():
        for message in tx.takes:
            if message not in received:
                yield message, tx.name
