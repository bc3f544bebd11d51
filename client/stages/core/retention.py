"""Retention: how long an inbox must know a message, so that each copy that may still come finds its row."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from understudy.client.stages.core.retry import Retry
from understudy.client.stages.errors import ConfigurationError

INBOX_RETENTION: Final = timedelta(days=7)
DEAD_LETTER_RETENTION: Final = timedelta(days=6)
LONGEST: Final = timedelta(days=3650)


def span_of(retry: Retry) -> timedelta:
    """The time between the first and the last attempt, without the attempts themselves."""
    delays = (retry.delay_ms(failures) or 0 for failures in range(1, retry.attempts))
    return timedelta(milliseconds=sum(delays))


def check_range(what: str, value: timedelta) -> timedelta:
    """A retention that can be used.

    Raises:
        ConfigurationError: it is not 0 to 10 years.
    """
    if not timedelta() <= value <= LONGEST:
        raise ConfigurationError(f"{what} = {value}; 0 to {LONGEST.days} days are allowed")
    return value


def check_retention(stage: str, retry: Retry, inbox: timedelta, dead_letters: timedelta) -> None:
    """See that a message is known for as long as it may come again.

    A message may fail until its last attempt, become a dead letter, and be issued again within the dead letters' retention.

    Raises:
        ConfigurationError: the inbox forgets it before; names both times.
    """
    span = span_of(retry)
    if inbox < span + dead_letters:
        raise ConfigurationError(
            f"stage {stage!r}: inbox_retention is {inbox}, which is shorter than its retries and dead_letter_retention "
            f"together, {span} + {dead_letters}: the inbox would not know a message that is issued again. "
            f"Stages(inbox_retention=...) must be at least {span + dead_letters}"
        )
