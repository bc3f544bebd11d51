"""The client's connection, one suite for asyncio and for threads: transactions, their outcomes, failovers."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.integration.broker_process import BrokerProcess
from tests.integration.client_faces import CommitCut, Open, answer, of_asyncio, of_threads
from tests.integration.stages_waiting import until_found
from tests.integration.zookeeper_group import group_on
from tests.stress.group import Group
from understudy.client import (
    LoginRefusedError,
    NoBrokerError,
    Outcome,
    RefusedError,
    TransactionAborted,
    TransactionUnknown,
    UnroutableError,
    connect,
)
from understudy.client.stages import ConfigurationError, NotCommittedError, Stage, Stages
from understudy.client.stages.application.worker import Worker
from understudy.client.stages.broker.addresses import reached
from understudy.ha.trial.edge.zookeeper_servers import Ensemble

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("broken_connections")]

LONG_S = 30.0


@pytest.fixture(params=[of_asyncio, of_threads], ids=["asyncio", "threads"])
def opened(request: pytest.FixtureRequest) -> Open:
    chosen: Open = request.param
    return chosen


def url(*ports: int) -> str:
    return "amqp://guest:guest@" + ",".join(f"127.0.0.1:{port}" for port in ports) + "/"


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """A queue name that no other test has; exchanges' names may not have brackets."""
    return re.sub(r"\W+", ".", f"q.{request.node.name}")


def commit(connection: Any, *published: tuple[str, str], settles: Any = None, name: str | None = None) -> None:
    """One transaction with messages to (exchange, key)."""
    with connection.transaction(name) as tx:
        for exchange, key in published:
            tx.publish(b"", key, exchange=exchange)
        if settles is not None:
            tx.acknowledge(settles)


def fail_within(connection: Any, *published: str, settles: Any) -> None:
    """A transaction whose block raises."""
    with connection.transaction() as tx:
        for key in published:
            tx.publish(b"", key)
        tx.acknowledge(settles)
        raise ZeroDivisionError


def taken(consumer: Any) -> bytes:
    """The body of the next message."""
    message = consumer.next(LONG_S)
    assert message is not None
    body: bytes = message.body
    return body


def test_a_transaction_publishes_and_acknowledges_all_or_nothing(
    opened: Open, broker: BrokerProcess, queue: str
) -> None:
    out = f"{queue}.out"
    with opened(url(broker.port)) as connection:
        connection.declare_exchange(f"{queue}.x", "topic")
        connection.declare_queue(queue)
        connection.declare_queue(out)
        connection.bind_queue(queue, f"{queue}.x", "order.*")
        connection.publish(b"1", "order.new", exchange=f"{queue}.x", message_id="m-1", headers={"of": "me"})
        connection.publish(b"2", queue)
        with connection.consumer(queue, prefetch=2) as consumer:
            first = consumer.next(LONG_S)
            assert (first.body, first.message_id, first.headers["of"], first.redelivered) == (b"1", "m-1", "me", False)
            with pytest.raises(ZeroDivisionError):
                fail_within(connection, out, settles=first)
            assert connection.count(out) == 0
            commit(connection, ("", out), settles=first, name=queue[-40:])
            assert connection.count(out) == 1
            consumer.acknowledge(consumer.next(LONG_S))
            assert consumer.next(0.05) is None
        assert connection.count(queue) == 0
        assert connection.outcome(queue[-40:]) is Outcome.COMMITTED
        assert connection.outcome(f"{queue[-40:]}.unused") is Outcome.ROLLED_BACK
        connection.unbind_queue(queue, f"{queue}.x", "order.*")
        with pytest.raises(UnroutableError, match=r"order\.new"):
            commit(connection, (f"{queue}.x", "order.new"), ("", out))
        assert connection.count(out) == 2
        connection.delete_exchange(f"{queue}.x")
        connection.delete_queue(out)
        with pytest.raises(RefusedError) as refused:
            connection.count(out)
        assert refused.value.code == 404


def test_refusals_name_their_reason(opened: Open, broker: BrokerProcess, queue: str) -> None:
    with opened(url(broker.port)) as connection:
        connection.declare_queue(queue)
        with pytest.raises(RefusedError) as refused:
            connection.declare_queue(queue, durable=False)
        assert refused.value.code == 406
        with pytest.raises(TransactionAborted, match="no exchange"):
            commit(connection, ("", queue), ("missing", ""))
        assert connection.count(queue) == 0
        commit(connection, ("", queue), name=queue[-40:])
        with pytest.raises(TransactionAborted, match="taken"):
            commit(connection, ("", queue), name=queue[-40:])
        assert connection.count(queue) == 1
        with connection.consumer("missing") as consumer, pytest.raises(RefusedError):
            consumer.next(LONG_S)
    with pytest.raises(LoginRefusedError), opened(f"amqp://guest:wrong@127.0.0.1:{broker.port}/"):
        pass
    with pytest.raises(NoBrokerError, match=r"127\.0\.0\.1:1: "), opened(url(1), give_up_s=0.2):
        pass


@pytest.mark.parametrize("acknowledges", [False, True], ids=["publish", "acknowledge"])
@pytest.mark.parametrize("answered", [False, True], ids=["before", "after"])
def test_an_undecided_commit_is_told_and_never_replayed(
    opened: Open, broker: BrokerProcess, queue: str, answered: bool, acknowledges: bool
) -> None:
    with CommitCut(broker.port, answered=answered) as link, opened(url(link.port)) as connection:
        link.active = False
        connection.declare_queue(queue)
        connection.publish(b"0", queue)
        with connection.consumer(queue) as consumer:
            message = consumer.next(LONG_S)
            link.active = True
            with pytest.raises(TransactionUnknown) as unknown:
                commit(connection, *(() if acknowledges else [("", queue)]), settles=message if acknowledges else None)
            outcome = answer(connection, unknown.value)
            assert link.cuts == 1
            assert outcome is (Outcome.COMMITTED if answered else Outcome.ROLLED_BACK)
        wanted = 1 + (not acknowledges and answered) - (acknowledges and answered)
        assert connection.count(queue) == wanted


def test_a_failover_keeps_topology_and_consumers(opened: Open, group: Group, queue: str) -> None:
    answers = f"{queue}.answers"
    backup, primary = group.backups()[0], group.primary()
    with opened(url(backup.port, *(each.port for each in group.brokers.values()))) as connection:
        connection.declare_queue(queue)
        connection.declare_exchange(f"{queue}.x", "fanout", durable=False)
        connection.declare_queue(answers, durable=False, exclusive=True)
        connection.declare_exchange(f"{queue}.front", "topic", durable=False)
        connection.bind_queue(answers, f"{queue}.x")
        connection.bind_exchange(f"{queue}.x", f"{queue}.front", "answer.#")
        connection.bind_exchange(f"{queue}.x", f"{queue}.front", "gone")
        connection.unbind_exchange(f"{queue}.x", f"{queue}.front", "gone")
        with connection.consumer(queue) as consumer, connection.consumer(answers) as own:
            connection.publish(b"held", queue)
            held = consumer.next(LONG_S)
            primary.process.kill()  # type: ignore[union-attr]
            primary.process.wait()  # type: ignore[union-attr]
            with pytest.raises((TransactionAborted, TransactionUnknown)):
                commit(connection, settles=held)
            again = consumer.next(LONG_S)
            assert again.body == b"held"
            assert again.redelivered
            with connection.transaction() as tx:
                tx.acknowledge(again)
                tx.publish(b"answer", "answer.1", exchange=f"{queue}.front")
            assert taken(own) == b"answer"
            with pytest.raises(UnroutableError):
                commit(connection, (f"{queue}.front", "gone"))
        assert connection.count(queue) == 0


def test_threads_share_a_connection(broker: BrokerProcess, queue: str) -> None:
    each, threads = 20, 4
    with connect(url(broker.port)) as connection:
        connection.declare_queue(queue)
        seen: list[bytes] = []

        def consume() -> None:
            with connection.consumer(queue, prefetch=10) as consumer:
                for message in consumer:
                    consumer.acknowledge(message)
                    seen.append(message.body)
                    if len(seen) == each * threads:
                        return

        def produce(number: int) -> None:
            for index in range(each):
                connection.publish(f"{number}.{index}".encode(), queue)

        workers = [threading.Thread(target=produce, args=(number,)) for number in range(threads)]
        workers.append(threading.Thread(target=consume))
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(LONG_S)
            assert not worker.is_alive()
        assert len(set(seen)) == each * threads


async def _begun(stages: Stages, stage: Stage[..., Any], number: int) -> None:
    """Begin again what a killed primary has not committed."""
    while True:
        try:
            async with stages.begin():
                stage.send(number)
        except NotCommittedError:
            continue
        return


async def _stages_follow(group: Group, address: str) -> None:
    """A worker and an initiation go to the primary that ZooKeeper shows, and to its successor."""
    stages = Stages("shop", broker=address)
    done: list[int] = []

    @stages.stage("shop.found")
    async def found(number: int) -> None:
        done.append(number)

    worker = Worker(stages)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        for number in (1, 2):
            await _begun(stages, found, number)
            await until_found(f"message {number} is processed", lambda: number in done)  # noqa: B023  # awaited here
            if number == 1:
                await asyncio.to_thread(lambda: group.primary().kill())
        worker.stop()
    await stages.close()
    with pytest.raises(ConfigurationError, match="no group 'other'"):
        reached([address.replace("/understudy?", "/other?")])
    assert {urlsplit(each).port for each in reached([address])} <= {each.port for each in group.brokers.values()}


def test_a_group_is_found_through_zookeeper(ensemble: Ensemble, tmp_path: Path) -> None:
    with group_on(ensemble, tmp_path, brokers=2) as group:
        address = f"zookeeper://{ensemble.hosts}/understudy?chroot=/{tmp_path.name}"
        for face in (of_asyncio, of_threads):
            with face(address) as connection:
                connection.declare_queue("found")
                connection.publish(b"", "found")
                assert connection.count("found") >= 1
            with (
                pytest.raises(NoBrokerError, match="no group 'other'"),
                face(f"zookeeper://{ensemble.hosts}/other?chroot=/{tmp_path.name}", give_up_s=0.1),
            ):
                pass
        asyncio.run(_stages_follow(group, address))


def test_importing_the_client_loads_no_amqp_library() -> None:
    code = "import sys, understudy.client; print([m for m in ('pika', 'aio_pika', 'kazoo') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
