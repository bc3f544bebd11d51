"""Doubled: messages that are there, or were taken, more than once.

Rule (G1): a message lies in its queue once, or one transaction has consumed it, and not both. An acknowledgement outside of
transactions does not count: no broker answers it, so it may not have arrived.
"""

from __future__ import annotations

from understudy.client.verdicts.evidence.case import Case
from understudy.client.verdicts.violation import Kind, Violation


def doubled(case: Case) -> list[Violation]:
    """Each message is there once, or was consumed once."""
    found = []
    for place in dict.fromkeys((*case.takers, *case.lying)):
        message_id, queue = place
        takers, times = case.takers.get(place, []), case.lying[place]
        if len(takers) > 1:
            first, second = takers[:2]
            found.append(
                Violation(
                    kind=Kind.DOUBLED,
                    promise="G1",
                    text=f"{message_id} was consumed by {first} and by {second}",
                    transaction=second,
                    message=message_id,
                    queue=queue,
                    expected="consumed once",
                    found=f"consumed {len(takers)} times",
                )
            )
        elif takers and times:
            found.append(
                Violation(
                    kind=Kind.DOUBLED,
                    promise="G1",
                    text=f"{message_id} was consumed by {takers[0]} and is still in {queue}",
                    transaction=takers[0],
                    message=message_id,
                    queue=queue,
                    expected="gone",
                    found=f"in {queue}",
                )
            )
        elif times > 1:
            found.append(
                Violation(
                    kind=Kind.DOUBLED,
                    promise="G1",
                    text=f"{message_id} lies in {queue} {times} times",
                    message=message_id,
                    queue=queue,
                    expected="once",
                    found=f"{times} times",
                )
            )
    return found
