"""Restarts keep everything that was confirmed, nothing that was transient, and the order."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.integration.broker_process import PROGRAM, BrokerProcess, running_broker, wait_until

pytestmark = pytest.mark.integration

PERSISTENT = pika.BasicProperties(delivery_mode=2)
TRANSIENT = pika.BasicProperties(delivery_mode=1)


def connect(broker: BrokerProcess) -> Any:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))


def all_of(broker: BrokerProcess, queue: str) -> list[tuple[bytes, bool]]:
    connection = connect(broker)
    channel = connection.channel()
    got = []
    while (each := channel.basic_get(queue, auto_ack=True))[0] is not None:
        got.append((each[2], each[0].redelivered))
    connection.close()
    return got


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_persistent_stays_and_transient_goes(tmp_path: Path, how: str) -> None:
    with running_broker(tmp_path) as broker:
        connection = connect(broker)
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare("x", "topic", durable=True)
        channel.queue_declare("durable", durable=True)
        channel.queue_declare("transient")
        channel.queue_bind("durable", "x", "a.#")
        for number in range(10):
            channel.basic_publish("", "durable", b"p%d" % number, PERSISTENT)
            channel.basic_publish("", "durable", b"t%d" % number, TRANSIENT)
        channel.basic_publish("", "transient", b"gone", PERSISTENT)
        for _ in range(2):
            channel.basic_ack(channel.basic_get("durable")[0].delivery_tag)
        channel.basic_publish("", "durable", b"last", PERSISTENT)  # its confirm stands behind the acks
        if how == "stop":
            assert broker.stop() == 0
        else:
            broker.kill()
        broker.start()
        with pytest.raises(pika.exceptions.AMQPError):
            connection.process_data_events()
        connection = connect(broker)
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("x", "a.b", b"bound", PERSISTENT)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker):
            channel.queue_declare("transient", passive=True)
        connection.close()
        again = how == "kill"  # after a clean stop a broker knows that no client was given them
        expected = [(b"p%d" % number, again) for number in range(1, 10)] + [(b"last", again), (b"bound", False)]
        assert all_of(broker, "durable") == expected


def test_kill_under_load_keeps_what_was_confirmed(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        confirmed: list[list[bytes]] = [[] for _ in range(4)]
        stop = threading.Event()

        def publish(worker: int) -> None:
            connection = connect(broker)
            channel = connection.channel()
            channel.confirm_delivery()
            number = 0
            try:
                while not stop.is_set():
                    body = b"%d.%d" % (worker, number)
                    channel.basic_publish("", "q", body, PERSISTENT)
                    confirmed[worker].append(body)
                    number += 1
            except pika.exceptions.AMQPError:
                pass

        connection = connect(broker)
        connection.channel().queue_declare("q", durable=True)
        connection.close()
        for _ in range(3):
            threads = [threading.Thread(target=publish, args=(worker,)) for worker in range(4)]
            for each in confirmed:
                each.clear()
            for thread in threads:
                thread.start()
            time.sleep(0.5)
            broker.kill()
            stop.set()
            for thread in threads:
                thread.join()
            stop.clear()
            broker.start()
            got = [body for body, _ in all_of(broker, "q")]
            assert len(got) == len(set(got))
            for each in confirmed:
                assert len(each) > 10
                order = [body for body in got if body.startswith(each[0].split(b".")[0] + b".")]
                assert order[: len(each)] == each


def test_a_committed_transaction_survives_and_an_open_one_does_not(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        connection = connect(broker)
        channel = connection.channel()
        for name in ("a", "b"):
            channel.queue_declare(name, durable=True)
        channel.tx_select()
        channel.basic_publish("", "a", b"1", PERSISTENT)
        channel.basic_publish("", "b", b"1", PERSISTENT)
        channel.tx_commit()
        channel.basic_publish("", "a", b"2", PERSISTENT)
        channel.basic_publish("", "b", b"2", PERSISTENT)

        def arrived() -> bool:
            return {q["name"]: q["uncommitted"] for q in broker.status()["queues"]} == {"a": 1, "b": 1}

        wait_until("the broker holds the open transaction", arrived)
        broker.kill()
        broker.start()
        with pytest.raises(pika.exceptions.AMQPError):
            channel.tx_commit()
        assert (all_of(broker, "a"), all_of(broker, "b")) == ([(b"1", True)], [(b"1", True)])


def test_sigterm_under_load_answers_and_closes_with_320(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        connection = connect(broker)
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        closed: list[pika.exceptions.ConnectionClosedByBroker] = []
        sent = 0

        def stop() -> None:
            time.sleep(0.3)
            assert broker.stop() == 0

        stopper = threading.Thread(target=stop)
        stopper.start()
        try:
            while True:
                channel.basic_publish("", "q", b"%d" % sent, PERSISTENT)
                sent += 1
        except pika.exceptions.ConnectionClosedByBroker as error:
            closed.append(error)
        stopper.join()
        assert (closed[0].reply_code, "shutting down" in closed[0].reply_text) == (320, True)
        broker.start()
        got = [int(body) for body, _ in all_of(broker, "q")]
        assert got in (list(range(sent)), list(range(sent + 1)))


def test_old_segments_are_dropped(tmp_path: Path) -> None:
    """The journal does not grow with what has been consumed, and a restart after that finds everything else."""
    with running_broker(tmp_path, "[journal]\nsegment_bytes = 65536\nreserve_bytes = 0\n") as broker:
        connection = connect(broker)
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        plain = connection.channel()
        for number in range(8_000):  # which records live is counted in stretches of 1,024
            # A confirm now and then: a group of any size is in one segment, and a busy broker makes large groups.
            (plain if number % 100 else channel).basic_publish("", "q", bytes(1_000), PERSISTENT)
        taken = 0
        for method, _, _ in plain.consume("q", auto_ack=True):
            taken += method is not None
            if taken == 8_000:
                break
        plain.cancel()
        channel.basic_publish("", "q", b"kept", PERSISTENT)

        def dropped() -> bool:
            journal = broker.status()["journal"]
            return bool(journal["dropped_segments"] > 2 * journal["segments"])

        wait_until("most segments are dropped", dropped)
        connection.close()
        broker.kill()
        broker.start()
        assert all_of(broker, "q") == [(b"kept", True)]


def test_a_policy_holds_from_the_next_start_and_ids_are_remembered(tmp_path: Path) -> None:
    """Of a queue that is there: what is too much leaves it, its page names the policy, and a repetition is dropped."""
    once = {"x-message-deduplication": True}
    with running_broker(tmp_path) as broker:
        connection = connect(broker)
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("work", durable=True, arguments=once)
        named = [pika.BasicProperties(delivery_mode=2, headers={"x-deduplication-header": each}) for each in range(5)]
        for number, properties in enumerate(named):
            channel.basic_publish("", "work", b"%d" % number, properties)
        connection.close()
        assert broker.stop() == 0
        text = broker.config.read_text(encoding="utf-8")
        policy = '\n[[policy]]\nname = "bounded"\npattern = "^work$"\ndefinition = { max-length = 2 }\n'
        broker.config.write_text(text + policy, encoding="utf-8")
        broker.start()
        connection = connect(broker)
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("work", durable=True, arguments=once)
        channel.basic_publish("", "work", b"again", named[4])
        connection.close()
        (row,) = broker.status()["queues"]
        assert (row["name"], row["ready"], row["policy"]) == ("work", 2, "bounded")
        assert broker.status()["policies"].keys() == {"bounded"}
        assert [body for body, _ in all_of(broker, "work")] == [b"3", b"4"]


def test_a_policy_that_will_not_do_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        assert broker.stop() == 0
        text = broker.config.read_text(encoding="utf-8")
        bad = '\n[[policy]]\nname = "bounded"\npattern = "["\ndefinition = { max-length = 2 }\n'
        broker.config.write_text(text + bad, encoding="utf-8")
        ended = subprocess.run(  # our own program
            [PROGRAM, "serve", "--config", broker.config], capture_output=True, text=True, check=False, timeout=90
        )
        assert ended.returncode != 0
        assert f"{broker.config}: policy[0].pattern: policy 'bounded': '[' is not valid" in ended.stderr
        broker.config.write_text(text, encoding="utf-8")
        broker.start()
