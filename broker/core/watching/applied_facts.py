"""AppliedFacts: tells what a resting log has applied, which its journal does not say.

A journal states the stable position with the next batch. After the last batch before a quiet hour there is no next batch, so
a reader of the journal would learn an hour later that the batch was applied. This broker knows at once. When its log has rested
for `REST_MS`, the position that it has applied is a fact, and so is each transaction of which the journal does not say it yet.

The journal's own events come later all the same, with the next batch: ``applied`` is an advance word of ``apply``.

A busy log pays an append to a bounded deque for each transaction, and nothing for a message. Telling every advance of the
position was refused: that is a fact a turn, and all of it stands in the journal.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from understudy.broker.core.state import BrokerState
from understudy.broker.core.watching.facts import Facts
from understudy.broker.transactions.outcome_query import tx_id_text
from understudy.broker.transactions.tx_buffer import TxBuffer, TxState

REST_MS: Final = 200
"""A log that has not changed for so long rests."""
RECENT: Final = 1_000
"""So many transactions at most are told one by one. Of more, the position alone says that they are applied."""


class _Applied(NamedTuple):
    """A transaction that was applied."""

    decided_at: int
    tx_id: int
    csn: int
    prepare_offset: int


class AppliedFacts:
    """Of one core.

    Args:
        state: of that core; what it has applied so far, its recovery has read from the journal.
        facts: where it is told.
    """

    def __init__(self, state: BrokerState, facts: Facts) -> None:
        self._log = state.log
        self._facts = facts
        self._recent: deque[_Applied] = deque(maxlen=RECENT)
        self._seen = (0, 0, 0)
        self._since_ms = 0
        self._told = True
        state.applying.on_applied_tx.append(self._applied)

    def _applied(self, tx: TxBuffer) -> None:
        if tx.state is TxState.COMMITTED and tx.prepare is not None:
            self._recent.append(_Applied(tx.outcome_offset, tx.tx_id, tx.prepare.csn, tx.prepare_offset))

    def look(self, now_ms: int) -> None:
        """Call at each tick: tells once for each rest."""
        log = self._log
        seen = (log.end, log.stable, log.applied)
        if seen != self._seen:
            self._seen, self._since_ms, self._told = seen, now_ms, False
        elif not self._told and now_ms - self._since_ms >= REST_MS:
            self._told = True
            self._tell()

    def _tell(self) -> None:
        log, facts = self._log, self._facts
        stated = log.stated
        if log.applied > stated:
            for each in self._recent:
                if each.decided_at > stated:
                    facts.tell(
                        "applied",
                        upto=each.prepare_offset,
                        stable=log.stable,
                        tx=facts.tx_text(tx_id_text(each.tx_id)),
                        csn=each.csn,
                        decided_at=each.decided_at,
                    )
            facts.tell("applied", upto=log.applied, stable=log.stable)
        self._recent.clear()
