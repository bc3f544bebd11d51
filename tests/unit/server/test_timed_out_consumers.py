"""A consumer that has held a message for too long leaves a line in the broker's log."""

from __future__ import annotations

from structlog.testing import capture_logs

from tests.unit.core.core_kit import Core, publish
from understudy.broker.amqp.methods import BASIC_CONSUME
from understudy.broker.server.timed_out_consumers import TimedOutConsumers


def test_the_line_names_client_consumer_and_queue() -> None:
    core = Core()
    TimedOutConsumers().listen(core.broker)
    client = core.client()
    core.queue(client, "q")
    client.method(BASIC_CONSUME, "q", "c", False, False, False, False, {"x-consumer-timeout": 100})
    client.send(publish("q", b"x"))
    core.sync()
    with capture_logs() as lines:
        core.pass_ms(5_000)
    assert lines == [
        {
            "event": "a consumer has held a message for too long",
            "log_level": "warning",
            "client": "test",
            "user": client.connection.user.name,  # type: ignore[union-attr]
            "vhost": "/",
            "reason": "delivery acknowledgement on channel 1 timed out. Timeout value used: 100 ms. consumer 'c' holds delivery 1 "
            "of queue 'q' in vhost '/'",
        }
    ]
