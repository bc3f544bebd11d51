"""``[coordination.tls]``: a server of another CA, or of another name, gets not one byte of the session."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import pytest

from tests.integration.certificates import certificate
from understudy.broker.config import CoordinationConfig
from understudy.broker.config.schema import StoreTlsConfig
from understudy.ha.store.edge.zookeeper.access import access_of
from understudy.ha.store.edge.zookeeper.session import ZooKeeperSession

pytestmark = pytest.mark.integration

LIMIT_S = 90.0


def first_connection(server: socket.socket, cert: Path, key: Path) -> str:
    """Conduct of the first client: "speaks", or the alert with which it ends the handshake."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    connection, _ = server.accept()
    with connection:
        connection.settimeout(LIMIT_S)
        try:
            with context.wrap_socket(connection, server_side=True) as secure:
                return "speaks" if secure.recv(1) else "is silent"
        except OSError as error:
            return str(error)


async def what_a_session_does(ca: Path, cert: Path, key: Path) -> tuple[str, str]:
    """At a server that shows ``cert``: what the server sees, and what the session complains of."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(LIMIT_S)
        hosts = (f"127.0.0.1:{server.getsockname()[1]}",)
        section = CoordinationConfig(kind="zookeeper", hosts=hosts, tls=StoreTlsConfig(ca=ca))
        session = ZooKeeperSession(access_of(section), lambda _: None, lambda _: None, wait_s=1.0)
        session.start()
        try:
            seen = await asyncio.to_thread(first_connection, server, cert, key)
            async with asyncio.timeout(LIMIT_S):
                while not session.complaint:  # noqa: ASYNC110  # a thread sets it
                    await asyncio.sleep(0.01)
            return seen, session.complaint
        finally:
            server.close()
            await session.stop()


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    (folder := tmp_path / "theirs").mkdir()
    return folder


@pytest.mark.asyncio
async def test_a_server_of_the_named_ca(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    assert (await what_a_session_does(cert, cert, key))[0] == "speaks"


@pytest.mark.asyncio
async def test_a_ca_of_the_system_is_not_trusted(tmp_path: Path, theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ca, _ = certificate(tmp_path)
    cert, key = certificate(theirs)
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    seen, complaint = await what_a_session_does(ca, cert, key)
    assert seen != "speaks"
    assert "CERTIFICATE_VERIFY_FAILED" in complaint


@pytest.mark.asyncio
async def test_a_certificate_of_another_host_is_refused(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "DNS:zk1.example")
    seen, complaint = await what_a_session_does(cert, cert, key)
    assert seen != "speaks"
    assert "is not valid for '127.0.0.1'" in complaint
