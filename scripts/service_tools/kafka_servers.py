"""Kafka servers on this host, in KRaft mode: layout, start, kill and restart of each.

``scripts/services kafka`` and the tests start them. They listen on loopback alone, on free ports, and keep everything in one
folder. Each server is broker and controller. Topics are not made by themselves.

The pinned jars are those of the image (``docker/kafka/jars.sha256``); ``UNDERSTUDY_KAFKA_JARS`` may name another directory.

Timings suit tests: a broker that was killed is replaced as a leader after two seconds.
"""

from __future__ import annotations

import base64
import secrets
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs

from understudy.ha.trial.edge.java_servers import JavaServer, JavaServers, PinnedJars, ServersError, free_ports

JARS_VARIABLE: Final = "UNDERSTUDY_KAFKA_JARS"
VERSION: Final = "4.1.1"
MAX_BROKERS: Final = 5
FORMAT_S: Final = 120.0
LOCK_FILE: Final = Path(__file__).parents[2] / "docker" / "kafka" / "jars.sha256"

_POM: Final = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>understudy</groupId><artifactId>kafka-jars</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{VERSION}</version></dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.24.3</version>
    </dependency>
  </dependencies>
</project>
"""
_JAVA: Final = ("-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=WARN")
_MAIN: Final = "kafka.Kafka"
_FORMAT: Final = "kafka.tools.StorageTool"

_PROPERTIES: Final = """\
process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listeners={listeners},CONTROLLER://127.0.0.1:{controller}
advertised.listeners={listeners}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_SSL,TLS:SSL
log.dirs={logs}
auto.create.topics.enable=false
default.replication.factor={replicas}
min.insync.replicas={min_insync}
offsets.topic.replication.factor={replicas}
offsets.topic.num.partitions=3
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={min_insync}
transaction.state.log.num.partitions=3
share.coordinator.state.topic.replication.factor={replicas}
share.coordinator.state.topic.min.isr={min_insync}
group.initial.rebalance.delay.ms=0
broker.heartbeat.interval.ms=300
broker.session.timeout.ms=2000
replica.lag.time.max.ms=5000
log.cleaner.threads=1
log.cleaner.dedupe.buffer.size=8388608
num.network.threads=2
num.io.threads=4
"""
_SECURED: Final = """\
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
ssl.truststore.type=PEM
ssl.truststore.location={cert}
listener.name.tls.ssl.client.auth=required
listener.name.sasl.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.sasl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required {users};
listener.name.sasl.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
"""


@attrs.frozen(kw_only=True)
class Secured:
    """Two more listeners: SASL over TLS for `users`, and TLS for clients with a certificate. Without an ACL neither may anything.

    A client of the plain listener may do all.

    Attributes:
        cert, key: PEM files of the servers. A client's certificate must be signed by ``cert``.
        users: name and password of each, for PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512.
    """

    cert: Path
    key: Path
    users: Mapping[str, str]


def find_jars() -> Path:
    """The directory with the jars; fetches them if there is none yet.

    Raises:
        ServersError: they cannot be had.
    """
    return PinnedJars(
        name=f"Kafka {VERSION}",
        directory=f"kafka-{VERSION}",
        variable=JARS_VARIABLE,
        sign="kafka_*.jar",
        pom=_POM,
        sha256=LOCK_FILE.read_text(encoding="ascii"),
    ).find()


@attrs.define
class KafkaServer(JavaServer):
    """One server of a cluster.

    Attributes:
        sasl_port, tls_port: of the secured listeners; 0 if there are none.
    """

    sasl_port: int = 0
    tls_port: int = 0

    def serves(self) -> bool:
        """True if the broker takes clients: it listens once it is part of its cluster."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0):
                return True
        except OSError:
            return False


class KafkaCluster(JavaServers[KafkaServer]):
    """The servers of one cluster. `hosts` are the bootstrap servers of the plain listener."""

    product = "Kafka"
    start_s = 120.0

    @property
    def sasl_hosts(self) -> str:
        """The same of the SASL listener."""
        return ",".join(f"127.0.0.1:{server.sasl_port}" for server in self.servers if server.sasl_port)

    @property
    def tls_hosts(self) -> str:
        """The same of the listener that wants certificates."""
        return ",".join(f"127.0.0.1:{server.tls_port}" for server in self.servers if server.tls_port)

    def kill(self, number: int) -> None:
        """Send SIGKILL to one, and wait for its end."""
        self.servers[number - 1].kill()

    def restart(self, number: int) -> None:
        """Start one that was killed or stopped, on its old ports, and wait until it serves. Raises: ServersError."""
        self.servers[number - 1].start()
        self.wait(number)


def lay_out_kafka(folder: Path, brokers: int = 1, *, secured: Secured | None = None, extra: str = "") -> KafkaCluster:
    """Write what the servers need; data of an earlier run stays, ports are new.

    Args:
        folder: for everything; made if it is not there.
        brokers: how many. From three on a record must be on two before it counts.
        secured: two more listeners; None: the plain one only.
        extra: lines for each ``server.properties``.

    Raises:
        ServersError: there are no jars, or the storage cannot be formatted.
    """
    classpath = f"{find_jars()}/*"
    ports = free_ports(4 * brokers)
    voters = ",".join(f"{n + 1}@127.0.0.1:{ports[4 * n + 1]}" for n in range(brokers))
    made = []
    for number in range(1, brokers + 1):
        place = (folder / f"kafka-{number}").absolute()
        place.mkdir(parents=True, exist_ok=True)
        port, controller, sasl, tls = ports[4 * (number - 1) : 4 * number]
        listeners = f"PLAINTEXT://127.0.0.1:{port}"
        if secured is not None:
            listeners += f",SASL://127.0.0.1:{sasl},TLS://127.0.0.1:{tls}"
        text = _PROPERTIES.format(
            number=number,
            voters=voters,
            listeners=listeners,
            controller=controller,
            logs=place / "data",
            replicas=min(brokers, 3),
            min_insync=2 if brokers >= 3 else 1,
        )
        properties = place / "server.properties"
        properties.write_text(text + _secured_text(place, secured) + extra, encoding="utf-8")
        arguments = [*_JAVA, "-cp", classpath, _MAIN, str(properties)]
        server = KafkaServer(number, port, place, arguments)
        if secured is not None:
            server.sasl_port, server.tls_port = sasl, tls
        made.append(server)
    _format(classpath, [server.folder for server in made], secured)
    return KafkaCluster(made)


def _secured_text(place: Path, secured: Secured | None) -> str:
    if secured is None:
        return ""
    keystore = place / "keystore.pem"
    keystore.touch(mode=0o600)
    keystore.write_bytes(secured.key.read_bytes() + secured.cert.read_bytes())
    users = " ".join(f'user_{name}="{password}"' for name, password in secured.users.items())
    return _SECURED.format(keystore=keystore, cert=secured.cert.absolute(), users=users)


def _format(classpath: str, folders: list[Path], secured: Secured | None) -> None:
    """Format the storage of servers that have none, all at once."""
    fresh = [folder for folder in folders if not (folder / "data" / "meta.properties").exists()]
    if 0 < len(fresh) < len(folders):
        raise ServersError(f"{fresh[0]} holds no data, and {len(folders) - len(fresh)} others do: remove all, or none")
    # It must not begin with "-", as an option does.
    cluster_id = "A" + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode()[1:22]
    scram = [
        f"--add-scram=SCRAM-SHA-{size}=[name={name},password={password}]"
        for name, password in (secured.users.items() if secured is not None else ())
        for size in (256, 512)
    ]
    tool = [
        "java",
        "-Xmx128m",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        classpath,
        _FORMAT,
        "format",
        "-t",
        cluster_id,
        *scram,
    ]
    running = [
        subprocess.Popen(
            [*tool, "-c", str(folder / "server.properties")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for folder in fresh
    ]
    outputs = [process.communicate(timeout=FORMAT_S)[0] for process in running]
    for process, said, folder in zip(running, outputs, fresh, strict=True):
        if process.returncode:
            raise ServersError(
                f"the storage of {folder} cannot be formatted:\n{said.decode(errors='replace')[-2_000:]}"
            )
