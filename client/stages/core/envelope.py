"""Envelope and Delivery: a message on its way out, and one that has come; the names of their headers."""

from __future__ import annotations

from typing import Any, Final

import attrs

FLOW: Final = "x-stages-flow"
FLOW_ID: Final = "x-stages-flow-id"
TRACE_ID: Final = "x-stages-trace-id"
FAILURES: Final = "x-stages-failures"
"""How many attempts have failed so far."""
FIRST_FAILED: Final = "x-stages-first-failed-ms"
"""When the first attempt failed, in milliseconds since 1970."""

# Of dead letters alone.
STAGE: Final = "x-stages-stage"
REFUSED: Final = "x-stages-refused"
EXCEPTION: Final = "x-stages-exception"
EXCEPTION_TEXT: Final = "x-stages-exception-text"
STACK: Final = "x-stages-stack"
LAST_FAILED: Final = "x-stages-last-failed-ms"

DEAD_LETTERS: Final = ".dead"
"""A stage's dead-letter queue is called as its queue, with this behind it."""

_OF_THE_BROKER: Final = ("x-death", "x-first-death-", "x-last-death-")


@attrs.frozen(kw_only=True)
class Envelope:
    """One message to be sent.

    Attributes:
        id: ours; kept through redelivery, delay and dead-letter queue.
        queue: where it goes, by the default exchange.
        stage: the name of the stage that it is for.
        after_ms: comes to the queue so many milliseconds later.
    """

    id: str
    queue: str
    stage: str
    body: bytes
    headers: dict[str, Any]
    after_ms: int = 0


@attrs.frozen(kw_only=True)
class Delivery:
    """One message that has come from the queue of a stage.

    Attributes:
        id: the property ``message_id``, or one that the edge has drawn by chance.
        anonymous: the message had no id.
        stage: the property ``type``; "" if there is none.
        redelivered: a consumer held it before and did not acknowledge it.
    """

    id: str
    stage: str
    body: bytes
    headers: dict[str, Any]
    redelivered: bool = False
    anonymous: bool = False

    @property
    def failures(self) -> int:
        """How many attempts have failed before this one."""
        value = self.headers.get(FAILURES, 0)
        return value if isinstance(value, int) and value > 0 else 0

    def text(self, header: str) -> str:
        """The value of a header; "" if there is none, or it is no text."""
        value = self.headers.get(header)
        return value if isinstance(value, str) else ""

    def own_headers(self) -> dict[str, Any]:
        """All headers but those that a broker writes when a message dies or waits."""
        return {name: value for name, value in self.headers.items() if not name.startswith(_OF_THE_BROKER)}
