"""A pytest plugin for aio-pika's suite: the broker under test stands where the suite starts RabbitMQ in Docker.

The suite's fixtures ask Docker for a container and use its address. They get the address of the environment instead.
"""

from __future__ import annotations

import os
from typing import Any

from tests import docker_client  # of the suite


class BrokerClient:
    """The part of the suite's Docker client that its fixtures use."""

    def __init__(self, host: object = None) -> None:
        """Take no notice of ``host``: no Docker is asked."""

    def run(self, image: str, ports: list[str], environment: dict[str, str] | None = None) -> Any:
        """The address of the broker under test, as that of a container."""
        found = {"5672/tcp": os.environ["COMPATIBILITY_PORT"], "5671/tcp": os.environ["COMPATIBILITY_TLS_PORT"]}
        return docker_client.ContainerInfo(
            id="broker under test",
            host=os.environ["COMPATIBILITY_HOST"],
            ports={port: int(found[port]) for port in ports},
        )

    def kill(self, container: str) -> None:
        """Nothing: scripts/compatibility stops the broker."""

    def remove(self, container: str) -> None:
        """Nothing, likewise."""


docker_client.DockerClient = BrokerClient  # type: ignore[misc]
docker_client.check_docker_available = docker_client.parse_docker_host
