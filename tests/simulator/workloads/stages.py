"""Stages: consume from one queue, publish to the next, acknowledge: one transaction a step, as a pipeline of services does."""

from __future__ import annotations

from typing import Any

from tests.simulator import calls
from tests.simulator.ledger import ClientTransaction, Told, stamp_of
from tests.simulator.sim_client import Program, SimClient
from tests.simulator.workloads.bank import Bank
from tests.simulator.workloads.run import Run, padded

STAGES = tuple(f"stage-{i}" for i in range(3))
WORK = "work"


class Feeder(Bank):
    """Brings jobs to the first stage."""

    def __init__(self, client: SimClient, run: Run) -> None:
        super().__init__(client, run, 0)

    def work(self, transaction: ClientTransaction) -> Program:
        client = self.client
        yield from client.pause(5, 60)
        properties = self.properties(transaction)
        for i in range(self.rng.randrange(1, 4)):
            stamp = f"#{transaction.label}/{i}"
            transaction.produced[stamp] = STAGES[0]
            client.publish("", STAGES[0], properties, padded(stamp, 10))
        return True


class StageWorker(Bank):
    """Works at one stage: consumes with a prefetch, of its own or of the whole channel."""

    def __init__(self, client: SimClient, run: Run, stage: int) -> None:
        super().__init__(client, run, 0)
        self._source = STAGES[stage]
        self._target = STAGES[stage + 1]
        self._everybody = client.rng.random() < 0.3

    def set_up(self) -> Program:
        yield from calls.qos(self.client, self.rng.randrange(1, 6), everybody=self._everybody)
        yield from calls.consume(self.client, self._source, WORK)

    def _jobs(self) -> list[Any]:
        """Up to three deliveries, in order."""
        client = self.client
        jobs = [event for event in client.deliveries if event[2][0] == WORK][: self.rng.randrange(1, 4)]
        for job in jobs:
            client.deliveries.remove(job)
        return jobs

    def work(self, transaction: ClientTransaction) -> Program:
        client, rng = self.client, self.rng
        jobs = self._jobs()
        if not jobs:
            return None
        properties = self.properties(transaction)
        self.run.in_flight.append(transaction.question)
        rejects = rng.random() < 0.15
        client.publish("", "nowhere", properties, b"")  # names the transaction, whatever it does
        for i, job in enumerate(jobs):
            transaction.consumed.append(stamp_of(job[4]))
            if rejects:
                calls.reject(client, job[2][1])
                continue
            stamp = f"#{transaction.label}/{i}"
            transaction.produced[stamp] = self._target
            client.publish("", self._target, properties, padded(stamp, 5))
            yield from client.pause(0, 1)
        if not rejects and rng.random() < 0.5:
            calls.ack(client, jobs[-1][2][1], multiple=True)
        elif not rejects:
            for job in reversed(jobs):
                calls.ack(client, job[2][1])
        return rng.random() < 0.9

    def ended(self, transaction: ClientTransaction) -> None:
        super().ended(transaction)
        if transaction.told is Told.COMMITTED and self._target == STAGES[-1]:
            self.run.did("stages passed", len(transaction.produced))

    def rolled_back(self) -> Program:
        """Some nack what they hold within a transaction, some recover. What was on its way meanwhile they still hold."""
        client = self.client
        if self.rng.random() < 0.5:
            let_go = client.newest_tag
            if let_go:
                calls.nack(client, let_go, multiple=True, requeue=True)
            yield from calls.commit(client)
        else:
            yield from calls.recover(client)
            let_go = client.recovered_tag
        kept = [event for event in client.deliveries if event[2][0] != WORK or event[2][1] > let_go]
        client.deliveries.clear()
        client.deliveries.extend(kept)
