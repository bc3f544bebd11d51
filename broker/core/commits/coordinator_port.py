"""CoordinatorPort: what a coordinator holds of its broker; implements `CoordinatorHost`, and checks what it is asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from understudy.broker.coordinators.api import CoordinatorMistakeError, Order
from understudy.broker.coordinators.view import TxView
from understudy.broker.core.commits.commit_request import CommitRequest

if TYPE_CHECKING:
    from understudy.broker.core.commits.hosted_order import HostedOrder

REASON_CHARS: Final = 200
NAMED: Final = 5
"""So many transactions are named in one error."""


class CoordinatorPort:
    """All checks come before the first change: what raises has changed nothing."""

    __slots__ = ("_order",)

    def __init__(self, order: HostedOrder) -> None:
        self._order = order

    @property
    def name(self) -> str:
        return self._order.name

    @property
    def now_ms(self) -> int:
        return self._order.broker.clock.now_ms

    def requests(self) -> Sequence[TxView]:
        return tuple(request.view for request in self._order.requests.values())

    def run_prepare_ordered(self, batch: Sequence[TxView]) -> None:
        self._order.order_requests(self._asked(batch))

    def refuse(self, tx: TxView, reason: str) -> None:
        (request,) = self._refusable([tx])
        self._order.roll_back(request, self._worded(reason))

    def carry_out(self, order: Order) -> None:
        refused = self._refusable([each.tx for each in order.refused])
        now = self._asked(order.now)
        named = [*now, *self._asked(order.later), *refused]
        requests = self._order.requests
        if len(named) != len(requests) or len({each.view for each in named}) != len(named):
            missing = requests.keys() - {each.view.tx_id for each in named}
            what = f"without {', '.join(sorted(missing)[:NAMED])}" if missing else "one of them twice"
            raise CoordinatorMistakeError(
                f"coordinator {self.name}: an order of {len(requests)} requests names {len(named)}, {what}"
            )
        reasons = [self._worded(each.reason) for each in order.refused]
        for request, reason in zip(refused, reasons, strict=True):
            self._order.roll_back(request, reason)
        self._order.order_requests(now)

    def wait_for_prior(self, tx: TxView, prior: str) -> None:
        (request,) = self._asked([tx])
        self._order.priors.add(request, prior)

    def _asked(self, batch: Iterable[TxView]) -> list[CommitRequest]:
        """The requests of these views, each once.

        Raises:
            CoordinatorMistakeError
        """
        if self._order.hook:
            raise CoordinatorMistakeError(f"coordinator {self.name}: nothing can be ordered within {self._order.hook}")
        found: dict[str, CommitRequest] = {}
        for tx in batch:
            request = self._order.requests.get(tx.tx_id)
            if request is None or request.view is not tx or tx.tx_id in found:
                why = "named twice" if tx.tx_id in found else "no request of now"
                raise CoordinatorMistakeError(f"coordinator {self.name}: transaction {tx.tx_id} is {why}")
            found[tx.tx_id] = request
        return list(found.values())

    def _refusable(self, batch: Iterable[TxView]) -> list[CommitRequest]:
        requests = self._asked(batch)
        for request in requests:
            if not request.view.refusable:
                raise CoordinatorMistakeError(
                    f"coordinator {self.name}: branch {request.view.name} cannot be refused, its manager decides it"
                )
        return requests

    def _worded(self, reason: object) -> str:
        """For the client.

        Raises:
            CoordinatorMistakeError: it is no text.
        """
        if not isinstance(reason, str):
            raise CoordinatorMistakeError(f"coordinator {self.name}: the reason of a refusal is {reason!r}, not a text")
        return f"refused by coordinator {self.name}: {reason[:REASON_CHARS] or 'no reason given'}"
