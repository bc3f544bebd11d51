"""Workloads, by name: which queues there are, who fills them, and who works on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

import attrs

from understudy.client.stress import bank
from understudy.client.stress.connection import Session
from understudy.client.stress.worker import Worker
from understudy.client.verdicts.client_log import ClientLog


@attrs.frozen(kw_only=True)
class Cast:
    """What a workload makes its clients of.

    Attributes:
        session: a new one for a client of that number, which has that name.
        log: a new log under a name.
        pause_s: on average, between two pieces of work of one client.
    """

    clients: int
    random: Random
    session: Callable[[int, str], Session]
    log: Callable[[str], ClientLog]
    pause_s: float

    def of(self, number: int, role: str) -> tuple[Session, ClientLog, Random, float]:
        """The arguments of a worker."""
        name = f"{role}-{number:02}"
        random = Random(self.random.getrandbits(64))  # noqa: S311  # chance for a load
        return self.session(number, name), self.log(name), random, self.pause_s


@attrs.frozen(kw_only=True)
class Workload:
    """One of them.

    Attributes:
        queues: all, and all of them are judged.
        fill: does, as its first piece of work, what must be there before the load.
    """

    queues: Sequence[str]
    fill: type[Worker]
    workers: Callable[[Cast], list[Worker]]


WORKLOADS: Final[dict[str, Workload]] = {
    "bank": Workload(
        queues=bank.ACCOUNTS,
        fill=bank.Mint,
        workers=lambda cast: [bank.mover(number, *cast.of(number, "mover")) for number in range(cast.clients)],
    ),
}
