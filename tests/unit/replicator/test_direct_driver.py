"""DirectFabric over loopback, on asyncio and on uvloop: what a listener is told, in which order, and what it is never told."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import socket
import ssl
import struct
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.unit.replicator.direct_driver_kit import Owner, Run, address, free_port, link, owners
from understudy.broker.server.sockets.stranger_log import LINES
from understudy.replicator.direct import driver
from understudy.replicator.direct.framing import frame_head
from understudy.replicator.direct.link import DirectLink
from understudy.replicator.direct.session import LinkSession
from understudy.replicator.fabric import Fabric, Link

pytestmark = pytest.mark.integration  # loopback sockets


async def polled(holds: Callable[[], bool]) -> None:
    """For what nobody is told of."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0)


async def is_let_go(stranger: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    reader, writer = stranger
    with suppress(ConnectionResetError):  # an abort is a reset or an end, as the kernel likes
        assert await reader.read() == b""
    writer.close()


# ------------------------------------------------------------------------------------------------------------ messages


def test_two_brokers_link_and_talk(run: Run) -> None:
    async def main() -> None:
        async with owners("b1", "b2") as (one, other):
            fabric: Fabric = one.fabric
            assert fabric is one.fabric
            mine, theirs = await link(one, other)
            assert (mine.peer, theirs.peer) == ("b2", "b1")
            mine.send(b"there")
            theirs.send(b"back")
            one.fabric.flush()
            other.fabric.flush()
            await other.until_told("message")
            await one.until_told("message")
            assert one.events == [("dialed", "b2"), ("message", b"back")]
            assert other.events == [("accepted", "b1"), ("message", b"there")]

    run(main)


def test_long_and_many_messages_arrive_whole_and_in_order(run: Run) -> None:
    async def main() -> None:
        async with owners("b1", "b2") as (one, other):
            mine, _ = await link(one, other)
            sent = [b"%d" % n for n in range(2_000)] + [b"z" * 20_000_000] + [b"after"]
            for message in sent:
                mine.send(message)
            one.fabric.flush()
            await other.until(lambda: len(other.messages()) == len(sent))
            assert other.messages() == sent

    run(main)


def test_a_turn_ends_once_a_read_and_not_once_a_message(run: Run) -> None:
    async def main() -> None:
        async with owners("b1", "b2") as (one, other):
            mine, _ = await link(one, other)
            before = other.turns
            for n in range(500):
                mine.send(b"%d" % n)
            one.fabric.flush()
            await other.until(lambda: len(other.messages()) == 500)
            assert other.turns - before <= 3

    run(main)


def test_nothing_is_written_before_the_turn_ends(run: Run) -> None:
    async def main() -> None:
        async with owners("b1", "b2") as (one, other):
            mine, theirs = await link(one, other)
            mine.send(b"queued")
            assert mine.statistics().waiting_bytes > 0  # type: ignore[attr-defined]
            theirs.send(b"goes round")
            other.fabric.flush()
            await one.until_told("message")  # whose turn flushes
            await other.until_told("message")
            assert other.messages() == [b"queued"]

    run(main)


def test_statistics_name_the_open_links(run: Run) -> None:
    async def main() -> None:
        async with owners("b1", "b2") as (one, other):
            mine, _ = await link(one, other)
            mine.send(b"m")
            one.fabric.flush()
            await other.until_told("message")
            statistics = one.fabric.statistics()
            assert (statistics.dials, statistics.dials_failed, statistics.accepted) == (1, 0, 0)
            assert [(counts.peer, counts.messages_sent) for counts in statistics.links] == [("b2", 1)]
            assert other.fabric.statistics().accepted == 1
            mine.close("done")
            one.fabric.flush()
            await other.until_told("lost")
            assert one.fabric.statistics().links == other.fabric.statistics().links == ()
            assert (one.fabric.statistics().lost, other.fabric.statistics().lost) == (0, 1)

    run(main)


# ------------------------------------------------------------------------------------------------------------- closing


def test_a_closed_link_tells_the_peer_why_and_its_own_listener_nothing(run: Run) -> None:
    async def main() -> None:
        async with owners("b1", "b2") as (one, other):
            mine, _ = await link(one, other)
            mine.send(b"last words")
            mine.close("no longer wanted")
            mine.send(b"never")
            one.fabric.flush()
            assert await other.until_told("lost") == ("lost", "b1 ended the link: no longer wanted")
            assert other.messages() == [b"last words"]
            one.fabric.close()
            await one.fabric.wait_closed()
            assert one.kinds() == ["dialed"]

    run(main)


def test_no_message_of_a_link_is_delivered_after_the_listener_has_closed_it(run: Run) -> None:
    async def main() -> None:
        async with owners("b1", "b2") as (one, other):
            mine, _ = await link(one, other)

            def close_at_the_second(link: Link, message: bytes) -> None:
                if message == b"2":
                    link.close("enough")

            other.on_message = close_at_the_second
            for n in range(1, 10):
                mine.send(b"%d" % n)
            one.fabric.flush()
            assert await one.until_told("lost") == ("lost", "b2 ended the link: enough")
            assert other.events[1:] == [("message", b"1"), ("message", b"2")]

    run(main)


def test_the_reason_arrives_even_if_the_peer_is_in_the_middle_of_sending(run: Run) -> None:
    """Closing a socket with unread data sends a reset that may overtake the last words; so one direction ends first."""

    async def main() -> None:
        async with owners("b1", "b2") as (one, other):
            mine, _ = await link(one, other)
            other.on_message = lambda link, message: link.close("I have heard enough")
            for _ in range(50):
                mine.send(b"z" * 500_000)
            one.fabric.flush()
            assert await one.until_told("lost") == ("lost", "b2 ended the link: I have heard enough")
            assert len(other.messages()) == 1

    run(main)


def test_a_link_closed_as_soon_as_it_is_accepted_is_dialed_and_lost(run: Run) -> None:
    async def main() -> None:
        async with owners("b1", "b2") as (one, other):
            accepted = other.link_accepted

            def refuse(link: Link) -> None:
                accepted(link)
                link.close("b2 is not the primary")

            other.link_accepted = refuse  # type: ignore[method-assign]
            one.fabric.dial("b2", address(other))
            assert await one.until_told("lost") == ("lost", "b2 ended the link: b2 is not the primary")
            assert one.kinds() == ["dialed", "lost"]

    run(main)


def test_dropped_links_are_told_to_the_peers_and_not_to_the_listener(run: Run) -> None:
    async def main() -> None:
        async with owners("b1", "b2", "b3") as (one, other, third):
            await link(one, other)
            await link(third, one)
            one.fabric.dial("b2", address(other))
            one.fabric.drop_links("the core restarts")
            before = list(one.events)
            assert (await other.until_told("lost"))[1] == "b1 ended the link: the core restarts"
            assert (await third.until_told("lost"))[1] == "b1 ended the link: the core restarts"
            assert one.events == before
            one.events.clear()
            mine, theirs = await link(one, other)  # and it goes on working
            mine.send(b"there")
            other.on_message = lambda link, message: link.send(b"back")
            one.fabric.flush()
            await one.until_told("message")
            assert one.kinds() == ["dialed", "message"]
            assert theirs.peer == "b1"

    run(main)


def test_a_message_that_is_too_long_loses_the_link_but_not_inside_the_call(run: Run) -> None:
    async def main() -> None:
        async with owners("b1", "b2", max_message_bytes=1_000) as (one, other):
            mine, _ = await link(one, other)
            one.inside = True
            mine.send(b"z" * 1_001)
            one.fabric.flush()
            one.inside = False
            reason = "a message of 1001 bytes was to be sent, at most 1000 may be"
            assert await one.until_told("lost") == ("lost", reason)
            assert (await other.until_told("lost"))[1] == f"b1 ended the link: {reason}"

    run(main)


def test_a_process_that_dies_loses_its_links(run: Run) -> None:
    async def main() -> None:
        async with owners("b1", "b2") as (one, other):
            mine, _ = await link(one, other)
            assert isinstance(mine, DirectLink)
            mine.open = False  # as if there were nobody any more
            mine.abort()
            assert "b1 was lost" in (await other.until_told("lost"))[1]

    run(main)


# ------------------------------------------------------------------------------------------------------------- dialing


def test_gone_is_a_refused_connection(run: Run) -> None:
    async def main() -> None:
        async with owners("b1") as (one,):
            port = free_port()
            one.fabric.dial("b2", f"127.0.0.1:{port}")
            assert one.events == []  # never from inside the call
            _, reason, gone = await one.until_told("failed")
            assert gone is True
            assert f"broker b2 at 127.0.0.1:{port}" in reason

    run(main)


@pytest.mark.parametrize(
    "bad", ["nowhere", "127.0.0.1:", "127.0.0.1:0", ":5", "127.0.0.1:70000", "host.invalid:1", "x:²"]
)
def test_an_address_that_cannot_be_dialed_is_not_gone(run: Run, bad: str) -> None:
    async def main() -> None:
        async with owners("b1") as (one,):
            one.fabric.dial("b2", bad)
            _, reason, gone = await one.until_told("failed")
            assert gone is False
            assert bad in reason

    run(main)


def test_gone_needs_every_address_of_the_host_to_refuse(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with owners("b1") as (one,):
            port = free_port()
            refusing = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))
            unreachable = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("255.255.255.255", port))

            class Loop:
                def __init__(self, real: asyncio.AbstractEventLoop) -> None:
                    self.real = real
                    self.infos: list[Any] = []

                async def getaddrinfo(self, *args: Any, **kwargs: Any) -> list[Any]:
                    return self.infos

                def __getattr__(self, name: str) -> Any:
                    return getattr(self.real, name)

            loop = Loop(asyncio.get_running_loop())
            monkeypatch.setattr(one.fabric, "_loop", loop)
            for infos, gone in (([refusing, refusing], True), ([refusing, unreachable], False)):
                loop.infos = infos
                one.events.clear()
                one.fabric.dial("b2", f"b2.example:{port}")
                assert (await one.until_told("failed"))[2] is gone

    run(main)


def test_a_connection_that_reaches_itself_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """TCP allows it: connect from a port of loopback to the same port, and nobody else is there."""

    async def main() -> None:
        async with owners("b1") as (one,):
            loop = asyncio.get_running_loop()
            connect = loop.sock_connect

            async def connect_from_the_same_port(sock: socket.socket, to: Any) -> None:
                sock.bind(to)
                await connect(sock, to)

            monkeypatch.setattr(loop, "sock_connect", connect_from_the_same_port)
            one.fabric.dial("b2", f"127.0.0.1:{free_port()}")
            assert (await one.until_told("failed"))[2] is True

    asyncio.run(main())


@asynccontextmanager
async def a_dialer_nobody_answers(
    monkeypatch: pytest.MonkeyPatch, ends: Callable[[DirectLink], None], answer: OSError | None = None
) -> AsyncIterator[tuple[Owner, Owner]]:
    """b1 was linked to b2 until ``ends`` of b2's end; from then on b1's dials get no answer, or an error of its own kernel."""
    async with owners("b1", "b2", handshake_timeout_ms=300) as (dialer, other):
        _, far = await link(dialer, other)
        assert isinstance(far, DirectLink)
        ends(far)
        other.fabric.flush()
        await dialer.until_told("lost")

        async def silence(sock: socket.socket, to: Any) -> None:
            if answer is not None:
                raise answer
            await asyncio.Event().wait()

        monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", silence)
        yield dialer, other


def hang_up(far: DirectLink) -> None:
    far.open = False
    far.abort()


NO_ROUTE = OSError(errno.EHOSTUNREACH, "No route to host")


@pytest.mark.parametrize(
    ("ends", "answer", "later_ms", "gone"),
    [
        (hang_up, None, 0, True),
        (hang_up, NO_ROUTE, 0, True),
        (hang_up, None, 10_000, False),
        (lambda far: far.close("the core restarts"), None, 0, False),
        (lambda far: far.close("the core restarts"), NO_ROUTE, 0, False),
        (hang_up, OSError(errno.ENETUNREACH, "Network is unreachable"), 0, False),
    ],
    ids=["silence", "no route", "later", "after a goodbye", "no route after a goodbye", "own network down"],
)
def test_gone_is_a_link_that_was_hung_up_and_silence(
    monkeypatch: pytest.MonkeyPatch,
    ends: Callable[[DirectLink], None],
    answer: OSError | None,
    later_ms: int,
    gone: bool,
) -> None:
    monkeypatch.setattr(driver, "SILENT_MS", 50)

    async def main() -> None:
        async with a_dialer_nobody_answers(monkeypatch, ends, answer) as (dialer, other):
            dialer.late_ms = later_ms
            dialer.fabric.dial("b2", f"127.0.0.1:{other.fabric.port}")
            _, reason, told = await dialer.until_told("failed")
            assert told is gone
            assert ("hung up, and nobody answers" in reason) is (gone and answer is None)

    asyncio.run(main())


def test_a_link_that_was_made_again_is_forgiven(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with owners("b1", "b2") as (dialer, other):
            _, far = await link(dialer, other)
            assert isinstance(far, DirectLink)
            hang_up(far)
            await dialer.until_told("lost")
            assert dialer.fabric._hang_ups.is_fresh("b2", dialer.fabric.now_ms())
            dialer.events.clear()
            await link(dialer, other)
            assert not dialer.fabric._hang_ups.is_fresh("b2", dialer.fabric.now_ms())

    run(main)


async def refusing_server(behave: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> Any:
    return await asyncio.start_server(behave, "127.0.0.1", 0)


def test_a_connection_that_is_reset_is_not_gone(run: Run) -> None:
    async def reset(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async def main() -> None:
        async with owners("b1") as (one,), await refusing_server(reset) as server:
            one.fabric.dial("b2", f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
            _, reason, gone = await one.until_told("failed")
            assert gone is False
            assert "broker b2" in reason

    run(main)


def test_somebody_who_says_nothing_is_not_gone_and_not_waited_for(run: Run) -> None:
    async def main() -> None:
        greeted = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            greeted.set()
            await reader.read()
            writer.close()

        async with owners("b1") as (one,), await refusing_server(silent) as server:
            one.fabric.dial("b2", f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
            await greeted.wait()
            one.fabric.tick(one.fabric.now_ms())
            assert one.events == []
            one.late_ms = 10_000
            one.fabric.tick(one.fabric.now_ms())
            _, reason, gone = one.events[0]
            assert gone is False
            assert "still waits for an ANSWER" in reason

    run(main)


# ------------------------------------------------------------------------------------------------------------- refusals


def test_a_wrong_secret_is_refused_told_to_the_dialer_and_logged_once(run: Run) -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            one, other = Owner("b1", tasks, secret=b"wrong"), Owner("b2", tasks)
            await other.fabric.listen("127.0.0.1", 0)
            with structlog.testing.capture_logs() as logs:
                for attempt in range(1, 4):
                    one.fabric.dial("b2", address(other))
                    await one.until(partial(one.told_at_least, attempt))
                await polled(lambda: other.fabric.statistics().refused == 3)
            for _, reason, gone in one.events:
                assert gone is False
                assert "link.secret" in reason
            assert other.events == []
            refused = [log for log in logs if log["event"] == "peer refused"]
            assert len(refused) == 1
            assert "link.secret" in refused[0]["reason"]
            assert refused[0]["log_level"] == "warning"
            assert "wrong" not in str(logs)
            for owner in (one, other):
                owner.fabric.close()
                await owner.fabric.wait_closed()

    run(main)


def test_strangers_that_each_say_something_else_are_counted(run: Run) -> None:
    """13,000 of them wrote 560 KB into the log: each had a reason of its own, so each was logged."""

    async def main() -> None:
        async with owners("b1") as (one,):
            with structlog.testing.capture_logs() as logs:
                for number in range(60):
                    _, writer = await asyncio.open_connection("127.0.0.1", one.fabric.port)
                    writer.write(frame_head(number + 20, b""))
                    await polled(lambda number=number: one.fabric.statistics().refused == number + 1)  # type: ignore[misc]
                    writer.close()
            assert len([log for log in logs if log["event"] == "peer refused"]) == LINES

    run(main)


def test_a_stranger_that_comes_again_and_again_is_logged_once(run: Run) -> None:
    """Each attempt used to be logged: the reason named the port, or how many milliseconds the stranger had been waited for."""

    async def main() -> None:
        async with owners("b1", handshake_timeout_ms=1_000) as (one,):
            with structlog.testing.capture_logs() as logs:
                for attempt in range(1, 4):
                    _, writer = await asyncio.open_connection("127.0.0.1", one.fabric.port)
                    await polled(lambda: len(one.fabric._links) == 1)
                    writer.close()
                    await polled(lambda attempt=attempt: one.fabric.statistics().refused == attempt)  # type: ignore[misc]
                for attempt in range(4, 7):
                    stranger = await asyncio.open_connection("127.0.0.1", one.fabric.port)
                    await polled(lambda: len(one.fabric._links) == 1)
                    one.fabric.tick(one.fabric.now_ms() + 1_000 + attempt)
                    await is_let_go(stranger)
                    await polled(lambda: not one.fabric._links)
            assert one.fabric.statistics().refused == 6
            assert [log["reason"] for log in logs if log["event"] == "peer refused"] == [
                "the connection to 127.0.0.1 was lost: closed there",
                "the handshake was not over after 1000 ms: still waits for a HELLO",
            ]

    run(main)


def test_a_broker_of_another_group_is_refused_with_both_names(run: Run) -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            one, other = Owner("b1", tasks, group="red"), Owner("b2", tasks, group="blue")
            await other.fabric.listen("127.0.0.1", 0)
            one.fabric.dial("b2", address(other))
            _, reason, gone = await one.until_told("failed")
            assert gone is False
            assert "group differs: b1 has 'red', b2 has 'blue'" in reason
            for owner in (one, other):
                owner.fabric.close()
                await owner.fabric.wait_closed()

    run(main)


def test_garbage_closes_its_own_connection_and_nobody_elses(run: Run) -> None:
    async def main() -> None:
        async with owners("b1", "b2") as (one, other):
            mine, _ = await link(one, other)
            reader, writer = await asyncio.open_connection("127.0.0.1", other.fabric.port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert await reader.read() == b""
            writer.close()
            mine.send(b"still here")
            one.fabric.flush()
            await other.until_told("message")
            assert other.kinds() == ["accepted", "message"]

    run(main)


def test_strangers_that_only_connect_are_bounded_and_keep_no_broker_out(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers used to keep brokers out: a broker that came when all places were taken was turned away."""
    monkeypatch.setattr(driver, "MAX_HANDSHAKES", 3)

    async def main() -> None:
        async with owners("b1", "b2") as (one, other):
            strangers = []
            for count in range(1, 4):
                strangers.append(await asyncio.open_connection("127.0.0.1", other.fabric.port))
                await polled(lambda count=count: len(other.fabric._links) == count)  # type: ignore[misc]
            await link(one, other)
            await is_let_go(strangers.pop(0))
            assert other.fabric.statistics().refused == 1
            strangers += [await asyncio.open_connection("127.0.0.1", other.fabric.port) for _ in range(4)]
            for stranger in strangers[:3]:
                await is_let_go(stranger)
            assert other.fabric.statistics().refused == 4
            assert other.kinds() == ["accepted"]
            for _, writer in strangers[3:]:
                writer.close()

    run(main)


# ---------------------------------------------------------------------------------------------------------------- time


def everything_has_arrived(sender: Owner, receiver: Owner) -> bool:
    sent, received = (owner.fabric.statistics().links[0] for owner in (sender, receiver))
    return sent.bytes_sent == received.bytes_received


def test_silence_is_a_lost_link_and_heartbeats_are_not_silence(run: Run) -> None:
    async def main() -> None:
        async with owners("b1", "b2", heartbeat_ms=100, dead_after_ms=500) as (one, other):
            await link(one, other)
            for _ in range(20):  # two seconds of heartbeats
                for owner in (one, other):
                    owner.late_ms += 100
                    owner.fabric.tick(owner.fabric.now_ms())
                await polled(lambda: everything_has_arrived(one, other) and everything_has_arrived(other, one))
            assert one.fabric.statistics().links[0].messages_received == 0
            assert one.kinds() == ["dialed"]
            one.late_ms += 600  # and now the other end is silent
            one.fabric.tick(one.fabric.now_ms())
            one.late_ms += 10
            one.fabric.tick(one.fabric.now_ms())
            assert "nothing was heard from b2 for 6" in one.events[-1][1]
            assert "nothing was heard" in (await other.until_told("lost"))[1]

    run(main)


# ----------------------------------------------------------------------------------------------------------------- TLS


def tls_contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The server's side, and that of a client who trusts it."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=localhost "
        f"-addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_tls.load_cert_chain(certificate, key)
    return server_tls, ssl.create_default_context(cafile=certificate)


def test_strangers_that_do_not_even_begin_with_tls_are_bounded_and_keep_no_broker_out(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stranger used to hold a descriptor for as long as a handshake may take, and the journal needs some, too."""
    monkeypatch.setattr(driver, "MAX_HANDSHAKES", 3)
    server_tls, trusting = tls_contexts(tmp_path)

    async def main() -> None:
        async with owners("b1", "b2", server_tls=server_tls, client_tls=trusting) as (one, other):
            strangers = [await asyncio.open_connection("127.0.0.1", other.fabric.port) for _ in range(5)]
            for _ in range(2):
                await is_let_go(strangers.pop(0))
            assert other.fabric.statistics().refused == 2
            await link(one, other)
            await is_let_go(strangers.pop(0))
            assert other.fabric.statistics().refused == 3
            for _, writer in strangers:
                writer.close()
                await writer.wait_closed()

    run(main)


def test_links_over_renewed_certificates(run: Run, tmp_path: Path) -> None:
    """A link that is there stays; the next one is made with the new certificates, on both sides."""
    server_tls, trusting = tls_contexts(tmp_path)
    (renewed := tmp_path / "renewed").mkdir()
    sides = tls_contexts(renewed)

    async def main() -> None:
        async with owners("b1", "b2", server_tls=server_tls, client_tls=trusting) as (one, other):
            mine, _ = await link(one, other)
            other.fabric.renew_tls(*sides)
            other.fabric.dial("b1", f"127.0.0.1:{one.fabric.port}")
            assert "certificate" in (await other.until_told("failed"))[1]
            one.fabric.renew_tls(*sides)
            await link(other, one)
            mine.send(b"z")
            one.fabric.flush()
            await other.until_told("message")

    run(main)


def test_links_over_tls(run: Run, tmp_path: Path) -> None:
    server_tls, trusting = tls_contexts(tmp_path)
    distrusting = ssl.create_default_context()

    async def main() -> None:
        async with owners("b1", "b2", server_tls=server_tls, client_tls=trusting) as (one, other):
            mine, _ = await link(one, other)
            mine.send(b"z" * 1_000_000)
            one.fabric.flush()
            await other.until_told("message")
            mine.close("enough")
            one.fabric.flush()
            assert (await other.until_told("lost"))[1] == "b1 ended the link: enough"

        async with asyncio.TaskGroup() as tasks:
            one = Owner("b1", tasks, server_tls=server_tls, client_tls=distrusting)
            other = Owner("b2", tasks, server_tls=server_tls, client_tls=trusting)
            await other.fabric.listen("127.0.0.1", 0)
            one.fabric.dial("b2", address(other))
            _, reason, gone = await one.until_told("failed")
            assert gone is False
            assert "certificate" in reason
            for owner in (one, other):
                owner.fabric.close()
                await owner.fabric.wait_closed()

    run(main)


# ------------------------------------------------------------------------------------------ a link without a connection


class FakeTransport:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.written = b""

    def write(self, chunk: bytes, /) -> None:
        self.calls.append("write")
        self.written += chunk

    def writelines(self, chunks: Sequence[bytes], /) -> None:
        self.write(b"".join(chunks))

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.calls.append("eof")

    def is_closing(self) -> bool:
        return "close" in self.calls or "abort" in self.calls

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")


def test_all_that_a_turn_says_on_a_link_is_one_write_and_a_peer_that_will_not_go_is_cut_off() -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            one = Owner("b1", tasks)
            transport = FakeTransport()
            session = one.fabric.settings.session("b2", 0)
            mine = DirectLink(one.fabric, session, linger_ms=5_000, wanted="b2", remote="there:1")
            mine.connect(transport, "")
            other = LinkSession(
                dialing=False, group="g", broker="b2", secret=b"s", nonce=b"n" * 16, agreed={}, now_ms=0
            )
            while not mine.open:
                other.receive(transport.written, 0)
                transport.written = b""
                mine.data_received(b"".join(other.take_output()))
            transport.calls.clear()
            for _ in range(10):
                mine.send(b"m")
            one.fabric.flush()
            one.fabric.flush()
            assert transport.calls == ["write"]
            mine.close("enough")
            one.fabric.flush()
            assert transport.calls == ["write", "write", "eof"]
            one.late_ms = 4_900
            one.fabric.tick(one.fabric.now_ms())
            assert "abort" not in transport.calls
            one.late_ms = 5_000
            one.fabric.tick(one.fabric.now_ms())
            assert transport.calls[-1] == "abort"
            mine.connection_lost(None)
            assert one.kinds() == ["dialed"]

    asyncio.run(main())


def test_a_dial_that_is_lost_at_its_first_write_closes_one_descriptor(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvloop closes it, and does not tell the socket. The socket's end closed whatever had the number by then."""

    async def main() -> None:
        async with owners("b1", "b2") as (one, other):

            async def connect(*_: object) -> socket.socket:
                mine, theirs = socket.socketpair()
                theirs.close()
                return mine

            monkeypatch.setattr(one.fabric, "_connect", connect)
            opened: list[int] = []
            one.when_told = lambda: opened.append(os.open(os.devnull, os.O_RDONLY))
            one.fabric.dial("b2", address(other))
            await one.until_told("failed")
            for _ in range(10):
                await asyncio.sleep(0)
            gc.collect()
            assert opened
            for descriptor in opened:
                os.close(descriptor)  # raises if it was closed

    run(main)


# ------------------------------------------------------------------------------------------------ clients that are carried


def echo(transport: asyncio.Transport) -> None:
    """Takes the connection of a carried client."""
    Echo(transport)


class Echo(asyncio.Protocol):
    """The protocol that takes the connection of a carried client."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        transport.set_protocol(self)
        transport.write(b"welcome ")

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class CarriedEnd(asyncio.Protocol):
    """The end of a dial that carries a client, and then its protocol."""

    def __init__(self) -> None:
        self.came = b""
        self.failures: list[tuple[str, bool]] = []
        self.transport: asyncio.Transport | None = None

    def connected(self, transport: asyncio.Transport, rest: bytes) -> None:
        self.came, self.transport = rest, transport
        transport.set_protocol(self)
        transport.write(b"hello")

    def data_received(self, data: bytes) -> None:
        self.came += data

    def failed(self, reason: str, *, final: bool) -> None:
        self.failures.append((reason, final))


@pytest.mark.parametrize("over", ["tcp", "unix", "tls"])
def test_a_client_is_carried(run: Run, over: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {}
    if over == "tls":
        server_tls, trusting = tls_contexts(tmp_path)
        settings = {"server_tls": server_tls, "client_tls": trusting}

    async def main() -> None:
        async with owners("b1", "b2", **settings) as (one, other):
            if over == "unix":
                assert await other.fabric.listen_unix(tmp_path / "link.sock")
            asked: list[tuple[str, bytes]] = []

            def takes(carrier: str, client: bytes) -> Callable[[asyncio.Transport], None]:
                asked.append((carrier, client))
                return echo

            other.fabric.takes_carried = takes
            end = CarriedEnd()
            where = other.fabric.address("127.0.0.1")
            one.fabric.carry("b2", where, b"a client", end)
            await polled(lambda: end.came == b"welcome hello")
            assert asked == [("b1", b"a client")]
            assert one.events == other.events == []
            one.fabric.drop_links("a core ends")
            other.fabric.drop_links("a core ends")
            assert end.transport is not None
            end.transport.write(b" again")
            await polled(lambda: end.came == b"welcome hello again")
            end.transport.close()

    run(main)


def test_a_client_that_is_not_served_there_is_told_why(run: Run) -> None:
    async def main() -> None:
        async with owners("b1", "b2") as (one, other):
            end = CarriedEnd()
            one.fabric.carry("b2", address(other), b"a client", end)
            await polled(lambda: bool(end.failures))
            one.fabric.carry("b2", "127.0.0.1:1", b"a client", end)
            await polled(lambda: len(end.failures) == 2)
            one.fabric.carry("b3", address(other), b"a client", end)
            await polled(lambda: len(end.failures) == 3)
            gone = CarriedEnd()
            cancel = one.fabric.carry("b2", address(other), b"a client", gone)
            await asyncio.sleep(0)
            cancel()
            one.fabric.carry("b2", address(other), b"a client", end)
            await polled(lambda: len(end.failures) == 4)
            (refused, closed, wrong, again) = end.failures
            assert (again, gone.failures) == (refused, [])
            assert refused[0].endswith("refused by b2: this broker takes no clients of others")
            assert "refused" in closed[0]
            assert "b1 looks for broker 'b3', and found 'b2'" in wrong[0]
            assert [final for _, final in end.failures] == [False, False, True, False]

    run(main)


def test_without_a_secret_clients_are_carried_over_a_unix_socket_only(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with owners("b1", "b2", secret=b"") as (one, other):
            assert await other.fabric.listen_unix(tmp_path / "link.sock")
            other.fabric.takes_carried = lambda _, __: echo
            end = CarriedEnd()
            one.fabric.carry("b2", address(other), b"a client", end)
            await polled(lambda: bool(end.failures))
            assert end.failures == [(driver.UNPROVED, True)]
            one.fabric.carry("b2", other.fabric.address("127.0.0.1"), b"a client", end)
            await polled(lambda: end.came == b"welcome hello")
            assert end.transport is not None
            end.transport.close()

    run(main)
