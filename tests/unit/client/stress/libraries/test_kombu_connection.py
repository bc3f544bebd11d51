"""AttributeError of py-amqp: the loss of a connection, or a mistake of the harness."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from understudy.client.runs.session import LostError
from understudy.client.stress.libraries.kombu_connection import KombuConnection


def connection(*, connected: bool) -> KombuConnection:
    """Its channel lacks every method."""
    made = KombuConnection.__new__(KombuConnection)
    made._connection = SimpleNamespace(connected=connected)
    made._channel = SimpleNamespace()
    made._broken = False
    return made


def test_on_a_closed_connection_it_is_a_loss() -> None:
    with pytest.raises(LostError):
        connection(connected=False).commit()


def test_on_an_open_connection_it_is_a_mistake_of_ours() -> None:
    with pytest.raises(AttributeError):
        connection(connected=True).commit()
