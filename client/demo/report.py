"""The report of a run: a mapping for machines, a text for people. Pure.

The mapping is what ``understudy demo --json`` prints: README and docs/verdicts.md show how to read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from understudy.client.demo.figures import KINDS, Failover, Kill, failovers
from understudy.client.runs.audited import audit_text
from understudy.client.runs.figures import commit_ms, median_and_max, percentile
from understudy.client.verdicts.altered import minted_and_found
from understudy.client.verdicts.evidence.case import Case
from understudy.client.verdicts.evidence.client_log import BY_BROKER, BY_CLIENT, BY_LOSS
from understudy.client.verdicts.evidence.history import COMMITTED, ROLLED_BACK
from understudy.client.verdicts.violation import Kind, Violation

EXAMPLES: Final = 5
SHOWN_VIOLATIONS: Final = 100
_ROLLERS: Final = (BY_CLIENT, BY_LOSS, BY_BROKER)
_MEANING: Final = {
    Kind.LOST: "coins that must be in a queue and are not",
    Kind.DOUBLED: "coins that are there twice, or were taken twice",
    Kind.PARTIAL: "transactions of which a part was done",
    Kind.CONTRADICTED: "transactions that ended otherwise than their client was told",
    Kind.UNRESOLVED: "transactions of which no client could learn the outcome",
    Kind.FOREIGN: "coins that no client made",
    Kind.ALTERED: "coins of another worth, or in another account, than they were made",
    Kind.UNCOMMITTED: "coins that were seen though their transaction never committed",
    Kind.UNORDERED: "coins that stand behind a later one of the same client",
    Kind.STALE: "coins that were delivered with redelivered=0 after they were delivered before",
}
"""The other kinds say all in their sentence."""


@attrs.frozen(kw_only=True)
class Run:
    """The facts of a run beside the clients' own logs.

    Attributes:
        kills_wanted, transactions_wanted: with fewer of them nothing is proved.
        digests_equal: None if they could not be read.
        problems: everything that went wrong and is no contradiction between logs and queues, a sentence each.
    """

    clients: int
    accounts: int
    load_s: float
    total_s: float
    kills: Sequence[Kill]
    kills_wanted: int
    transactions_wanted: int
    digests_equal: bool | None
    problems: Sequence[str]


def make_report(run: Run, case: Case, violations: Sequence[Violation]) -> dict[str, Any]:
    """Everything, with ``ok`` and the list ``problems`` first.

    Args:
        run: what happened beside.
        case: the clients' logs, and the queues as read at the end.
        violations: of ``case``, and of the brokers among each other.
    """
    history = case.history
    transactions = list(history.transactions.values())
    unknown = [tx for tx in transactions if tx.unknown]
    acknowledged = sum(tx.answered_s is not None for tx in transactions)
    commits = commit_ms(history)
    taken = failovers(history, run.kills)
    subjects = _subjects(violations)
    minted, found = minted_and_found(case)
    problems = [*_contradictions(violations), *_shortfalls(run, acknowledged, taken), *run.problems]
    return {
        "ok": not problems,
        "problems": problems,
        "transactions": {
            "begun": len(transactions),
            "acknowledged": acknowledged,
            "rolled_back": sum(bool(tx.rolled_back_by) for tx in transactions),
            **{f"rolled_back_by_{by}": sum(tx.rolled_back_by == by for tx in transactions) for by in _ROLLERS},
            "unknown": len(unknown),
            "unknown_committed": sum(tx.told == (COMMITTED,) for tx in unknown),
            "unknown_rolled_back": sum(tx.told == (ROLLED_BACK,) for tx in unknown),
            "unresolved": len(subjects.get(Kind.UNRESOLVED, ())),
        },
        **{kind.value: len(subjects.get(kind, ())) for kind in _MEANING if kind is not Kind.UNRESOLVED},
        "money": {"minted": minted, "found": found},
        "digests_equal": run.digests_equal,
        "kills": {"wanted": run.kills_wanted, "total": len(run.kills), **_by_kind(run.kills)},
        "failover_ms": _failover_ms(taken),
        "commit_ms": {
            "p50": percentile(commits, 50),
            "p99": percentile(commits, 99),
            "max": commits[-1] if commits else None,
        },
        "clients": run.clients,
        "accounts": run.accounts,
        "commits_per_s": round(acknowledged / run.load_s, 1) if run.load_s else None,
        "load_s": round(run.load_s, 1),
        "total_s": round(run.total_s, 1),
        "examples": {kind.value: names[:EXAMPLES] for kind, names in subjects.items() if kind in _MEANING},
        "violations": [attrs.asdict(violation) for violation in violations[:SHOWN_VIOLATIONS]],
    }


def _subjects(violations: Sequence[Violation]) -> dict[Kind, list[str]]:
    """By kind, what is concerned, each once and sorted; kinds in the order of :class:`Kind`."""
    subjects = {kind: sorted({each.subject for each in violations if each.kind is kind}) for kind in Kind}
    return {kind: names for kind, names in subjects.items() if names}


def _contradictions(violations: Sequence[Violation]) -> list[str]:
    found = [
        f"{len(names)} {_MEANING[kind]}: {', '.join(names[:EXAMPLES])}{', ...' if len(names) > EXAMPLES else ''}"
        for kind, names in _subjects(violations).items()
        if kind in _MEANING
    ]
    return found + [violation.text for violation in violations if violation.kind not in _MEANING]


def _shortfalls(run: Run, acknowledged: int, taken: Sequence[Failover]) -> list[str]:
    short = []
    if len(run.kills) < run.kills_wanted:
        short.append(f"{len(run.kills)} kills instead of {run.kills_wanted}")
    if acknowledged < run.transactions_wanted:
        short.append(f"{acknowledged} acknowledged transactions instead of at least {run.transactions_wanted}")
    short += [
        f"no commit after the kill of {each.kill.broker} in epoch {each.kill.epoch}"
        for each in taken
        if each.ms is None
    ]
    return short


def _by_kind(kills: Sequence[Kill]) -> dict[str, int]:
    return {kind: sum(kill.kind == kind for kill in kills) for kind in KINDS}


def _failover_ms(taken: Sequence[Failover]) -> dict[str, Any]:
    def of(kind: str) -> list[float]:
        return [each.ms for each in taken if each.ms is not None and each.kill.kind == kind]

    every = [each.ms for each in taken if each.ms is not None]
    each = [{"kind": one.kill.kind, "broker": one.kill.broker, "epoch": one.kill.epoch, "ms": one.ms} for one in taken]
    return {**median_and_max(every), **{kind: median_and_max(of(kind)) for kind in KINDS}, "each": each}


def report_text(report: Mapping[str, Any]) -> str:
    """The report as a person reads it."""
    tx, kills, failover, commit, money = (
        report[k] for k in ("transactions", "kills", "failover_ms", "commit_ms", "money")
    )
    by_others = f"{tx['rolled_back_by_loss']:,} with their connection, {tx['rolled_back_by_broker']:,} by the broker"
    committed, rolled_back = tx["unknown_committed"], tx["unknown_rolled_back"]
    equal = {True: "equal on all brokers", False: "DIFFERENT", None: "could not be compared"}[report["digests_equal"]]
    rows = [
        ("transactions", f"{tx['begun']:,} begun by {report['clients']} clients over {report['accounts']} queues"),
        ("  acknowledged", f"{tx['acknowledged']:,} ({report['commits_per_s']} a second)"),
        ("  rolled back", f"{tx['rolled_back']:,}: {tx['rolled_back_by_client']:,} on purpose, {by_others}"),
        (
            "  unknown",
            f"{tx['unknown']:,}: {committed} were committed, {rolled_back} rolled back, {tx['unresolved']} unresolved",
        ),
        ("lost", report["lost"]),
        ("partial", report["partial"]),
        ("doubled", report["doubled"]),
        ("told wrongly", report["contradicted"]),
        ("seen uncommitted", report["uncommitted"]),
        ("out of order", report["unordered"]),
        ("money", f"{money['minted']:,} minted, {money['found']:,} found"),
        ("digests", equal),
        (
            "kills",
            f"{kills['total']}: {kills['all_ready']} with all ready, {kills['catching_up']} while a backup caught up",
        ),
        ("failover", f"median {_ms(failover['median'])}, max {_ms(failover['max'])}"),
        ("  all ready", f"median {_ms(failover['all_ready']['median'])}, max {_ms(failover['all_ready']['max'])}"),
        (
            "  catching up",
            f"median {_ms(failover['catching_up']['median'])}, max {_ms(failover['catching_up']['max'])}",
        ),
        ("commit", f"p50 {_ms(commit['p50'])}, p99 {_ms(commit['p99'])}, max {_ms(commit['max'])}"),
        ("time", f"{report['load_s']} s of load, {report['total_s']} s in all"),
        *([("audit", audit_text(report["audit"]))] if "audit" in report else []),
    ]
    lines = [f"{name:18}{value}" for name, value in rows]
    lines += [f"WRONG: {problem}" for problem in report["problems"]]
    lines.append("PROVED: nothing lost, nothing torn, nothing doubled." if report["ok"] else "FAILED.")
    return "\n".join(lines)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} ms"
