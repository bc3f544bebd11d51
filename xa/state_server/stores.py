"""Opens the status of each shard, of the engine that was asked for: in files of a folder, or in queues of a group of brokers."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

import attrs

from understudy.xa.core.errors import ConfigError, LostRecordsError, NewerStatusError, StatusFileError
from understudy.xa.core.profiles.log_address import LogAddress
from understudy.xa.core.register.entry import Entry
from understudy.xa.core.status.durable_mark import SHARDS
from understudy.xa.core.status.journal_file import FileStore, StatusFile, StatusStore
from understudy.xa.core.status.mirrored_file import MirroredFile
from understudy.xa.core.status.queue_file import QueueFile
from understudy.xa.core.status.shards import MIRROR, STATUS, is_of, record_shards, recorded_shards, shards_on
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

    engine: str = MIRRORED
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
def opened(
    where: Where, shards: int, *, force_empty: bool, accept_loss: bool = False, only: range | None = None
) -> Iterator[list[StatusStore]]:
    """The stores of all shards, not read yet; they are closed at the end.

    Args:
        where: they are.
        shards: how many there must be; 0: as many as there are, or 1 if there is none.
        force_empty: set aside what is damaged, and begin without it.
        accept_loss: open what is left, though records are missing that were durable.
        only: these shards, of a worker. `held` has made them, so a worker makes none, also when it is started again.

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
    files: list[StatusStore] = []
    try:
        if force_empty:
            _set_aside_damaged(disk, where, accept_loss=accept_loss)
        if only:
            _check_there(disk, only, where)
        numbers = only or range(_count_of_files(disk, where, shards, accept_loss=accept_loss))
        files += [_file(disk, number, where.engine, accept_loss=accept_loss) for number in numbers]
        yield files
    finally:
        for file in files:
            file.close()
        disk.close()


def remember(files: Sequence[StatusStore]) -> None:
    """All shards of a folder are open: say there how many they are, so that the loss of one is seen."""
    first = files[0]
    if isinstance(first, FileStore):
        record_shards(first.disk, len(files))


@contextlib.contextmanager
def held(
    where: Where, shards: int, *, at_least: int, force_empty: bool, accept_loss: bool = False
) -> Iterator[tuple[int, int]]:
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
            _set_aside_damaged(disk, where, accept_loss=accept_loss)
        count = max(_count_of_files(disk, where, shards, accept_loss=accept_loss), at_least)
        new = [number for number in range(count) if not any(is_of(name, number) for name in disk.names())]
        if (
            new or accept_loss
        ):  # a server that cannot start adds no shards; and workers accept no loss, at no later start
            for number in sorted(set(range(count)) - set(new)):
                file = _file(disk, number, where.engine, accept_loss=accept_loss)
                read(file, where)
                file.close()
        for number in new:
            file = _file(disk, number, where.engine)
            file.open()
            file.close()
        record_shards(disk, count)
        yield count, disk.lock
    finally:
        disk.close()


def read(store: StatusStore, where: Where) -> dict[str, Entry]:
    """Open a store, and return its entries.

    Raises:
        StatusFileError: it is damaged; the text says what an operator can do.
    """
    try:
        entries = store.open()
    except NewerStatusError:
        raise
    except LostRecordsError as error:
        raise _lost(error, where) from error
    except StatusFileError as error:
        raise StatusFileError(
            f"{error}; nothing was changed ({where}). Put back an intact copy, or begin without it by --force-empty: "
            "that keeps it under another name, and `understudy xa list` shows what is still prepared as orphans"
        ) from error
    for note in store.notes:
        say(note)
    return entries


def _lost(error: LostRecordsError, where: Where) -> LostRecordsError:
    return LostRecordsError(
        f"{error}; nothing was changed ({where}). Put back an intact copy, or go on with what is left by --accept-loss: "
        "recovery then rolls back each transaction whose decision to commit is among the missing records"
    )


def say(text: str) -> None:
    """Tell an operator."""
    print(f"understudy state-server: {text}", file=sys.stderr, flush=True)  # noqa: T201  # a command prints


def _checked_count(there: int, shards: int) -> int:
    if shards and there > shards:
        raise StatusFileError(f"there are {there} shards, and {shards} are asked for: their transactions would be lost")
    return max(there, shards, 1)


# -- files ----------------------------------------------------------------------------------------------------------------


def engine_in(folder: Path) -> str:
    """The engine of the status files in a folder; that of a new folder if there are none."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return JOURNAL if any(name.startswith(f"{STATUS}-") for name in names) else MIRRORED


def _count_of_files(disk: FileDisk, where: Where, shards: int, *, accept_loss: bool) -> int:
    try:
        there = {
            JOURNAL: shards_on(disk, STATUS, accept_loss=accept_loss),
            MIRRORED: shards_on(disk, MIRROR, accept_loss=accept_loss),
        }
        for other, count in there.items():
            if count and other != where.engine:
                raise StatusFileError(f"there are {count} shards of engine {other}, and {where.engine} is asked for")
        recorded = _recorded(disk, there[where.engine], accept_loss=accept_loss)
    except LostRecordsError as error:
        raise _lost(error, where) from error
    return _checked_count(max(there[where.engine], recorded), shards)


def _check_there(disk: FileDisk, numbers: range, where: Where) -> None:
    gone = [number for number in numbers if not any(is_of(name, number) for name in disk.names())]
    if gone:
        raise _lost(LostRecordsError(f"all files of shards {gone} are missing in {where.data}"), where)


def _recorded(disk: FileDisk, there: int, *, accept_loss: bool) -> int:
    """How many shards the folder says it has; what is missing is made anew if the loss is accepted."""
    try:
        recorded = recorded_shards(disk)
    except LostRecordsError:
        if accept_loss:
            return 0
        raise
    if recorded > there:
        text = f"the folder had {recorded} shards, says its file {SHARDS}, and has the files of {there}"
        if not accept_loss:
            raise LostRecordsError(text)
        say(f"{text}; the loss is accepted")
    return recorded


def _file(disk: FileDisk, shard: int, engine: str, *, accept_loss: bool = False) -> StatusFile | MirroredFile:
    if engine == JOURNAL:
        return StatusFile(disk, shard, accept_loss=accept_loss)
    return MirroredFile(disk, shard, accept_loss=accept_loss)


def _set_aside_damaged(disk: FileDisk, where: Where, *, accept_loss: bool) -> None:
    """A file that lacks its end is not damaged: its records are still worth something."""
    for number in range(_count_of_files(disk, where, 0, accept_loss=accept_loss)):
        file = _file(disk, number, where.engine, accept_loss=accept_loss)
        before = disk.names()
        try:
            file.open()
            file.close()
        except NewerStatusError:
            raise
        except LostRecordsError as error:
            raise _lost(error, where) from error
        except StatusFileError as error:
            images = (file.name,) if isinstance(file, StatusFile) else (f"mirror-{number}.a", f"mirror-{number}.b")
            for name in (file.mark.name, *images):  # the mark first: without its files it would tell of a loss
                if name not in before:
                    continue
                aside = next(
                    found for count in range(len(before) + 1) if (found := f"damaged-{count}-{name}") not in before
                )
                say(f"{error}; {name} is now {aside}")
                disk.rename(name, aside)
            disk.sync_names()
            anew = _file(disk, number, where.engine)
            anew.open()  # empty, in its place: the others keep theirs
            anew.close()


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
