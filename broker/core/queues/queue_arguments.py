"""Arguments of queue.declare: which there are, what they may be, which make a queue another one.

``COMPARED`` ones are the queue's: a declaration of the same name with another value, or without it, is refused. ``IGNORED`` ones
say how RabbitMQ stores and mirrors a queue. They are accepted with any value, since clients that send them to RabbitMQ send them
here too, and they make no queue another one. ``x-queue-type`` is checked and then ignored in the same way: there is one kind of
queue. ``x-ha-replicate`` belongs to ``replication_level``. Any other argument that begins with ``x-`` is refused (RabbitMQ ignores
it): a client that asks for what is not built must not believe that it has it.

``x-dead-letter-strategy`` says how safely RabbitMQ moves a dead letter. Here a move is one record, whatever the client asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from understudy.broker.core.queues import dead_letters, deduplication, queue_limits, return_rule
from understudy.broker.core.queues.priority_queue import MAX_PRIORITY, MOST
from understudy.broker.core.queues.queue import CONSUMER_TIMEOUT, DELAYED_PUBLISH, SINGLE_ACTIVE_CONSUMER
from understudy.broker.core.queues.replication_level import REPLICATE
from understudy.broker.errors import PreconditionFailedError

MESSAGE_TTL: Final = "x-message-ttl"
EXPIRES: Final = "x-expires"
STRATEGY: Final = "x-dead-letter-strategy"
STRATEGIES: Final = ("at-most-once", "at-least-once")
MOVES: Final = (
    dead_letters.EXCHANGE,
    dead_letters.ROUTING_KEY,
    queue_limits.MAX_LENGTH,
    queue_limits.MAX_LENGTH_BYTES,
    queue_limits.OVERFLOW,
    *return_rule.ARGUMENTS,
)
"""Of queues whose records older programs cannot read (``record.MOVES_VERSION``)."""
SERVING: Final = (MAX_PRIORITY, SINGLE_ACTIVE_CONSUMER, CONSUMER_TIMEOUT, DELAYED_PUBLISH)
"""How messages are handed out. Programs that do not read that format would not heed them when they lead."""
FROM_FORMAT_5: Final = frozenset((*MOVES, *SERVING, *deduplication.ARGUMENTS))
COMPARED: Final = (MESSAGE_TTL, EXPIRES, *MOVES, *SERVING, *deduplication.ARGUMENTS, STRATEGY)
QUEUE_TYPE: Final = "x-queue-type"
QUEUE_TYPES: Final = ("classic", "quorum")
IGNORED: Final = ("x-queue-mode", "x-queue-version", "x-queue-master-locator", "x-ha-policy")
KNOWN: Final = frozenset((*COMPARED, REPLICATE, QUEUE_TYPE, *IGNORED))
MAX_MS: Final = 315_360_000_000
"""Ten years, as in RabbitMQ."""
MAX_COUNT: Final = (1 << 63) - 1
MAX_FAILURES: Final = (1 << 31) - 1
NAME_BYTES: Final = 255
SHOWN: Final = 40
"""So many characters of a value stand in an error, which has 255 octets."""


def number(least: int, most: int, what: str = "") -> Callable[[Any], str]:
    """A check for whole numbers from ``least`` to ``most``; ``what`` they count, "" for nothing."""
    named = f"number of {what}" if what else "whole number"

    def check(value: Any) -> str:
        good = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        return "" if good else f"is not a {named} from {least} to {most}"

    return check


def _share(least: float, most: float) -> Callable[[Any], str]:
    """A check for numbers from ``least`` to ``most``, whole or not."""

    def check(value: Any) -> str:
        good = isinstance(value, int | float | Decimal) and not isinstance(value, bool) and least <= value <= most
        return "" if good else f"is not a number from {least:g} to {most:g}"

    return check


def _one_of(values: tuple[str, ...]) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        return "" if value in values else f"is none of {', '.join(values)}"

    return check


def is_name(value: Any) -> str:
    """Check that a value fits into a record as a name: a string of at most `NAME_BYTES` of UTF-8."""
    good = isinstance(value, str) and len(octets := value.encode("utf-8", "replace")) <= NAME_BYTES
    return "" if good and octets.decode() == value else f"is not a name of at most {NAME_BYTES} bytes"


def shown(value: Any) -> str:
    """A value as an error has it: its beginning, so that there is room for what is wrong."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def is_truth(value: Any) -> str:
    return "" if isinstance(value, bool) else "is neither true nor false"


def _is_header(value: Any) -> str:
    return is_name(value) or ("" if value else "is no name of a header")


CHECKS: Final[dict[str, Callable[[Any], str]]] = {
    MESSAGE_TTL: number(0, MAX_MS, "milliseconds"),
    EXPIRES: number(1, MAX_MS, "milliseconds"),
    dead_letters.EXCHANGE: is_name,
    dead_letters.ROUTING_KEY: is_name,
    STRATEGY: _one_of(STRATEGIES),
    queue_limits.MAX_LENGTH: number(0, MAX_COUNT, "messages"),
    queue_limits.MAX_LENGTH_BYTES: number(0, MAX_COUNT, "bytes"),
    queue_limits.OVERFLOW: _one_of(queue_limits.OVERFLOWS),
    MAX_PRIORITY: number(1, MOST, "priorities"),
    return_rule.LIMIT: number(-1, MAX_FAILURES, "failures (-1: any number)"),
    return_rule.RETRY_TYPE: _one_of(return_rule.RETRY_TYPES),
    return_rule.RETRY_MIN: number(1, return_rule.MOST_DELAY_MS, "milliseconds"),
    return_rule.RETRY_MAX: number(1, return_rule.MOST_DELAY_MS, "milliseconds"),
    return_rule.RETRY_FACTOR: _share(1, 100),
    return_rule.RETRY_JITTER: _share(0, 1),
    SINGLE_ACTIVE_CONSUMER: is_truth,
    CONSUMER_TIMEOUT: number(0, MAX_COUNT, "milliseconds"),
    DELAYED_PUBLISH: is_truth,
    deduplication.ENABLED: is_truth,
    deduplication.SIZE: number(1, deduplication.MAX_SIZE, "message ids"),
    deduplication.TTL: number(1, MAX_MS, "milliseconds"),
    deduplication.HEADER: _is_header,
}
"""Argument to a check of its value: the fault, "" if there is none."""


def check_arguments(name: str, vhost: str, arguments: dict[str, Any]) -> None:
    """Check those of a queue that is to be declared.

    Raises:
        PreconditionFailedError: one is not known, a value is not one that it may have, or two contradict each other.
    """
    check_type(name, vhost, arguments)
    for argument, value in arguments.items():
        if argument.startswith("x-") and argument not in KNOWN:
            raise PreconditionFailedError(
                f"argument '{argument}' of queue '{name}' in vhost '{vhost}' is not supported"
            )
        wrong = CHECKS[argument](value) if argument in CHECKS else ""
        if wrong:
            raise PreconditionFailedError(
                f"invalid arg '{argument}' for queue '{name}' in vhost '{vhost}': {shown(value)} {wrong}"
            )
    check_deduplication("queue", name, vhost, arguments)
    if dead_letters.ROUTING_KEY in arguments and dead_letters.EXCHANGE not in arguments:
        raise PreconditionFailedError(
            f"invalid arg '{dead_letters.ROUTING_KEY}' for queue '{name}' in vhost '{vhost}': there is no "
            f"'{dead_letters.EXCHANGE}' to which {arguments[dead_letters.ROUTING_KEY]!r} belongs"
        )
    clash = return_rule.contradiction(arguments)
    if clash is not None:
        argument, other, why = clash
        raise PreconditionFailedError(
            f"invalid arg '{argument}' for queue '{name}' in vhost '{vhost}': {arguments[argument]!r}, but '{other}' {why}"
        )


def check_deduplication(kind: str, name: str, vhost: str, arguments: dict[str, Any]) -> None:
    """Check that nothing is said of ids that the queue or exchange (``kind``) does not remember.

    Raises:
        PreconditionFailedError: something is.
    """
    alone = deduplication.contradiction(arguments)
    if alone:
        raise PreconditionFailedError(
            f"invalid arg '{alone}' for {kind} '{name}' in vhost '{vhost}': '{deduplication.ENABLED}' is not true, to which "
            f"{arguments[alone]!r} belongs"
        )


def check_type(name: str, vhost: str, arguments: dict[str, Any]) -> None:
    """Check ``x-queue-type``, also of a queue that is there: a client that asks for a stream must not take it for one.

    Raises:
        PreconditionFailedError: it is not a type whose clients a queue of this broker serves.
    """
    kind = arguments.get(QUEUE_TYPE, QUEUE_TYPES[0])
    if kind in QUEUE_TYPES:
        return
    why = "there are no streams" if kind == "stream" else "no such type"
    raise PreconditionFailedError(
        f"invalid arg '{QUEUE_TYPE}' for queue '{name}' in vhost '{vhost}': {kind!r}: {why}; classic and quorum are accepted"
    )
