"""Letter: a message in a dead-letter queue, how letters are grouped, and what an operator makes of one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Final

import attrs

from understudy.client.stages.core import envelope as headers
from understudy.client.stages.core.envelope import DEAD_LETTERS, Delivery, Envelope

RECORDS: Final = "stages.dead-letters.records"
"""The queue in which each action of an operator leaves a record, in its own transaction."""
RECORD_ARGUMENTS: Final = {"x-max-length": 10_000}

FAULT_HEADERS: Final = (
    headers.STAGE,
    headers.APPLICATION,
    headers.VERSION,
    headers.REFUSED,
    headers.EXCEPTION,
    headers.EXCEPTION_TEXT,
    headers.STACK,
    headers.FAILURES,
    headers.FIRST_FAILED,
    headers.LAST_FAILED,
    headers.CUT,
    headers.SENT,
)
"""Headers that speak of the last failure: a message that is reissued loses them, and its age counts anew."""


@attrs.frozen(kw_only=True)
class Action:
    """An action of an operator, as the messages and the record tell it.

    Attributes:
        by: who does it, for example ``ann@host``.
        at_ms: when, in milliseconds since 1970.
        token: drawn by chance for this action; 8 hexadecimal digits.
    """

    by: str
    at_ms: int
    token: str


@attrs.frozen(kw_only=True)
class Letter:
    """One dead letter.

    Attributes:
        queue: the dead-letter queue in which it is.
        delivery: id, body and headers.
    """

    queue: str
    delivery: Delivery

    @property
    def exception(self) -> str:
        """The type of the exception. A broker that has moved a message writes a reason instead."""
        return self.delivery.text(headers.EXCEPTION) or self.delivery.text("x-first-death-reason") or "unknown"

    @property
    def stack(self) -> str:
        return self.delivery.text(headers.STACK)

    @property
    def group(self) -> str:
        """8 hexadecimal digits, equal for letters of one exception type and one stack."""
        return hashlib.blake2b(f"{self.exception}\n{self.stack}".encode(), digest_size=4).hexdigest()

    @property
    def text(self) -> str:
        return self.delivery.text(headers.EXCEPTION_TEXT)

    @property
    def rounds(self) -> int:
        """How often it was reissued before it died again."""
        return self.number(headers.ROUNDS)

    def number(self, header: str) -> int:
        """The value of a header; 0 if it is none, or no number above 0."""
        return self.delivery.number(header)

    def reissued(self, queue: str, action: Action, *, again: bool) -> Envelope:
        """The message for another round of attempts, with its id.

        Args:
            queue: of the stage.
            action: what the message then tells of its operator.
            again: an inbox that has taken the message takes it once more.
        """
        kept = {name: value for name, value in self.delivery.own_headers().items() if name not in FAULT_HEADERS}
        kept[headers.ROUNDS] = self.rounds + 1
        kept[headers.REISSUED_BY] = action.by
        kept[headers.REISSUED] = action.at_ms
        if again:
            kept[headers.AGAIN] = action.token
        return self._envelope(queue, self.delivery.body, kept)

    def purged(self) -> Envelope | None:
        """The message that takes a purged letter out of its line, so that what is parked behind it goes on; None without a line."""
        if not self.delivery.text(headers.KEY):
            return None
        kept = {name: value for name, value in self.delivery.own_headers().items() if name not in FAULT_HEADERS}
        queue = self.delivery.text(headers.STAGE) or stage_queue(self.queue)
        return self._envelope(queue, b"", kept | {headers.SKIP: True})

    def edited(self, action: Action, *, body: bytes | None, put: dict[str, Any], drop: Iterable[str]) -> Envelope:
        """The dead letter with another body, or other headers, under its id.

        Raises:
            ValueError: a header is of the library's record.
        """
        kept = self.delivery.own_headers()
        for name in (*put, *drop):
            if name in (headers.EDITED_BY, headers.EDITED, headers.EDITS, headers.ROUNDS):
                raise ValueError(f"header {name!r} records what was done; it cannot be edited")
        for name in drop:
            kept.pop(name, None)
        kept |= put
        kept[headers.EDITS] = self.number(headers.EDITS) + 1
        kept[headers.EDITED_BY] = action.by
        kept[headers.EDITED] = action.at_ms
        return self._envelope(self.queue, self.delivery.body if body is None else body, kept)

    def _envelope(self, queue: str, body: bytes, kept: dict[str, Any]) -> Envelope:
        to = kept.get(headers.TO)
        stage = to if isinstance(to, str) and to else self.delivery.text(headers.STAGE) or stage_queue(self.queue)
        return Envelope(id=self.delivery.id, queue=queue, stage=stage, body=body, headers=kept)


@attrs.define(kw_only=True)
class Group:
    """Letters of one exception type and one stack.

    Attributes:
        sample: the newest of them.
        first_ms, last_ms: of their failures, in milliseconds since 1970; 0 if unknown.
    """

    name: str
    sample: Letter
    count: int = 0
    first_ms: int = 0
    last_ms: int = 0
    most_rounds: int = 0

    def add(self, letter: Letter) -> None:
        self.count += 1
        first_ms, last_ms = letter.number(headers.FIRST_FAILED), letter.number(headers.LAST_FAILED)
        if first_ms and (not self.first_ms or first_ms < self.first_ms):
            self.first_ms = first_ms
        if last_ms >= self.last_ms:
            self.last_ms, self.sample = last_ms, letter
        self.most_rounds = max(self.most_rounds, letter.rounds)


@attrs.frozen(kw_only=True)
class Wanted:
    """Which letters of a queue are meant.

    Attributes:
        ids: of messages.
        groups: as `Letter.group` names them.
        everything: all letters.
    """

    ids: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    everything: bool = False

    def has(self, letter: Letter) -> bool:
        return self.everything or letter.delivery.id in self.ids or letter.group in self.groups


def grouped(letters: Iterable[Letter]) -> list[Group]:
    """Groups of letters, the largest first."""
    found: dict[str, Group] = {}
    for letter in letters:
        name = letter.group
        if name not in found:
            found[name] = Group(name=name, sample=letter)
        found[name].add(letter)
    return sorted(found.values(), key=lambda group: -group.count)


def stage_queue(dead_letter_queue: str) -> str:
    """The queue whose dead letters are there; "" if the name does not tell."""
    return dead_letter_queue.removesuffix(DEAD_LETTERS) if dead_letter_queue.endswith(DEAD_LETTERS) else ""
