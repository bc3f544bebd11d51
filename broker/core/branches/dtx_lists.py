"""InDoubtLists: the pages of `dtx.recover`, each of which says which branches are in doubt from a given one on.

A manager asks page by page, and names the last branch of the page before. The first page sorts all branches. What is behind it is
kept for the next question, so that the pages of n branches cost n log n together. A row is looked up again when it is handed out: a
branch that was decided meanwhile is left out. A branch that was prepared meanwhile stands on no later page.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

import attrs

from understudy.broker.core.state import BrokerState
from understudy.broker.transactions.xid import Xid

MAX_KEPT: Final = 8
"""Lists that managers are in the midst of. The oldest one is dropped first: its next page sorts again."""
_PREPARED: Final = 0
_COMMITTED: Final = 1
_ROLLED_BACK: Final = 2


@attrs.frozen
class _Row:
    """A branch as it was when the list began.

    Attributes:
        encoded: its xid, by which rows are ordered.
        tx_id: of its transaction; None if an operator had completed it.
    """

    encoded: bytes
    xid: Xid
    tx_id: int | None


@attrs.frozen
class _Rest:
    """The rows that a manager has not asked for yet: from `start` on."""

    rows: list[_Row]
    start: int


class InDoubtLists:
    """The lists of one broker that leads."""

    def __init__(self) -> None:
        self._rests: dict[tuple[str, bytes], _Rest] = {}

    def page(self, state: BrokerState, vhost: str, after: bytes, limit_bytes: int) -> tuple[bool, bytes]:
        """One page, as docs/dtx.md packs it.

        Args:
            state: of the broker.
            vhost: whose branches.
            after: the last branch of the page before, without its state; empty for the first page.
            limit_bytes: of the page; a page has one branch at least.

        Returns:
            Whether there are more, and the packed rows.
        """
        rest = self._rests.pop((vhost, after), None) if after else None
        if rest is None:
            rest = _sorted(state, vhost, after)
        packed = bytearray()
        last = after
        for at, row in enumerate(islice(rest.rows, rest.start, None), rest.start):
            how = _state_of(state, vhost, row)
            if how is None:
                continue
            if packed and len(packed) + 1 + len(row.encoded) > limit_bytes:
                self._keep((vhost, last), _Rest(rest.rows, at))
                return True, bytes(packed)
            packed += bytes((how,)) + row.encoded
            last = row.encoded
        return False, bytes(packed)

    def _keep(self, key: tuple[str, bytes], rest: _Rest) -> None:
        self._rests[key] = rest
        if len(self._rests) > MAX_KEPT:
            del self._rests[next(iter(self._rests))]


def prepared_in(packed: bytes) -> int:
    """How many branches of a page are prepared, and not completed by an operator."""
    at = found = 0
    while at < len(packed):
        found += packed[at] == _PREPARED
        _, at = Xid.decode(packed, at + 1)
    return found


def _sorted(state: BrokerState, vhost: str, after: bytes) -> _Rest:
    tx_ids: dict[Xid, int | None] = {xid: None for where, xid in state.applying.completions if where == vhost}
    for tx in state.prepared_branches():
        if tx.branch is not None and tx.branch.vhost == vhost:
            tx_ids[tx.branch.xid] = tx.tx_id
    rows = [_Row(xid.encode(), xid, tx_id) for xid, tx_id in tx_ids.items()]
    return _Rest(sorted((row for row in rows if row.encoded > after), key=lambda row: row.encoded), 0)


def _state_of(state: BrokerState, vhost: str, row: _Row) -> int | None:
    """How the branch is in doubt now; None if it is not."""
    completion = state.applying.completions.get((vhost, row.xid))
    if completion is not None:
        return _COMMITTED if completion.committed else _ROLLED_BACK
    return _PREPARED if row.tx_id in state.transactions else None
