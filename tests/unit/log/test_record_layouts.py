"""Lists of ids of any length leave nothing behind."""

from __future__ import annotations

import tracemalloc

from understudy.broker.log import record


def test_acknowledgements_of_any_number_are_not_remembered() -> None:
    known = len(record._LAYOUTS)
    for count in (0, 1, 7, 1_000, 65_537):
        ids = tuple(range(count))
        raw = record.encode_dequeue(record.ACKNOWLEDGED, [(1, ids)])
        assert record.decode_dequeue(raw, 5) == (record.ACKNOWLEDGED, [(1, ids)])
    assert len(record._LAYOUTS) == known
    tracemalloc.start()
    record.encode_dequeue(record.ACKNOWLEDGED, [(1, tuple(range(100_000)))])
    left, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert left < 100_000
