"""Celery: priorities, countdown, eta, retries, a chord, and a worker that scales itself, which changes a *global* prefetch."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from books import FOLDER, URL, Worker, executions, finish, kill, note, wait_for, wait_until_done
from celery import Celery, chord

PRIORITIES = 10
PLAIN = 60
LATER = 20
RETRIED = 10
HEADER = 8

app = Celery("celery_program", broker=URL, backend=f"file://{FOLDER}/results")
app.conf.update(
    task_acks_late=True,
    task_queue_max_priority=10,
    worker_prefetch_multiplier=1,
    broker_connection_max_retries=None,
    broker_transport_options={"confirm_publish": True},
    task_publish_retry_policy={"max_retries": None, "interval_start": 0.0, "interval_step": 0.1, "interval_max": 0.5},
    result_chord_retry_interval=0.3,
)


@app.task
def work(identity: str) -> int:
    """Do something short."""
    time.sleep(0.05)
    note(identity)
    return 1


@app.task(bind=True, max_retries=5)
def hesitate(self, identity: str) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Succeed at the third attempt."""
    if self.request.retries < 2:
        raise self.retry(countdown=0.5)
    note(identity)


@app.task
def total(ones: list[int]) -> int:
    """Add up what the header of the chord returned."""
    note("chord")
    return sum(ones)


def main() -> None:
    """Send tasks, have the primary killed twice, and wait for all of them."""
    (FOLDER / "results").mkdir()
    sent: list[str] = []

    def send(kind: str, number: int, **options: object) -> None:
        sent.append(f"{kind}-{number}")
        (hesitate if kind == "retried" else work).apply_async((sent[-1],), **options)

    for number in range(PRIORITIES):
        send("low", number, priority=0)
    for number in range(PRIORITIES):
        send("high", number, priority=9)
    words = ("-m", "celery", "-A", "celery_program", "worker", "--autoscale=4,1", "--loglevel=INFO")
    with Worker("worker", *words) as process:
        wait_until_done(sent)
        order = executions()
        for number in range(LATER):
            send("countdown", number, countdown=1 + number % 3)
            send("eta", number, eta=datetime.now(UTC) + timedelta(seconds=2))
        for number in range(RETRIED):
            send("retried", number)
        kill(1)
        header = [f"header-{number}" for number in range(HEADER)]
        summed = chord([work.s(each) for each in header])(total.s())
        sent += [*header, "chord"]
        for number in range(PLAIN):
            send("plain", number)
            if number == PLAIN // 2:
                kill(2)
        wait_until_done(sent)
        chord_is_whole = wait_for("the chord has its result", summed.ready, 10) and summed.get(timeout=5) == HEADER
        log = process.log.read_text(encoding="utf-8")
    first_half = order[:PRIORITIES]
    finish(
        sent,
        priorities=sum(each.startswith("high") for each in first_half) >= PRIORITIES - 2,
        chord=chord_is_whole,
        autoscale="Scaling up" in log,
    )


if __name__ == "__main__":
    main()
