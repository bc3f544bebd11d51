"""``understudy status`` for people: one line a broker, then what is in the queues, then what keeps anybody from being ready."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MAX_QUEUES = 20


def status_text(group: Mapping[str, Any]) -> str:
    """The text of what ``broker_rows`` found."""
    in_sync = ", ".join(group["in_sync"]) or "-"
    head = (
        f"group {group['group'] or '-'}, epoch {_or_dash(group['epoch'])}, primary {group['primary'] or '-'}, "
        f"in-sync {{{in_sync}}}, min_insync {_or_dash(group['min_insync'])}"
    )
    lines = [
        head,
        "",
        *_table(
            ["BROKER", "ROLE", "STATUS", "EPOCH", "PORT", "PID", "POSITION", "MESSAGES", "LAG"],
            [_broker_cells(row) for row in group["brokers"]],
        ),
    ]
    leading = [row for row in group["brokers"] if row.get("role") in ("primary", "standalone") and row.get("queues")]
    for row in leading:
        lines += ["", f"queues on {row['broker']}:", *_queue_lines(row["queues"])]
    blocked = _blocked(group["brokers"])
    if blocked:
        lines += ["", "not ready:", *blocked]
    refused = [(row["broker"], row["refuses_work"]) for row in group["brokers"] if row.get("refuses_work")]
    if refused:
        lines += ["", "takes no new work:", *[f"  {broker}: {reason}" for broker, reason in refused]]
    return "\n".join(lines) + "\n"


def _blocked(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What each broker says of itself, and what the primary alone knows: of who has no link, or is to leave the set."""
    found = []
    for row in rows:
        found += _explained(row["broker"], row)
    for row in rows:
        for broker, shown in sorted((row.get("lag") or {}).items()):
            if isinstance(shown, Mapping) and (shown.get("listed") or not shown.get("linked")):
                found += _explained(f"{broker} (as {row['broker']} has it)", shown)
    return found


def _explained(who: str, row: Mapping[str, Any]) -> list[str]:
    since = f", since {row['since']}" if row.get("since") else ""
    return [f"  {who}{since}: {reason}" for reason in row.get("blockers") or []]


def _broker_cells(row: Mapping[str, Any]) -> list[str]:
    queues = row.get("queues") or []
    messages = sum(queue["ready"] + queue["acquired"] for queue in queues) if row.get("log") else None
    lag = ", ".join(f"{backup} {_lag(behind)}" for backup, behind in sorted((row.get("lag") or {}).items()))
    return [
        str(row["broker"]),
        row["role"] or "-",
        row["status"],
        _or_dash(row["epoch"]),
        _or_dash(row["port"]),
        _or_dash(row["pid"]),
        (row.get("log") or {}).get("position", "-"),
        _or_dash(messages),
        lag or "-",
    ]


def _lag(behind: Any) -> str:
    return f"{behind.get('records', '?')} records" if isinstance(behind, Mapping) else str(behind)


def _queue_lines(queues: Sequence[Mapping[str, Any]]) -> list[str]:
    deepest = sorted(queues, key=lambda queue: (-queue["ready"] - queue["acquired"], queue["vhost"], queue["name"]))
    shown = [
        [
            queue["vhost"],
            queue["name"],
            str(queue["ready"]),
            str(queue["acquired"]),
            str(queue["uncommitted"]),
            str(queue["consumers"]),
        ]
        for queue in deepest[:MAX_QUEUES]
    ]
    lines = _table(["VHOST", "QUEUE", "READY", "UNACKED", "UNCOMMITTED", "CONSUMERS"], shown)
    if len(deepest) > MAX_QUEUES:
        lines.append(f"  and {len(deepest) - MAX_QUEUES} more")
    return lines


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [head, *rows]
    ]


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
