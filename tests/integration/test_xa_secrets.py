"""Secrets of the state server: its knowledge of resource managers, and TLS to those that want it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import amqp
import pytest

from tests.integration.broker_process import running_broker, wait_until
from tests.integration.certificates import certificate
from tests.integration.xa_place import JOB, Place, forked, killer, running_place, transfer
from tests.integration.xa_servers import ServerProcess, Told, ended, lives
from understudy.xa import ResourceManagerError, TransactionManager, tpc
from understudy.xa.core.profiles.profile import profile_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


def memory_of(pid: int) -> Iterator[bytes]:
    """Memory of a process, as a core dump could hold it."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, access, *_ = line.split()
            if access.startswith("rw"):
                start, end = (int(number, 16) for number in span.split("-"))
                with contextlib.suppress(OSError, ValueError):  # of the kernel alone
                    memory.seek(start)
                    yield memory.read(end - start)


def where_is(place: Place, canary: bytes) -> set[str]:
    """In which of the state server's files it is, and whether it is in its memory."""
    assert place.state.process is not None
    files = [*(place.folder / "state").iterdir(), place.folder / "state-server.log"]
    found = {path.name for path in files if canary in path.read_bytes()}
    return found | {"memory" for part in memory_of(place.state.process.pid) if canary in part}


def test_nothing_that_reaches_a_resource_manager_is_on_the_state_server(tmp_path: Path) -> None:
    """While transactions begin, commit, fail and are recovered. The search finds what is there: the global id."""
    with running_place(tmp_path) as place:
        bank = place.postgresql.options
        with place.manager() as manager:
            transfer(manager)
            with pytest.raises(InterruptedError), manager.begin():
                raise InterruptedError
        assert forked(lambda: transfer(place.manager(killer("tell.decide.after")))) == -signal.SIGKILL
        place.write_profiles(addresses=["127.0.0.1:1"], timeout_s=1)
        with pytest.raises(ResourceManagerError):
            place.manager().recover()
        place.write_profiles()
        wait_until("it is pending", lambda: [one.state for one in place.entries()] == ["pending"])
        (shown,) = place.entries()
        assert where_is(place, shown.entry.gid.encode()) == {"status-0.0", "memory"}
        for canary in (bank["password"], f"port={bank['port']}", f":{bank['port']}", f":{place.broker.port}"):
            assert where_is(place, str(canary).encode()) == set(), canary
        assert place.state.process is not None
        assert "psycopg" not in Path(f"/proc/{place.state.process.pid}/maps").read_text()
        assert place.recovered() == [shown.entry.gid]
        place.agree()


def test_a_group_that_speaks_tls_alone(tmp_path: Path) -> None:
    """A TLS-only group keeps the decisions and takes part in transactions; a server without the right certificate gets neither."""
    cert, key = certificate(tmp_path)
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    other, _ = certificate(stranger)
    with running_broker(tmp_path, f'[amqp.tls]\ncert = "{cert}"\nkey = "{key}"\n') as broker:
        url = f"amqps://guest:guest@localhost:{broker.port}/"
        server = ServerProcess(tmp_path, "state", "--engine", "queue", "--workers", "2")
        with ended(server):
            told = Told()
            assert server.start("--url", f"{url}?cacertfile={cert}") == {"pending": 0}
            with server.link() as client:
                lives(client, told, ["1", "2", "3"])
            told.check(server.entries())
            server.kill()
            assert server.start("--url", f"{url}?cacertfile={cert}")["pending"] in (2, 3)
            told.check(server.entries())
            assert server.stop() == 0
            assert "certificate verify failed" in server.refused("--url", f"{url}?cacertfile={other}")
            assert "certificate verify failed" in server.refused("--url", url)
            assert "there is no file /nowhere" in server.refused("--url", f"{url}?cacertfile=/nowhere")
        plain = ServerProcess(tmp_path, "plain", "--data", str(tmp_path / "plain"))
        with ended(plain):
            plain.start()
            with with_tls(plain, f"localhost:{broker.port}", cert) as manager, manager.begin() as transaction:
                transaction.resource("queues").queue_declare("q", durable=True, auto_delete=False)
            assert "certificate verify failed" in refusal(plain, broker.port, other)
        connection = tpc.connect([f"127.0.0.1:{broker.port}"], tls=True, tls_ca=str(cert))
        connection.tpc_begin(connection.xid(1, "secret", "b"))
        connection.channel.basic_publish(amqp.Message("x"), exchange="", routing_key="q")
        connection.tpc_commit()
        assert connection.channel.queue_declare("q", passive=True).message_count == 1
        connection.close()


def refusal(server: ServerProcess, port: int, ca: Path) -> str:
    """The error of a broker whose certificate ``ca`` has not signed. Under load a handshake may take the second that it has."""
    error = ""
    for _ in range(30):
        with pytest.raises(ResourceManagerError, match="queues: no broker serves: ") as refused:
            with_tls(server, f"localhost:{port}", ca).begin()
        error = str(refused.value)
        if "timed out" not in error:
            break
    return error


def with_tls(server: ServerProcess, address: str, ca: Path) -> TransactionManager:
    text = (
        f'[[state_servers]]\nid = "main"\naddress = "{server.address}"\n'
        '[[profiles]]\nname = "shop"\nstate_server = "main"\n'
        '[[profiles.resource_managers]]\nname = "queues"\nkind = "amqp"\n'
        f'addresses = ["{address}"]\ntimeout_s = 1\ntls = true\ntls_ca = "{ca}"\n'
    )
    return TransactionManager(profile_of(text, "shop", "x"), job=JOB)
