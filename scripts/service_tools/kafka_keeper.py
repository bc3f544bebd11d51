"""One Kafka server for several processes: it runs as long as one of them uses it, however they end.

    python -m scripts.service_tools.kafka_keeper FOLDER

`shared_kafka` starts this program, once for all test processes of a run. Each user holds a shared lock on ``users.lock``; the
kernel takes it from a process that ends. The keeper stops its server when it can have that lock alone.

``start.lock`` keeps the two from crossing: it is held by a process that begins to use the server, and by the keeper while it looks.
``keeper.lock`` is held by a keeper for its life: where it is free, what ``server.json`` says is of a keeper that was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Final

import attrs

from scripts.service_tools.kafka_servers import Secured, lay_out_kafka
from understudy.ha.trial.edge.java_servers import ServersError

LOOK_S: Final = 0.2
START_S: Final = 180.0
USERS: Final = {"writer": "writer-secret", "reader": "reader-secret", "stranger": "stranger-secret"}
"""Of the SASL listener: name and password. None may do anything without an ACL."""


@attrs.frozen(kw_only=True)
class SharedKafka:
    """How to reach the server.

    Attributes:
        hosts: bootstrap servers of the plain listener, where a client may do all.
        sasl_hosts: of the listener that wants SASL over TLS, and ACLs.
        tls_hosts: of the listener that wants a client's certificate, and ACLs.
        cert, key: PEM files: the server's certificate, which is its own CA; and a client may show it.
        users: name and password of each SASL user.
        pid: of the server.
    """

    hosts: str
    sasl_hosts: str
    tls_hosts: str
    cert: Path
    key: Path
    users: Mapping[str, str]
    pid: int


@contextlib.contextmanager
def shared_kafka(folder: Path) -> Iterator[SharedKafka]:
    """Use the server of ``folder``; the first user starts it.

    Raises:
        ServersError: it cannot be started.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "users.lock").open("w") as users:
        with _locked(folder / "start.lock"):
            fcntl.flock(users, fcntl.LOCK_SH)
            if not _kept(folder):
                _start_keeper(folder)
            found = json.loads((folder / "server.json").read_text(encoding="utf-8"))
        yield SharedKafka(**found | {"cert": Path(found["cert"]), "key": Path(found["key"])})


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_free(file: IO[str]) -> bool:
    """Try to take the lock; True if it is held now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _kept(folder: Path) -> bool:
    with (folder / "keeper.lock").open("w") as keeper:
        if _is_free(keeper):
            (folder / "server.json").unlink(missing_ok=True)
    return (folder / "server.json").exists()


def _start_keeper(folder: Path) -> None:
    log = folder / "keeper.log"
    with log.open("ab") as out:
        keeper = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=Path(__file__).parents[2],
            start_new_session=True,
        )
    deadline = time.monotonic() + START_S
    while not (folder / "server.json").exists():
        if keeper.poll() is not None or time.monotonic() > deadline:
            keeper.kill()
            keeper.wait()
            raise ServersError(f"Kafka does not start: {log}:\n{log.read_text(errors='replace')[-3_000:]}")
        time.sleep(0.05)
    keeper.returncode = 0  # it outlives this process, and is not waited for


def _certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of localhost that is its own CA, and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-keyout", str(key), "-out", str(cert)]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


def keep(folder: Path) -> None:
    """Run the server until no process uses it any more."""
    cert, key = _certificate(folder)
    with (folder / "keeper.lock").open("w") as keeper:
        fcntl.flock(keeper, fcntl.LOCK_EX)
        cluster = lay_out_kafka(folder, secured=Secured(cert=cert, key=key, users=USERS))
        cluster.start()
        try:
            info = SharedKafka(
                hosts=cluster.hosts,
                sasl_hosts=cluster.sasl_hosts,
                tls_hosts=cluster.tls_hosts,
                cert=cert,
                key=key,
                users=USERS,
                pid=cluster.pids[0],
            )
            _write(folder, json.dumps(attrs.asdict(info), default=str))
            _until_unused(folder)
        finally:
            cluster.stop()


def _write(folder: Path, text: str) -> None:
    new = folder / f"server.json.{os.getpid()}"
    new.write_text(text, encoding="utf-8")
    new.rename(folder / "server.json")


def _until_unused(folder: Path) -> None:
    while True:
        time.sleep(LOOK_S)
        with _locked(folder / "start.lock"), (folder / "users.lock").open("w") as users:
            if _is_free(users):
                (folder / "server.json").unlink()
                return


if __name__ == "__main__":
    try:
        keep(Path(sys.argv[1]))
    except ServersError as error:
        sys.exit(str(error))
