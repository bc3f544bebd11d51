"""``understudy xa metrics``: one page on stdout, or a page for a Prometheus server to scrape."""

from __future__ import annotations

import signal
import sys
from typing import Annotated, Final

import attrs
import typer
from prometheus_client import CollectorRegistry, generate_latest, start_http_server

from understudy.xa.commands.in_doubt import DEFAULT_FILE, ConfigFile, ProfileName, errors_as_exit_codes
from understudy.xa.commands.metrics import XaCollector
from understudy.xa.commands.operator import Operator
from understudy.xa.core.errors import ConfigError, StateServerError
from understudy.xa.core.profiles.profile import Profile
from understudy.xa.core.profiles.servers import checked_address
from understudy.xa.manager import TransactionManager, read_profile

SCRAPE_S: Final = 2
"""How long a scrape waits for a resource manager: less than Prometheus waits for the page."""


def metrics(
    config: ConfigFile = DEFAULT_FILE,
    profile: ProfileName = None,
    listen: Annotated[
        str, typer.Option(help="host:port to serve /metrics at, until SIGTERM; without it one page on stdout.")
    ] = "",
) -> None:
    """Show what is in doubt, and since when, as Prometheus reads it. Each scrape asks all servers of the profile.

    Exit codes: 0 shown, or stopped; 1 the address cannot be had; 2 a profile or an address that cannot be used.
    """
    with errors_as_exit_codes():
        named = _in_a_hurry(read_profile(config, profile))
        operator = Operator(named, TransactionManager(named).job)
        registry = CollectorRegistry()
        registry.register(XaCollector(operator, named.name, [one.name for one in named.resources]))
        if not listen:
            sys.stdout.write(generate_latest(registry).decode())
            return
        _serve(registry, checked_address(listen, "--listen"))


def _in_a_hurry(profile: Profile) -> Profile:
    """The same resource managers, whose `timeout_s` is at most SCRAPE_S."""
    resources = []
    for one in profile.resources:
        timeout = {key: min(value, SCRAPE_S) for key, value in one.options.items() if key == "timeout_s"}
        resources.append(attrs.evolve(one, options={**one.options, **timeout}))
    return attrs.evolve(profile, resources=tuple(resources))


def _serve(registry: CollectorRegistry, address: str) -> None:
    """Serve until SIGTERM or SIGINT."""
    if address.startswith("unix:"):
        raise ConfigError(f"--listen {address}: Prometheus scrapes host:port")
    host, _, port = address.rpartition(":")
    wanted = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)  # before the thread of the page starts, which inherits that
    try:
        server, thread = start_http_server(int(port), host.strip("[]"), registry)
    except OSError as error:
        raise StateServerError(f"--listen {address} cannot be had: {error}") from error
    typer.echo(f"http://{address}/metrics", err=True)
    signal.sigwait(wanted)
    server.shutdown()
    server.server_close()
    thread.join()
