"""StoredGroup: does the coordination store still hold the group that this broker knows?

A store may answer and yet have lost the group: an operator has deleted the node or the rows, or has put back an older copy.
Such a store is a lost store. What a broker is *shown* may merely be late, so it decides nothing: a read is asked for, and the
answer to that read does. A read that is asked for after a state was known never shows an older state than that, unless the
store has lost it.

Invariant of a store that has lost nothing: `(epoch, version)` of one founding never goes down.
"""

from __future__ import annotations

from collections.abc import Callable

from understudy.ha.retry_delay import RetryDelay
from understudy.ha.store.coordination import Answer, Coordination, GroupState


def is_behind(known: GroupState | None, shown: GroupState | None) -> bool:
    """True if ``shown`` is no group at all, or an older state of the group that is ``known``. Another founding is not older."""
    if known is None:
        return False
    if shown is None:
        return True
    return shown.founding == known.founding and (shown.epoch, shown.version) < (known.epoch, known.version)


class StoredGroup:
    """Of one broker, from when it knows its group on.

    Args:
        place: where the group stands in the store, for people.

    Attributes:
        missing: what the store shows instead of the group; "" while it holds it.
        shown: the older state that it shows, None for no group; of use while ``missing``.
    """

    def __init__(self, coordination: Coordination, next_request: Callable[[], int], place: str) -> None:
        self._coordination = coordination
        self._next_request = next_request
        self._place = place
        self._request = 0
        self._known: GroupState | None = None
        self._again = False
        self._retry = RetryDelay()
        self.missing = ""
        self.shown: GroupState | None = None

    def noticed(self, known: GroupState | None, shown: GroupState | None, now_ms: int) -> bool:
        """Take what the store shows, in a view or in an answer; True if it is behind. If that is new, a read is asked for."""
        behind = is_behind(known, shown)
        is_new = shown != self.shown if self.missing else behind
        if is_new and self._request:
            self._again = True  # the read that is under way may have been carried out before that
        elif is_new:
            self.ask(known, now_ms)
        return behind

    def ask(self, known: GroupState | None, now_ms: int) -> None:
        """Read again, as soon as it can be done: something has been written, or refused."""
        self._retry.begin(now_ms)
        self._read(known)

    def _read(self, known: GroupState | None) -> None:
        self._known = known
        self._again = False
        self._request = self._next_request()
        self._coordination.read(self._request)

    def asked(self, request: int) -> bool:
        """True if ``request`` is the newest read, and its answer is awaited."""
        return bool(self._request) and request == self._request

    def answered(self, answer: Answer, group: GroupState | None) -> bool:
        """Take the answer to the newest read; True if it says whether the group is ``missing``."""
        if answer is Answer.LOST:
            self._retry.answer_lost()
            return False  # asked again when the time has come
        self._request = 0
        if self._again:
            self._read(self._known)
            return False
        self.shown = group
        self.missing = self._what_is_missing(group) if is_behind(self._known, group) else ""
        return True

    def _what_is_missing(self, shown: GroupState | None) -> str:
        if shown is None:
            return f"the coordination store has lost the group: {self._place} is not there"
        known = self._known
        assert known is not None
        return (
            f"the coordination store has lost the group's newest state: {self._place} holds epoch {shown.epoch}, version "
            f"{shown.version}, and epoch {known.epoch}, version {known.version} has begun"
        )

    def tick(self, known: GroupState | None, now_ms: int, retry_ms: int) -> None:
        """Ask again for an answer that has not come, and from time to time while the group is ``missing``."""
        if (self._request or self.missing) and self._retry.is_over(now_ms, retry_ms):
            self._retry.asked_again(now_ms)
            self._read(known)
