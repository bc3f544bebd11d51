"""CameOnce: of messages that clients repeat, each that was confirmed has come; and all brokers remember the same ids.

That none comes twice the reference sees by itself: a repeated message has the stamp of the first.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from tests.simulator.checkers.reference import Reference
from tests.simulator.ledger import Ledger, Violation
from understudy.broker.core.queues.id_window import IdWindow
from understudy.broker.core.state import BrokerState

if TYPE_CHECKING:
    from tests.simulator.sim_node import SimNode


def check(reference: Reference, ledger: Ledger, publishers: Collection[str], queues: Collection[str]) -> None:
    """Raise the first violation.

    Args:
        reference: what the log says.
        ledger: what clients were told.
        publishers: names of the clients whose messages go nowhere but into ``queues``.
        queues: names; a message leaves them only if a client takes it.
    """
    here = {stamp for stamp, _ in reference.here}
    for stamp in sorted(ledger.confirmed):
        if stamp[1:].partition(":")[0] in publishers and stamp not in here and stamp not in ledger.taken:
            raise Violation(
                "G4", f"{stamp} was confirmed for one of its publishes, and came to none of {sorted(queues)}"
            )


def remember_alike(node: SimNode, primary: SimNode) -> None:
    """Raise if two brokers that hold the same remember other ids."""
    ours, theirs = ids_of(node.node.state), ids_of(primary.node.state)
    for name in sorted(ours.keys() | theirs.keys()):
        differing = set(ours.get(name, ())) ^ set(theirs.get(name, ()))
        if differing:
            raise Violation(
                "G2",
                f"{node.name} and {primary.name} differ in {len(differing)} ids that came to {name}: {min(differing)}",
            )


def ids_of(state: BrokerState) -> dict[str, list[tuple[bytes, int]]]:
    """By queue and exchange, the ids that a broker remembers, and where they came."""
    found = {f"exchange {name}": _noted(window) for (_, name), window in state.id_windows.exchanges.items()}
    for queue in state.queues.values():
        if queue.window is not None and queue.logged:
            found[f"queue {queue.name}"] = _noted(queue.window)
    return found


def _noted(window: IdWindow) -> list[tuple[bytes, int]]:
    return [(octets, noted[0]) for octets, noted in window.noted.items()]
