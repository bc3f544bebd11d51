"""Two programs work on one transaction. One of them, or the state server, is hit with SIGKILL at each step of the second program.

Afterwards both resource managers have what both programs did, or nothing of it, and nothing is in doubt.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import amqp
import psycopg
import pytest
from amqp.exceptions import AMQPError

from tests.integration.broker_process import STOP_TIMEOUT_S
from tests.integration.xa_place import JOB, QUEUE, Place, StateServerProcess, forked, killer, running_place
from tests.integration.xa_points import BOTH_FIRST_POINTS, BOTH_SECOND_POINTS, BOTH_SERVER_POINTS
from understudy.xa import (
    AsyncTransactionManager,
    JoinedTransaction,
    OutcomeUnknownError,
    ProgramsLateError,
    ProtocolError,
    RolledBackError,
    TicketError,
    Transaction,
    TransactionManager,
    XaError,
)
from understudy.xa.core.manager.ticket import Ticket, ticket_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def whole_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with running_place(tmp_path_factory.mktemp("xa")) as place:
        yield place


@pytest.fixture
def place(whole_place: Place) -> Place:
    if whole_place.state.ended:
        whole_place.state.start()
    return whole_place


def write(work: Transaction | JoinedTransaction) -> str:
    """The work of one program: a row and a message of the same text."""
    text = f"{work.gid}~{work.program}" if isinstance(work, JoinedTransaction) else work.gid
    work.resource("bank").execute("INSERT INTO ledger VALUES (%s)", (text,))
    work.resource("queues").basic_publish(amqp.Message(text, delivery_mode=2), exchange="", routing_key=QUEUE)
    return text


def joins(place: Place, ticket: str, on_step: Callable[[str], None] | None = None) -> None:
    """The second program."""
    with place.manager(on_step) as manager, manager.join(ticket) as part:
        write(part)


def test_both_commit_or_none(place: Place) -> None:
    before = place.agree()
    with place.manager() as first, place.manager() as second:
        with first.begin() as transaction:
            texts = {write(transaction)}
            ticket = transaction.ticket()
            for number in (1, 2):
                with second.join(ticket) as part:
                    assert part.program == number
                    texts.add(write(part))
                assert part.voted
            assert place.in_doubt() == {name: [transaction.gid] * 2 for name in ("bank", "queues")}
        assert place.agree() - before == texts
        with pytest.raises(RolledBackError, match="program 1: its block raised ZeroDivisionError"):
            both(first, second, raises="second")
        with pytest.raises(ZeroDivisionError):
            both(first, second, raises="first")
    assert place.agree() - before == texts


def both(first: TransactionManager, second: TransactionManager, *, raises: str = "") -> None:
    """A transaction of two programs; the block of one of them may raise ZeroDivisionError, which the first program survives."""
    with first.begin() as transaction:
        write(transaction)
        ticket = transaction.ticket()
        with contextlib.suppress(ZeroDivisionError), second.join(ticket) as part:
            write(part)
            if raises == "second":
                raise ZeroDivisionError
        if raises == "first":
            raise ZeroDivisionError


def test_a_program_that_is_late_is_named_and_its_vote_is_refused(place: Place) -> None:
    before = place.agree()
    manager = TransactionManager.from_file(place.profiles, "shop", job=JOB, join_timeout_s=0.1)
    with manager as first, place.manager() as second:
        transaction = first.begin()
        write(transaction)
        part = second.join(transaction.ticket())
        write(part)
        with pytest.raises(ProgramsLateError, match=r"no vote of program 1 within 0.1 s") as raised:
            transaction.commit()
        assert raised.value.programs == [1]
        with pytest.raises(ProtocolError, match="only that one commits"):
            part._run("commit", part._program.commit())
        with pytest.raises(RolledBackError, match="no vote of program 1"):
            part.vote()
    assert place.agree() == before


def test_a_ticket_that_cannot_be_used_is_named_and_nothing_is_touched(place: Place) -> None:
    with place.manager() as first, place.manager() as second, place.manager(job="other") as other:
        with first.begin() as transaction:
            write(transaction)
            ticket = transaction.ticket()
            told = ticket_of(ticket)
            (before,) = place.entries()
            for manager, bad, text in (
                (other, ticket, "is of job job, and this is job other"),
                (second, Ticket(told.gid, JOB, "store", told.fingerprint, "").text, "is of profile 'store'"),
                (second, "garbage", "'garbage' is no ticket"),
                (second, ticket[:-1], "is damaged"),
            ):
                with pytest.raises(TicketError, match=text):
                    manager.join(bad)
            assert place.entries() == [before]
        with pytest.raises(TicketError, match="is not known"):
            second.join(ticket)
        with first.begin() as decided:
            ticket = decided.ticket()
            write(decided)
            assert decided.vote() is None
            with pytest.raises(TicketError, match="is decided"):
                second.join(ticket)
    place.agree()


def test_a_ticket_of_another_state_server_names_both(place: Place, tmp_path: Path) -> None:
    elsewhere = StateServerProcess(tmp_path)
    elsewhere.start()
    text = place.profiles.read_text().replace(place.state.address, elsewhere.address)
    (tmp_path / "elsewhere.toml").write_text(text)
    stranger = TransactionManager.from_file(tmp_path / "elsewhere.toml", "shop", job=JOB)
    with place.manager() as first, stranger as second, first.begin() as transaction:
        write(transaction)
        addresses = f"server at {elsewhere.address} .*of the one at {place.state.address}"
        with pytest.raises(TicketError, match=addresses):
            second.join(transaction.ticket())
    elsewhere.stop()
    place.agree()


def test_a_connection_that_was_idle_while_the_state_server_restarted_is_replaced(place: Place) -> None:
    before = place.agree()
    with place.manager() as first, place.manager() as second:
        place.state.stop()
        place.state.start()
        both(first, second)
    assert len(place.agree() - before) == 2


def test_tasks_join(place: Place) -> None:
    before = place.agree()

    async def writes(work: Any, text: str) -> None:
        bank, queues = await work.resource("bank"), await work.resource("queues")
        await work.run(bank.execute, "INSERT INTO ledger VALUES (%s)", (text,))
        message = amqp.Message(text, delivery_mode=2)
        await work.run(queues.basic_publish, message, exchange="", routing_key=QUEUE)

    async def second(manager: AsyncTransactionManager, ticket: str, *, fails: bool) -> None:
        async with manager.join(ticket) as part:
            await writes(part, f"{part.gid}~{part.program}")
            if fails:
                raise InterruptedError

    async def both(*, fails: bool) -> str:
        async with AsyncTransactionManager.from_file(place.profiles, "shop", job=JOB) as manager:
            async with manager.begin() as transaction:
                await writes(transaction, transaction.gid)
                task = asyncio.ensure_future(second(manager, await transaction.ticket(), fails=fails))
                await asyncio.wait([task])
                assert isinstance(task.exception(), InterruptedError) == fails
            return transaction.gid

    gid = asyncio.run(both(fails=False))
    assert place.agree() - before == {gid, f"{gid}~1"}
    with pytest.raises(RolledBackError, match="program 1: its block raised InterruptedError"):
        asyncio.run(both(fails=True))
    assert len(place.agree() - before) == 2


# -- deaths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", BOTH_SECOND_POINTS)
def test_the_second_program_dies(place: Place, point: str) -> None:
    before = place.agree()
    rolled_back = False
    with place.manager() as manager:
        try:
            with manager.begin() as transaction:
                write(transaction)
                ticket = transaction.ticket()
                assert forked(lambda: joins(place, ticket, killer(point))) == -signal.SIGKILL
        except RolledBackError:
            rolled_back = True
        assert manager.recover() == []
    made = {"tell.enter.before": 1, "tell.vote.after": 2}.get(point, 0)
    assert len(place.agree() - before) == made
    assert rolled_back == (not made)


@pytest.mark.parametrize("point", BOTH_FIRST_POINTS)
def test_the_first_program_dies(place: Place, point: str) -> None:
    before = place.agree()
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        begins(place, writes, killer(point))
    os.close(writes)
    with os.fdopen(reads) as pipe:
        ticket = pipe.readline().strip()
    voted = False
    if ticket:
        try:
            joins(place, ticket)
            voted = True
        except (RolledBackError, TicketError):
            pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    place.recovered()
    decided = BOTH_FIRST_POINTS.index(point) >= BOTH_FIRST_POINTS.index("tell.decide.after")
    assert len(place.agree() - before) == 2 * decided
    assert voted or not decided


def begins(place: Place, pipe: int, on_step: Callable[[str], None]) -> None:
    """The first program, in a process of its own; it commits when the other one has joined."""
    try:
        with place.manager(on_step).begin() as transaction:
            write(transaction)
            os.write(pipe, transaction.ticket().encode() + b"\n")
            os.close(pipe)
            while not any(one.entry.programs for one in place.entries()):
                pass
    finally:
        os._exit(70)


def told_of_both(place: Place, *, fails: bool) -> str:
    """The outcome told to the first program of a transaction with the second one."""
    first, second = place.manager(), place.manager()
    try:
        both(first, second, raises="second" if fails else "")
    except RolledBackError:
        return "rolled back"
    except OutcomeUnknownError:
        return "unknown"
    except (XaError, psycopg.Error, AMQPError, OSError):
        return "failed"
    else:
        return "committed"
    finally:
        first.close()
        second.close()


ENGINE_POINTS = [
    *[(point, "") for point in BOTH_SERVER_POINTS],
    *[(point, engine) for engine in ("mirrored", "queue") for point in ("reply.vote.after", "sync.decide.after")],
]


@pytest.mark.parametrize(("point", "engine"), ENGINE_POINTS)
def test_the_state_server_dies(place: Place, tmp_path: Path, point: str, engine: str) -> None:
    url = {"mirrored": f"mirrored:{tmp_path}", "queue": f"amqp://127.0.0.1:{place.broker.port}"}.get(engine, "")
    before = place.agree()
    place.state.stop()
    place.state.start(crash=point, url=url)
    told = told_of_both(place, fails=".doom." in point)
    assert place.state.process is not None
    assert place.state.process.wait(STOP_TIMEOUT_S) == -signal.SIGKILL
    place.state.start(url=url)
    place.recovered()
    made = len(place.agree() - before)
    assert made in {"committed": (2,), "rolled back": (0,), "failed": (0,), "unknown": (0, 2)}[told], told
    if engine:
        assert made == 2 * (".decide." in point)
        place.state.stop()
        place.state.start()
