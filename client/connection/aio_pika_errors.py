"""Errors of aio-pika as ours: a dozen types come out as `LostError`, `RefusedError` and `LoginRefusedError`."""

from __future__ import annotations

import asyncio
import contextlib
import struct
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
NOT_SENT: Final = 0
"""Code of a refusal by the client itself: a value that AMQP cannot carry."""
_NOT_ENCODED: Final = (TypeError, ValueError, OverflowError, struct.error)
"""Errors of the library's encoder, which encodes all of a call before it sends any of it."""
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
async def errors_as_ours(
    timeout_s: float = ANSWER_TIMEOUT_S, *, opening: bool = False, encoding: bool = False
) -> AsyncIterator[None]:
    """Errors of aio-pika become ours; the cause stays with them.

    Args:
        timeout_s: bound of the wait.
        opening: the connection is being opened; later, a broker that ends it with 530 refuses no login.
        encoding: values of the program are encoded, and an error of the encoder is a refusal.

    When a connection closes, the library may cancel a task that waits for it, or raise a bare ``Exception``. A CancelledError
    that nobody asked this task for is a loss, and so is an error of no type.

    A cancellation may be lost: ``asyncio.wait_for`` of Python 3.11, which the library uses, drops one that comes together with an
    error. So a task that was cancelled meanwhile gets its CancelledError, whatever the library raises.

    Raises:
        LostError: the connection or the channel is gone, or no answer came in time.
        RefusedError: the broker closed the channel, or a value cannot be encoded and was not sent.
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
    except TimeoutError as error:
        raise LostError(f"no answer within {timeout_s:g} s") from error
    except (AMQPError, OSError, RuntimeError) as error:
        raise _ours(error, opening=opening) from error
    except _NOT_ENCODED as error:
        if not encoding:
            raise
        raise RefusedError(NOT_SENT, f"cannot be sent: {type(error).__name__}: {error}") from error
    except asyncio.CancelledError as error:
        if task.cancelling():
            raise
        raise LostError("the connection closed") from error
    except Exception as error:
        if type(error) is not Exception:
            raise
        raise LostError("the connection closed") from error


def _ours(error: Exception, *, opening: bool) -> Exception:
    if opening and isinstance(error, AuthenticationError | ProbableAuthenticationError | ConnectionNotAllowed):
        return LoginRefusedError(f"the broker refuses the login: {_words(error)}")
    if isinstance(error, ChannelClosed):
        return _refused(error)
    return LostError(f"{type(error).__name__}: {_words(error)}")


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
