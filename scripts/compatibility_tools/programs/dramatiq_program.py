"""dramatiq: delays, retries with backoff, priorities; publisher confirms; one URL for the sender and for the worker."""

from __future__ import annotations

import time

import dramatiq
from books import URL, Worker, finish, kill, note, wait_until_done
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.errors import ConnectionClosed

PLAIN = 80
LATER = 20
RETRIED = 10
PATIENCE_S = 30.0

broker = RabbitmqBroker(url=f"{URL}?connection_attempts=20&retry_delay=0.3", confirm_delivery=True, max_priority=10)
dramatiq.set_broker(broker)


@dramatiq.actor
def work(identity: str) -> None:
    """Do something short."""
    time.sleep(0.02)
    note(identity)


@dramatiq.actor(max_retries=5, min_backoff=300, max_backoff=600)
def hesitate(identity: str) -> None:
    """Succeed at the third attempt."""
    message = dramatiq.middleware.CurrentMessage.get_current_message()
    if message is None or message.options.get("retries", 0) < 2:
        raise RuntimeError(f"{identity} is not ready")
    note(identity)


broker.add_middleware(dramatiq.middleware.CurrentMessage())


def main() -> None:
    """Send messages, have the primary killed twice, and wait for all of them."""
    sent: list[str] = []

    def send(kind: str, number: int, **options: object) -> None:
        sent.append(f"{kind}-{number}")
        actor = hesitate if kind == "retried" else work
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                actor.send_with_options(args=(sent[-1],), **options)
            except ConnectionClosed:
                if time.monotonic() > deadline:
                    raise
            else:
                return

    with Worker("worker", "-m", "dramatiq", "dramatiq_program", "--processes", "1", "--threads", "4"):
        for number in range(LATER):
            send("later", number, delay=500 + 100 * number)
        for number in range(RETRIED):
            send("retried", number)
        kill(1)
        for number in range(PLAIN):
            send("plain", number, broker_priority=number % 10)
            if number == PLAIN // 2:
                kill(2)
        wait_until_done(sent)
    finish(sent)


if __name__ == "__main__":
    main()
