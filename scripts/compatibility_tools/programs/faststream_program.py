"""FastStream: a subscriber whose return value a publisher sends on, and request and reply by direct reply-to."""

from __future__ import annotations

import asyncio
import sys

from books import URL, Worker, finish, kill, note, wait_until_done
from faststream import AckPolicy, FastStream
from faststream.rabbit import RabbitBroker

ORDERS = 80
QUESTIONS = 40
ATTEMPTS = 100
ANSWER_S = 3.0

# NACK_ON_ERROR below: the default rejects, and so loses, what fails while the connection is away.
broker = RabbitBroker(URL, graceful_timeout=5)


@broker.subscriber("orders", ack_policy=AckPolicy.NACK_ON_ERROR)
@broker.publisher("charged", persist=True)
async def charge(order: str) -> str:
    """One order; what is returned goes to the next queue."""
    await asyncio.sleep(0.01)
    return order


@broker.subscriber("charged", ack_policy=AckPolicy.NACK_ON_ERROR)
async def book(order: str) -> None:
    """The end of an order."""
    note(order)


@broker.subscriber("questions", ack_policy=AckPolicy.NACK_ON_ERROR)
async def answer(question: str) -> str:
    """Answer a request."""
    return f"{question}!"


async def patiently(attempt_once) -> object:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Do something again until it succeeds: the connection comes back by itself."""
    for attempt in range(ATTEMPTS):
        try:
            return await asyncio.wait_for(attempt_once(), ANSWER_S + 2)
        except Exception:
            if attempt == ATTEMPTS - 1:
                raise
            await asyncio.sleep(0.1)
    raise AssertionError("unreachable")


async def main() -> None:
    """Send orders and ask questions, have the primary killed twice, and wait for all of them."""
    sent: list[str] = []
    answered = 0
    async with RabbitBroker(URL) as sender:
        with Worker("worker", __file__, "serve") as worker:
            # Before that there is no queue that takes orders; and FastStream ends if it cannot declare them at its start.
            await asyncio.to_thread(worker.has_said, "started successfully")
            for number in range(ORDERS):
                sent.append(f"order-{number}")
                order = sent[-1]
                await patiently(lambda order=order: sender.publish(order, "orders", persist=True))
                if number in {ORDERS // 4, ORDERS // 2}:
                    kill(number)
            for number in range(QUESTIONS):
                if number == QUESTIONS // 2:
                    kill(number)
                question = f"question-{number}"
                reply = await patiently(
                    lambda question=question: sender.request(question, "questions", timeout=ANSWER_S)
                )
                answered += await reply.decode() == f"{question}!"  # type: ignore[attr-defined]
            await asyncio.to_thread(wait_until_done, sent)
    finish(sent, every_question_has_its_answer=answered == QUESTIONS)


if __name__ == "__main__":
    asyncio.run(FastStream(broker).run() if sys.argv[1:] == ["serve"] else main())
