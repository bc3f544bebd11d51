"""Run: what all programs of one run share."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.simulator.knobs import Knobs
from tests.simulator.ledger import Ledger, Told
from tests.simulator.world import World
from understudy.broker.amqp.properties import encode_properties

PERSISTENT = encode_properties(delivery_mode=2)
TRANSIENT = encode_properties(delivery_mode=1)


class Run:
    """The books, the clock, and when to stop.

    Attributes:
        wanted: how many transactions are to be decided.
        enough: whether workloads may end what they are doing and finish.
        over: the cluster has healed and nothing more will come: consumers stop.
        forgotten: what became of the transaction of that question, if brokers may have forgotten it by now; else None.
        in_flight: questions that may be asked about transactions, newest last.
    """

    def __init__(
        self,
        world: World,
        knobs: Knobs,
        ledger: Ledger,
        wanted: int,
        enough: Callable[[], bool],
        forgotten: Callable[[str], Told | None],
    ) -> None:
        self.world = world
        self.knobs = knobs
        self.ledger = ledger
        self.wanted = wanted
        self.enough = enough
        self.forgotten = forgotten
        self.over = False
        self.in_flight: list[str] = []

    def did(self, deed: str, times: int = 1) -> None:
        """Something came of the work: counted for `minima`, so that no workload stands still unseen. No part of the run."""
        self.world.happened[deed] += times

    def idle_ms(self, rng: Random) -> int:
        """How long a client pauses before the next thing; when only faults are still wanted, it works now and then."""
        if self.ledger.decided >= self.wanted and rng.random() < 0.25:
            return rng.randrange(500, 4_000)
        return rng.choice((0, 0, 1, 5)) if rng.random() < 0.8 else rng.randrange(self.knobs.idle_ms + 1)


def padded(stamp: str, size: int) -> bytes:
    """A body with a stamp."""
    return f"{stamp} ".encode() + b"x" * size
