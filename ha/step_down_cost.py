"""What a step-down costs, in words, and whether an operator has to agree to it before it begins. Pure.

The former primary reads its whole journal again before it is a backup. With a set above ``min_insync`` its successor does not wait
for that. With the set at ``min_insync`` nothing is confirmed before the former primary is back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

ASK_FROM_MS: Final = 1_000
"""Clients that wait for less notice little more of it than of any step-down."""


def cost_text(cost: Mapping[str, Any]) -> str:
    """``cost``, as the primary answers ``step-down`` with ``ask``, in words."""
    size_mb, seconds = cost["journal_bytes"] / 1_000_000, cost["reads_ms"] / 1_000
    text = (
        f"{cost['broker']} hands over to {cost['successor']}, and reads its journal again: {size_mb:,.1f} MB, "
        f"about {seconds:.1f} s"
    )
    if not cost["holds_clients"]:
        return text
    return f"{text}. The in-sync set {{{', '.join(cost['in_sync'])}}} is at min_insync {cost['min_insync']}: clients wait as long"


def needs_consent(cost: Mapping[str, Any]) -> bool:
    """True if clients wait for the former primary for `ASK_FROM_MS` or longer."""
    return bool(cost["holds_clients"]) and cost["reads_ms"] >= ASK_FROM_MS
