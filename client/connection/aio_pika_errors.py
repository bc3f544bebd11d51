"""Errors of aio-pika as ours: a dozen types come out as `LostError`, `RefusedError` and `LoginRefusedError`."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final

from aiormq.exceptions import (
    AMQPError,
    AuthenticationError,
    ChannelClosed,
    ConnectionNotAllowed,
    ProbableAuthenticationError,
)

from understudy.client.aio_pika_answers import answered, refusal_of, words_of
from understudy.client.connection.core.port import ANSWER_TIMEOUT_S, CLOSE_TIMEOUT_S
from understudy.client.connection.errors import NOT_SENT, ClientError, LoginRefusedError, LostError, RefusedError

_NOT_ENCODED: Final = (TypeError, ValueError, OverflowError, struct.error)
"""Errors of the library's encoder, which encodes all of a call before it sends any of it."""


async def closed(closing: Any) -> None:
    """Close a connection or a channel of aio-pika, bounded, whatever it raises."""
    with contextlib.suppress(TimeoutError, LostError, RefusedError):
        async with errors_as_ours(CLOSE_TIMEOUT_S):
            # gather, because what the library raises while it closes (CancelledError among it) is not ours.
            await asyncio.gather(closing.close(), return_exceptions=True)


def errors_as_ours(
    timeout_s: float = ANSWER_TIMEOUT_S, *, opening: bool = False, encoding: bool = False
) -> AbstractAsyncContextManager[None]:
    """Errors of aio-pika become ours, as `answered` says.

    Args:
        timeout_s: bound of the wait.
        opening: the connection is being opened; later, a broker that ends it with 530 refuses no login.
        encoding: values of the program are encoded, and an error of the encoder is a refusal.

    Raises:
        LostError: the connection or the channel is gone, or no answer came in time.
        RefusedError: the broker closed the channel, or a value cannot be encoded and was not sent.
        LoginRefusedError: the broker refuses the login.
    """
    return answered(timeout_s, LostError, partial(ours_of, opening=opening, encoding=encoding))


def ours_of(error: Exception, *, opening: bool = False, encoding: bool = False) -> ClientError | None:
    """Our error for one of aio-pika; None if it is none. The arguments are those of `errors_as_ours`."""
    if opening and isinstance(error, AuthenticationError | ProbableAuthenticationError | ConnectionNotAllowed):
        return LoginRefusedError(f"the broker refuses the login: {words_of(error)}")
    if isinstance(error, ChannelClosed):
        refusal = refusal_of(error)
        return RefusedError(*refusal) if refusal is not None else LostError("the channel closed")
    if isinstance(error, AMQPError | OSError | RuntimeError):
        return LostError(f"{type(error).__name__}: {words_of(error)}")
    if encoding and isinstance(error, _NOT_ENCODED):
        return RefusedError(NOT_SENT, f"cannot be sent: {type(error).__name__}: {error}")
    return None
