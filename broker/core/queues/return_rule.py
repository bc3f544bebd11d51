"""How a queue treats what comes back to it: ``x-delivery-limit`` and ``x-delayed-retry-*``.

A queue with one of these arguments counts (``log/return_record.py``). Any other queue writes nothing when a message comes back.

*Limit*: a message that has failed more often than this leaves the queue, as a dead letter of the reason ``delivery_limit``.
-1 is no limit, and the queue counts.

*Delay*: a message that comes back is withheld for a while. ``x-delayed-retry-type`` says which: ``failed`` ones, those that were
``returned`` without a failure, or ``all``. After ``n`` failures the delay is ``min(min * n, max)``, with ``n`` at least 1. With
``x-delayed-retry-factor`` it is ``min(min * factor ** (n - 1), max)``. ``x-delayed-retry-jitter`` is the share of the delay, from 0
to 1, that chance may take off, so that what failed together does not come back together.

Sources: RabbitMQ 4.3, quorum queues, *Poison message handling* and *Delayed retry*. Factor and jitter are ours.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

LIMIT: Final = "x-delivery-limit"
RETRY_TYPE: Final = "x-delayed-retry-type"
RETRY_MIN: Final = "x-delayed-retry-min"
RETRY_MAX: Final = "x-delayed-retry-max"
RETRY_FACTOR: Final = "x-delayed-retry-factor"
RETRY_JITTER: Final = "x-delayed-retry-jitter"
ARGUMENTS: Final = (LIMIT, RETRY_TYPE, RETRY_MIN, RETRY_MAX, RETRY_FACTOR, RETRY_JITTER)
DISABLED: Final = "disabled"
FAILED: Final = "failed"
RETURNED: Final = "returned"
ALL: Final = "all"
RETRY_TYPES: Final = (DISABLED, ALL, FAILED, RETURNED)
MOST_DELAY_MS: Final = 10 * 365 * 86_400_000
"""Ten years. A longer delay is a mistake in its unit."""


@attrs.frozen(kw_only=True)
class ReturnRule:
    """The rule of one queue.

    Attributes:
        limit: the most failures of a message that stays; None for any number.
        kind: of `RETRY_TYPES`: which returns are delayed.
        min_ms, max_ms: of a delay.
        factor: by which a delay grows with each failure; 0: it grows by ``min_ms``.
        jitter: the share of a delay that chance takes off at the most.
    """

    limit: int | None
    kind: str = DISABLED
    min_ms: int = 0
    max_ms: int = 0
    factor: float = 0
    jitter: float = 0

    @classmethod
    def of(cls, arguments: dict[str, Any]) -> ReturnRule | None:
        """The rule of a queue with these arguments, which have been checked; None if the queue counts nothing.

        A policy may have changed them: a type without ``x-delayed-retry-min`` delays nothing, as in RabbitMQ.
        """
        kind = arguments.get(RETRY_TYPE, DISABLED) if RETRY_MIN in arguments else DISABLED
        if LIMIT not in arguments and kind == DISABLED:
            return None
        limit = arguments.get(LIMIT, -1)
        least = arguments.get(RETRY_MIN, 0)
        return cls(
            limit=None if limit < 0 else limit,
            kind=kind,
            min_ms=least,
            max_ms=arguments.get(RETRY_MAX, least),
            factor=float(arguments.get(RETRY_FACTOR, 0)),
            jitter=float(arguments.get(RETRY_JITTER, 0)),
        )

    def exceeded(self, failures: int) -> bool:
        """True if a message that has failed so often has to leave."""
        return self.limit is not None and failures > self.limit

    def delays(self, failed: bool) -> bool:
        """True if a message that comes back is withheld."""
        return self.kind in (ALL, FAILED if failed else RETURNED)

    def delay_ms(self, failures: int, chance: float) -> int:
        """For how long a message that has failed so often is withheld.

        Args:
            failures: 0 or more.
            chance: from 0 to 1: how much of the jitter is taken off.
        """
        times = max(1, failures)
        if self.factor:
            # The exponent is bounded, since a large power of a float is an error.
            grown = self.min_ms * self.factor ** min(times - 1, 64) if self.factor > 1 else self.min_ms
        else:
            grown = self.min_ms * times
        delay = min(grown, self.max_ms)
        return max(1, int(delay - delay * self.jitter * chance))


def contradiction(arguments: dict[str, Any]) -> tuple[str, str, str] | None:
    """Two of ``arguments`` that contradict each other, each of which may have its value; and why. None if there are none."""
    kind = arguments.get(RETRY_TYPE)
    details = [argument for argument in ARGUMENTS[2:] if argument in arguments]
    if kind is None and details:
        return details[0], RETRY_TYPE, "says which returns are delayed, and is not there"
    if kind not in (None, DISABLED) and RETRY_MIN not in arguments:
        return RETRY_TYPE, RETRY_MIN, "says how long, and is not there"
    if RETRY_MAX in arguments and arguments[RETRY_MAX] < arguments.get(RETRY_MIN, 0):
        return RETRY_MAX, RETRY_MIN, f"is more: {arguments[RETRY_MIN]}"
    if RETRY_FACTOR in arguments and RETRY_MAX not in arguments:
        return RETRY_FACTOR, RETRY_MAX, "bounds what grows, and is not there"
    return None
