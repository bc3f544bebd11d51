"""AmqpCaller and its addresses, against a broker that says what a script tells it to."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from understudy.broker.amqp.constants import PROTOCOL_HEADER
from understudy.broker.amqp.encode import HEARTBEAT_FRAME
from understudy.broker.amqp.frames import Event, FrameParser
from understudy.broker.amqp.methods import (
    CHANNEL_CLOSE,
    CHANNEL_OPEN_OK,
    CONNECTION_BLOCKED,
    CONNECTION_CLOSE,
    CONNECTION_CLOSE_OK,
    CONNECTION_OPEN_OK,
    CONNECTION_START,
    CONNECTION_TUNE,
    DTX_COMPLETE,
    DTX_COMPLETE_OK,
    DTX_FORGET_OK,
    encode_method,
    method_name,
)
from understudy.broker.command_line import amqp_call
from understudy.broker.command_line.amqp_address import AmqpAddress, AmqpUrlError
from understudy.broker.command_line.amqp_call import (
    AmqpCaller,
    CallRefusedError,
    NotConnectedError,
    OutcomeUnknownError,
    connect,
)

BRANCH = (0, b"g", b"b", True)
START = encode_method(0, CONNECTION_START, 0, 9, {"capabilities": {"understudy.dtx": True}}, b"PLAIN", b"en_US")
TUNE = encode_method(0, CONNECTION_TUNE, 10, 131072, 60)
OPEN_OK = encode_method(0, CONNECTION_OPEN_OK)
DONE = encode_method(1, DTX_COMPLETE_OK, 0)
NOTHING = b""
END = None
LOGGED_IN = [START, TUNE, NOTHING]
"""What a broker says after the protocol header, start-ok and tune-ok."""
SERVED = [*LOGGED_IN, OPEN_OK, encode_method(1, CHANNEL_OPEN_OK)]
CLOSE_OK = encode_method(0, CONNECTION_CLOSE_OK)


def close(code: int, text: str, key: int = 0) -> bytes:
    return encode_method(0, CONNECTION_CLOSE, code, text, key >> 16, key & 0xFFFF)


def close_channel(code: int, text: str) -> bytes:
    return encode_method(1, CHANNEL_CLOSE, code, text, DTX_COMPLETE >> 16, DTX_COMPLETE & 0xFFFF)


class ScriptedBroker:
    """Takes one connection; after the protocol header and after each method it says the next of its answers, or (END) hangs up.

    Attributes:
        heard: names of the methods it was sent.
        said: their arguments, by name.
    """

    def __init__(self, *answers: bytes | None) -> None:
        self.heard: list[str] = []
        self.said: dict[str, tuple[object, ...]] = {}
        self._answers = list(answers)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = AmqpAddress(port=self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        self._listener.settimeout(10)
        with contextlib.suppress(OSError):  # nobody came
            peer, _ = self._listener.accept()
            with peer:
                peer.settimeout(10)
                self._talk(peer)

    def _talk(self, peer: socket.socket) -> None:
        received = b""
        while len(received) < len(PROTOCOL_HEADER):
            received += peer.recv(100)
        assert received == PROTOCOL_HEADER
        parser = FrameParser(0)
        events: list[Event] = []
        for answer in self._answers:
            if answer is None:
                return
            peer.sendall(answer)
            while not events:
                received = peer.recv(10_000)
                if not received:
                    return
                events = parser.feed(received)
            event = events.pop(0)
            self.heard.append(method_name(event[1]))
            self.said[self.heard[-1]] = event[2]

    def ended(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._listener.close()


MakeBroker = Callable[..., ScriptedBroker]


@pytest.fixture
def make() -> Iterator[MakeBroker]:
    made: list[ScriptedBroker] = []

    def make_broker(*answers: bytes | None) -> ScriptedBroker:
        made.append(ScriptedBroker(*answers))
        return made[-1]

    yield make_broker
    for broker in made:
        broker.ended()


def test_a_call_and_its_answer(make: MakeBroker) -> None:
    broker = make(*SERVED, HEARTBEAT_FRAME + encode_method(0, CONNECTION_BLOCKED, "disk") + DONE, CLOSE_OK)
    address = AmqpAddress(port=broker.address.port, user="op", password="pässword", vhost="orders/eu")
    with connect(address) as caller:
        assert caller.capabilities == {"understudy.dtx": True}
        assert caller.address == address
        assert caller.call(DTX_COMPLETE, *BRANCH) == (0,)
    broker.ended()
    assert broker.heard == [
        "connection.start-ok",
        "connection.tune-ok",
        "connection.open",
        "channel.open",
        "dtx.complete",
        "connection.close",
    ]
    assert broker.said["connection.start-ok"][1:3] == ("PLAIN", "\0op\0pässword".encode())
    assert broker.said["connection.tune-ok"] == (10, 131072, 0)
    assert broker.said["connection.open"] == ("orders/eu",)
    assert broker.said["dtx.complete"] == BRANCH


def test_a_login_that_is_refused(make: MakeBroker) -> None:
    broker = make(START, close(403, "ACCESS_REFUSED - login refused"))
    with pytest.raises(
        NotConnectedError,
        match=r"^127\.0\.0\.1:\d+ refused the connection of user 'guest': 403 ACCESS_REFUSED - login refused$",
    ):
        connect(broker.address)
    broker.ended()
    assert broker.heard == ["connection.start-ok", "connection.close-ok"]


def test_a_backup_names_the_primary(make: MakeBroker) -> None:
    primary = make(*SERVED, DONE, CLOSE_OK)
    backup = make(*LOGGED_IN, close(320, f"NOT_PRIMARY - b2 is a backup; primary is amqp://{primary.address}"))
    with connect(AmqpAddress(port=backup.address.port, user="op", password="p", vhost="v")) as caller:
        assert caller.address.port == primary.address.port
        assert caller.call(DTX_COMPLETE, *BRANCH) == (0,)
    primary.ended()
    assert primary.said["connection.open"] == ("v",)
    assert primary.said["connection.start-ok"][2] == b"\0op\0p"


def test_nobody_leads(make: MakeBroker) -> None:
    backup = make(*LOGGED_IN, close(320, "NOT_PRIMARY - b2 is a backup; there is no primary at the moment"))
    with pytest.raises(
        NotConnectedError, match="user 'guest': 320 NOT_PRIMARY - b2 is a backup; there is no primary at"
    ):
        connect(backup.address)


def test_backups_that_name_each_other_are_not_followed_for_ever(make: MakeBroker) -> None:
    third = make(*LOGGED_IN, close(320, "NOT_PRIMARY - b3 is a backup; primary is amqp://127.0.0.1:1"))
    second = make(*LOGGED_IN, close(320, f"NOT_PRIMARY - b2 is a backup; primary is amqp://{third.address}"))
    first = make(*LOGGED_IN, close(320, f"NOT_PRIMARY - b1 is a backup; primary is amqp://{second.address}"))
    with pytest.raises(
        NotConnectedError, match=f"no primary found; {third.address} was the last asked: NOT_PRIMARY - b3"
    ):
        connect(first.address)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (404, "NOT_FOUND - no branch 0:g:b in vhost '/'"),
        (409, "ILLEGAL_STATE - branch 0:g:b in vhost '/' is active"),
    ],
)
def test_a_channel_that_is_closed_for_the_call(make: MakeBroker, code: int, text: str) -> None:
    broker = make(*SERVED, close_channel(code, text), NOTHING, CLOSE_OK)
    with connect(broker.address) as caller, pytest.raises(CallRefusedError) as refused:
        caller.call(DTX_COMPLETE, *BRANCH)
    assert str(refused.value) == f"{broker.address} refused dtx.complete: {code} {text}"
    assert refused.value.reply_code == code
    broker.ended()
    assert broker.heard[-3:] == ["dtx.complete", "channel.close-ok", "connection.close"]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (close(503, "COMMAND_INVALID - unknown method 100.110", DTX_COMPLETE), CallRefusedError),
        (close(541, "INTERNAL_ERROR - it is broken", DTX_COMPLETE), OutcomeUnknownError),
        (close(320, "NOT_PRIMARY - b2 is a backup; primary is amqp://127.0.0.1:1"), OutcomeUnknownError),
        (close(320, "CONNECTION_FORCED - the broker is shutting down"), OutcomeUnknownError),
        (END, OutcomeUnknownError),
        (b"x" * 100, OutcomeUnknownError),
    ],
    ids=["503 for it", "541 for it", "step-down", "shutdown", "end", "nonsense"],
)
def test_only_a_close_that_names_the_method_is_a_refusal(
    make: MakeBroker, answer: bytes | None, expected: type[Exception]
) -> None:
    """A primary that steps down may have logged the method: it must not be told as not done, nor be sent to another one."""
    broker = make(*SERVED, answer)
    with connect(broker.address) as caller, pytest.raises((CallRefusedError, OutcomeUnknownError)) as ended:
        caller.call(DTX_COMPLETE, *BRANCH)
    broker.ended()
    assert "dtx.complete" in broker.heard
    assert type(ended.value) is expected
    assert "dtx.complete" in str(ended.value)


def test_the_answer_of_another_method_is_none(make: MakeBroker) -> None:
    """The caller does not go on waiting for an answer that cannot come any more."""
    broker = make(*SERVED, encode_method(1, DTX_FORGET_OK, 0))
    with (
        connect(broker.address) as caller,
        pytest.raises(OutcomeUnknownError, match=r"it said dtx\.forget-ok where dtx\.complete-ok must come"),
    ):
        caller.call(DTX_COMPLETE, *BRANCH)


def test_an_answer_that_does_not_come_in_time_is_not_known(make: MakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amqp_call, "ANSWER_TIMEOUT_S", 0.05)
    broker = make(*SERVED, HEARTBEAT_FRAME)
    with connect(broker.address) as caller, pytest.raises(OutcomeUnknownError, match="it did not answer in time"):
        caller.call(DTX_COMPLETE, *BRANCH)


def test_what_is_no_broker(make: MakeBroker) -> None:
    alert = make(b"\x15\x03\x01\x00\x02\x02\x46", END)
    with pytest.raises(
        NotConnectedError, match=r"does not serve AMQP 0-9-1 clients without TLS: .*unknown frame type 21"
    ):
        connect(alert.address)


def test_nobody_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(NotConnectedError, match=rf"^no broker takes a connection at 127\.0\.0\.1:{port}: "):
        connect(AmqpAddress(port=port))


def test_a_vhost_that_cannot_be_named(make: MakeBroker) -> None:
    broker = make(START, TUNE, NOTHING)
    with pytest.raises(NotConnectedError, match=r"cannot be asked for vhost 'v{256}'"):
        AmqpCaller(AmqpAddress(port=broker.address.port, vhost="v" * 256))


# -- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("amqp://", AmqpAddress()),
        ("amqp://127.0.0.1:5672/", AmqpAddress()),
        ("amqp://h", AmqpAddress(host="h")),
        ("amqp://h:1/v", AmqpAddress(host="h", port=1, vhost="v")),
        (
            "amqp://u:p%40ss@h/%2Forders%20eu?heartbeat=5",
            AmqpAddress(host="h", user="u", password="p@ss", vhost="/orders eu"),
        ),
        ("amqp://u@[::1]:5673/%2f", AmqpAddress(host="::1", port=5673, user="u", vhost="/")),
    ],
)
def test_an_amqp_url(url: str, expected: AmqpAddress) -> None:
    assert AmqpAddress.parse(url) == expected


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("amqps://u:secret@h/", "amqps://u:***@h/: this command does not speak TLS"),
        ("http://h/", "it is written amqp://user:password@host:port/vhost"),
        ("h:5672", "it is written amqp://"),
        ("amqp:u:secret@h", "it is written amqp://"),
        ("amqp://u:secret@h:99999/", "amqp://u:***@h:99999/ is no AMQP URL: "),
        ("amqp://u:secret@[h/", "is no AMQP URL: "),
        ("amqp://u:secret@h//", "a '/' in the name of a vhost is written %2F, not '/'"),
        ("amqp://u:secret@h/v#x", "'#' is written %23"),
    ],
)
def test_what_is_no_amqp_url_is_named_without_its_password(url: str, reason: str) -> None:
    with pytest.raises(AmqpUrlError) as refused:
        AmqpAddress.parse(url)
    assert reason in str(refused.value)
    assert "secret" not in str(refused.value)


def test_an_address_is_shown_without_its_password() -> None:
    address = AmqpAddress(host="::1", user="u", password="secret")
    assert str(address) == "[::1]:5672"
    assert "secret" not in repr(address)
