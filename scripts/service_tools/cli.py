"""The command line of ``scripts/services``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from service_tools.background import in_background, registered, stop
from service_tools.kafka_admin import create_topic
from service_tools.kafka_servers import MAX_BROKERS, KafkaCluster, lay_out_kafka
from understudy.broker.errors import UnderstudyError
from understudy.ha.trial.edge.zookeeper_servers import MAX_SERVERS, TICK_MS, Ensemble, lay_out_ensemble
from understudy.xa.core.errors import XaError
from understudy.xa.demo.postgresql_server import PostgresServer

_SERVICES = ("zookeeper", "kafka", "postgresql")
_TOPIC = re.compile(r"([a-zA-Z0-9._-]{1,249})(?::([1-9][0-9]{0,3}))?")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/services",
        description="Starts servers on 127.0.0.1, says how to reach them, and stops them on SIGTERM or Ctrl-C. "
        "With --detach they run on, until `stop`.",
    )
    services = parser.add_subparsers(dest="service", required=True)
    zookeeper = services.add_parser("zookeeper", help="an ensemble of ZooKeeper servers")
    zookeeper.add_argument("--servers", type=int, default=1, choices=range(1, MAX_SERVERS + 1), metavar="N")
    zookeeper.add_argument("--tick-ms", type=_tick, default=TICK_MS, help="sessions may last 2 to 20 ticks")
    kafka = services.add_parser("kafka", help="a Kafka cluster in KRaft mode")
    kafka.add_argument("--brokers", type=int, default=1, choices=range(1, MAX_BROKERS + 1), metavar="N")
    kafka.add_argument(
        "--topic",
        type=_topic,
        action="append",
        default=[],
        metavar="NAME[:PARTITIONS]",
        help="make this topic, if it is not there; may be given several times",
    )
    postgresql = services.add_parser("postgresql", help="a PostgreSQL server with prepared transactions")
    for each in (zookeeper, kafka, postgresql):
        each.add_argument("--data", type=Path, help="the folder of everything; a new one under /tmp by default")
        each.add_argument("--json", action="store_true", help="one line with address, pids and data")
        each.add_argument("--detach", action="store_true", help="end when the servers are up, and leave them running")
    ending = services.add_parser("stop", help="stop the servers of a folder")
    ending.add_argument("--data", type=Path, required=True, help="the folder that their start has named")
    return parser.parse_args(arguments)


def _tick(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,4}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of milliseconds from 1 to 99999")
    return int(text)


def _topic(text: str) -> tuple[str, int]:
    found = _TOPIC.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME or NAME:PARTITIONS")
    return found[1], int(found[2] or 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal ends it, or with --detach until the servers are up; returns the exit code."""
    options = _options(arguments)
    try:
        if options.service == "stop":
            return _stop(options.data.absolute())
        data = (options.data or Path(tempfile.mkdtemp(prefix="understudy-services-"))).absolute()
        if options.detach:
            return in_background(lambda tell: _serve(options, data, tell))
        return _serve(options, data, lambda text: print(text, flush=True))
    except (UnderstudyError, XaError, OSError) as error:  # OSError: a folder that cannot be made
        print(f"scripts/services: {error}", file=sys.stderr)
        return 1


def _stop(data: Path) -> int:
    ended = stop(data, _SERVICES)
    print("\n".join(ended) or f"scripts/services: no servers run in {data}", file=sys.stdout if ended else sys.stderr)
    return 0 if ended else 1


def _serve(options: argparse.Namespace, data: Path, tell: Callable[[str], None]) -> int:
    """Start the servers, tell how to reach them, and stop them when a signal comes."""
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    begin = {"zookeeper": _zookeeper, "kafka": _kafka, "postgresql": _postgresql}[options.service]
    try:
        with registered(data, options.service), begin(options, data) as text:
            tell(text)
            signal.sigwait(ends)
    except (UnderstudyError, XaError, OSError) as error:
        print(f"scripts/services: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


@contextlib.contextmanager
def _zookeeper(options: argparse.Namespace, data: Path) -> Iterator[str]:
    servers = lay_out_ensemble(data, options.servers, tick_ms=options.tick_ms)
    try:
        servers.start()
        yield _about("ZooKeeper", servers, data, options)
    finally:
        servers.stop()


@contextlib.contextmanager
def _kafka(options: argparse.Namespace, data: Path) -> Iterator[str]:
    servers = lay_out_kafka(data, options.brokers)
    try:
        servers.start()
        for topic, partitions in options.topic:
            asyncio.run(create_topic(servers.hosts, topic, partitions, replicas=min(options.brokers, 3)))
        yield _about("Kafka", servers, data, options)
    finally:
        servers.stop()


@contextlib.contextmanager
def _postgresql(options: argparse.Namespace, data: Path) -> Iterator[str]:
    server = PostgresServer(data / "postgresql")
    try:
        data.chmod(0o711)  # it may run as another user, who must come to its folder
        server.create()
        server.start()
        if options.json:
            yield json.dumps({**server.options, "pids": [server.pid], "data": str(server.folder)})
        else:
            keys = "\n".join(f"{key} = {json.dumps(value)}" for key, value in server.options.items())
            said = f"PostgreSQL (process {server.pid}), data in {server.folder}; {_ending(options, data)}"
            yield f"{said}. In a profile:\n{keys}"
    finally:
        server.stop()


def _about(name: str, servers: Ensemble | KafkaCluster, data: Path, options: argparse.Namespace) -> str:
    if options.json:
        return json.dumps({"address": servers.hosts, "pids": servers.pids, "data": str(data)})
    pids = ", ".join(map(str, servers.pids))
    return f"{name} at {servers.hosts} (processes {pids}), data in {data}; {_ending(options, data)}"


def _ending(options: argparse.Namespace, data: Path) -> str:
    return f"`scripts/services stop --data {data}` stops it" if options.detach else "Ctrl-C stops it"
