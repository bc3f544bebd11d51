"""Reply texts word for word, what each error closes, and that a close frame is possible whatever the text."""

from __future__ import annotations

import copy
import pickle

import pytest

from understudy.broker import errors
from understudy.broker.errors import (
    AccessRefusedError,
    AmqpError,
    ConnectionForcedError,
    ContentTooLargeError,
    HardError,
    NoConsumersError,
    NotAllowedError,
    NotFoundError,
    PreconditionFailedError,
    ResourceErrorHard,
    ResourceErrorSoft,
    ResourceLockedError,
    SoftError,
    UnderstudyError,
)

# AMQP 0-9-1, the constants of its XML: written out, not taken from the code under test.
SOFT = {
    "ContentTooLargeError": 311,
    "NoConsumersError": 313,
    "AccessRefusedError": 403,
    "NotFoundError": 404,
    "ResourceLockedError": 405,
    "PreconditionFailedError": 406,
    "ResourceErrorSoft": 506,
}
HARD = {
    "ConnectionForcedError": 320,
    "InvalidPathError": 402,
    "FrameErrorHard": 501,
    "SyntaxErrorHard": 502,
    "CommandInvalidError": 503,
    "ChannelErrorHard": 504,
    "UnexpectedFrameError": 505,
    "ResourceErrorHard": 506,
    "NotAllowedError": 530,
    "NotImplementedAmqpError": 540,
    "InternalErrorHard": 541,
}


@pytest.mark.parametrize(("name", "code"), SOFT.items())
def test_soft_errors_close_the_channel(name: str, code: int) -> None:
    error = getattr(errors, name)("why")
    assert isinstance(error, SoftError)
    assert (error.reply_code, error.closes, error.text) == (code, "channel", "why")


@pytest.mark.parametrize(("name", "code"), HARD.items())
def test_hard_errors_close_the_connection(name: str, code: int) -> None:
    error = getattr(errors, name)("why")
    assert isinstance(error, HardError)
    assert (error.reply_code, error.closes, error.text) == (code, "connection", "why")


def test_the_two_tables_are_complete() -> None:
    concrete = {name for name in errors.__all__ if getattr(getattr(errors, name), "code", None) is not None}
    assert concrete == SOFT.keys() | HARD.keys()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (NotFoundError.queue("x", "/"), "NOT_FOUND - no queue 'x' in vhost '/'"),
        (NotFoundError.exchange("x", "v"), "NOT_FOUND - no exchange 'x' in vhost 'v'"),
        (
            PreconditionFailedError.inequivalent_arg("queue", "x", "/", "durable", received=True, current=False),
            (
                "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'x' in vhost '/': "
                "received 'true' but current is 'false'"
            ),
        ),
        (
            PreconditionFailedError.inequivalent_arg("queue", "x", "/", "x-expires", received=None, current=60),
            (
                "PRECONDITION_FAILED - inequivalent arg 'x-expires' for queue 'x' in vhost '/': "
                "received none but current is '60'"
            ),
        ),
        (PreconditionFailedError.unknown_delivery_tag(7), "PRECONDITION_FAILED - unknown delivery tag 7"),
        (PreconditionFailedError.in_use("queue", "x", "/"), "PRECONDITION_FAILED - queue 'x' in vhost '/' in use"),
        (PreconditionFailedError.not_empty("x", "/"), "PRECONDITION_FAILED - queue 'x' in vhost '/' not empty"),
        (
            AccessRefusedError.missing_permission("ann", "write", "exchange", "x", "/"),
            "ACCESS_REFUSED - write access to exchange 'x' in vhost '/' refused for user 'ann'",
        ),
        (
            AccessRefusedError.reserved_name("queue", "amq.x", "amq."),
            "ACCESS_REFUSED - queue name 'amq.x' contains reserved prefix 'amq.*'",
        ),
        (NotAllowedError.unknown_vhost("v"), "NOT_ALLOWED - vhost 'v' not found"),
        (NotAllowedError.vhost_refused("/", "ann"), "NOT_ALLOWED - access to vhost '/' refused for user 'ann'"),
        (NotAllowedError.consumer_tag_in_use("t"), "NOT_ALLOWED - attempt to reuse consumer tag 't'"),
        (SoftError(404, "x"), "NOT_FOUND - x"),
        (SoftError(409, "x"), "ILLEGAL_STATE - x"),
        (SoftError(542, "x"), "INVALID_ARGUMENT - x"),
        (HardError(599, "x"), "ERROR_599 - x"),
    ],
)
def test_texts(error: AmqpError, text: str) -> None:
    assert error.reply_text == str(error) == text


def test_a_locked_queue_is_named() -> None:
    text = ResourceLockedError.queue("x", "/").reply_text
    assert text.startswith("RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'x' in vhost '/'.")


@pytest.mark.parametrize("letter", ["x", "é", "漢", "😀"])
def test_a_reply_text_fits_a_short_string_and_is_never_cut_inside_a_character(letter: str) -> None:
    error = NotFoundError.queue(letter * 300, "/")
    encoded = error.reply_text.encode("utf-8")
    assert 250 <= len(encoded) <= 255
    assert error.reply_text.endswith(letter + "...")
    assert str(error).endswith("' in vhost '/'"), "the log gets all of it"


def test_a_text_of_exactly_255_bytes_is_not_cut() -> None:
    text = "x" * (255 - len("NOT_FOUND - "))
    assert NotFoundError(text).reply_text == f"NOT_FOUND - {text}"


def test_a_name_that_was_no_utf8_still_gives_a_text_that_can_be_sent() -> None:
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")
    assert NotFoundError.queue(name, "/").reply_text == "NOT_FOUND - no queue '??' in vhost '/'"


def test_what_may_be_tried_again_unchanged() -> None:
    retriable = {name for name in errors.__all__ if getattr(getattr(errors, name), "retriable", False)}
    assert retriable == {"NoConsumersError", "ResourceLockedError", "ResourceErrorSoft", "ResourceErrorHard"}
    assert not UnderstudyError.retriable
    assert NoConsumersError.retriable
    assert ResourceErrorSoft.retriable
    assert ResourceErrorHard.retriable


def test_a_plugin_may_put_its_own_word_in_front() -> None:
    class NotPrimaryError(ConnectionForcedError):
        reply_name = "NOT_PRIMARY"

    error = NotPrimaryError("b2 is a backup; primary is amqp://h:5672")
    assert error.reply_code == 320
    assert error.reply_text == "NOT_PRIMARY - b2 is a backup; primary is amqp://h:5672"


@pytest.mark.parametrize("error", [ContentTooLargeError("too large"), SoftError(409, "x"), HardError(320, "bye")])
def test_errors_survive_copy_and_pickle(error: AmqpError) -> None:
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is type(error)
        assert (twin.reply_code, twin.text) == (error.reply_code, error.text)
