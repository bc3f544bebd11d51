"""The command line of ``scripts/check_compose``, and its steps."""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from compose_tools.client import Client
from compose_tools.compose import CheckError, Compose, until
from compose_tools.topics import kafka_lacks

SERVICES: Final = ("zk1", "zk2", "zk3", "b1", "b2", "b3", "prometheus", "kafka")
USER: Final = "understudy"
PASSWORD: Final = "guest"  # noqa: S105  # docker/understudy.toml says so to everybody
READY_S: Final = 120.0
FAILOVER_S: Final = 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    """0 everything holds, 1 something does not."""
    parser = argparse.ArgumentParser(prog="scripts/check_compose", description="Runs docker-compose.yml, whole.")
    parser.add_argument("--kills", type=int, default=10, help="docker kill of the primary, so often (10)")
    parser.add_argument("--only-kills", action="store_true", help="of a project that is up already, and stays up")
    parser.add_argument(
        "--silent", action="store_true", help="nobody answers at a killed broker's address (iptables; root)"
    )
    parser.add_argument("--project", default="understudy-check", help="name of the project (understudy-check)")
    parser.add_argument("--keep", action="store_true", help="leave it running")
    parser.add_argument("--json", action="store_true", help="the last line of stdout is the report as JSON")
    options = parser.parse_args(arguments)
    compose = Compose(options.project, USER, PASSWORD)
    report: dict[str, object] = {}
    try:
        if not options.only_kills:
            _start(compose, report)
        committed = _kill_and_restart(compose, options.kills, report, silent=options.silent)
        if not options.only_kills:
            _look_at_the_rest(compose, report, committed)
    except (CheckError, TimeoutError, subprocess.TimeoutExpired) as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    finally:
        if not options.only_kills and not options.keep:
            _timed(report, "down", lambda: compose.compose("down", "-v"))
        if options.json:
            print(json.dumps(report))
    return 0


def _timed(report: dict[str, object], step: str, call: Callable[[], object]) -> None:
    began = time.monotonic()
    call()
    report[f"{step}_s"] = round(time.monotonic() - began, 1)
    print(f"{step}: {report[f'{step}_s']} s", flush=True)


def _start(compose: Compose, report: dict[str, object]) -> None:
    _timed(report, "config", lambda: compose.compose("config", "-q"))
    _timed(report, "build", lambda: compose.compose("build"))
    _timed(report, "up", lambda: compose.compose("up", "-d"))
    _timed(report, "ready", lambda: until(compose.unready, READY_S))
    _timed(report, "healthy", lambda: until(lambda: _unhealthy(compose), READY_S))


def _unhealthy(compose: Compose) -> list[str]:
    states = {service: compose.health(service) for service in SERVICES}
    return [f"{service} is {state}" for service, state in states.items() if state != "healthy"]


@contextlib.contextmanager
def _no_dials(address: str) -> Iterator[None]:
    """Let no connection begin to the link port at ``address``; those that stand go on."""
    rule = ["DOCKER-USER", "-d", address, "-p", "tcp", "--syn", "--dport", "7672", "-j", "DROP"]
    subprocess.run(["iptables", "-I", *rule], check=True)
    try:
        yield
    finally:
        subprocess.run(["iptables", "-D", *rule], check=True)


def _kill_and_restart(compose: Compose, kills: int, report: dict[str, object], *, silent: bool) -> list[str]:
    """Kill the primary with a client at work; what was told committed must be there once, on both queues. Returns that."""
    until(compose.unready, READY_S)
    client = Client(list(compose.brokers.values()), USER, PASSWORD)
    client.commit(time.monotonic() + FAILOVER_S)
    client.drain(time.monotonic() + FAILOVER_S)
    client.committed.clear()
    outages_s = []
    for _ in range(kills):
        client.commit(time.monotonic() + FAILOVER_S)
        victim = compose.primary()
        container = compose.container(victim)
        with _no_dials(compose.brokers[victim]) if silent else contextlib.nullcontext():
            began = time.monotonic()
            subprocess.run(["docker", "kill", container], check=True, capture_output=True)
            outages_s.append(client.commit(began + FAILOVER_S) - began)
        subprocess.run(["docker", "start", container], check=True, capture_output=True)
        whole_s = until(compose.unready, READY_S)
        print(
            f"docker kill {victim}: first commit after {outages_s[-1]:.2f} s, whole again after {whole_s:.1f} s",
            flush=True,
        )
    found = client.drain(time.monotonic() + FAILOVER_S)
    for queue, bodies in found.items():
        if missing := set(client.committed) - set(bodies):
            raise CheckError(f"queue {queue} lacks what was committed: {sorted(missing)}")
        if len(set(bodies)) != len(bodies):
            raise CheckError(f"queue {queue} has a message twice")
    if set(found["left"]) != set(found["right"]):
        raise CheckError(f"a transaction is there by half: {set(found['left']) ^ set(found['right'])}")
    if outages_s:
        report |= {
            "kills": kills,
            "first_commit_s": {
                "median": round(statistics.median(outages_s), 2),
                "worst": round(max(outages_s), 2),
                "all": [round(each, 2) for each in outages_s],
            },
        }
        print(f"{kills} kills: median {statistics.median(outages_s):.2f} s, worst {max(outages_s):.2f} s", flush=True)
    return client.committed


def _look_at_the_rest(compose: Compose, report: dict[str, object], committed: Sequence[str]) -> None:
    """The commands of the README, the feed's files, feed and transactions in Kafka, the alerts' rules."""
    status = (
        "understudy",
        "status",
        "--zk",
        "zk1:2181,zk2:2181,zk3:2181",
        "--group",
        "understudy",
        "--expect",
        "ready",
    )
    compose.compose("exec", "-T", "b1", *status)
    _timed(report, "feed", lambda: until(lambda: _feed_lacks(compose), READY_S))
    _timed(report, "kafka", lambda: until(lambda: kafka_lacks(compose.kafka, compose.brokers, committed), READY_S))
    compose.compose("exec", "-T", "prometheus", "promtool", "check", "rules", "/etc/prometheus/rules.yml")


def _feed_lacks(compose: Compose) -> list[str]:
    told = compose.compose("exec", "-T", "b1", "understudy", "feed", "--data", "/var/lib/understudy/data")
    return [] if "COMMIT" in told.upper() else [f"the feed of b1 tells of no commit: {told[-500:]}"]
