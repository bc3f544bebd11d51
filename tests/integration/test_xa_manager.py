"""The transaction manager on real servers: what each resource manager does, and what an application meets."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import amqp
import psycopg
import pytest

from tests.integration.xa_place import JOB, QUEUE, Place, forked, killer, running_place, transfer
from understudy.xa import (
    HeuristicMixedError,
    Outcome,
    ProtocolError,
    ResourceManagerError,
    RolledBackError,
    StateServerError,
    TransactionManager,
    WrongProfileError,
    XaCode,
)
from understudy.xa.core.manager.steps import Flag
from understudy.xa.core.profiles.profile import ResourceConfig, profile_of
from understudy.xa.core.xid import branch_of
from understudy.xa.demo.postgresql_server import PostgresServer
from understudy.xa.manager import read_profile
from understudy.xa.resource_managers.factory import make_resource_manager
from understudy.xa.resource_managers.port import ResourceManager

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with running_place(tmp_path_factory.mktemp("xa")) as running:
        yield running


@pytest.fixture
def manager(place: Place) -> Iterator[TransactionManager]:
    place.recovered()
    manager = place.manager()
    yield manager
    manager.close()
    place.recovered()
    place.agree()


def insert(connection: psycopg.Connection, gid: str) -> None:
    connection.execute("INSERT INTO ledger VALUES (%s)", (gid,))


def publish(channel: amqp.Channel, gid: str) -> None:
    channel.basic_publish(amqp.Message(gid, delivery_mode=2), exchange="", routing_key=QUEUE)


def transfer_and_fail(manager: TransactionManager) -> None:
    with manager.begin() as transaction:
        insert(transaction.resource("bank"), transaction.gid)
        publish(transaction.resource("queues"), transaction.gid)
        raise InterruptedError


def test_both_or_none(place: Place, manager: TransactionManager) -> None:
    before = place.agree()
    done = transfer(manager)
    with pytest.raises(InterruptedError):
        transfer_and_fail(manager)
    assert manager.current is None
    assert place.agree() - before == {done}


def test_what_is_taken_from_a_queue_belongs_to_it(place: Place, manager: TransactionManager) -> None:
    gid = transfer(manager)
    for ending in ("rollback", "commit"):
        transaction = manager.begin()
        channel = transaction.resource("queues")
        while (message := channel.basic_get(QUEUE)) is not None and message.body != gid:
            pass
        channel.basic_ack(message.delivery_tag)
        transaction.resource("bank").execute("DELETE FROM ledger WHERE gid = %s", (gid,))
        getattr(transaction, ending)()
        manager.close()  # what was looked at goes back
        assert (gid in place.agree()) == (ending == "rollback")


@pytest.mark.parametrize("acknowledged", [False, True])
@pytest.mark.parametrize("cause", ["program", "vote"])
def test_what_a_rolled_back_transaction_has_taken_is_there_for_others(
    place: Place, manager: TransactionManager, cause: str, acknowledged: bool
) -> None:
    """The session stays open for the next transaction, and no message stays with it."""
    gid = transfer(manager)
    transaction = manager.begin()
    channel = transaction.resource("queues")
    while (message := channel.basic_get(QUEUE)) is not None and message.body != gid:
        pass
    if acknowledged:
        channel.basic_ack(message.delivery_tag)
    if cause == "program":
        transaction.rollback()
    else:
        with pytest.raises(psycopg.errors.DivisionByZero):
            transaction.resource("bank").execute("SELECT 1/0")
        with pytest.raises(RolledBackError):
            transaction.commit()
    assert gid in place.agree()
    assert transfer(manager) in place.agree()


def test_a_failed_statement_rolls_back_though_it_was_caught(place: Place, manager: TransactionManager) -> None:
    """PREPARE TRANSACTION of a failed transaction is a rollback that reports no error."""
    before = place.agree()
    transaction = manager.begin()
    publish(transaction.resource("queues"), transaction.gid)
    with pytest.raises(psycopg.errors.DivisionByZero):
        transaction.resource("bank").execute("SELECT 1/0")
    with pytest.raises(RolledBackError, match=r"bank: RBROLLBACK .a statement failed"):
        transaction.commit()
    assert place.agree() == before


def test_a_constraint_that_is_checked_late_rolls_back(place: Place, manager: TransactionManager) -> None:
    bank = place.opened("bank")
    bank.resource.execute("CREATE TABLE late (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    bank.resource.commit()
    bank.close()
    transaction = manager.begin()
    publish(transaction.resource("queues"), transaction.gid)
    transaction.resource("bank").execute("INSERT INTO late VALUES (1), (1)")
    with pytest.raises(RolledBackError, match="bank: RBINTEGRITY"):
        transaction.commit()


def test_a_branch_that_only_reads_is_complete_after_prepare(place: Place, manager: TransactionManager) -> None:
    steps: list[str] = []
    reading = place.manager(steps.append)
    with reading.begin() as transaction:
        transaction.resource("bank").execute("SELECT count(*) FROM ledger")
    assert transaction.outcome is Outcome.COMMITTED
    assert "prepare.bank.after" in steps
    assert "commit.bank.before" not in steps
    reading.close()


def test_one_resource_manager_needs_no_second_phase(place: Place) -> None:
    text = place.profiles.read_text()
    only_bank = text[: text.index('[[profiles.resource_managers]]\nname = "queues"')]
    steps: list[str] = []
    manager = TransactionManager(profile_of(only_bank, "shop", "x"), job="alone", on_step=steps.append)
    with manager.begin() as transaction:
        transaction.resource("bank").execute("CREATE TABLE alone ()")
    assert "prepare.bank.before" not in steps
    transaction = manager.begin()
    with pytest.raises(psycopg.errors.DuplicateTable):
        transaction.resource("bank").execute("CREATE TABLE alone ()")
    with pytest.raises(RolledBackError, match="a statement failed"):
        transaction.commit()
    manager.close()


def test_messages_instead_of_methods(place: Place) -> None:
    before = place.agree()
    place.write_profiles(form="messages")
    try:
        manager = place.manager()
        gid = transfer(manager)
        with pytest.raises(InterruptedError):
            transfer_and_fail(manager)
        manager.close()
        assert forked(lambda: transfer(place.manager(killer("tell.decide.after")))) == -signal.SIGKILL
        assert len(place.in_doubt()["queues"]) == 1
        (late,) = place.recovered()
    finally:
        place.write_profiles()
    assert place.agree() - before == {gid, late}


@pytest.mark.parametrize("form", ["methods", "messages"])
def test_a_broker_tells_what_became_of_a_branch_that_is_gone(place: Place, form: str) -> None:
    place.write_profiles(form=form)
    try:
        queues = place.opened("queues")
        for commits, code in ((True, XaCode.HEURCOM), (False, XaCode.HEURRB)):
            xid = branch_of(f"{form}{commits}".ljust(64, "0"), "queues", JOB)
            assert queues.start(xid, Flag.NONE).code == queues.end(xid, Flag.NONE).code == XaCode.OK
            prepared = queues.prepare(xid)
            assert (prepared.code, bool(prepared.proof)) == (XaCode.OK, True)
            assert queues.outcome(xid, prepared.proof).code == XaCode.RETRY
            done = queues.commit(xid, one_phase=False) if commits else queues.rollback(xid)
            assert done.code == XaCode.OK
            assert queues.outcome(xid, prepared.proof).code == code
        queues.close()
    finally:
        place.write_profiles()


def test_a_broker_has_the_identity_of_its_data_directory(place: Place) -> None:
    queues = place.opened("queues")
    before = queues.identity
    assert re.fullmatch(r"understudy .+/[0-9a-f]{32}", before)
    place.broker.kill()
    place.broker.start()
    queues.open()
    assert queues.identity == before
    queues.identity = "understudy of another directory"
    queues.close()
    with pytest.raises(ResourceManagerError, match="was understudy of another directory, and at the same address is"):
        queues.open()
    queues.close()


# -- threads, tasks, suspension ---------------------------------------------------------------------------------------


def test_one_transaction_in_a_thread_and_another_while_it_is_suspended(
    place: Place, manager: TransactionManager
) -> None:
    before = place.agree()
    with manager.begin() as outer:
        insert(outer.resource("bank"), outer.gid)
        publish(outer.resource("queues"), outer.gid)
        with pytest.raises(ProtocolError, match="is active in this thread or task"):
            manager.begin()
        with outer.suspended():
            assert manager.current is None
            inner = transfer(manager)
        assert getattr(manager.current, "gid", None) == outer.gid
    assert place.agree() - before == {outer.gid, inner}


def test_threads_have_transactions_of_their_own(place: Place, manager: TransactionManager) -> None:
    before = place.agree()
    done: list[str] = []
    threads = [threading.Thread(target=lambda: done.extend(transfer(manager) for _ in range(5))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(done) == 20
    assert place.agree() - before == set(done)


def test_tasks_have_transactions_of_their_own(place: Place, manager: TransactionManager) -> None:
    before = place.agree()

    async def one() -> str:
        transaction = manager.begin()
        await asyncio.sleep(0)
        assert manager.current is transaction
        insert(transaction.resource("bank"), transaction.gid)
        publish(transaction.resource("queues"), transaction.gid)
        await asyncio.sleep(0)
        transaction.commit()
        return transaction.gid

    async def both() -> list[str]:
        return list(await asyncio.gather(one(), one()))

    done = asyncio.run(both())
    assert place.agree() - before == set(done)


# -- jobs and profiles ------------------------------------------------------------------------------------------------


def test_only_its_job_recovers_a_transaction(place: Place, manager: TransactionManager) -> None:
    assert forked(lambda: transfer(place.manager(killer("tell.decide.after")))) == -signal.SIGKILL
    other = place.manager(job="other")
    transfer(other)
    assert other.recover() == []
    other.close()
    assert [one.state for one in place.entries()] == ["pending"]
    done = transfer(manager)  # before it begins, the job recovers
    assert place.entries() == []
    assert done in place.agree()


def test_a_running_program_recovers_what_another_one_of_its_job_has_left(
    place: Place, manager: TransactionManager
) -> None:
    transfer(manager)
    assert forked(lambda: transfer(place.manager(killer("prepare.queues.after")))) == -signal.SIGKILL
    transfer(manager)
    place.agree()


def test_recovery_again_and_again_opens_no_further_connections(place: Place) -> None:
    opened: list[str] = []

    def make(config: ResourceConfig) -> ResourceManager:
        opened.append(config.name)
        return make_resource_manager(config)

    with TransactionManager(read_profile(place.profiles, "shop"), job=JOB, make_resource=make) as manager:
        for _ in range(3):
            assert manager.recover() == []
        place.state.kill()
        place.state.start()
        assert manager.recover() == []  # the idle link is stale
        assert forked(lambda: transfer(place.manager(killer("tell.decide.after")))) == -signal.SIGKILL
        assert len(manager.recover()) == 1
    assert opened == ["bank", "queues"] * 2


def test_a_profile_with_another_server_is_refused(place: Place, manager: TransactionManager) -> None:
    assert forked(lambda: transfer(place.manager(killer("tell.decide.after")))) == -signal.SIGKILL
    text = place.profiles.read_text().replace('addresses = ["127.0.0.1', 'addresses = ["localhost')
    wrong = TransactionManager(profile_of(text, "shop", "x"), job=JOB)
    before = place.entries()
    with pytest.raises(WrongProfileError, match="nothing was changed"):
        wrong.recover()
    with pytest.raises(WrongProfileError):
        wrong.begin()
    assert [one.entry for one in place.entries()] == [one.entry for one in before]


# -- heuristics -------------------------------------------------------------------------------------------------------


def test_an_operator_of_the_broker_rolls_a_prepared_branch_back(place: Place, manager: TransactionManager) -> None:
    """The application is told, the state server keeps it for people, and forget ends it."""

    def complete(label: str) -> None:
        if label == "tell.decide.after":
            import pika

            from tests.integration.dtx_channel import DtxChannel, Xid

            connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", place.broker.port))
            channel = DtxChannel(connection.channel())
            (branch,) = channel.recover()
            assert channel.complete(Xid(*branch.xid), commit=False) == 0
            connection.close()

    meddled = place.manager(complete)
    with pytest.raises(HeuristicMixedError, match="queues: HEURRB") as raised:
        transfer(meddled)
    meddled.close()
    (shown,) = place.entries()
    assert (shown.state, shown.entry.heuristics) == ("heuristic", {"queues": 6})
    assert raised.value.committed
    bank = place.opened("bank")
    bank.resource.execute("DELETE FROM ledger WHERE gid = %s", (shown.entry.gid,))
    bank.resource.commit()
    bank.close()
    from understudy.xa.commands.operator import Operator

    Operator(manager.profile, JOB).forget(shown.entry.gid)
    assert place.entries() == []


# -- what cannot be used ----------------------------------------------------------------------------------------------


def test_a_folder_that_the_server_may_not_enter_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    server = PostgresServer(tmp_path / "server")
    if os.geteuid() != 0:  # the server runs as this user, and no folder of the user is closed to it
        server.create()
        return
    with pytest.raises(ResourceManagerError, match="may not enter /"):
        server.create()
    assert not (tmp_path / "server").exists()


def test_a_resource_manager_that_is_not_there_means_no_transaction(place: Place) -> None:
    place.write_profiles(addresses=["127.0.0.1:1"], timeout_s=1)
    try:
        with pytest.raises(ResourceManagerError, match=r"queues: no broker serves: 127\.0\.0\.1:1"):
            place.manager().begin()
    finally:
        place.write_profiles()
    assert place.entries() == []


def test_a_state_server_that_is_not_there_means_no_transaction(place: Place) -> None:
    text = place.profiles.read_text().replace(place.state.address, "127.0.0.1:1")
    with pytest.raises(StateServerError, match=r"takes a connection at 127\.0\.0\.1:1"):
        TransactionManager(profile_of(text, "shop", "x"), job="none").begin()
    assert place.in_doubt() == {"bank": [], "queues": []}


def test_a_prepare_that_still_runs_is_not_taken_for_none(place: Place, manager: TransactionManager) -> None:
    """A session holds the branch's lock until it is prepared or gone: until then a rollback is to be tried again."""
    from understudy.xa.core.codes import XaCode
    from understudy.xa.core.manager.steps import Flag

    xid = branch_of("f" * 64, "bank", JOB)
    working, recovering = place.opened("bank"), place.opened("bank")
    assert working.start(xid, Flag.NONE).code is XaCode.OK
    assert recovering.rollback(xid).code is XaCode.RETRY
    working.close()
    from tests.integration.broker_process import wait_until

    wait_until("the session is gone", lambda: recovering.rollback(xid).code is XaCode.NOTA)
    recovering.close()
