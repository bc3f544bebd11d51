"""``understudy dlq lines``: keys whose messages are parked, and a way out for a head whose dead letter is gone."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from understudy.client.stages.application.application import Stages
from understudy.client.stages.commands.run import Name, load
from understudy.client.stages.core import envelope as headers
from understudy.client.stages.core.envelope import Envelope
from understudy.client.stages.databases.lines import all_lines
from understudy.client.stages.dead_letters import options
from understudy.client.stages.dead_letters.place import Place
from understudy.client.stages.dead_letters.report import printable, time_of
from understudy.client.stages.dead_letters.running import action_of, fail, print_json, run_with, tell_dry


def lines(
    application: Name,
    stage: Annotated[str, typer.Option("--stage", help="Of this stage alone.")] = "",
    drop: Annotated[
        str,
        typer.Option(
            "--drop",
            metavar="KEY",
            help="Take the head of this key's line out; its dead letter is lost. Needs --stage.",
        ),
    ] = "",
    by: options.By = "",
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> None:
    """List the keys of stages with ``key=`` that have a failed message, and how many messages wait behind it."""
    stages = load(application)
    found = [each for each in _lines(stages) if not stage or each["stage"] == stage]
    if drop:
        if not stage:
            fail("--drop needs --stage: a key is that of a stage", 2)
        found = [each for each in found if each["key"] == drop]
        if not found:
            fail(f"stage {stage!r} has no line of key {drop!r}", 1)
        if yes:
            _drop(stages, found[0], by)
    if as_json:
        print_json({"lines": found, "dropped": bool(drop and yes)})
        return
    for each in found:
        verb = ("is dropped" if yes else "would be dropped") if drop else "is the head"
        text = f"{each['stage']}, key {each['key']}: {each['head']} {verb}, since {time_of(each['since_ms'])}"
        typer.echo(printable(f"{text}; {each['parked']:,} parked"))
    if drop:
        tell_dry(yes)


def _lines(stages: Stages) -> list[dict[str, Any]]:
    if stages.database is None:
        fail(f"the application {stages.name!r} has no database, and so no lines", 2)
    database = stages.database

    async def look() -> list[Any]:
        session = database.session(blocking=False)
        try:
            await session.begin()
            return await all_lines(session)
        finally:
            await session.rollback()
            await session.close()

    try:
        database.prepare()
        found = asyncio.run(look())
    except Exception as error:  # noqa: BLE001  # of whichever database
        fail(f"{database.address}: {error}", 1)
    return [dict(zip(("stage", "key", "head", "since_ms", "parked"), each, strict=True)) for each in found]


def _drop(stages: Stages, line: dict[str, Any], by: str) -> None:
    """Send what takes the head out: as a purge of its dead letter does."""
    action = action_of(by)
    skip = Envelope(
        id=line["head"],
        queue=line["stage"],
        stage=line["stage"],
        body=b"",
        headers={headers.KEY: line["key"], headers.SKIP: True},
    )

    async def work(connection: Any) -> None:
        from understudy.client.stages.broker.channel import TxChannel  # noqa: PLC0415  # needs aio-pika
        from understudy.client.stages.core.letter import RECORD_ARGUMENTS, RECORDS  # noqa: PLC0415
        from understudy.client.stages.dead_letters.work import record_of  # noqa: PLC0415

        await connection.ensure(RECORDS, RECORD_ARGUMENTS)
        record = record_of("drop", line["stage"], action, 0, ids=[line["head"]], key=line["key"])
        channel = await TxChannel.open(connection)
        await channel.move([], [skip, record])

    run_with(Place(addresses=stages.addresses, queues=[]), work)
