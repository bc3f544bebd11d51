"""The brokers that suites are run against, on free ports of the loopback: Understudy, and the RabbitMQ that is installed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

import attrs
from bench_tools.processes import Child, await_port, free_ports
from bench_tools.rabbitmq import RabbitMq, find_scripts
from bench_tools.understudy import Understudy

PROGRAM: Final = Path(sys.executable).with_name("understudy")
HOST: Final = "127.0.0.1"
_START_S: Final = 60.0
_STOP_S: Final = 20.0


@attrs.frozen(kw_only=True)
class Address:
    """Where a broker under test listens.

    Attributes:
        product: with its version, for people.
        port: of AMQP.
        tls_port: of AMQP over TLS.
        control: the program that stands for ``rabbitmqctl``.
        node: its name for the broker.
    """

    product: str
    port: int
    tls_port: int
    control: str = "false"
    node: str = "none"

    @property
    def values(self) -> Mapping[str, str]:
        """Names that stand in braces in the table of suites, and their values."""
        ports = {"port": str(self.port), "tls_port": str(self.tls_port)}
        return {"host": HOST, **ports, "control": self.control, "node": self.node}


Start = Callable[[Path, Path], contextlib.AbstractContextManager[Address]]
"""Starts a broker below a folder, with the certificates of another one, for the time of a ``with``."""


def rabbitmq_is_installed() -> bool:
    """True if this machine has the server's scripts."""
    return find_scripts() is not None


def understudy(brokers: int) -> Start:
    """Start one broker alone, or a group of ``brokers``; the TLS port is that of one more broker, alone."""

    @contextlib.contextmanager
    def start(folder: Path, certificates: Path) -> Iterator[Address]:
        folder.mkdir(parents=True)
        tls = f'[amqp.tls]\ncert = "{certificates}/server_certificate.pem"\nkey = "{certificates}/server_key.pem"\n'
        with contextlib.ExitStack() as stack:
            if brokers == 1:
                port = stack.enter_context(_one_broker(folder / "plain", ""))
            else:
                port = stack.enter_context(_group(folder / "group", brokers))
            tls_port = stack.enter_context(_one_broker(folder / "tls", tls))
            yield Address(product=f"Understudy {metadata.version('understudy')}", port=port, tls_port=tls_port)

    return start


@contextlib.contextmanager
def _one_broker(folder: Path, more: str) -> Iterator[int]:
    folder.mkdir()
    (port,) = free_ports(1)
    config = folder / "broker.toml"
    config.write_text(
        f'[broker]\nid = "b1"\ndata = "data"\n[amqp]\nport = {port}\n[http]\nport = 0\n{more}', encoding="utf-8"
    )
    child = Child("understudy serve", [str(PROGRAM), "serve", "--config", str(config)], folder / "broker.log")
    try:
        await_port(port, child, _START_S)
        yield port
        child.require_alive()
    finally:
        child.stop(_STOP_S)


@contextlib.contextmanager
def _group(folder: Path, brokers: int) -> Iterator[int]:
    group = Understudy(folder, PROGRAM, brokers)
    try:
        group.start()
        yield group.port
    finally:
        group.stop()


@contextlib.contextmanager
def rabbitmq(folder: Path, certificates: Path) -> Iterator[Address]:
    """One node of the RabbitMQ that is installed, with the packaged settings."""
    (tls_port,) = free_ports(1)
    node = RabbitMq(
        folder,
        1,
        quorum=False,
        settings=[
            f"listeners.ssl.1 = {HOST}:{tls_port}",
            f"ssl_options.cacertfile = {certificates}/ca_certificate.pem",
            f"ssl_options.certfile = {certificates}/server_certificate.pem",
            f"ssl_options.keyfile = {certificates}/server_key.pem",
            "ssl_options.verify = verify_none",
        ],
    )
    try:
        node.start()
        control = folder / "control"
        control.write_text(node.control_script(), encoding="utf-8")
        control.chmod(0o700)
        yield Address(
            product=f"RabbitMQ {node.description()['version']}",
            port=node.port,
            tls_port=tls_port,
            control=str(control),
            node=node.node_name(0),
        )
    finally:
        node.stop()
