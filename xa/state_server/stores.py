"""Opens the status of each shard, of the engine that was asked for: in files of a folder, or in queues of a group of brokers."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

import attrs

from understudy.xa.core.entry import Entry
from understudy.xa.core.errors import ConfigError, NewerStatusError, StatusFileError
from understudy.xa.core.log_address import LogAddress
from understudy.xa.core.mirrored_file import MirroredFile, mirrored_shards_on
from understudy.xa.core.queue_file import QueueFile
from understudy.xa.core.status_file import StatusFile, StatusStore, shards_on
from understudy.xa.state_server.file_disk import FileDisk

if TYPE_CHECKING:
    from understudy.xa.state_server.amqp_log import AmqpLog

JOURNAL: Final = "journal"
MIRRORED: Final = "mirrored"
QUEUE: Final = "queue"
ENGINES: Final = (JOURNAL, MIRRORED, QUEUE)
DEFAULT_QUEUE: Final = "xa.state"
OWNER_WAIT_S: Final = 40.0
"""As `amqp_log.OWNER_WAIT_S`, which needs the extra."""


@attrs.frozen(kw_only=True)
class Where:
    """Where the status is kept.

    Attributes:
        engine: one of `ENGINES`.
        data: the folder; None of engine `queue`.
        address: the group of brokers; None of the other engines.
        queue: name of the queues, to which a dot and the number of the shard are added.
        owner_wait_s: how long another owner of the queues is waited for; None: for as long as there is one.
        lock: of the folder; see `FileDisk`.
    """

    engine: str = JOURNAL
    data: Path | None = None
    address: LogAddress | None = None
    queue: str = DEFAULT_QUEUE
    owner_wait_s: float | None = OWNER_WAIT_S
    lock: int | None = None

    def __str__(self) -> str:
        if self.address is None:
            return f"status files in {self.data}"
        return f"decisions in queue {self.queue} at {', '.join(self.address.hosts)}"


@contextlib.contextmanager
def opened(where: Where, shards: int, *, force_empty: bool, only: range | None = None) -> Iterator[list[StatusStore]]:
    """The stores of all shards, not read yet; they are closed at the end.

    Args:
        where: they are.
        shards: how many there must be; 0: as many as there are, or 1 if there is none.
        force_empty: set aside what is damaged, and begin without it.
        only: these shards, which are there or may be made; nothing is checked.

    Raises:
        StatusFileError: a file is missing, there are more shards than `shards`, or they are of another engine.
        DecisionLogError: the group of brokers refuses.
    """
    if where.address is not None:
        numbers = only or range(_count_of_queues(where, shards))
        stores = _queues(where, numbers, force_empty=force_empty)
        try:
            yield stores
        finally:
            for store in stores:
                store.close()
        return
    assert where.data is not None
    disk = FileDisk(where.data, where.lock)
    try:
        if force_empty:
            _set_aside_damaged(disk, where.engine)
        numbers = only or range(_count_of_files(disk, where.engine, shards))
        yield [_file(disk, number, where.engine) for number in numbers]
    finally:
        disk.close()


@contextlib.contextmanager
def held(where: Where, shards: int, *, at_least: int, force_empty: bool) -> Iterator[tuple[int, int]]:
    """The number of shards, for workers that open them, and the descriptor of the folder's lock; -1 of engine queue.

    Errors are those of `opened`. Shards that are not there yet are made.
    """
    if where.address is not None:
        if force_empty:
            with opened(where, shards, force_empty=True):
                pass
        yield max(_count_of_queues(where, shards), at_least), -1
        return
    assert where.data is not None
    disk = FileDisk(where.data)
    try:
        if force_empty:
            _set_aside_damaged(disk, where.engine)
        count = max(_count_of_files(disk, where.engine, shards), at_least)
        new = [number for number in range(count) if not any(_is_of(name, number) for name in disk.names())]
        if new:  # a server that cannot start adds no shards
            for number in range(count - len(new)):
                read(_file(disk, number, where.engine), where)
        for number in new:
            _file(disk, number, where.engine).open()
        yield count, disk.lock
    finally:
        disk.close()


def _is_of(name: str, shard: int) -> bool:
    return name.startswith((f"status-{shard}.", f"mirror-{shard}."))


def read(store: StatusStore, where: Where) -> dict[str, Entry]:
    """Open a store, and return its entries.

    Raises:
        StatusFileError: it is damaged; the text says what an operator can do.
    """
    try:
        return store.open()
    except NewerStatusError:
        raise
    except StatusFileError as error:
        raise StatusFileError(
            f"{error}; nothing was changed ({where}). Put back an intact copy, or begin without it by --force-empty: "
            "that keeps it under another name, and `understudy xa list` shows what is still prepared as orphans"
        ) from error


def say(text: str) -> None:
    """Tell an operator."""
    print(f"understudy state-server: {text}", file=sys.stderr, flush=True)  # noqa: T201  # a command prints


def _checked_count(there: int, shards: int) -> int:
    if shards and there > shards:
        raise StatusFileError(f"there are {there} shards, and {shards} are asked for: their transactions would be lost")
    return max(there, shards, 1)


# -- files ----------------------------------------------------------------------------------------------------------------


def _count_of_files(disk: FileDisk, engine: str, shards: int) -> int:
    there = {JOURNAL: shards_on(disk), MIRRORED: mirrored_shards_on(disk)}
    for other, count in there.items():
        if count and other != engine:
            raise StatusFileError(f"there are {count} shards of engine {other}, and {engine} is asked for")
    return _checked_count(there[engine], shards)


def _file(disk: FileDisk, shard: int, engine: str) -> StatusFile | MirroredFile:
    return StatusFile(disk, shard) if engine == JOURNAL else MirroredFile(disk, shard)


def _set_aside_damaged(disk: FileDisk, engine: str) -> None:
    count = shards_on(disk) if engine == JOURNAL else mirrored_shards_on(disk)
    for number in range(max(count, 1)):
        file = _file(disk, number, engine)
        before = disk.names()
        try:
            file.open()
        except NewerStatusError:
            raise
        except StatusFileError as error:
            for name in (file.name,) if isinstance(file, StatusFile) else (f"mirror-{number}.a", f"mirror-{number}.b"):
                if name not in before:
                    continue
                aside = next(
                    found for count in range(len(before) + 1) if (found := f"damaged-{count}-{name}") not in before
                )
                say(f"{error}; {name} is now {aside}")
                disk.rename(name, aside)
            disk.sync_names()
            _file(disk, number, engine).open()  # empty, in its place: the others keep theirs


# -- queues ---------------------------------------------------------------------------------------------------------------


def _count_of_queues(where: Where, shards: int) -> int:
    assert where.address is not None
    return _checked_count(_amqp_log().queues_there(where.address, where.queue), shards)


def _queues(where: Where, numbers: range, *, force_empty: bool) -> list[StatusStore]:
    assert where.address is not None
    module = _amqp_log()
    owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
    stores: list[StatusStore] = []
    for number in numbers:
        log = module.AmqpLog(where.address, f"{where.queue}.{number}", owner_wait_s=where.owner_wait_s, say=say)
        store = QueueFile(log, number, owner)
        if force_empty:
            _set_aside_damaged_queue(store, log)
        stores.append(store)
    return stores


def _amqp_log() -> ModuleType:
    try:
        from understudy.xa.state_server import amqp_log  # noqa: PLC0415  # needs the extra
    except ImportError as error:
        raise ConfigError(
            f"engine queue needs a library that is not installed ({error}): pip install 'understudy[xa]'"
        ) from error
    return amqp_log


def _set_aside_damaged_queue(store: QueueFile, log: AmqpLog) -> None:
    try:
        store.open()
    except NewerStatusError:
        raise
    except StatusFileError as error:
        aside = log.set_aside(log.read())
        say(f"{error}; its messages are now in queue {aside}")
