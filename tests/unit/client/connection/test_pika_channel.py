"""PikaChannel over a channel of pika whose frames are encoded and sent nowhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika.callback
import pika.channel
import pika.frame
import pika.spec
import pytest

from understudy.client.connection.core.messages import Outgoing
from understudy.client.connection.core.numbers import ChannelNumbers, NoChannelError
from understudy.client.connection.core.topology import Queue
from understudy.client.connection.errors import LostError, RefusedError
from understudy.client.connection.pika_channel import PikaChannel
from understudy.client.connection.pika_link import PikaLink


class Wire:
    """The connection, as pika's channel uses it."""

    def __init__(self) -> None:
        self.callbacks = pika.callback.CallbackManager()
        self.sent: list[str] = []

    def _send_method(self, number: int, method: Any, content: Any = None) -> None:
        pika.frame.Method(number, method).marshal()
        if content is not None:
            pika.frame.Header(number, len(content[1]), content[0]).marshal()
        self.sent.append(method.NAME)


class InlineLink(PikaLink):
    """A link without a thread: `asked` makes the calls, all that were handed over until then."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], Any]] = []
        self.within = False
        self._waiting = set()
        self._channels = set()

    @property
    def lives(self) -> bool:
        return True

    def soon(self, call: Callable[[], Any]) -> None:
        self.calls.append(call)

    def asked(self, request: Any, waiting: Any = None) -> Any:
        self.soon = self._soon_at_once  # type: ignore[method-assign]
        return super().asked(request, waiting)

    def _soon_at_once(self, call: Callable[[], Any]) -> None:
        self.calls.append(call)
        self.make()

    def make(self) -> None:
        self.within = True
        calls, self.calls = self.calls, []
        for call in calls:
            self._guarded(call, None)
        self.within = False


class WatchedChannel(pika.channel.Channel):  # type: ignore[misc]  # untyped
    """Notes who adds callbacks."""

    link: InlineLink
    foreign = False

    def add_on_close_callback(self, callback: Any) -> None:
        self.foreign |= not self.link.within
        super().add_on_close_callback(callback)


@pytest.fixture
def link() -> InlineLink:
    return InlineLink()


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def of_pika(link: InlineLink, wire: Wire) -> WatchedChannel:
    made = WatchedChannel(wire, 1, None)
    made.link = link
    made._set_state(made.OPEN)  # as of channel.open-ok
    return made


@pytest.fixture
def channel(link: InlineLink, of_pika: WatchedChannel) -> PikaChannel:
    link.within = True
    made = PikaChannel(link, of_pika)
    link.within = False
    return made


def test_a_message_that_cannot_be_encoded_refuses_the_commit_behind_it(channel: PikaChannel, wire: Wire) -> None:
    channel.publish(Outgoing(body=b"", routing_key="q", headers={"of": object()}))
    with pytest.raises(RefusedError, match=r"0 cannot be sent: .*object"):
        channel.commit()
    assert not channel.lives
    assert wire.sent == ["Channel.Close"]
    with pytest.raises(RefusedError, match="cannot be sent"):
        channel.acknowledge(1)


def nested(depth: int) -> Any:
    value: Any = "x"
    for number in range(depth):
        value = [value] if number % 2 else {"a": value}
    return value


def test_headers_that_the_broker_cannot_read_are_not_sent(channel: PikaChannel) -> None:
    """The broker closed the connection, and the connection tried again with the next one."""
    channel.publish(Outgoing(body=b"", routing_key="q", headers={"of": nested(64)}))
    with pytest.raises(RefusedError, match=r"0 cannot be sent: .*'of' are nested deeper than 64"):
        channel.publish(Outgoing(body=b"", routing_key="q", headers={"of": nested(65)}))
    channel._check()  # nothing has failed behind it


@pytest.mark.parametrize(
    "arguments", [{"x": object()}, {"x" * 256: 1}, {1: 1}, {"x": 1 << 70}, {"x": "\udc80"}, {"x": nested(65)}]
)
def test_a_declaration_that_cannot_be_encoded_is_refused(
    channel: PikaChannel, wire: Wire, arguments: dict[Any, Any]
) -> None:
    with pytest.raises(RefusedError, match="cannot be sent"):
        channel.declare(Queue(name="q", arguments=arguments))
    assert wire.sent == ["Channel.Close"]


class NumberedConnection:
    """Notes the numbers of channels that are asked for."""

    def __init__(self) -> None:
        self._channels: dict[int, Any] = {}

    def channel(self, number: int, on_open_callback: Any) -> None:
        self._channels[number] = on_open_callback
        raise LostError("no answer")


def test_a_link_numbers_its_channels_within_the_brokers_bound(link: InlineLink) -> None:
    link._numbers = ChannelNumbers(3)
    link._connection = connection = NumberedConnection()
    for spare, wanted in ((False, LostError), (False, LostError), (False, NoChannelError), (True, LostError)):
        with pytest.raises(LostError) as raised:
            link.channel(spare=spare)
        assert raised.type is wanted
    assert list(connection._channels) == [1, 2, 3]


@pytest.mark.parametrize("meanwhile", ["", "closing", "closed"])
def test_a_channel_is_closed_in_the_thread_of_its_link(
    channel: PikaChannel, link: InlineLink, wire: Wire, of_pika: WatchedChannel, meanwhile: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("understudy.client.connection.pika_channel.CLOSE_TIMEOUT_S", 0.0)
    if meanwhile:
        link.soon(of_pika.close)
    if meanwhile == "closed":
        link.soon(lambda: of_pika._on_closeok(pika.frame.Method(1, pika.spec.Channel.CloseOk())))
    channel.close()
    assert not of_pika.foreign
    link.make()
    assert not of_pika.foreign
    assert wire.sent == ["Channel.Close"]
