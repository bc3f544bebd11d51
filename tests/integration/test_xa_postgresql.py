"""Ways of a PostgreSQL server with a transaction: hang, be another one, know no prepared transactions, or be told SQL COMMIT."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import attrs
import psycopg
import pytest

from tests.integration.broker_process import wait_until
from tests.integration.cut_link import CutLink
from tests.integration.xa_place import forked, killer, running_postgresql
from tests.integration.xa_servers import ServerProcess, ended
from understudy.xa import (
    BranchEndedError,
    HeuristicHazardError,
    HeuristicMixedError,
    Outcome,
    OutcomeUnknownError,
    ResourceManagerError,
    RolledBackError,
    TransactionManager,
    WrongResourceManagerError,
    XaCode,
    XaError,
)
from understudy.xa.commands.operator import Operator, RefusedError
from understudy.xa.core.codes import OK
from understudy.xa.core.errors import RecoveryFailedError
from understudy.xa.core.manager.steps import Flag
from understudy.xa.core.profiles.profile import Profile, ResourceConfig, profile_of
from understudy.xa.core.register.wire import Shown
from understudy.xa.core.xid import branch_of
from understudy.xa.demo.postgresql_server import PostgresServer
from understudy.xa.resource_managers.factory import make_resource_manager

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
JOB = "job"
TIMEOUT_S = 1
BOUND_S = 60
"""Of what takes some six seconds; unbounded, it would never end."""


class HeldLink(CutLink):
    """A server behind it hangs while `goes` is cleared: connections are taken, and nothing is carried."""

    def __init__(self, target: int) -> None:
        self.goes, self._freed = threading.Event(), threading.Event()
        self.goes.set()
        self._held: set[Any] = set()
        super().__init__(target)

    def hold_answers(self) -> None:
        """Carry no answer any more on the connections of now."""
        self._held = set(self._open[1::2])

    def _carry(self, source: Any, target: Any) -> None:
        with contextlib.suppress(OSError):
            while octets := source.recv(65536):
                self.goes.wait(60)
                if source in self._held:
                    self._freed.wait(60)
                target.sendall(octets)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.goes.set()
        self._freed.set()
        super().__exit__(kind, error, trace)


@attrs.define
class Scene:
    """A state server, and a PostgreSQL server that a profile names `bank`."""

    state: ServerProcess
    server: PostgresServer

    def profile(self, *others: str, port: int = 0, **options: Any) -> Profile:
        """`others`: names of further resource managers, which are scripted."""
        bank = {**self.server.options, **options, **({"port": port} if port else {})}
        return profile_of(
            f'[[state_servers]]\nid = "main"\naddress = "{self.state.address}"\n'
            '[[profiles]]\nname = "shop"\nstate_server = "main"\n'
            '[[profiles.resource_managers]]\nname = "bank"\nkind = "postgresql"\n'
            + "".join(f"{key} = {json.dumps(value)}\n" for key, value in bank.items())
            + "".join(f'[[profiles.resource_managers]]\nname = "{name}"\nkind = "scripted"\n' for name in others),
            "shop",
            "x",
        )

    def connect(self) -> psycopg.Connection[Any]:
        bank = self.server.options
        names = {"host": "host", "port": "port", "dbname": "database", "user": "user", "password": "password"}
        return psycopg.connect(**{key: bank[name] for key, name in names.items()}, autocommit=True)

    def rows(self) -> set[str]:
        with contextlib.closing(self.connect()) as bank:
            return {gid for (gid,) in bank.execute("SELECT gid FROM ledger")}

    def in_doubt(self) -> int:
        with contextlib.closing(self.connect()) as bank:
            return len(bank.execute("SELECT FROM pg_prepared_xacts").fetchall())

    def entries(self) -> list[Shown]:
        return list(self.state.entries().values())

    def dies(self, profile: Profile, point: str) -> None:
        """A program is killed at a point of its transaction."""

        def work() -> None:
            with TransactionManager(profile, job=JOB, on_step=killer(point)) as manager, manager.begin() as tx:
                inserts(tx)

        assert forked(work) == -signal.SIGKILL


def inserts(tx: Any) -> None:
    tx.resource("bank").execute("INSERT INTO ledger VALUES (%s)", (tx.gid,))


@contextlib.contextmanager
def running_scene(folder: Path, **options: Any) -> Iterator[Scene]:
    state = ServerProcess(folder, "state", "--data", str(folder / "state"))
    with ended(state), running_postgresql(**options) as server:
        state.start()
        scene = Scene(state, server)
        with contextlib.closing(scene.connect()) as bank:
            bank.execute("CREATE TABLE ledger (gid text PRIMARY KEY)")
        yield scene
        assert state.stop() == 0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with running_scene(tmp_path_factory.mktemp("bank")) as scene:
        yield scene


@pytest.fixture
def scene(shared: Scene) -> Iterator[Scene]:
    yield shared
    assert shared.entries() == []
    assert shared.in_doubt() == 0


# -- one that knows no prepared transactions ------------------------------------------------------------------------------


def test_the_only_resource_manager_needs_no_prepared_transactions(tmp_path: Path) -> None:
    with running_scene(tmp_path, max_prepared=0) as scene:
        with TransactionManager(scene.profile(), job=JOB) as manager:
            with manager.begin() as tx:
                inserts(tx)
            assert (tx.outcome, scene.rows()) == (Outcome.COMMITTED, {tx.gid})
            with (
                pytest.raises(ResourceManagerError, match="max_prepared_transactions = 0, and other programs may join"),
                manager.begin() as shared,
            ):
                shared.ticket()
        refused = r"max_prepared_transactions = 0, and profile 'shop' has 2 resource managers: two-phase commit needs"
        with pytest.raises(ResourceManagerError, match=refused):
            TransactionManager(scene.profile("other"), job=JOB).open()
        assert scene.entries() == []


# -- another one at the same address --------------------------------------------------------------------------------------


def test_another_server_at_the_same_address_recovers_nothing(tmp_path: Path) -> None:
    with running_scene(tmp_path) as scene, running_postgresql() as other:
        profile = scene.profile("other")
        scene.dies(profile, "tell.decide.after")
        right = scene.server
        right.stop()
        other.stop()
        other.port = right.port
        other.start()
        with contextlib.closing(psycopg.connect(**_login(other), autocommit=True)) as bank:
            bank.execute(psycopg.sql.SQL("ALTER ROLE understudy PASSWORD {}").format(right.password))
        manager = TransactionManager(profile, job=JOB)
        for call in (manager.recover, manager.begin, manager.open):
            with pytest.raises(WrongResourceManagerError, match=r"in postgresql .*, and here 'bank' is postgresql"):
                call()
        manager.close()
        (shown,) = scene.entries()
        assert (shown.state, shown.entry.commit, shown.entry.attempts) == ("pending", True, 0)
        with contextlib.closing(Operator(profile, JOB)) as operator:
            with pytest.raises(RefusedError, match="here 'bank' is postgresql"):
                operator.check(shown, commit=None)
            with pytest.raises(RefusedError, match="nothing was done"):
                operator.complete(shown.entry.gid, commit=None)
        other.stop()
        right.start()
        with TransactionManager(profile, job=JOB):
            assert scene.rows() == {shown.entry.gid}
        assert scene.entries() == []


def _login(server: PostgresServer) -> dict[str, Any]:
    options = server.options
    return {
        "host": options["host"], "port": options["port"], "dbname": options["database"], "user": options["user"],
        "password": options["password"],
    }  # fmt: skip


# -- completed by hand while the program is dead ---------------------------------------------------------------------------


@pytest.mark.parametrize(("verb", "recorded"), [("ROLLBACK", XaCode.HEURRB), ("COMMIT", None)])
def test_a_branch_that_was_completed_by_hand_is_kept_if_that_was_against_the_record(
    scene: Scene, verb: str, recorded: XaCode | None
) -> None:
    profile = scene.profile("other")
    scene.dies(profile, "tell.decide.after")
    with contextlib.closing(scene.connect()) as bank:
        (name,) = bank.execute("SELECT gid FROM pg_prepared_xacts").fetchone() or ("",)
        bank.execute(f"{verb} PREPARED '{name}'")
    with TransactionManager(profile, job=JOB) as manager, manager.begin():
        pass
    found = [(one.state, one.entry.heuristics) for one in scene.entries()]
    assert found == ([("heuristic", {"bank": recorded})] if recorded else [])
    for one in scene.entries():
        Operator(profile, JOB).forget(one.entry.gid)


# -- SQL COMMIT in a branch -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["COMMIT", "INSERT INTO ledger VALUES ('second'); COMMIT; BEGIN", "COMMIT AND CHAIN"])
def test_sql_commit_is_noticed_at_once_and_told_for_what_it_did(scene: Scene, query: str) -> None:
    with contextlib.closing(TransactionManager(scene.profile("other"), job=JOB)) as manager:
        tx = manager.begin()
        bank = tx.resource("bank")
        inserts(tx)
        with pytest.raises(
            BranchEndedError, match=r"SQL COMMIT has ended .* 'bank': what the branch had done is committed"
        ):
            bank.execute(query)
        with pytest.raises(BranchEndedError, match="SQL COMMIT has ended"):
            bank.execute("INSERT INTO ledger VALUES ('behind')")
        with pytest.raises(HeuristicMixedError, match="bank: HEURCOM"):
            tx.commit()
        assert tx.outcome is None
    assert tx.gid in scene.rows()
    assert "behind" not in scene.rows()
    (shown,) = scene.entries()
    assert (shown.state, shown.entry.heuristics) == ("heuristic", {"bank": XaCode.HEURCOM})
    Operator(scene.profile("other"), JOB).forget(tx.gid)
    with contextlib.closing(scene.connect()) as bank:
        bank.execute("DELETE FROM ledger")


def test_sql_rollback_rolls_all_back(scene: Scene) -> None:
    with contextlib.closing(TransactionManager(scene.profile("other"), job=JOB)) as manager:
        tx = manager.begin()
        bank = tx.resource("bank")
        inserts(tx)
        with pytest.raises(
            BranchEndedError, match=r"SQL ROLLBACK has ended .*: what the branch had done is rolled back"
        ):
            bank.execute("ROLLBACK")
        with pytest.raises(RolledBackError, match=r"bank: RBROLLBACK .SQL ROLLBACK of the program"):
            tx.commit()
    assert tx.gid not in scene.rows()


def test_a_savepoint_is_no_end_of_the_branch(scene: Scene) -> None:
    with contextlib.closing(TransactionManager(scene.profile("other"), job=JOB)) as manager, manager.begin() as tx:
        bank = tx.resource("bank")
        inserts(tx)
        for query in ("SAVEPOINT one", "INSERT INTO ledger VALUES ('no')", "ROLLBACK TO SAVEPOINT one"):
            bank.execute(query)
        with bank.transaction():
            bank.execute("SELECT 1")
    assert tx.outcome is Outcome.COMMITTED
    assert (tx.gid in scene.rows(), "no" in scene.rows()) == (True, False)


@pytest.mark.parametrize("query", ["COMMIT", "ROLLBACK AND CHAIN"])
def test_a_cursor_of_another_class_is_noticed_before_the_next_statement_or_at_the_end(scene: Scene, query: str) -> None:
    with contextlib.closing(TransactionManager(scene.profile("other"), job=JOB)) as manager:
        tx = manager.begin()
        bank = tx.resource("bank")
        inserts(tx)
        psycopg.ClientCursor(bank).execute(query)
        if query == "COMMIT":
            with pytest.raises(BranchEndedError, match="whether what the branch had done is committed is not known"):
                bank.execute("SELECT 1")
        with pytest.raises(HeuristicHazardError, match="bank: HEURHAZ"):
            tx.commit()
    Operator(scene.profile("other"), JOB).forget(tx.gid)


def test_both_phases_belong_to_the_transaction_manager(scene: Scene) -> None:
    with contextlib.closing(TransactionManager(scene.profile("other"), job=JOB)) as manager, manager.begin() as tx:
        bank = tx.resource("bank")
        for method in (bank.tpc_commit, bank.tpc_prepare):
            with pytest.raises(psycopg.ProgrammingError, match="the transaction manager has both phases"):
                method()
        inserts(tx)
    assert tx.gid in scene.rows()


def test_a_child_process_commits_its_rows_and_its_parent_goes_on(scene: Scene) -> None:
    before = scene.rows()
    with TransactionManager(scene.profile("other"), job=JOB) as manager:
        with manager.begin() as first:
            inserts(first)

        def work() -> None:
            with manager.begin() as tx:
                inserts(tx)
            assert tx.gid in scene.rows()

        with manager.begin() as around:
            inserts(around)
            assert forked(work) == 0
        with manager.begin() as last:
            inserts(last)
    assert {first.gid, around.gid, last.gid} < scene.rows()
    assert len(scene.rows() - before) == 4


# -- a server that hangs --------------------------------------------------------------------------------------------------


def timed(call: Callable[[], object]) -> None:
    started = time.monotonic()
    call()
    assert time.monotonic() - started < BOUND_S


@pytest.mark.parametrize(
    ("point", "error"),
    [
        ("start.bank.before", RolledBackError),
        ("prepare.bank.before", RolledBackError),
        ("commit.bank.before", None),
        ("tell.begin.before", RolledBackError),
    ],
)
def test_every_verb_is_bounded_though_the_server_hangs(scene: Scene, point: str, error: type[Exception] | None) -> None:
    with HeldLink(scene.server.port) as link:
        profile = scene.profile("other", port=link.port, timeout_s=TIMEOUT_S)

        def on_step(label: str) -> None:
            if label == point:
                link.goes.clear()

        manager = TransactionManager(profile, job=JOB, on_step=on_step)
        manager.recover()

        def work() -> None:
            with pytest.raises(error) if error else contextlib.nullcontext(), manager.begin() as tx:
                inserts(tx)
                made.append(tx)

        made: list[Any] = []
        timed(work)
        if error is None:
            assert made[0].outcome is Outcome.COMMIT_PENDING
        manager.close()
        again = TransactionManager(profile, job=JOB)
        with pytest.raises(ResourceManagerError):  # it still hangs
            timed(again.recover)
        link.goes.set()
        recovered(again)
        again.close()
    assert [one.gid in scene.rows() for one in made if error is None] == [True] * (error is None)


def recovered(manager: TransactionManager) -> None:
    """A session of the server may hold a branch for a moment longer."""
    deadline = time.monotonic() + BOUND_S
    while True:
        try:
            manager.recover()
        except RecoveryFailedError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        else:
            return


def test_recovery_is_bounded_though_the_server_hangs_in_its_midst(scene: Scene) -> None:
    with HeldLink(scene.server.port) as link:
        profile = scene.profile("other", port=link.port, timeout_s=TIMEOUT_S)
        scene.dies(profile, "tell.decide.after")

        def on_step(label: str) -> None:
            if label == "commit.bank.before":
                link.goes.clear()

        manager = TransactionManager(profile, job=JOB, on_step=on_step)
        with pytest.raises(RecoveryFailedError, match="commit of bank: RMFAIL"):
            timed(manager.recover)
        (shown,) = scene.entries()
        assert (shown.state, shown.entry.attempts, shown.entry.parked) == ("pending", 1, False)
        manager.close()
        link.goes.set()
        again = TransactionManager(profile, job=JOB)
        recovered(again)
        again.close()
    assert shown.entry.gid in scene.rows()


def test_a_short_outage_parks_nothing_though_ten_programs_try(tmp_path: Path) -> None:
    """The server is away for a moment. Each of ten idle programs begins meanwhile; later one of them recovers by itself."""
    with running_scene(tmp_path) as scene, contextlib.ExitStack() as stack:
        profile = scene.profile("other")
        idle = [stack.enter_context(TransactionManager(profile, job=JOB)) for _ in range(10)]
        scene.dies(profile, "tell.decide.after")
        scene.server.stop()
        for manager in 2 * idle:
            with pytest.raises(XaError), manager.begin():
                pass
        assert not any(shown.entry.parked for shown in scene.entries())
        (decided,) = (shown.entry for shown in scene.entries() if shown.entry.commit)
        assert 1 <= decided.attempts < len(idle)
        scene.server.start()

        def nothing_left() -> bool:
            with contextlib.suppress(XaError), idle[0].begin():
                pass
            return scene.entries() == []

        wait_until("programs that begin recover it", nothing_left, BOUND_S)
        assert scene.rows() == {decided.gid}


def test_a_commit_in_one_phase_whose_answer_is_lost_is_asked_for(scene: Scene) -> None:
    """The server knows what became of the transaction, so the outcome is known."""
    with HeldLink(scene.server.port) as link:
        profile = scene.profile(port=link.port, timeout_s=TIMEOUT_S)
        manager = TransactionManager(profile, job=JOB)
        tx = manager.begin()
        inserts(tx)
        bank = tx.resource("bank")
        commit = bank.tpc_commit

        def loses_the_answer() -> None:
            link.hold_answers()
            commit()

        bank.tpc_commit = loses_the_answer
        assert tx.commit() is Outcome.COMMITTED
        manager.close()
    assert tx.gid in scene.rows()


def test_a_number_that_is_given_again_after_a_crash_does_not_tell_of_a_commit(scene: Scene) -> None:
    """A crash of the server may forget a number whose records were not on its disk yet, and another transaction gets it."""
    with TransactionManager(scene.profile(), job=JOB) as manager:
        tx = manager.begin()
        inserts(tx)
        bank = tx.resource("bank")
        commit = bank.tpc_commit

        def comes_too_late() -> None:
            os.kill(bank.info.backend_pid, signal.SIGKILL)
            wait_until("the server has crashed", lambda: bank.pgconn.socket >= 0 and _has_ended(bank.pgconn.socket))
            wait_until("the server is up again", lambda: _commits(scene, 5))
            commit()

        bank.tpc_commit = comes_too_late
        with pytest.raises((OutcomeUnknownError, RolledBackError)):
            tx.commit()
        manager.recover()
    assert tx.gid not in scene.rows()


def _has_ended(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def _commits(scene: Scene, number: int) -> bool:
    """True if so many transactions were committed."""
    try:
        with contextlib.closing(scene.connect()) as bank:
            for _ in range(number):
                bank.execute("INSERT INTO ledger VALUES (gen_random_uuid()::text)")
    except psycopg.OperationalError:
        return False
    return True


def test_a_prepare_of_a_module_that_ends_after_its_time_is_undone(scene: Scene) -> None:
    """The transaction was rolled back meanwhile: a branch that is prepared later would be in doubt, and known to nobody."""
    bank = scene.server.options
    names = {"host": "host", "port": "port", "dbname": "database", "user": "user", "password": "password"}
    options = {
        "module": "psycopg",
        "identity": "bank",
        "timeout_s": TIMEOUT_S,
        "connect": {key: bank[name] for key, name in names.items()},
    }
    resource = make_resource_manager(ResourceConfig(name="bank", kind="dbapi", options=options))
    with contextlib.closing(scene.connect()) as other:
        other.execute("CREATE TABLE slow (id int)")
        other.execute(
            f"CREATE FUNCTION sleeps() RETURNS trigger LANGUAGE plpgsql AS "
            f"'BEGIN PERFORM pg_sleep({3 * TIMEOUT_S}); RETURN NULL; END'"
        )
        other.execute(
            "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION sleeps()"
        )
        resource.open()
        xid = branch_of("c" * 64, "bank", JOB)
        assert resource.start(xid, Flag.NONE) == OK
        resource.resource.execute("INSERT INTO slow VALUES (1)")
        assert resource.prepare(xid).code is XaCode.RMFAIL
        assert resource.rollback(xid).code is XaCode.NOTA
        resource.close()
        sessions = (
            "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        wait_until("the session is over", lambda: other.execute(sessions).fetchone() == (0,))
        assert scene.in_doubt() == 0
        other.execute("DROP TABLE slow; DROP FUNCTION sleeps")
