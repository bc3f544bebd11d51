"""Profiles: named sets of resource managers and how to reach them, and the state server that keeps their transactions.

The file is TOML::

    [[state_servers]]
    id = "main"
    address = "unix:/run/shop/state.sock"   # see `profiles.servers`

    [[profiles]]
    name = "shop"
    state_server = "main"                 # one; many profiles may name the same

    [[profiles.resource_managers]]
    name = "bank"
    kind = "postgresql"
    host = "127.0.0.1"
    database = "bank"
    user = "shop"

    [[profiles.resource_managers]]
    name = "queues"
    kind = "amqp"
    addresses = ["127.0.0.1:5672"]

The *fingerprint* of a profile is a digest of what identifies its resource managers: names, kinds, and the keys of each kind that
say which server and which database it is. Users and passwords are no part of it, so they may change while a transaction waits.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final

import attrs

from understudy.xa.core.errors import ConfigError
from understudy.xa.core.profiles.servers import NO_LOGIN, Login, ServerConfig, checked_address, servers_of
from understudy.xa.core.profiles.tables import check_keys, flag_of, nearest, tables_of, text_of

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,31}")
"""Of a resource manager: it is part of the branch id, with a dot and the digits of the job behind it."""
MAX_PROFILE_NAME: Final = 64


@attrs.frozen
class Kind:
    """The keys of one kind of resource manager.

    Attributes:
        identity: keys that say which resource manager it is, to their default; None: must be given.
        others: keys that say how to reach it, likewise.
    """

    identity: Mapping[str, Any]
    others: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def keys(self) -> dict[str, Any]:
        return {**self.identity, **self.others}


KINDS: Final[Mapping[str, Kind]] = {
    "amqp": Kind(
        {"addresses": None, "vhost": "/"},
        {
            "user": "guest",
            "password": "guest",
            "timeout_s": 30,
            "form": "methods",
            "tls": False,
            "tls_ca": "",
            "tls_cert": "",
            "tls_key": "",
        },
    ),
    "postgresql": Kind(
        {"host": None, "port": 5432, "database": None},
        {"user": "", "password": "", "timeout_s": 10, "read_only_vote": True},
    ),
    "dbapi": Kind({"module": None, "identity": None}, {"connect": {}, "timeout_s": 30}),
    "scripted": Kind({"script": ""}, {"identity": ""}),
}

RANGES: Final[Mapping[str, tuple[int, int]]] = {"timeout_s": (1, 3600), "port": (1, 65535)}
"""Of numbers. libpq takes a time of 0 or less as without end."""


@attrs.frozen(kw_only=True)
class ResourceConfig:
    """One resource manager of a profile.

    Attributes:
        name: unique in the profile; 1 to 31 letters, digits, ``-``, ``_``.
        options: every key of its kind, with defaults filled in.
        dynamic: it is started when the application first asks for it, and not by begin.
    """

    name: str
    kind: str
    options: Mapping[str, Any] = attrs.field(repr=False)
    dynamic: bool = False

    @property
    def identity(self) -> dict[str, Any]:
        return {key: self.options[key] for key in KINDS[self.kind].identity}


@attrs.frozen(kw_only=True)
class Profile:
    """The settings that a transaction manager needs.

    Attributes:
        state_server: its address; or several with commas between them.
        resources: in the order of the file, which is the order of start, prepare and commit.
        login: what a client proves to the state server.
    """

    name: str
    state_server: str
    resources: tuple[ResourceConfig, ...]
    login: Login = NO_LOGIN

    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits."""
        identity = [[one.name, one.kind, one.identity] for one in sorted(self.resources, key=lambda one: one.name)]
        text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def resource(self, name: str) -> ResourceConfig:
        """The resource manager of a name.

        Raises:
            ConfigError: the profile has none.
        """
        for one in self.resources:
            if one.name == name:
                return one
        names = ", ".join(repr(one.name) for one in self.resources)
        raise ConfigError(f"profile {self.name!r} has no resource manager {name!r}; it has {names}")


def profile_of(text: str, name: str, where: str) -> Profile:
    """The profile of a name in a TOML text.

    Args:
        text: of the file.
        name: "" takes the only profile.
        where: the file's name, for errors.

    Raises:
        ConfigError: something in the text cannot be used, also in another profile; it names the place and the value.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not TOML: {error}") from error
    check_keys(document, {"state_servers", "profiles"}, where)
    servers = servers_of(document, where)
    profiles: dict[str, Profile] = {}
    for number, table in enumerate(tables_of(document, "profiles", where), 1):
        profile = _profile(table, servers, f"{where}: profile {number}")
        if profile.name in profiles:
            raise ConfigError(f"{where}: two profiles have the name {profile.name!r}")
        profiles[profile.name] = profile
    if not profiles:
        raise ConfigError(f"{where} has no profile")
    if not name and len(profiles) == 1:
        return next(iter(profiles.values()))
    if name not in profiles:
        known = ", ".join(map(repr, profiles))
        raise ConfigError(f"{where} has no profile {name!r}{nearest(name, profiles)}; it has {known}")
    return profiles[name]


def _profile(table: Mapping[str, Any], servers: Mapping[str, ServerConfig], place: str) -> Profile:
    check_keys(table, {"name", "state_server", "resource_managers"}, place)
    name = text_of(table, "name", place)
    place = f"{place} ({name})"
    if len(name) > MAX_PROFILE_NAME:
        raise ConfigError(f"{place}: a name has at most {MAX_PROFILE_NAME} characters")
    server = table.get("state_server")
    if not isinstance(server, str):
        raise ConfigError(f"{place}: state_server must be the id of one state server, and is {server!r}")
    if server not in servers:
        known = ", ".join(map(repr, servers)) or "none"
        raise ConfigError(f"{place}: state server {server!r} is not there{nearest(server, servers)}; known: {known}")
    resources: dict[str, ResourceConfig] = {}
    for number, resource in enumerate(tables_of(table, "resource_managers", place), 1):
        one = _resource(resource, f"{place}: resource manager {number}")
        if one.name in resources:
            raise ConfigError(f"{place}: two resource managers have the name {one.name!r}")
        resources[one.name] = one
    if not resources:
        raise ConfigError(f"{place} has no resource manager")
    found = servers[server]
    return Profile(name=name, state_server=found.address, resources=tuple(resources.values()), login=found.login)


def _resource(table: Mapping[str, Any], place: str) -> ResourceConfig:
    name = text_of(table, "name", place)
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{place}: the name {name!r} is not 1 to 31 letters, digits, '-' or '_'")
    place = f"{place} ({name})"
    kind_name = text_of(table, "kind", place)
    if kind_name not in KINDS:
        known = ", ".join(sorted(KINDS))
        raise ConfigError(f"{place}: kind {kind_name!r} is not known{nearest(kind_name, KINDS)}; known: {known}")
    keys = KINDS[kind_name].keys
    check_keys(table, {"name", "kind", "dynamic", *keys}, place)
    options = {key: table.get(key, default) for key, default in keys.items()}
    for key, default in keys.items():
        if options[key] is None:
            raise ConfigError(f"{place}: kind {kind_name!r} needs the key {key!r}")
        wanted = str if default is None else type(default)
        if key != "addresses" and type(options[key]) is not wanted:
            raise ConfigError(f"{place}: {key} must be a {wanted.__name__}, and is {options[key]!r}")
    dynamic = flag_of(table, "dynamic", place)
    for key, (least, most) in RANGES.items():
        if key in options and not least <= options[key] <= most:
            raise ConfigError(f"{place}: {key} must be {least} to {most}, and is {options[key]}")
    if kind_name == "amqp":
        _check_amqp(options, place)
    return ResourceConfig(name=name, kind=kind_name, options=options, dynamic=dynamic)


def _check_amqp(options: Mapping[str, Any], place: str) -> None:
    addresses = options["addresses"]
    if not isinstance(addresses, list) or not addresses:
        raise ConfigError(f"{place}: addresses must be a list of host:port, and is {addresses!r}")
    for address in addresses:
        if not isinstance(address, str) or address.startswith("unix:"):
            raise ConfigError(f"{place}: address {address!r} is not host:port")
        checked_address(address, place)
    if options["form"] not in ("methods", "messages"):
        raise ConfigError(f"{place}: form {options['form']!r} is neither 'methods' nor 'messages'")
    for key in ("tls_ca", "tls_cert", "tls_key"):
        if options[key] and not options["tls"]:
            raise ConfigError(f"{place}: {key} needs tls = true")
    if bool(options["tls_cert"]) != bool(options["tls_key"]):
        raise ConfigError(f"{place}: tls_cert and tls_key belong together")
