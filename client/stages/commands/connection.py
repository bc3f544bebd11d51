"""Connection of a command: made for one piece of work, and closed after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from understudy.client.stages.watching.log_lines import write_warnings

T = TypeVar("T")

CONNECT_S: Final = 10.0


def connected(addresses: Sequence[str], name: str, work: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
    """Do ``work`` with a connection, and raise what it raises.

    Args:
        addresses: of the brokers.
        name: shown to the broker as connection_name.
        work: is given the `Connection`.

    Raises:
        LostError: no broker lets us in within `CONNECT_S`.
        ConfigurationError: a broker refuses the login.
    """
    from understudy.client.stages.broker.connection import Connection  # noqa: PLC0415  # needs aio-pika

    write_warnings()

    async def run() -> T:
        connection = Connection(addresses, name, CONNECT_S)
        try:
            await connection.reach()
            return await work(connection)
        finally:
            await connection.close()

    return asyncio.run(run())
