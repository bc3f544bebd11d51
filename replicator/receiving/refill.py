"""Refill: what a backup lost with its restart, as its primary has it: declarations and message ids that this log lacks.

The journal kept no transient record, so this log has holes where such things were declared. A refill brings what the primary holds
now, and may overtake older EPOCHs that this broker has yet to apply. Those end what is older than themselves and nothing else
(`StateTopology.apply_outside`).
"""

from __future__ import annotations

from collections.abc import Iterable

from understudy.broker.core.state import BrokerState
from understudy.broker.core.state.raw_records import check_readable, plain
from understudy.broker.log.pending import Change, Pending


class Refill:
    """One per state; it applies the entries of `Change.MISSING` and `Change.MESSAGE_IDS`."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        state.log.applies(Change.MISSING, self._apply_missing)
        state.log.applies(Change.MESSAGE_IDS, self._apply_message_ids)

    def declare(self, topology: Iterable[bytes], epoch: int, upto: int, message_ids: bytes = b"") -> None:
        """Register what this broker lost, as the primary of ``epoch`` had it when it had applied up to ``upto``.

        All of it stands at that place: what this broker still has to apply up to there is done to older ones of these names, and
        this log has holes where the newer ones were declared. Queues are there at once for what comes to them, without a name.
        So do ``message_ids`` (`IdWindows.encode`).

        Raises:
            RecordError, struct.error, ValueError, IndexError: one of them cannot be read; nothing has been registered.
        """
        missing = list(map(plain, topology))
        for raw in missing:
            check_readable(raw)
        state = self._state
        log = state.log
        known = set(state.queues)
        place = min(upto, log.end)
        if place <= log.applied:
            for raw in missing:
                self._apply_missing((raw, epoch))
            if message_ids:
                self._apply_message_ids(message_ids)
        else:
            waiting: list[Pending] = [(place, Change.MISSING, (raw, epoch)) for raw in missing]
            if message_ids:
                waiting.append((place, Change.MESSAGE_IDS, message_ids))
            pending = log.pending
            before = [each for each in pending if each[0] <= place]
            behind = [each for each in pending if each[0] > place]
            pending.clear()
            pending.extend((*before, *waiting, *behind))
        # What the log brought for these queues meanwhile was passed over.
        state.topology.rebuild_registry(keep_places=True)
        state.topology.count_uncommitted(state.queues.keys() - known)

    def waits(self) -> bool:
        """True if a missing thing is not in its place yet: the image of what is applied is without it."""
        return any(change is Change.MISSING for _, change, _ in self._state.log.pending)

    def _apply_missing(self, argument: tuple[bytes, int]) -> None:
        self._state.topology.apply_outside(*argument)

    def _apply_message_ids(self, message_ids: bytes) -> None:
        """Note ids that this broker has forgotten with its restart, and the primary has not."""
        self._state.id_windows.merge(self._state.queues, message_ids)
