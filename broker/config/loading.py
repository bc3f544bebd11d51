"""From a file to a `Config`: read it, check each value, then what contradicts what."""

from __future__ import annotations

import ipaddress
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from understudy.broker.config.environment import given_by, overlay
from understudy.broker.config.errors import ConfigError
from understudy.broker.config.readers import Place, Table
from understudy.broker.config.schema import Config, KafkaConfig, PolicyConfig
from understudy.broker.core.queues.return_rule import DISABLED
from understudy.broker.core.topology.policies import ALL, KEYS
from understudy.broker.security import LOOPBACK_ONLY_USERS


def load(path: Path, variables: Mapping[str, str] = MappingProxyType({})) -> Config:
    """Read the configuration file at `path`.

    Args:
        path: the file.
        variables: the environment, for commands whose configuration it may change (see `environment`).

    Raises:
        ConfigError: the file cannot be read, is no UTF-8 or no TOML, or file or variables say something that cannot be used.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ConfigError(file=str(path), problem=f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(file=str(path), problem=f"is not UTF-8 at byte {error.start}") from error
    table = _tables(text, str(path))
    given = given_by(variables)
    overlay(table, given)
    try:
        return structure(table, file=str(path), base=path.parent)
    except ConfigError as error:
        variable = next((each.variable for each in given if each.is_blamed_by(error)), None)
        if variable is None:
            raise
        raise error.found_in(variable) from error


def parse(text: str, *, file: str = "<configuration>", base: Path = Path()) -> Config:
    """Read a configuration from the text of a TOML file.

    Args:
        text: the TOML document.
        file: what errors call it.
        base: the directory that relative paths start from.

    Raises:
        ConfigError: see `load`.
    """
    return structure(_tables(text, file), file=file, base=base)


def _tables(text: str, file: str) -> dict[str, Any]:
    """The tables of a TOML document that errors call `file`."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(file=file, problem=f"is not TOML: {error}") from error
    except ValueError as error:  # TOML sets no limit to digits, Python does
        raise ConfigError(file=file, problem="has a number of more digits than can be read") from error
    except RecursionError as error:
        raise ConfigError(file=file, problem="has arrays or tables in each other, deeper than can be read") from error


def structure(table: Mapping[str, object], *, file: str = "<configuration>", base: Path = Path()) -> Config:
    """Make a configuration of tables that are already there, such as those that `understudy cluster` makes; see `parse`."""
    place = Place(file, base, root=Config)
    config: Config = Table(Config).read(dict(table), place)
    for key, value, expected in _contradictions(config):
        at = Place(file, base, key)
        raise at.missing(expected) if value is None else at.refuse(value, expected)
    return config


def milliseconds(seconds: float) -> int:
    """A duration of the configuration as the core counts it."""
    return round(seconds * 1_000)


def is_loopback_host(host: str) -> bool:
    """Say whether `host`, a name or an address, can only mean this machine. Names other than localhost are not looked up."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _contradictions(config: Config) -> Iterator[tuple[str, object, str]]:
    """Yield (key, its value or None if it is missing, what is expected) for values that are right alone and wrong together."""
    link, ha, tx, group, limits = config.link, config.ha, config.tx, config.group, config.limits
    if link.secret is None and not is_loopback_host(link.host):
        yield "link.secret", None, f"a shared secret, because link.host '{link.host}' is not a loopback address"
    if link.dead_after_s <= link.heartbeat_s:
        yield "link.dead_after_s", link.dead_after_s, f"more than link.heartbeat_s ({link.heartbeat_s:g})"
    if ha.reconnect_max_s < ha.reconnect_min_s:
        yield "ha.reconnect_max_s", ha.reconnect_max_s, f"at least ha.reconnect_min_s ({ha.reconnect_min_s:g})"
    if tx.outcome_ttl_s < tx.idle_timeout_s:
        yield "tx.outcome_ttl_s", tx.outcome_ttl_s, f"at least tx.idle_timeout_s ({tx.idle_timeout_s:g})"
    if group.max_wait_ms < group.min_wait_ms:
        yield "group.max_wait_ms", group.max_wait_ms, f"at least group.min_wait_ms ({group.min_wait_ms:g})"
    if limits.unstable_bytes_per_connection > limits.unstable_bytes:
        expected = f"at most limits.unstable_bytes ({limits.unstable_bytes})"
        yield "limits.unstable_bytes_per_connection", limits.unstable_bytes_per_connection, expected
    yield from _feed_contradictions(config)
    yield from _outlet_contradictions(config)
    yield from _kafka_contradictions(config.kafka)
    yield from _coordination_contradictions(config)
    yield from _user_contradictions(config)
    yield from _client_tls_contradictions(config)
    yield from _policy_contradictions(config)
    http = config.http
    readers = [user for user in config.users if user.monitoring and user.name not in LOOPBACK_ONLY_USERS]
    if not readers and not is_loopback_host(http.host):
        yield "users", None, f"a user with monitoring = true, because http.host '{http.host}' is not a loopback address"


def _feed_contradictions(config: Config) -> Iterator[tuple[str, object, str]]:
    if not config.plugins.get("feed", False):
        return
    feed = config.feed
    if feed.out is None and not feed.topic:
        yield "feed.out", None, "a directory (or feed.topic), because plugins.feed is true"
    if feed.out is not None and feed.topic:
        yield "feed.topic", feed.topic, "nothing, because feed.out is given"
    if feed.topic and not config.kafka.hosts:
        yield "kafka.hosts", None, "a list of 'host:port', because feed.topic is given"


def _outlet_contradictions(config: Config) -> Iterator[tuple[str, object, str]]:
    if config.plugins.get("outlet", False) and not config.kafka.hosts:
        yield "kafka.hosts", None, "a list of 'host:port', because plugins.outlet is true"


def _kafka_contradictions(kafka: KafkaConfig) -> Iterator[tuple[str, object, str]]:
    if kafka.sasl and not kafka.user:
        yield "kafka.user", None, f"a user name, because kafka.sasl is '{kafka.sasl}'"
    if kafka.sasl and kafka.password_file is None:
        yield "kafka.password_file", None, f"a path, because kafka.sasl is '{kafka.sasl}'"
    if not kafka.sasl and (kafka.user or kafka.password_file is not None):
        yield (
            "kafka.sasl",
            None,
            "'PLAIN', 'SCRAM-SHA-256' or 'SCRAM-SHA-512', because a user or a password_file is given",
        )
    tls = kafka.tls
    if tls is not None and (tls.cert is None) != (tls.key is None):
        yield "kafka.tls.key", tls.key, "a path beside kafka.tls.cert, or neither"


def _coordination_contradictions(config: Config) -> Iterator[tuple[str, object, str]]:
    if not config.plugins.get("ha", False):
        return
    coordination = config.coordination
    if coordination.kind == "file" and coordination.path is None:
        yield "coordination.path", None, "a file that all brokers of the group share, because plugins.ha is true"
    if coordination.kind == "zookeeper" and not coordination.hosts:
        yield "coordination.hosts", None, "a list of 'host:port', because coordination.kind is 'zookeeper'"

    if coordination.password is not None and coordination.password_file is not None:
        yield (
            "coordination.password_file",
            coordination.password_file,
            "nothing, because coordination.password is given",
        )
    given = coordination.password is not None or coordination.password_file is not None
    if bool(coordination.user) != given:
        yield "coordination.user", coordination.user or None, "a user and a password (or password_file), or neither"
    tls = coordination.tls
    if tls is not None and (tls.cert is None) != (tls.key is None):
        yield "coordination.tls.key", tls.key, "a path beside coordination.tls.cert, or neither"


def _policy_contradictions(config: Config) -> Iterator[tuple[str, object, str]]:
    names: dict[tuple[str, str | None], int] = {}
    for index, policy in enumerate(config.policy):
        at = f"policy[{index}]"
        first = names.setdefault((policy.name, policy.vhost), index)
        if first < index:
            yield f"{at}.name", policy.name, f"a name that policy[{first}] does not have"
        if policy.vhost is not None and policy.vhost not in config.broker.vhosts:
            known = ", ".join(config.broker.vhosts)
            yield f"{at}.vhost", policy.vhost, f"a vhost that broker.vhosts lists ({known}) for policy {policy.name!r}"
        for key in policy.definition:
            if policy.apply_to not in (ALL, KEYS[key].of):
                expected = f"'all' or '{KEYS[key].of}', because policy {policy.name!r} sets {key!r}"
                yield f"{at}.apply_to", policy.apply_to, expected
        yield from _retry_contradictions(f"{at}.definition", policy)


def _retry_contradictions(at: str, policy: PolicyConfig) -> Iterator[tuple[str, object, str]]:
    """Of delays that one policy sets, as RabbitMQ 4.3 judges them: ``rabbit_quorum_queue:validate_delayed_retry_constraints``."""
    kind, least, most = (policy.definition.get(f"delayed-retry-{key}") for key in ("type", "min", "max"))
    if kind not in (None, DISABLED) and least is None:
        yield (
            f"{at}.delayed-retry-min",
            None,
            f"milliseconds, because policy {policy.name!r} has delayed-retry-type {kind!r}",
        )
    if least is not None and most is not None and most < least:
        yield f"{at}.delayed-retry-max", most, f"at least delayed-retry-min ({least}) of policy {policy.name!r}"


def _client_tls_contradictions(config: Config) -> Iterator[tuple[str, object, str]]:
    amqp, tls = config.amqp, config.amqp.tls
    if tls is not None and tls.host is not None and tls.port is None:
        yield "amqp.tls.port", None, f"a port, because amqp.tls.host '{tls.host}' is given"
    if tls is not None and tls.port and tls.port == amqp.port and tls.host in (None, amqp.host):
        yield "amqp.tls.port", tls.port, "another port than amqp.port, or none"
    user_from = tls.user_from if tls is not None else None
    if tls is not None and tls.ca is None and user_from is not None:
        yield "amqp.tls.ca", None, f"a path of PEM certificates, because amqp.tls.user_from is '{user_from}'"
    for index, user in enumerate(config.users):
        if user.password_hash is None and (user.monitoring or user_from is None):
            why = f"monitoring of user '{user.name}' is true" if user.monitoring else "amqp.tls.user_from is not given"
            yield f"users[{index}].password_hash", None, f"a hash that `understudy user hash` printed, because {why}"


def _user_contradictions(config: Config) -> Iterator[tuple[str, object, str]]:
    names = [user.name for user in config.users]
    known = ", ".join(config.broker.vhosts)
    for index, user in enumerate(config.users):
        first = names.index(user.name)
        if first < index:
            yield f"users[{index}].name", user.name, f"a name that users[{first}] does not have"
        for vhost in user.vhosts:
            if vhost not in config.broker.vhosts:
                yield f"users[{index}].vhosts", vhost, f"a vhost that broker.vhosts lists ({known})"
