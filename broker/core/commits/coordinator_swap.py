"""When another coordinator may take over the log of a broker."""

from __future__ import annotations

from typing import Final

from understudy.broker.core.state import BrokerState
from understudy.broker.plugin_api.plugin import PluginError

NAMED: Final = 5
"""So many transactions are named in the error."""


class CoordinatorSwapError(PluginError):
    """The log holds undecided transactions of another coordinator; nothing has been changed."""


def check_swap(state: BrokerState, before: str, configured: str) -> None:
    """Raise unless the coordinator ``configured`` may take over from ``before``. ``state`` is recovered and not opened.

    Only branches in doubt count. A transaction with its PREPARE has its place in the order, and no coordinator is asked of it
    again: alone, the broker commits it; in a group the log of the broker that leads decides it.

    Raises:
        CoordinatorSwapError: the log holds branches in doubt, for which ``before`` may hold something.
    """
    if before == configured:
        return
    undecided = [tx for tx in state.transactions.values() if tx.in_doubt]
    if not undecided:
        return
    named = ", ".join(str(tx.branch.xid) for tx in undecided[:NAMED] if tx.branch is not None)
    more = f" and {len(undecided) - NAMED} more" if len(undecided) > NAMED else ""
    raise CoordinatorSwapError(
        f"transactions.coordinator is {configured!r}, but the log holds {len(undecided)} undecided transactions of "
        f"coordinator {before!r}: {named}{more}. Nothing was changed. Start with coordinator = {before!r} until they are "
        "decided (`understudy dtx list` shows branches in doubt), then change it"
    )
