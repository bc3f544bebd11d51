"""Transactions on a connection: their commit, what a loss in it means, and the question for the outcome.

A transaction is sent at its end, on a channel that carries nothing else meanwhile. Before ``tx.commit`` is on its way, a loss
means that nothing is done (`TransactionAborted`): the broker rolls back what a lost channel has sent. Later, a broker that closes
the channel refuses the commit (`TransactionAborted`, too), and a lost connection leaves the outcome unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import attrs

from understudy.client.connection.core.failover import Failover
from understudy.client.connection.core.messages import Message, Outgoing
from understudy.client.connection.core.outcome import (
    CAPABILITY,
    EXCHANGE,
    HEADER,
    NO_ANSWER,
    PENDING_PAUSE_S,
    Outcome,
    outcome_of,
)
from understudy.client.connection.core.port import Channel, Link, Procedure
from understudy.client.connection.core.topology import Queue
from understudy.client.connection.core.transaction import Transaction
from understudy.client.connection.errors import (
    ArgumentError,
    LostError,
    RefusedError,
    TransactionAborted,
    TransactionUnknown,
    UnroutableError,
)

ANSWER_S: Final = 10.0

Ask = Callable[[str], Any]
"""The face's question for an outcome."""


class Transactions:
    """Commits and questions of one connection.

    Args:
        ask: given to each `TransactionUnknown`.
    """

    def __init__(self, failover: Failover, ask: Ask) -> None:
        self._failover = failover
        self._driver = failover.driver
        self._ask = ask
        self._asking = failover.driver.lock()
        self._answers: Channel | None = None
        self._answer_queue = ""

    def commit(self, transaction: Transaction) -> Procedure[None]:
        """Do all that the transaction holds. Known to be done when it returns.

        Raises:
            TransactionAborted: nothing is done.
            TransactionUnknown: the broker was lost while it committed.
            UnroutableError: committed, but for messages that no queue takes.
            NoBrokerError: there is no broker; nothing is done.
            ArgumentError: it has a name, and publishes nothing; nothing is done.
        """
        transaction.end()
        if not transaction.published and not transaction.settled:
            return
        if transaction.name and not transaction.published:
            raise ArgumentError(
                f"transaction {transaction.name!r} publishes nothing, and only a message carries a name: leave the name out"
            )
        pooled = not transaction.settled
        channel = (yield from self._failover.take_channel()) if pooled else transaction.settled[0].message.channel
        yield channel.lock.acquire
        try:
            if not channel.lives:
                raise TransactionAborted("the channel of the transaction is gone; what it delivered is delivered again")
            published = self._named(transaction)
            yield from self._commit_on(channel, transaction, published)
            unroutable = [each for each in published if each.message_id in channel.returned]
        finally:
            channel.lock.release()
        if pooled:
            yield from self._failover.give_channel(channel)
        if unroutable:
            raise UnroutableError(unroutable)

    def acknowledge(self, message: Message) -> Procedure[None]:
        """Acknowledge one delivery; the broker delivers it again if that was not done.

        Raises:
            TransactionAborted: it was not acknowledged.
            LostError: the broker was lost while it acknowledged.
        """
        transaction = Transaction(None, outcome_wanted=False)
        transaction.acknowledge(message)
        try:
            yield from self.commit(transaction)
        except TransactionUnknown as error:
            raise LostError(f"acknowledged or not: {error.__cause__}") from error

    def _commit_on(self, channel: Channel, transaction: Transaction, published: list[Outgoing]) -> Procedure[None]:
        asked = False
        name = transaction.name
        channel.returned.clear()
        try:
            for message in published:
                yield partial(channel.publish, message)
            for each in transaction.settled:
                if each.acknowledged:
                    yield partial(channel.acknowledge, each.message.tag)
                else:
                    yield partial(channel.reject, each.message.tag, requeue=each.requeue)
            if transaction.outcome_wanted and not transaction.published and CAPABILITY in channel.link.capabilities:
                # No message carries the name, so the broker's own id stands for it.
                name = yield from self._question(channel, "id")
            asked = True
            yield channel.commit
        except RefusedError as error:
            yield channel.close
            raise TransactionAborted(f"transaction {name!r} is refused: {error}") from error
        except LostError as error:
            yield channel.close
            if asked:
                raise TransactionUnknown(name, str(error), self._ask) from error
            raise TransactionAborted(f"transaction {name!r}: {error}") from error
        except BaseException:  # cancelled, interrupted: the outcome is not asked for here
            yield channel.close
            raise

    def _named(self, transaction: Transaction) -> list[Outgoing]:
        """The messages, each with an id; the first one carries the name of the transaction."""
        name = transaction.named(self._driver.token)
        made = [
            each if each.message_id else attrs.evolve(each, message_id=self._driver.token())
            for each in transaction.published
        ]
        if made:
            made[0] = attrs.evolve(made[0], headers={**made[0].headers, HEADER: name})
        return made

    def outcome(self, name: str) -> Procedure[Outcome]:
        """Ask until it is decided.

        Raises:
            NoBrokerError: no broker answers.
            RefusedError: the broker keeps no outcomes.
        """
        while True:
            channel = yield from self._failover.channel(_nothing)
            try:
                if CAPABILITY not in channel.link.capabilities:
                    raise RefusedError(NO_ANSWER, f"this broker keeps no outcomes of transactions: {name!r}")
                found = outcome_of((yield from self._question(channel, f"outcome {name}")))
            except LostError as error:
                self._driver.warn(f"the outcome of {name!r} is asked for again: {error}")
                found = None
            finally:
                yield channel.close
            if found is not None:
                return found
            yield partial(self._driver.pause, PENDING_PAUSE_S)

    def _question(self, channel: Channel, body: str) -> Procedure[str]:
        """Send a question on a channel; the answer comes on another one of its link, which is kept for the next question."""
        yield self._asking.acquire
        try:
            answers = yield from self._answers_of(channel.link)
            number = self._driver.token()
            question = Outgoing(
                body=body.encode("utf-8", "surrogateescape"), exchange=EXCHANGE, routing_key="",
                reply_to=self._answer_queue, correlation_id=number, persistent=False, mandatory=False,
            )  # fmt: skip
            yield partial(channel.publish, question)
            while True:
                answer: Message | None = yield partial(answers.next, ANSWER_S)
                if answer is None:
                    raise LostError(f"no answer within {ANSWER_S:g} s to {body!r}")
                if answer.correlation_id == number:  # another one is of a question that was given up
                    return answer.body.decode("utf-8", "surrogateescape")
        finally:
            self._asking.release()

    def _answers_of(self, link: Link) -> Procedure[Channel]:
        """The channel for answers, with a queue of its own."""
        if self._answers is None or self._answers.link is not link or not self._answers.lives:
            self._answers = None
            channel: Channel = yield partial(link.channel, spare=True)
            self._answer_queue = f"answers.{self._driver.token()}"
            queue = Queue(name=self._answer_queue, durable=False, exclusive=True, auto_delete=True)
            try:
                yield partial(channel.declare, queue)
                yield partial(channel.consume, queue.name, 0)
            except BaseException:
                yield channel.close
                raise
            self._answers = channel
        return self._answers


def _nothing(_: Channel) -> Procedure[None]:
    yield from ()
