"""Findings of ``understudy stages list`` and ``understudy stages show``, from queues, inbox and outbox."""

from __future__ import annotations

from typing import Any, Final

import attrs

from understudy.client.stages.application.application import Stages
from understudy.client.stages.broker.connection import NOT_FOUND, Connection, LostError, close_channel, errors_as_ours
from understudy.client.stages.core import envelope as headers
from understudy.client.stages.core.envelope import DEAD_LETTERS
from understudy.client.stages.core.letter import Letter
from understudy.client.stages.databases.port import INBOX, OUTBOX, PARKED, in_thread
from understudy.client.stages.databases.tables import LEFT
from understudy.client.stages.dead_letters.queue import HeldQueue, NoQueueError
from understudy.client.stages.definitions.stage import Stage
from understudy.client.stages.looking.flow_path import Passed, path_of

MOST_LETTERS: Final = 10_000
"""So many dead letters of each stage are looked at."""
NOT_THERE: Final = (-1, -1)


async def list_of(stages: Stages, connection: Connection) -> dict[str, Any]:
    """Stages, their queues, and the outbox.

    Returns:
        ``stages``: rows of name, once, ready, consumers, dead (-1: no queue), flows; ``outbox``: messages in it, or None.
    """
    rows = []
    for each in stages.stages.values():
        ready, consumers = await _counts(connection, each.queue)
        dead, _ = await _counts(connection, each.queue + DEAD_LETTERS)
        rows.append(
            {
                "stage": each.name,
                "once": each.once,
                "ready": ready,
                "consumers": consumers,
                "dead_letters": dead,
                "flows": [*each.flows],
            }
        )
    outbox = (await in_thread(stages.database.look, LEFT))[0][0] if stages.database is not None else None
    return {"application": stages.name, "stages": rows, "outbox": outbox}


@attrs.frozen(kw_only=True)
class Passage:
    """Where one passage through a flow is and has been.

    Attributes:
        flow: its name; "" if none fits, or several do.
        passed: messages that were processed, by time.
        outbox: stages to which the outbox still holds messages.
        parked: stages for which a message waits behind an older one of its key.
        letters: dead letters of the passage.
        next: the first stage that has processed nothing: its message waits, is in hand, or was not sent; "" if there is none.
        unknown: the stage that keeps no inbox, so its messages are not known; "" if there is none.
        finished: the last stage has processed its message.
    """

    flow_id: str
    flow: str
    passed: list[Passed]
    outbox: list[str]
    parked: list[str]
    letters: list[Letter]
    next: str = ""
    unknown: str = ""
    finished: bool = False


async def passage_of(stages: Stages, connection: Connection, flow_id: str) -> Passage:
    """Look for a passage in inbox, outbox and dead-letter queues."""
    passed: list[Passed] = []
    outbox: list[str] = []
    parked: list[str] = []
    if stages.database is not None:
        passed = await in_thread(_passed, stages, flow_id)
        outbox = await in_thread(_named, stages, OUTBOX, flow_id)
        parked = await in_thread(_named, stages, PARKED, flow_id)
    letters = [
        letter
        for each in stages.stages.values()
        async for letter in _letters(connection, each.queue + DEAD_LETTERS)
        if letter.delivery.text(headers.FLOW_ID) == flow_id
    ]
    flow = next((name for each in letters if (name := each.delivery.text(headers.FLOW))), "")
    flow = flow or _flow_of(stages, passed)
    made = Passage(flow_id=flow_id, flow=flow, passed=passed, outbox=outbox, parked=parked, letters=letters)
    return made if not flow or letters or not passed else _with_next(stages, made)


def _with_next(stages: Stages, made: Passage) -> Passage:
    names = {each.stage for each in made.passed}
    at: Stage[..., Any] | None = stages.flows[made.flow].stages[0]
    while at is not None:
        if at.name not in names:
            return attrs.evolve(made, next=at.name) if at.once else attrs.evolve(made, unknown=at.name)
        at = at.flows[made.flow]
    return attrs.evolve(made, finished=True)


def _flow_of(stages: Stages, passed: list[Passed]) -> str:
    fitting = [name for name, flow in stages.flows.items() if passed and flow.stages[0].name == passed[0].stage]
    return fitting[0] if len(fitting) == 1 else ""


def _passed(stages: Stages, flow_id: str) -> list[Passed]:
    assert stages.database is not None
    look = stages.database.look

    def read(ids: list[str]) -> list[tuple[str, str, int]]:
        marks = ", ".join("?" * len(ids))
        return [
            (stage, message_id, at_ms)
            for stage, message_id, at_ms in look(
                f"SELECT stage, message_id, at_ms FROM {INBOX} WHERE message_id IN ({marks})",  # noqa: S608
                ids,
            )
        ]

    return path_of(flow_id, stages.stages, read)


def _named(stages: Stages, table: str, flow_id: str) -> list[str]:
    """The stages of messages in a table that is all but empty, whose headers name a passage."""
    assert stages.database is not None
    sql = f"SELECT stage, headers FROM {table} ORDER BY seq"  # noqa: S608  # our own names
    return [stage for stage, found in stages.database.look(sql) if f'"{flow_id}"' in found]


async def _letters(connection: Connection, queue: str) -> Any:
    try:
        async with HeldQueue.opened(connection, queue) as held:
            async for each in held.letters(MOST_LETTERS):
                yield each.letter
    except NoQueueError:
        return


async def _counts(connection: Connection, queue: str) -> tuple[int, int]:
    channel = await connection.channel()
    try:
        async with errors_as_ours():
            answer = await channel.queue_declare(queue, passive=True)
    except LostError as error:
        if error.code == NOT_FOUND:
            return NOT_THERE
        raise
    await close_channel(channel)
    return answer.message_count or 0, answer.consumer_count or 0
