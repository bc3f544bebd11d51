"""Retry: how often a stage is tried with one message, and how long between two attempts."""

from __future__ import annotations

import zlib

import attrs

from understudy.client.stages.errors import ConfigurationError

MOST_ATTEMPTS = 100
LONGEST_S = 30 * 24 * 3600.0
LONGEST_BLOCKING_S = 15 * 60.0


@attrs.frozen
class Retry:
    """A schedule of attempts.

    Args:
        attempts: how often the stage is called at most, 1 to 100; then the message is a dead letter. Connections and
            workers that are lost cost no attempt.
        first: seconds between the first and the second attempt, 0 to 30 days.
        factor: each delay is so many times the one before, at least 1.
        most: the longest delay, in seconds.
        jitter: chance takes off at most this share of each delay, 0 to 1: messages that failed together do not come together.
        blocking: the worker's slot waits and takes no other message; else other messages go on meanwhile. The longest delay
            is 15 minutes then: brokers end consumers that keep a message for long.

    Raises:
        ConfigurationError: a value is out of its range.
    """

    attempts: int = 7
    first: float = attrs.field(default=1.0, kw_only=True)
    factor: float = attrs.field(default=2.0, kw_only=True)
    most: float = attrs.field(default=60.0, kw_only=True)
    jitter: float = attrs.field(default=0.1, kw_only=True)
    blocking: bool = attrs.field(default=False, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if not 1 <= self.attempts <= MOST_ATTEMPTS:
            raise ConfigurationError(f"Retry: attempts = {self.attempts}; 1 to {MOST_ATTEMPTS} are allowed")
        if not 0 <= self.first <= LONGEST_S:
            raise ConfigurationError(f"Retry: first = {self.first} s; 0 to {LONGEST_S:g} s are allowed")
        if not 1 <= self.factor <= 100:
            raise ConfigurationError(f"Retry: factor = {self.factor}; 1 to 100 are allowed")
        if not self.first <= self.most <= LONGEST_S:
            raise ConfigurationError(
                f"Retry: most = {self.most} s; first ({self.first} s) to {LONGEST_S:g} s are allowed"
            )

        if not 0 <= self.jitter <= 1:
            raise ConfigurationError(f"Retry: jitter = {self.jitter}; 0 to 1 are allowed")
        if self.blocking and self.most > LONGEST_BLOCKING_S:
            raise ConfigurationError(
                f"Retry: most = {self.most} s with blocking=True; at most {LONGEST_BLOCKING_S:g} s are allowed: "
                f"a broker ends a consumer that keeps a message for longer"
            )

    def delay_ms(self, failures: int, chance: float = 0.0) -> int | None:
        """Milliseconds until the next attempt after so many failed ones; None: there is no further attempt.

        ``chance``, 0 to 1, is the share of the jitter that is taken off.
        """
        if failures >= self.attempts:
            return None
        delay = self.first
        for _ in range(failures - 1):
            delay = min(delay * self.factor, self.most)
        return round(min(delay, self.most) * (1 - self.jitter * chance) * 1000)


def chance_of(message_id: str, failures: int) -> float:
    """A number from 0 to 1 that differs from message to message, and is the same when it is asked again."""
    return zlib.crc32(f"{message_id}\n{failures}".encode("utf-8", "replace")) / 0xFFFFFFFF
