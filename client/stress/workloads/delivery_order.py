"""Delivery order: one consumer gets the messages of one producer in the order in which they were published.

Rule (G9), for queues that one client at a time consumes, and into which it gives nothing back: on one connection the messages of
one producer come in ascending order. So do those with redelivered=0 from one connection to the next, since a message that is
delivered for the first time was never passed over. A client that gets messages back (a rollback, a requeue) is not judged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from understudy.client.verdicts.evidence.client_log import Entry, Event
from understudy.client.verdicts.violation import Kind, Violation

CONSUMER_PREFIX: Final = "consumer"
"""Clients whose log is judged."""


def misdelivered(entries: Iterable[Entry]) -> list[Violation]:
    """Every delivery that came behind a later one of its producer."""
    found: list[Violation] = []
    here: dict[tuple[str, str, str], tuple[int, int]] = {}
    ever: dict[tuple[str, str, str], tuple[int, int]] = {}
    for entry in entries:
        if not entry.client.startswith(CONSUMER_PREFIX):
            continue
        if entry.event is Event.CONNECTED:
            here = {key: rank for key, rank in here.items() if key[0] != entry.client}
        if entry.event is not Event.RECEIVED:
            continue
        (message,) = entry.messages
        producer, rank = _rank(message.id)
        key = (entry.client, message.queue, producer)
        before = max(here.get(key, (-1, -1)), (-1, -1) if entry.redelivered else ever.get(key, (-1, -1)))
        if rank < before:
            later = f"{producer}-{before[0]}/{before[1]}"
            found.append(
                Violation(
                    kind=Kind.UNORDERED,
                    promise="G9",
                    text=f"{message.id} of {message.queue} was delivered to {entry.client} behind {later}",
                    message=message.id,
                    queue=message.queue,
                    expected=f"before {later}",
                    found=f"behind {later}",
                )
            )
        here[key] = max(rank, here.get(key, (-1, -1)))
        if not entry.redelivered:
            ever[key] = max(rank, ever.get(key, (-1, -1)))
    return found


def _rank(message_id: str) -> tuple[str, tuple[int, int]]:
    """Of ``producer-0-17/3``: the producer, and (17, 3)."""
    tx, _, index = message_id.rpartition("/")
    producer, _, number = tx.rpartition("-")
    return producer, (int(number), int(index))
