"""Violation: one contradiction between clients' logs and brokers, or between brokers."""

from __future__ import annotations

from enum import StrEnum

import attrs


class Kind(StrEnum):
    """The rule that is broken. The value is the word of reports and of the audit."""

    LOST = "lost"
    DOUBLED = "doubled"
    PARTIAL = "partial"
    CONTRADICTED = "contradicted"
    UNRESOLVED = "unresolved"
    FOREIGN = "foreign"
    ALTERED = "altered"
    UNBALANCED = "unbalanced"
    UNCOMMITTED = "uncommitted"
    REFUSED = "refused"
    UNORDERED = "unordered"
    STALE = "stale"
    EARLY = "early"
    DIFFERING = "differing"
    MISCOUNTED = "miscounted"


@attrs.frozen(kw_only=True)
class Violation:
    """The finding of one verdict.

    Attributes:
        kind: the rule that is broken.
        promise: G1 to G9 of docs/verdicts.md, "counts", or "delays".
        text: all of it as a sentence.
        transaction, message, queue, broker: what it is about; "" where that says nothing.
        expected, found: in a few words each.
    """

    kind: Kind
    promise: str
    text: str
    transaction: str = ""
    message: str = ""
    queue: str = ""
    broker: str = ""
    expected: str = ""
    found: str = ""

    @property
    def subject(self) -> str:
        """The name that reports count: the message, else the transaction, else the queue."""
        return self.message or self.transaction or self.queue
