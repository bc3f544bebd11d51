"""Worker: one client program, in a thread of its own. What it does is a workload's; how it survives failovers is here.

The end of a transaction is treated as `ClientTransactions` says.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from random import Random
from typing import ClassVar, NamedTuple

import msgspec

from understudy.client.runs.session import LostError, RefusedError
from understudy.client.runs.transactions import ClientTransactions
from understudy.client.stress.libraries.connection import Connection, Delivery, Session, outcome_of, pause
from understudy.client.verdicts.evidence.client_log import ClientLog, Event, Message


class Held(NamedTuple):
    """A message in the client's hands."""

    message: Message
    tag: int


class Worker(ABC):
    """One client.

    Args:
        session: how it connects.
        log: what it writes down; ``log.client`` is its name.
        random: its own.
        pause_s: on average, from the begin of one piece of work to that of the next.

    Attributes:
        proof: of this entry its logs have at least one at the end of a run; else nothing is proved about its part.
        fault: what ended its thread and should not have.
    """

    proof: ClassVar[Event] = Event.COMMITTED

    def __init__(self, session: Session, log: ClientLog, random: Random, pause_s: float) -> None:
        self.log = log
        self.fault: BaseException | None = None
        self.session = session
        self._random = random
        self._pause_s = pause_s
        self._due_s = 0.0
        self._transactions = ClientTransactions(log)

    @abstractmethod
    def prepare(self, connection: Connection) -> None:
        """After each connect: select a mode, consume."""

    @abstractmethod
    def work(self, connection: Connection) -> None:
        """One piece of work: a transaction, a message."""

    @property
    def owes(self) -> bool:
        """True if an outcome is unknown: this worker may not stop yet."""
        return bool(self._transactions.unknown)

    def settle(self, connection: Connection) -> None:
        """After each connect, before anything else: learn what is not known."""
        if self._transactions.unknown:
            self._transactions.resolved(*outcome_of(connection, self._transactions.unknown))

    def run(self, stop: threading.Event, give_up: threading.Event) -> None:
        """Work until ``stop``, then until nothing is owed, or until ``give_up``."""
        try:
            while (not stop.is_set() or self.owes) and not give_up.is_set():
                self._once(stop)
        except BaseException as error:  # noqa: BLE001  # the run reports it
            self.fault = error

    def _once(self, stop: threading.Event) -> None:
        connection: Connection | None = None
        try:
            connection = self.session.open()
            self.log.connected(str(self.session.address))
            self.settle(connection)
            if not stop.is_set():
                self.prepare(connection)
            while not stop.is_set():
                self._rest(stop)
                self.work(connection)
        except (LostError, RefusedError) as error:
            self.log.lost(str(error))
            pause(self._random)
        finally:
            if connection is not None:
                connection.close()

    def _rest(self, stop: threading.Event) -> None:
        """Until the next piece of work is due; work that is late, after a failover, is not made up for."""
        now_s = time.monotonic()
        self._due_s = max(now_s, self._due_s + self._random.expovariate(1 / self._pause_s))
        stop.wait(self._due_s - now_s)

    # -- what workloads share -------------------------------------------------------------------------------------------

    def next_name(self) -> str:
        """A name for the next transaction."""
        return self._transactions.next_name()

    def held(self, delivery: Delivery) -> Held:
        """Note a delivery."""
        held = Held(message_of(delivery), delivery.tag)
        self.log.received(held.message, redelivered=delivery.redelivered)
        return held

    def publish(self, connection: Connection, message: Message, padding: int, tx: str) -> None:
        """Publish one message of a transaction."""
        connection.publish(message.queue, body_of(message, padding), tx)

    def transact(
        self, connection: Connection, taken: Sequence[Held], makes: Sequence[tuple[str, int]], *,
        padding: int = 0, on_purpose: bool = False, rejected: Sequence[Held] = (),
    ) -> bool:  # fmt: skip
        """One transaction, from its first publish to its outcome or to the knowledge that the outcome is unknown.

        Args:
            connection: in transaction mode.
            taken: what it acknowledges or rejects.
            makes: queue and amount of each message it publishes.
            padding: so many bytes more in each body.
            on_purpose: roll it back instead of committing it.
            rejected: those of ``taken`` that it rejects.

        Returns:
            True if it committed.

        Raises:
            LostError, RefusedError: it has an outcome, or is noted as unknown; the channel is gone.
        """
        transactions = self._transactions
        tx, messages = transactions.begin(self.session.address, [each.message for each in taken], makes)
        with transactions.before_commit(tx):
            for message in messages:
                self.publish(connection, message, padding, tx)
            for each in taken:
                if each in rejected:
                    connection.reject(each.tag, requeue=False)
                else:
                    connection.acknowledge(each.tag)
            if on_purpose:
                connection.rollback()
        if on_purpose:
            transactions.rolled_back(tx)
            return False
        with transactions.committing(tx):
            connection.commit()
        return True


def body_of(message: Message, padding: int = 0) -> bytes:
    """The body of a published message: id, amount, and filling."""
    return msgspec.json.encode((message.id, message.amount, "-" * padding))


def message_of(delivery: Delivery) -> Message:
    """The message that :func:`body_of` encoded."""
    message_id, amount, _ = msgspec.json.decode(delivery.body)
    return Message(message_id, delivery.queue, amount)
