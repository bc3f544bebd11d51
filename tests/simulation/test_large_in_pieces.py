"""Large messages go in pieces: here every message is large, so that histories with all faults go that way."""

from __future__ import annotations

import pytest

from tests.simulator.seed_run import run_seed
from understudy.broker.core.clients import connection, consuming, publishing
from understudy.broker.core.commits import recorder
from understudy.broker.core.state import raw_records, record_taking
from understudy.broker.core.turn import open_batch
from understudy.broker.log import record
from understudy.broker.octets import chunks

SEEDS = range(3_000, 3_010)
LARGE_BYTES = 12


@pytest.fixture(autouse=True)
def _every_message_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (open_batch, connection, consuming, publishing, raw_records, record_taking, recorder, chunks):
        monkeypatch.setattr(module, "LARGE_BYTES", LARGE_BYTES)
    monkeypatch.setattr(connection, "MANY_READS_BYTES", 1)
    monkeypatch.setattr(record, "HEAD_OF_LARGE_BYTES", 600)


def test_every_promise_holds() -> None:
    for seed in SEEDS:
        result = run_seed(seed)
        assert result.held, f"seed {seed}: {result.promise}: {result.text} {result.where}\n{result.traceback}"
