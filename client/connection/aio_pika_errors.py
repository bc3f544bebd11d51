"""Errors of aio-pika as ours: a dozen types come out as `LostError`, `RefusedError` and `LoginRefusedError`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from aiormq.exceptions import (
    AMQPError,
    AuthenticationError,
    ChannelAccessRefused,
    ChannelClosed,
    ChannelLockedResource,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    ConnectionNotAllowed,
    ProbableAuthenticationError,
)

from understudy.client.connection.errors import LoginRefusedError, LostError, RefusedError

ANSWER_TIMEOUT_S: Final = 30.0
CLOSE_TIMEOUT_S: Final = 1.0
_CODES: Final[Mapping[type[Exception], int]] = {
    ChannelAccessRefused: 403,
    ChannelNotFoundEntity: 404,
    ChannelLockedResource: 405,
    ChannelPreconditionFailed: 406,
}


async def closed(closing: Any) -> None:
    """Close a connection or a channel of aio-pika, bounded, whatever it raises."""
    with contextlib.suppress(TimeoutError, LostError, RefusedError):
        async with errors_as_ours(CLOSE_TIMEOUT_S):
            # gather, because what the library raises while it closes (CancelledError among it) is not ours.
            await asyncio.gather(closing.close(), return_exceptions=True)


@contextlib.asynccontextmanager
async def errors_as_ours(timeout_s: float = ANSWER_TIMEOUT_S) -> AsyncIterator[None]:
    """Errors of aio-pika become ours; the cause stays with them.

    When a connection closes, the library may cancel a task that waits for it, or raise a bare ``Exception``. A CancelledError
    that nobody asked this task for is a loss, and so is an error of no type.

    A cancellation may be lost: ``asyncio.wait_for`` of Python 3.11, which the library uses, drops one that comes together with an
    error. So a task that was cancelled meanwhile gets its CancelledError, whatever the library raises.

    Raises:
        LostError: the connection or the channel is gone, or no answer came in time.
        RefusedError: the broker closed the channel.
        LoginRefusedError: the broker refuses the login.
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
    except (AuthenticationError, ProbableAuthenticationError, ConnectionNotAllowed) as error:
        raise LoginRefusedError(f"the broker refuses the login: {_words(error)}") from error
    except ChannelClosed as error:
        raise _refused(error) from error
    except TimeoutError as error:
        raise LostError(f"no answer within {timeout_s:g} s") from error
    except (AMQPError, OSError, RuntimeError) as error:
        raise LostError(f"{type(error).__name__}: {_words(error)}") from error
    except asyncio.CancelledError as error:
        if task.cancelling():
            raise
        raise LostError("the connection closed") from error
    except Exception as error:
        if type(error) is not Exception:
            raise
        raise LostError("the connection closed") from error


def _refused(error: ChannelClosed) -> Exception:
    """aio-pika keeps the code of a channel's end in the type of its error, or as its first argument."""
    if type(error) in _CODES:
        return RefusedError(_CODES[type(error)], _words(error))
    if len(error.args) == 2 and isinstance(error.args[0], int):
        return RefusedError(error.args[0], str(error.args[1]))
    return LostError(_words(error) or "the channel closed")


def _words(error: Exception) -> str:
    words: tuple[Any, ...] = error.args
    return " ".join(map(str, words))
