"""Java servers on this host, for trials and tests: jars that are found or fetched, free ports, and one process for each server.

`zookeeper_servers` lays out ZooKeeper's. The Kafka of ``scripts/services`` is laid out by ``scripts/service_tools``.

The jars lie in the directory that an environment variable names; else Maven fetches them once, by their coordinates, into the
user's cache. Jars of the cache must have their pinned SHA-256 at each use. Java and, to fetch, Maven must be on PATH.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final, Generic, TypeVar

import attrs

from understudy.broker.errors import UnderstudyError

STOP_S: Final = 10.0
FETCH_S: Final = 300.0
LOOK_S: Final = 0.05


class ServersError(UnderstudyError):
    """Servers cannot be had or started here."""


@attrs.frozen(kw_only=True)
class PinnedJars:
    """The jars that a server runs from.

    Attributes:
        name: of the product, with its version, as errors call it.
        directory: name of their directory in the cache.
        variable: environment variable that may name another directory.
        sign: file that such a directory must hold, as a pattern.
        pom: what Maven fetches.
        sha256: a line for each jar, as sha256sum prints it. A path may stand before the file name.
    """

    name: str
    directory: str
    variable: str
    sign: str
    pom: str
    sha256: str

    def find(self) -> Path:
        """The directory with the jars; fetches them if there is none yet.

        Raises:
            ServersError: they cannot be had.
        """
        named = os.environ.get(self.variable, "")
        if named:
            if not list(Path(named).glob(self.sign)):
                raise ServersError(f"{self.variable}={named} holds no {self.sign}")
            return Path(named)
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "understudy" / self.directory
        if not cache.is_dir():
            self._fetch(cache)
        try:
            self._verify(cache)
        except ServersError as error:
            raise ServersError(f"{error}: remove {cache}, and they are fetched again") from error
        return cache

    def _fetch(self, target: Path) -> None:
        """Fetch the jars into a directory that appears whole, or not at all."""
        maven = shutil.which("mvn")
        if maven is None:
            raise ServersError(
                f"the jars of {self.name} are fetched with Maven, and mvn is not on PATH: install it (Debian: "
                f"apt-get install maven), or name a directory that holds them in {self.variable}"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f"{target.name}.") as folder:
            pom, jars = Path(folder) / "pom.xml", Path(folder) / "jars"
            pom.write_text(self.pom, encoding="utf-8")
            command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FETCH_S)  # noqa: S603
            except subprocess.TimeoutExpired as error:
                raise ServersError(f"Maven has not fetched {self.name} within {FETCH_S:g} s") from error
            if done.returncode:
                said = (done.stdout + done.stderr).strip()[-2_000:]
                raise ServersError(f"Maven cannot fetch {self.name}: {said}")
            self._verify(jars)
            with contextlib.suppress(OSError):  # another process was quicker
                jars.rename(target)

    def _verify(self, jars: Path) -> None:
        found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in jars.glob("*.jar")}
        pinned = {path.rpartition("/")[2]: digest for digest, path in map(str.split, self.sha256.splitlines())}
        if found != pinned:
            names = sorted({name for name, digest in {*found.items()} ^ {*pinned.items()}})
            raise ServersError(f"the jars of {self.name} are not those that are pinned: {', '.join(names)}")


@attrs.define
class JavaServer:
    """One server. Its process can be killed, stopped and started again; its data stays.

    Attributes:
        number: from 1.
        port: for clients.
        folder: configuration, data and log.
        arguments: of java.
        process: None before the first start.
    """

    number: int
    port: int
    folder: Path
    arguments: Sequence[str]
    process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def serves(self) -> bool:
        """True if the server takes clients."""
        raise NotImplementedError

    def log_end(self) -> str:
        """The last lines of the log."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-2_000:]

    def start(self) -> None:
        """Start the process; it may not serve yet. Raises: ServersError: there is no Java."""
        java = shutil.which("java")
        if java is None:
            raise ServersError(
                "the server needs Java 11 or later, and java is not on PATH (Debian: default-jre-headless)"
            )
        # Whatever ends this process, its servers end with it: the kernel sees to it, where there is this program.
        setpriv = shutil.which("setpriv")
        bound = [setpriv, "--pdeathsig", "KILL"] if setpriv is not None else []
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603
                [*bound, java, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def terminate(self) -> None:
        """Ask it to end, even if it is suspended."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
        self.process.terminate()

    def stop(self) -> None:
        if self.process is None or not self.up:
            return
        self.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()


_Server = TypeVar("_Server", bound=JavaServer)


class JavaServers(Generic[_Server]):
    """Servers that belong together.

    Args:
        servers: numbered from 1.

    Attributes:
        product: its name, as errors call it; of each kind.
        start_s: seconds until all must serve; of each kind.
    """

    product: ClassVar[str]
    start_s: ClassVar[float]

    def __init__(self, servers: Sequence[_Server]) -> None:
        self.servers = list(servers)

    @property
    def hosts(self) -> str:
        """Where clients reach them: ``host:port``, separated by commas."""
        return ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    @property
    def pids(self) -> list[int]:
        return [server.pid for server in self.servers]

    def start(self) -> None:
        """Start all that do not run, and wait until all serve.

        Raises:
            ServersError: one has ended, or they are too slow; none is left running.
        """
        try:
            for server in self.servers:
                if not server.up:
                    server.start()
            self.wait()
        except BaseException:
            self.stop()
            raise

    def wait(self, number: int = 0) -> None:
        """Wait until one serves, or all (0). Raises: ServersError."""
        deadline = time.monotonic() + self.start_s
        waiting = self._chosen(number)
        while waiting := [server for server in waiting if not server.serves()]:
            for server in waiting:
                if not server.up or time.monotonic() > deadline:
                    why = "has ended" if not server.up else f"does not serve within {self.start_s:g} s"
                    raise ServersError(
                        f"{self.product} server {server.number} {why}: {server.log}:\n{server.log_end()}"
                    )
            time.sleep(LOOK_S)

    def stop(self, number: int = 0) -> None:
        """Stop one, or all (0)."""
        chosen = self._chosen(number)
        for server in chosen:
            if server.up:
                server.terminate()
        for server in chosen:
            server.stop()

    def _chosen(self, number: int) -> list[_Server]:
        return [self.servers[number - 1]] if number else list(self.servers)


def free_ports(count: int) -> list[int]:
    """Free ports below those that the kernel gives to outgoing connections: a server that is started again finds its own free."""
    candidates = random.sample(range(12_000, 20_000), 2_000)  # so that others who look now seldom find the same
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        for port in candidates:
            with contextlib.suppress(OSError):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
                found.append(port)
                if len(found) == count:
                    return found
    raise ServersError(f"no {count} ports of 127.0.0.1 are free")
