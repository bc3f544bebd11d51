"""The report of a run: a mapping for machines, a text for people. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from understudy.client.runs.audited import audit_text
from understudy.client.stress.faults.conductor import Fault
from understudy.client.stress.faults.watch import Moment
from understudy.client.stress.report.figures import Failover, by_kind, commits, failovers
from understudy.client.verdicts.evidence.case import Case
from understudy.client.verdicts.evidence.client_log import Event
from understudy.client.verdicts.evidence.history import COMMITTED, ROLLED_BACK, History
from understudy.client.verdicts.violation import Kind, Violation

SHOWN_VIOLATIONS: Final = 100
EXAMPLES: Final = 5
SHOWN: Final = ("lost", "partial", "doubled", "contradicted", "uncommitted", "unordered", "stale", "early")
"""Kinds of violation that the text has a line for."""


@attrs.frozen(kw_only=True)
class Role:
    """The proof that one client owes, so that a run proves something about its part and its library.

    Attributes:
        client: its name; further logs of it have this name, a dot and a number.
        proof: COMMITTED, CONFIRMED or RECEIVED: its logs have at least one of these.
    """

    client: str
    library: str
    proof: Event


@attrs.frozen(kw_only=True)
class Run:
    """The facts of a run beside the clients' own logs.

    Attributes:
        setting: what was asked for: place, store, seed, workload, and so on.
        began_s, ended_s: of the load, monotonic seconds.
        problems: everything that went wrong and is no contradiction between logs and queues, a sentence each.
        equal: all brokers hold the same; None if that could not be read.
        roles: of all clients.
    """

    setting: Mapping[str, Any]
    began_s: float
    ended_s: float
    faults: Sequence[Fault]
    moments: Sequence[Moment]
    problems: Sequence[str]
    equal: bool | None
    roles: Sequence[Role] = ()


def make_report(run: Run, case: Case, violations: Sequence[Violation]) -> dict[str, Any]:
    """Everything, with ``ok`` and the list ``problems`` first."""
    history = case.history
    transactions = history.transactions.values()
    answered = sum(tx.answered_s is not None for tx in transactions)
    unknown = [tx for tx in transactions if tx.unknown]
    taken = failovers(history, run.faults)
    subjects = {kind: sorted({each.subject for each in violations if each.kind is kind}) for kind in Kind}
    load_s = run.ended_s - run.began_s
    problems = [
        f"{len(names)} {kind.value}: {', '.join(names[:EXAMPLES])}{', ...' if len(names) > EXAMPLES else ''}"
        for kind, names in subjects.items()
        if names
    ]
    problems += [f"no commit after fault {each.fault.number}, {each.fault.kind}" for each in taken if each.ms is None]
    problems += [] if answered else ["no transaction was committed: nothing is proved"]
    problems += _unproved(run.roles, history)
    problems += run.problems
    mutation = run.setting.get("mutation")
    if mutation and not violations:
        problems.append(f"the known bug {mutation} was not seen: no verdict reports a violation")
    return {
        "ok": not problems,
        "problems": problems,
        **({"bug_seen": bool(violations)} if mutation else {}),
        **run.setting,
        **{kind.value: len(names) for kind, names in subjects.items()},
        "digests_equal": run.equal,
        "kills": sum(fault.kills and fault.hits_primary for fault in run.faults),
        "faults": dict(sorted(Counter(fault.kind for fault in run.faults).items())),
        "failover_ms": by_kind(taken),
        "commit_ms": commits(history),
        "transactions": {
            "begun": len(transactions),
            "committed": answered,
            "rolled_back": sum(bool(tx.rolled_back_by) for tx in transactions),
            "unknown": len(unknown),
            "unknown_committed": sum(tx.told == (COMMITTED,) for tx in unknown),
            "unknown_rolled_back": sum(tx.told == (ROLLED_BACK,) for tx in unknown),
        },
        "messages": {
            "sent": len(history.sent),
            "confirmed": len(history.confirmed),
            "received": len(history.received),
            "found": sum(queue.count for queue in case.content.queues.values()),
        },
        "commits_per_s": round(answered / load_s, 1) if load_s else None,
        "load_s": round(load_s, 1),
        "failovers": [_row(each, run.began_s) for each in taken],
        "every_fault": [_fault(each, run.began_s) for each in run.faults],
        "violations": [attrs.asdict(violation) for violation in violations[:SHOWN_VIOLATIONS]],
    }


def _unproved(roles: Sequence[Role], history: History) -> list[str]:
    """A sentence for each client of whose part there is no evidence."""
    seen = {
        Event.COMMITTED: {tx.client for tx in history.transactions.values() if tx.answered_s is not None},
        Event.CONFIRMED: {history.sent[place].client for place in history.confirmed if place in history.sent},
        Event.RECEIVED: {receipt.client for receipt in history.received},
    }
    shown = {event: {client.partition(".")[0] for client in clients} for event, clients in seen.items()}
    return [
        f"client {role.client} ({role.library}) has no message or transaction that was {role.proof}: its part is not proved"
        for role in roles
        if role.client not in shown[role.proof]
    ]


def _row(each: Failover, began_s: float) -> dict[str, Any]:
    fault = each.fault
    return {
        "fault": fault.number,
        "kind": fault.kind,
        "primary": fault.primary,
        "epoch": fault.epoch,
        "at_s": round(fault.began_s - began_s, 3),
        "early": fault.early,
        "ms": each.ms,
    }


def _fault(fault: Fault, began_s: float) -> dict[str, Any]:
    return {
        "number": fault.number,
        "kind": fault.kind,
        "targets": fault.targets,
        "at_s": round(fault.began_s - began_s, 3),
        "held_s": round(fault.healed_s - fault.began_s, 3),
        "ready_s": None if fault.ready_s is None else round(fault.ready_s - fault.healed_s, 3),
        "early": fault.early,
    }


def report_text(report: Mapping[str, Any]) -> str:
    """The report as a person reads it."""
    tx, messages, commit = report["transactions"], report["messages"], report["commit_ms"]
    equal = {True: "equal on all brokers", False: "DIFFERENT", None: "could not be compared"}[report["digests_equal"]]
    faults = ", ".join(f"{number} {kind}" for kind, number in report["faults"].items()) or "none"
    setting = f"{report['place']}, {report['workload']}, store {report['store']}, seed {report['seed']}"
    begun = f"{tx['begun']:,} begun, {tx['committed']:,} committed ({report['commits_per_s']} a second)"
    committed, rolled_back = tx["unknown_committed"], tx["unknown_rolled_back"]
    rows = [
        ("run", f"{setting}, {report['load_s']} s"),
        ("kills", f"{report['kills']} of the primary"),
        ("faults", faults),
        ("transactions", f"{begun}, {tx['rolled_back']:,} rolled back"),
        ("  unknown", f"{tx['unknown']:,}: {committed} were committed, {rolled_back} rolled back"),
        ("messages", f"{messages['sent']:,} outside of transactions, {messages['received']:,} received"),
        ("  at the end", f"{messages['found']:,} in the queues"),
        *[(kind, report[kind]) for kind in SHOWN],
        *[(f"  {name}", _numbers(row)) for name, row in report.get("queues", {}).items()],
        ("digests", equal),
        *([("audit", audit_text(report["audit"]))] if "audit" in report else []),
        ("commit", f"p50 {_ms(commit['p50'])}, p99 {_ms(commit['p99'])}, max {_ms(commit['max'])}"),
        *[
            (f"failover, {kind}", f"median {_ms(each['median'])}, worst {_ms(each['max'])}, of {each['number']}")
            for kind, each in report["failover_ms"].items()
        ],
    ]  # fmt: skip
    width = max(len(name) for name, _ in rows) + 2
    lines = [f"{name:{width}}{value}" for name, value in rows]
    lines += [f"WRONG: {problem}" for problem in report["problems"]]
    if report.get("bug_seen"):
        lines.append(f"SEEN: a verdict reports the known bug {report['mutation']}, as it must.")
        return "\n".join(lines)
    lines.append("HELD: nothing lost, torn, doubled or out of order; all brokers equal." if report["ok"] else "FAILED.")
    return "\n".join(lines)


def _numbers(row: Mapping[str, int]) -> str:
    return ", ".join(f"{what} {number:,}" for what, number in row.items())


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} ms"
