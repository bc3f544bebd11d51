"""Evidence: what is in the queues when the load has ended, and the judgement.

A client reads the queues, and every broker digests them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from understudy.client.runs.broker_group import GroupError
from understudy.client.runs.digests import DIGEST_PAGE, READER, agree, digests_of
from understudy.client.runs.session import LostError, RefusedError
from understudy.client.stress.faults.watch import Watch
from understudy.client.stress.libraries.connection import Connection, Session
from understudy.client.stress.workloads.by_name import Workload
from understudy.client.stress.workloads.delivery_order import misdelivered
from understudy.client.stress.workloads.worker import message_of
from understudy.client.verdicts.differing import differing, miscounted
from understudy.client.verdicts.evidence.case import Case
from understudy.client.verdicts.evidence.client_log import Message, read_logs
from understudy.client.verdicts.evidence.content import BrokerContent, QueueContent
from understudy.client.verdicts.evidence.history import History
from understudy.client.verdicts.violation import Violation

SETTLE_S: Final = 30.0
PAUSE_S: Final = 0.5
LEAST_READINGS: Final = 3
"""On a slow machine one reading may take `SETTLE_S`, and what it holds meanwhile neither expires nor moves."""
STILL_S: Final = 5.0
"""What differs is final after so long without a change, a client, or a broker that is behind."""


@attrs.frozen(kw_only=True)
class Evidence:
    """The content of queues and brokers, read at the end.

    Attributes:
        content: by a client; None if it could not be read.
        brokers: what each broker states; None if one did not.
        unread: why something could not be read.
    """

    content: BrokerContent | None = None
    brokers: Sequence[BrokerContent] | None = None
    unread: str = ""

    def differences(self) -> list[Violation]:
        """Between brokers, and between what they state and what a client finds."""
        if self.brokers is None:
            return []
        found = [] if self.content is None else miscounted(self.content, self.brokers)
        return differing(self.brokers) + found

    @property
    def equal(self) -> bool | None:
        """All brokers hold the same; None if that could not be read."""
        return None if self.brokers is None else agree(self.brokers)


async def gather(session: Session, workload: Workload, watch: Watch) -> Evidence:
    """Read everything, again and again until it agrees: what clients had in their hands goes back a moment after their end.

    Returns:
        What was read last: it agrees, or nothing can change any more (`STILL_S`), or `SETTLE_S` and `LEAST_READINGS` are over.
    """
    began_s = still_since_s = time.monotonic()
    before: Evidence | None = None
    readings = 0
    while True:
        readings += 1
        evidence = await _gather_once(session, workload, watch)
        now_s = time.monotonic()
        if not (evidence.unread or evidence.differences()):
            return evidence
        if now_s - began_s > SETTLE_S and readings >= LEAST_READINGS:
            return evidence
        if evidence != before or evidence.unread or not await _is_at_rest(watch):
            before, still_since_s = evidence, now_s
        elif now_s - still_since_s >= STILL_S:
            return evidence
        await asyncio.sleep(PAUSE_S)


async def _is_at_rest(watch: Watch) -> bool:
    """True if no client is connected to the primary and every broker is ready: nothing is given back, and nothing arrives."""
    primary = watch.primary
    if primary is None or not watch.all_ready():
        return False
    try:
        page = await watch.page(primary.broker, "/status")
    except (GroupError, TimeoutError):
        return False
    return bool(page.get("clients", {}).get("sockets") == 0)


async def _gather_once(session: Session, workload: Workload, watch: Watch) -> Evidence:
    content: BrokerContent | None = None
    try:
        content = await asyncio.to_thread(_read, session, workload)
        pages = {broker: await watch.page(broker, DIGEST_PAGE) for broker in watch.views}
    except (GroupError, LostError, RefusedError, TimeoutError) as error:
        return Evidence(content=content, unread=f"not read at the end: {type(error).__name__} {error}")
    left = {queue: count for queue in workload.passing if (count := content.queues[queue].count)}
    return Evidence(
        content=content,
        brokers=[digests_of(broker, page) for broker, page in pages.items()],
        unread="; ".join(
            f"{queue} still holds {count} messages, which are due elsewhere" for queue, count in left.items()
        ),
    )


def _read(session: Session, workload: Workload) -> BrokerContent:
    connection = session.open()
    try:
        _await_passing(connection, workload)
        queues = {queue: _read_queue(connection, queue, workload.arguments.get(queue)) for queue in workload.queues}
        return BrokerContent(broker=READER, queues=queues)
    finally:
        connection.close()


def _await_passing(connection: Connection, workload: Workload) -> None:
    """Wait until the queues that messages leave by themselves are empty, for `SETTLE_S` at most: a reader keeps what it holds."""
    until_s = time.monotonic() + SETTLE_S
    while any(connection.declare(queue, workload.arguments.get(queue)) for queue in workload.passing):
        if time.monotonic() > until_s:
            return
        time.sleep(PAUSE_S / 5)


def _read_queue(connection: Connection, queue: str, arguments: Mapping[str, Any] | None) -> QueueContent:
    """By basic.get, in order; the messages go back when the connection closes."""
    count = connection.declare(queue, arguments)
    messages: list[Message] = []
    fresh: set[str] = set()
    while (delivery := connection.get(queue)) is not None:
        message = message_of(delivery)
        messages.append(message)
        if not delivery.redelivered:
            fresh.add(message.id)
    return QueueContent(count=count, messages=tuple(messages), fresh=fresh)


def judged(clients: Path, evidence: Evidence, workload: Workload) -> tuple[Case, list[Violation]]:
    """Hold the clients' logs against what was read."""
    content = evidence.content or BrokerContent.of(READER, dict.fromkeys(workload.queues, ()))
    case = Case(history=History.of(read_logs(clients)), content=content)
    found = workload.judge(case) if evidence.content is not None else []
    return case, found + misdelivered(read_logs(clients)) + evidence.differences()
