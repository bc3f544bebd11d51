"""The command line of ``scripts/services``."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from service_tools.kafka_admin import create_topic
from service_tools.kafka_servers import MAX_BROKERS, KafkaCluster, lay_out_kafka
from understudy.broker.errors import UnderstudyError
from understudy.ha.zookeeper_servers import MAX_SERVERS, TICK_MS, Ensemble, lay_out_ensemble
from understudy.xa.core.errors import XaError
from understudy.xa.postgresql_server import PostgresServer

_TOPIC = re.compile(r"([a-zA-Z0-9._-]{1,249})(?::([1-9][0-9]{0,3}))?")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/services",
        description="Starts servers on 127.0.0.1, says how to reach them, and stops them on SIGTERM or Ctrl-C.",
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
    """Run until a signal ends it; returns the exit code."""
    options = _options(arguments)
    data: Path = (options.data or Path(tempfile.mkdtemp(prefix="understudy-services-"))).absolute()
    stop = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)
    servers: Ensemble | KafkaCluster | PostgresServer = Ensemble([])
    try:
        if options.service == "postgresql":
            servers = PostgresServer(data / "postgresql")
            data.chmod(0o711)  # it may run as another user, who must come to its folder
            servers.create()
            servers.start()
            _say_postgresql(servers, as_json=options.json)
            signal.sigwait(stop)
            return 0
        if options.service == "kafka":
            name, servers = "Kafka", lay_out_kafka(data, options.brokers)
            servers.start()
            for topic, partitions in options.topic:
                asyncio.run(create_topic(servers.hosts, topic, partitions, replicas=min(options.brokers, 3)))
        else:
            name, servers = "ZooKeeper", lay_out_ensemble(data, options.servers, tick_ms=options.tick_ms)
            servers.start()
        _say(name, servers, data, as_json=options.json)
        signal.sigwait(stop)
    except (UnderstudyError, XaError, OSError) as error:  # OSError: a folder that cannot be made
        print(f"scripts/services: {error}", file=sys.stderr)
        return 1
    finally:
        servers.stop()
    return 0


def _say_postgresql(server: PostgresServer, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({**server.options, "pids": [server.pid], "data": str(server.folder)}), flush=True)
        return
    keys = "\n".join(f"{key} = {json.dumps(value)}" for key, value in server.options.items())
    print(
        f"PostgreSQL (process {server.pid}), data in {server.folder}; Ctrl-C stops it. In a profile:\n{keys}",
        flush=True,
    )


def _say(name: str, servers: Ensemble | KafkaCluster, data: Path, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"address": servers.hosts, "pids": servers.pids, "data": str(data)}), flush=True)
        return
    pids = ", ".join(map(str, servers.pids))
    print(f"{name} at {servers.hosts} (processes {pids}), data in {data}; Ctrl-C stops it", flush=True)
