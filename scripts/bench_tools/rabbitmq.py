"""RabbitMQ's side: a cluster of its own on the loopback, with classic mirrored queues (or quorum queues).

The nodes run the packaged scripts with the packaged settings, and no plugin.  Ours are only: names, ports and folders,
the Erlang cookie, distribution and epmd bound to 127.0.0.1, and log level ``warning``.  Nothing outside the run's
folder is read or written: neither /etc/rabbitmq nor /var/lib/rabbitmq, nor a node or epmd that may already run here.

All queues are declared through node 1, so it leads them all and the others mirror: the shape of our cluster too.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench_tools.errors import BenchError
from bench_tools.links import Links
from bench_tools.processes import Child, await_port, free_ports

# Debian's /usr/sbin/rabbitmq* are wrappers that change user and folder; these are the scripts behind them.
_SCRIPTS = (Path("/usr/lib/rabbitmq/bin"), Path("/usr/local/sbin"), Path("/opt/rabbitmq/sbin"))
_START_TIMEOUT_S = 120.0
_STOP_GRACE_S = 20.0
_POLICY = {"ha-mode": "all", "ha-sync-mode": "automatic"}


def find_scripts() -> Path | None:
    """The folder of ``rabbitmq-server`` and ``rabbitmqctl``, None if RabbitMQ is not installed."""
    return next((folder for folder in _SCRIPTS if (folder / "rabbitmq-server").exists()), None)


class RabbitMq:
    """A RabbitMQ cluster of ``nodes`` nodes below ``folder``.

    ``settings``: further lines of each rabbitmq.conf. ``links``: each node runs in a namespace of these, None: all run beside the
    bench. Erlang's distribution goes over them then, and each namespace has an epmd.
    """

    def __init__(
        self, folder: Path, nodes: int, quorum: bool, settings: Sequence[str] = (), links: Links | None = None
    ) -> None:
        scripts = find_scripts()
        if scripts is None:
            raise BenchError(
                "rabbitmq-server is not installed (Debian: apt-get install rabbitmq-server); "
                "use --only understudy to measure without it"
            )
        self.name = "rabbitmq"
        self.queue_type = "quorum" if quorum else None
        self._scripts = scripts
        self._folder = folder
        self._nodes = nodes
        self._settings = settings
        self._links = links
        self._children: list[Child] = []
        self._epmds: list[Child] = []
        self._ports: list[int] = []
        self._epmd_port = 0
        self._version = "?"

    # -- start and stop

    def start(self) -> None:
        self._folder.mkdir(parents=True)
        ports = free_ports(2 * self._nodes + 2)
        self._ports, self._distribution_ports = ports[: self._nodes], ports[self._nodes : 2 * self._nodes]
        self._epmd_port, self._ctl_port = ports[-2:]
        cookie = self._folder / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16).upper())
        cookie.chmod(0o400)
        if self._links is not None:
            lines = [
                f'{{host, {{{_erlang(self._address(each))}}}, ["bench{each + 1}"]}}.' for each in range(self._nodes)
            ]
            (self._folder / "inetrc").write_text("{lookup, [file, native]}.\n" + "\n".join(lines) + "\n")
        for number in range(self._nodes if self._links is not None else 1):
            self._epmds.append(
                Child(
                    "epmd",
                    [*self._inside(number), "epmd", "-port", str(self._epmd_port), "-address", self._address(number)],
                    self._folder / f"epmd{number + 1}.log",
                    env=self._environment(number),
                )
            )
        await_port(self._epmd_port, self._epmds[0], 10)
        for number in range(self._nodes):
            self._start_node(number)
            if number == 0:
                # The first is up before the others look for a cluster: they join it and cannot found another.
                await_port(self._ports[0], self._children[0], _START_TIMEOUT_S)
        for number in range(1, self._nodes if self._links is None else 1):
            await_port(self._ports[number], self._children[number], _START_TIMEOUT_S)
        self._ctl("await_online_nodes", str(self._nodes))
        self._version = self._ctl("version").strip()
        if self._nodes > 1 and self.queue_type is None:
            self._ctl("set_policy", "ha-all", ".*", json.dumps(_POLICY))

    def _start_node(self, number: int) -> None:
        folder = self._folder / f"node{number + 1}"
        folder.mkdir()
        config = folder / "rabbitmq.conf"
        lines = [
            f"listeners.tcp.1 = 127.0.0.1:{self._ports[number]}",
            "log.file.level = warning",
            "log.console = false",
            *self._settings,
        ]
        if number > 0:
            lines += [
                "cluster_formation.peer_discovery_backend = classic_config",
                "cluster_formation.randomized_startup_delay_range.min = 0",
                "cluster_formation.randomized_startup_delay_range.max = 1",
            ]
            lines += [
                f"cluster_formation.classic_config.nodes.{other + 1} = {self.node_name(other)}"
                for other in range(self._nodes)
            ]
        config.write_text("\n".join(lines) + "\n")
        (folder / "enabled_plugins").write_text("[].\n")
        environment = self._environment(number) | {
            "RABBITMQ_NODENAME": self.node_name(number),
            "RABBITMQ_NODE_PORT": str(self._ports[number]),
            "RABBITMQ_DIST_PORT": str(self._distribution_ports[number]),
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_CONFIG_FILES": str(folder / "conf.d"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": self._interface(number),
            # Makes the script exec the Erlang VM: its process id is the one we started, and SIGTERM stops it cleanly.
            "RUNNING_UNDER_SYSTEMD": "true",
        }
        self._children.append(
            Child(
                f"rabbitmq node {number + 1}",
                [*self._inside(number), str(self._scripts / "rabbitmq-server")],
                folder / "output.log",
                env=environment,
            )
        )

    def stop(self) -> None:
        for child in self._children:
            child.ask_to_stop()
        deadline = time.monotonic() + _STOP_GRACE_S
        for child in self._children:
            child.stop(max(1.0, deadline - time.monotonic()))
        for epmd in self._epmds:
            epmd.stop(2.0)
        self._children, self._epmds = [], []

    # -- what the runner asks

    @property
    def port(self) -> int:
        return self._ports[0]

    def process_roots(self) -> Sequence[int]:
        for child in self._children:
            child.require_alive()
        return [child.pid for child in self._children]

    def check_replication(self, queues: Sequence[str]) -> Sequence[str]:
        """Ask node 1 where every queue is; a mirror that is not in sync counts as missing."""
        column = "members" if self.queue_type == "quorum" else "synchronised_slave_pids"
        wanted = self._nodes if self.queue_type == "quorum" else self._nodes - 1
        here = (
            ["--local"] if self._links is not None else []
        )  # other nodes cannot dial rabbitmqctl: they do not answer it
        rows = json.loads(self._ctl("list_queues", *here, "--formatter", "json", "name", "policy", column))
        copies = {row["name"]: _count(row[column]) for row in rows}
        return [
            f"queue {queue}: {copies.get(queue, 'absent')} in {column}, not {wanted}"
            for queue in queues
            if copies.get(queue) != wanted
        ]

    def description(self) -> Mapping[str, str | int]:
        kind = "quorum queues" if self.queue_type else f"classic mirrored queues {json.dumps(_POLICY)}"
        return {
            "version": self._version,
            "nodes": self._nodes,
            "queues": kind if self._nodes > 1 or self.queue_type else "classic queues, not mirrored",
        } | ({} if self._links is None else {"links": "TCP between network namespaces"})

    # -- pieces

    def node_name(self, number: int) -> str:
        """The Erlang name of a node, from 0."""
        return f"understudy-bench-{number + 1}@" + ("localhost" if self._links is None else f"bench{number + 1}")

    def _inside(self, number: int) -> list[str]:
        """Words before a command that make it run where the node does."""
        return [] if self._links is None else self._links.inside(number)

    def _address(self, number: int) -> str:
        return "127.0.0.1" if self._links is None else self._links.addresses[number]

    def _interface(self, number: int) -> str:
        return f"-kernel inet_dist_use_interface {{{_erlang(self._address(number))}}}"

    def _environment(self, number: int = 0) -> dict[str, str]:
        names = {} if self._links is None else {"ERL_INETRC": str(self._folder / "inetrc")}
        return names | {
            "PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
            "LANG": "C.UTF-8",
            "HOME": str(self._folder),  # where Erlang looks for the cookie
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": self._address(number),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",  # not a plain file: /etc/rabbitmq/rabbitmq-env.conf stays unread
        }

    def control_script(self) -> str:
        """A shell script that is ``rabbitmqctl`` for this cluster; the node is named by ``-n``."""
        variables = [shlex.quote(f"{name}={value}") for name, value in self._ctl_environment().items()]
        folder, program = shlex.quote(str(self._folder)), shlex.quote(str(self._scripts / "rabbitmqctl"))
        return f'#!/bin/sh\ncd {folder} && exec env -i {" ".join(variables)} {program} "$@"\n'

    def _ctl_environment(self) -> dict[str, str]:
        return self._environment() | {
            "RABBITMQ_CTL_ERL_ARGS": self._interface(0),
            "RABBITMQ_CTL_DIST_PORT_MIN": str(self._ctl_port),
            "RABBITMQ_CTL_DIST_PORT_MAX": str(self._ctl_port),
        }

    def _ctl(self, *arguments: str) -> str:
        command = [str(self._scripts / "rabbitmqctl"), "--quiet", "-n", self.node_name(0), *arguments]
        done = subprocess.run(
            command,
            env=self._ctl_environment(),
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=_START_TIMEOUT_S,
        )
        if done.returncode != 0:
            raise BenchError(f"rabbitmqctl {' '.join(arguments)} failed: {(done.stderr or done.stdout).strip()}")
        return done.stdout


def _erlang(address: str) -> str:
    return address.replace(".", ",")


def _count(value: object) -> int:
    """Length of a list column; an empty one comes as the empty string."""
    return len(value) if isinstance(value, list) else 0
