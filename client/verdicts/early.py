"""Early: delayed messages that a client got before they were due.

Rule (delays): a message with a delay is delivered to no client before the delay is over. The delay counts from the publish, of a
message in a transaction from the commit. A client writes down a publish and a commit before they leave, and a delivery after it has
come. So a message that is delivered in less time than its delay was early, whatever the network did; a message that comes later
says nothing. All clients are on one host: their clock is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from understudy.client.verdicts.evidence.case import Case
from understudy.client.verdicts.evidence.history import Place, place_of
from understudy.client.verdicts.violation import Kind, Violation

ROUNDING_MS: Final = 2.0
"""Brokers count whole milliseconds, of the moment and of the delay."""

DelayOf = Callable[[str, str], int]
"""Of a message id and the queue to which it was published: its delay in milliseconds; 0 for none."""


def early(case: Case, delay_of: DelayOf) -> list[Violation]:
    """Each delayed message was delivered when it was due, or later."""
    return [
        Violation(
            kind=Kind.EARLY,
            promise="delays",
            text=f"{message_id} of {queue} was delivered {-late_ms:.0f} ms early; its delay is {delay_of(message_id, queue)} ms",
            message=message_id,
            queue=queue,
            expected=f"after {delay_of(message_id, queue)} ms",
            found=f"{-late_ms:.0f} ms before that",
        )
        for (message_id, queue), late_ms in sorted(least_late_ms(case, delay_of).items())
        if late_ms < -ROUNDING_MS
    ]


def least_late_ms(case: Case, delay_of: DelayOf) -> dict[Place, float]:
    """How long after it was due each delayed message was delivered first; negative for an early one."""
    history = case.history
    begins = {place: sent.at_s for place, sent in history.sent.items() if delay_of(*place)}
    for tx in history.transactions.values():
        if tx.commit_sent_s is not None:
            begins |= {place: tx.commit_sent_s for each in tx.makes if delay_of(*(place := place_of(each)))}
    found: dict[Place, float] = {}
    for receipt in history.received:
        place = place_of(receipt.message)
        if place in begins:
            late_ms = (receipt.at_s - begins[place]) * 1_000 - delay_of(*place)
            found[place] = min(late_ms, found.get(place, late_ms))
    return found
