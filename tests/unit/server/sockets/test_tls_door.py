"""A TLS handshake of a stranger ends nobody but the stranger."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

import pytest

from understudy.broker.server.sockets.tls_door import TlsDoor


@pytest.mark.asyncio
async def test_a_handshake_that_ends_as_none_should_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any exception of the ssl module before a login leaves the broker accepting connections."""
    loop = asyncio.get_running_loop()

    async def raises(*_: Any, **__: Any) -> None:
        raise AttributeError("a mistake in the ssl module")

    monkeypatch.setattr(loop, "connect_accepted_socket", raises)
    bound = socket.create_server(("127.0.0.1", 0))
    bound.setblocking(False)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        door = TlsDoor(bound, asyncio.Protocol, context, 5.0, lambda _: True, tasks)
        for _ in range(2):
            reader, writer = await asyncio.open_connection(*bound.getsockname())
            assert await reader.read() == b""
            writer.close()
        door.close()
