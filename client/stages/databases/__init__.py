"""The business databases that an application may have, each with its inbox and outbox.

sqlite_database, psycopg_database        the databases that `sqlite` and `postgresql` make
sqlite_connections, psycopg_connections  connections that refuse what would end a stage's transaction
aiosqlite_session, sqlalchemy_sessions   the same connections in the dress of these libraries
lines        the tables of stages with a key
tables       inbox and outbox, as both have them
port         what the rest of the library asks of a database
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from understudy.client.stages.databases.sqlite_database import Sqlite
from understudy.client.stages.errors import ConfigurationError

if TYPE_CHECKING:  # psycopg need not be installed
    from understudy.client.stages.databases.psycopg_database import Postgresql


def sqlite(path: str | Path) -> Sqlite:
    """The database in a file, which is made when it is first needed.

    A stage of kind ``def`` has a parameter of type ``sqlite3.Connection`` or SQLAlchemy's ``Session``, one of kind ``async def``
    one of type `AsyncConnection`, ``aiosqlite.Connection`` or SQLAlchemy's ``AsyncSession``.
    """
    return Sqlite(Path(path))


def postgresql(conninfo: str) -> Postgresql:
    """The database at a connection string or URL of libpq. Nothing is connected to.

    A stage of kind ``def`` has a parameter of type ``psycopg.Connection`` or SQLAlchemy's ``Session``, one of kind ``async def``
    one of type ``psycopg.AsyncConnection`` or SQLAlchemy's ``AsyncSession``.

    Raises:
        ConfigurationError: psycopg is missing, or the connection string cannot be read.
    """
    try:
        from understudy.client.stages.databases.psycopg_database import Postgresql  # noqa: PLC0415  # the extra of this database alone
    except ImportError as error:
        raise ConfigurationError(f"postgresql: {error}: pip install 'understudy[stages-postgresql]'") from error
    return Postgresql(conninfo)
