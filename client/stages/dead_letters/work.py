"""Work on dead letters: reissue, purge and edit, in batches that are transactions, at a bounded rate, with a record."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import attrs

from understudy.client.stages.broker.connection import Connection
from understudy.client.stages.core.envelope import Envelope
from understudy.client.stages.core.letter import RECORD_ARGUMENTS, RECORDS, Action, Letter, Wanted
from understudy.client.stages.dead_letters.queue import Held, HeldQueue
from understudy.client.stages.errors import StagesError

MOST_IN_BATCH: Final = 100

Progress = Callable[[int, int], None]
"""Called with the number of letters that were looked at, and their count at the start."""

_log = logging.getLogger("understudy.stages")


def silent(_seen: int, _of: int) -> None:
    """Show no progress."""


class ManyLettersError(StagesError):
    """Not exactly one letter of a queue has the id."""


@attrs.define(kw_only=True)
class Done:
    """The work that a command has done, or would do.

    Attributes:
        ids: of the letters, in their order.
        batches: transactions that were committed.
    """

    ids: list[str] = attrs.field(factory=list)
    batches: int = 0


@attrs.frozen(kw_only=True)
class Job:
    """One action on the letters of one queue.

    Attributes:
        verb: ``reissue`` or ``purge``, for the record.
        make: the message that takes a letter's place; None: none does.
        rate: messages a second, above 0.
        limit: so many letters are looked at; None: all that are there at the start.
        dry: count, and change nothing.
        told: what the record says besides.
    """

    verb: str
    queue: str
    wanted: Wanted
    action: Action
    make: Callable[[Letter], Envelope | None]
    rate: float
    limit: int | None = None
    dry: bool = False
    told: dict[str, Any] = attrs.field(factory=dict)

    @property
    def batch(self) -> int:
        """Letters of one transaction: at most those of a second."""
        return max(1, min(MOST_IN_BATCH, int(self.rate)))


async def do(connection: Connection, job: Job, progress: Progress = silent, done: Done | None = None) -> Done:
    """Do a job. A batch is done whole or not at all. ``done`` is filled as the job goes on.

    Raises:
        NoQueueError: the queue is not there.
        LostError: the broker is gone. Its last batch was done or not; a second run finds what is left.
        GoesNowhereError: a message has no queue to go to; its batch was not done.
    """
    done = done if done is not None else Done()
    if not job.dry:
        await connection.ensure(RECORDS, RECORD_ARGUMENTS)
    async with HeldQueue.opened(connection, job.queue) as queue:
        batch: list[Held] = []
        seen = 0
        async for held in queue.letters(job.limit):
            seen += 1
            progress(seen, queue.count)
            if not job.wanted.has(held.letter):
                continue
            if job.dry:
                done.ids.append(held.letter.delivery.id)
                continue
            batch.append(held)
            if len(batch) == job.batch:
                await _move(queue, job, batch, done)
                batch = []
        if batch:
            await _move(queue, job, batch, done)
    return done


async def _move(queue: HeldQueue, job: Job, batch: Sequence[Held], done: Done) -> None:
    """One transaction, and then a pause that keeps the rate."""
    began_s = time.monotonic()
    made = [job.make(each.letter) for each in batch]
    ids = [each.letter.delivery.id for each in batch]
    record = record_of(job.verb, job.queue, job.action, done.batches, ids=ids, **job.told)
    await queue.move(batch, [each for each in made if each is not None] + [record])
    done.ids += ids
    done.batches += 1
    _log.info("stages: %s: %d letters of %s, by %s", job.verb, len(ids), job.queue, job.action.by)
    await asyncio.sleep(max(0.0, len(batch) / job.rate - (time.monotonic() - began_s)))


async def edit(
    connection: Connection,
    queue_name: str,
    message_id: str,
    change: Callable[[Letter], Envelope],
    action: Action,
    *,
    dry: bool,
) -> tuple[Letter, Envelope]:
    """Put an edited letter in the place of the one that has the id; it moves to the end of its queue.

    Returns:
        The letter as it was, and as it is.

    Raises:
        ManyLettersError: no letter has the id, or several have.
        NoQueueError, LostError: as of `do`.
    """
    if not dry:
        await connection.ensure(RECORDS, RECORD_ARGUMENTS)
    async with HeldQueue.opened(connection, queue_name) as queue:
        found = [held async for held in queue.letters() if held.letter.delivery.id == message_id]
        if len(found) != 1:
            raise ManyLettersError(f"queue {queue_name!r} has {len(found)} letters of id {message_id!r}; one is needed")
        (held,) = found
        edited = change(held.letter)
        if not dry:
            record = record_of("edit", queue_name, action, 0, ids=[message_id])
            await queue.move([held], [edited, record])
            _log.info("stages: edit: letter %s of %s, by %s", message_id, queue_name, action.by)
        return held.letter, edited


async def look(
    connection: Connection,
    queue_name: str,
    *,
    limit: int | None = None,
    progress: Progress = silent,
    bodies: bool = True,
) -> tuple[list[Letter], int]:
    """The letters of a queue, which stay in it, and how many it has. Without ``bodies`` a long queue needs less memory.

    Raises:
        NoQueueError, LostError: as of `do`.
    """
    found: list[Letter] = []
    async with HeldQueue.opened(connection, queue_name) as queue:
        async for held in queue.letters(limit):
            letter = held.letter
            found.append(letter if bodies else attrs.evolve(letter, delivery=attrs.evolve(letter.delivery, body=b"")))
            progress(len(found), queue.count)
        return found, queue.count


def record_of(verb: str, queue: str, action: Action, number: int, *, ids: Iterable[str], **told: Any) -> Envelope:
    """The record of one batch: JSON, in the queue `RECORDS`."""
    text = {"action": verb, "queue": queue, "by": action.by, "at_ms": action.at_ms, "ids": list(ids), **told}
    return Envelope(
        id=f"{action.token}-{number}",
        queue=RECORDS,
        stage="",
        body=json.dumps(text).encode(),
        headers={},
    )
