"""ZooKeeper servers on this host, for trying things out and for tests: from jars that are found, or fetched with Maven.

``understudy cluster --zookeeper embedded`` and ``scripts/services zookeeper`` start them. They listen on loopback alone, on free
ports, and keep everything in one folder.

The jars lie in ``UNDERSTUDY_ZOOKEEPER_JARS``, if that names a directory; else they are fetched once, by their coordinates, into the
user's cache. Those of the cache must have the SHA-256 that is pinned here, at each use. Java 11 or later and, to fetch, Maven must
be on PATH.
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
from pathlib import Path
from typing import Final

import attrs

from understudy.broker.errors import UnderstudyError

JARS_VARIABLE: Final = "UNDERSTUDY_ZOOKEEPER_JARS"
VERSION: Final = "3.9.4"
MAX_SERVERS: Final = 7
TICK_MS: Final = 500
"""Sessions last 2 to 20 ticks, so tests want a short one."""
START_S: Final = 60.0
STOP_S: Final = 10.0
FETCH_S: Final = 300.0

_POM: Final = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>understudy</groupId><artifactId>zookeeper-jars</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.zookeeper</groupId><artifactId>zookeeper</artifactId><version>{VERSION}</version>
      <exclusions>
        <exclusion><groupId>io.netty</groupId><artifactId>netty-tcnative-boringssl-static</artifactId></exclusion>
        <exclusion><groupId>org.apache.yetus</groupId><artifactId>*</artifactId></exclusion>
      </exclusions>
    </dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>2.0.13</version></dependency>
    <dependency><groupId>io.dropwizard.metrics</groupId><artifactId>metrics-core</artifactId><version>4.1.12.1</version></dependency>
    <dependency><groupId>org.xerial.snappy</groupId><artifactId>snappy-java</artifactId><version>1.1.10.5</version></dependency>
    <dependency><groupId>commons-cli</groupId><artifactId>commons-cli</artifactId><version>1.5.0</version></dependency>
  </dependencies>
</project>
"""
"""What a server needs at run time; slf4j-simple so that it logs to stderr."""

SHA256: Final = """\
bc8bb01fc0fad250385706e20f927ddcff6173f6339b387dc879237752567ac6  commons-cli-1.5.0.jar
4aa4ca48f3dfd30b78220b7881d8cb93eac4093ec94361b6befa9487998a550b  commons-io-2.17.0.jar
cec34936faa625039f4e46123eccaa10a9eb9d9a40c6075830cd81330e259cf9  metrics-core-4.1.12.1.jar
32226218d854c2e51d4935a7ebe4663b72ecb9af4da881b86bf518e61aed48d3  netty-buffer-4.1.119.Final.jar
c497934a057444b126a86e06f2b509188e48ca6c5a5e14c182a02f1e8c8d5fdb  netty-codec-4.1.119.Final.jar
991a69b1594dcad9926e268e7e94530cfdaa89feef42af26922a302d3e2e9212  netty-common-4.1.119.Final.jar
9b49be98e36bb79a2025ffb5159aec87da2720cfa545f56de39c3bc108587b1b  netty-handler-4.1.119.Final.jar
3b6c9f9f6f360747213d154971dec1fc8852820dc1a98d055ff09d09676f8836  netty-resolver-4.1.119.Final.jar
c0921ea0e79c3b936daabe08a26e926642a4ad24951d6115fb43362c21dfeb10  netty-transport-4.1.119.Final.jar
38edbceb4d0f3c1c87bc8db9f812d317342c9c8e95a4a052fb796a2f78ad098e  netty-transport-classes-epoll-4.1.119.Final.jar
12557923a5069e736a9305c73a87b303ba9e89b32da3ec95dea6a856f3fd6397  netty-transport-native-epoll-4.1.119.Final-linux-x86_64.jar
8ae5618f69326e6d17b77b0140f9d277118dbd23906ca07638bc01365728c650  netty-transport-native-unix-common-4.1.119.Final.jar
e7c2a48e8515ba1f49fa637d57b4e2f590b3f5bd97407ac699c3aa5efb1204a9  slf4j-api-2.0.13.jar
3153fe1d689cffb94f1530b58470c306685ba68844de8857116e3b6ebb81d9f7  slf4j-simple-2.0.13.jar
0f3f1857ed33116583f480b4df5c0218836c47bfbc9c6221c0d73f356decf37b  snappy-java-1.1.10.5.jar
7bb3bb38bbddbc71424c59a7a0b170a1b2147313a84c972225ab0568dab513bf  zookeeper-3.9.4.jar
bd9750935add09b6cb920f7bcf0fa7b9a8165c45cdafd8ee1fc6808c46ec9094  zookeeper-jute-3.9.4.jar
"""
"""As sha256sum prints it."""

_JAVA: Final = (
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)
_MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


class ServersError(UnderstudyError):
    """ZooKeeper servers cannot be had or started here."""


def find_jars() -> Path:
    """The directory with the jars; fetches them if there is none yet.

    Raises:
        ServersError: they cannot be had.
    """
    named = os.environ.get(JARS_VARIABLE, "")
    if named:
        if not list(Path(named).glob("zookeeper-*.jar")):
            raise ServersError(f"{JARS_VARIABLE}={named} holds no zookeeper-*.jar")
        return Path(named)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "understudy" / f"zookeeper-{VERSION}"
    if not cache.is_dir():
        _fetch(cache)
    try:
        _verify(cache)
    except ServersError as error:
        raise ServersError(f"{error}: remove {cache}, and they are fetched again") from error
    return cache


def _fetch(target: Path) -> None:
    """Fetch the jars into a directory that appears whole, or not at all."""
    maven = shutil.which("mvn")
    if maven is None:
        raise ServersError(
            f"the jars of ZooKeeper {VERSION} are fetched with Maven, and mvn is not on PATH: install it (Debian: "
            f"apt-get install maven), or name a directory that holds them in {JARS_VARIABLE}"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f"{target.name}.") as folder:
        pom, jars = Path(folder) / "pom.xml", Path(folder) / "jars"
        pom.write_text(_POM, encoding="utf-8")
        command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FETCH_S)  # noqa: S603
        except subprocess.TimeoutExpired as error:
            raise ServersError(f"Maven has not fetched ZooKeeper {VERSION} within {FETCH_S:g} s") from error
        if done.returncode:
            raise ServersError(
                f"Maven cannot fetch ZooKeeper {VERSION}: {(done.stdout + done.stderr).strip()[-2_000:]}"
            )
        _verify(jars)
        with contextlib.suppress(OSError):  # another process was quicker
            jars.rename(target)


def _verify(jars: Path) -> None:
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in jars.glob("*.jar")}
    pinned = {name: digest for digest, name in map(str.split, SHA256.splitlines())}
    if found != pinned:
        names = sorted({name for name, digest in {*found.items()} ^ {*pinned.items()}})
        raise ServersError(f"the jars of ZooKeeper {VERSION} are not those that are pinned: {', '.join(names)}")


@attrs.define
class Server:
    """One server. Its process can be killed, stopped and started again; its data stays.

    Attributes:
        number: from 1.
        port: for clients.
        folder: configuration, data and log.
        process: None before the first start.
    """

    number: int
    port: int
    folder: Path
    classpath: str
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

    def start(self) -> None:
        java = shutil.which("java")
        if java is None:
            raise ServersError(
                "ZooKeeper needs Java 11 or later, and java is not on PATH (Debian: default-jre-headless)"
            )
        # Whatever ends this process, its servers end with it: the kernel sees to it, where there is this program.
        setpriv = shutil.which("setpriv")
        bound = [setpriv, "--pdeathsig", "KILL"] if setpriv is not None else []
        command = [*bound, java, *_JAVA, "-cp", self.classpath, _MAIN, str(self.folder / "zoo.cfg")]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )

    def serves(self) -> bool:
        """Whether it takes clients: alone, or with a quorum."""
        return "Mode:" in self.ask("srvr")

    def leads(self) -> bool:
        return "Mode: leader" in self.ask("srvr")

    def ask(self, word: str) -> str:
        """One of ZooKeeper's four-letter words; "" if it does not answer."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                connection.sendall(word.encode())
                return b"".join(iter(lambda: connection.recv(65_536), b"")).decode(errors="replace")
        except OSError:
            return ""

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        if self.process is None or not self.up:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()


@attrs.define
class Ensemble:
    """Servers that belong together."""

    servers: list[Server]

    @property
    def hosts(self) -> str:
        """The connect string."""
        return ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    @property
    def pids(self) -> list[int]:
        return [server.pid for server in self.servers]

    def start(self) -> None:
        """Start all, and wait until all serve.

        Raises:
            ServersError: one has ended, or they are too slow; none is left running.
        """
        try:
            for server in self.servers:
                server.start()
            self.wait()
        except BaseException:
            self.stop()
            raise

    def wait(self) -> None:
        """Wait until all serve. Raises: ServersError."""
        deadline = time.monotonic() + START_S
        waiting = list(self.servers)
        while waiting:
            for server in waiting:
                if not server.up or time.monotonic() > deadline:
                    why = "has ended" if not server.up else f"does not serve within {START_S:g} s"
                    tail = server.log.read_text(encoding="utf-8", errors="replace")[-2_000:]
                    raise ServersError(f"ZooKeeper server {server.number} {why}: {server.log}:\n{tail}")
            waiting = [server for server in waiting if not server.serves()]
            if waiting:
                time.sleep(0.05)

    def leader(self) -> Server | None:
        return next((server for server in self.servers if server.up and server.leads()), None)

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


def lay_out_ensemble(folder: Path, servers: int = 1, *, tick_ms: int = TICK_MS, extra: str = "") -> Ensemble:
    """Write what the servers need; data of an earlier run stays, ports are new.

    Args:
        folder: for everything; made if it is not there.
        servers: how many.
        tick_ms: sessions may last 2 to 20 of these.
        extra: lines for each ``zoo.cfg``.

    Raises:
        ServersError: there are no jars.
    """
    jars = find_jars()
    ports = _free_ports(3 * servers)
    members = "".join(
        f"server.{n + 1}=127.0.0.1:{ports[3 * n + 1]}:{ports[3 * n + 2]}\n" for n in range(servers) if servers > 1
    )
    made = []
    for number in range(1, servers + 1):
        place = (folder / f"zookeeper-{number}").absolute()
        (place / "data").mkdir(parents=True, exist_ok=True)
        (place / "data" / "myid").write_text(f"{number}\n", encoding="ascii")
        port = ports[3 * (number - 1)]
        text = (
            f"tickTime={tick_ms}\ninitLimit=20\nsyncLimit=6\ndataDir={place / 'data'}\n"
            f"clientPort={port}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
            f"4lw.commands.whitelist=*\nmaxClientCnxns=0\n{members}{extra}"
        )
        (place / "zoo.cfg").write_text(text, encoding="utf-8")
        made.append(Server(number, port, place, f"{jars}/*"))
    return Ensemble(made)


def _free_ports(count: int) -> list[int]:
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
