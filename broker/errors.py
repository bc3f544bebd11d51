"""Errors that the broker raises, and their texts for clients.

The core raises; nobody in the core writes a close frame. A `SoftError` closes the channel
it was raised on, a `HardError` closes the connection; one place in `broker.core` turns
them into `channel.close` and `connection.close` with `AmqpError.reply_code` and
`AmqpError.reply_text`. On channel 0 there is no channel to close, so there a soft error
closes the connection too: that is how a refused login (403) reaches the client.

Texts are RabbitMQ's, word for word where we know them: client libraries and people search for
`NOT_FOUND - no queue 'x' in vhost '/'`. Hence the class methods that build the common ones;
a second spelling of the same fault would be found by nobody.

Whether an error is soft is AMQP's table with one exception, which exists twice. 506 RESOURCE_ERROR
is hard in the specification; a commit that too few brokers would hold is answered with
`channel.close` 506, since the connection is sound and its other channels may work on.

`retriable` is an attribute of the type: the same request, unchanged, may succeed later, and the
failed one surely left no trace. An error whose outcome is unknown is never marked retriable.

Sources: AMQP 0-9-1 section 1.2 and the constants of its XML; RabbitMQ's
`rabbit_framing_amqp_0_9_1` and `rabbit_misc:rs`.
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal

from understudy.broker.amqp.constants import ReplyCode

__all__ = [
    "AccessRefusedError",
    "AmqpError",
    "ChannelErrorHard",
    "CommandInvalidError",
    "ConnectionForcedError",
    "ContentTooLargeError",
    "FrameErrorHard",
    "HardError",
    "InternalErrorHard",
    "InvalidPathError",
    "NoConsumersError",
    "NotAllowedError",
    "NotFoundError",
    "NotImplementedAmqpError",
    "PreconditionFailedError",
    "ReplyCode",
    "ResourceErrorHard",
    "ResourceErrorSoft",
    "ResourceLockedError",
    "SoftError",
    "SyntaxErrorHard",
    "UnderstudyError",
    "UnexpectedFrameError",
]

#: A short string of AMQP holds at most 255 bytes; a reply text is one (AMQP 0-9-1 section 4.2.5.3).
MAX_REPLY_TEXT_BYTES: Final = 255

_ELLIPSIS: Final = "..."


#: Codes of AMQP 0-10 for the dtx class, which 0-9-1 does not have.
_DTX_NAMES: Final = {409: "ILLEGAL_STATE", 542: "INVALID_ARGUMENT"}


class UnderstudyError(Exception):
    """Root of every error of Understudy.

    Attributes:
        retriable: the same request, unchanged, may succeed later, and this one left no trace.
    """

    retriable: ClassVar[bool] = False


class AmqpError(UnderstudyError):
    """An error that an AMQP client is told by closing its channel or its connection.

    Raise a subclass; `SoftError` and `HardError` themselves take a bare code.

    Args:
        reply_code: 200 to 599; a code that is not in `ReplyCode` is sent as it is.
        text: what happened, naming the object and the values, without the leading name.

    Attributes:
        reply_name: the word in front; a plugin's subclass may set its own.
    """

    reply_name: ClassVar[str | None] = None
    closes: ClassVar[Literal["channel", "connection"]]

    def __init__(self, reply_code: int, text: str) -> None:
        super().__init__(reply_code, text)
        self.reply_code = int(reply_code)
        self.text = text

    @property
    def reply_text(self) -> str:
        """`NAME - text`, cut to 255 bytes of UTF-8 and never inside a character."""
        return cut_text(str(self), MAX_REPLY_TEXT_BYTES)

    def __str__(self) -> str:
        """The uncut reply text, for logs."""
        return f"{self.reply_name or _name_of(self.reply_code)} - {self.text}"


class SoftError(AmqpError):
    """Closes the channel; the connection and its other channels go on."""

    closes = "channel"


class HardError(AmqpError):
    """Closes the connection with all its channels."""

    closes = "connection"


class _CodedSoftError(SoftError):
    """A soft error whose type fixes its code."""

    code: ClassVar[int]

    def __init__(self, text: str) -> None:
        super().__init__(self.code, text)
        self.args = (text,)  # what __init__ takes: copy and pickle call it with args


class _CodedHardError(HardError):
    """A hard error whose type fixes its code."""

    code: ClassVar[ReplyCode]

    def __init__(self, text: str) -> None:
        super().__init__(self.code, text)
        self.args = (text,)


# --------------------------------------------------------------------------- soft: the channel


class ContentTooLargeError(_CodedSoftError):
    """311: the body is larger than this broker takes, now and later."""

    code = ReplyCode.CONTENT_TOO_LARGE


class NoConsumersError(_CodedSoftError):
    """313: `immediate` was set and no consumer could take the message at once."""

    code = ReplyCode.NO_CONSUMERS
    retriable = True


class AccessRefusedError(_CodedSoftError):
    """403: login refused, permission missing, or a reserved name."""

    code = ReplyCode.ACCESS_REFUSED

    @classmethod
    def missing_permission(cls, user: str, action: str, kind: str, name: str, vhost: str) -> AccessRefusedError:
        """`user` may not `action` (configure, write, read, admin) the `kind` (queue, exchange, command)."""
        return cls(f"{action} access to {_thing(kind, name, vhost)} refused for user '{user}'")

    @classmethod
    def reserved_name(cls, kind: str, name: str, prefix: str) -> AccessRefusedError:
        """`name` starts with `prefix` (`amq.`, `understudy.`), which is the broker's."""
        return cls(f"{kind} name '{name}' contains reserved prefix '{prefix}*'")


class NotFoundError(_CodedSoftError):
    """404: no such queue, exchange, consumer or transaction branch."""

    code = ReplyCode.NOT_FOUND

    @classmethod
    def queue(cls, name: str, vhost: str) -> NotFoundError:
        """`no queue 'x' in vhost '/'`."""
        return cls(f"no {_thing('queue', name, vhost)}")

    @classmethod
    def exchange(cls, name: str, vhost: str) -> NotFoundError:
        """`no exchange 'x' in vhost '/'`."""
        return cls(f"no {_thing('exchange', name, vhost)}")


class ResourceLockedError(_CodedSoftError):
    """405: another connection owns the queue exclusively. It may be gone later."""

    code = ReplyCode.RESOURCE_LOCKED
    retriable = True

    @classmethod
    def queue(cls, name: str, vhost: str) -> ResourceLockedError:
        """An exclusive queue of another connection."""
        return cls(
            f"cannot obtain exclusive access to locked {_thing('queue', name, vhost)}. It could be "
            "originally declared on another connection or the exclusive property value does not "
            "match that of the original declaration."
        )


class PreconditionFailedError(_CodedSoftError):
    """406: the request contradicts the state it meets; also a transaction that was rolled back."""

    code = ReplyCode.PRECONDITION_FAILED

    @classmethod
    def inequivalent_arg(
        cls, kind: str, name: str, vhost: str, arg: str, received: object, current: object
    ) -> PreconditionFailedError:
        """A redeclaration that differs from what is there in `arg`; `None` means absent."""
        return cls(
            f"inequivalent arg '{arg}' for {_thing(kind, name, vhost)}: "
            f"received {_value(received)} but current is {_value(current)}"
        )

    @classmethod
    def unknown_delivery_tag(cls, delivery_tag: int) -> PreconditionFailedError:
        """An acknowledgement of a tag that is not outstanding on this channel."""
        return cls(f"unknown delivery tag {delivery_tag}")

    @classmethod
    def in_use(cls, kind: str, name: str, vhost: str) -> PreconditionFailedError:
        """A delete with if-unused of something that has consumers or bindings."""
        return cls(f"{_thing(kind, name, vhost)} in use")

    @classmethod
    def not_empty(cls, name: str, vhost: str) -> PreconditionFailedError:
        """A queue.delete with if-empty of a queue that holds messages."""
        return cls(f"{_thing('queue', name, vhost)} not empty")


class ResourceErrorSoft(_CodedSoftError):
    """506 on a channel: a bound is reached or too few brokers would hold it; nothing was stored."""

    code = ReplyCode.RESOURCE_ERROR
    retriable = True


# ------------------------------------------- soft, of the dtx class: codes as AMQP 0-10 has them (docs/dtx.md)


class IllegalStateError(_CodedSoftError):
    """409: a branch, or this channel's part in it, is not where the method needs it to be."""

    code = 409


class DtxCommandInvalidError(_CodedSoftError):
    """503 on a channel: a dtx method, or its flags, out of place."""

    code = ReplyCode.COMMAND_INVALID


class BranchKnownError(_CodedSoftError):
    """530 on a channel: a branch is started, without join, that is known."""

    code = ReplyCode.NOT_ALLOWED


class InvalidArgumentError(_CodedSoftError):
    """542: an xid or a time-out is out of its range."""

    code = 542


# ----------------------------------------------------------------------- hard: the connection


class ConnectionForcedError(_CodedHardError):
    """320: the broker gives the connection up (shutdown, step-down, another broker leads).

    Retriable elsewhere or later for what was never sent; what was sent and not answered is
    unknown, which is why the type as a whole is not marked retriable.
    """

    code = ReplyCode.CONNECTION_FORCED


class InvalidPathError(_CodedHardError):
    """402: the client named a vhost in a form that cannot exist."""

    code = ReplyCode.INVALID_PATH


class FrameErrorHard(_CodedHardError):
    """501: bytes that are not a frame; the connection cannot be read any further."""

    code = ReplyCode.FRAME_ERROR


class SyntaxErrorHard(_CodedHardError):
    """502: a frame whose fields cannot be decoded."""

    code = ReplyCode.SYNTAX_ERROR


class CommandInvalidError(_CodedHardError):
    """503: a method that is not allowed at this point of the conversation."""

    code = ReplyCode.COMMAND_INVALID


class ChannelErrorHard(_CodedHardError):
    """504: a method on a channel that is not open, or an open of one that is."""

    code = ReplyCode.CHANNEL_ERROR


class UnexpectedFrameError(_CodedHardError):
    """505: a frame of another kind than the one that must follow, such as a body with no header."""

    code = ReplyCode.UNEXPECTED_FRAME


class ResourceErrorHard(_CodedHardError):
    """506 on a connection: too little of something to keep it."""

    code = ReplyCode.RESOURCE_ERROR
    retriable = True


class NotAllowedError(_CodedHardError):
    """530: forbidden whatever the state: unknown vhost, no permission there, a used consumer tag."""

    code = ReplyCode.NOT_ALLOWED

    @classmethod
    def unknown_vhost(cls, vhost: str) -> NotAllowedError:
        """connection.open to a vhost that is not configured."""
        return cls(f"vhost '{vhost}' not found")

    @classmethod
    def vhost_refused(cls, vhost: str, user: str) -> NotAllowedError:
        """connection.open to a vhost in which `user` has no permissions."""
        return cls(f"access to vhost '{vhost}' refused for user '{user}'")

    @classmethod
    def consumer_tag_in_use(cls, consumer_tag: str) -> NotAllowedError:
        """basic.consume with a tag that this channel already has."""
        return cls(f"attempt to reuse consumer tag '{consumer_tag}'")


class NotImplementedAmqpError(_CodedHardError):
    """540: a method or a flag that this broker does not have."""

    code = ReplyCode.NOT_IMPLEMENTED


class InternalErrorHard(_CodedHardError):
    """541: our own fault, not the peer's; the text says what to report."""

    code = ReplyCode.INTERNAL_ERROR


# ----------------------------------------------------------------------------------- the texts


def _name_of(reply_code: int) -> str:
    try:
        return ReplyCode(reply_code).name
    except ValueError:
        return _DTX_NAMES.get(reply_code, f"ERROR_{reply_code}")


def _thing(kind: str, name: str, vhost: str) -> str:
    """RabbitMQ's `rabbit_misc:rs`: `queue 'x' in vhost '/'`."""
    return f"{kind} '{name}' in vhost '{vhost}'"


def _value(value: object) -> str:
    """An argument as RabbitMQ prints it: `none`, `'true'`, `the value '60' of type 'int'`."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"'{str(value).lower()}'"
    return f"'{value}'"


def cut_text(text: str, limit: int = MAX_REPLY_TEXT_BYTES) -> str:
    """`text` in at most `limit` bytes of UTF-8; a cut one ends in an ellipsis.

    Lone surrogates, which bytes of a peer may have become, are written as `?`: a close frame
    must always be possible.
    """
    encoded = text.encode("utf-8", "replace")
    if len(encoded) > limit:
        encoded = encoded[: limit - len(_ELLIPSIS)]
        return encoded.decode("utf-8", "ignore") + _ELLIPSIS
    return encoded.decode("utf-8")
