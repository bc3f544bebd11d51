"""Altered: messages that no client made, that lie elsewhere or are worth something else, and amounts that do not add up.

Rule (G1): what lies in a queue was published to that queue, and is worth what it was published with. All messages together are
worth what transactions that take nothing have brought: every other transaction makes as much as it takes. The sum is no proof by
itself. It rests on addition alone.
"""

from __future__ import annotations

from understudy.client.verdicts.evidence.case import Case
from understudy.client.verdicts.violation import Kind, Violation


def foreign(case: Case) -> list[Violation]:
    """Everything that lies in a queue was made by a client."""
    return [
        Violation(
            kind=Kind.FOREIGN,
            promise="G1",
            text=f"{message_id} lies in {queue}, and no client made it",
            message=message_id,
            queue=queue,
            expected="nowhere",
            found=f"in {queue}",
        )
        for message_id, queue in case.lying
        if message_id not in case.places
    ]


def altered(case: Case) -> list[Violation]:
    """Everything lies where it was published to, and is worth what it was."""
    found = []
    for queue, message in dict.fromkeys(case.content.messages()):
        places = case.places.get(message.id)
        if places is None:
            continue
        made = case.made.get((message.id, queue))
        if made is None:
            found.append(
                Violation(
                    kind=Kind.ALTERED,
                    promise="G1",
                    text=f"{message.id} lies in {queue}, and was made for {', '.join(places)}",
                    message=message.id,
                    queue=queue,
                    expected=f"in {', '.join(places)}",
                    found=f"in {queue}",
                )
            )
        elif made.amount != message.amount:
            found.append(
                Violation(
                    kind=Kind.ALTERED,
                    promise="G1",
                    text=f"{message.id} in {queue} is worth {message.amount}, and was made with {made.amount}",
                    message=message.id,
                    queue=queue,
                    expected=str(made.amount),
                    found=str(message.amount),
                )
            )
    return found


def unbalanced(case: Case) -> list[Violation]:
    """All messages together are worth what was brought."""
    minted, found = minted_and_found(case)
    if minted == found:
        return []
    return [
        Violation(
            kind=Kind.UNBALANCED,
            promise="G1",
            text=f"{minted} was minted and {found} is there",
            expected=str(minted),
            found=str(found),
        )
    ]


def minted_and_found(case: Case) -> tuple[int, int]:
    """The worth of what transactions that take nothing have made, and of everything that lies in queues."""
    transactions = case.history.transactions.values()
    minted = sum(message.amount for tx in transactions if tx.committed and not tx.takes for message in tx.makes)
    return minted, sum(message.amount for _, message in case.content.messages())
