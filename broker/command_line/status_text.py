"""``understudy status`` for people: one line a broker, then what is in the queues, then what keeps anybody from being ready."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from understudy.broker.command_line.text_table import table
from understudy.broker.plugin_api.roles import LEADING_ROLES
from understudy.broker.printable import escaped

MAX_QUEUES = 20
MAX_HISTORY = 10
MAX_NAME_COLUMNS = 40
"""A longer name of a queue or vhost, which may have 255 octets, widens no other line."""


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
        *table(
            ["BROKER", "ROLE", "STATUS", "EPOCH", "PORT", "PID", "POSITION", "MESSAGES", "LAG"],
            [_broker_cells(row) for row in group["brokers"]],
        ),
    ]
    leading = [row for row in group["brokers"] if row.get("role") in LEADING_ROLES and row.get("queues")]
    for row in leading:
        lines += ["", f"queues on {row['broker']}:", *_queue_lines(row["queues"], row.get("queues_left_out") or 0)]
    lines += _in_doubt(group["brokers"])
    lines += _damaged(group["brokers"])
    blocked = _blocked(group["brokers"])
    if blocked:
        lines += ["", "not ready:", *blocked]
    troubled = [
        (row["broker"], row["coordination_trouble"]) for row in group["brokers"] if row.get("coordination_trouble")
    ]
    if troubled:
        lines += ["", "coordination store lost:", *[f"  {broker}: {reason}" for broker, reason in troubled]]
    refused = [(row["broker"], row["refuses_work"]) for row in group["brokers"] if row.get("refuses_work")]
    if refused:
        lines += ["", "takes no new work:", *[f"  {broker}: {reason}" for broker, reason in refused]]
    lines += _failing_coordinators(group["brokers"])
    lines += _differing_policies(group["brokers"])
    if history := group.get("history"):
        lines += ["", "history:", *[_history_line(entry) for entry in history[-MAX_HISTORY:]]]
    return "\n".join(map(escaped, lines)) + "\n"  # what keeps a broker from being ready may name a queue


def _failing_coordinators(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Those whose hooks have raised; every transaction was decided all the same."""
    found = [(row["broker"], row["coordinator"]) for row in rows if (row.get("coordinator") or {}).get("errors")]
    lines = [
        f"  {broker}: {each['configured']}, {each['errors']} errors, newest in {each['newest_error']['hook']}: "
        f"{each['newest_error']['error']}"
        for broker, each in found
    ]
    return ["", "coordinator fails:", *lines] if lines else []


def _differing_policies(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Policies that not all brokers have, or that say different things: the leader's are in force."""
    found = {row["broker"]: row["policies"] for row in rows if isinstance(row.get("policies"), Mapping)}
    lines = []
    for name in sorted({name for policies in found.values() for name in policies}):
        by_digest: dict[str, list[str]] = {}
        for broker, policies in found.items():
            by_digest.setdefault(policies.get(name, "none"), []).append(broker)
        if len(by_digest) > 1:
            said = "; ".join(f"{digest} on {', '.join(brokers)}" for digest, brokers in by_digest.items())
            lines.append(f"  {name}: {said}")
    lines += _differing_order(found)
    return ["", "policies differ (the primary's file is in force):", *lines] if lines else []


def _differing_order(found: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Policies that say the same on all brokers and stand in another order: the first of equal priority applies."""
    pages = list(found.values())
    same = {name for name in (pages[0] if pages else ()) if len({page.get(name) for page in pages}) == 1}
    orders = {broker: [name for name in page if name in same] for broker, page in found.items()}
    for names in zip(*orders.values(), strict=True):
        if len(set(names)) > 1:
            said = "; ".join(f"{name} on {broker}" for broker, name in zip(orders, names, strict=True))
            return [f"  of equal priority, and first in the file: {said}"]
    return []


def _history_line(entry: Mapping[str, Any]) -> str:
    when = dt.datetime.fromtimestamp(entry["wall_ms"] // 1_000, dt.UTC)
    return f"  {when:%Y-%m-%d %H:%M:%SZ}, epoch {entry['epoch']}, by {entry['by'] or 'an operator'}: {entry['what']}"


def _blocked(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Explanations: each broker's own, and the leader's of brokers that are silent, have no link, or are to leave the set."""
    found = []
    answering = {row["broker"] for row in rows if row.get("role")}
    for row in rows:
        found += _explained(row["broker"], row)
    for row in rows:
        for broker, shown in sorted((row.get("lag") or {}).items()):
            if not isinstance(shown, Mapping):
                continue
            if shown.get("listed") or not shown.get("linked") or broker not in answering:
                found += _explained(f"{broker} (as {row['broker']} has it)", shown)
    return found


def _in_doubt(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Branches that wait for their transaction manager, or for somebody to forget them; nothing if there are none.

    By whoever leads, for the others only follow its log; by all, if nobody does.
    """
    leading = [row for row in rows if row.get("role") in LEADING_ROLES]
    lines = []
    for row in leading or rows:
        counts = row.get("transactions") or {}
        said = []
        if prepared := counts.get("in_doubt", 0):
            said.append(f"{prepared} prepared {'branch waits' if prepared == 1 else 'branches wait'} to be decided")
        if completed := counts.get("completed", 0):
            said.append(f"{completed} completed by hand {'is' if completed == 1 else 'are'} not forgotten")
        if said:
            lines.append(f"  {row['broker']}: {', '.join(said)}")
    return ["", "in doubt (understudy dtx list shows which):", *lines] if lines else []


def _damaged(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Brokers whose log lacks what the group has acknowledged, as the coordination store has it."""
    lacks: dict[str, str] = {}
    for row in sorted(rows, key=lambda row: row.get("role") in LEADING_ROLES):  # who leads knows best
        lacks = row.get("damaged", lacks)
    lines = [f"  {broker}: {reason}" for broker, reason in sorted(lacks.items())]
    return ["", "damaged, and does not lead (docs/replication.md, When a disk lies):", *lines] if lines else []


def _explained(who: str, row: Mapping[str, Any]) -> list[str]:
    since = f", since {row['since']}" if row.get("since") else ""
    return [f"  {who}{since}: {reason}" for reason in row.get("blockers") or []]


def _broker_cells(row: Mapping[str, Any]) -> list[str]:
    lag = ", ".join(f"{broker} {_lag(behind)}" for broker, behind in sorted((row.get("lag") or {}).items()))
    return [
        str(row["broker"]),
        row["role"] or "-",
        row["status"],
        _or_dash(row["epoch"]),
        _port(row),
        _or_dash(row["pid"]),
        _or_dash((row.get("log") or row).get("position")),
        _or_dash(_messages(row)),
        lag or "-",
    ]


def _port(row: Mapping[str, Any]) -> str:
    """Where clients connect; with a port for TLS beside the other, both."""
    secure = (row.get("ports") or {}).get("amqp_tls")
    return _or_dash(row["port"]) if secure in (None, row["port"]) else f"{_or_dash(row['port'])}, TLS {secure}"


def _messages(row: Mapping[str, Any]) -> int | None:
    """How many a broker holds; None if it does not say. An older version has no sums on its page, and all of its queues."""
    if not row.get("log"):
        return None
    sums = [row["queue_totals"]] if "queue_totals" in row else row.get("queues") or []
    messages: int = sum(each["ready"] + each["acquired"] + each.get("withheld", 0) for each in sums)
    return messages


def _lag(behind: Any) -> str:
    return f"{behind.get('records', '?')} records" if isinstance(behind, Mapping) else str(behind)


def _queue_lines(queues: Sequence[Mapping[str, Any]], left_out: int) -> list[str]:
    deepest = sorted(queues, key=lambda queue: (-queue["ready"] - queue["acquired"], queue["vhost"], queue["name"]))
    # Columns that most groups do not need: shown if a queue has something there.
    optional = [
        (key, title)
        for key, title in (("withheld", "WITHHELD"), ("active_consumer", "ACTIVE CONSUMER"), ("policy", "POLICY"))
        if any(queue.get(key) for queue in deepest[:MAX_QUEUES])
    ]
    shown = [
        [
            queue["vhost"],
            queue["name"],
            str(queue["ready"]),
            str(queue["acquired"]),
            str(queue["uncommitted"]),
            str(queue["consumers"]),
            *(str(queue.get(key) or "-") for key, _ in optional),
        ]
        for queue in deepest[:MAX_QUEUES]
    ]
    lines = table(
        ["VHOST", "QUEUE", "READY", "UNACKED", "UNCOMMITTED", "CONSUMERS", *(title for _, title in optional)],
        shown,
        most=MAX_NAME_COLUMNS,
    )
    more = max(0, len(deepest) - MAX_QUEUES) + left_out
    if more:
        lines.append(f"  and {more} more")
    return lines


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
