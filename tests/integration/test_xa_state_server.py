"""``understudy state-server``: where it may listen, which status it takes, and what it says if it cannot."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.broker_process import PROGRAM, wait_until
from tests.integration.xa_servers import FINGERPRINT, JOB, Server, ServerProcess, secret_file
from tests.integration.xa_servers import ended as all_ended
from understudy.xa.core.register.entry import STATUS_FORMAT, Image
from understudy.xa.core.register.wire import WIRE_VERSION, Begin, Claim, Decide, Done, Hello, Nothing, Ok, line_of
from understudy.xa.core.status.journal_log import frame
from understudy.xa.core.status.mirrored_file import RECORD_OCTETS, digest_of
from understudy.xa.sockets.link import StateLink

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


def refused(data: Path, listen: str, *options: str) -> tuple[int, str]:
    """Exit code, and what the server says."""
    command = [str(PROGRAM), "state-server", "--data", str(data), "--listen", listen, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == ""
    return done.returncode, done.stderr


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_socket_that_is_left_is_taken_and_nothing_else(tmp_path: Path, workers: str) -> None:
    path, file = tmp_path / "s", tmp_path / "letter"
    file.write_text("dear")
    options = ("--workers", workers)
    code, said = refused(tmp_path / "b", f"unix:{file}", *options)
    assert (code, said) == (
        2,
        f"understudy state-server: --listen unix:{file}: there is a file that is no socket; it is left as it is\n",
    )
    assert file.read_text() == "dear"
    server = ServerProcess(tmp_path, "state", "--data", str(tmp_path / "a"), "--listen", f"unix:{path}", *options)
    with all_ended(server):
        for _ in range(2):  # the second one finds the socket of the first one
            server.start()
            assert refused(tmp_path / "b", f"unix:{path}", *options) == (
                2,
                f"understudy state-server: --listen unix:{path}: another server listens there\n",
            )
            with StateLink(f"unix:{path}", job="job", profile="shop", fingerprint=FINGERPRINT) as link:
                assert link.ask(Claim()) == Nothing()
            server.kill()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_what_the_system_refuses_is_named(tmp_path: Path, workers: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        secret = ("--secret-file", str(secret_file(tmp_path)))
        code, said = refused(tmp_path / "a", address, "--workers", workers, *secret)
    assert (code, said.count("\n")) == (1, 1)
    assert f"--listen {address} cannot be had: " in said
    (tmp_path / "file").write_text("")
    code, said = refused(tmp_path / "file", address, "--workers", workers, *secret)
    assert (code, said.count("\n")) == (2, 1)
    assert f"{tmp_path / 'file'}" in said


def test_a_folder_in_which_every_user_may_write_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "state"
    data.mkdir()
    data.chmod(0o777)
    code, said = refused(data, f"unix:{tmp_path}/socket/s")
    assert (code, f"every user may put files into {data}, whose mode is 0777: chmod 700" in said) == (2, True)
    assert list(data.iterdir()) == []


def started(data: Path, *options: str) -> Server:
    command = [
        str(PROGRAM),
        "state-server",
        "--data",
        str(data),
        "--listen",
        f"unix:{data}-socket/s",
        "--json",
        *options,
    ]
    return Server(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: Server) -> tuple[int, str]:
    _, said = process.communicate(timeout=60)
    return process.returncode, said


def test_a_damaged_status_file_is_refused_and_kept(tmp_path: Path) -> None:
    data = tmp_path / "state"
    with started(data, "--shards", "2", "--engine", "journal") as server:
        assert server.stdout is not None
        said = json.loads(server.stdout.readline())
        assert (said["shards"], set(said["entries"].values())) == (2, {0})
        second = started(data)
        assert ended(second) == (
            2,
            f"understudy state-server: another state server uses {data}: its file LOCK is locked\n",
        )
        server.terminate()
        assert server.wait(60) == 0
    file = data / "status-1.0"
    content = file.read_bytes()
    damaged = content[:30] + bytes((content[30] ^ 1,)) + content[31:]
    file.write_bytes(damaged)
    before = {path.name: path.read_bytes() for path in data.iterdir()}
    for options in ((), ("--workers", "3")):  # the latter would add a shard
        code, said = ended(started(data, *options))
        assert code == 2
        assert "understudy state-server: status-1.0: the first frame is damaged; nothing was changed (status " in said
        assert "--force-empty" in said
        assert {path.name: path.read_bytes() for path in data.iterdir()} == before
    assert ended(started(data, "--shards", "1"))[0] == 2
    with started(data, "--force-empty") as server:
        assert server.stdout is not None
        assert json.loads(server.stdout.readline())["shards"] == 2
        server.terminate()
        assert "status-1.0 is now damaged-0-status-1.0" in ended(server)[1]
    assert (data / "damaged-0-status-1.0").read_bytes() == damaged


@pytest.mark.parametrize(("engine", "workers"), [("journal", "1"), ("mirrored", "2")])
def test_a_status_that_lacks_its_end_starts_only_if_the_loss_is_accepted(
    tmp_path: Path, engine: str, workers: str
) -> None:
    """A decided transaction is in a status whose last record is gone; then the files of a shard are gone."""
    data, options = tmp_path / "state", ("--engine", engine, "--shards", "2", "--workers", workers)
    with started(data, *options) as server:
        assert server.stdout is not None
        with StateLink(json.loads(server.stdout.readline())["address"], job=JOB, profile="p", fingerprint="f") as link:
            assert link.ask(Begin("a", ["bank"])) == Ok()
            older = {path.name: path.read_bytes() for path in data.iterdir()}
            assert link.ask(Decide("a")) == Ok()
            wait_until("the other image has it, too", lambda: settled(data, older))
        if workers == "1":
            server.kill()  # the mark in the cache of the system is enough
        else:
            server.terminate()  # workers would write for a moment longer
            assert server.wait(60) == 0
    lost = [path for path in data.iterdir() if path.suffix != ".mark" and older.get(path.name) != path.read_bytes()]
    for path in lost:
        if engine == "journal":
            path.write_bytes(path.read_bytes()[:-1])
        else:
            path.write_bytes(older[path.name])
    kept = all_but_marks(data)
    for more in ((), ("--force-empty",)):
        code, said = ended(started(data, *options, *more))
        assert code == 2
        assert "and generation" in said or "and frame" in said
        assert "are missing; nothing was changed" in said
        assert "go on with what is left by --accept-loss: recovery then rolls back each transaction" in said
        assert all_but_marks(data) == kept
    assert entries_of(data, *options, "--accept-loss") == {"pending": 1}
    assert entries_of(data, *options) == {"pending": 1}  # it is accepted once
    for path in data.iterdir():
        if path.name.startswith(("status-1", "mirror-1")):
            path.unlink()
    code, said = ended(started(data, *options))
    assert (code, "the folder had 2 shards, says its file shards, and has the files of 1" in said) == (2, True)
    assert sum(entries_of(data, *options, "--accept-loss").values()) in (0, 1)
    assert sum(entries_of(data, *options).values()) in (0, 1)


def all_but_marks(data: Path) -> dict[str, bytes]:
    """The mark of the other shard, which was opened, says the same in its other slot."""
    return {path.name: path.read_bytes() for path in data.iterdir() if path.suffix != ".mark"}


def settled(data: Path, older: dict[str, bytes]) -> bool:
    """All files of the shard that has the transaction have changed."""
    names = {path.name for path in data.iterdir() if older.get(path.name) != path.read_bytes()}
    return any({f"mirror-{n}.a", f"mirror-{n}.b"} <= names or f"status-{n}.0" in names for n in (0, 1))


def entries_of(data: Path, *options: str) -> dict[str, int]:
    """Transactions that a server finds, by state; it is stopped."""
    with started(data, *options) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line, ended(server)
        server.terminate()
        assert server.wait(60) == 0
    found: dict[str, int] = json.loads(line)["entries"]
    return {state: count for state, count in found.items() if count}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((), "a state server needs --data, the folder of its files, or --engine queue"),
        (("--data", "x", "--engine", "paper"), "--engine paper is none of journal, mirrored, queue"),
        (
            ("--engine", "queue", "--url", "amqp://a:b@127.0.0.1:1/", "--accept-loss"),
            "--accept-loss is of status files in a folder",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path: Path, options: tuple[str, ...], text: str) -> None:
    command = [str(PROGRAM), "state-server", "--listen", f"unix:{tmp_path}/socket/s", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, text in done.stderr) == (2, True), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_engine_is_that_of_the_folder_and_mirrored_for_a_new_one(tmp_path: Path) -> None:
    for engine, file in (("journal", "status-0.0"), ("", "mirror-0.a")):
        data = tmp_path / f"of-{engine}"
        assert entries_of(data, *(("--engine", engine) if engine else ())) == {}
        assert entries_of(data) == {}
        assert (data / file).exists()
    code, said = ended(started(tmp_path / "of-", "--engine", "journal"))
    assert (code, "there are 1 shards of engine mirrored, and journal is asked for" in said) == (2, True)


@pytest.mark.parametrize("engine", ["journal", "mirrored"])
def test_what_a_newer_server_has_written_is_refused_and_kept(tmp_path: Path, engine: str) -> None:
    """Not even --force-empty sets it aside, since it is whole."""
    with started(tmp_path, "--engine", engine) as server:
        assert server.stdout is not None
        server.stdout.readline()
        server.terminate()
        assert ended(server)[0] == 0
    file = tmp_path / {"journal": "status-0.0", "mirrored": "mirror-0.a"}[engine]
    newer = frame(1, 1, [Image(STATUS_FORMAT + 1, 0, [])]) if engine == "journal" else newer_image(file.read_bytes())
    file.write_bytes(newer)
    for options in ((), ("--force-empty",)):
        code, said = ended(started(tmp_path, "--engine", engine, *options))
        assert code == 2
        assert f"{file.name} is of format {STATUS_FORMAT + 1}, and this server reads" in said
        assert file.read_bytes() == newer


def newer_image(octets: bytes) -> bytes:
    """The control record says that it is of the next format, and is signed."""
    control = bytearray(octets[:RECORD_OCTETS])
    struct.pack_into(">I", control, 8, STATUS_FORMAT + 1)
    control[-16:] = digest_of(control)
    return bytes(control) + octets[RECORD_OCTETS:]


def test_a_server_that_speaks_another_version_is_refused(tmp_path: Path) -> None:
    with started(tmp_path / "state") as server:
        assert server.stdout is not None
        address = json.loads(server.stdout.readline())["address"]
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(address.removeprefix("unix:"))
            client.sendall(line_of(Hello(WIRE_VERSION + 1, JOB, "p", "f")))
            assert f"speaks version {WIRE_VERSION}, the client {WIRE_VERSION + 1}" in client.recv(1000).decode()
        server.terminate()
        assert ended(server)[0] == 0


def test_the_mirrored_engine(tmp_path: Path) -> None:
    """Its two images; one is damaged and made anew, then both are, and the server refuses."""
    data = tmp_path / "state"
    for damaged in ((), ("a",), ("a", "b")):
        for side in damaged:
            file = data / f"mirror-0.{side}"
            file.write_bytes(file.read_bytes()[:-1] + b"?")
        with started(data, "--engine", "mirrored") as server:
            assert server.stdout is not None
            if len(damaged) == 2:
                code, said = ended(server)
                assert code == 2
                assert "mirror-0.a and mirror-0.b: no image is intact; nothing was changed (status files in" in said
                continue
            address = json.loads(server.stdout.readline())["address"]
            with StateLink(address, job=JOB, profile="p", fingerprint="f") as link:
                for number in range(3):
                    gid = f"{damaged}{number}"
                    assert link.ask(Begin(gid, ["bank"])) == Ok()
                    assert link.ask(Done(gid)) == Ok()
            server.terminate()
            assert server.wait(60) == 0
    assert "1 shards of engine mirrored, and journal is asked for" in ended(started(data, "--engine", "journal"))[1]
    kept = [(data / f"mirror-0.{side}").read_bytes() for side in "ab"]
    with started(data, "--engine", "mirrored", "--force-empty") as server:
        assert server.stdout is not None
        assert set(json.loads(server.stdout.readline())["entries"].values()) == {0}
        server.terminate()
        assert server.wait(60) == 0
    assert [(data / f"damaged-0-mirror-0.{side}").read_bytes() for side in "ab"] == kept


def test_the_state_server_imports_no_driver() -> None:
    text = "import sys, understudy.xa.state_server.command; print(sorted({'psycopg', 'amqp'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
