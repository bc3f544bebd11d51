"""FileCoordination and the store under it: one winner of each race, nothing lost to kill -9, the dead seen dead, the file named.

`integration/test_store_contract.py` has what all stores promise.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
import uvloop

from understudy.broker.server.files import file_storage
from understudy.ha.store.coordination import Answer, Bar, BrokerInfo, GroupState, StoreError
from understudy.ha.store.edge.local import FileAdmin, FileCoordination, store
from understudy.ha.store.edge.local import processes as local_processes
from understudy.ha.store.edge.local.processes import is_alive, machine_ms, this_process
from understudy.ha.store.edge.local.store import BrokerRow, CoordinationStore, Process, StoreBusyError
from understudy.ha.store.group_changes import MAX_HISTORY

ROOT = Path(__file__).parents[4]
LIMIT_S = 20.0

FIRST = GroupState(epoch=1, primary="b1", members=("b1",), version=1, min_insync=1)
SECOND = GroupState(epoch=1, primary="b1", members=("b1", "b2"), version=2, min_insync=1)


def info(broker: str, **changes: Any) -> BrokerInfo:
    return BrokerInfo(**({"broker": broker, "link": f"{broker}:1", "amqp": f"{broker}:2"} | changes))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a group's #1 store.db"


@contextmanager
def opened(path: Path, **options: Any) -> Iterator[CoordinationStore]:
    made = CoordinationStore(path, **({"create": True} | options))
    try:
        yield made
    finally:
        made.close()


# ----------------------------------------------------------------------------------------------------------- the store


def test_groups_of_one_file_are_apart(path: Path) -> None:
    with opened(path) as one:
        assert one.found("g", FIRST) == (True, FIRST)
        assert one.read("other") == (None, {})


def test_what_is_published_is_read_back(path: Path) -> None:
    full = info("b1", http="h:1", status="ready", position=2**62, pid=7, blockers="é: waits", alive=True)
    row = BrokerRow(info=full, process=this_process_as(7), lease_until_ms=5)
    with opened(path) as one, opened(path) as other:
        one.publish("g", row)
        assert other.read("g") == (None, {"b1": row})
        assert one.renew("g", "b1", row.process, 9)
        assert other.read("g")[1]["b1"].lease_until_ms == 9
        assert not one.renew("g", "b1", attrs.evolve(row.process, started=8), 11)
        assert not one.renew("g", "b2", row.process, 11)


def test_a_successor_is_of_one_epoch(path: Path) -> None:
    """An older program begins the next epoch and leaves the row of the successor as it is."""
    with opened(path) as one:
        one.found("g", attrs.evolve(FIRST, successor="b1"))
        one._connection.execute("UPDATE groups SET epoch = 2")
        assert one.read("g")[0] == attrs.evolve(FIRST, epoch=2)


def test_changes_of_the_group_are_remembered_with_it(path: Path) -> None:
    with opened(path) as one:
        one.found("g", FIRST, by="b1", wall_ms=5)
        one.found("g", FIRST, by="b2", wall_ms=6)
        one.replace("g", FIRST, SECOND, by="b1", wall_ms=7)
        barred = attrs.evolve(SECOND.barring(Bar("b2", "guest", "today")), version=3)
        one.replace("g", SECOND, barred, wall_ms=8)
        told = [(entry.wall_ms, entry.version, entry.by, entry.what) for entry in one.history("g")]
        assert told[:2] == [(5, 1, "b1", "founded by b1"), (7, 2, "b1", "b2 joins the set")]
        assert told[2][:3] == (8, 3, "")
        assert "b2 leaves the set; barred [] -> [{" in told[2][3]
        held = barred
        for number in range(MAX_HISTORY):
            after = attrs.evolve(held, version=held.version + 1)
            one.replace("g", held, after, wall_ms=10 + number)
            held = after
        assert [entry.wall_ms for entry in one.history("g")] == list(range(10, 10 + MAX_HISTORY))
    FileAdmin(path, "g").force("b2", ("b2",), expected=held)
    assert FileAdmin(path, "g").history()[-1].what == "forced: b2 is the base"


def test_a_store_of_an_older_program_is_gone_on_with(path: Path) -> None:
    """The older store has the same schema version and fewer tables; its program leaves the others alone."""
    with opened(path) as one:
        one.found("g", FIRST)
        for table in ("claims", "damaged", "successors", "barred", "history"):
            one._connection.execute(f"DROP TABLE {table}")
    with opened(path, create=False, read_only=True) as reader:
        assert reader.read("g") == (FIRST, {})
    with opened(path) as one:
        damaged = attrs.evolve(SECOND, damaged=SECOND.with_damage("b2", "all of it"))
        assert one.replace("g", FIRST, damaged) == (True, damaged)
        assert one.read("g")[0] == damaged


def test_blockers_that_are_not_utf_8_are_published_in_escaped_form(path: Path) -> None:
    """The row was never written, and the store counted as lost again and again: a name of a queue was enough."""
    row = BrokerRow(info=info("b1", blockers="queue 'm\udcfcll': é"), process=this_process(), lease_until_ms=5)
    with opened(path) as one:
        one.publish("g", row)
        assert one.read("g")[1]["b1"].info.blockers == r"queue 'm\udcfcll': é"


def this_process_as(pid: int, **changes: Any) -> Process:
    return attrs.evolve(this_process(), **({"pid": pid} | changes))


def test_others_commits_are_noticed(path: Path) -> None:
    with opened(path) as one, opened(path) as other:
        before = one.changes
        assert one.changes == before
        other.found("g", FIRST)
        assert one.changes != before


def test_the_group_is_synced_before_the_answer_and_leases_are_not(path: Path) -> None:
    with opened(path) as one:
        row = BrokerRow(info=info("b1"), process=this_process(), lease_until_ms=1)

        def level() -> int:
            return int(one._connection.execute("PRAGMA synchronous").fetchone()[0])

        one.found("g", FIRST)
        assert level() == 2  # FULL
        one.publish("g", row)
        assert level() == 1  # NORMAL
        one.replace("g", FIRST, SECOND)
        assert level() == 2
        assert one._connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert one._connection.execute("PRAGMA wal_autocheckpoint").fetchone()[0] == 0


def test_the_wal_is_written_back_and_does_not_grow(path: Path) -> None:
    with opened(path) as one, opened(path) as other:
        row = BrokerRow(info=info("b1"), process=this_process(), lease_until_ms=1)
        wal = path.with_name(path.name + "-wal")
        largest = 0
        for n in range(3 * store.CHECKPOINT_COMMITS):
            one.publish("g", attrs.evolve(row, lease_until_ms=n))
            assert other.read("g")[1]["b1"].lease_until_ms == n
            largest = max(largest, wal.stat().st_size)
        assert largest <= (store.CHECKPOINT_COMMITS + 20) * 4_200


def test_a_reader_that_was_stopped_does_not_hold_up_the_writers(path: Path) -> None:
    """Every 256th commit waited for it as long as for a writer, and all others meanwhile."""
    busy_ms = 10_000
    with opened(path, busy_ms=busy_ms) as one, opened(path, read_only=True, create=False) as reader:
        row = BrokerRow(info=info("b1"), process=this_process(), lease_until_ms=1)
        wal = path.with_name(path.name + "-wal")
        one.publish("g", row)
        with reader._snapshot():
            reader._brokers("g")
            began_ms = machine_ms()
            for _ in range(store.CHECKPOINT_COMMITS):
                one.publish("g", row)
            assert machine_ms() - began_ms < busy_ms
        assert one._connection.execute("PRAGMA busy_timeout").fetchone() == (busy_ms,)
        for _ in range(store.CHECKPOINT_COMMITS):
            one.publish("g", row)
        assert wal.stat().st_size < store.CHECKPOINT_COMMITS * 4_200  # what could not be emptied was so later


def test_a_checkpoint_that_fails_waits_for_writers_again(path: Path) -> None:
    with opened(path, busy_ms=1_234) as one:
        failing = Failing(one._connection)
        one._connection = cast("sqlite3.Connection", failing)
        one._checkpoint()
        assert failing.failed
        assert one._connection.execute("PRAGMA busy_timeout").fetchone() == (1_234,)


class Failing:
    """A connection on which no checkpoint succeeds."""

    def __init__(self, real: sqlite3.Connection) -> None:
        self._real = real
        self.failed = 0
        self.close = real.close

    def execute(self, statement: str) -> sqlite3.Cursor:
        if "checkpoint" in statement:
            self.failed += 1
            raise sqlite3.OperationalError("disk I/O error")
        return self._real.execute(statement)


def test_a_transaction_that_fails_leaves_nothing(path: Path) -> None:
    with opened(path) as one:
        one.found("g", FIRST)
        with pytest.raises(StoreError):
            one.replace("g", FIRST, attrs.evolve(SECOND, members=cast("tuple[str, ...]", object())))
        assert one.read("g")[0] == FIRST
        assert one.replace("g", FIRST, SECOND)[0]


def test_a_store_held_by_others_is_busy_and_unchanged(path: Path) -> None:
    with opened(path) as one, opened(path, busy_ms=50) as other:
        one.found("g", FIRST)
        one._connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusyError, match=r"store\.db is held by another process") as caught:
            other.replace("g", FIRST, SECOND)
        assert caught.value.retriable
        assert other.read("g")[0] == FIRST  # readers do not wait
        one._connection.execute("ROLLBACK")
        assert other.replace("g", FIRST, SECOND) == (True, SECOND)


# ------------------------------------------------------------------------------------------------------------- errors


def make_foreign(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE accounts (owner TEXT)")
    connection.close()


def make_newer(path: Path) -> None:
    with opened(path) as one:
        one._connection.execute("PRAGMA user_version = 7")


def make_partial(path: Path) -> None:
    with opened(path) as one:
        one._connection.execute("DROP TABLE brokers")


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda path: path.write_bytes(b"broker: b1\n" * 100), "not a database"),
        (lambda path: path.mkdir(), "is no file"),
        (make_foreign, "database of another program"),
        (make_newer, "schema version 7, this program knows version 2"),
        (make_partial, "lacks the tables brokers"),
    ],
)
def test_a_file_that_is_no_store_is_refused_by_name_and_left_alone(
    path: Path, spoil: Callable[[Path], Any], problem: str
) -> None:
    spoil(path)
    before = path.read_bytes() if path.is_file() else None
    for options in ({"create": True}, {"create": False}, {"read_only": True, "create": False}):
        with pytest.raises(StoreError, match=problem) as caught, opened(path, **options):
            pass
        assert str(path) in str(caught.value)
    assert (path.read_bytes() if path.is_file() else None) == before


def test_a_missing_file_is_made_only_on_request(path: Path) -> None:
    for options in ({"create": False}, {"read_only": True, "create": False}):
        with pytest.raises(StoreError, match="does not exist"), opened(path, **options):
            pass
    assert not path.exists()
    deep = path.parent / "not" / "there" / "yet.db"
    with opened(deep) as one:
        one.found("g", FIRST)
    with opened(deep, create=False) as one:
        assert one.read("g")[0] == FIRST


def test_the_name_of_each_directory_above_a_new_file_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power failure may take the file away, with a promotion that was answered."""
    synced: list[Path] = []
    monkeypatch.setattr(file_storage, "_sync_directory", synced.append)
    with opened(tmp_path / "a" / "b" / "store.db"):
        assert synced == [tmp_path, tmp_path / "a"]


def test_an_empty_file_is_a_new_store_to_who_may_make_one(path: Path) -> None:
    path.touch()
    with pytest.raises(StoreError, match="is empty"), opened(path, create=False, read_only=True):
        pass
    with opened(path) as one:
        assert one.found("g", FIRST)[0]


def test_a_directory_that_cannot_be_made_is_named(path: Path) -> None:
    path.write_text("in the way")
    with pytest.raises(StoreError, match=r"store.db/x.db: its directory cannot be made"), opened(path / "x.db"):
        pass


def test_a_row_that_was_not_written_by_us_is_an_error_and_no_crash(path: Path) -> None:
    with opened(path) as one:
        one.found("g", FIRST)
        one._connection.execute("UPDATE groups SET members = 'b1, b2'")
        with pytest.raises(StoreError, match="not written by this program"):
            one.read("g")


# ----------------------------------------------------------------------------------------------------------- processes


def run_script(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@contextmanager
def processes(*started: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def rest(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.read()


def say(process: subprocess.Popen[str], text: str = "") -> None:
    assert process.stdin is not None
    process.stdin.write(text + "\n")
    process.stdin.flush()


PROMOTE_OFTEN = """
    import sys, time
    from pathlib import Path
    import attrs
    from understudy.ha.store.coordination import GroupState
    from understudy.ha.store.edge.local.store import CoordinationStore, StoreBusyError

    path, name, wins = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    print("ready", flush=True)
    sys.stdin.readline()

    def persistently(action):
        while True:
            try:
                return action()
            except StoreBusyError:
                pass

    store = persistently(lambda: CoordinationStore(path, create=True))
    first = GroupState(epoch=0, primary="", members=("b1",), version=0, min_insync=1)
    persistently(lambda: store.found("g", first))
    won = 0
    while won < wins:
        held = store.read("g")[0]
        wanted = attrs.evolve(held, epoch=held.epoch + 1, version=held.version + 1, primary=name)
        done, after = persistently(lambda: store.replace("g", held, wanted))
        assert done == (after == wanted)
        if done:
            won += 1
            print(wanted.epoch, flush=True)
            time.sleep(0.0005)  # SQLite serves nobody in turn: who writes without a pause starves the others
    store.close()
"""


@pytest.mark.integration
def test_of_processes_that_race_for_an_epoch_one_wins_it(path: Path) -> None:
    """The processes make the file together as well."""
    racers = [run_script(PROMOTE_OFTEN, path, f"b{n}", 60) for n in range(4)]
    with processes(*racers):
        for racer in racers:
            assert line(racer) == "ready"
        for racer in racers:
            say(racer)
        won = [int(epoch) for racer in racers for epoch in rest(racer).split()]
        assert [racer.wait() for racer in racers] == [0, 0, 0, 0]
    assert sorted(won) == list(range(1, 241))
    state, _ = FileAdmin(path, "g").read()
    assert state is not None
    assert (state.epoch, state.version) == (240, 240)


@pytest.mark.integration
def test_what_was_answered_survives_kill_9_of_the_writers(path: Path) -> None:
    for _ in range(5):
        racers = [run_script(PROMOTE_OFTEN, path, f"b{n}", 100_000) for n in range(2)]
        with processes(*racers):
            for racer in racers:
                assert line(racer) == "ready"
                say(racer)
            said = [int(line(racers[0])) for _ in range(20)]
            for racer in racers:
                racer.kill()
            said += [int(epoch) for racer in racers for epoch in rest(racer).split()]
        state, _ = FileAdmin(path, "g").read()
        assert state is not None
        assert state.epoch >= max(said)
        assert state.epoch == state.version
        with opened(path) as one:
            assert one._connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


# ---------------------------------------------------------------------------------------------------- who counts as alive


def test_a_lease_that_has_ended_or_is_of_another_boot_is_dead() -> None:
    me, now_ms = this_process(), 1_000
    row = BrokerRow(info=info("b1"), process=me, lease_until_ms=1_001)
    assert is_alive(row, me, now_ms)
    assert not is_alive(row, me, 1_001)
    assert not is_alive(attrs.evolve(row, process=attrs.evolve(me, boot="yesterday")), me, now_ms)


def test_a_process_is_known_by_number_and_start() -> None:
    me, now_ms = this_process(), 1_000
    parent = BrokerRow(info=info("b1"), process=this_process_as(os.getppid(), started=0), lease_until_ms=2_000)
    assert is_alive(parent, me, now_ms)  # its start is not known
    started = local_processes._started(os.getppid())
    assert started
    assert is_alive(attrs.evolve(parent, process=this_process_as(os.getppid(), started=started)), me, now_ms)
    assert not is_alive(attrs.evolve(parent, process=this_process_as(os.getppid(), started=started - 1)), me, now_ms)


def test_a_former_process_of_the_observers_own_number_is_dead() -> None:
    """A broker that is process 1 of its container did not start again after kill -9: it "already runs, as process 1"."""
    me, now_ms = this_process_as(1, started=500), 1_000
    row = BrokerRow(info=info("b1"), process=me, lease_until_ms=2_000)
    assert is_alive(row, me, now_ms)
    assert not is_alive(attrs.evolve(row, process=attrs.evolve(me, started=400)), me, now_ms)
    assert is_alive(attrs.evolve(row, process=attrs.evolve(me, started=0)), me, now_ms)  # its start is not known
    assert is_alive(row, attrs.evolve(me, started=0), now_ms)


@pytest.mark.integration
def test_a_zombie_and_a_number_that_nobody_has_are_dead_unless_the_namespace_is_another() -> None:
    me, now_ms = this_process(), 1_000
    child = run_script("input()")
    row = BrokerRow(info=info("b1"), process=this_process_as(child.pid, started=0), lease_until_ms=2_000)
    assert is_alive(row, me, now_ms)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and not reaped
    assert not is_alive(row, me, now_ms)
    with processes(child):
        child.wait()
        assert not is_alive(row, me, now_ms)
    elsewhere = attrs.evolve(row, process=attrs.evolve(row.process, pid_namespace="pid:[1]"))
    assert is_alive(elsewhere, me, now_ms)


def test_the_name_of_a_process_may_contain_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.read_text

    def read_text(self: Path, *arguments: Any, **options: Any) -> str:
        text = real(self, *arguments, **options)
        return (
            text.replace(text[text.index("(") : text.rindex(")") + 1], "(Z) 1 2 (3)") if self.name == "stat" else text
        )

    expected = local_processes._started(os.getpid())
    monkeypatch.setattr(Path, "read_text", read_text)
    assert local_processes._started(os.getpid()) == expected


# ---------------------------------------------------------------------------------------------------------- the port


class Listener:
    """Notes what it is told, and lets a test wait for a fact."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.turns = 0
        self._changed = asyncio.Event()

    def turn(self) -> None:
        self.turns += 1
        self._changed.set()

    def group_changed(self, group: GroupState | None, brokers: dict[str, BrokerInfo]) -> None:
        self.events.append(("changed", group, brokers))

    def answered(self, request: int, answer: Answer, group: GroupState | None) -> None:
        self.events.append(("answered", request, answer, group))

    def coordination_lost(self) -> None:
        self.events.append(("lost",))

    def coordination_regained(self) -> None:
        self.events.append(("regained",))

    def kinds(self) -> list[str]:
        return [event[0] for event in self.events]

    def answers(self) -> list[tuple[Any, ...]]:
        return [event[1:] for event in self.events if event[0] == "answered"]

    def shown(self) -> tuple[GroupState | None, dict[str, BrokerInfo]]:
        found: tuple[GroupState | None, dict[str, BrokerInfo]] = [e[1:] for e in self.events if e[0] == "changed"][-1]
        return found

    def alive(self) -> set[str]:
        return {name for name, shown in self.shown()[1].items() if shown.alive}

    def sees(self, *brokers: str) -> bool:
        return self.alive() == set(brokers)

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def coordination(
    path: Path, broker: str = "b1", **options: Any
) -> AsyncIterator[tuple[FileCoordination, Listener]]:
    listener = Listener()
    one = FileCoordination(path, "g", broker, listener, listener.turn, **({"poll_ms": 10} | options))
    await one.start()
    try:
        yield one, listener
    finally:
        await one.stop()


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    factory = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop
    return lambda main: run_with(factory, main)


@pytest.fixture
def run_once() -> Run:
    return lambda main: run_with(asyncio.new_event_loop, main)


Run = Callable[[Callable[[], Awaitable[None]]], None]


def run_with(factory: Callable[[], asyncio.AbstractEventLoop], main: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await main()

    with asyncio.Runner(loop_factory=factory) as runner:
        problems: list[dict[str, Any]] = []
        runner.get_loop().set_exception_handler(lambda _, context: problems.append(context))
        runner.run(limited())
        assert problems == []


def test_nothing_is_told_while_nothing_changes_though_leases_are_renewed(run_once: Run, path: Path) -> None:
    async def main() -> None:
        async with coordination(path, "b1", lease_ms=90) as (one, listener), coordination(path, "b2") as (two, _):
            one.publish(info("b1"))
            two.publish(info("b2"))
            await listener.until(lambda: listener.alive() == {"b1", "b2"})
            until_ms = lease_of(path, "b1")
            told = len(listener.events)
            await polled(lambda: lease_of(path, "b1") >= until_ms + 200)
            assert len(listener.events) == told

    run_once(main)


def lease_of(path: Path, broker: str) -> int:
    with opened(path, create=False, read_only=True) as one:
        return one.read("g")[1][broker].lease_until_ms


async def renewed(path: Path, broker: str) -> None:
    until_ms = lease_of(path, broker)
    await polled(lambda: lease_of(path, broker) > until_ms)


async def polled(holds: Callable[[], bool]) -> None:
    """For what nobody is told of."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def test_a_broker_that_stops_gives_up_its_lease(run: Run, path: Path) -> None:
    async def main() -> None:
        async with coordination(path, "b1") as (_, listener):
            async with coordination(path, "b2", lease_ms=3_600_000) as (two, _):
                two.publish(info("b2"))
                await listener.until(lambda: listener.alive() == {"b2"})
            await listener.until(lambda: listener.alive() == set())
            assert "b2" in listener.shown()[1]  # where it was is still known

    run(main)


def test_nothing_is_told_after_stop(run: Run, path: Path) -> None:
    async def main() -> None:
        async with coordination(path) as (one, listener):
            for request in range(100):
                one.read(request)
        told = list(listener.events)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert listener.events == told

    run(main)


def test_who_has_no_primary_looks_more_often(run_once: Run, path: Path) -> None:
    async def main() -> None:
        async with coordination(path, poll_ms=3_600_000, urgent_poll_ms=5) as (one, listener), coordination(path, "b2"):
            with opened(path) as another:
                await listener.until(lambda: listener.kinds() == ["changed"])
                one.publish(info("b1", status="joining"))
                another.found("g", FIRST)
                await listener.until(lambda: listener.shown()[0] == FIRST)
                one.publish(info("b1", status="ready"))
                await polled(lambda: one._worker._look_at_ms > machine_ms() + 3_000_000)

    run_once(main)


# ------------------------------------------------------------------------------------------------------------- trouble


def test_a_request_that_finds_the_file_held_is_lost_and_the_loop_goes_on(run: Run, path: Path) -> None:
    async def main() -> None:
        async with coordination(path, busy_ms=100) as (one, listener):
            one.found(1, FIRST)
            await listener.until(listener.answers)
            holder = sqlite3.connect(path, isolation_level=None)
            holder.execute("BEGIN IMMEDIATE")
            one.replace(2, FIRST, SECOND)
            laps = 0
            while len(listener.answers()) < 2:
                await asyncio.sleep(0.001)
                laps += 1
            assert laps > 20
            assert listener.answers()[1] == (2, Answer.LOST, None)
            assert "lost" in listener.kinds()
            assert "regained" not in listener.kinds()[: listener.kinds().index("lost")]
            holder.execute("ROLLBACK")
            holder.close()
            one.read(3)
            await listener.until(lambda: len(listener.answers()) == 3)
            assert listener.answers()[2] == (3, Answer.DONE, FIRST)
            await listener.until(lambda: listener.kinds()[-1] == "regained" or listener.kinds().count("regained"))
            assert one.trouble == ""

    run(main)


def test_requests_that_waited_too_long_are_lost_and_not_begun(
    run_once: Run, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []
    real = CoordinationStore.replace

    def replace(self: CoordinationStore, *arguments: Any, **more: Any) -> Any:
        begun.append(arguments)
        return real(self, *arguments, **more)

    monkeypatch.setattr(CoordinationStore, "replace", replace)

    async def main() -> None:
        async with coordination(path, busy_ms=100) as (one, listener):
            one.found(1, FIRST)
            await listener.until(listener.answers)
            holder = sqlite3.connect(path, isolation_level=None)
            holder.execute("BEGIN IMMEDIATE")
            for request in range(2, 8):
                one.replace(request, FIRST, SECOND)
            await listener.until(lambda: len(listener.answers()) == 7)
            assert len(begun) <= 2
            assert {answer[1] for answer in listener.answers()[1:]} == {Answer.LOST}
            holder.execute("ROLLBACK")
            holder.close()
            one.read(8)
            await listener.until(lambda: len(listener.answers()) == 8)
            assert listener.answers()[7] == (8, Answer.DONE, FIRST)

    run_once(main)


def test_a_file_that_is_taken_away_is_lost_and_nothing_is_written_to_it(run: Run, path: Path) -> None:
    async def main() -> None:
        async with coordination(path) as (one, listener):
            one.found(1, FIRST)
            await listener.until(listener.answers)
            away = path.parent / "away"
            away.mkdir()
            for file in path.parent.glob(path.name + "*"):
                file.rename(away / file.name)
            one.replace(2, FIRST, SECOND)
            await listener.until(lambda: len(listener.answers()) == 2)
            assert listener.answers()[1] == (2, Answer.LOST, None)
            assert listener.kinds().count("lost") == 1
            assert str(path) in one.trouble
            for file in away.iterdir():
                file.rename(path.parent / file.name)
            await listener.until(lambda: listener.kinds().count("regained"))
            one.replace(3, FIRST, SECOND)
            await listener.until(lambda: len(listener.answers()) == 3)
            assert listener.answers()[2] == (3, Answer.DONE, SECOND)

    run(main)


def test_a_directory_that_may_not_be_entered_for_a_while_is_lost_for_a_while(
    run: Run, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store used to be lost for ever: its thread ended unnoticed, and its broker could not lead before a restart."""
    refused = threading.Event()
    real = Path.stat

    def stat(self: Path, **options: Any) -> os.stat_result:
        if refused.is_set() and self == path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return real(self, **options)

    monkeypatch.setattr(Path, "stat", stat)

    async def main() -> None:
        async with coordination(path) as (one, listener):
            one.found(1, FIRST)
            await listener.until(listener.answers)
            refused.set()
            one.replace(2, FIRST, SECOND)
            await listener.until(lambda: len(listener.answers()) == 2)
            assert listener.answers()[1] == (2, Answer.LOST, None)
            one.replace(3, FIRST, SECOND)  # the file is closed by now
            await listener.until(lambda: len(listener.answers()) == 3)
            assert "Permission denied" in one.trouble
            refused.clear()
            await listener.until(lambda: listener.kinds().count("regained"))
            one.replace(4, FIRST, SECOND)
            await listener.until(lambda: len(listener.answers()) == 4)
            assert listener.answers()[3] == (4, Answer.DONE, SECOND)

    run(main)


@pytest.mark.parametrize("poll_ms", [10, 0])
def test_looks_that_take_longer_than_the_time_between_them_keep_nobody_waiting(
    run_once: Run, path: Path, monkeypatch: pytest.MonkeyPatch, poll_ms: int
) -> None:
    """The next look was always due: no request was answered, no lease renewed, and the end not heard. 0: always due as well."""
    looked_ms = 0
    real = cast("property", CoordinationStore.changes).fget
    assert real is not None

    def changes(self: CoordinationStore) -> int:
        nonlocal looked_ms
        looked_ms += 20
        return int(real(self))

    monkeypatch.setattr(CoordinationStore, "changes", property(changes))
    for module in ("file_coordination", "worker"):
        monkeypatch.setattr(f"understudy.ha.store.edge.local.{module}.machine_ms", lambda: machine_ms() + looked_ms)

    async def main() -> None:
        async with coordination(path, poll_ms=poll_ms, busy_ms=60_000, lease_ms=3_600_000) as (one, listener):
            one.found(1, FIRST)
            one.publish(info("b1"))
            await listener.until(lambda: listener.answers() and listener.shown()[1])
            assert listener.answers() == [(1, Answer.DONE, FIRST)]
            one._worker.put(None)
            thread = one._worker._thread
            assert thread is not None
            await asyncio.to_thread(thread.join, LIMIT_S)
            assert not thread.is_alive()

    run_once(main)


def test_a_thread_that_ends_of_a_mistake_is_no_silence(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(self: CoordinationStore, *_: Any, **__: Any) -> Any:
        raise KeyError("never")

    monkeypatch.setattr(CoordinationStore, "found", found)
    raised: list[Any] = []

    async def main() -> None:
        seen = asyncio.Event()

        def notice(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            raised.append(context["exception"])
            seen.set()

        asyncio.get_running_loop().set_exception_handler(notice)
        async with coordination(path) as (one, _):
            one.found(1, FIRST)
            async with asyncio.timeout(LIMIT_S):
                await seen.wait()

    asyncio.run(main())
    assert str(raised) == "[RuntimeError('the coordination thread has ended')]"
    assert str(raised[0].__cause__) == "'never'"


def test_a_thread_that_hangs_is_a_lost_store(run_once: Run, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that does not come back answers nothing, not even LOST; but it is said that it is lost."""
    hangs, goes_on = threading.Event(), threading.Event()
    real = CoordinationStore.found

    def found(self: CoordinationStore, *arguments: Any, **named: Any) -> Any:
        hangs.set()
        assert goes_on.wait(LIMIT_S)
        return real(self, *arguments, **named)

    monkeypatch.setattr(CoordinationStore, "found", found)

    async def main() -> None:
        async with coordination(path, lease_ms=150) as (one, listener):
            one.found(1, FIRST)
            await listener.until(lambda: "lost" in listener.kinds())
            assert hangs.is_set()
            assert "has not answered" in one.trouble
            assert listener.answers() == []
            goes_on.set()
            await listener.until(lambda: "regained" in listener.kinds())
            await listener.until(listener.answers)

    run_once(main)


def test_a_store_that_cannot_be_used_fails_the_start(run: Run, path: Path) -> None:
    path.write_bytes(b"something else" * 100)

    async def main() -> None:
        listener = Listener()
        one = FileCoordination(path, "g", "b1", listener, listener.turn)
        with pytest.raises(StoreError, match="not a database"):
            await one.start()
        await one.stop()
        assert listener.events == []

    run(main)


def test_stop_without_start(run_once: Run, path: Path) -> None:
    async def main() -> None:
        listener = Listener()
        await FileCoordination(path, "g", "b1", listener, listener.turn).stop()

    run_once(main)


# ------------------------------------------------------------------------------------------------------- other processes

BROKER = """
    import asyncio, sys, time
    from pathlib import Path
    from understudy.ha.store.coordination import BrokerInfo
    from understudy.ha.store.edge.local import FileCoordination

    path, name, lease_ms = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

    class Listener:
        def group_changed(self, group, brokers):
            if name in brokers and brokers[name].alive:
                print("published", flush=True)
        def answered(self, *answer): pass
        def coordination_lost(self): pass
        def coordination_regained(self): pass

    async def main():
        one = FileCoordination(path, "g", name, Listener(), lambda: None, lease_ms=lease_ms)
        await one.start()
        one.publish(BrokerInfo(broker=name, link="l", amqp="a"))
        await asyncio.to_thread(sys.stdin.readline)
        print("hangs", flush=True)
        time.sleep(3600)  # the loop hangs, the threads live

    asyncio.run(main())
"""


@pytest.mark.integration
def test_kill_9_is_seen_within_200_ms_and_long_before_the_lease_ends(run: Run, path: Path) -> None:
    async def main() -> None:
        async with coordination(path, "b1", poll_ms=100) as (_, listener):
            broker = run_script(BROKER, path, "b2", 3_600_000)
            with processes(broker):
                assert await asyncio.to_thread(line, broker) == "published"
                await listener.until(lambda: "b2" in listener.alive())
                broker.send_signal(signal.SIGKILL)
                killed = time.monotonic()
                await listener.until(lambda: "b2" not in listener.alive())  # though nobody has reaped it
                assert time.monotonic() - killed < 0.2

    run(main)


@pytest.mark.integration
def test_a_broker_that_is_stopped_loses_its_lease_and_gets_it_back(run_once: Run, path: Path) -> None:
    async def main() -> None:
        async with coordination(path, "b1") as (_, listener):
            broker = run_script(BROKER, path, "b2", 400)
            with processes(broker):
                await listener.until(lambda: "b2" in listener.alive())
                await renewed(path, "b2")
                broker.send_signal(signal.SIGSTOP)
                await listener.until(lambda: "b2" not in listener.alive())
                broker.send_signal(signal.SIGCONT)
                await listener.until(lambda: "b2" in listener.alive())

    run_once(main)


@pytest.mark.integration
def test_a_broker_whose_loop_hangs_loses_its_lease_though_its_thread_lives(run_once: Run, path: Path) -> None:
    async def main() -> None:
        async with coordination(path, "b1") as (_, listener):
            broker = run_script(BROKER, path, "b2", 400)
            with processes(broker):
                await listener.until(lambda: "b2" in listener.alive())
                await renewed(path, "b2")
                say(broker)
                await listener.until(lambda: "b2" not in listener.alive())

    run_once(main)


@pytest.mark.integration
def test_a_second_broker_of_the_same_name_does_not_start(run_once: Run, path: Path) -> None:
    async def main() -> None:
        broker = run_script(BROKER, path, "b1", 3_600_000)
        with processes(broker):
            assert await asyncio.to_thread(line, broker) == "published"
            with pytest.raises(StoreError, match=f"broker b1 of group g already runs, as process {broker.pid}"):
                async with coordination(path, "b1"):
                    pass
            broker.kill()
            await asyncio.to_thread(os.waitid, os.P_PID, broker.pid, os.WEXITED | os.WNOWAIT)
            async with coordination(path, "b1") as (one, listener):  # whoever is killed can be started again at once
                one.publish(info("b1"))
                await listener.until(lambda: listener.alive() == {"b1"})

    run_once(main)


def test_the_lease_of_a_container_that_is_gone_is_waited_for(run_once: Run, path: Path) -> None:
    with opened(path) as one:
        elsewhere = this_process_as(1, pid_namespace="pid:[1]")
        until_ms = machine_ms() + 300
        one.publish("g", BrokerRow(info=info("b1"), process=elsewhere, lease_until_ms=until_ms))

    async def main() -> None:
        async with coordination(path, "b1"):
            assert machine_ms() >= until_ms

    run_once(main)


# ------------------------------------------------------------------------------------------------------------ commands


@pytest.fixture
def skips_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lot says 0."""
    monkeypatch.setattr("understudy.ha.store.edge.local.store.secrets.randbelow", lambda bound: 0)


@pytest.mark.integration
@pytest.mark.usefixtures("skips_least")
def test_the_store_of_dead_brokers_can_be_read_and_forced(path: Path) -> None:
    broker = run_script(BROKER, path, "b1", 3_600_000)
    with processes(broker):
        assert line(broker) == "published"
        with opened(path) as one:
            one.found("g", FIRST)
        assert FileAdmin(path, "g").read()[1]["b1"].alive
        broker.kill()
        broker.wait()
    state, brokers = FileAdmin(path, "g").read()
    assert state == FIRST
    assert (brokers["b1"].link, brokers["b1"].alive) == ("l", False)
    forced = FileAdmin(path, "g").force("b2", ("b3", "b2"), seen_epoch=7, expected=FIRST, founding=5)
    wanted = GroupState(epoch=1_007, primary="b2", members=("b2", "b3"), version=2, min_insync=1, founding=5)
    assert forced == attrs.evolve(wanted, forced=1_007)
    assert FileAdmin(path, "g").read()[0] == forced
    again = FileAdmin(path, "g").force("b2", ("b2",), expected=forced, min_insync=2)
    assert (again.epoch, again.min_insync) == (2_007, 2)
    forced_since = [each.epoch for each in FileAdmin(path, "g").history() if each.what == "forced: b2 is the base"]
    assert forced_since == [1_007, 2_007]
    with pytest.raises(StoreError, match="has changed meanwhile"):
        FileAdmin(path, "g").force("b2", ("b2",), expected=forced)
    assert FileAdmin(path, "g").read()[0] == again


def test_two_stores_that_know_nothing_of_each_other_are_forced_to_different_epochs(tmp_path: Path) -> None:
    """Under one epoch the logs that two primaries write would be taken for one, as far as both go."""
    forced = {FileAdmin(tmp_path / f"{n}.sqlite", "g").force("b1", ("b1",), seen_epoch=4).epoch for n in range(5)}
    assert len(forced) > 1
    assert all(1_004 <= epoch < 10_004 for epoch in forced)


@pytest.mark.usefixtures("skips_least")
def test_a_store_that_is_lost_can_be_made_anew(path: Path) -> None:
    made = FileAdmin(path, "g").force("b1", ("b1",), seen_epoch=4, founding=(1 << 63) - 1)
    assert made == GroupState(
        epoch=1_004, primary="b1", members=("b1",), version=1, min_insync=1, founding=(1 << 63) - 1, forced=1_004
    )
    assert FileAdmin(path, "g").read()[0] == made


def test_whoever_belongs_to_no_group_founds_one_by_force(path: Path) -> None:
    foundings = {FileAdmin(path, name).force("b1", ("b1",)).founding for name in ("g", "h")}
    assert len(foundings) == 2
    assert min(foundings) > 0


def test_a_group_that_was_founded_anew_is_another_one(path: Path) -> None:
    """Epoch and version may be the same: whoever compares with the group of a former life changes nothing."""
    with opened(path) as store:
        held = attrs.evolve(FIRST, founding=7)
        assert store.found("g", held) == (True, held)
        former = attrs.evolve(held, founding=8)
        assert store.replace("g", former, attrs.evolve(former, epoch=2, version=2)) == (False, held)


def test_a_store_that_is_not_there_is_named(path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist") as caught:
        CoordinationStore(path, read_only=True)
    assert str(path) in str(caught.value)
