"""Fixtures of queues."""

from __future__ import annotations

import pytest


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of four entries, and a slice of a sweep for each."""
    monkeypatch.setattr("understudy.broker.core.queues.entry_index.PAGE_BITS", 2)
    monkeypatch.setattr("understudy.broker.core.queues.queue.PAGE_BITS", 2)
    monkeypatch.setattr("understudy.broker.core.queues.paging.SLICE", 1)
