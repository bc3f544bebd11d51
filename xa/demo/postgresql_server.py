"""PostgresServer: a PostgreSQL server of one's own on this host, for the demo and for tests.

It is made from the machine's own binaries, listens on a free port of loopback and on a socket in its folder, and allows prepared
transactions. The server refuses to run as root: then it runs as the user ``postgres``, or else ``nobody``. It is stopped by its
own process id, and ends with the process that started it where the program ``setpriv`` is there.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Final

from understudy.xa.core.errors import ResourceManagerError

BINARIES_VARIABLE: Final = "UNDERSTUDY_POSTGRESQL_BIN"
START_S: Final = 60.0
STOP_S: Final = 20.0
USER: Final = "understudy"
DATABASE: Final = "postgres"
_POSTMASTER_PID: Final = "postmaster.pid"
_DEBIAN: Final = Path("/usr/lib/postgresql")


def find_binaries() -> Path:
    """The folder with ``initdb`` and ``postgres``: of the variable UNDERSTUDY_POSTGRESQL_BIN, of PATH, or of Debian.

    Raises:
        ResourceManagerError: there is none.
    """
    named = os.environ.get(BINARIES_VARIABLE)
    if named:
        if not (Path(named) / "initdb").exists():
            raise ResourceManagerError(f"{BINARIES_VARIABLE}={named} holds no initdb")
        return Path(named)
    if (initdb := shutil.which("initdb")) is not None:
        return Path(initdb).resolve().parent
    found = [path.parent for path in _DEBIAN.glob("*/bin/initdb")]
    if not found:
        raise ResourceManagerError(
            f"PostgreSQL's server is not installed (Debian: apt-get install postgresql); {BINARIES_VARIABLE} may name "
            "the folder of initdb"
        )
    return max(found, key=lambda path: int(path.parent.name) if path.parent.name.isdecimal() else 0)


class PostgresServer:
    """One server. Its process can be killed and started again; its data stays.

    Args:
        folder: of everything; made if it is not there.
        max_prepared: prepared transactions at a time; 0 allows none.
    """

    def __init__(self, folder: Path, *, max_prepared: int = 200) -> None:
        self.folder = folder
        self.port = _free_port()
        self.password = secrets.token_urlsafe(12)
        self._binaries = find_binaries()
        self._max_prepared = max_prepared
        self._account = _account()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the postmaster."""
        assert self._process is not None
        return self._process.pid

    @property
    def up(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def options(self) -> dict[str, Any]:
        """The keys of a resource manager of kind ``postgresql``."""
        return {
            "host": "127.0.0.1",
            "port": self.port,
            "database": DATABASE,
            "user": USER,
            "password": self.password,
        }

    @property
    def conninfo(self) -> str:
        """The same as a connection string of libpq; no value needs quotes."""
        return f"host=127.0.0.1 port={self.port} dbname={DATABASE} user={USER} password={self.password}"

    def create(self) -> None:
        """Make the data directory.

        Raises:
            ResourceManagerError: initdb failed, or the user that it runs as may not enter the folder.
        """
        self._check_way()
        self.folder.mkdir(parents=True, exist_ok=True)
        password = self.folder / "password"
        password.write_text(self.password, encoding="ascii")
        for path in (self.folder, password):
            if self._account is not None:
                os.chown(path, self._account.pw_uid, self._account.pw_gid)
            path.chmod(0o700)
        done = subprocess.run(  # noqa: S603
            [
                str(self._binaries / "initdb"), "--pgdata", str(self._data), "--username", USER, "--auth", "scram-sha-256",
                "--pwfile", str(password), "--encoding", "UTF8", "--locale", "C", "--no-sync",
            ],
            capture_output=True, text=True, check=False, cwd=self.folder, **self._as_account(),
        )  # fmt: skip
        if done.returncode:
            raise ResourceManagerError(f"initdb failed: {(done.stdout + done.stderr).strip()[-1000:]}")

    def start(self) -> None:
        """Start it, and wait until it takes clients.

        Raises:
            ResourceManagerError: it did not within START_S.
        """
        deadline = time.monotonic() + START_S
        while True:
            self._spawn()
            while time.monotonic() < deadline:
                if self._process is not None and self._process.poll() is not None:
                    break  # after a kill its shared memory may be in use for a moment: again
                if self._ready():
                    return
                time.sleep(0.02)
            else:
                self.kill()
                raise ResourceManagerError(f"PostgreSQL is not up within {START_S:g} s: {self.log_text()[-1000:]}")
            time.sleep(0.1)
            if time.monotonic() >= deadline:
                raise ResourceManagerError(f"PostgreSQL does not start: {self.log_text()[-1000:]}")

    def kill(self) -> None:
        """SIGKILL to the postmaster; its children end when they see it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_S)

    def stop(self) -> None:
        """Stop it, if it runs; clients are disconnected."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGINT)  # "fast shutdown"
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
            return
        self.kill()

    def log_text(self) -> str:
        log = self.folder / "server.log"
        return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""

    # -- the process --------------------------------------------------------------------------------------------------

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _spawn(self) -> None:
        setpriv = shutil.which("setpriv")
        bound = [setpriv, "--pdeathsig", "INT"] if setpriv is not None else []
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self._data,
            "max_prepared_transactions": self._max_prepared,
            "max_connections": 100,
            "shared_buffers": "16MB",
        }
        command = [*bound, str(self._binaries / "postgres"), "-D", str(self._data)]
        for key, value in settings.items():
            command += ["-c", f"{key}={value}"]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                **self._as_account(),
            )

    def _ready(self) -> bool:
        """True if the pid file names this process and its last line says "ready"."""
        try:
            lines = (self._data / _POSTMASTER_PID).read_text(encoding="utf-8").splitlines()
        except OSError:
            return False
        return len(lines) >= 8 and int(lines[0]) == self.pid and lines[7].strip() == "ready"

    def _as_account(self) -> dict[str, Any]:
        if self._account is None:
            return {}
        return {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}

    def _check_way(self) -> None:
        """The other user must be able to enter every folder above; their modes are not ours to change."""
        if self._account is None:
            return
        for parent in self.folder.resolve().parents:
            status = parent.stat()
            groups = {self._account.pw_gid}
            enters = status.st_mode & 0o001 or (status.st_gid in groups and status.st_mode & 0o010)
            if not enters and not (status.st_uid == self._account.pw_uid and status.st_mode & 0o100):
                raise ResourceManagerError(
                    f"PostgreSQL runs as user {self._account.pw_name}, which may not enter {parent}: its folder "
                    f"{self.folder} must be elsewhere"
                )


def _account() -> pwd.struct_passwd | None:
    """Whose process it is to be; None: ours."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise ResourceManagerError("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
