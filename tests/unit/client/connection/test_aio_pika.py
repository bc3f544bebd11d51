"""Errors of aio-pika as ours, when the connection opens and later; numbers of its channels."""

from __future__ import annotations

import asyncio
import struct
from types import SimpleNamespace
from typing import Any

import pytest
from aiormq.exceptions import ConnectionNotAllowed

from understudy.client.connection.aio_pika_driver import AioPikaLink
from understudy.client.connection.aio_pika_errors import errors_as_ours
from understudy.client.connection.core.numbers import NoChannelError
from understudy.client.connection.errors import ClientError, LoginRefusedError, LostError, RefusedError


@pytest.mark.parametrize(("opening", "wanted"), [(True, LoginRefusedError), (False, LostError)])
@pytest.mark.asyncio
async def test_a_connection_that_ends_with_530_refuses_a_login_only_while_it_opens(
    opening: bool, wanted: type[ClientError]
) -> None:
    with pytest.raises(wanted, match="channel_max"):
        async with errors_as_ours(opening=opening):
            raise ConnectionNotAllowed("NOT_ALLOWED - number of channels opened reaches 2048, channel_max is 2047")


@pytest.mark.parametrize("error", [TypeError("object"), ValueError("object"), struct.error("object")], ids=repr)
@pytest.mark.asyncio
async def test_a_value_that_cannot_be_encoded_is_refused(error: Exception) -> None:
    with pytest.raises(RefusedError, match=r"0 cannot be sent: .*object"):
        async with errors_as_ours(encoding=True):
            raise error
    with pytest.raises(type(error)):  # of a commit, which may have been done
        async with errors_as_ours():
            raise error


class NumberedConnection:
    """Notes the numbers of channels that are asked for; none ever opens."""

    is_closed = False

    def __init__(self, channel_max: int) -> None:
        self.channels: dict[int, Any] = {}
        tune = SimpleNamespace(channel_max=channel_max)
        wire = SimpleNamespace(channels=self.channels, connection_tune=tune, server_properties={}, channel=self.channel)
        self.transport = SimpleNamespace(connection=wire)

    async def channel(self, number: int, *, publisher_confirms: bool, on_return_raises: bool) -> None:
        await asyncio.sleep(0)
        assert number not in self.channels
        self.channels[number] = None
        raise ConnectionResetError("no answer")


@pytest.mark.asyncio
async def test_a_link_numbers_its_channels_within_the_brokers_bound() -> None:
    connection: Any = NumberedConnection(3)
    link = AioPikaLink(connection)
    calls = [link.channel(spare=spare) for spare in (False, False, False, True)]
    raised = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in raised] == [LostError, LostError, NoChannelError, LostError]
    assert list(connection.channels) == [1, 2, 3]
