"""Celery's native delayed delivery: quorum queues, and 28 levels of exchanges and queues whose messages die in time."""

from __future__ import annotations

import time

from books import FOLDER, URL, Worker, finish, kill, note, wait_until_done
from celery import Celery
from kombu import Exchange, Queue

LATER = 60
EARLY = FOLDER / "early"

app = Celery("celery_delays_program", broker=URL)
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    task_default_queue="delays",
    task_default_exchange="delays",
    task_default_routing_key="delays",
    task_queues=[
        Queue("delays", Exchange("delays", type="topic"), "delays", queue_arguments={"x-queue-type": "quorum"}),
    ],
    broker_connection_max_retries=None,
    broker_transport_options={"confirm_publish": True},
    task_publish_retry_policy={"max_retries": None, "interval_start": 0.0, "interval_step": 0.1, "interval_max": 0.5},
)


@app.task
def work(identity: str, due: float) -> None:
    """Note the execution, and whether it comes too early."""
    if time.time() < due - 0.05:
        EARLY.write_text(identity, encoding="utf-8")
    note(identity)


def main() -> None:
    """Send delayed tasks, have the primary killed twice, and wait for all of them."""
    sent: list[str] = []
    with Worker("worker", "-m", "celery", "-A", "celery_delays_program", "worker", "-c", "2", "-l", "INFO") as worker:
        worker.has_said(" ready.")
        for number in range(LATER):
            sent.append(f"later-{number}")
            delay_s = 1 + number % 6
            work.apply_async((sent[-1], time.time() + delay_s), countdown=delay_s)
            if number in {LATER // 3, 2 * LATER // 3}:
                kill(number)
        wait_until_done(sent)
    finish(sent, nothing_came_early=not EARLY.exists())


if __name__ == "__main__":
    main()
