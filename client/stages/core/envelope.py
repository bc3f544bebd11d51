"""Envelope and Delivery: a message on its way out, and one that has come; the names of their headers."""

from __future__ import annotations

from typing import Any, Final

import attrs

TO: Final = "x-stages-to"
"""The name of the stage that the message is for."""
FLOW: Final = "x-stages-flow"
FLOW_ID: Final = "x-stages-flow-id"
TRACE_ID: Final = "x-stages-trace-id"
REPLY_TO: Final = "x-stages-reply-to"
"""The queue of the program that awaits a reply of the flow."""
FAILURES: Final = "x-stages-failures"
"""How many attempts have failed so far."""
FIRST_FAILED: Final = "x-stages-first-failed-ms"
"""When the first attempt failed, in milliseconds since 1970."""

SENT: Final = "x-stages-sent-ms"
"""When the message was sent, or was to be due if it was sent to come later, in milliseconds since 1970; kept through retries."""

# Of dead letters alone.
STAGE: Final = "x-stages-stage"
APPLICATION: Final = "x-stages-application"
VERSION: Final = "x-stages-version"
"""Of the application that has failed."""
REFUSED: Final = "x-stages-refused"
EXCEPTION: Final = "x-stages-exception"
EXCEPTION_TEXT: Final = "x-stages-exception-text"
STACK: Final = "x-stages-stack"
LAST_FAILED: Final = "x-stages-last-failed-ms"
CUT: Final = "x-stages-cut"
"""Names of headers that were left out because the message had no room for them."""

# Of stages with a key (ordering.py).
KEY: Final = "x-stages-key"
"""The key of a message that has failed."""
SKIP: Final = "x-stages-skip"
"""True: the message takes a purged dead letter out of its line."""

# What an operator did; kept for good.
ROUNDS: Final = "x-stages-rounds"
"""How often the message was reissued from a dead-letter queue."""
REISSUED: Final = "x-stages-reissued-ms"
REISSUED_BY: Final = "x-stages-reissued-by"
AGAIN: Final = "x-stages-again"
"""A token: an inbox takes the message once more for each of them."""
EDITS: Final = "x-stages-edits"
EDITED: Final = "x-stages-edited-ms"
EDITED_BY: Final = "x-stages-edited-by"

REPLIES: Final = "stages.reply."
"""Queues of replies begin so. Each belongs to one connection, so a reply that finds none is dropped."""
DEAD_LETTERS: Final = ".dead"
"""A stage's dead-letter queue is called as its queue, with this behind it."""

TRANSACTION: Final = "x-understudy-tx"
"""Names the transaction of the broker in which the message was sent."""

BROKER_FAILURES: Final = "x-delivery-count"
"""How often the consumer of the message ended before it was acknowledged, as the broker counts."""

DELAY: Final = "x-delay"
"""Milliseconds for which the broker withholds the message; negative when that time is over."""

_NOT_KEPT: Final = frozenset({BROKER_FAILURES, "x-acquired-count", "x-death", DELAY, TRANSACTION})
_NOT_KEPT_BEGINNINGS: Final = ("x-first-death-", "x-last-death-")


OURS: Final = "x-stages-"
MOST_HEADERS: Final = 100_000
"""Octets of the headers of a dead letter: a frame has 131,072, and all headers must be in one."""
LONGEST_CUT: Final = 2_000
LONGEST_OURS: Final = 4_000
"""Octets: a longer header of the library's name is of another program."""


LARGEST_NUMBER: Final = 1 << 62
"""A number that is counted on can still be written: a header takes less than ``1 << 63``."""
LONGEST_CLAIM: Final = 400
"""Octets: an index of a database takes no row of any size."""
LONGEST_QUEUE: Final = 255
"""Octets of a queue's name."""


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

    @property
    def is_reply(self) -> bool:
        """For a program that may be gone: no queue is made for it."""
        return self.queue.startswith(REPLIES)


@attrs.frozen(kw_only=True)
class Delivery:
    """One message that has come from the queue of a stage.

    Attributes:
        id: the property ``message_id``, or one that the edge has drawn by chance.
        anonymous: the message had no id.
        stage: the header ``x-stages-to``; "" if there is none.
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
        return self.number(FAILURES)

    @property
    def lost(self) -> int:
        """How often a worker, or its connection, ended with this message in hand; 0 if the broker does not count."""
        return self.number(BROKER_FAILURES)

    @property
    def claim(self) -> str:
        """The id under which an inbox takes the message."""
        token = self.text(AGAIN)
        return f"{self.id}+{token}" if token else self.id

    @property
    def claimable(self) -> bool:
        """True if an inbox can take the message, and knows it when it comes again."""
        return not self.anonymous and fits(self.claim, LONGEST_CLAIM)

    @property
    def reply_to(self) -> str:
        """The queue of the program that awaits a reply; "" if there is none, or the header names no such queue."""
        found = self.text(REPLY_TO)
        return found if found.startswith(REPLIES) and fits(found, LONGEST_QUEUE) else ""

    def text(self, header: str) -> str:
        """The value of a header; "" if there is none, or it is no text."""
        value = self.headers.get(header)
        return value if isinstance(value, str) else ""

    def number(self, header: str) -> int:
        """The value of a header, at most `LARGEST_NUMBER`; 0 if there is none, or it is no number above 0."""
        value = self.headers.get(header, 0)
        return min(value, LARGEST_NUMBER) if isinstance(value, int) and value > 0 else 0

    def own_headers(self) -> dict[str, Any]:
        """All headers but those of one transaction, and those that a broker writes when a message dies or waits."""
        return {
            name: value
            for name, value in self.headers.items()
            if name not in _NOT_KEPT and not name.startswith(_NOT_KEPT_BEGINNINGS)
        }


def fits(text: str, most: int) -> bool:
    """True if a text has at most so many octets, and no NUL, which PostgreSQL refuses."""
    return "\0" not in text and len(text.encode("utf-8", "replace")) <= most


def size_of(value: Any) -> int:
    """About how many octets a header's value has on the wire; never much less than it has."""
    if isinstance(value, dict):
        return 5 + sum(len(name.encode()) + 1 + size_of(each) for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return 5 + sum(map(size_of, value))
    if isinstance(value, str):
        return 5 + len(value.encode("utf-8", "replace"))
    return 5 + len(value) if isinstance(value, (bytes, bytearray)) else 16


def cut_to_fit(headers: dict[str, Any], most: int = MOST_HEADERS) -> dict[str, Any]:
    """The headers that fit into one frame: the largest are left out, and `CUT` names them. Ours are not large."""
    if size_of(headers) <= most:
        return headers
    kept, cut = dict(headers), []
    for name in sorted(headers, key=lambda each: -size_of(headers[each])):
        if not name.startswith(OURS) or size_of(headers[name]) > LONGEST_OURS:
            del kept[name]
            cut.append(name)
            kept[CUT] = ", ".join(cut)[:LONGEST_CUT]
            if size_of(kept) <= most:
                break
    return kept
