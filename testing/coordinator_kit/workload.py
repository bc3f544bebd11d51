"""Workload: committers over several queues, interleaved by a seed."""

from __future__ import annotations

from random import Random
from typing import Final

from understudy.testing.coordinator_kit.kit_broker import KitBroker
from understudy.testing.coordinator_kit.kit_client import Answer, KitClient

QUEUES: Final = ("kit.a", "kit.b", "kit.c", "kit.d")
PRIORITIES: Final = 4
TENANTS: Final = 3
CLIENT_WEIGHT: Final = 6
STEPS_BOUND: Final = 100_000


def headers_of(rng: Random) -> dict[str, object]:
    """The headers of one transaction's messages: what a coordinator may go by."""
    return {"x-priority": rng.randrange(PRIORITIES), "x-tenant": f"tenant {rng.randrange(TENANTS)}"}


class Workload:
    """Each committer runs its transactions one after the other; what happens next is drawn from the seed.

    Attributes:
        steps: taken so far. Equal seeds take equal steps, as long as the broker answers equally.
    """

    def __init__(self, broker: KitBroker, seed: int, committers: int, transactions: int) -> None:
        """``transactions``: of each committer."""
        self.steps = 0
        self._broker = broker
        self._rng = Random(seed)
        self._left = {broker.client(): transactions for _ in range(committers)}
        self._disk_works = False

    @property
    def done(self) -> bool:
        """Each transaction is answered."""
        return not any(self._left.values()) and all(
            client.transaction is None or client.transaction.answer is not Answer.NONE for client in self._left
        )

    def run(self, steps: int = STEPS_BOUND) -> None:
        """Take ``steps`` steps, or fewer if the work is done before."""
        for _ in range(steps):
            if self.done:
                return
            self.step()
        assert steps < STEPS_BOUND, f"not done after {STEPS_BOUND} steps: {self._broker.waiting()}"

    def step(self) -> None:
        """Take one step: a client goes on, a turn ends, the disk goes on, or time passes."""
        self.steps += 1
        draw = self._rng.randrange(CLIENT_WEIGHT + 5)
        if draw < CLIENT_WEIGHT:
            self._client_step()
        elif draw < CLIENT_WEIGHT + 2:
            self._broker.turn(flush=self._rng.random() < 0.5)
        elif draw < CLIENT_WEIGHT + 4:
            self._disk_step()
        else:
            self._broker.pass_ms(self._rng.choice((1, 2, 20, 200)))

    def _disk_step(self) -> None:
        if self._disk_works:
            self._broker.finish_group()
            self._disk_works = False
        else:
            self._disk_works = self._broker.begin_group()

    def _client_step(self) -> None:
        ready = [client for client in self._left if self._may_go_on(client)]
        if not ready:
            return
        client = self._rng.choice(ready)
        tx = client.transaction
        if tx is not None and not tx.asked:
            client.commit()
            return
        self._left[client] -= 1
        number = len(self._broker.transactions)
        chosen = self._rng.sample(QUEUES, self._rng.randint(1, len(QUEUES)))
        messages = {queue: self._rng.randint(1, 2) for queue in chosen}
        self._broker.transactions.append(client.publish(f"t{number}", messages, headers_of(self._rng)))

    def _may_go_on(self, client: KitClient) -> bool:
        tx = client.transaction
        if tx is not None and not tx.asked:
            return True
        return self._left[client] > 0 and (tx is None or tx.answer is not Answer.NONE)
