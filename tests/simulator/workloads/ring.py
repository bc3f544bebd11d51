"""Ring: tokens go round a ring of queues, one hop a transaction: what one client commits is what the next one finds."""

from __future__ import annotations

from tests.simulator import calls
from tests.simulator.ledger import ClientTransaction, Told, Violation, stamp_of
from tests.simulator.sim_client import Program, SimClient
from tests.simulator.workloads.bank import Bank
from tests.simulator.workloads.run import Run

RING = tuple(f"ring-{i}" for i in range(5))
TOKENS = 3


class Runner(Bank):
    """Takes a token from any queue and puts it on the next, with one hop more.

    The first runner makes the tokens, in one transaction. All runners together know how far each has come: whoever asks the
    primary for a message after a commit was answered must not find the token further back. (One that was stopped, and does not
    know yet that it is replaced, shows what it has; what is done with that comes to nothing.) The accounts see the rest: each
    token is there once, where the last committed hop put it.
    """

    def __init__(self, client: SimClient, run: Run, known: dict[str, int], first: bool) -> None:
        """``known``: token to the hops that were told committed; one for all runners."""
        super().__init__(client, run, TOKENS if first else 0)
        self._known = known
        self._carried: dict[str, int] = {}

    def work(self, transaction: ClientTransaction) -> Program:
        client, rng = self.client, self.rng
        self._carried = {}
        if self._coins:
            for i in range(self._coins):
                self._put(transaction, f"token-{i}", 0)
            return True
        start = rng.randrange(len(RING))
        for place in [(start + i) % len(RING) for i in range(rng.randrange(1, len(RING) + 1))]:
            known = dict(self._known)
            event = yield from calls.get(client, RING[place])
            if event is None:
                continue
            token, hop = self._read(event[4], known, place)
            transaction.consumed.append(stamp_of(event[4]))
            self._put(transaction, token, hop + 1)
            calls.ack(client, event[2][0])
            if rng.random() < 0.7:
                break
            yield from client.pause(0, 3)
        return rng.random() < 0.9 if self._carried else None

    def _read(self, body: bytes, known: dict[str, int], place: int) -> tuple[str, int]:
        _, token, text = body.decode().split(" ")
        hop = int(text)
        if hop % len(RING) != place:
            raise Violation("G1", f"{token} is at hop {hop} and lies in {RING[place]}")
        if hop < known.get(token, 0) and self._asks_the_primary():
            raise Violation("G4", f"{token} is at hop {hop}; hop {known[token]} was told committed before")
        if token in self._carried:
            raise Violation(
                "G1", f"{token} is found at hop {hop}, beside hop {self._carried[token]} of this transaction"
            )
        return token, hop

    def _asks_the_primary(self) -> bool:
        session = self.client.session
        if session is None or session.node.store.group is None:
            return False
        return session.node.node.broker.role.epoch == session.node.store.group.epoch

    def _put(self, transaction: ClientTransaction, token: str, hop: int) -> None:
        queue = RING[hop % len(RING)]
        stamp = f"#{transaction.label}/{token}"
        transaction.produced[stamp] = queue
        self._carried[token] = hop
        if len(self._carried) == 1:
            self.run.in_flight.append(transaction.question)
        self.client.publish("", queue, self.properties(transaction), f"{stamp} {token} {hop}".encode())

    def ended(self, transaction: ClientTransaction) -> None:
        super().ended(transaction)
        if transaction.told is Told.COMMITTED:
            self.run.did("ring hops", len(transaction.consumed))
            for token, hop in self._carried.items():
                self._known[token] = max(hop, self._known.get(token, 0))
