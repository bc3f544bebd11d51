"""The nodes of a group in ZooKeeper: their paths, and what stands in them. Pure: bytes in, bytes out.

::

    /understudy/<group>/group            GroupState; every change is version-checked
                       /brokers/<id>     BrokerInfo, as the broker has shown itself last; stays when the broker is gone
                       /live/<id>        ephemeral: the session of the broker holds; which process that is
                       /ready/<id>       ephemeral: the broker may be promoted, and since when
                       /history/h-<n>    changes of the group, the newest of them (group_changes.py); forced epochs stay

Each node is one JSON object with a ``schema`` number. People read them with ``zkCli`` (docs/zookeeper.md), and may edit them: so
what is read is checked, and an error names the path and what stands there. A node of a newer schema is refused. A key that is not
known is kept: an older program that changes the group writes back what a newer one has added.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import attrs
import msgspec

from understudy.ha.store.coordination import BrokerId, BrokerInfo, GroupState, HistoryEntry, StoreError

ROOT: Final = "/understudy"
SCHEMA: Final = 1
MAX_MIN_INSYNC: Final = 64
"""As of ``ha.min_insync`` and of ``promote --min-insync``."""
MAX_SHOWN: Final = 200
"""So much of a node that cannot be read stands in the message."""

Extras = dict[str, Any]
"""Keys of a node that this program does not know."""

_T = TypeVar("_T")


class NodeError(StoreError):
    """A node holds what no version of this program has written, or what a newer one has."""


@attrs.frozen
class Paths:
    """Where the nodes of a group are."""

    group_name: str
    chroot: str = ""

    @property
    def root(self) -> str:
        return f"{self.chroot}{ROOT}/{self.group_name}"

    @property
    def group(self) -> str:
        return f"{self.root}/group"

    @property
    def brokers(self) -> str:
        return f"{self.root}/brokers"

    @property
    def live(self) -> str:
        return f"{self.root}/live"

    @property
    def ready(self) -> str:
        return f"{self.root}/ready"

    @property
    def history(self) -> str:
        return f"{self.root}/history"

    @property
    def folders(self) -> tuple[str, ...]:
        """All that must be there before a broker can be shown."""
        return self.brokers, self.live, self.ready, self.history


@attrs.frozen(kw_only=True)
class Process:
    """The process behind a node in ``live``, so that its successor knows it to be gone.

    Attributes:
        pid: for people.
        host: for people.
        directory: the data directory as the kernel knows it, and since which boot: whoever has locked that directory is the only
            process on it.
    """

    pid: int
    host: str
    directory: str


@attrs.frozen(kw_only=True)
class Readiness:
    """Content of ``ready/<id>``: status, the epoch it is of, and since when (UTC)."""

    status: str
    epoch: int
    since: str


def encode_group(group: GroupState, extras: Extras) -> bytes:
    return _encode(group, extras)


def decode_group(path: str, raw: bytes) -> tuple[GroupState, Extras]:
    """The state in a group's node, and the keys in it that are not known.

    Raises:
        NodeError: with path and value.
    """
    group, extras = _decode(path, raw, GroupState)
    wrong = _contradiction(group)
    if wrong:
        raise NodeError(f"{path} {wrong}: {_shown(raw)}")
    return group, extras


def encode_broker(info: BrokerInfo) -> bytes:
    """The row of a broker. Whether it is alive says ``live``. Names of queues in ``blockers`` need not be UTF-8."""
    blockers = info.blockers.encode(errors="backslashreplace").decode()
    return _encode(attrs.evolve(info, blockers=blockers), {}, without=("alive",))


def decode_broker(path: str, raw: bytes) -> BrokerInfo:
    """A broker's row; the last part of the path is its name.

    Raises:
        NodeError: with path and value.
    """
    info, _ = _decode(path, raw, BrokerInfo)
    name = path.rpartition("/")[2]
    if info.broker != name:
        raise NodeError(f"{path} is of broker {info.broker!r}: {_shown(raw)}")
    return info


def encode_process(process: Process) -> bytes:
    return _encode(process, {})


def decode_process(path: str, raw: bytes) -> Process:
    """Raises: NodeError."""
    return _decode(path, raw, Process)[0]


def encode_readiness(readiness: Readiness) -> bytes:
    return _encode(readiness, {})


def decode_readiness(path: str, raw: bytes) -> Readiness:
    """Raises: NodeError."""
    return _decode(path, raw, Readiness)[0]


def encode_history(entry: HistoryEntry) -> bytes:
    return _encode(entry, {})


def decode_history(path: str, raw: bytes) -> HistoryEntry:
    """Raises: NodeError."""
    return _decode(path, raw, HistoryEntry)[0]


def _contradiction(group: GroupState) -> str:
    """Why no program can have written this, "" for no reason."""
    if not 1 <= min(group.epoch, group.version) <= max(group.epoch, group.version) < 1 << 62:
        return "must have epoch and version of at least 1, and none of 2**62 or more"
    if not 1 <= group.min_insync <= MAX_MIN_INSYNC:
        return f"must have min_insync from 1 to {MAX_MIN_INSYNC}"
    if not 1 <= group.founding < 1 << 63:
        return "must have a founding from 1 to 2**63 - 1"
    if list(group.members) != sorted(set(group.members)) or "" in group.members:
        return "must have different, sorted members"
    if group.primary not in group.members:
        return "must have a primary that is a member"
    if any(bar.broker in group.members for bar in group.barred):
        return "must have no barred member"
    if not 0 <= group.forced <= group.epoch:
        return "must have a forced epoch from 0 to its epoch"
    return ""


def _encode(value: Any, extras: Extras, without: tuple[str, ...] = ()) -> bytes:
    fields = msgspec.to_builtins(value)
    for name in without:
        del fields[name]
    return msgspec.json.encode({"schema": SCHEMA, **extras, **fields})


def _decode(path: str, raw: bytes, kind: type[_T]) -> tuple[_T, Extras]:
    try:
        table = msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError) as error:
        raise NodeError(f"{path} holds no JSON object: {_shown(raw)}") from error
    schema = table.pop("schema", None)
    if type(schema) is not int or schema < 1:
        raise NodeError(f"{path} has no schema number of at least 1: {_shown(raw)}")
    if schema > SCHEMA:
        raise NodeError(f"{path} has schema {schema}, this program knows schema {SCHEMA}: upgrade it: {_shown(raw)}")
    try:
        value = msgspec.convert(table, kind)
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        raise NodeError(f"{path} cannot be read: {error}: {_shown(raw)}") from error
    known = {field.name for field in attrs.fields(kind)}  # type: ignore[arg-type]
    return value, {name: each for name, each in table.items() if name not in known}


def _shown(raw: bytes) -> str:
    text = raw[:MAX_SHOWN].decode(errors="backslashreplace")
    return f"{text!r}{'...' if len(raw) > MAX_SHOWN else ''}"


def newest(names: list[str]) -> list[str]:
    """Names of ``history``, oldest first. ZooKeeper numbers them with ten digits."""
    return sorted(names, key=lambda name: name.rpartition("-")[2])


def broker_path(folder: str, broker: BrokerId) -> str:
    return f"{folder}/{broker}"
