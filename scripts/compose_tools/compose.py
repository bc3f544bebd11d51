"""Compose: the services of docker-compose.yml, as one who has a shell would use them."""

from __future__ import annotations

import base64
import json
import os
import shlex
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
PROFILES: Final = ("monitoring", "kafka")
HTTP_TIMEOUT_S: Final = 2.0
COMMAND_TIMEOUT_S: Final = 1_200.0
_STATUS: Final = {"active", "ready"}


class CheckError(Exception):
    """Something is not as docs/docker.md says."""


class Compose:
    """One project.

    Args:
        project: its name, in which containers and volumes begin.
        user, password: of a user with ``monitoring = true``.

    Attributes:
        brokers: by name, their addresses.
        kafka: its published address.
    """

    def __init__(self, project: str, user: str, password: str) -> None:
        self._project = project
        self._login = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._program = shlex.split(os.environ.get("COMPOSE", "docker-compose"))
        subnet = os.environ.get("UNDERSTUDY_SUBNET", "172.29.16")
        self.kafka = f"{os.environ.get('UNDERSTUDY_BIND', '127.0.0.1')}:9094"
        self.brokers: Mapping[str, str] = {f"b{number}": f"{subnet}.2{number}" for number in (1, 2, 3)}

    def compose(self, *arguments: str) -> str:
        """Run ``docker-compose`` with all profiles; returns its stdout.

        Raises:
            CheckError: it fails; with its last words.
        """
        profiles = [word for name in PROFILES for word in ("--profile", name)]
        command = [*self._program, "-p", self._project, *profiles, *arguments]
        done = subprocess.run(
            command,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_TIMEOUT_S,
            env={**os.environ, "UNDERSTUDY_OUTLET": "true"},
        )
        if done.returncode != 0:
            raise CheckError(f"{shlex.join(command)}: exit code {done.returncode}: {done.stderr[-2_000:]}")
        return done.stdout

    def container(self, service: str) -> str:
        """The id of a service's container, running or not."""
        return self.compose("ps", "-q", service).strip()

    def health(self, service: str) -> str:
        """The state of the health check: starting, healthy, unhealthy; or why there is none."""
        shown = subprocess.run(
            ["docker", "inspect", "-f", "{{.State.Status}} {{.State.Health.Status}}", self.container(service)],
            capture_output=True,
            text=True,
            check=False,
        )
        state, _, health = shown.stdout.strip().partition(" ")
        return health if state == "running" else state

    def status(self, broker: str) -> dict[str, Any] | None:
        """``/status`` of a broker; None if it does not answer."""
        request = urllib.request.Request(
            f"http://{self.brokers[broker]}:8672/status", headers={"Authorization": f"Basic {self._login}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=HTTP_TIMEOUT_S) as answer:  # noqa: S310  # it is HTTP
                shown: dict[str, Any] = json.load(answer)
        except (OSError, ValueError):
            return None
        return shown

    def primary(self) -> str:
        """The broker that leads and serves.

        Raises:
            CheckError: none does.
        """
        for broker in self.brokers:
            shown = self.status(broker)
            if shown is not None and shown["status"] == "active":
                return broker
        raise CheckError("no broker leads")

    def unready(self) -> list[str]:
        """Reasons why the group is not whole: each broker has to be active or ready, and in the in-sync set."""
        found = []
        for broker in self.brokers:
            shown = self.status(broker)
            if shown is None:
                found.append(f"{broker} does not answer")
            elif shown["status"] not in _STATUS or len(shown["in_sync"]) < len(self.brokers):
                found.append(f"{broker} is {shown['status']}, in-sync set {shown['in_sync']}: {shown['blockers']}")
        return found


def until(reasons: Callable[[], list[str]], timeout_s: float) -> float:
    """Wait until nothing is in the way any more; returns how long that took.

    Raises:
        CheckError: it takes longer than ``timeout_s``; with what is in the way.
    """
    began = time.monotonic()
    while found := reasons():
        if time.monotonic() - began > timeout_s:
            raise CheckError(f"not within {timeout_s:g} s: {'; '.join(found)}")
        time.sleep(0.1)
    return time.monotonic() - began
