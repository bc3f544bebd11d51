"""The business databases that an application may have."""

from __future__ import annotations

from pathlib import Path

from understudy.client.stages.sqlite_database import Sqlite


def sqlite(path: str | Path) -> Sqlite:
    """The database in a file, which is made when it is first needed.

    A stage of kind ``def`` has a parameter of type ``sqlite3.Connection``, one of kind ``async def`` one of type
    `AsyncConnection`.
    """
    return Sqlite(Path(path))
