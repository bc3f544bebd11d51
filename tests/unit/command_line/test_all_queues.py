"""``understudy status`` reads all queues of a broker, page by page, and says how many there are that it could not read."""

from __future__ import annotations

from typing import Any

from understudy.broker.command_line.broker_rows import with_all_queues
from understudy.broker.command_line.status_text import MAX_QUEUES, status_text


def queue(number: int, ready: int = 0) -> dict[str, Any]:
    return {"vhost": "/", "name": f"q{number}", "ready": ready, "acquired": 0, "uncommitted": 0, "consumers": 0}


def status(shown: int, of: int, ready: int) -> dict[str, Any]:
    return {
        "broker": "b1",
        "role": "primary",
        "status": "active",
        "epoch": 1,
        "port": 1,
        "pid": 2,
        "log": {"position": "1.9"},
        "queues": [queue(number) for number in range(shown)],
        "queues_left_out": of - shown,
        "queues_next": "/queues?after=1" if of > shown else None,
        "queue_totals": {"queues": of, "ready": ready, "acquired": 1, "uncommitted": 0, "consumers": 0},
    }


def text_of(row: dict[str, Any]) -> str:
    head = {"group": "g", "epoch": 1, "primary": "b1", "in_sync": ["b1"], "min_insync": 1}
    return status_text({**head, "brokers": [row]})


def test_pages_are_followed_to_the_last_one() -> None:
    pages: dict[str, dict[str, Any]] = {
        "/queues?after=1": {"queues": [queue(2), queue(3)], "queues_next": "/queues?after=3"},
        "/queues?after=3": {"queues": [queue(4, ready=7)], "queues_next": None},
    }
    row = with_all_queues(status(2, of=5, ready=7), lambda path: (200, pages[path]))
    assert [each["name"] for each in row["queues"]] == ["q0", "q1", "q2", "q3", "q4"]
    assert (row["queues_left_out"], row["queues_next"]) == (0, None)
    assert "  and " not in text_of(row)


def test_what_cannot_be_read_is_counted() -> None:
    refused: tuple[int, dict[str, Any]] = (503, {"error": "the core is being recovered"})
    answers: list[tuple[int, dict[str, Any]] | None] = [None, refused]
    while answers:
        row = with_all_queues(status(MAX_QUEUES, of=5_000, ready=7), lambda path: answers.pop())
        assert row["queues_left_out"] == 5_000 - MAX_QUEUES
        text = text_of(row)
        assert f"  and {5_000 - MAX_QUEUES} more\n" in text
        assert " 8 " in text.splitlines()[3], "messages are of all queues"


def test_an_older_broker_has_all_queues_on_its_page() -> None:
    row = status(3, of=3, ready=0)
    for key in ("queue_totals", "queues_left_out", "queues_next"):
        del row[key]
    row["queues"][0]["ready"] = 4
    assert with_all_queues(row, lambda path: None) is row
    assert " 4 " in text_of(row).splitlines()[3]
