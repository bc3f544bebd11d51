"""ZooKeeper servers on this host, for trying things out and for tests: from jars that are found, or fetched with Maven.

``understudy cluster --zookeeper embedded`` and ``scripts/services zookeeper`` start them. They listen on loopback alone, on free
ports, and keep everything in one folder.

The jars are found or fetched as `java_servers` says; ``UNDERSTUDY_ZOOKEEPER_JARS`` may name their directory.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

from understudy.ha.trial.edge.java_servers import JavaServer, JavaServers, PinnedJars, free_ports

JARS_VARIABLE: Final = "UNDERSTUDY_ZOOKEEPER_JARS"
VERSION: Final = "3.9.5"
MAX_SERVERS: Final = 7
TICK_MS: Final = 500
"""Sessions last 2 to 20 ticks, so tests want a short one."""

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
        <exclusion><groupId>ch.qos.logback</groupId><artifactId>*</artifactId></exclusion>
      </exclusions>
    </dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>2.0.13</version></dependency>
    <dependency><groupId>io.dropwizard.metrics</groupId><artifactId>metrics-core</artifactId><version>4.1.12.1</version></dependency>
    <dependency><groupId>org.xerial.snappy</groupId><artifactId>snappy-java</artifactId><version>1.1.10.5</version></dependency>
    <dependency><groupId>commons-cli</groupId><artifactId>commons-cli</artifactId><version>1.5.0</version></dependency>
  </dependencies>
</project>
"""
"""What a server needs at run time; slf4j-simple in place of logback, so that it logs to stderr."""

SHA256: Final = """\
bc8bb01fc0fad250385706e20f927ddcff6173f6339b387dc879237752567ac6  commons-cli-1.5.0.jar
4aa4ca48f3dfd30b78220b7881d8cb93eac4093ec94361b6befa9487998a550b  commons-io-2.17.0.jar
cec34936faa625039f4e46123eccaa10a9eb9d9a40c6075830cd81330e259cf9  metrics-core-4.1.12.1.jar
00a522b67ea35cb7b4dd9cf27f85c6c58f5e306785aa045302e5f6b2d4944a87  netty-buffer-4.1.130.Final.jar
52636bc29bd62120b97bbe5d1d21eab9b1cb2bef8efbb54d2221c5f3fa08d8cd  netty-codec-4.1.130.Final.jar
53921f28dd5a352b1bed0e1cbcc54d013dc60ffebeae9b2b1e53eabef317e581  netty-common-4.1.130.Final.jar
98c78ec187ca30a4b9775bf6f632f5c9929db6bf06a60e6971f945813880ca0f  netty-handler-4.1.130.Final.jar
48c5b218a89d184e1b601d46433957f515fcefdb4464182b1348bce4f5a18f35  netty-resolver-4.1.130.Final.jar
1bf573266d271f856705a9984d25449c56a1d73c02a16af12033ceccfe555dbb  netty-transport-4.1.130.Final.jar
1c352508d70aca1ccc3068daac907ad1e9d8dc68b07148d57426730bf0d0c8b6  netty-transport-classes-epoll-4.1.130.Final.jar
d5d4611cb667eb215667c65aabfc75f8d9ef24de2a3e3a32eb28204f9c2a7a30  netty-transport-native-epoll-4.1.130.Final-linux-x86_64.jar
cf5efc4168597d7cd14695b469418cac2a1134533f9a0c82ef0538d796fd39e1  netty-transport-native-unix-common-4.1.130.Final.jar
e7c2a48e8515ba1f49fa637d57b4e2f590b3f5bd97407ac699c3aa5efb1204a9  slf4j-api-2.0.13.jar
3153fe1d689cffb94f1530b58470c306685ba68844de8857116e3b6ebb81d9f7  slf4j-simple-2.0.13.jar
0f3f1857ed33116583f480b4df5c0218836c47bfbc9c6221c0d73f356decf37b  snappy-java-1.1.10.5.jar
936d025db1a85f085edea25048c3f5b3de5fc29329c371a10925e3b78b0b38a0  zookeeper-3.9.5.jar
abcbc7f9d6c493daa118da6fa3061a201e2c521217526e8535adfb56b629e52a  zookeeper-jute-3.9.5.jar
"""
"""As sha256sum prints it. ``docker/zookeeper/jars.sha256`` has the same version and the same jars, but for the logger's."""

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


def find_jars() -> Path:
    """The directory with the jars; fetches them if there is none yet.

    Raises:
        ServersError: they cannot be had.
    """
    return PinnedJars(
        name=f"ZooKeeper {VERSION}",
        directory=f"zookeeper-{VERSION}",
        variable=JARS_VARIABLE,
        sign="zookeeper-*.jar",
        pom=_POM,
        sha256=SHA256,
    ).find()


class Server(JavaServer):
    """One server of an ensemble."""

    def serves(self) -> bool:
        """True if the server takes clients: alone, or with a quorum."""
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


class Ensemble(JavaServers[Server]):
    """The servers of one ensemble. `hosts` is the connect string."""

    product = "ZooKeeper"
    start_s = 60.0

    def leader(self) -> Server | None:
        return next((server for server in self.servers if server.up and server.leads()), None)


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
    ports = free_ports(3 * servers)
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
        made.append(Server(number, port, place, [*_JAVA, "-cp", f"{jars}/*", _MAIN, str(place / "zoo.cfg")]))
    return Ensemble(made)
