"""TxBuffer: each event moves a transaction as its table says, or is an error that changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from understudy.broker.log.record import Prepare
from understudy.broker.state_table import IllegalMoveError
from understudy.broker.transactions.dtx_branch import DtxBranch
from understudy.broker.transactions.tx_buffer import LIFE, TxBuffer, TxEvent, TxState
from understudy.broker.transactions.xid import Xid

TX: Final = 45
BRANCH_AT, PREPARE_AT, OUTCOME_AT = 5, 7, 9
HEAD: Final = b"head"
PREPARE: Final = Prepare(TX, 1, "name", 0, {}, 1, 0, 1, 0)
BRANCH: Final = DtxBranch(
    vhost="/",
    xid=Xid(1, b"g", b"b"),
    offset=BRANCH_AT,
    time_ms=0,
    events=1,
    digest=0,
    durable_events=1,
    durable_digest=0,
)
EVENTS: Final[dict[TxEvent, Callable[[TxBuffer], Any]]] = {
    TxEvent.DTX_PREPARE: lambda tx: tx.prepared(BRANCH),
    TxEvent.PREPARE: lambda tx: tx.closed(PREPARE, PREPARE_AT),
    TxEvent.COMMIT: lambda tx: tx.commits_at(OUTCOME_AT),
    TxEvent.ROLLBACK: lambda tx: tx.rolls_back_at(OUTCOME_AT, "refused"),
    TxEvent.APPLIED: lambda tx: tx.applied(),
    TxEvent.FORGOTTEN: lambda tx: tx.forgotten("rolled back by the client"),
}
WAYS: Final[dict[TxState, list[list[TxEvent]]]] = {
    TxState.OPEN: [[]],
    TxState.PREPARED: [[TxEvent.DTX_PREPARE]],
    TxState.CLOSED: [[TxEvent.PREPARE], [TxEvent.DTX_PREPARE, TxEvent.PREPARE]],
    TxState.COMMITTING: [[TxEvent.PREPARE, TxEvent.COMMIT], [TxEvent.DTX_PREPARE, TxEvent.PREPARE, TxEvent.COMMIT]],
    TxState.ROLLING_BACK: [
        [TxEvent.ROLLBACK],
        [TxEvent.DTX_PREPARE, TxEvent.ROLLBACK],
        [TxEvent.PREPARE, TxEvent.ROLLBACK],
    ],
    TxState.COMMITTED: [[TxEvent.PREPARE, TxEvent.COMMIT, TxEvent.APPLIED]],
    TxState.ROLLED_BACK: [[TxEvent.ROLLBACK, TxEvent.APPLIED], [TxEvent.FORGOTTEN]],
}


def transaction(way: list[TxEvent]) -> TxBuffer:
    tx = TxBuffer(TX, may_be_cut=True)
    tx.add(1, None, [(4, (7, 8))], HEAD, False)
    for event in way:
        EVENTS[event](tx)
    return tx


def fields(tx: TxBuffer) -> dict[str, Any]:
    return {name: getattr(tx, name) for name in TxBuffer.__slots__}


@pytest.mark.parametrize("state", TxState, ids=lambda state: state.name)
def test_each_event_moves_a_transaction_as_the_table_says_or_changes_nothing(state: TxState) -> None:
    for way in WAYS[state]:
        for event, happens in EVENTS.items():
            tx = transaction(way)
            assert tx.state is state
            then = LIFE.moves.get((state, event))
            if then is not None:
                happens(tx)
                assert tx.state is then
                continue
            before = fields(tx)
            with pytest.raises(IllegalMoveError, match=f"transaction 45 is {state.value}: '{event.value}'"):
                happens(tx)
            assert fields(tx) == before


@pytest.mark.parametrize("state", TxState, ids=lambda state: state.name)
def test_a_cut_takes_a_transaction_back_to_what_its_log_still_says(state: TxState) -> None:
    """Cut at each offset: the state is that of the records which are left, and nothing applied is cut."""
    for way in WAYS[state]:
        offsets = {TxEvent.DTX_PREPARE: BRANCH_AT, TxEvent.PREPARE: PREPARE_AT}
        for offset in range(1, OUTCOME_AT + 1):
            tx = transaction(way)
            left = [event for event in way if offsets.get(event, OUTCOME_AT) <= offset]
            if left == way:
                before = fields(tx)
                tx.cut(offset)
                assert fields(tx) == before
            elif TxEvent.APPLIED in way:
                before = fields(tx)
                with pytest.raises(IllegalMoveError):
                    tx.cut(offset)
                assert fields(tx) == before
            elif TxEvent.FORGOTTEN not in way:
                tx.cut(offset)
                expected = transaction(left)
                assert (tx.state, tx.closing, tx.closing_offset, tx.outcome_offset) == (
                    expected.state,
                    expected.closing,
                    expected.closing_offset,
                    expected.outcome_offset,
                )


def test_what_a_transaction_says_of_its_outcome_follows_from_its_state() -> None:
    for state in TxState:
        tx = transaction(WAYS[state][0])
        assert tx.commits is (state in (TxState.COMMITTING, TxState.COMMITTED))
        assert tx.rolls_back is (state in (TxState.ROLLING_BACK, TxState.ROLLED_BACK))
        assert tx.closed_undecided is (state in (TxState.PREPARED, TxState.CLOSED))
        assert tx.in_doubt is (state is TxState.PREPARED)


def test_whoever_is_told_the_decision_is_let_go_of() -> None:
    told: list[TxBuffer] = []
    tx = transaction([])
    tx.asks_commit(told.append)
    tx.observed_by(object())
    decided = tx.release_listeners()
    assert decided is not None
    decided(tx)
    assert told == [tx]
    assert (tx.decided, tx.observer, tx.release_listeners()) == (None, None, None)
