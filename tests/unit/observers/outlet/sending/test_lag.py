"""Transactions of a journal behind a position: counted while it is written, cut, and sent."""

from __future__ import annotations

import pytest

from tests.unit.observers.outlet.outlet_kit import JournalWriter
from understudy.observers.outlet.sending import lag as outlet_lag
from understudy.observers.outlet.sending.lag import OutletLag
from understudy.testing.disk import MemoryStorage


@pytest.fixture
def journal() -> JournalWriter:
    made = JournalWriter(MemoryStorage())
    made.declare()
    return made


def behind(lag: OutletLag) -> int:
    """Transactions, after all of the journal was read."""
    for _ in lag.read_on():
        pass
    return lag.now.transactions


def test_transactions_are_counted_when_they_are_closed_and_go_when_they_are_passed(journal: JournalWriter) -> None:
    lag = OutletLag(journal.storage, None, 0)
    prepares = [journal.transaction(number, number, b"x" * 100) for number in (1, 2, 3)]
    journal.in_tx(4, b"open")
    assert behind(lag) == 3
    before = lag.now.octets
    assert before > 300
    lag.passed(prepares[1])
    assert lag.now.transactions == 1
    assert 100 < lag.now.octets < before
    journal.prepare(4, 4)
    assert behind(lag) == 2
    lag.passed(journal.state.log.end)
    assert lag.now == (0, 0)
    assert behind(OutletLag(journal.storage, None, prepares[1])) == 2


def test_what_is_cut_is_owed_no_more(journal: JournalWriter) -> None:
    lag = OutletLag(journal.storage, None, 0)
    journal.transaction(1, 1, b"kept")
    end = journal.state.log.end
    journal.stable_at_most = end
    journal.in_tx(2, b"cut")
    journal.prepare(2, 2)
    assert behind(lag) == 2
    journal.cut(end)
    assert behind(lag) == 1


def test_a_long_lag_takes_few_entries(journal: JournalWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches share an entry, and each transaction is counted until the last batch of its entry is passed."""
    monkeypatch.setattr(outlet_lag, "EXACT", 4)
    lag = OutletLag(journal.storage, None, 0)
    prepares = [journal.transaction(number, number, b"x") for number in range(1, 9)]
    assert behind(lag) == 8
    assert len(lag._behind) == 4
    lag.passed(prepares[6])
    assert 1 <= lag.now.transactions <= 8
    lag.passed(journal.state.log.end)
    assert lag.now == (0, 0)
