"""The configuration: a TOML file read strictly into frozen classes.

Three rules. (1) Every key has a default that is right for a laptop: one broker, loopback only, guest/guest, no group; a file says
what differs. (2) Nothing is guessed: an unknown key, a value of the wrong type or out of range, and two values that contradict
each other each stop the start with a `ConfigError`. A key with a typing mistake that is silently ignored is a time-out that is
not set, and that is found out on the day when it was needed. (3) The unit ends the key's name (`_s`, `_ms`, `_bytes`); a value may
be a number in that unit, or a string with its own: `"30min"`, `"100ms"`, `"64MiB"`.

The classes are the schema: each field is `Annotated` with the reader that checks it, so a key, its default and its range stand in
one line, and no table beside them can disagree. cattrs was refused: its errors name Python types where an operator needs the key,
the value, what is expected, and the nearest known key.

`readers` checks values, `schema` has the sections, `loading` puts them together and looks for contradictions. `load` is the only
function that touches the disk, and it touches the given file alone: whether a certificate or a data directory is there, who uses
it finds out. Relative paths are relative to the configuration file. `environment` lets variables such as `UNDERSTUDY__BROKER__ID`
change single keys: brokers in containers share one file.

The sections of the plugins of this repository (`ha`, `coordination`, `link`, `feed`, `kafka`, `outlet`) are in `schema` too. The
broker reads keys of theirs itself: what it warns of (`server.files.exposed_files`), where a store is, what the outlet sends. A
registry to which each plugin adds its sections was refused: a file is read before plugins are loaded, by commands that load none.
Importing `ha.plugin` takes 0.43 s of CPU, this room 0.12 s.

Values and units: docs/configuration.md.
"""

from __future__ import annotations

from understudy.broker.config.environment import given_by
from understudy.broker.config.errors import ConfigError
from understudy.broker.config.loading import is_loopback_host, load, milliseconds, parse, structure
from understudy.broker.config.schema import (
    AmqpConfig,
    BrokerConfig,
    CarryConfig,
    ClientTlsConfig,
    Config,
    CoordinationConfig,
    DtxConfig,
    GroupConfig,
    HaConfig,
    HttpConfig,
    JournalConfig,
    KafkaConfig,
    LimitsConfig,
    LinkConfig,
    OutletConfig,
    PolicyConfig,
    ShutdownConfig,
    StoreTlsConfig,
    TlsConfig,
    TransactionsConfig,
    TxConfig,
    UserConfig,
    guest,
)

__all__ = [
    "AmqpConfig",
    "BrokerConfig",
    "CarryConfig",
    "ClientTlsConfig",
    "Config",
    "ConfigError",
    "CoordinationConfig",
    "DtxConfig",
    "GroupConfig",
    "HaConfig",
    "HttpConfig",
    "JournalConfig",
    "KafkaConfig",
    "LimitsConfig",
    "LinkConfig",
    "OutletConfig",
    "PolicyConfig",
    "ShutdownConfig",
    "StoreTlsConfig",
    "TlsConfig",
    "TransactionsConfig",
    "TxConfig",
    "UserConfig",
    "given_by",
    "guest",
    "is_loopback_host",
    "load",
    "milliseconds",
    "parse",
    "structure",
]
