"""MovedOnce: when all is over, a message that moved from queue to queue is in exactly one of them, unless a client has taken it."""

from __future__ import annotations

from collections.abc import Collection

from tests.simulator.checkers.reference import Reference
from tests.simulator.ledger import Ledger, Violation


def check(reference: Reference, ledger: Ledger, publishers: Collection[str], queues: Collection[str]) -> None:
    """Raise the first violation.

    Args:
        reference: what the log says.
        ledger: what clients were told.
        publishers: names of the clients whose messages go nowhere but into ``queues``.
        queues: names; a message leaves them for good only if a client takes it.
    """
    ids = {queue.id: queue.name for queue in reference.queues.values() if queue.name in queues}
    places: dict[str, list[str]] = {}
    for stamp, queue_id in reference.here:
        if queue_id in ids:
            places.setdefault(stamp, []).append(ids[queue_id])
    for stamp, names in places.items():
        if len(names) > 1:
            raise Violation("G1", f"{stamp} is in {' and in '.join(sorted(names))}")
    for stamp in sorted(ledger.confirmed):
        if stamp[1:].partition(":")[0] in publishers and stamp not in places and stamp not in ledger.taken:
            raise Violation("G4", f"{stamp} was confirmed, and is in none of {', '.join(sorted(queues))}")
