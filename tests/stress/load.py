"""A load of movers over some queues, and its books: what must be in the queues afterwards, exactly."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tests.integration.broker_process import wait_until
from tests.stress.clients import End, Finder, Found, content_of, declare, outcomes, read_queue
from tests.stress.group import Group
from tests.stress.mover import Mover, Told, Transaction
from understudy.client.verdicts import BrokerContent, Case, History, judge

MAX_ASKED = 400
"""Of the transactions whose end is known, how many are asked for too."""


class Load:
    """Movers that run until told to stop. Several loads may follow one another on the same queues.

    Args:
        ports: AMQP ports of all brokers.
        movers: how many; every third asks for its transactions' ids.
        name: unique in a group.
        queues: four of its own, if none are given.
    """

    def __init__(
        self,
        ports: Sequence[int],
        movers: int = 6,
        *,
        name: str = "m",
        queues: Sequence[str] = (),
        stays: bool = False,
        pace_s: float = 0.0,
    ) -> None:
        self.finder = Finder(ports)
        self.queues = list(queues) or [f"{name}.{number}" for number in range(4)]
        self._stop = threading.Event()
        self.movers = [
            Mover(
                f"{name}{number:02d}",
                self.finder,
                self.queues,
                self._stop,
                asks_id=number % 3 == 2,
                stays=stays,
                pace_s=pace_s,
            )
            for number in range(movers)
        ]

    def declare(self) -> None:
        declare(self.finder, self.queues)

    def start(self) -> None:
        for mover in self.movers:
            mover.start()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Clients run inside, and have stopped afterwards in any case."""
        self.start()
        try:
            yield
        finally:
            self.stop()
        self.join()

    def stop(self) -> None:
        self._stop.set()

    def join(self, timeout_s: float = 60.0) -> None:
        for mover in self.movers:
            mover.join(timeout_s)

    @property
    def committed(self) -> int:
        return sum(mover.committed for mover in self.movers)

    def wait_committed(self, count: int, timeout_s: float = 90.0) -> None:
        """Until so many more transactions are acknowledged than are now."""
        goal = self.committed + count

        def reached() -> bool:
            for mover in self.movers:
                if mover.fault is not None:
                    raise mover.fault
            return self.committed >= goal

        wait_until(f"{count} more transactions are acknowledged", reached, timeout_s)

    def wait_busy(self) -> None:
        """Until each mover is at work on a connection."""
        wait_until("all movers work", lambda: all(len(mover.transactions) > 1 for mover in self.movers), 60.0)

    @property
    def transactions(self) -> list[Transaction]:
        return [tx for mover in self.movers for tx in mover.transactions]

    @property
    def ends(self) -> list[End]:
        return [end for mover in self.movers for end in mover.ends]

    def counts(self) -> Counter[str]:
        return Counter(tx.told.name for tx in self.transactions)


class Books:
    """The clients' books of everything that happened to some queues."""

    def __init__(self, *loads: Load) -> None:
        self.loads = list(loads)

    @property
    def transactions(self) -> list[Transaction]:
        return [tx for load in self.loads for tx in load.transactions]

    def resolve(self, finder: Finder) -> dict[str, int]:
        """Ask for the outcome of every transaction whose client does not know it, and of some whose client does.

        The answers must fit what was told: that is asserted here; that they fit the queues, in :meth:`check`.

        Returns:
            How often each outcome was answered for transactions whose client did not know.
        """
        unknown = [tx for tx in self.transactions if tx.told is Told.UNKNOWN and not tx.outcome]
        known = [tx for tx in self.transactions if tx.told is not Told.UNKNOWN and tx.subjects and not tx.outcome]
        asked = unknown + known[-MAX_ASKED:]
        answers = outcomes(finder, [subject for tx in asked for subject in tx.subjects])
        for tx in asked:
            given = {answers[subject] for subject in tx.subjects}
            assert given <= {"committed", "rolled back"}, f"{tx}: {given}"
            assert len(given) == 1, f"asked by name and by id, the answers differ: {given} for {tx}"
            tx.outcome = given.pop()
            if tx.told is not Told.UNKNOWN:
                expected = "committed" if tx.told is Told.COMMITTED else "rolled back"
                assert tx.outcome == expected, f"the client was told {tx.told.value}, the outcome query says {tx}"
        return Counter(tx.outcome for tx in unknown)

    def history(self) -> History:
        """The books, as the verdicts read them."""
        movers = [mover for load in self.loads for mover in load.movers]
        transactions = [
            tx.for_verdicts(each.worker, number) for each in movers for number, tx in enumerate(each.transactions)
        ]
        return History(
            transactions={tx.name: tx for tx in transactions},
            received=[receipt for mover in movers for receipt in mover.received],
        )

    def read(self, finder: Finder) -> dict[str, list[Found]]:
        return {queue: read_queue(finder, queue) for load in self.loads for queue in load.queues}

    def check(self, found: Mapping[str, Sequence[Found]]) -> None:
        """The queues hold exactly what they must, each client's messages in its order, none for the first time twice."""
        content = BrokerContent(broker="a client", queues={queue: content_of(queue, found[queue]) for queue in found})
        violations = judge(Case(history=self.history(), content=content))
        assert not violations, f"{len(violations)} problems: " + "\n".join(each.text for each in violations[:20])


@contextlib.contextmanager
def undisturbed(group: Group, name: str) -> Iterator[None]:
    """Clients at work before, during and after what happens inside, to whom and to whose brokers nothing may happen."""
    before = group.ready()
    load = Load([group.primary().port], movers=3, name=name, stays=True, pace_s=0.01)
    load.declare()
    with load.running():
        load.wait_busy()
        yield
        load.wait_committed(20)
    assert load.ends == []
    assert set(load.counts()) <= {"COMMITTED", "ROLLED_BACK"}, load.counts()
    for broker, row in group.ready().items():
        for key in ("pid", "role", "epoch", "primary"):
            assert row[key] == before[broker][key], (broker, key)
        assert row["counters"]["cores"] == before[broker]["counters"]["cores"], broker
    group.settled()
    books = Books(load)
    books.resolve(load.finder)
    books.check(books.read(load.finder))
    group.agree()
    group.check_logs()
