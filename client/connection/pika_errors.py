"""Errors of pika as ours, and futures that are answered at most once."""

from __future__ import annotations

import struct
from concurrent.futures import Future
from typing import Any, Final

import pika.exceptions

from understudy.client.connection.errors import NOT_SENT, ClientError, LoginRefusedError, LostError, RefusedError

_LOGIN_CODES: Final = ("(403)", "(530)")
_NOT_ENCODED: Final = (
    pika.exceptions.UnsupportedAMQPFieldException,
    pika.exceptions.ShortStringTooLong,
    TypeError,
    AttributeError,
    AssertionError,
    OverflowError,
    UnicodeError,
    struct.error,
)
"""Errors of pika's encoder. pika encodes all of a call before it sends any of it."""


def give(answer: Future[Any], result: Any) -> None:
    if not answer.done():
        answer.set_result(result)


def fail(answer: Future[Any], error: ClientError) -> None:
    if not answer.done():
        answer.set_exception(error)


def as_ours(error: BaseException) -> ClientError:
    """Our error for one of pika, which tells a backup's refusal (320) as one of access, and an early death as one of login."""
    if isinstance(error, ClientError):
        return error
    if isinstance(error, pika.exceptions.ChannelClosedByBroker):
        return RefusedError(error.reply_code, error.reply_text)
    text = f"{type(error).__name__}: {error}" if str(error) else repr(error)
    if isinstance(
        error, (pika.exceptions.ProbableAuthenticationError, pika.exceptions.ProbableAccessDeniedError)
    ) and any(code in text for code in _LOGIN_CODES):
        return LoginRefusedError(f"the broker refuses the login: {text}")
    return LostError(text)


def not_sent(error: BaseException) -> ClientError:
    """Our error for a call that failed on an open channel: a refusal if pika cannot encode a value."""
    if isinstance(error, _NOT_ENCODED):
        return RefusedError(NOT_SENT, f"cannot be sent: {type(error).__name__}: {error}")
    return as_ours(error)
