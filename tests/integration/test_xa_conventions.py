"""The package ``transaction`` and SQLAlchemy's sessions: their commit is whole or not, on real servers, killed in the middle."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import psycopg
import pytest
import transaction
import zope.sqlalchemy
from sqlalchemy import Engine, exc, select, text
from sqlalchemy.orm import Session

from tests.integration.xa_place import JOB, Place, forked, killer, running_place
from tests.integration.xa_ways import WAYS, Entry, Other, published, registered, with_both, with_transaction
from understudy.xa import ConfigError, HeuristicError, Outcome, ProtocolError, RolledBackError, TransactionManager
from understudy.xa.commands.operator import Operator
from understudy.xa.with_sqlalchemy import enlisted_engine
from understudy.xa.with_transaction import JointTransactions

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with running_place(tmp_path_factory.mktemp("xa")) as running:
        yield running


@pytest.fixture
def manager(place: Place) -> Iterator[TransactionManager]:
    """Each test leaves both resource managers in agreement."""
    with place.manager() as manager:
        yield manager
        transaction.abort()
    place.agree()


@pytest.fixture
def joint(manager: TransactionManager) -> JointTransactions:
    return JointTransactions(manager)


@pytest.mark.parametrize("way", WAYS)
def test_transfers_commit(place: Place, manager: TransactionManager, way: str) -> None:
    before = place.agree()
    made = {WAYS[way](manager) for _ in range(2)}
    assert place.agree() - before == made


@pytest.mark.parametrize("way", ["transaction", "sessions", "both, two-phase"])
@pytest.mark.parametrize(
    ("point", "committed"),
    [
        ("prepare.queues.before", False),
        ("tell.decide.before", False),
        ("tell.decide.after", True),
        ("commit.queues.before", True),
    ],
)
def test_a_killed_program_leaves_both_or_none(place: Place, way: str, point: str, committed: bool) -> None:
    before = place.agree()
    assert forked(lambda: WAYS[way](place.manager(killer(point)))) == -signal.SIGKILL
    assert any(place.in_doubt().values())
    assert len(place.recovered()) == 1
    assert len(place.agree() - before) == committed


def test_a_program_killed_between_two_data_managers_commits(place: Place) -> None:
    """SQLAlchemy's second phase is over, and the one of the transaction manager has not begun."""
    before = place.agree()

    def work() -> None:
        with_both(place.manager(), Other("~~", tpc_finish=lambda: killer("")("")), twophase=True)

    assert forked(work) == -signal.SIGKILL
    assert len(place.recovered()) == 1
    assert len(place.agree() - before) == 1


# -- the package transaction ------------------------------------------------------------------------------------------


def fails() -> None:
    raise ConnectionError("the other one")


def test_an_abort_rolls_back(place: Place, joint: JointTransactions) -> None:
    before = place.agree()
    for _ in range(2):
        joint.resource("bank").execute("INSERT INTO ledger VALUES ('never')")
        published(joint.resource("queues"), "never")
        transaction.abort()
    assert place.agree() == before


def test_another_data_manager_that_refuses_rolls_back(place: Place, manager: TransactionManager) -> None:
    """The other manager votes first, so nothing is prepared, even if its sort key begins like that of this one."""
    before = place.agree()
    other = Other("~sqlalchemy:1", tpc_vote=fails)
    with pytest.raises(ConnectionError):
        with_transaction(manager, other)
    assert other.calls[:3] == ["tpc_begin", "commit", "tpc_vote"]
    assert place.agree() == before


def test_a_refused_vote_aborts_the_others(place: Place, joint: JointTransactions) -> None:
    before = place.agree()
    other = Other("a")
    transaction.get().join(other)
    published(joint.resource("queues"), "never")
    with pytest.raises(Exception, match="duplicate key"):
        joint.resource("bank").execute("INSERT INTO ledger VALUES ('x'), ('x')")
    with pytest.raises(RolledBackError, match="bank: RBROLLBACK"):
        transaction.commit()
    assert other.calls == ["tpc_begin", "commit", "tpc_vote", "tpc_abort"]
    with pytest.raises(transaction.interfaces.TransactionFailedError):
        joint.resource("bank")
    transaction.abort()
    assert place.agree() == before


def test_rolled_back_work_is_tried_again(place: Place, joint: JointTransactions) -> None:
    before = place.agree()
    gids = []
    for attempt in transaction.manager.attempts(3):
        with attempt:
            gids.append(joint.current.gid)
            joint.resource("bank").execute("INSERT INTO ledger VALUES (%s)", (gids[-1],))
            published(joint.resource("queues"), gids[-1])
            if len(gids) == 1:
                joint.current.rollback()
                with pytest.raises(ProtocolError, match="abort the transaction"):
                    joint.resource("bank")
                raise RolledBackError(gids[0], {"bank": "a deadlock"})
    assert len(gids) == 2
    assert place.agree() - before == {gids[1]}


def test_a_failure_after_the_decision_does_not_turn_it_round(
    place: Place, manager: TransactionManager, caplog: pytest.LogCaptureFixture
) -> None:
    """A data manager that fails in its second phase, before this one's."""
    before = place.agree()
    with pytest.raises(ConnectionError):
        with_transaction(manager, Other("a", tpc_finish=fails))
    assert len(place.agree() - before) == 1
    assert "is decided as commit" in caplog.text


def test_savepoints_are_refused(place: Place, joint: JointTransactions) -> None:
    before = place.agree()
    published(joint.resource("queues"), "never")
    with pytest.raises(TypeError, match=r"over bank, queues: it has no savepoints"):
        transaction.savepoint()
    with pytest.raises(transaction.interfaces.TransactionFailedError):
        transaction.commit()
    transaction.abort()
    published(joint.resource("queues"), "never")
    point = transaction.savepoint(optimistic=True)
    with pytest.raises(TypeError, match="it has no savepoints"):
        point.rollback()
    transaction.abort()
    assert place.agree() == before


def test_work_after_a_savepoint_of_others_is_undone(place: Place, joint: JointTransactions) -> None:
    before = place.agree()
    point = transaction.savepoint()
    published(joint.resource("queues"), "never")
    point.rollback()
    gid = joint.current.gid
    joint.resource("bank").execute("INSERT INTO ledger VALUES (%s)", (gid,))
    published(joint.resource("queues"), gid)
    transaction.commit()
    assert place.agree() - before == {gid}


def test_a_manager_of_the_requests_own(place: Place, manager: TransactionManager) -> None:
    """As Pyramid has them: explicit, and not the thread's."""
    before = place.agree()
    own = transaction.TransactionManager(explicit=True)
    joint = JointTransactions(manager, own)
    with pytest.raises(transaction.interfaces.NoTransaction):
        joint.resource("bank")
    with own:
        gid = joint.current.gid
        joint.resource("bank").execute("INSERT INTO ledger VALUES (%s)", (gid,))
        published(joint.resource("queues"), gid)
    assert place.agree() - before == {gid}


def test_a_transaction_has_one_profile(place: Place, manager: TransactionManager, joint: JointTransactions) -> None:
    published(joint.resource("queues"), "never")
    with pytest.raises(ProtocolError, match="profile 'shop' has joined this transaction"):
        JointTransactions(manager).resource("bank")


def test_what_an_operator_has_completed_is_told(place: Place, joint: JointTransactions) -> None:
    """The prepared branch of the bank is rolled back by hand, after the decision."""

    def by_hand() -> None:
        bank = place.opened("bank")
        (branch,) = bank.recover()
        bank.rollback(branch.xid)
        bank.close()

    transaction.get().join(Other("a", tpc_finish=by_hand))
    gid = joint.current.gid
    joint.resource("bank").execute("INSERT INTO ledger VALUES (%s)", (gid,))
    published(joint.resource("queues"), gid)
    with pytest.raises(HeuristicError, match="the prepared branch is gone"):
        transaction.commit()
    transaction.abort()
    assert gid in place.in_queue() - place.in_bank()
    bank = place.opened("bank")
    bank.resource.execute("INSERT INTO ledger VALUES (%s)", (gid,))
    bank.resource.commit()
    bank.close()
    assert [one.entry.gid for one in place.entries()] == [gid]
    Operator(joint.manager.profile, JOB).forget(gid)


# -- sessions ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def engine(manager: TransactionManager) -> Engine:
    return enlisted_engine(manager, "bank")


def test_a_session_that_rolls_back_rolls_back_all(place: Place, manager: TransactionManager, engine: Engine) -> None:
    """Also if the program goes on as if nothing had happened."""
    before = place.agree()
    with manager.begin() as current:
        published(current.resource("queues"), "never")
        with pytest.raises(exc.IntegrityError), Session(engine) as session, session.begin():
            session.execute(text("INSERT INTO ledger VALUES ('x'), ('x')"))
        with pytest.raises(exc.StatementError, match="can only be rolled back"), Session(engine) as session:
            session.scalar(select(Entry.gid))
        with pytest.raises(RolledBackError, match="bank"):
            current.commit()
    assert place.agree() == before


@pytest.mark.parametrize("twophase", [False, True])
def test_a_session_that_is_closed_without_commit(
    place: Place, manager: TransactionManager, engine: Engine, twophase: bool
) -> None:
    """One that has only read leaves the work of others; one that has written does not commit it half."""
    before = place.agree()
    with manager.begin() as current:
        current.resource("bank").execute("INSERT INTO ledger VALUES (%s)", (current.gid,))
        published(current.resource("queues"), current.gid)
        with Session(engine, twophase=twophase) as session:
            assert session.get(Entry, current.gid, with_for_update=True) is not None
    assert place.agree() - before == {current.gid}
    with manager.begin() as other:
        published(other.resource("queues"), "never")
        with Session(engine, twophase=twophase) as session:
            session.execute(text("WITH made AS (INSERT INTO ledger VALUES ('never') RETURNING gid) SELECT * FROM made"))
        with pytest.raises(RolledBackError):
            other.commit()
    assert place.agree() - before == {current.gid}


def test_savepoints_and_several_sessions(place: Place, manager: TransactionManager, engine: Engine) -> None:
    before = place.agree()
    with manager.begin() as current:
        with Session(engine) as session:
            session.add(Entry(gid=current.gid))
            session.flush()
            with pytest.raises(exc.IntegrityError), session.begin_nested():
                session.execute(text("INSERT INTO ledger VALUES (:gid)"), {"gid": current.gid})
            session.commit()
            assert session.get(Entry, current.gid) is not None
        with Session(engine) as other:
            assert other.get(Entry, current.gid) is not None
        published(current.resource("queues"), current.gid)
    assert current.outcome is Outcome.COMMITTED
    assert place.agree() - before == {current.gid}


def test_a_session_does_not_outlive_its_transaction(place: Place, manager: TransactionManager, engine: Engine) -> None:
    """A session holds nothing of the next transaction, though both have the same connection."""
    before = place.agree()
    late = Session(engine)
    with manager.begin() as first:
        late.add(Entry(gid=first.gid))
        late.flush()
        published(first.resource("queues"), first.gid)
    with manager.begin() as second:
        with pytest.raises(exc.StatementError, match="is not active"):
            late.execute(text("INSERT INTO ledger VALUES ('never')"))
        with Session(engine) as session, session.begin():
            session.add(Entry(gid=second.gid))
        published(second.resource("queues"), second.gid)
        late.close()
    assert place.agree() - before == {first.gid, second.gid}
    with pytest.raises(ProtocolError, match="begin comes first"):
        late.scalar(select(Entry.gid))


def test_raw_statements_that_zope_sqlalchemy_does_not_see(place: Place, joint: JointTransactions) -> None:
    """Raw statements are never lost in silence beside a message that is sent."""
    before = place.agree()
    session = registered(joint, twophase=True)
    published(joint.resource("queues"), "never")
    session.execute(text("INSERT INTO ledger VALUES ('never')"))
    with pytest.raises(RolledBackError):
        transaction.commit()
    transaction.abort()
    gid = joint.current.gid
    session.execute(text("INSERT INTO ledger VALUES (:gid)"), {"gid": gid})
    zope.sqlalchemy.mark_changed(session)
    published(joint.resource("queues"), gid)
    transaction.commit()
    assert place.agree() - before == {gid}


def test_what_cannot_be_enlisted(manager: TransactionManager) -> None:
    with pytest.raises(ConfigError, match="'json_serializer' of an enlisted engine is not known"):
        enlisted_engine(manager, "bank", json_serializer=str)
    with manager.begin() as current:
        with pytest.raises(ConfigError, match="'queues' gives no connection of psycopg, but TransactionChannel"):
            enlisted_engine(manager, "queues").connect()
        with pytest.raises(ConfigError, match="no resource manager 'banc'"):
            enlisted_engine(manager, "banc").connect()
        with pytest.raises(psycopg.ProgrammingError, match="autocommit"):
            enlisted_engine(manager, "bank").connect().execution_options(isolation_level="AUTOCOMMIT")
        current.rollback()
