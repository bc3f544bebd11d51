"""CommitRequest: one transaction as a hosted coordinator deals with it, and how its view is made."""

from __future__ import annotations

from typing import Final

from understudy.broker.coordinators.api import Participant
from understudy.broker.coordinators.view import TxView
from understudy.broker.core.state import BrokerState
from understudy.broker.core.watching.listening import counts_of
from understudy.broker.transactions.dtx_branch import BranchName
from understudy.broker.transactions.outcome_query import tx_id_text
from understudy.broker.transactions.tx_buffer import TxBuffer

HEADERS_BIT: Final = 0x20
"""In the first octet of a message's properties: it has headers."""


class CommitRequest:
    """One transaction, from the first question to a participant to the last hook.

    Attributes:
        view: what is shown of it; always the same object.
        asked_ms: when its commit was asked for.
        agreed: the participants that have said yes.
        csn: its place in the order; 0 before it has one.
        unlogged_at: where its COMMIT stands in the log; 0 before there is one.
        errors: what hooks have raised for it.
    """

    __slots__ = ("agreed", "asked_ms", "csn", "errors", "tx", "unlogged_at", "view")

    def __init__(self, tx: TxBuffer, view: TxView) -> None:
        self.tx = tx
        self.view = view
        self.asked_ms = view.requested_ms
        self.agreed: list[Participant] = []
        self.csn = 0
        self.unlogged_at = 0
        self.errors: list[str] = []

    def asks_commit(self, now_ms: int) -> None:
        """The client says commit: what is withheld is counted from now on."""
        self.asked_ms = now_ms

    def take_place(self, csn: int) -> None:
        """Record its place in the order."""
        self.csn = csn

    def committed(self, offset: int) -> None:
        """Record where its COMMIT stands in the log: when that is applied, the request ends."""
        self.unlogged_at = offset

    def adds_to(self, queue_id: int) -> bool:
        """True if this brings messages to that queue, in the log or outside; as ``TransactionRecorder.prepare`` counts them."""
        return queue_id in self.tx.enqueue_counts() or queue_id in self.tx.unlogged_queues


def make_request(state: BrokerState, tx: TxBuffer, branch: BranchName | None, now_ms: int) -> CommitRequest:
    """``branch``: of which ``tx`` is the content, and whose manager decides; None of any other."""
    enqueued, dequeued = counts_of(state, tx)
    view = TxView(
        tx_id=tx_id_text(tx.tx_id),
        name=tx.name or (str(branch[1]) if branch is not None else ""),
        state="prepared",
        enqueued=enqueued,
        dequeued=dequeued,
        octets=tx.size_bytes,
        refusable=branch is None,
        requested_ms=now_ms,
        properties=tuple(
            message.properties
            for _, message, _ in tx.events
            if message is not None and message.properties[0] & HEADERS_BIT
        ),
    )
    return CommitRequest(tx, view)
