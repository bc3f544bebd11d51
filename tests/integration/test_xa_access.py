"""Access to a state server: users of the machine, clients without the secret, readers, certificates, strangers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import socket
import ssl
import subprocess
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.broker_process import PROGRAM, STOP_TIMEOUT_S, free_port, wait_until
from tests.integration.certificates import certificate
from tests.integration.xa_place import forked
from tests.integration.xa_servers import FINGERPRINT, JOB, Server, ServerProcess, ended, secret_file
from understudy.xa import TransactionManager
from understudy.xa.core.errors import AccessError, ConfigError, ReadOnlyError, StateServerError, StateServerLostError
from understudy.xa.core.profiles.profile import profile_of
from understudy.xa.core.profiles.servers import Login
from understudy.xa.core.register.access import Access
from understudy.xa.core.register.wire import Begin, Claim, Claimed, Decide, Done, Forget, Ok, Rule, Take
from understudy.xa.sockets.link import StateLink
from understudy.xa.state_server import door
from understudy.xa.state_server.door import Door, Visitor
from understudy.xa.state_server.entrance import Doors, Entrance
from understudy.xa.state_server.listening import listening

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may enter: pytest's own are closed."""
    with tempfile.TemporaryDirectory(prefix="understudy-access-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


def as_nobody(body: Callable[[], object]) -> int:
    """Run something in a process of user nobody; 0 if it raises nothing."""
    return as_user("nobody", body)


def as_user(name: str, body: Callable[[], object]) -> int:
    """Run something in a process of a user; 0 if it raises nothing. The tests run as root for this."""
    assert os.geteuid() == 0, f"only root can become the user {name}"

    def runs() -> None:
        user = pwd.getpwnam(name)
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
        try:
            body()
        except BaseException:
            traceback.print_exc()
            raise

    return forked(runs)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become the user nobody")


def link(address: str, login: Login = Login(), job: str = JOB) -> StateLink:  # noqa: B008  # it is frozen
    return StateLink(address, job=job, profile="shop", fingerprint=FINGERPRINT, timeout_s=30, login=login)


# -- the socket of a file -------------------------------------------------------------------------------------------------


@needs_root
@pytest.mark.parametrize("workers", ["1", "2"])
def test_another_user_does_not_come_to_the_default_socket(
    folder: Path, monkeypatch: pytest.MonkeyPatch, workers: str
) -> None:
    """Neither by its permissions nor, when somebody has widened them, by the user that the system tells."""
    monkeypatch.setenv("HOME", str(folder))
    command = [str(PROGRAM), "state-server", "--data", str(folder / "state"), "--workers", workers]
    log = folder / "log"
    with log.open("wb") as stream, Server(command, stdout=stream, stderr=stream) as server:
        wait_until("it serves", lambda: b"state server at unix:~/.understudy/state-server.sock" in log.read_bytes())
        own = folder / ".understudy"
        modes = [own.stat().st_mode & 0o777, (own / "state-server.sock").stat().st_mode & 0o777]
        assert modes == [0o700, 0o600]
        with link("unix:~/.understudy/state-server.sock") as mine:
            assert mine.ask(Begin("decided", ["bank"])) == Ok()
            assert mine.ask(Decide("decided")) == Ok()
            address = f"unix:{own}/state-server.sock"
            assert as_nobody(lambda: refused(address, StateServerError, "Permission denied")) == 0
            own.chmod(0o711)
            (own / "state-server.sock").chmod(0o666)
            assert as_nobody(lambda: refused(address, AccessError, "serves user 0 and root")) == 0
            assert as_nobody(lambda: says_nothing_of(address, b"decided")) == 0
            assert mine.ask(Done("decided")) == Ok()
        server.terminate()
        assert server.wait(STOP_TIMEOUT_S) == 0
    assert "turned away: the client runs as user" in log.read_text()


def refused(address: str, kind: type[Exception], text: str, login: Login = Login()) -> None:  # noqa: B008  # as above
    with pytest.raises(kind, match=text):
        link(address, login)


def says_nothing_of(address: str, secret: bytes) -> None:
    """A client of its own: it sends what it likes, and reads all that comes."""
    with connection(address) as raw:
        with contextlib.suppress(OSError):
            raw.sendall(b'{"say":"hello","version":1,"job":"j","profile":"p","fingerprint":"f"}\n{"say":"list"}\n' * 3)
        assert secret not in everything(raw)


def connection(address: str) -> socket.socket:
    if address.startswith("unix:"):
        raw = socket.socket(socket.AF_UNIX)
        raw.settimeout(30)
        raw.connect(address.removeprefix("unix:"))
        return raw
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), 30)


def everything(raw: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionError):
        while part := raw.recv(65536):
            found += part
    return found


@needs_root
def test_a_socket_of_another_user_is_no_state_server(folder: Path) -> None:
    """A user has put it where all may, before the state server came."""
    folder.chmod(0o1777)
    address = f"unix:{folder}/s"
    read, write = os.pipe()

    def squats() -> None:
        with socket.socket(socket.AF_UNIX) as squatter:
            squatter.bind(f"{folder}/s")
            squatter.listen()
            os.write(write, b"x")
            squatter.accept()[0].recv(1)  # the client has gone, and has said nothing

    pid = os.fork()
    if pid == 0:
        os._exit(as_nobody(squats))
    os.read(read, 1)
    refused(address, AccessError, f"at {address} a process of user .* listens, and the state server's user is one of 0")
    assert os.waitpid(pid, 0)[1] == 0
    os.close(read)
    os.close(write)


@needs_root
def test_the_owner_of_a_folder_is_no_state_server_to_another_user(folder: Path) -> None:
    """A user has made the folder where all may, before the state server came."""
    folder.chmod(0o1777)
    read, write = os.pipe()

    def squats() -> None:
        (folder / "state").mkdir(mode=0o755)
        with socket.socket(socket.AF_UNIX) as squatter:
            squatter.bind(f"{folder}/state/s")
            Path(f"{folder}/state/s").chmod(0o777)
            squatter.listen()
            os.write(write, b"x")
            client, _ = squatter.accept()
            if client.recv(1):
                client.sendall(b'{"say":"ok"}\n')
                raise AssertionError("the client has said something")

    pid = os.fork()
    if pid == 0:
        os._exit(as_user("nobody", squats))
    os.read(read, 1)
    address = f"unix:{folder}/state/s"
    text = f"at {address} a process of user .* listens, and the state server's user is one of 0, {pwd.getpwnam('daemon').pw_uid}"
    assert as_user("daemon", lambda: refused(address, AccessError, text)) == 0
    assert os.waitpid(pid, 0)[1] == 0
    os.close(read)
    os.close(write)


def test_a_client_waits_while_the_queue_of_a_socket_is_full(folder: Path) -> None:
    """The system refuses at once, and not after a time as with TCP."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket(socket.AF_UNIX))
        server.bind(f"{folder}/s")
        server.listen(0)
        waiting = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                one = stack.enter_context(socket.socket(socket.AF_UNIX))
                one.setblocking(False)
                one.connect(f"{folder}/s")
                waiting += 1
        assert waiting

        def serves() -> None:
            for _ in range(waiting):
                stack.enter_context(server.accept()[0])
            client = stack.enter_context(server.accept()[0])
            client.recv(1000)
            client.sendall(b'{"say":"ok"}\n')

        late = threading.Timer(0.3, serves)
        late.start()
        link(f"unix:{folder}/s").close()
        late.join()


@needs_root
def test_that_root_comes_in_is_told_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def comes(address: str) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)  # the server's user
        for _ in range(2):
            with connection(address) as client:
                client.sendall(b"hello\n")
                assert client.recv(100) == b"hello\n"

    assert asyncio.run(at_a_door(folder, {}, comes)) == ["hello\n"] * 2
    assert capfd.readouterr().err == "understudy state-server: a client of root comes in\n"


# -- TCP ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["1", "2"])
def tcp(folder: Path, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    """A server with both secrets on a port; it logs neither."""
    change, reads = secret_file(folder, "change"), secret_file(folder, "reads")
    server = ServerProcess(
        folder, "state", "--data", str(folder / "state"), "--workers", request.param,
        "--secret-file", str(change), "--read-secret-file", str(reads),
    )  # fmt: skip
    server.address = f"127.0.0.1:{free_port()}"
    with ended(server):
        server.start("--listen", server.address)
        yield server
        assert server.stop() == 0
    for path in (change, reads):
        assert path.read_text().strip() not in server.log.read_text() + server.out.read_text()


def with_secret(folder: Path, name: str) -> Login:
    return Login(secret_file=str(folder / name))


@needs_root
def test_another_user_decides_nothing_on_a_port(folder: Path, tcp: ServerProcess) -> None:
    """The attack of old: list, then claim and done, or claim and decide."""
    with link(tcp.address, with_secret(folder, "change"), "theirs") as mine:
        assert mine.ask(Begin("decided", ["bank"])) == Ok()
        assert mine.ask(Decide("decided")) == Ok()
    for body in (
        lambda: refused(tcp.address, AccessError, "asks for a shared secret, and the client has none"),
        lambda: says_nothing_of(tcp.address, b"decided"),
        lambda: refused(tcp.address, ConfigError, "Permission denied", with_secret(folder, "change")),
        lambda: guesses(tcp.address),
    ):
        assert as_nobody(body) == 0
    with link(tcp.address, with_secret(folder, "change"), "theirs") as mine:
        (shown,), _ = mine.entries()
        assert (shown.state, shown.entry.commit) == ("pending", True)
        reply = mine.ask(Claim())
        assert isinstance(reply, Claimed)
        assert mine.ask(Done("decided")) == Ok()


def guesses(address: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        guess = secret_file(Path(name), "guess")
        refused(address, AccessError, "is not one of this state server's", Login(secret_file=str(guess)))


def test_a_reader_sees_all_and_changes_nothing(folder: Path, tcp: ServerProcess) -> None:
    with link(tcp.address, with_secret(folder, "change"), "writes") as writer:
        assert writer.access is Access.CHANGE
        assert writer.ask(Begin("a", ["bank"])) == Ok()
    wait_until("it is pending", lambda: states(folder, tcp) == ["pending"])
    with link(tcp.address, with_secret(folder, "reads"), "writes") as reader:
        assert reader.access is Access.READ
        for request in (Claim(), Take("a"), Decide("a"), Done("a"), Begin("b", []), Forget("a"), Rule("c", {"x": "y"})):
            with pytest.raises(ReadOnlyError, match=rf"and {type(request).__name__.lower()} changes the record"):
                reader.ask(request)
        assert [one.entry.commit for one in reader.entries()[0]] == [False]
    profiles = folder / "xa.toml"
    profiles.write_text(
        f'[[state_servers]]\nid = "main"\naddress = "{tcp.address}"\nsecret_file = "{folder / "reads"}"\n'
        '[[profiles]]\nname = "shop"\nstate_server = "main"\n'
        '[[profiles.resource_managers]]\nname = "bank"\nkind = "scripted"\n'
    )
    for command in (["list", "--json"], ["show", "a", "--json"], ["metrics"]):
        done = xa(profiles, *command)
        assert done.returncode == 0, done.stderr
        assert "pending" in done.stdout
    done = xa(profiles, "rollback", "a", "--job", "writes", "--yes")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    with pytest.raises(ReadOnlyError):
        TransactionManager(profile_of(profiles.read_text(), "shop", "x"), job="new").begin()
    assert states(folder, tcp) == ["pending"]


def states(folder: Path, server: ServerProcess) -> list[str]:
    with link(server.address, with_secret(folder, "reads"), "looks") as looks:
        return [one.state for one in looks.entries()[0]]


def xa(profiles: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(PROGRAM), "xa", *arguments, "--config", str(profiles)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_client_that_wants_a_proof_takes_no_server_without_secret(folder: Path) -> None:
    server = ServerProcess(folder, "plain", "--data", str(folder / "plain"))
    with ended(server):
        server.start()
        secret_file(folder, "change")
        refused(server.address, AccessError, "start it with --secret-file", with_secret(folder, "change"))
        for line in (b"\xff\xfe\n", b"[" * 100_000 + b"\n", b"GET / HTTP/1.1\r\n\r\n", b"x" * (1 << 21)):
            with connection(server.address) as raw:
                with contextlib.suppress(ConnectionError):
                    raw.sendall(line)
                said = everything(raw)
            assert said == b"" or isinstance_refused(said), line[:20]
        with link(server.address) as serves:
            assert serves.ask(Begin("a", ["r" * 250 for _ in range(1000)])) == Ok()  # a line of many parts
        assert server.stop() == 0


def isinstance_refused(said: bytes) -> bool:
    return b'"say":"refused"' in said.splitlines()[0]


# -- TLS ------------------------------------------------------------------------------------------------------------------


def test_tls_and_certificates(folder: Path) -> None:
    """On an address of all networks. Each end that proves nothing is named, and so is a mistake of the other one's."""
    cert, key = certificate(folder)
    (folder / "stranger").mkdir()
    other, other_key = certificate(folder / "stranger")
    secret = secret_file(folder, "change")
    port = free_port()
    server = ServerProcess(
        folder, "state", "--data", str(folder / "state"), "--listen", f"0.0.0.0:{port}", "--open-network",
        "--tls-cert", str(cert), "--tls-key", str(key),
    )  # fmt: skip
    address = f"localhost:{port}"
    trusts = {"tls": True, "tls_ca": str(cert)}
    shows = {"tls_cert": str(cert), "tls_key": str(key)}
    with ended(server):
        server.start("--secret-file", str(secret))
        with link(address, Login(secret_file=str(secret), **trusts)) as serves:  # type: ignore[arg-type]
            assert serves.ask(Begin("a", ["bank"])) == Ok()
        refused(address, AccessError, "asks for a shared secret", Login(**trusts))  # type: ignore[arg-type]
        refused(address, StateServerError, "certificate verify failed", Login(tls=True, tls_ca=str(other)))
        refused(address, StateServerError, "certificate verify failed", Login(tls=True))
        refused(f"127.0.0.2:{port}", StateServerError, "certificate verify failed", Login(**trusts))  # type: ignore[arg-type]
        refused(address, StateServerLostError, "does it speak TLS", Login(secret_file=str(secret)))
        refused(address, ConfigError, "nowhere cannot be used", Login(tls=True, tls_ca="/nowhere"))
        assert server.stop() == 0
        server.start("--tls-ca", str(cert))
        with link(address, Login(**trusts, **shows)) as serves:  # type: ignore[arg-type]
            assert [one.entry.gid for one in serves.entries()[0]] == ["a"]
        with_other = Login(**trusts, tls_cert=str(other), tls_key=str(other_key))  # type: ignore[arg-type]
        for login in (Login(**trusts), with_other):  # type: ignore[arg-type]
            refused(address, StateServerLostError, "certificate required|unknown ca|decrypt|ended|reset", login)
        assert server.stop() == 0


# -- strangers ------------------------------------------------------------------------------------------------------------


async def at_a_door(where: Path | Entrance, secrets: dict[Access, bytes], body: Callable[[str], None]) -> list[str]:
    """Run something in a thread beside a door; the lines of those that came in."""
    inside: list[str] = []

    async def serve(visitor: Visitor, writer: asyncio.StreamWriter) -> None:
        while line := await visitor.line():
            inside.append(line.decode())
            writer.write(line)

    entrance = where if isinstance(where, Entrance) else Doors(listen=f"unix:{where}/door/s").checked()
    server, address = await listening(entrance.address, Door(secrets, serve).open_to, entrance.tls)
    async with server:
        serving = asyncio.create_task(server.serve_forever())
        await asyncio.to_thread(body, address)
        serving.cancel()
    return inside


@pytest.mark.parametrize("said", [b"", b'{"say":', b'{"say":"knock","version":1,"nonce":"00"}\n'])
def test_a_stranger_that_does_not_go_on_is_turned_away(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], said: bytes
) -> None:
    monkeypatch.setattr(door, "HANDSHAKE_S", 0.3)

    def waits(address: str) -> None:
        with connection(address) as raw:
            raw.sendall(said)
            everything(raw)  # ends, or the socket's time is up: an error

    assert asyncio.run(at_a_door(folder, {Access.CHANGE: b"s" * 16}, waits)) == []
    assert "was turned away: it has said nothing for 0.3 s" in capfd.readouterr().err


def test_of_too_many_strangers_the_oldest_goes_and_clients_come_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "MAX_STRANGERS", 3)

    def crowds(address: str) -> None:
        with contextlib.ExitStack() as stack:
            strangers = [stack.enter_context(connection(address)) for _ in range(10)]
            assert everything(strangers[0]) == b""
            client = stack.enter_context(connection(address))
            client.sendall(b"hello\n")
            assert client.recv(100) == b"hello\n"
            more = [stack.enter_context(connection(address)) for _ in range(10)]
            assert everything(more[0]) == b""
            client.sendall(b"again\n")  # who is in stays in
            assert client.recv(100) == b"again\n"

    assert asyncio.run(at_a_door(folder, {}, crowds)) == ["hello\n", "again\n"]


def test_of_too_many_strangers_in_the_handshake_of_tls_the_oldest_goes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "MAX_STRANGERS", 3)
    cert, key = certificate(folder)
    server = Doors(listen="127.0.0.1:0", secret_file=str(secret_file(folder)), tls_cert=str(cert), tls_key=str(key))

    def crowds(address: str) -> None:
        context = ssl.create_default_context(cafile=str(cert))
        with contextlib.ExitStack() as stack:
            strangers = [stack.enter_context(connection(address)) for _ in range(10)]
            assert everything(strangers[0]) == b""
            client = stack.enter_context(context.wrap_socket(connection(address), server_hostname="127.0.0.1"))
            client.sendall(b"hello\n")
            assert client.recv(100) == b"hello\n"
            more = [stack.enter_context(connection(address)) for _ in range(10)]
            more[9].sendall(b"no TLS at all\n")
            assert everything(more[0]) == b""
            everything(more[9])
            client.sendall(b"again\n")  # who is in stays in
            assert client.recv(100) == b"again\n"

    assert asyncio.run(at_a_door(server.checked(), {}, crowds)) == ["hello\n", "again\n"]


def test_refused_strangers_that_do_not_end_tls_are_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server waits for the end of TLS of the other side: else strangers could take all its descriptors."""
    most, crowd = 3, 20
    monkeypatch.setattr(door, "MAX_STRANGERS", most)
    cert, key = certificate(folder)
    server = Doors(listen="127.0.0.1:0", secret_file=str(secret_file(folder)), tls_cert=str(cert), tls_key=str(key))

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # no paths

    def crowds(address: str) -> None:
        context = ssl.create_default_context(cafile=str(cert))
        before = descriptors()
        with contextlib.ExitStack() as stack:
            for _ in range(crowd):
                one = stack.enter_context(context.wrap_socket(connection(address), server_hostname="127.0.0.1"))
                one.sendall(b"nonsense\n")
            wait_until("closed", lambda: descriptors() - before <= crowd + most)

    assert asyncio.run(at_a_door(server.checked(), {Access.CHANGE: b"s" * 16}, crowds)) == []


def test_a_stranger_that_says_nothing_to_tls_is_turned_away(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "HANDSHAKE_S", 0.3)
    cert, key = certificate(folder)
    server = Doors(listen="[::1]:0", secret_file=str(secret_file(folder)), tls_cert=str(cert), tls_key=str(key))

    def waits(address: str) -> None:
        with connection(address) as raw:
            everything(raw)  # ends, or the socket's time is up: an error

    assert asyncio.run(at_a_door(server.checked(), {}, waits)) == []


def test_refusals_are_told_now_and_then(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def knocks(address: str) -> None:
        for _ in range(50):
            with connection(address) as raw:
                raw.sendall(b"nonsense\n")
                assert isinstance_refused(everything(raw))

    assert asyncio.run(at_a_door(folder, {Access.CHANGE: b"s" * 16}, knocks)) == []
    told = capfd.readouterr().err.splitlines()
    assert 1 <= len(told) < 10
    assert "turned away: the first line is no handshake" in told[0]
