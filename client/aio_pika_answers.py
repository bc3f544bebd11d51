"""Bounded waits for answers of aio-pika, one mechanism for all rooms; each room says what the library's errors mean to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

from aiormq.exceptions import (
    ChannelAccessRefused,
    ChannelClosed,
    ChannelLockedResource,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
)

_CODES: Final[Mapping[type[Exception], int]] = {
    ChannelAccessRefused: 403,
    ChannelNotFoundEntity: 404,
    ChannelLockedResource: 405,
    ChannelPreconditionFailed: 406,
}


@contextlib.asynccontextmanager
async def answered(
    timeout_s: float, lost: Callable[[str], Exception], ours: Callable[[Exception], Exception | None]
) -> AsyncIterator[None]:
    """Wait within a bound; errors of aio-pika become those of a room, and the cause stays with them.

    Args:
        timeout_s: bound of the wait.
        lost: makes the error of a wait whose connection is gone, or that is over; takes its words.
        ours: makes the room's error of one of the library; None: the error stays as it is.

    When a connection closes, the library may cancel a task that waits for it, or raise a bare ``Exception``. A CancelledError
    that nobody asked this task for is a loss, and so is an error of no type.

    A cancellation may be lost: ``asyncio.wait_for`` of Python 3.11, which the library uses, drops one that comes together with an
    error. So a task that was cancelled meanwhile gets its CancelledError, whatever the library raises.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except Exception as error:
            if task.cancelling() > before:
                raise asyncio.CancelledError from error
            raise
    except TimeoutError as error:
        raise lost(f"no answer within {timeout_s:g} s") from error
    except asyncio.CancelledError as error:
        if task.cancelling():
            raise
        raise lost("the connection closed") from error
    except Exception as error:
        made = lost("the connection closed") if type(error) is Exception else ours(error)
        if made is None:
            raise
        raise made from error


def refusal_of(error: ChannelClosed) -> tuple[int, str] | None:
    """The code and the words of a broker that closed a channel; None if no broker closed it.

    aio-pika keeps the code in the type of its error, or as its first argument.
    """
    if type(error) in _CODES:
        return _CODES[type(error)], words_of(error)
    if len(error.args) == 2 and isinstance(error.args[0], int):
        return error.args[0], str(error.args[1])
    return None


def words_of(error: Exception) -> str:
    """Everything that an error of the library says."""
    words: tuple[Any, ...] = error.args
    return " ".join(map(str, words))
