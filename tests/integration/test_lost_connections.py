"""Connections that break under tests that kill brokers: however pika loses one, they see an error that they expect."""

from __future__ import annotations

import errno
import socket

import pytest

from tests.stress.clients import ERRORS, connect_to

pytestmark = pytest.mark.integration


def test_a_broker_that_dies_while_it_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """pika looks at the socket again after it has been connected; it is lost then, once in some thousand kills."""

    def reset(_: socket.socket) -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr(socket.socket, "getpeername", reset, raising=False)
        with pytest.raises(ERRORS, match="getpeername"):
            connect_to(listener.getsockname()[1])


def test_a_mistake_of_the_test_itself_is_not_taken_for_it() -> None:
    with pytest.raises(ValueError, match="heartbeat"):
        connect_to(1, heartbeat=-1)
