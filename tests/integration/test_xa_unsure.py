"""Events that are no answer: an interruption, a missing permission, a list that is a moment old."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

import amqp
import pytest

from tests.integration.broker_process import wait_until
from tests.integration.xa_place import JOB, QUEUE, Place, forked, killer, running_place, transfer
from understudy.xa import ProtocolError, RecoveryFailedError, TransactionManager
from understudy.xa.commands import operator
from understudy.xa.commands.operator import Operator
from understudy.xa.core.codes import OK, XaCode
from understudy.xa.core.manager.steps import Flag
from understudy.xa.core.profiles.profile import ResourceConfig, profile_of
from understudy.xa.core.register.wire import Begin, Claimed, Ok, Release, Take
from understudy.xa.core.xid import branch_of
from understudy.xa.resource_managers.factory import make_resource_manager
from understudy.xa.resource_managers.port import ResourceManager
from understudy.xa.resource_managers.postgresql import advisory_lock_of
from understudy.xa.sockets.link import StateLink

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def whole_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with running_place(tmp_path_factory.mktemp("xa")) as place:
        yield place


@pytest.fixture
def place(whole_place: Place) -> Iterator[Place]:
    whole_place.agree()
    yield whole_place
    whole_place.recovered()
    whole_place.agree()


# -- a signal between a request and its answer ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "committed"),
    [
        ("start.queues.after", False),
        ("prepare.bank.after", False),
        ("tell.decide.before", False),
        ("tell.decide.after", True),
        ("commit.bank.after", True),
    ],
)
def test_an_interrupted_call_leaves_the_verdict_to_the_record(place: Place, point: str, committed: bool) -> None:
    """As Ctrl-C, or a handler of SIGTERM that exits. The decision may be recorded: no branch is rolled back then."""
    before = place.agree()

    def interrupt(label: str) -> None:
        if label == point:
            raise KeyboardInterrupt

    with place.manager(interrupt) as manager:
        with pytest.raises(KeyboardInterrupt):
            transfer(manager)
        assert manager.current is None
    place.recovered()
    assert len(place.agree() - before) == committed


def test_connections_of_a_transaction_are_closed_if_it_outlives_its_manager(place: Place) -> None:
    manager = place.manager()
    transaction = manager.begin()
    connection = transaction.resource("bank")
    manager.close()
    assert not connection.closed
    transaction.commit()
    assert connection.closed
    with manager.open(), manager.begin() as again:  # it can be used again
        kept = again.resource("bank")
    assert kept.closed  # since the manager is closed by now


def test_a_transaction_that_is_suspended_at_its_end_is_rolled_back(place: Place) -> None:
    before = place.agree()
    with place.manager() as manager:
        with pytest.raises(ProtocolError, match="is suspended: commit is out of turn"), manager.begin() as transaction:
            transaction.suspend()
        with manager.begin() as transaction, transaction.suspended():
            transaction.rollback()  # and there is nothing to resume
        assert manager.current is None
        assert place.agree() == before


# -- errors of the second phase ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["prepare.queues.after", "tell.decide.after"])
def test_a_user_who_may_not_complete_a_branch_has_not_completed_it(place: Place, point: str) -> None:
    before = place.agree()
    bank = place.opened("bank")
    bank.resource.execute("DROP ROLE IF EXISTS clerk")
    bank.resource.execute("CREATE ROLE clerk LOGIN PASSWORD 'pen'")
    bank.resource.commit()
    bank.close()
    assert forked(lambda: transfer(place.manager(killer(point)))) == -signal.SIGKILL
    text = place.profiles.read_text()
    for key, value in (("user", "clerk"), ("password", "pen")):
        text = text.replace(f"{key} = {json.dumps(place.postgresql.options[key])}", f'{key} = "{value}"')
    clerk = TransactionManager(profile_of(text, "shop", "x"), job=JOB)
    with pytest.raises(RecoveryFailedError, match=r"bank: RMERR .permission denied to finish prepared transaction"):
        clerk.recover()
    clerk.close()
    (shown,) = place.entries()
    assert (shown.state, shown.entry.attempts, shown.entry.heuristics) == ("pending", 1, {})
    assert place.in_doubt()["bank"] == [shown.entry.gid]
    assert place.recovered() == [shown.entry.gid]
    assert len(place.agree() - before) == (point == "tell.decide.after")


def test_a_commit_whose_answer_was_lost_is_no_completion_by_hand(place: Place) -> None:
    """The server still carries it out when it is said again, and the branch is gone when it is said a third time."""
    xid = branch_of("c" * 64, "bank", JOB)
    bank, other = place.opened("bank"), place.opened("bank")
    assert bank.start(xid, Flag.NONE) == OK
    bank.resource.execute("CREATE TABLE lost ()")
    assert bank.prepare(xid).code == OK.code
    other.resource.execute(
        "SELECT pg_advisory_lock_shared(%s)", (advisory_lock_of(xid),)
    )  # as the session has that is at it
    other.resource.commit()
    other.resource.execute("SELECT pg_terminate_backend(%s)", (bank.resource.info.backend_pid,))
    other.resource.commit()
    assert other.commit(xid, one_phase=False) == OK
    assert bank.commit(xid, one_phase=False).code is XaCode.RETRY
    other.close()
    wait_until("the session is gone", lambda: bank.commit(xid, one_phase=False) == OK)
    bank.resource.execute("DROP TABLE lost")
    bank.resource.commit()
    bank.close()


@pytest.mark.parametrize("name", ["bank", "queues"])
@pytest.mark.parametrize("commits", [True, False])
def test_a_branch_that_was_completed_by_hand_is_not_taken_for_a_lost_answer(
    place: Place, name: str, commits: bool
) -> None:
    """The connection was lost before the verb came to the server, and an operator had completed the branch the other way."""
    xid = branch_of("d" * 64, name, JOB)
    mine, other = place.opened(name), place.opened(name)
    if name == "queues":
        other.resource.queue_declare("by hand", durable=True, auto_delete=False)
    assert mine.start(xid, Flag.NONE) == OK
    if name == "bank":
        mine.resource.execute("CREATE TABLE by_hand ()")
    else:
        mine.resource.basic_publish(amqp.Message("by hand"), exchange="", routing_key="by hand")
    assert mine.end(xid, Flag.NONE) == OK
    prepared = mine.prepare(xid)
    assert prepared.code is XaCode.OK
    assert other.commit(xid, one_phase=False) == OK if not commits else other.rollback(xid) == OK
    where = mine.resource.pgconn.socket if name == "bank" else mine.resource.connection.transport.sock.fileno()
    with socket.socket(fileno=os.dup(where)) as lost:
        lost.shutdown(socket.SHUT_RDWR)
    answer = mine.commit(xid, one_phase=False) if commits else mine.rollback(xid)
    assert answer.code is XaCode.NOTA
    assert mine.outcome(xid, prepared.proof).code is (XaCode.HEURRB if commits else XaCode.HEURCOM)
    if name == "bank":
        mine.resource.execute("DROP TABLE IF EXISTS by_hand")
        mine.resource.commit()
    else:
        other.resource.queue_delete("by hand")
    mine.close()
    other.close()


def test_a_transaction_that_is_busy_lets_the_others_of_its_job_go_first(place: Place) -> None:
    """A session works on its branch until another transaction is complete, as one does that waits for that one's row."""
    before = place.agree()
    assert forked(lambda: transfer(place.manager(killer("start.queues.after")))) == -signal.SIGKILL
    wait_until("it is pending", lambda: [one.state for one in place.entries()] == ["pending"])
    busy = place.entries()[0].entry.gid
    session = place.opened("bank")
    lock = advisory_lock_of(branch_of(busy, "bank", JOB))
    session.resource.execute("SELECT pg_advisory_lock_shared(%s)", (lock,))
    session.resource.commit()
    in_way = branch_of("a" * 64, "bank", JOB)
    profile = place.manager().profile
    with StateLink(profile.state_server, job=JOB, profile="shop", fingerprint=profile.fingerprint) as link:
        assert isinstance(link.ask(Take(busy)), Claimed)  # so that another one may begin
        prepared = place.opened("bank")
        assert link.ask(Begin("a" * 64, ["bank"])) == Ok()
        assert prepared.start(in_way, Flag.NONE) == OK
        prepared.resource.execute("INSERT INTO ledger VALUES ('in the way')")
        assert prepared.prepare(in_way).code == OK.code
        prepared.close()
        assert link.ask(Release(busy, "")) == Ok()
    trace: list[str] = []

    def ends_when_the_way_is_free(label: str) -> None:
        trace.append(label)
        if label == "tell.done.before":
            session.close()

    with place.manager(ends_when_the_way_is_free) as manager:
        pass
    assert trace.index("tell.release.before") < trace.index("tell.done.before")
    assert "tell.failed.before" not in trace
    assert manager.current is None
    assert place.agree() == before


# -- what an operator sees --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["anything at all", "007_YWJj_YWJj", "7_YWJj_YWJj"])
def test_a_branch_with_any_name_is_completed_by_hand(place: Place, text: str) -> None:
    """Also with one that looks like a name of psycopg."""
    bank = place.opened("bank")
    bank.resource.autocommit = True
    bank.resource.execute("BEGIN")
    bank.resource.execute("CREATE TABLE never ()")
    bank.resource.execute(f"PREPARE TRANSACTION '{text}'")
    work = Operator(place.manager().profile, JOB)
    (orphan,) = work.look().orphans
    assert orphan.xid.is_ours is False
    (answer,) = work.complete_orphans(orphan.gid, commit=False).values()
    assert answer == OK
    assert bank.recover() == []
    bank.close()
    work.forget(orphan.gid)


def test_a_transaction_that_begins_while_an_operator_looks_is_no_orphan(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place.manager() as manager:
        begun: list[Any] = []

        def make(config: ResourceConfig) -> ResourceManager:
            if not begun:
                begun.append(manager.begin())
                begun[0].resource("bank").execute("INSERT INTO ledger VALUES (%s)", (begun[0].gid,))
                message = amqp.Message(begun[0].gid, delivery_mode=2)
                begun[0].resource("queues").basic_publish(message, exchange="", routing_key=QUEUE)
                begun[0].vote()
            return make_resource_manager(config)

        monkeypatch.setattr(operator, "make_resource_manager", make)
        found = Operator(manager.profile, JOB).look()
        assert (found.entries, found.orphans, found.unreachable) == ([], [], {})
        begun[0].finish()
