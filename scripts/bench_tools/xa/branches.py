"""Prepared branches by the thousand: what list, restart, failover and recovery cost, by their number.

The branches are left as a killed program leaves them: recorded at the state server, prepared in PostgreSQL and in the broker; every
second transaction is decided. Then servers are killed and started again, and the job recovers.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

import amqp
import attrs
import psycopg
from psycopg import sql

from bench_tools.errors import BenchError
from bench_tools.xa.place import Place
from bench_tools.xa.settings import JOB, QUEUE
from understudy.xa.core.codes import XaCode
from understudy.xa.core.errors import XaError
from understudy.xa.core.manager.steps import Flag
from understudy.xa.core.register.wire import Begin, Decide, Ok
from understudy.xa.core.xid import branch_of, global_id
from understudy.xa.demo.stage import understudy
from understudy.xa.manager import read_profile
from understudy.xa.resource_managers.port import ResourceManager
from understudy.xa.resource_managers.postgresql import advisory_lock_of, native_xid
from understudy.xa.sockets.link import StateLink

AGAIN_S: Final = 0.01
LISTED_S: Final = 300.0
ROWS: Final = (
    "prepare all",
    "xa list",
    "state server: killed to listed",
    "broker: killed to listed",
    "PostgreSQL: killed to listed",
    "group of three: primary killed to listed",
    "recovery of the job",
    "recovery, each of the first tenth",
    "recovery, each of the last tenth",
)


@attrs.define
class Figures:
    """Of one number of branches: name of a row to seconds."""

    number: int
    seconds: dict[str, float] = attrs.field(factory=dict)


def measure(place: Place, number: int, say: Callable[[str], None]) -> Figures:
    """Leave so many transactions, measure, and recover them.

    Raises:
        BenchError: a list is not complete, or a branch remains.
    """
    figures = Figures(number)

    def timed(name: str, call: Callable[[], object]) -> None:
        began = time.monotonic()
        call()
        figures.seconds[name] = time.monotonic() - began
        say(f"{number} branches: {name}: {figures.seconds[name]:.2f} s")

    gids = [global_id(uuid.uuid1().bytes, uuid.uuid4().bytes) for _ in range(number)]
    timed("prepare all", lambda: _prepare_all(place, gids))
    timed("xa list", lambda: _list(place, number))
    timed("state server: killed to listed", lambda: _restart_state_server(place, number))
    timed("broker: killed to listed", lambda: _restart(place, place.broker, "queues", number))
    timed("PostgreSQL: killed to listed", lambda: _restart(place, place.postgresql, "bank", number))
    done: list[float] = []
    timed("recovery of the job", lambda: _recover(place, number, done))
    part = number // 10
    figures.seconds["recovery, each of the first tenth"] = (done[part] - done[0]) / part
    figures.seconds["recovery, each of the last tenth"] = (done[-1] - done[-1 - part]) / part
    _check_nothing_left(place, gids)
    return figures


# -- what a killed program leaves ---------------------------------------------------------------------------------------


def _prepare_all(place: Place, gids: Sequence[str]) -> None:
    """At the three servers at once, each by a thread."""
    parts = (_record, _prepare_in_bank, _prepare_in_queues)
    failures: list[Exception] = []

    def run(part: Callable[[Place, Sequence[str]], None]) -> None:
        try:
            part(place, gids)
        except Exception as error:  # noqa: BLE001  # said by the thread that waits
            failures.append(error)

    threads = [threading.Thread(target=run, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise BenchError(f"the branches could not be prepared: {failures[0]}")


def _link(place: Place, job: str) -> StateLink:
    profile = read_profile(place.profiles, "sync-0")
    return StateLink(profile.state_server, job=job, profile=profile.name, fingerprint=profile.fingerprint)


def _record(place: Place, gids: Sequence[str]) -> None:
    with _link(place, JOB) as link:
        for at, gid in enumerate(gids):
            requests = (Begin(gid, ["bank", "queues"]), *((Decide(gid),) if at % 2 else ()))
            for request in requests:
                if link.ask(request) != Ok():
                    raise BenchError(f"the state server refused {request}")


def _prepare_in_bank(place: Place, gids: Sequence[str]) -> None:
    """As the adapter does it, over one connection: psycopg wants a connection for each branch in doubt."""
    bank = place.opened("bank")
    connection: psycopg.Connection[Any] = bank.resource
    connection.autocommit = True
    for gid in gids:
        xid = branch_of(gid, "bank", JOB)
        connection.execute("BEGIN")
        connection.execute("SELECT pg_advisory_xact_lock_shared(%s)", (advisory_lock_of(xid),))
        connection.execute("INSERT INTO ledger VALUES (%s)", (gid,))
        connection.execute(sql.SQL("PREPARE TRANSACTION {}").format(str(native_xid(connection, xid))))
    bank.close()


def _prepare_in_queues(place: Place, gids: Sequence[str]) -> None:
    queues = place.opened("queues")
    for gid in gids:
        prepare_branch(queues, gid)
    queues.close()


def prepare_branch(queues: ResourceManager, gid: str) -> None:
    """One branch with one message, prepared."""
    xid = branch_of(gid, "queues", JOB)
    answers = [queues.start(xid, Flag.NONE)]
    queues.resource.basic_publish(amqp.Message(gid, delivery_mode=2), exchange="", routing_key=QUEUE)
    answers += [queues.end(xid, Flag.NONE), queues.prepare(xid)]
    if any(answer.code is not XaCode.OK for answer in answers):
        raise BenchError(f"the broker answered {answers}")


# -- what is measured ---------------------------------------------------------------------------------------------------


def _list(place: Place, number: int) -> None:
    """``understudy xa list --json``, as an operator runs it."""
    done = subprocess.run(
        [understudy(), "xa", "list", "--json", "--config", str(place.profiles)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BenchError(f"understudy xa list: {done.stderr}")
    listed = json.loads(done.stdout)
    if len(listed["transactions"]) != number or listed["orphans"] or listed["unreachable"]:
        raise BenchError(f"understudy xa list shows {len(listed['transactions'])} of {number} transactions")


def _restart_state_server(place: Place, number: int) -> None:
    server = place.state_servers[0]
    server.kill()
    server.start()
    with _link(place, "bench-looks") as link:
        found = len(link.entries()[0])
    if found != number:
        raise BenchError(f"the state server has {found} of {number} transactions after its restart")


def _restart(place: Place, server: Any, name: str, number: int) -> None:
    server.kill()
    server.start()
    resource = place.opened(name)
    await_listed(resource, number)
    resource.close()


def await_listed(resource: ResourceManager, number: int) -> None:
    """Ask until all branches are listed."""
    deadline = time.monotonic() + LISTED_S
    while True:
        try:
            found = len(resource.recover())
        except XaError:
            found = 0
        if found == number:
            return
        if time.monotonic() > deadline:
            raise BenchError(f"{resource.name} lists {found} of {number} branches after {LISTED_S:g} s")
        time.sleep(AGAIN_S)


def _recover(place: Place, number: int, done: list[float]) -> None:
    """Recover all; `done` gets the time of each."""

    def on_step(label: str) -> None:
        if label == "tell.done.after":
            done.append(time.monotonic())

    manager = place.manager(on_step=on_step)
    found = len(manager.recover())
    manager.close()
    if found != number:
        raise BenchError(f"{found} of {number} transactions were recovered")


def _check_nothing_left(place: Place, gids: Sequence[str]) -> None:
    bank, queues = place.opened("bank"), place.opened("queues")
    left = len(bank.recover()) + len(queues.recover())
    rows = {gid for (gid,) in bank.resource.execute("SELECT gid FROM ledger")}
    messages = queues.resource.queue_declare(QUEUE, passive=True).message_count
    bank.close()
    queues.close()
    if left or rows != set(gids[1::2]) or messages != len(rows):
        raise BenchError(f"{left} branches are left; {len(rows)} rows and {messages} messages, not {len(gids) // 2}")
    place.empty()


# -- figures ------------------------------------------------------------------------------------------------------------


def table(found: Sequence[Figures]) -> str:
    """A row for each figure, a column for each number; the last column is the growth from the first number to the last."""
    lines = ["| |" + "".join(f" {one.number:,} |" for one in found) + " growth |", "|---|" + "---|" * (len(found) + 1)]
    for name in ROWS:
        values = [one.seconds[name] for one in found if name in one.seconds]
        if len(values) == len(found):
            texts = [f"{value * 1000:.2f} ms" if value < 0.1 else f"{value:.2f} s" for value in values]
            lines.append(f"| {name} | {' | '.join(texts)} | {values[-1] / values[0]:.1f} |")
    return "\n".join(lines)
