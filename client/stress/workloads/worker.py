"""Worker: one client program, in a thread of its own. What it does is a workload's; how it survives failovers is here.

What a client does with the end of a transaction: if tx.commit was never sent, the transaction is rolled back, for only a commit
commits. commit-ok, or channel.close 406 or 506 instead, says what became of it. Anything else is unknown: the client asks for the
outcome, and never replays the transaction.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from random import Random
from typing import ClassVar, Final, NamedTuple

import msgspec

from understudy.client.demo.session import LostError, RefusedError
from understudy.client.stress.libraries.connection import Connection, Delivery, Session, outcome_of, pause
from understudy.client.verdicts.client_log import BY_BROKER, BY_CLIENT, BY_LOSS, ClientLog, Event, Message

ROLLED_BACK_CODES: Final = frozenset({406, 506})


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
        self._number = 0
        self._unknown = ""

    @abstractmethod
    def prepare(self, connection: Connection) -> None:
        """After each connect: select a mode, consume."""

    @abstractmethod
    def work(self, connection: Connection) -> None:
        """One piece of work: a transaction, a message."""

    @property
    def owes(self) -> bool:
        """True if an outcome is unknown: this worker may not stop yet."""
        return bool(self._unknown)

    def settle(self, connection: Connection) -> None:
        """After each connect, before anything else: learn what is not known."""
        if self._unknown:
            answer, questions = outcome_of(connection, self._unknown)
            self.log.resolved(self._unknown, answer, questions)
            self._unknown = ""

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
        name = f"{self.log.client}-{self._number}"
        self._number += 1
        return name

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
        tx = self.next_name()
        messages = [Message(f"{tx}/{index}", queue, amount) for index, (queue, amount) in enumerate(makes)]
        self.log.began(tx, broker=str(self.session.address))
        self.log.sent(messages, tx)
        self.log.acknowledged([each.message for each in taken], tx)
        try:
            for message in messages:
                self.publish(connection, message, padding, tx)
            for each in taken:
                if each in rejected:
                    connection.reject(each.tag, requeue=False)
                else:
                    connection.acknowledge(each.tag)
            if on_purpose:
                connection.rollback()
        except (LostError, RefusedError) as error:
            self.log.rolled_back(tx, BY_LOSS, str(error))
            raise
        if on_purpose:
            self.log.rolled_back(tx, BY_CLIENT, "on purpose")
            return False
        self._commit(connection, tx)
        return True

    def _commit(self, connection: Connection, tx: str) -> None:
        self.log.commit_sent(tx)
        try:
            connection.commit()
        except RefusedError as error:
            if error.code in ROLLED_BACK_CODES:
                self.log.rolled_back(tx, BY_BROKER, str(error))
            else:
                self._note_unknown(tx, error)
            raise
        except LostError as error:
            self._note_unknown(tx, error)
            raise
        self.log.committed(tx)

    def _note_unknown(self, tx: str, error: Exception) -> None:
        self.log.unknown(tx, str(error))
        self._unknown = tx


def body_of(message: Message, padding: int = 0) -> bytes:
    """The body of a published message: id, amount, and filling."""
    return msgspec.json.encode((message.id, message.amount, "-" * padding))


def message_of(delivery: Delivery) -> Message:
    """The message that :func:`body_of` encoded."""
    message_id, amount, _ = msgspec.json.decode(delivery.body)
    return Message(message_id, delivery.queue, amount)
