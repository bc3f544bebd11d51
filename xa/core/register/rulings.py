"""Rulings: what an operator does with branches that no entry knows, as the state server records it."""

from __future__ import annotations

from understudy.xa.core.register.bounds import MAX_REASON, wrong_rule
from understudy.xa.core.register.entry import Entry, Ruled
from understudy.xa.core.register.wire import Hello, Refused, Rule


def ruling(rule: Rule, known: Entry | None, hello: Hello, now_ms: int) -> Refused | Ruled:
    """The record of a ruling, or of what came of it.

    Args:
        rule: what is asked for.
        known: the entry of its global id, if there is one.
        hello: of the operator's connection.
        now_ms: wall clock.
    """
    if known is not None and not known.ruled:
        return Refused("protocol", f"transaction {rule.gid} is known here, and its branches are no orphans")
    if known is None and not rule.new:
        return Refused("unknown", f"transaction {rule.gid} is not known")
    earlier = {} if known is None else known.ruled
    if wrong := wrong_rule(rule, earlier):
        return Refused("protocol", wrong)
    return Ruled(
        Entry(
            gid=rule.gid,
            job=hello.job,
            profile=hello.profile,
            fingerprint=hello.fingerprint,
            resources=[],
            began_ms=now_ms,
            reason=f"by {hello.client}"[:MAX_REASON],
            ruled={**earlier, **rule.ruled},
        )
    )
