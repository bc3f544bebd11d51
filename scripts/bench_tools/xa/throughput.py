"""Transactions a second: two resource managers with a record, without one, and each resource manager alone.

All sides make the same work: one row, one persistent message of 64 octets, or both. In each round every side runs once, in an order
that rotates, so that ratios of one round compare what the same machine did within a minute.

    postgresql  INSERT, PREPARE TRANSACTION, COMMIT PREPARED, by psycopg alone
    broker      class 100: start, publish, end, prepare, commit
    both        the verbs on both, without a state server: what two-phase commit costs by itself
    sync-0      TransactionManager, state server with a group sync of 0 ms; sync-1, sync-5 alike
    journal     as sync-0, with a state server of engine journal in place of mirrored
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import amqp
import attrs

from bench_tools.errors import BenchError
from bench_tools.xa.place import JOURNAL, Place, profile_name
from bench_tools.xa.settings import JOB, QUEUE
from understudy.xa.core.codes import Answer, XaCode
from understudy.xa.core.manager.steps import Flag
from understudy.xa.core.xid import branch_of, global_id
from understudy.xa.manager import TransactionManager, read_profile
from understudy.xa.resource_managers.factory import make_resource_manager
from understudy.xa.resource_managers.port import ResourceManager

DELAYS_MS: Final = (0, 1, 5)
SIDES: Final = ("postgresql", "broker", "both", *(profile_name(delay) for delay in DELAYS_MS), JOURNAL)
WARMUP_S: Final = 0.5
CONNECT_S: Final = 60.0
Transact = Callable[[], object]


@attrs.frozen(kw_only=True)
class Cell:
    """One side with a number of clients, in one round."""

    side: str
    clients: int
    round: int
    rate: float
    median_ms: float


def run(place: Place, *, clients: Iterable[int], rounds: int, seconds: float, say: Callable[[str], None]) -> list[Cell]:
    """All cells.

    Raises:
        BenchError: a client ended, or a transaction failed.
    """
    cells = []
    for number in range(rounds):
        order = SIDES[number % len(SIDES) :] + SIDES[: number % len(SIDES)]
        for count in clients:
            for side in order:
                place.empty()
                cells.append(_cell(place, side, count, number, seconds))
                say(
                    f"round {number + 1}, {count} clients, {side}: {cells[-1].rate:.0f}/s, {cells[-1].median_ms:.1f} ms"
                )
    return cells


def _cell(place: Place, side: str, clients: int, number: int, seconds: float) -> Cell:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bench_tools.xa.throughput"])
    pipes, processes = [], []
    for _ in range(clients):
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, place.profiles, side), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    for pipe in pipes:
        _answer(pipe, side, CONNECT_S)
    begin = time.monotonic() + WARMUP_S
    for pipe in pipes:
        pipe.send((begin, begin + seconds))
    times: list[float] = []
    for pipe in pipes:
        times += _answer(pipe, side, CONNECT_S + seconds)
    for process in processes:
        process.join(CONNECT_S)
    return Cell(
        side=side, clients=clients, round=number, rate=len(times) / seconds, median_ms=statistics.median(times) * 1000
    )


def _answer(pipe: Connection, side: str, within_s: float) -> Any:
    try:
        if pipe.poll(within_s):
            return pipe.recv()
    except EOFError:
        pass
    raise BenchError(f"a client of {side} has ended, or gave no answer within {within_s:g} s")


# -- a client, in a process of its own ----------------------------------------------------------------------------------


def work(pipe: Connection, profiles: Path, side: str) -> None:
    """Connect, warm up, and make transactions in the given window; send how long each took, in seconds."""
    transact = _transact(profiles, side)
    transact()
    pipe.send("ready")
    begin, end = pipe.recv()
    times = []
    now = time.monotonic()
    while now < end:
        transact()
        before, now = now, time.monotonic()
        if before >= begin and now < end:
            times.append(now - before)
    pipe.send(times)


def _transact(profiles: Path, side: str) -> Transact:
    if side == JOURNAL or side.startswith("sync-"):
        manager = TransactionManager.from_file(profiles, side, job=f"{JOB}-{uuid.uuid4().hex}")
        return lambda: _managed(manager)
    profile = read_profile(profiles, profile_name(DELAYS_MS[0]))
    bank, queues = (make_resource_manager(profile.resource(name)) for name in ("bank", "queues"))
    if side == "postgresql":
        bank.open()
        return lambda: _by_psycopg(bank.resource)
    used = [queues] if side == "broker" else [bank, queues]
    for resource in used:
        resource.open()
    return lambda: _by_verbs(used)


def _gid() -> str:
    return global_id(uuid.uuid1().bytes, uuid.uuid4().bytes)


def _insert(connection: Any, gid: str) -> None:
    connection.execute("INSERT INTO ledger VALUES (%s)", (gid,))


def _publish(channel: Any, gid: str) -> None:
    channel.basic_publish(amqp.Message(gid, delivery_mode=2), exchange="", routing_key=QUEUE)


def _managed(manager: TransactionManager) -> None:
    with manager.begin() as transaction:
        _insert(transaction.resource("bank"), transaction.gid)
        _publish(transaction.resource("queues"), transaction.gid)


def _by_psycopg(connection: Any) -> None:
    gid = _gid()
    connection.tpc_begin(connection.xid(1, gid, "bank"))
    _insert(connection, gid)
    connection.tpc_prepare()
    connection.tpc_commit()


def _by_verbs(resources: Sequence[ResourceManager]) -> None:
    gid = _gid()
    xids = {one: branch_of(gid, one.name, JOB) for one in resources}
    for one in resources:
        _must(one.start(xids[one], Flag.NONE))
        (_insert if one.name == "bank" else _publish)(one.resource, gid)
    for one in resources:
        _must(one.end(xids[one], Flag.NONE))
    for one in resources:
        _must(one.prepare(xids[one]))
    for one in resources:
        _must(one.commit(xids[one], one_phase=False))


def _must(answer: Answer) -> None:
    if answer.code is not XaCode.OK:
        raise BenchError(f"a resource manager answered {answer}")


# -- figures ------------------------------------------------------------------------------------------------------------


def table(cells: Sequence[Cell]) -> str:
    """Medians over the rounds, and the median ratio to sync-0 of the same round."""
    counts = sorted({cell.clients for cell in cells})
    head = "".join(f" {count} clients: per s | median | to sync-0 |" for count in counts)
    lines = [f"| side |{head}", "|---|" + "---|" * 3 * len(counts)]
    for side in SIDES:
        row = f"| {side} |"
        for count in counts:
            here = [cell for cell in cells if (cell.side, cell.clients) == (side, count)]
            base = {cell.round: cell.rate for cell in cells if (cell.side, cell.clients) == (profile_name(0), count)}
            rate = statistics.median(cell.rate for cell in here)
            ms = statistics.median(cell.median_ms for cell in here)
            ratio = statistics.median(cell.rate / base[cell.round] for cell in here)
            row += f" {rate:,.0f} | {ms:.1f} ms | {ratio:.2f} |"
        lines.append(row)
    return "\n".join(lines)
