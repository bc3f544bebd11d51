"""RemoteBackup: what has to hold before completions wait for a joiner, and before it is written into the set."""

from __future__ import annotations

from itertools import product

import pytest

from understudy.broker.core.state import BrokerState
from understudy.broker.log import record
from understudy.broker.log.position import ID_EPOCH_SHIFT
from understudy.broker.transactions.tx_buffer import TxBuffer
from understudy.ha.leading.queue_guard import QueueGuard
from understudy.ha.leading.remote_backup import OUTSIZE_BYTES_PER_MS, RemoteBackup
from understudy.replicator import log_sender
from understudy.replicator.catch_up import CatchUp
from understudy.replicator.log_sender import LogSender

TX = 1 << ID_EPOCH_SHIFT | 45
QUEUE = 1 << ID_EPOCH_SHIFT | 4
CREDIT_BYTES = 1 << 20
TO_BE_LISTED = ("a guard", "a sender", "no catch-up", "the guard is passed", "no trackers", "room on its disk")
TO_BE_GUARDED = ("a sender", "no catch-up", "everything is sent")


def primary_state() -> BrokerState:
    """A log of three records, one in each batch."""
    state = BrokerState()
    state.log.begin_epoch(1)
    for _ in range(3):
        state.log.append(record.BARRIER_RECORD)
        state.log.close_batch()
    return state


def closed_transaction() -> TxBuffer:
    tx = TxBuffer(TX)
    tx.add(1, None, [(QUEUE, (7, 8))], b"", False)
    return tx


def joiner(without: set[str]) -> RemoteBackup:
    """A joiner of which everything holds but what is named."""
    state = primary_state()
    end = state.log.closed_end
    backup = RemoteBackup("b3", False, 0)
    if "a sender" not in without:
        backup.sender = LogSender(state.log, 0, CREDIT_BYTES)
        if "everything is sent" not in without:
            backup.sender.messages(False)
            assert backup.sender.sent == end
    if "no catch-up" in without:
        backup.catch_up = CatchUp(state, {})
        backup.catch_up.opening()
    if "a guard" not in without:
        backup.guard = QueueGuard(end)
    backup.acknowledged(end - 1 if "the guard is passed" in without else end, 1)
    if "no trackers" in without:
        backup.trackers.track(closed_transaction(), {})
    if "room on its disk" in without:
        backup.low_disk = "disk space in /data is below the reserve"
    return backup


def subsets(conditions: tuple[str, ...]) -> list[frozenset[str]]:
    return [
        frozenset(name for name, out in zip(conditions, row, strict=True) if out)
        for row in product((False, True), repeat=len(conditions))
    ]


@pytest.mark.parametrize("without", subsets(TO_BE_LISTED), ids=lambda names: ", ".join(sorted(names)) or "nothing")
def test_it_may_be_listed_only_if_nothing_is_missing(without: frozenset[str]) -> None:
    assert joiner(set(without)).may_be_listed() is (not without)


@pytest.mark.parametrize("without", subsets(TO_BE_GUARDED), ids=lambda names: ", ".join(sorted(names)) or "nothing")
def test_it_may_be_guarded_only_if_nothing_is_missing(without: frozenset[str]) -> None:
    assert joiner({*without, "a guard"}).may_be_guarded() is (not without)


def test_each_piece_that_it_acknowledges_counts() -> None:
    """A catch-up of a transaction that closes meanwhile: it may be listed when the last piece is acknowledged, not before."""
    state = primary_state()
    tx = state.transactions[TX] = closed_transaction()
    backup = joiner(set())
    backup.catch_up = catch_up = CatchUp(state, {})
    # The log is applied up to nothing: the transaction has nothing to be sent, which is what `lacks` has to find out.
    assert catch_up.lacks(TX) is False
    state.log.applied = state.log.closed_end
    backup.catch_up = catch_up = CatchUp(state, {})
    assert catch_up.lacks(TX)
    backup.trackers.track(tx, {})
    sent = len(catch_up.opening())
    while catch_up.next_message() is not None:
        sent += 1
    assert sent == 3, "base, transaction, caught up"
    for count, trackers, finished in ((0, 2, False), (1, 2, False), (2, 0, False), (3, 0, True)):
        backup.pieces_acknowledged(count, 1)
        assert sum(tracker.left for tracker in backup.trackers.blockers()) == trackers
        assert backup.may_be_listed() is finished


def test_a_refill_keeps_nobody_out_but_its_trackers_do() -> None:
    backup = joiner(set())
    backup.catch_up = CatchUp(primary_state(), {}, refill_after=3)
    assert backup.may_be_guarded()
    assert backup.may_be_listed()
    backup.trackers.track(closed_transaction(), {})
    assert not backup.may_be_listed()


def test_a_new_link_forgets_the_trackers_of_the_old_one() -> None:
    backup = joiner({"no trackers"})
    backup.unlinked(2)
    assert backup.trackers.all_clear
    assert not backup.may_be_guarded()
    assert not backup.may_be_listed()
    assert backup.acked == 0


def test_a_batch_of_outsize_has_the_time_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is acknowledged as a whole, and a backup that was still receiving it was expelled for silence."""
    monkeypatch.setattr(log_sender, "OUTSIZE_BYTES", 200_000)
    state = primary_state()
    backup = RemoteBackup("b2", True, 0)
    assert backup.allowance_ms == 0
    backup.sender = LogSender(state.log, state.log.closed_end, CREDIT_BYTES)
    for size in (1_000, OUTSIZE_BYTES_PER_MS * 20, 150_000):
        state.log.append(b"\x11" + bytes(size))
        state.log.close_batch()
    backup.sender.messages(False)
    assert backup.allowance_ms == 20
    backup.acknowledged(state.log.closed_end - 1, 1)
    assert backup.allowance_ms == 0
