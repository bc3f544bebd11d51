"""Mover: a pika program that runs transactions, and writes down what it did and what it was told, as it happens.

It takes messages from some queues (basic.get and ack) and puts new ones into others, then commits, or sometimes rolls back. Every
message carries a stamp of its own, ``worker.number.place``: where it comes from, and its place in its client's order.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Sequence
from enum import Enum
from typing import Any

import attrs
import pika
import pika.exceptions

from tests.stress.clients import ERRORS, NAME_HEADER, PERSISTENT, End, Finder, ask, end_of
from understudy.client import verdicts
from understudy.client.verdicts import COMMITTED, ROLLED_BACK, Message, Receipt


class Told(Enum):
    """A client's knowledge of its transaction."""

    OPEN = "open"
    COMMITTED = "commit-ok"
    ROLLED_BACK = "rollback-ok"
    REFUSED = "channel closed instead of commit-ok"
    ABANDONED = "connection lost before commit was sent"
    UNKNOWN = "connection lost after commit was sent"


@attrs.define(kw_only=True)
class Transaction:
    """One transaction as its client saw it: (queue, stamp) of what it put and took.

    Attributes:
        own_id: the broker's id of it, "" if the client did not ask.
        outcome: what the outcome query answered later, "" if it was not asked.
        told_at: monotonic seconds.
    """

    name: str
    puts: list[tuple[str, str]] = attrs.field(factory=list)
    takes: list[tuple[str, str]] = attrs.field(factory=list)
    told: Told = Told.OPEN
    own_id: str = ""
    outcome: str = ""
    words: str = ""
    told_at: float = 0.0

    def is_told(self, told: Told, words: str = "") -> None:
        self.told, self.words, self.told_at = told, words, time.monotonic()

    @property
    def subjects(self) -> list[str]:
        """Subjects that may be asked for: the name, once a message has carried it, and the id."""
        return [*([self.name] if self.puts else []), *([self.own_id] if self.own_id else [])]

    def for_verdicts(self, client: str, number: int) -> verdicts.Transaction:
        """As the verdicts read it; an outcome that was asked for counts as told."""
        told = (
            []
            if self.told in (Told.OPEN, Told.UNKNOWN)
            else [COMMITTED if self.told is Told.COMMITTED else ROLLED_BACK]
        )
        return verdicts.Transaction(
            name=self.name,
            client=client,
            number=number,
            takes=tuple(Message(stamp, queue) for queue, stamp in self.takes),
            makes=tuple(Message(stamp, queue) for queue, stamp in self.puts),
            told=(*told, *([self.outcome] if self.outcome else [])),
            unknown=self.told is Told.UNKNOWN,
        )


class Mover:
    """One client with one connection at a time.

    Args:
        worker: unique in a test; no dot in it.
        asks_id: it asks the broker for the id of each transaction before it commits.
        stays: it does not connect again.
        pace_s: a pause after each transaction.

    Attributes:
        received: every message that it was handed.
        fault: what it did not expect.
    """

    def __init__(
        self,
        worker: str,
        finder: Finder,
        queues: Sequence[str],
        stop: threading.Event,
        *,
        seed: int = 0,
        asks_id: bool = False,
        stays: bool = False,
        pace_s: float = 0.0,
    ) -> None:
        self.worker = worker
        self.transactions: list[Transaction] = []
        self.received: list[Receipt] = []
        self.ends: list[End] = []
        self.fault: BaseException | None = None
        self._finder = finder
        self._queues = list(queues)
        self._stop = stop
        self._chance = random.Random(f"{worker} {seed}")
        self._asks_id = asks_id
        self._stays = stays
        self._pace_s = pace_s
        self._thread = threading.Thread(target=self._run, name=f"mover {worker}")

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float = 60.0) -> None:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"mover {self.worker} still waits: {self.transactions[-1:]}"
        if self.fault is not None:
            raise self.fault

    @property
    def committed(self) -> int:
        return sum(tx.told is Told.COMMITTED for tx in self.transactions)

    # -- working ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                connection = self._finder.connect(stop=self._stop)
                if connection is None:
                    return
                self._work(connection)
                if self._stays:
                    return
        except BaseException as error:  # noqa: BLE001  # join raises it
            self.fault = error

    def _work(self, connection: Any) -> None:
        """Transactions, until the connection ends or the test does."""
        try:
            while not self._stop.is_set():
                channel = connection.channel()
                self._on_channel(connection, channel)
                if channel.is_open:
                    channel.close()
            connection.close()
        except ERRORS as error:
            self.ends.append(end_of(error))
        finally:
            self._settle_last()
            if connection.is_open:
                with contextlib.suppress(*ERRORS):
                    connection.close()

    def _settle_last(self) -> None:
        if self.transactions and self.transactions[-1].told is Told.OPEN:
            self.transactions[-1].is_told(Told.ABANDONED)

    def _on_channel(self, connection: Any, channel: Any) -> None:
        """Transactions on one channel; a rollback or a refusal is its last."""
        heard: list[float] = []
        # pika forgets a commit-ok that came together with connection.close: the wire is the witness.
        channel._impl.add_callback(lambda _: heard.append(time.monotonic()), [pika.spec.Tx.CommitOk], False)
        replies = ""
        if self._asks_id:
            replies = channel.queue_declare("", exclusive=True).method.queue
        channel.tx_select()
        while not self._stop.is_set():
            tx = Transaction(name=f"{self.worker}.{len(self.transactions):06d}")
            self.transactions.append(tx)
            try:
                if replies:
                    tx.own_id = ask(connection, channel, replies, "id")
                self._fill(channel, tx)
            except pika.exceptions.ChannelClosedByBroker as error:
                tx.is_told(Told.REFUSED, f"{error.reply_code} {error.reply_text}")
                return
            if self._chance.random() < 0.12:
                channel.tx_rollback()
                tx.is_told(Told.ROLLED_BACK)
                return  # the deliveries are unacknowledged again: closing the channel sends them home
            before = len(heard)
            try:
                channel.tx_commit()
            except pika.exceptions.ChannelClosedByBroker as error:
                tx.is_told(Told.REFUSED, f"{error.reply_code} {error.reply_text}")
                return
            except ERRORS as error:
                tx.is_told(Told.COMMITTED if len(heard) > before else Told.UNKNOWN, str(error))
                raise
            tx.is_told(Told.COMMITTED)
            if self._pace_s:
                connection.sleep(self._pace_s)

    def _fill(self, channel: Any, tx: Transaction) -> None:
        chance = self._chance
        for _ in range(chance.choice((0, 1, 1, 2))):
            queue = chance.choice(self._queues)
            method, _, body = channel.basic_get(queue)
            if method is None:
                continue
            stamp = body.decode()
            self.received.append(Receipt(self.worker, Message(stamp, queue), method.redelivered))
            tx.takes.append((queue, stamp))
            channel.basic_ack(method.delivery_tag)
        properties = pika.BasicProperties(delivery_mode=PERSISTENT, headers={NAME_HEADER: tx.name})
        for place in range(chance.choice((1, 2, 2, 3, 4))):
            queue = chance.choice(self._queues)
            stamp = f"{tx.name}.{place}"
            tx.puts.append((queue, stamp))
            channel.basic_publish("", queue, stamp.encode(), properties)
