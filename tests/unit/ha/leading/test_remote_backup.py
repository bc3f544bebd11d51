"""RemoteBackup: what has to hold before completions wait for a joiner, and before it is written into the set."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Final

import pytest

from understudy.broker.core.state import BrokerState
from understudy.broker.log import record
from understudy.broker.log.position import ID_EPOCH_SHIFT
from understudy.broker.state_table import IllegalMoveError
from understudy.broker.transactions.tx_buffer import TxBuffer
from understudy.ha.leading.remote_backup import (
    JOINING,
    LISTED,
    OUTSIZE_BYTES_PER_MS,
    BackupEvent,
    BackupState,
    RemoteBackup,
)
from understudy.replicator.sending import log_sender
from understudy.replicator.sending.catch_up import CatchUp
from understudy.replicator.sending.log_sender import LogSender

TX = 1 << ID_EPOCH_SHIFT | 45
QUEUE = 1 << ID_EPOCH_SHIFT | 4
CREDIT_BYTES = 1 << 20
TO_BE_LISTED = ("a link", "no catch-up", "a guard", "the guard is passed", "no trackers", "room on its disk")
TO_BE_GUARDED = ("a link", "no catch-up", "everything is sent")


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


class SilentLink:
    """A link on which nothing is said."""

    peer = "b3"
    wire_version = newest_record_format = 1

    def send(self, message: bytes) -> None:
        """Into the void."""

    def close(self, reason: str) -> None:
        """Tell no one."""


def sent_all(backup: RemoteBackup) -> RemoteBackup:
    assert backup.sender is not None
    backup.sender.messages(False)
    return backup


def joiner(without: set[str], state: BrokerState | None = None) -> RemoteBackup:
    """A joiner of which everything holds but what is named."""
    state = primary_state() if state is None else state
    end = state.log.closed_end
    backup = RemoteBackup("b3", False, 0)
    if "a link" in without:
        return backup
    backup.linked(SilentLink(), 0)
    if "no catch-up" in without:
        backup.asked_for_ids()
        backup.catch_up_begins(CatchUp(state, {}), LogSender(state.log, 0, CREDIT_BYTES))
    else:
        backup.resumed(end, LogSender(state.log, 0, CREDIT_BYTES), None)
    if "everything is sent" not in without:
        sent_all(backup)
    if not without & {"a guard", "no catch-up"}:
        backup.guard_from(end)
    backup.acknowledged(end - 1 if "the guard is passed" in without else end, 1)
    if "no trackers" in without:
        backup.trackers.track(closed_transaction(), {})
    if "room on its disk" in without:
        backup.reports_disk("disk space in /data is below the reserve")
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
    # The log is applied up to nothing: the transaction has nothing to be sent, which is what `lacks` has to find out.
    assert CatchUp(state, {}).lacks(TX) is False
    state.log.applied = state.log.closed_end
    backup = RemoteBackup("b3", False, 0)
    backup.linked(SilentLink(), 0)
    backup.asked_for_ids()
    catch_up = CatchUp(state, {})
    backup.catch_up_begins(catch_up, LogSender(state.log, 0, CREDIT_BYTES))
    assert backup.tx_closes(tx)
    backup.acknowledged(state.log.closed_end, 1)
    sent = len(catch_up.opening())
    while catch_up.next_message() is not None:
        sent += 1
    assert sent == 3, "base, transaction, caught up"
    for count, trackers, finished in ((0, 2, False), (1, 2, False), (2, 0, False), (3, 0, True)):
        backup.pieces_acknowledged(count, 1)
        assert sum(tracker.left for tracker in backup.trackers.blockers()) == trackers
        assert sent_all(backup).may_be_guarded() is finished
    backup.guard_from(state.log.closed_end)
    assert backup.may_be_listed()


def test_a_refill_keeps_nobody_out_but_its_trackers_do() -> None:
    state = primary_state()
    backup = RemoteBackup("b3", False, 0)
    backup.linked(SilentLink(), 0)
    refill = CatchUp(state, {}, refill_after=3)
    backup.resumed(3, LogSender(state.log, 3, CREDIT_BYTES), refill)
    assert not refill.finished
    assert backup.may_be_guarded()
    backup.guard_from(3)
    backup.acknowledged(3, 1)
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
    """The batch is acknowledged as a whole, and a backup that was still receiving it was expelled for silence."""
    monkeypatch.setattr(log_sender, "OUTSIZE_BYTES", 200_000)
    state = primary_state()
    backup = RemoteBackup("b2", True, 0)
    assert backup.allowance_ms == 0
    end = state.log.closed_end
    backup.linked(SilentLink(), 0)
    backup.resumed(end, LogSender(state.log, end, CREDIT_BYTES), None)
    for size in (1_000, OUTSIZE_BYTES_PER_MS * 20, 150_000):
        state.log.append(b"\x11" + bytes(size))
        state.log.close_batch()
    sent_all(backup)
    assert backup.allowance_ms == 20
    backup.acknowledged(state.log.closed_end - 1, 1)
    assert backup.allowance_ms == 0


def catch_up_of_nothing() -> tuple[CatchUp, LogSender]:
    state = primary_state()
    return CatchUp(state, {}), LogSender(state.log, 0, CREDIT_BYTES)


def holds_all_pieces(backup: RemoteBackup) -> None:
    if backup.state is not BackupState.CATCHING_UP or backup.catch_up is None:
        backup._move(BackupEvent.CAUGHT_UP)  # no message of a peer brings it to that
        return
    sent = len(backup.catch_up.opening())
    while backup.catch_up.next_message() is not None:
        sent += 1
    backup.pieces_acknowledged(sent, 1)


EVENTS: Final[dict[BackupEvent, Callable[[RemoteBackup], object]]] = {
    BackupEvent.LINK: lambda backup: backup.linked(SilentLink(), 1),
    BackupEvent.RESUME: lambda backup: backup.resumed(3, LogSender(primary_state().log, 3, CREDIT_BYTES), None),
    BackupEvent.COMPARE: lambda backup: backup.asked_for_ids(),
    BackupEvent.CATCH_UP: lambda backup: backup.catch_up_begins(*catch_up_of_nothing()),
    BackupEvent.CAUGHT_UP: holds_all_pieces,
    BackupEvent.GUARD: lambda backup: backup.guard_from(3),
    BackupEvent.LIST: lambda backup: backup.enters_set(1),
    BackupEvent.EXPEL: lambda backup: backup.expelled("it was silent", 1),
    BackupEvent.UNLINK: lambda backup: backup.unlinked(1),
}
WAYS: Final = {
    BackupState.ABSENT: [],
    BackupState.SYNCING: [BackupEvent.LINK],
    BackupState.COMPARING: [BackupEvent.LINK, BackupEvent.COMPARE],
    BackupState.CATCHING_UP: [BackupEvent.LINK, BackupEvent.COMPARE, BackupEvent.CATCH_UP],
    BackupState.FOLLOWING: [BackupEvent.LINK, BackupEvent.COMPARE, BackupEvent.CATCH_UP, BackupEvent.CAUGHT_UP],
    BackupState.GUARDED: [BackupEvent.LINK, BackupEvent.RESUME, BackupEvent.GUARD],
    BackupState.UNSETTLED: [BackupEvent.LINK, BackupEvent.RESUME, BackupEvent.GUARD, BackupEvent.UNLINK],
    BackupState.AWAITED: [],
    BackupState.RETURNING: [BackupEvent.LINK],
    BackupState.IN_SYNC: [BackupEvent.LINK, BackupEvent.RESUME],
}
WITHOUT_LINK: Final = {BackupState.ABSENT, BackupState.UNSETTLED, BackupState.AWAITED}
SENT_TO: Final = {BackupState.CATCHING_UP, BackupState.FOLLOWING, BackupState.GUARDED, BackupState.IN_SYNC}


@pytest.mark.parametrize("state", BackupState, ids=lambda state: state.name)
def test_each_event_moves_a_backup_as_the_table_says_or_changes_nothing(state: BackupState) -> None:
    for event, happens in EVENTS.items():
        backup = RemoteBackup("b3", state in LISTED, 0)
        for before in WAYS[state]:
            EVENTS[before](backup)
        assert backup.state is state
        then = JOINING.moves.get((state, event))
        if then is not None:
            happens(backup)
            assert (backup.state, backup.listed) == (then, then in LISTED)
            assert (backup.guard is not None) is (then in (BackupState.GUARDED, BackupState.UNSETTLED))
            assert (backup.link is None) is (then in WITHOUT_LINK)
            assert (backup.sender is not None) is (then in SENT_TO)
            continue
        fields = vars(backup).copy()
        with pytest.raises(IllegalMoveError, match=f"b3 is {state.value}: '{event.value}'"):
            happens(backup)
        assert vars(backup) == fields
