"""Workloads, by name: which queues there are, who fills them, and who works on them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import Any, Final

import attrs

from understudy.client.runs.coins import ACCOUNTS
from understudy.client.stress.libraries.connection import Session
from understudy.client.stress.workloads import bank, branches, dead_letter_kinds, dead_letters, fifo, large_tx, placing
from understudy.client.stress.workloads.worker import Worker
from understudy.client.verdicts.evidence.case import Case
from understudy.client.verdicts.evidence.client_log import ClientLog
from understudy.client.verdicts.judging import judge
from understudy.client.verdicts.violation import Violation


@attrs.frozen(kw_only=True)
class Cast:
    """The parts from which a workload makes its clients.

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
        arguments: of those queues that have any.
        passing: queues that messages leave by themselves: they are empty a moment after the load.
        judge: the verdicts on what was read at the end.
        figures: what the report says of the queues beside; rows by name.
    """

    queues: Sequence[str]
    fill: type[Worker]
    workers: Callable[[Cast], list[Worker]]
    arguments: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    passing: Collection[str] = ()
    judge: Callable[[Case], list[Violation]] = judge
    figures: Callable[[Case], Mapping[str, Mapping[str, int]]] | None = None


def _bank(cast: Cast) -> list[Worker]:
    """Every second mover consumes."""
    return [bank.Mover(*cast.of(number, "mover"), consumes=number % 2 == 1) for number in range(cast.clients)]


def _fifo(cast: Cast) -> list[Worker]:
    workers: list[Worker] = []
    for number in range(cast.clients):
        role = fifo.role_of(number, cast.clients)
        about = cast.of(number, role)
        queue = fifo.QUEUES[number // 3 % len(fifo.QUEUES)]
        if role == "confirmer":
            workers.append(fifo.Confirmer(*about, queue=queue, new_log=cast.log))
        elif role == "producer":
            workers.append(fifo.Producer(*about, queue=queue))
        else:
            workers.append(fifo.Consumer(*about, queue=queue))
    return workers


def _large_tx(cast: Cast) -> list[Worker]:
    """Every second client takes. Each piece of work is some hundred messages, so they are a twentieth as many a second."""
    cast = attrs.evolve(cast, pause_s=20 * cast.pause_s)
    workers: list[Worker] = []
    for number in range(cast.clients):
        if number % 2:
            queue = large_tx.QUEUES[number // 2 % len(large_tx.QUEUES)]
            workers.append(large_tx.Taker(*cast.of(number, "taker"), queue=queue))
        else:
            workers.append(large_tx.Maker(*cast.of(number, "maker")))
    return workers


def _branches(cast: Cast) -> list[Worker]:
    return [branches.Manager(*cast.of(number, "manager")) for number in range(cast.clients)]


def _dead_letters(cast: Cast) -> list[Worker]:
    workers: list[Worker] = []
    for number in range(cast.clients):
        role, made = dead_letters.ROLES[number % len(dead_letters.ROLES)]
        about = cast.of(number, role)
        if made is dead_letters.Publisher:
            workers.append(dead_letters.Publisher(*about, queue="", new_log=cast.log))
        else:
            workers.append(made(*about))
    return workers


WORKLOADS: Final[dict[str, Workload]] = {
    "bank": Workload(queues=ACCOUNTS, fill=bank.Mint, workers=_bank),
    "fifo": Workload(queues=fifo.QUEUES, fill=fifo.Declare, workers=_fifo),
    "large-tx": Workload(queues=(*large_tx.QUEUES, large_tx.RECEIPTS), fill=large_tx.Declare, workers=_large_tx),
    "dtx": Workload(queues=branches.QUEUES, fill=branches.Fill, workers=_branches),
    "deadletters": Workload(
        queues=tuple(dead_letter_kinds.ARGUMENTS),
        fill=dead_letters.Declare,
        workers=_dead_letters,
        arguments=dead_letter_kinds.ARGUMENTS,
        passing=[queue for kind in dead_letter_kinds.KINDS for queue in kind.passing],
        judge=placing.placed,
        figures=placing.figures,
    ),
}
