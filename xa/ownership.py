"""The owner of a transaction: one process, and in it one thread or one asyncio task.

A thread is known by an object that lives in its `threading.local`, and not by its ident, which the system gives again. The object
goes with the thread: then the transaction that the thread has left is rolled back. A task is known by itself.

A child process shares the sockets of its parent. So each manager lets go of all connections in the child, without a word to any
server, and no transaction of the parent can be called there.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import threading
import weakref
from typing import Final, Protocol

_log = logging.getLogger(__name__)


class Keeper(Protocol):
    """Keeps transactions by their owner: a transaction manager."""

    def owner_ended(self, owner: object) -> None:
        """A thread or task is over; it may have left a transaction."""

    def after_in_child(self) -> None:
        """This process is a child that was forked just now."""


class _Thread:
    """Stands for a thread as long as the thread lives."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        ends = weakref.finalize(self, _thread_ended, self.number)
        ends.atexit = False


class _Here(threading.local):
    """The thread that reads it; each one runs `__init__` at its first reading."""

    def __init__(self) -> None:
        self.thread = _Thread()


class _Registry:
    """All keepers of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()


class ThreadOwner(int):
    """The number of a thread: unlike its ident never given again."""

    def __str__(self) -> str:
        return f"thread {int(self)}"


def here() -> object:
    """This asyncio task, or else this thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    if task is not None:
        return task
    return ThreadOwner(_here.thread.number)


def watch(owner: object) -> None:
    """Have all keepers told when a task is over; of threads they are."""
    if isinstance(owner, asyncio.Task):
        owner.add_done_callback(_told)


def keep(keeper: Keeper) -> None:
    """A keeper is told of ends and of forks as long as it lives."""
    with _registry.lock:
        _registry.keepers.add(keeper)


def _thread_ended(number: int) -> None:
    _told(ThreadOwner(number))


def _told(owner: object) -> None:
    with _registry.lock:
        keepers = list(_registry.keepers)
    for keeper in keepers:
        try:
            keeper.owner_ended(owner)
        except Exception:  # noqa: BLE001  # a thread ends here, and nothing could catch it
            _log.exception("the transaction that %s has left", owner)


def _forked() -> None:
    _registry.lock = threading.Lock()  # another thread of the parent may have had it
    for keeper in list(_registry.keepers):
        try:
            keeper.after_in_child()
        except Exception:  # noqa: BLE001  # the others let go all the same
            _log.exception("connections of the parent process are not let go of")


_numbers: Final = itertools.count(1)
_here: Final = _Here()
_registry: Final = _Registry()
os.register_at_fork(after_in_child=_forked)
