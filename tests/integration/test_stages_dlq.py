"""``understudy dlq`` on real dead letters: what it lists, moves, changes and records."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import typer
from typer.testing import CliRunner

from tests.integration.broker_process import PROGRAM, BrokerProcess, free_port, running_broker, wait_until
from tests.integration.stages_waiting import until, until_found
from understudy.client.stages import Context, Retry, Stages
from understudy.client.stages.application.worker import Worker
from understudy.client.stages.broker.channel import TxChannel, ask_outcome
from understudy.client.stages.broker.connection import Connection, LostError
from understudy.client.stages.commands import connection as command_connection
from understudy.client.stages.commands.run import load
from understudy.client.stages.core.envelope import Envelope
from understudy.client.stages.dead_letters import commands
from understudy.client.stages.dead_letters.lines_command import lines
from understudy.client.stages.joint.channel import JointChannel

pytestmark = [pytest.mark.integration]

CLINIC = """
import sqlite3

import attrs

from understudy.client.stages import Context, Refuse, Retry, Stages, sqlite

stages = Stages("clinic", broker="{broker}", database=sqlite("{database}"), version="7.1")
healed = False


@attrs.frozen
class Case:
    number: int
    kind: str = "bad"


@stages.stage("clinic.treat", once=True, retry=Retry(2, first=0.01, most=0.01))
def treat(case: Case, db: sqlite3.Connection, ctx: Context) -> Case:
    if case.kind == "none":
        raise Refuse("nothing to treat")
    if case.kind == "bad" and not healed:
        raise ValueError("no bed\\nfor " + str(case.number))
    db.execute("INSERT INTO treated VALUES (?, ?)", (case.number, ctx.message_id))
    return case


@stages.stage("clinic.bill", once=True)
def bill(case: Case, db: sqlite3.Connection) -> None:
    db.execute("INSERT INTO billed VALUES (?)", (case.number,))


visit = stages.flow("visit", treat, bill)


@stages.stage("clinic.weigh", once=True, retry=Retry(1), key=lambda case: case.kind)
def weigh(case: Case, db: sqlite3.Connection) -> None:
    if case.number == 1 and not healed:
        raise ValueError("no scale")
    db.execute("INSERT INTO treated VALUES (?, ?)", (case.number, case.kind))
"""

app = typer.Typer(rich_markup_mode=None)
COMMANDS: dict[str, Callable[..., None]] = {
    "list": commands.list_letters,
    "show": commands.show,
    "reissue": commands.reissue,
    "purge": commands.purge,
    "edit": commands.edit,
    "records": commands.records,
    "lines": lines,
}
for name, command in COMMANDS.items():
    app.command(name)(command)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


class Clinic:
    """An application in a folder, its worker, and the commands."""

    def __init__(self, folder: Path, broker: BrokerProcess) -> None:
        self.address = broker.address
        self.database = folder / "clinic.db"
        (folder / "clinic.py").write_text(CLINIC.format(broker=self.address, database=self.database), encoding="utf-8")
        self.stages = load("clinic:stages")
        self.module: Any = __import__("clinic")
        with contextlib.closing(sqlite3.connect(self.database)) as db:
            db.executescript("CREATE TABLE treated (number INTEGER, id TEXT); CREATE TABLE billed (number)")

    def run(self, *words: str, code: int = 0) -> str:
        """Run a command: its standard output, or with a code its standard error."""
        result = CliRunner().invoke(app, words, catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result.stderr if code else result.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json"))

    def rows(self, sql: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self.database, timeout=20)) as db:
            return db.execute(sql).fetchall()

    def send(self, *cases: tuple[int, str]) -> None:
        async def send() -> None:
            async with self.stages.begin():
                for number, kind in cases:
                    self.module.visit.send(self.module.Case(number, kind))
            await self.stages.close()

        asyncio.run(send())

    def work_until(self, what: str, *, workers: int = 1, **counts: int) -> None:
        """Workers in this process, until queues have so many messages, and tables so many rows."""

        async def counted() -> bool:
            connection = Connection([self.address], "the test")
            try:
                for place, count in counts.items():
                    if place in {"treated", "billed"}:
                        found = len(self.rows(f"SELECT * FROM {place}"))
                    else:
                        channel = await TxChannel.open(connection)
                        found = await channel.count(f"clinic.{place.replace('_', '.')}")
                    if found != count:
                        return False
            finally:
                await connection.close()
            return True

        def serves(worker: Worker) -> bool:
            return all(map(worker.watch.has_its_part, worker.watch.counts))

        async def work() -> None:
            running = [Worker(self.stages) for _ in range(workers)]
            async with asyncio.TaskGroup() as tasks:
                for worker in running:
                    tasks.create_task(worker.run())
                try:
                    await until_found("each worker serves or stands by", lambda: all(map(serves, running)))
                    await until(what, counted)
                finally:
                    for worker in running:
                        worker.stop()

        asyncio.run(work())

    def put(self, queue: str, **fields: Any) -> None:
        """A message that no stage has sent."""

        async def put() -> None:
            connection = Connection([self.address], "the test")
            channel = await TxChannel.open(connection)
            await channel.settle([Envelope(queue=queue, **fields)])
            await connection.close()

        asyncio.run(put())

    def purge(self, queue: str) -> None:
        """As any program may."""

        async def purge() -> None:
            connection = Connection([self.address], "the test")
            await (await connection.channel()).queue_purge(queue)
            await connection.close()

        asyncio.run(purge())


@pytest.fixture
def clinic(tmp_path: Path, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> Clinic:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "clinic", raising=False)  # of the test before
    monkeypatch.setattr(sys, "path", sys.path[:])
    return Clinic(tmp_path, broker)


def test_dead_letters_are_listed_shown_reissued_edited_and_purged(clinic: Clinic) -> None:
    assert "clinic.treat.dead: 0 dead letters" in clinic.run("list", "clinic:stages")
    clinic.send((1, "bad"), (2, "bad"), (3, "none"), (4, "none"), (5, "good"))
    clinic.work_until("all have ended", treat=0, treat_dead=4, billed=1)

    listed = clinic.json("list", "clinic:stages", "--stage", "clinic.treat")["queues"][0]
    groups = {each["exception"]: each for each in listed["groups"]}
    assert (listed["queue"], listed["letters"]) == ("clinic.treat.dead", 4)
    bad, none = groups["ValueError"], groups["understudy.client.stages.errors.Refuse"]
    assert (bad["letters"], none["letters"], none["text"]) == (2, 2, "nothing to treat")
    assert f"group {bad['group']}: 2 of ValueError" in clinic.run("list", "clinic:stages")

    shown = clinic.json("show", "clinic:stages", "--group", bad["group"])["letters"]
    assert {json.loads(each["body"])["number"] for each in shown} == {1, 2}
    headers = shown[0]["headers"]
    assert headers["x-stages-application"] == "clinic"
    assert (headers["x-stages-version"], headers["x-stages-failures"]) == ("7.1", 2)
    assert headers["x-stages-flow"] == "visit"

    # Nothing is done without --yes, nor without a choice.
    names = ["--broker", clinic.address, "--queue", "clinic.treat.dead"]
    assert "nothing was changed: --yes does it" in clinic.run("reissue", *names, "--group", bad["group"])
    assert "say which letters" in clinic.run("reissue", *names, code=2)
    assert clinic.json("list", *names)["queues"][0]["letters"] == 4

    # By the names of queues alone, under the same ids.
    clinic.module.healed = True
    done = clinic.json("reissue", *names, "--group", bad["group"], "--by", "ann", "--yes")
    assert done["queues"][0]["ids"] == [each["id"] for each in shown]
    clinic.work_until("both are treated", treat=0, treat_dead=2, treated=3, billed=3)
    assert {row[0] for row in clinic.rows("SELECT id FROM treated WHERE number < 3")} == {each["id"] for each in shown}

    # One is edited: it keeps its id, and the edit is told.
    third, fourth = (each["id"] for each in clinic.json("show", "clinic:stages", "--group", none["group"])["letters"])
    Path("body").write_text('{"number": "x"}', encoding="utf-8")
    refused = clinic.run("edit", "clinic:stages", "--id", third, "--body", "body", "--yes", code=1)
    assert "is no message of stage 'clinic.treat'" in refused
    Path("body").write_text('{"number": 33, "kind": "good"}', encoding="utf-8")
    words = ["edit", "clinic:stages", "--id", third, "--body", "body", "--header", "ward:=4"]
    assert "would change" in clinic.run(*words)
    clinic.run(*words, "--yes", "--by", "bob")
    (edited,) = clinic.json("show", *names, "--id", third)["letters"]
    assert (edited["body"], edited["headers"]["ward"]) == (Path("body").read_text(encoding="utf-8"), 4)
    assert (edited["headers"]["x-stages-edits"], edited["headers"]["x-stages-edited-by"]) == (1, "bob")
    clinic.run("reissue", *names, "--id", third, "--yes")
    clinic.work_until("the edited one is treated", treat=0, treat_dead=1, treated=4, billed=4)

    assert "would purge 1 letter\n" in clinic.run("purge", *names, "--all")
    clinic.run("purge", *names, "--id", fourth, "--yes")
    assert clinic.json("list", *names)["queues"][0]["letters"] == 0
    told = clinic.json("records", "clinic:stages", "--most", "4")["records"]
    assert [(each["action"], len(each["ids"])) for each in told] == [
        ("reissue", 2), ("edit", 1), ("reissue", 1), ("purge", 1),
    ]  # fmt: skip
    assert (told[0]["by"], told[0]["to"], told[1]["by"]) == ("ann", "clinic.treat", "bob")


def test_an_inbox_knows_a_reissued_message_unless_it_is_forced(clinic: Clinic) -> None:
    clinic.send((1, "good"))
    clinic.work_until("it is treated", treat=0, treated=1, billed=1)
    ((message_id,),) = clinic.rows("SELECT id FROM treated")
    names = ["--broker", clinic.address, "--queue", "clinic.treat.dead", "--id", message_id, "--yes"]
    headers = {"x-stages-flow": "visit", "x-stages-rounds": 1}
    letter = {"id": message_id, "stage": "clinic.treat", "body": b'{"number": 1, "kind": "good"}', "headers": headers}
    clinic.put("clinic.treat.dead", **letter)
    clinic.run("reissue", *names)
    clinic.work_until("it is known", treat=0, treated=1, billed=1)
    clinic.put("clinic.treat.dead", **letter)
    clinic.run("reissue", *names, "--force-again")
    # The stage behind it takes what it sends for new, too.
    clinic.work_until("it is treated again", treat=0, treated=2, billed=2)
    assert {row[0] for row in clinic.rows("SELECT id FROM treated")} == {message_id}


def test_what_cannot_be_done_is_named(clinic: Clinic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_connection, "CONNECT_S", 0.01)
    nobody = f"127.0.0.1:{free_port()}"
    away = clinic.run("list", "--broker", f"amqp://ann:secret@{nobody}/", "--queue", "lost.dead", code=1)
    assert f"no broker within 0.01 s: {nobody}: " in away
    assert "secret" not in away
    broker = ["--broker", clinic.address]
    assert "queue 'nowhere.dead' is not there" in clinic.run("list", *broker, "--queue", "nowhere.dead", code=1)
    assert "--to names the stage's queue" in clinic.run("reissue", *broker, "--queue", "odd", "--all", code=2)
    assert "give an application" in clinic.run("list", code=2)
    for value in ("a", "a:=x", "a:=[1]", f"a:={1 << 63}"):
        assert f"--header {value}" in clinic.run("edit", "clinic:stages", "--id", "m1", "--header", value, code=2)
    assert "has clinic.treat, clinic.bill, clinic.weigh" in clinic.run("list", "clinic:stages", "--stage", "x", code=2)
    clinic.put("lost.dead", id="m1", stage="lost", body=b"\xff", headers={})
    names = [*broker, "--queue", "lost.dead"]
    refused = clinic.run("reissue", *names, "--all", "--to", "nowhere", "--yes", code=1)
    assert "queue 'nowhere' is not there; nothing was done" in refused
    (left,) = clinic.json("show", *names)["letters"]
    assert (left["id"], left["body"], left["encoding"]) == ("m1", "/w==", "base64")
    assert "no such letter" in clinic.run("purge", *names, "--id", "m2", "--yes", code=1)
    assert "0 letters of id 'm2'" in clinic.run("edit", *names, "--id", "m2", "--drop-header", "x", code=1)
    clinic.run("purge", *names, "--all", "--yes")


def test_a_reissue_that_is_killed_has_done_whole_batches(broker: BrokerProcess) -> None:
    address, letters, rate = broker.address, 120, 20

    async def counts() -> tuple[int, int]:
        connection = Connection([address], "the test")
        channel = await TxChannel.open(connection)
        found = await channel.count("many"), await channel.count("many.dead")
        await connection.close()
        return found

    async def put() -> None:
        connection = Connection([address], "the test")
        channel = await TxChannel.open(connection)
        names = [f"m{number}" for number in range(letters)]
        dead = [Envelope(id=each, queue="many.dead", stage="many", body=b"", headers={}) for each in names]
        await channel.settle(dead)
        await connection.ensure("many")
        await connection.close()

    asyncio.run(put())
    options = ["--broker", address, "--queue", "many.dead", "--all", "--rate", str(rate), "--yes"]
    with subprocess.Popen([PROGRAM, "dlq", "reissue", *options]) as running:
        wait_until("a batch is reissued", lambda: asyncio.run(counts())[0])
        running.kill()

    def all_are_back() -> tuple[int, int] | None:
        found = asyncio.run(counts())
        return found if sum(found) == letters else None

    done, _ = wait_until("no letter is held any more, or lost", all_are_back)
    assert 0 < done < letters
    assert done % rate == 0


def test_a_message_whose_queue_was_deleted_finds_a_new_one(broker: BrokerProcess) -> None:
    def envelope(name: str, after_ms: int) -> Envelope:
        return Envelope(id=name, queue="deleted", stage="", body=b"", headers={}, after_ms=after_ms)

    async def send_again() -> None:
        connection = Connection([broker.address], "the test")
        channel, other = await TxChannel.open(connection), await connection.channel()
        envelopes = [envelope("m1", 0), envelope("m2", 1)]
        await channel.settle(envelopes)
        await other.queue_delete("deleted")
        await channel.settle(envelopes)
        await other.exchange_delete("deleted.delay")
        with pytest.raises(LostError):
            await channel.settle(envelopes)
        channel = await TxChannel.open(connection)
        await channel.settle(envelopes)

        async def all_there() -> bool:
            return await channel.count("deleted") == 4

        await until("what was sent after the deletion is there", all_there)
        await connection.close()

    asyncio.run(send_again())


class KilledError(Exception):
    """The client ends here."""


def ensured_and_deleted(ensure: Callable[[str], Any], other: Any, times: int) -> Callable[[str], Any]:
    """A declaration behind which the queue is deleted, so often behind the first one."""
    calls = 0

    async def call(queue: str) -> None:
        nonlocal calls
        await ensure(queue)
        calls += 1
        if 1 < calls <= 1 + times:
            await other.queue_delete(queue)

    return call


@pytest.mark.parametrize(("after_ms", "name"), [(0, ""), (60_000, ""), (0, "i1")])
def test_a_failed_message_is_not_lost_if_its_queue_was_deleted_and_its_worker_is_killed(
    broker: BrokerProcess, after_ms: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its acknowledgement was committed before it had found no queue, and it was sent again after that."""
    source, target = f"source{after_ms}{name}", f"gone{after_ms}{name}"
    moved = Envelope(id="m1", queue=target, stage="", body=b"failed", headers={}, after_ms=after_ms)

    def killed() -> None:
        raise KilledError

    async def run() -> None:
        connection = Connection([broker.address], "the test")
        channel, other = await TxChannel.open(connection), await connection.channel()
        await channel.settle([attrs.evolve(moved, queue=source, after_ms=0), moved])
        for kills in (True, False):
            await other.queue_delete(target)
            arrival = await channel.get(source)
            assert arrival is not None
            commits = 0

            def commit(before: Callable[[], Any] = channel._channel.tx_commit) -> Any:
                nonlocal commits
                commits += 1
                return before()

            channel._channel.tx_commit = commit  # type: ignore[assignment,method-assign]  # counts
            if kills:
                with pytest.raises(KilledError):
                    await channel.settle([moved], arrival.tag, name=name, surely=True, before_commit=killed)
                assert await connection.has_queue(target)  # it was made before the commit
                channel = await TxChannel.open(connection)
                assert (await channel.count(source), commits) == (1, 0)
            else:
                monkeypatch.setattr(connection, "ensure", ensured_and_deleted(connection.ensure, other, after_ms == 0))
                another = name and "i2"  # the first one was rolled back
                await channel.settle([moved], arrival.tag, name=another, surely=True)
                assert (await channel.count(source), commits) == (0, 1)
                assert not another or await ask_outcome(connection, another) == "committed"
        if not after_ms:
            found = await channel.get(target)
            assert found is not None
            assert found.delivery.body == b"failed"
        await connection.close()

    asyncio.run(run())


@pytest.mark.parametrize("blocking", [False, True])
def test_a_blocking_stage_keeps_the_order_and_another_goes_on(broker: BrokerProcess, blocking: bool) -> None:
    stages = Stages("mill", broker=broker.address)
    seen: list[int] = []
    ended = threading.Event()

    @stages.stage(f"mill.{blocking}", retry=Retry(3, first=0.1, most=0.1, blocking=blocking))
    def grind(number: int) -> None:
        seen.append(number)
        if len(seen) == 5:
            ended.set()
        if number == 1:
            raise ValueError("no")

    async def run() -> None:
        async with stages.begin():
            for number in (1, 2, 3):
                grind.send(number)
        await stages.close()
        worker = Worker(stages)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(worker.run())
            await until_found("all have ended", ended.is_set)
            worker.stop()

    asyncio.run(run())
    assert seen == ([1, 1, 1, 2, 3] if blocking else [1, 2, 3, 1, 1])


def test_a_broker_that_is_killed_costs_no_attempt(broker: BrokerProcess) -> None:
    stages = Stages("mill", broker=broker.address)
    attempts: list[int] = []
    ended = threading.Event()

    @stages.stage("mill.grind", retry=Retry(2, first=0.05, most=0.05))
    def grind(number: int, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        if len(attempts) == 1:
            broker.kill()
            broker.start()
            return
        if len(attempts) == 2:
            raise ValueError("no")
        ended.set()

    async def run() -> None:
        async with stages.begin():
            grind.send(7)
        await stages.close()
        worker = Worker(stages)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(worker.run())
            await until_found("it is ground", ended.is_set)
            worker.stop()

    asyncio.run(run())
    assert attempts == [1, 1, 2]


@pytest.mark.parametrize("how", ["reissued", "purged", "lost"])
def test_a_dead_letter_parks_what_follows_it_under_its_key(clinic: Clinic, how: str) -> None:
    async def send() -> None:
        async with clinic.stages.begin():
            for number, kind in [(1, "a"), (2, "a"), (3, "b"), (4, "a")]:
                clinic.module.weigh.send(clinic.module.Case(number, kind))
        await clinic.stages.close()

    asyncio.run(send())
    # Two workers: one stands by.
    clinic.work_until("the other key is done", workers=2, weigh=0, weigh_dead=1, treated=1)
    assert clinic.rows("SELECT number FROM treated") == [(3,)]
    (line,) = clinic.json("lines", "clinic:stages")["lines"]
    assert (line["stage"], line["key"], line["parked"]) == ("clinic.weigh", "a", 2)
    assert "key a:" in clinic.run("lines", "clinic:stages", "--stage", "clinic.weigh")
    clinic.module.healed = True
    names = ["--broker", clinic.address, "--queue", "clinic.weigh.dead", "--all", "--yes"]
    if how == "lost":
        clinic.purge("clinic.weigh.dead")
        words = ["lines", "clinic:stages", "--stage", "clinic.weigh", "--drop", "a"]
        assert "would be dropped" in clinic.run(*words)
        clinic.run(*words, "--yes")
        assert "no line of key 'x'" in clinic.run(*words[:-1], "x", code=1)
    else:
        clinic.run("purge" if how == "purged" else "reissue", *names)
    done = [3, 1, 2, 4] if how == "reissued" else [3, 2, 4]
    clinic.work_until("the line is done", weigh=0, weigh_dead=0, treated=len(done))
    assert [row[0] for row in clinic.rows("SELECT number FROM treated ORDER BY rowid")] == done
    assert clinic.rows("SELECT * FROM understudy_lines") == clinic.rows("SELECT * FROM understudy_parked") == []


def test_a_channel_for_branches_has_a_precheck_too(broker: BrokerProcess) -> None:
    """After a lost commit a stage with xa=True asks on it; an error for an answer would have been another loss, for ever."""

    async def ask() -> str:
        connection = Connection([broker.address], "the test")
        channel = await JointChannel.open(connection)
        answer = await channel.precheck(brings=True)
        await channel.close()
        await connection.close()
        return answer

    assert asyncio.run(ask()) == ""
