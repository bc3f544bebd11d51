"""The verdict of ``scripts/demo stages`` finds what it looks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from understudy.client.stages import sqlite
from understudy.client.stages.demo.books import EFFECTS, Books, open_books, problems_of, read_books

GOOD = Books(
    orders={1: 100, 2: 100, 3: 0},
    effects={name: [1, 2] for name in EFFECTS},
    cents=21_000_000,
    pieces=1_000_000,
    outbox=0,
)


def test_books_that_balance_have_no_problem() -> None:
    assert problems_of(GOOD, [3]) == []


@pytest.mark.parametrize(
    ("changes", "dead", "text"),
    [
        ({"effects": GOOD.effects | {"charges": [1]}}, [3], "charges: 1 orders missing: 2"),
        ({"effects": GOOD.effects | {"charges": [1, 2, 2]}}, [3], "charges: 1 orders doubled: 2"),
        ({"effects": GOOD.effects | {"holds": [1, 2, 3]}}, [3], "holds: 1 orders too much: 3"),
        ({}, [], "dead-letter queue: 1 orders missing: 3"),
        ({}, [3, 3], "dead-letter queue: 1 orders doubled: 3"),
        ({"cents": 5}, [3], "accounts hold 5; they should hold 21000000"),
        ({"pieces": 5}, [3], "stock and shipments hold 5"),
        ({"outbox": 1}, [3], "the outbox holds 1"),
    ],
)
def test_each_fault_is_named(changes: dict[str, Any], dead: list[int], text: str) -> None:
    (problem,) = problems_of(attrs.evolve(GOOD, **changes), dead)
    assert text in problem


def test_new_books_balance(tmp_path: Path) -> None:
    open_books(tmp_path / "shop.db")
    sqlite(tmp_path / "shop.db").prepare()
    assert problems_of(read_books(tmp_path / "shop.db"), []) == []
