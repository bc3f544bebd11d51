"""Requests to a session with ZooKeeper, and how they fail.

Pure: :mod:`understudy.ha.store.edge.zookeeper.session` carries requests out.
"""

from __future__ import annotations

from typing import Final, Literal

import attrs

from understudy.ha.store.coordination import StoreError

ANY_VERSION: Final = -1


class UnreachedError(StoreError):
    """No server answers, or the session has ended. Whether the request was carried out is unknown."""


class NoNodeError(StoreError):
    """The node, or the one above it, is not there."""


class NodeExistsError(StoreError):
    """The node is there already."""


class VersionError(StoreError):
    """The node has changed since it was read."""


class RefusedError(StoreError):
    """An ACL forbids the request."""


@attrs.frozen
class Node:
    """Content of a node. ``version`` counts its changes; ``owner`` is the session of an ephemeral one, 0 for others."""

    value: bytes
    version: int
    owner: int


@attrs.frozen(kw_only=True)
class Change:
    """One step of a transaction, made by :func:`check`, :func:`create`, :func:`write` or :func:`delete`."""

    kind: Literal["check", "create", "write", "delete"]
    path: str
    value: bytes = b""
    version: int = ANY_VERSION
    ephemeral: bool = False
    numbered: bool = False


def check(path: str, version: int = ANY_VERSION) -> Change:
    return Change(kind="check", path=path, version=version)


def create(path: str, value: bytes = b"", *, ephemeral: bool = False, numbered: bool = False) -> Change:
    """``numbered``: ZooKeeper adds a number to the path that no earlier child had."""
    return Change(kind="create", path=path, value=value, ephemeral=ephemeral, numbered=numbered)


def write(path: str, value: bytes, version: int = ANY_VERSION) -> Change:
    return Change(kind="write", path=path, value=value, version=version)


def delete(path: str, version: int = ANY_VERSION) -> Change:
    return Change(kind="delete", path=path, version=version)
