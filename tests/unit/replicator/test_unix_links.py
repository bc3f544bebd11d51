"""Links over Unix sockets: found by who is on the same machine, refused to who lacks the secret, passed over for TCP otherwise."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import subprocess
from pathlib import Path

import attrs
import pytest

from tests.unit.replicator.direct_driver_kit import Owner, Run, free_port, owners
from understudy.replicator.direct import unix_socket
from understudy.replicator.direct.link import DirectLink
from understudy.replicator.direct.unix_socket import UnixAddress, UnixSocketError, split_address

pytestmark = pytest.mark.integration  # sockets


# ---------------------------------------------------------------------------------------------------------- addresses


def test_an_address_is_read_as_it_was_published() -> None:
    here = UnixAddress("0b1c-2d", 7, 12345, "/var/lib/a: b/link.sock")
    published = here.joined_to("[::1]:7672")
    assert published.startswith("[::1]:7672 ")
    assert split_address(published) == ("[::1]:7672", here)
    assert split_address("b2.example:7672") == ("b2.example:7672", None)


@pytest.mark.parametrize(
    "rest", ["", "boot", "boot:1:2", "boot:1:2:relative", "boot:-1:2:/p", "boot:1:²:/p", ":1:2:/p"]
)
def test_what_cannot_be_understood_leaves_tcp(rest: str) -> None:
    assert split_address(f"b2:1 unix:{rest}") == ("b2:1", None)


def test_the_socket_is_for_its_owner_alone(tmp_path: Path) -> None:
    bound, address = unix_socket.bind(tmp_path / "link.sock")
    with bound:
        mode = (tmp_path / "link.sock").stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
        assert address.path == str(tmp_path / "link.sock")
        assert address.is_here
        assert unix_socket.connect(address) is None, "nobody listens yet"


def test_what_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    first, old = unix_socket.bind(tmp_path / "link.sock")
    keep_inode = os.open(tmp_path / "link.sock", os.O_PATH)  # or its number would be given away again
    second, new = unix_socket.bind(tmp_path / "link.sock")
    with first, second:
        assert new.is_here
        assert not old.is_here
        unix_socket.remove(old)
        assert new.is_here, "it is another's"
        unix_socket.remove(new)
        assert not (tmp_path / "link.sock").exists()
    os.close(keep_inode)


def test_a_file_that_is_no_socket_stays(tmp_path: Path) -> None:
    (tmp_path / "link.sock").write_text("precious")
    with pytest.raises(UnixSocketError, match="is no socket"):
        unix_socket.bind(tmp_path / "link.sock")
    assert (tmp_path / "link.sock").read_text() == "precious"


def test_a_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    name = "x" * (unix_socket.MAX_PATH_BYTES - len(str(tmp_path)) - 1)
    bound, _ = unix_socket.bind(tmp_path / name)
    bound.close()
    with pytest.raises(UnixSocketError, match="108 octets"):
        unix_socket.bind(tmp_path / (name + "x"))


def test_a_machine_that_does_not_tell_which_it_is_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix_socket, "boot_id", lambda: "")
    with pytest.raises(UnixSocketError, match="does not tell"):
        unix_socket.bind(tmp_path / "link.sock")


# -------------------------------------------------------------------------------------------------------------- links


async def listens(owner: Owner, folder: Path) -> UnixAddress:
    assert await owner.fabric.listen_unix(folder / f"{owner.fabric.settings.broker}.sock")
    address = split_address(owner.fabric.address("127.0.0.1"))[1]
    assert address is not None
    return address


async def dialed(one: Owner, other: Owner, address: str) -> DirectLink:
    one.fabric.dial(other.fabric.settings.broker, address)
    await one.until_told("dialed")
    await other.until_told("accepted")
    link = one.links[-1]
    assert isinstance(link, DirectLink)
    return link


def test_brokers_of_one_machine_talk_over_it(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with owners("b1", "b2") as (one, other):
            unix = await listens(other, tmp_path)
            mine = await dialed(one, other, other.fabric.address("127.0.0.1"))
            theirs = other.links[-1]
            assert isinstance(theirs, DirectLink)
            assert (mine.remote, theirs.remote) == (f"unix:{unix.path}", f"unix:{unix.path}")
            sent = [b"there", b"z" * 20_000_000, b"after"]
            for message in sent:
                mine.send(message)
            theirs.send(b"back")
            one.fabric.flush()
            other.fabric.flush()
            await other.until(lambda: len(other.messages()) == len(sent))
            assert other.messages() == sent
            await one.until_told("message")
            mine.close("enough")
            one.fabric.flush()
            assert await other.until_told("lost") == ("lost", "b1 ended the link: enough")

    run(main)


def test_the_file_goes_when_the_broker_stops(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with owners("b1", "b2") as (_, other):
            unix = await listens(other, tmp_path)
            assert unix.is_here
            other.fabric.close()
            assert os.listdir(tmp_path) == []  # noqa: PTH208  # one look, in a test
            assert other.fabric.address("h") == f"h:{other.fabric.port}"

    run(main)


def test_a_wrong_secret_is_refused_and_tcp_is_not_tried(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with owners("b1", "b2") as (one, other), owners("b3", secret=b"not ours") as (stranger,):
            await listens(other, tmp_path)
            stranger.fabric.dial("b2", other.fabric.address("127.0.0.1"))
            _, reason, gone = await stranger.until_told("failed")
            assert "secret" in reason
            assert "unix:" in reason
            assert gone is False
            assert other.events == []
            assert stranger.fabric.statistics().dials_failed == 1
            await dialed(one, other, other.fabric.address("127.0.0.1"))

    run(main)


@pytest.mark.parametrize("why", ["another machine", "another file", "no file", "nobody listens", "switched off"])
def test_tcp_is_used_where_the_socket_cannot_be(run: Run, tmp_path: Path, why: str) -> None:
    async def main() -> None:
        async with owners("b1", "b2", unix=why != "switched off") as (one, other):
            unix = await listens(other, tmp_path)
            dead = None
            if why == "another machine":
                unix = attrs.evolve(unix, boot="another-boot")
            elif why == "another file":
                unix = attrs.evolve(unix, inode=unix.inode + 1)
            elif why == "no file":
                unix = attrs.evolve(unix, path=str(tmp_path / "nowhere"))
            elif why == "nobody listens":
                dead, unix = unix_socket.bind(tmp_path / "dead.sock")
            mine = await dialed(one, other, unix.joined_to(f"127.0.0.1:{other.fabric.port}"))
            assert mine.remote == f"127.0.0.1:{other.fabric.port}"
            if dead is not None:
                dead.close()

    run(main)


def test_a_killed_process_that_left_its_file_is_gone(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        dead, unix = unix_socket.bind(tmp_path / "link.sock")
        dead.close()
        async with owners("b1") as (one,):
            one.fabric.dial("b2", unix.joined_to(f"127.0.0.1:{free_port()}"))
            assert (await one.until_told("failed"))[2] is True

    run(main)


def test_a_broker_whose_path_is_too_long_listens_on_tcp(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with owners("b1", "b2") as (one, other):
            assert not await other.fabric.listen_unix(tmp_path / ("x" * 120))
            assert other.fabric.address("127.0.0.1") == f"127.0.0.1:{other.fabric.port}"
            await dialed(one, other, other.fabric.address("127.0.0.1"))

    run(main)


def test_strangers_on_the_socket_are_closed(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with owners("b1", "b2") as (one, other):
            unix = await listens(other, tmp_path)
            stranger = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            stranger.connect(unix.path)
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            await other.until(lambda: True)
            await dialed(one, other, other.fabric.address("127.0.0.1"))
            assert stranger.recv(100) == b""
            stranger.close()

    run(main)


def test_tls_goes_over_it_too(run: Run, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    command += ["-subj", "/CN=understudy", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_tls.load_cert_chain(certificate, key)
    client_tls = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(certificate))
    client_tls.check_hostname = False

    async def main() -> None:
        async with owners("b1", "b2", server_tls=server_tls, client_tls=client_tls) as (one, other):
            unix = await listens(other, tmp_path)
            mine = await dialed(one, other, other.fabric.address("127.0.0.1"))
            assert mine.remote == f"unix:{unix.path}"
            mine.send(b"m")
            one.fabric.flush()
            await other.until_told("message")

    run(main)
