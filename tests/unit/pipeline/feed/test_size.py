"""Sizes of files say about how many events there are, and how Spark is set up for them."""

from __future__ import annotations

from pathlib import Path

from understudy.pipeline.feed.size import BYTES, SMALL, estimated_events, is_small, partitions_for


def test_files_are_counted_by_their_sizes(tmp_path: Path) -> None:
    (tmp_path / "b1").mkdir()
    (tmp_path / "b1" / "1.jsonl").write_bytes(b" " * 1000 * BYTES[".jsonl"])
    (tmp_path / "2.parquet").write_bytes(b" " * 70_000 * BYTES[".parquet"])
    assert estimated_events([str(tmp_path / "b1")]) == 1000
    assert estimated_events([str(tmp_path)]) == 71_000
    assert estimated_events([str(tmp_path / "b1" / "1.jsonl"), "kafka:events"]) is None


def test_what_is_not_known_is_taken_for_large() -> None:
    assert is_small(SMALL)
    assert not is_small(SMALL + 1)
    assert not is_small(None)
    assert [partitions_for(each) for each in (0, 1_000_000, 1_000_001, 100_000_000, None)] == [2, 2, 3, 200, 64]
