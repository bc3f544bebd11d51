"""The profile of an application: which broker, which database, which state server. Connects to nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from understudy.client.stages.errors import ConfigurationError
from understudy.xa.core.errors import ConfigError
from understudy.xa.core.profiles.job import checked_job
from understudy.xa.core.profiles.profile import Profile, profile_of

BANK: Final = "database"
QUEUES: Final = "broker"
"""Names of the two resource managers."""
VERB_S: Final = 10
"""The time of each verb, connecting included."""
_KEYS: Final = {"host": "host", "port": "port", "dbname": "database", "user": "user", "password": "password"}
_TLS: Final = {"cacertfile": "tls_ca", "certfile": "tls_cert", "keyfile": "tls_key"}
_PORTS: Final = {"amqp": 5672, "amqps": 5671}


def job_of(application: str) -> str:
    """The job of an application: all its workers complete what one of them leaves.

    Raises:
        ConfigurationError: the name of the application cannot be a job.
    """
    try:
        return checked_job(f"stages:{application}", "the application's name")
    except ConfigError as error:
        raise ConfigurationError(f"xa=True: {error}") from error


def place_of(
    application: str, addresses: Sequence[str], conninfo: Mapping[str, Any], state_server: str | Mapping[str, Any]
) -> Profile:
    """The profile of an application.

    Args:
        application: its name, for errors.
        addresses: one URL for each broker.
        conninfo: parameters of libpq.
        state_server: an address, or keys of a ``[[state_servers]]`` table (docs/xa.md).

    Raises:
        ConfigurationError: a branch cannot have one of the parameters; names it.
    """
    server = {"address": state_server} if isinstance(state_server, str) else dict(state_server)
    text = _table("[[state_servers]]", {"id": "main", **server})
    text += _table("[[profiles]]", {"name": "stages", "state_server": "main"})
    text += _table(
        "[[profiles.resource_managers]]",
        {"name": BANK, "kind": "postgresql", "timeout_s": VERB_S, **_bank(application, conninfo)},
    )
    # dynamic: a branch of the broker lives a minute before it is prepared, and a stage may take longer.
    text += _table(
        "[[profiles.resource_managers]]",
        {"name": QUEUES, "kind": "amqp", "dynamic": True, "timeout_s": VERB_S, **_queues(application, addresses)},
    )
    try:
        return profile_of(text, "stages", f"the application {application!r}")
    except ConfigError as error:
        raise ConfigurationError(f"xa=True: {error}") from error


def _table(head: str, values: Mapping[str, Any]) -> str:
    """JSON's texts, numbers, truth values and lists are those of TOML."""
    return head + "\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def _bank(application: str, conninfo: Mapping[str, Any]) -> dict[str, Any]:
    for name in sorted(conninfo.keys() - _KEYS.keys()):
        raise ConfigurationError(
            f"the application {application!r}: xa=True, and the connection string of its database has {name!r}; "
            f"a branch takes {', '.join(_KEYS)}"
        )
    for name in ("host", "dbname"):
        if not conninfo.get(name):
            raise ConfigurationError(
                f"the application {application!r}: xa=True, and the connection string of its database has no {name!r}"
            )
    found = {_KEYS[name]: value for name, value in conninfo.items()}
    return found | {"port": int(found.get("port", 5432))}


def _queues(application: str, addresses: Sequence[str]) -> dict[str, Any]:
    parts = [urlsplit(each) for each in addresses]
    first = _reach(parts[0])
    for each, address in zip(parts, addresses, strict=True):
        if _reach(each) != first:
            raise ConfigurationError(
                f"the application {application!r}: xa=True, and broker {urlsplit(address).hostname} has another login, vhost or "
                f"scheme than {parts[0].hostname}; a branch has the same for all"
            )
    hosts = [f"{_host(each)}:{each.port or _PORTS[each.scheme]}" for each in parts]
    return {"addresses": hosts, **first}


def _host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    return f"[{host}]" if ":" in host else host


def _reach(parts: SplitResult) -> dict[str, Any]:
    """How a broker is reached, but for its host and port."""
    made: dict[str, Any] = {
        "user": unquote(parts.username or "guest"),
        "password": unquote(parts.password or "guest"),
        "vhost": unquote(parts.path[1:]) or "/",
    }
    if parts.scheme == "amqps":
        options = parse_qs(parts.query)
        made |= {"tls": True} | {key: options[name][0] for name, key in _TLS.items() if name in options}
    return made
