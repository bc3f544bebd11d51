"""Lines of ``understudy status`` about brokers that are not ready."""

from __future__ import annotations

from typing import Any

import pytest

from understudy.broker.command_line.status_text import status_text
from understudy.ha.leading.backup_readiness import BackupReadiness

WALL_MS = 1_795_000_000_000
SINCE = "2026-11-18 11:06:30Z"
"""Ten seconds before that."""


def row(broker: str, **more: Any) -> dict[str, Any]:
    return {"broker": broker, "role": "backup", "status": "ready", "epoch": 3, "port": 1, "pid": 2} | more


def text(*rows: dict[str, Any]) -> list[str]:
    group = {"group": "g", "epoch": 3, "primary": "b1", "in_sync": ["b1", "b2"], "min_insync": 1, "brokers": rows}
    head, _, lines = status_text(group).partition("\nnot ready:\n")
    assert head
    return lines.splitlines()


def backup(broker: str, **more: Any) -> dict[str, Any]:
    """Its row on the page of its primary."""
    given: dict[str, Any] = {
        "broker": broker,
        "listed": True,
        "linked": True,
        "lag_records": 0,
        "since_ms": 20_000,
    } | more
    return BackupReadiness(**given).shown(30_000, WALL_MS)


def test_each_says_why_and_since_when() -> None:
    blockers = ["queue 'q': 5 messages to come", "transaction 3.7: 2 ids of queue 'q' to come"]
    assert text(row("b1"), row("b3", blockers=blockers, since=SINCE)) == [
        f"  b3, since {SINCE}: queue 'q': 5 messages to come",
        f"  b3, since {SINCE}: transaction 3.7: 2 ids of queue 'q' to come",
    ]


def test_why_the_store_is_lost_is_told_of_each_broker() -> None:
    group = {"group": "g", "epoch": 3, "primary": "b1", "in_sync": ["b1", "b2"], "min_insync": 1}
    trouble = "ZooKeeper zk:1 cannot be reached: Connection refused"
    shown = status_text(group | {"brokers": [row("b1"), row("b2", coordination_trouble=trouble)]})
    assert shown.endswith(f"\ncoordination store lost:\n  b2: {trouble}\n")


@pytest.mark.parametrize(
    ("ports", "shown"), [({"amqp_tls": 5671}, "5672, TLS 5671"), ({"amqp_tls": 5672}, "5672 "), ({}, "5672 ")]
)
def test_a_port_for_tls_is_shown_beside_the_other(ports: dict[str, int], shown: str) -> None:
    group = {"group": "g", "epoch": 3, "primary": "b1", "in_sync": ["b1"], "min_insync": 1}
    assert f" {shown}" in status_text(group | {"brokers": [row("b1", port=5672, ports=ports)]})


@pytest.mark.parametrize("key", ["policy", "active_consumer"])
def test_what_few_queues_have_is_shown_if_one_has_any(key: str) -> None:
    counts = {"vhost": "/", "ready": 1, "acquired": 0, "uncommitted": 0, "consumers": 0}
    rows = [row("b1", role="primary", queues=[{"name": "q", key: "p", **counts}, {"name": "r", **counts}])]
    group = {"group": "g", "epoch": 3, "primary": "b1", "in_sync": ["b1"], "min_insync": 1, "brokers": rows}
    lines = [line.split() for line in status_text(group).splitlines()]
    assert ["/", "q", "1", "0", "0", "0", "p"] in lines
    assert ["/", "r", "1", "0", "0", "0", "-"] in lines


def test_policies_that_differ_are_named() -> None:
    group = {"group": "g", "epoch": 3, "primary": "b1", "in_sync": ["b1", "b2"], "min_insync": 1}
    rows = [row("b1", policies={"p": "1", "q": "2"}), row("b2", policies={"p": "1", "q": "3"}), row("b3", policies={})]
    shown = status_text(group | {"brokers": [*rows, row("b4")]})
    assert shown.endswith(
        "\npolicies differ (the primary's file is in force):\n  p: 1 on b1, b2; none on b3\n"
        "  q: 2 on b1; 3 on b2; none on b3\n"
    )
    assert "policies" not in status_text(group | {"brokers": [rows[0], rows[0] | {"broker": "b2"}, row("b4")]})
    rows = [row("b1", policies={"p": "1", "q": "2", "r": "3"}), row("b2", policies={"q": "2", "p": "1", "r": "3"})]
    assert status_text(group | {"brokers": rows}).endswith(
        "\npolicies differ (the primary's file is in force):\n"
        "  of equal priority, and first in the file: p on b1; q on b2\n"
    )


def test_who_does_not_answer_is_explained_by_the_primary() -> None:
    lag = {
        "b2": backup("b2", linked=False),
        "b3": backup("b3", listed=False, linked=False, running=False, expelled="it was silent"),
    }
    down = {"status": "down", "blockers": ["its process is not running"]}
    assert text(row("b1", lag=lag), row("b2", **down), row("b3", **down)) == [
        "  b2: its process is not running",
        "  b3: its process is not running",
        f"  b2 (as b1 has it), since {SINCE}: its link is lost: completions wait for it",
        f"  b3 (as b1 has it), since {SINCE}: it is not linked, and the store says that it is not running",
        f"  b3 (as b1 has it), since {SINCE}: it was expelled from the in-sync set: it was silent",
    ]


def test_what_a_joiner_says_itself_is_not_said_twice() -> None:
    lag = {"b2": backup("b2"), "b3": backup("b3", listed=False, queues=(("q", 5),))}
    said = row("b3", blockers=["queue 'q': 6 messages to come"], since=SINCE)
    assert text(row("b1", lag=lag), row("b2"), said) == [f"  b3, since {SINCE}: queue 'q': 6 messages to come"]


def test_a_joiner_that_does_not_answer_is_explained_by_the_primary() -> None:
    """The joiner was stopped in the midst of its catch-up, and its link is not lost yet."""
    lag = {"b2": backup("b2"), "b3": backup("b3", listed=False, queues=(("q", 5),))}
    said = row("b3", role=None, blockers=["process 7 does not answer within 2 s"])
    first, *others = text(row("b1", lag=lag), row("b2"), said)
    assert first == "  b3: process 7 does not answer within 2 s"
    assert others
    assert all(line.startswith("  b3 (as b1 has it)") for line in others)
    assert any("queue 'q'" in line for line in others)


def test_nothing_is_said_when_all_are_ready() -> None:
    assert text(row("b1", lag={"b2": backup("b2")}), row("b2", since=SINCE)) == []


def in_doubt(*rows: dict[str, Any]) -> list[str]:
    group = {"group": "g", "epoch": 3, "primary": "b1", "in_sync": ["b1"], "min_insync": 1, "brokers": rows}
    return status_text(group).partition("\nin doubt (understudy dtx list shows which):\n")[2].splitlines()


def counts(prepared: int, completed: int) -> dict[str, int]:
    return {"open": 0, "undecided": 0, "in_doubt": prepared, "completed": completed}


def test_a_damaged_broker_is_named_with_what_it_lacks() -> None:
    """As the broker that leads has it: the damaged one itself may not have heard yet that it was mended."""
    lacks = {"b1": "its log lacks the records 19,856 to 20,000, which b2 holds as stable"}
    leads, follows = row("b2", role="primary", damaged=lacks), row("b1", damaged={})
    group = {"group": "g", "epoch": 3, "primary": "b2", "in_sync": ["b2"], "min_insync": 1}
    assert f"  b1: {lacks['b1']}" in status_text({**group, "brokers": [leads, follows]}).splitlines()
    assert "damaged" not in status_text({**group, "brokers": [{**leads, "damaged": {}}, {**follows, "damaged": lacks}]})
    assert "b1: its log lacks" in status_text({**group, "brokers": [{**follows, "damaged": lacks}]})


def test_branches_in_doubt_are_counted_by_whoever_leads() -> None:
    backup_row = row("b2", transactions=counts(1, 0))
    assert in_doubt(row("b1", role="primary", transactions=counts(2, 1)), backup_row) == [
        "  b1: 2 prepared branches wait to be decided, 1 completed by hand is not forgotten"
    ]
    assert in_doubt(row("b1", role="primary", transactions=counts(0, 2)), backup_row) == [
        "  b1: 2 completed by hand are not forgotten"
    ]
    assert in_doubt(row("b1", status="down", role=None), backup_row) == ["  b2: 1 prepared branch waits to be decided"]


def test_nothing_is_said_when_nothing_is_in_doubt() -> None:
    assert in_doubt(row("b1", role="primary", transactions=counts(0, 0)), row("b2", transactions=counts(0, 0))) == []
    assert in_doubt(row("b1", role="primary", transactions={"open": 1, "undecided": 0})) == [], "an older broker"


def test_no_name_of_a_client_moves_the_cursor() -> None:
    """A queue may be called what it likes; the terminal is the operator's."""
    queue = {"vhost": "/", "name": "q\x1b[2J\nb2 ready", "ready": 1, "acquired": 0, "uncommitted": 0, "consumers": 0}
    rows = [row("b1", role="primary", queues=[queue], blockers=["queue 'a\x1b[31m\u202e' to come"])]
    group = {"group": "g", "epoch": 3, "primary": "b1", "in_sync": ["b1"], "min_insync": 1, "brokers": rows}
    lines = status_text(group).splitlines()
    assert all(line.isprintable() for line in lines)
    assert "/      q\\x1b[2J\\nb2 ready  1      0        0            0" in lines
    assert "  b1: queue 'a\\x1b[31m\\u202e' to come" in lines


def test_messages_that_are_not_due_have_a_column_where_there_are_any() -> None:
    counts = {"vhost": "/", "acquired": 0, "uncommitted": 0, "consumers": 0}
    queues = [{**counts, "name": "a", "ready": 2, "withheld": 0}, {**counts, "name": "b", "ready": 1, "withheld": 7}]
    totals = {"ready": 3, "acquired": 0, "withheld": 7}
    rows = [row("b1", role="primary", queues=queues, queue_totals=totals)]
    group = {"group": "g", "epoch": 3, "primary": "b1", "in_sync": ["b1"], "min_insync": 1, "brokers": rows}
    lines = status_text(group).splitlines()
    first = lines.index("queues on b1:") + 1
    assert [line.split() for line in lines[first : first + 3]] == [
        ["VHOST", "QUEUE", "READY", "UNACKED", "UNCOMMITTED", "CONSUMERS", "WITHHELD"],
        ["/", "a", "2", "0", "0", "0", "-"],
        ["/", "b", "1", "0", "0", "0", "7"],
    ]


def test_a_long_name_is_whole_and_moves_its_own_line_alone() -> None:
    """The names of queues and vhosts may have 255 octets: with one of these all other lines were as wide."""
    counts = {"acquired": 0, "uncommitted": 0, "consumers": 0}
    names = [("/", "x" * 255, 3), ("/", "y" * 40, 2), ("v" * 255, "z", 1)]
    queues = [{"vhost": vhost, "name": name, "ready": ready, **counts} for vhost, name, ready in names]
    rows = [row("b1", role="primary", queues=queues)]
    group = {"group": "g", "epoch": 3, "primary": "b1", "in_sync": ["b1"], "min_insync": 1, "brokers": rows}
    lines = status_text(group).splitlines()
    first = lines.index("queues on b1:") + 1
    assert lines[first : first + 4] == [
        f"VHOST  {'QUEUE':40}  READY  UNACKED  UNCOMMITTED  CONSUMERS",
        f"/      {'x' * 255}  3      0        0            0",
        f"/      {'y' * 40}  2      0        0            0",
        f"{'v' * 255}  {'z':40}  1      0        0            0",
    ]
