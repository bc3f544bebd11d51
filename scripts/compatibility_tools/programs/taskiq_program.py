"""taskiq with taskiq-aio-pika: priorities, delays by the exchange `x-delayed-message`, and retries of the library."""

from __future__ import annotations

import asyncio

from books import URL, Worker, finish, kill, note, wait_until_done
from taskiq import Context, SimpleRetryMiddleware, TaskiqDepends
from taskiq.exceptions import SendTaskError
from taskiq_aio_pika import AioPikaBroker, Queue

PLAIN = 80
LATER = 20
RETRIED = 10
ATTEMPTS = 100

broker = AioPikaBroker(
    URL, delayed_message_exchange_plugin=True, task_queues=[Queue(name="taskiq", max_priority=10)]
).with_middlewares(SimpleRetryMiddleware())


@broker.task(task_name="work")
async def work(identity: str) -> None:
    """Do something short."""
    await asyncio.sleep(0.02)
    note(identity)


@broker.task(task_name="hesitate", retry_on_error=True, max_retries=5)
async def hesitate(identity: str, context: Context = TaskiqDepends()) -> None:  # noqa: B008
    """Succeed at the third attempt."""
    if int(context.message.labels.get("_retries", 0)) < 2:
        raise RuntimeError(f"{identity} is not ready")
    note(identity)


async def send(sent: list[str], kind: str, number: int, **labels: object) -> None:
    """Send one task; once more if the connection was lost meanwhile."""
    sent.append(f"{kind}-{number}")
    task = hesitate if kind == "retried" else work
    for attempt in range(ATTEMPTS):
        try:
            await asyncio.wait_for(task.kicker().with_labels(**labels).kiq(sent[-1]), 10)
        except (SendTaskError, TimeoutError, OSError):
            if attempt == ATTEMPTS - 1:
                raise
            await asyncio.sleep(0.1)
        else:
            return


async def main() -> None:
    """Send tasks, have the primary killed twice, and wait for all of them."""
    sent: list[str] = []
    await broker.startup()
    with Worker("worker", "-m", "taskiq", "worker", "taskiq_program:broker", "--workers", "1"):
        for number in range(LATER):
            await send(sent, "later", number, delay=1 + number % 3)
        for number in range(RETRIED):
            await send(sent, "retried", number)
        kill(1)
        for number in range(PLAIN):
            await send(sent, "plain", number, priority=number % 10)
            if number == PLAIN // 2:
                kill(2)
        await asyncio.to_thread(wait_until_done, sent)
    await broker.shutdown()
    finish(sent)


if __name__ == "__main__":
    asyncio.run(main())
