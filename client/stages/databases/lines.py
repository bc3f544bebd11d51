"""Lines: the tables of stages with a key. Each function works in the open transaction of a session."""

from __future__ import annotations

import json
from typing import Any, Final

from understudy.client.stages.core.envelope import Delivery, Envelope
from understudy.client.stages.databases.port import INBOX, LINES, PARKED, DatabaseSession

# A SELECT ... FOR UPDATE that SQLite knows, too.
_HEAD: Final = f"UPDATE {LINES} SET head = head WHERE stage = ? AND line_key = ? RETURNING head"  # noqa: S608
_BEGIN: Final = f"INSERT INTO {LINES} (stage, line_key, head, since_ms) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"  # noqa: S608
_MOVE: Final = f"UPDATE {LINES} SET head = ? WHERE stage = ? AND line_key = ?"  # noqa: S608
_END: Final = f"DELETE FROM {LINES} WHERE stage = ? AND line_key = ?"  # noqa: S608
_PARK: Final = f"""\
INSERT INTO {PARKED} (stage, line_key, message_id, headers, body, parked_ms) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""  # noqa: S608
_FIRST: Final = f"""\
SELECT message_id, headers, body FROM {PARKED} WHERE stage = ? AND line_key = ? ORDER BY seq LIMIT 1
"""  # noqa: S608
_ONE: Final = f"SELECT message_id, headers, body FROM {PARKED} WHERE stage = ? AND message_id = ?"  # noqa: S608
_TAKE: Final = f"DELETE FROM {PARKED} WHERE stage = ? AND message_id = ?"  # noqa: S608
_UNCLAIM: Final = f"DELETE FROM {INBOX} WHERE stage = ? AND message_id = ?"  # noqa: S608
_ALL: Final = f"""\
SELECT stage, line_key, head, since_ms, (
    SELECT count(*) FROM {PARKED} WHERE {PARKED}.stage = {LINES}.stage AND {PARKED}.line_key = {LINES}.line_key
) FROM {LINES} ORDER BY since_ms
"""  # noqa: S608


async def head_of(session: DatabaseSession, stage: str, key: str) -> str:
    """The id of the message at the head of a line, which is locked; "" if there is no line."""
    rows = await session.run(_HEAD, (stage, key))
    return rows[0][0] if rows else ""


async def park(session: DatabaseSession, stage: str, key: str, delivery: Delivery, now_ms: int) -> None:
    """Store a message behind the head. It is claimed in this transaction; that is undone."""
    await session.run(_UNCLAIM, (stage, delivery.claim))
    headers = json.dumps(_texts(delivery.own_headers()))
    await session.run(_PARK, (stage, key, delivery.id, headers, delivery.body, now_ms))


async def block(session: DatabaseSession, stage: str, key: str, delivery: Delivery, now_ms: int) -> bool:
    """Make a message that has failed the head of its line. False, and nothing is done, if another worker has processed it."""
    if not await session.claim(stage, delivery.claim, now_ms):
        return False
    await session.run(_UNCLAIM, (stage, delivery.claim))
    await session.run(_BEGIN, (stage, key, delivery.id, now_ms))
    await session.run(_TAKE, (stage, delivery.id))  # the broker has it, and keeps it
    return True


async def release(session: DatabaseSession, stage: str, key: str, message_id: str, queue: str) -> Envelope | None:
    """Take a head out of its line: the envelope of the next head. As `steps.Release` says."""
    head = await head_of(session, stage, key)
    if head != message_id:
        rows = await session.run(_ONE, (stage, head))
        return _envelope(rows[0], stage, queue) if rows else None
    await session.run(_TAKE, (stage, message_id))
    rows = await session.run(_FIRST, (stage, key))
    if not rows:
        await session.run(_END, (stage, key))
        return None
    await session.run(_MOVE, (rows[0][0], stage, key))
    return _envelope(rows[0], stage, queue)


async def all_lines(session: DatabaseSession) -> list[tuple[str, str, str, int, int]]:
    """Stage, key, head, when it began, and how many are parked, of each line; the oldest first."""
    return [tuple(row) for row in await session.run(_ALL, ())]


def _envelope(row: Any, stage: str, queue: str) -> Envelope:
    message_id, headers, body = row
    return Envelope(id=message_id, queue=queue, stage=stage, body=bytes(body), headers=json.loads(headers))


def _texts(value: Any) -> Any:
    """Headers as JSON has them. Octets become text; a time becomes text."""
    if isinstance(value, dict):
        return {name: _texts(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_texts(each) for each in value]
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "backslashreplace")
    return value if isinstance(value, (str, int, float)) or value is None else str(value)
