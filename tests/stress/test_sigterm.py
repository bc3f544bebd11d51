"""SIGTERM under load: flush, answer what is stable, close with 320, exit code 0; nothing that was answered is gone."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pika
import pytest

from tests.integration.broker_process import BrokerProcess, leaks_of_clients
from tests.stress.clients import ERRORS, PERSISTENT, End, Finder, connect_to, declare, read_queue
from tests.stress.confirmer import Confirmer
from tests.stress.group import keep_or_remove, running_group
from tests.stress.load import Books, Load
from tests.stress.mover import Told

pytestmark = [pytest.mark.stress, pytest.mark.timeout(240)]

STREAMS = ("c.0", "c.1")
MOVERS = 6


class UnderLoad:
    """Movers and confirmers on one broker, each with one connection, until that broker has stopped."""

    def __init__(self, broker: BrokerProcess, name: str) -> None:
        self.broker = broker
        self.movers = Load([broker.port], MOVERS, name=f"m{name}", stays=True)
        self.movers.declare()
        self.queues = [f"{name}.{stream}" for stream in STREAMS]
        declare(self.movers.finder, self.queues)
        self.streams = [Confirmer(f"{name}{n}", broker.port, queue) for n, queue in enumerate(self.queues)]

    def stop(self) -> float:
        """SIGTERM while everybody is at work; how long it took to end."""
        for each in self.streams:
            each.start()
        self.movers.start()
        self.movers.wait_busy()
        for each in self.streams:
            each.wait_confirmed(1_000)
        self.movers.wait_committed(30)
        started = time.monotonic()
        code = self.broker.stop()
        took_s = time.monotonic() - started
        assert code == 0, self.broker.log_text()
        for each in self.streams:
            each.join()
        self.movers.join()
        return took_s

    def check_farewell(self) -> None:
        """Every client has been told 320, and why."""
        ends: list[End | None] = [*self.movers.ends, *[each.end for each in self.streams]]
        assert len(ends) == MOVERS + len(STREAMS), ends
        for end in ends:
            assert end is not None
            assert (end.code, "shutting down" in end.text) == (320, True), ends

    def check(self, finder: Finder) -> str:
        """Nothing that was answered is gone; and nothing that was not answered is there: it was all answered."""
        books = Books(self.movers)
        resolved = books.resolve(finder)
        unanswered = [tx for tx in self.movers.transactions if tx.told is Told.UNKNOWN and tx.outcome == "committed"]
        assert not unanswered, f"committed, stable, and not answered: {unanswered}"
        books.check(books.read(finder))
        for each in self.streams:
            found = read_queue(finder, each.queue)
            each.check(found)
            assert len(found) == len(each.confirmed), (
                f"{len(found) - len(each.confirmed)} were stable and not confirmed"
            )
        return f"{dict(self.movers.counts())}, unknown resolved {dict(resolved)}, {[each.sent for each in self.streams]} sent"


def test_a_broker_alone(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    broker = BrokerProcess(tmp_path / "alone")
    failed = True
    try:
        broker.start()
        load = UnderLoad(broker, "x")
        took_s = load.stop()
        assert "all_answered=True" in broker.log_text()
        load.check_farewell()
        broker.start()
        print(f"ended in {took_s:.2f} s; {load.check(Finder([broker.port]))}")
        assert broker.stop() == 0
        failed = False
    except BaseException:
        print(broker.log_text())
        raise
    finally:
        if broker.process is not None and broker.process.poll() is None:
            broker.kill()
        keep_or_remove(tmp_path / "alone", failed)


def test_the_primary_of_a_group(tmp_path: Path) -> None:
    with running_group(tmp_path) as group:
        finder = Finder(group.ports)
        loads = []
        for name in "xyz":
            primary = group.primary()
            load = UnderLoad(primary, name)
            loads.append(load)
            took_s = load.stop()
            assert "all_answered=True" in primary.log_text()
            load.check_farewell()
            group.ready()
            print(f"{primary.name} ended in {took_s:.2f} s; {load.check(finder)}")
            group.agree()
            group.start(primary.name)
            group.ready()
        group.settled()
        for load in loads:
            load.check(finder)
        group.agree()


def test_an_auto_delete_queue_is_there_for_the_consumer_that_comes_back(tmp_path: Path) -> None:
    """The queue goes when its consumer does; but the broker sent that away itself, and another broker leads now (DESIGN 4)."""
    with running_group(tmp_path) as group:
        finder = Finder(group.ports)
        primary = group.primary()
        connection = connect_to(primary.port)
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True, auto_delete=True)
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume("q", lambda *_: None)
        for _ in range(3):
            channel.basic_publish("", "q", b"confirmed", pika.BasicProperties(delivery_mode=PERSISTENT))
        assert primary.stop() == 0
        with leaks_of_clients(), contextlib.suppress(*ERRORS):
            connection.close()
        again = finder.connect()
        assert again.channel().queue_declare("q", passive=True).method.message_count == 3
        again.close()
        group.ready()
        group.agree()
