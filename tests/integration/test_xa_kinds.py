"""The asyncio interface, and the resource manager for any PEP 249 module, on real servers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import math
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import amqp
import psycopg
import pytest

from tests.integration.broker_process import free_port, wait_until
from tests.integration.xa_place import JOB, QUEUE, Place, forked, killer, running_place, transfer
from tests.integration.xa_servers import ServerProcess, ended, secret_file
from understudy.xa import (
    AsyncTransactionManager,
    ConfigError,
    ProtocolError,
    ResourceManagerError,
    RolledBackError,
    StateServerError,
    TransactionManager,
    tpc,
)
from understudy.xa.asynchronous import AsyncTransaction
from understudy.xa.commands.operator import Operator
from understudy.xa.core.codes import OK, XaCode
from understudy.xa.core.manager.steps import Flag
from understudy.xa.core.profiles.profile import profile_of
from understudy.xa.core.xid import Xid
from understudy.xa.resource_managers.factory import make_resource_manager
from understudy.xa.sockets.link import StateLink

ESTABLISHED = "01"
KEEPALIVE = "02"
TICKS_A_SECOND = 100  # USER_HZ, in which proc(5) gives timers
pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with running_place(tmp_path_factory.mktemp("xa")) as running:
        yield running


async def moved(manager: AsyncTransactionManager, *, fails: bool = False, waits: asyncio.Event | None = None) -> str:
    async with manager.begin() as transaction:
        bank, queues = await transaction.resource("bank"), await transaction.resource("queues")
        await transaction.run(bank.execute, "INSERT INTO ledger VALUES (%s)", (transaction.gid,))
        message = amqp.Message(transaction.gid, delivery_mode=2)
        await transaction.run(queues.basic_publish, message, exchange="", routing_key=QUEUE)
        if waits is not None:
            waits.set()
            await asyncio.sleep(60)
        if fails:
            raise InterruptedError
    return transaction.gid


def test_tasks_commit_and_roll_back(place: Place) -> None:
    before = place.agree()

    async def work() -> list[str]:
        async with AsyncTransactionManager.from_file(place.profiles, "shop", job=JOB) as manager:
            with pytest.raises(InterruptedError):
                await moved(manager, fails=True)
            return list(await asyncio.gather(*(moved(manager) for _ in range(5))))

    done = asyncio.run(work())
    assert place.agree() - before == set(done)


def test_a_cancelled_task_rolls_back(place: Place) -> None:
    before = place.agree()

    async def work() -> None:
        async with AsyncTransactionManager.from_file(place.profiles, "shop", job=JOB) as manager:
            waits = asyncio.Event()
            task = asyncio.ensure_future(moved(manager, waits=waits))
            await waits.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            gid = await moved(manager)
            assert place.agree() - before == {gid}

    asyncio.run(work())


def test_tasks_that_wait_for_a_lock_leave_a_thread_to_the_one_that_holds_it(place: Place) -> None:
    """More of them than asyncio's own pool has threads."""
    bank = place.opened("bank")
    bank.resource.execute("CREATE TABLE hot (number int)")
    bank.resource.execute("INSERT INTO hot VALUES (0)")
    bank.resource.commit()
    tasks = (os.cpu_count() or 1) + 10

    async def count(manager: AsyncTransactionManager) -> None:
        async with manager.begin() as transaction:
            connection = await transaction.resource("bank")
            await transaction.run(connection.execute, "SET LOCAL lock_timeout = '30s'")
            await asyncio.gather(  # of the same transaction: one after the other
                *(transaction.run(connection.execute, "UPDATE hot SET number = number + 1") for _ in range(2))
            )

    async def work() -> None:
        async with AsyncTransactionManager.from_file(place.profiles, "shop", job=JOB) as manager:
            await asyncio.gather(*(count(manager) for _ in range(tasks)))

    asyncio.run(work())
    assert bank.resource.execute("SELECT number FROM hot").fetchone() == (2 * tasks,)
    bank.resource.execute("DROP TABLE hot")
    bank.resource.commit()
    bank.close()
    place.agree()


def test_a_task_has_one_transaction(place: Place) -> None:
    async def work() -> None:
        async with AsyncTransactionManager.from_file(place.profiles, "shop", job=JOB) as manager, manager.begin():
            with pytest.raises(ProtocolError, match="active in this task"):
                await moved(manager)

    asyncio.run(work())
    place.agree()


def test_a_task_suspends_and_another_one_resumes(place: Place) -> None:
    before = place.agree()

    async def writes(transaction: AsyncTransaction, *names: str) -> None:
        for name in names:
            work = await transaction.resource(name)
            if name == "bank":
                await transaction.run(work.execute, "INSERT INTO ledger VALUES (%s)", (transaction.gid,))
            else:
                message = amqp.Message(transaction.gid, delivery_mode=2)
                await transaction.run(work.basic_publish, message, exchange="", routing_key=QUEUE)
            await transaction.leave(name)

    async def ends(transaction: AsyncTransaction) -> None:
        await transaction.resume()
        await writes(transaction, "queues")
        await transaction.commit()

    async def stays_suspended(manager: AsyncTransactionManager) -> None:
        async with manager.begin() as transaction:
            await writes(transaction, "bank")
            await transaction.suspend()

    async def work() -> set[str]:
        async with AsyncTransactionManager.from_file(place.profiles, "shop", job=JOB) as manager:
            async with manager.begin() as first:
                await writes(first, "bank")
                with pytest.raises(ProtocolError, match="active in this task"):
                    await first.resume()
                async with first.suspended():
                    second = await moved(manager)
                await writes(first, "queues")
            async with manager.begin() as third:
                await writes(third, "bank")
                await third.suspend()
                await asyncio.create_task(ends(third))
            with pytest.raises(ProtocolError, match="suspended: commit is out of turn"):
                await stays_suspended(manager)
            with pytest.raises(ProtocolError, match="over: resume is out of turn"):
                await third.resume()
            return {first.gid, second, third.gid, await moved(manager)}

    done = asyncio.run(work())
    assert place.agree() - before == done


# -- PEP 249 ----------------------------------------------------------------------------------------------------------


def with_dbapi(place: Place, module: str = "psycopg") -> str:
    """The profile with PostgreSQL as an unknown module."""
    options = place.postgresql.options
    arguments = {
        "host": options["host"],
        "port": options["port"],
        "dbname": options["database"],
        "user": options["user"],
        "password": options["password"],
    }
    text = place.profiles.read_text()
    first = text.index('kind = "postgresql"')
    end = text.index("[[profiles.resource_managers]]", first)
    table = "{" + ", ".join(f"{key} = {json.dumps(value)}" for key, value in arguments.items()) + "}"
    return f'{text[:first]}kind = "dbapi"\nmodule = "{module}"\nidentity = "bank"\nconnect = {table}\n{text[end:]}'


def test_a_module_of_pep_249(place: Place) -> None:
    before = place.agree()
    profile = profile_of(with_dbapi(place), "shop", "x")
    manager = TransactionManager(profile, job="dbapi")
    gid = transfer(manager)
    transaction = manager.begin()
    transaction.resource("bank").execute("INSERT INTO ledger VALUES ('never')")
    transaction.rollback()
    late = []
    for point in ("tell.decide.before", "tell.decide.after"):
        dies = TransactionManager(profile, job="dbapi", on_step=killer(point))
        assert forked(functools.partial(transfer, dies)) == -signal.SIGKILL
        late += manager.recover()
    manager.close()
    assert len(late) == 2
    assert place.agree() - before == {gid, late[1]}


def test_a_failed_statement_of_a_module_rolls_back_though_it_was_caught(place: Place) -> None:
    """PostgreSQL would take the prepare for a rollback, and say nothing."""
    before = place.agree()
    manager = TransactionManager(profile_of(with_dbapi(place), "shop", "x"), job="dbapi")
    transaction = manager.begin()
    message = amqp.Message(transaction.gid, delivery_mode=2)
    transaction.resource("queues").basic_publish(message, exchange="", routing_key=QUEUE)
    with contextlib.suppress(psycopg.Error):
        transaction.resource("bank").execute("nonsense")
    with pytest.raises(RolledBackError, match="bank: RBROLLBACK"):
        transaction.commit()
    manager.close()
    assert place.agree() == before


def test_recovery_of_many_branches_lists_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    before = place.agree()
    profile = profile_of(with_dbapi(place), "shop", "x")
    for number in range(3):
        dies = TransactionManager(profile, job=f"many{number}", on_step=killer("tell.decide.after"))
        assert forked(functools.partial(transfer, dies)) == -signal.SIGKILL
    lists = 0
    recover = psycopg.Connection.tpc_recover

    def counted(connection: psycopg.Connection) -> list[psycopg.Xid]:
        nonlocal lists
        lists += 1
        return recover(connection)

    monkeypatch.setattr(psycopg.Connection, "tpc_recover", counted)
    bank = make_resource_manager(profile.resource("bank"))
    bank.open()
    for one in bank.recover():
        assert bank.commit(one.xid, one_phase=False) == OK
    bank.close()
    assert lists == 1
    for number in range(3):
        manager = TransactionManager(profile, job=f"many{number}")
        assert len(manager.recover()) == 1
        manager.close()
    for shown in place.entries():  # PEP 249 does not tell that the branch was committed
        assert (shown.state, shown.entry.heuristics) == ("heuristic", {"bank": XaCode.HEURHAZ})
        Operator(profile, shown.entry.job).forget(shown.entry.gid)
    assert len(place.agree() - before) == 3


def test_a_module_without_two_phase_commit_is_refused(place: Place) -> None:
    text = with_dbapi(place, "sqlite3").replace(text_of_connect(place), 'connect = {database = ":memory:"}')
    with pytest.raises(ResourceManagerError, match="connections of sqlite3 have no two-phase commit"):
        TransactionManager(profile_of(text, "shop", "x"), job="dbapi").begin()
    with pytest.raises(ConfigError, match="module 'nothing_such' cannot be imported"):
        TransactionManager(profile_of(with_dbapi(place, "nothing_such"), "shop", "x"), job="dbapi").begin()
    assert place.entries() == []


def text_of_connect(place: Place) -> str:
    (line,) = [line for line in with_dbapi(place).splitlines() if line.startswith("connect = ")]
    return line


def asked_after_s(ports: set[int]) -> dict[int, float]:
    """When the kernel asks the idle peers of each server whether they are there: the longest time, by port."""
    found: dict[int, float] = {}
    for line in Path("/proc/net/tcp").read_text(encoding="utf-8").splitlines()[1:]:
        _, local, _, state, _, timer, *_ = line.split()
        port, (kind, ticks) = int(local.partition(":")[2], 16), timer.split(":")
        if port in ports and state == ESTABLISHED:
            found[port] = max(found.get(port, 0), int(ticks, 16) / TICKS_A_SECOND if kind == KEEPALIVE else math.inf)
    return found


def test_servers_notice_a_machine_that_is_gone(place: Place, tmp_path: Path) -> None:
    """Else its branches are held for two hours, the default of tcp(7), and its transactions are in use for ever."""
    port, secret = free_port(), str(secret_file(tmp_path))
    options = ("--data", str(tmp_path / "state"), "--listen", f"127.0.0.1:{port}", "--secret-file", secret)
    server = ServerProcess(tmp_path, "tcp", *options)
    ports = {place.broker.port, port, place.postgresql.options["port"]}
    text = place.profiles.read_text().replace(place.state.address, f'127.0.0.1:{port}"\nsecret_file = "{secret}')
    manager = TransactionManager(profile_of(text, "shop", "x"), job=JOB)
    with ended(server), contextlib.closing(manager):
        server.start()
        notices(place, manager, ports)


def notices(place: Place, manager: TransactionManager, ports: set[int]) -> None:
    with manager.begin() as tx:
        assert tx.resource("bank").execute("SHOW tcp_keepalives_idle").fetchone() == ("30",)
        tx.resource("queues")
        wait_until("all are asked", lambda: [0 < each <= 30 for each in asked_after_s(ports).values()] == [True] * 3)


def test_programs_at_the_same_time_recover_each_transaction_once(place: Place) -> None:
    """Ten programs of a job come at once; three transactions wait."""
    before = place.agree()
    for number in range(3):
        dies = place.manager(killer("tell.decide.after"), job=f"crowd{number}")
        assert forked(functools.partial(transfer, dies)) == -signal.SIGKILL
    done: list[str] = []
    managers = [place.manager(job=f"crowd{number % 3}") for number in range(10)]
    threads = [threading.Thread(target=lambda manager: done.extend(manager.recover()), args=(one,)) for one in managers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for manager in managers:
        manager.close()
    assert len(done) == len(set(done)) == 3
    assert place.agree() - before == set(done)


# -- the broker as a module of PEP 249 --------------------------------------------------------------------------------


def published(connection: tpc.TpcConnection, body: str) -> None:
    connection.channel.basic_publish(amqp.Message(body, delivery_mode=2), exchange="", routing_key=QUEUE)


def test_the_broker_has_the_methods_of_pep_249(place: Place) -> None:
    before = place.in_queue()
    connection = tpc.connect([f"127.0.0.1:{place.broker.port}"])
    for number, (prepares, ending) in enumerate(
        ((True, "commit"), (False, "commit"), (True, "rollback"), (False, "rollback"))
    ):
        connection.tpc_begin(connection.xid(7, f"pep {number}", "queues"))
        published(connection, f"pep {number}")
        with pytest.raises(tpc.ProgrammingError, match=f"ends with tpc_{ending}"):
            getattr(connection, ending)()
        if prepares:
            connection.tpc_prepare()
        getattr(connection, f"tpc_{ending}")()
    connection.close()
    assert place.in_queue() - before == {"pep 0", "pep 1"}
    drop(place, {"pep 0", "pep 1"})


def test_another_connection_completes_what_is_listed(place: Place) -> None:
    for ending in ("commit", "rollback"):
        first = tpc.connect([f"127.0.0.1:{place.broker.port}"], form="messages")
        xid = first.xid(7, f"left to {ending}", "queues")
        first.tpc_begin(xid)
        published(first, ending)
        first.tpc_prepare()
        first.close()
        second = tpc.connect([f"127.0.0.1:{place.broker.port}"])
        assert second.tpc_recover() == [xid]
        getattr(second, f"tpc_{ending}")(xid)
        assert second.tpc_recover() == []
        with pytest.raises(tpc.ProgrammingError, match="NOTA"):
            second.tpc_commit(xid)
        second.close()
    assert "rollback" not in place.in_queue()
    drop(place, {"commit"})


def test_calls_of_pep_249_that_are_refused(place: Place) -> None:
    with pytest.raises(tpc.OperationalError, match="no broker serves"):
        tpc.connect(["127.0.0.1:1"], timeout_s=0)
    connection = tpc.connect([f"127.0.0.1:{place.broker.port}"])
    for call in (connection.tpc_prepare, connection.tpc_commit, connection.tpc_rollback):
        with pytest.raises(tpc.ProgrammingError, match="tpc_begin comes first"):
            call()
    for call in (connection.commit, connection.rollback, connection.cursor):
        with pytest.raises(tpc.NotSupportedError):
            call()
    for parts in ((-1, "a", "b"), (0, "", "b"), (0, "a", "x" * 65), (0, "日", "b"), (0, "本", "b")):
        with pytest.raises(tpc.InterfaceError):
            connection.xid(*parts)
    connection.close()


def test_a_branch_that_can_only_be_rolled_back_is_gone_after_prepare(place: Place) -> None:
    first, second = (tpc.connect([f"127.0.0.1:{place.broker.port}"]) for _ in range(2))
    xid = first.xid(7, "fails", "queues")
    first.tpc_begin(xid)
    assert second._resource.start(Xid(7, b"fails", b"queues"), Flag.JOIN) == OK
    second.channel.connection.close()  # by the end of a channel that works on it, a branch fails
    with pytest.raises(tpc.IntegrityError):
        first.tpc_prepare()
    first.tpc_begin(xid)  # the name is free
    first.tpc_rollback()
    first.close()


def drop(place: Place, bodies: set[str]) -> None:
    """Take these messages out of the queue."""
    queues = place.opened("queues")
    channel = queues.resource
    while (message := channel.basic_get(QUEUE)) is not None:
        if message.body in bodies:
            channel.basic_ack(message.delivery_tag)
    queues.close()


def test_a_state_server_that_is_silent_is_given_up(place: Place) -> None:
    """Its answer that comes late is never taken for that of another request."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        text = place.profiles.read_text().replace(place.state.address, address)
        manager = TransactionManager(profile_of(text, "shop", "x"), job=JOB, timeout_s=0.2)
        with pytest.raises(StateServerError, match="no answer in time"):
            manager.recover()
        with pytest.raises(StateServerError, match=f"{address}: .* no answer in time; 127.0.0.1:1: "):
            linked(f"{address},127.0.0.1:1")
        linked(f"{address},{place.state.address}").close()  # the first server that answers


def linked(addresses: str) -> StateLink:
    return StateLink(addresses, job="looks", profile="shop", fingerprint="f", timeout_s=0.5)
