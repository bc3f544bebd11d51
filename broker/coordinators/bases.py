"""Three coordinators, to derive from and to run as they are: none, one at a time, and a group at a time.

`GroupCommitCoordinator` is the broker's own. As it stands here it runs in tests; a broker whose coordinator overrides nothing of
these bases carries out the same rule without a view of any transaction (``broker/transactions/commit_order.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from understudy.broker.coordinators.api import Coordinator, Order, Participant, Trigger
from understudy.broker.coordinators.view import TxView


class NullCoordinator(Coordinator):
    """For a broker in which nothing is to be coordinated: to be asked is a mistake of the host."""

    api_version: ClassVar[int] = 1

    def log_and_order(self, tx: TxView) -> None:
        raise AssertionError(f"the null coordinator was asked to log transaction {tx.tx_id}")


class UnorderedCoordinator(Coordinator):
    """Orders each transaction as it comes, by itself: no group, and no order but that of arrival."""

    api_version: ClassVar[int] = 1

    def log_and_order(self, tx: TxView) -> None:
        self.host.run_prepare_ordered([tx])

    def group_due(self, trigger: Trigger) -> None:
        """Offer again what waits for another transaction; nothing else is left."""
        self.host.run_prepare_ordered(self.host.requests())


class GroupCommitCoordinator(Coordinator):
    """Orders what has gathered as one group. A plugin overrides :meth:`order`, and nothing else."""

    api_version: ClassVar[int] = 1

    def log_and_order(self, tx: TxView) -> None:
        """Leave it: it is one of ``host.requests()`` until its group is due."""

    def order(self, batch: Sequence[TxView]) -> Order:
        """Say what becomes of each of ``batch``, oldest first: what was put off comes before what is new."""
        return Order(now=batch)

    def group_due(self, trigger: Trigger) -> None:
        self.host.carry_out(self.order(self.host.requests()))


HOOKS: Final = ("prepare", "prepare_ordered", "commit_ordered", "rolled_back", "unlog")
_RULES: Final = ("participants", "log_and_order", "group_due", "order")
_ROOM: Final = Coordinator.__module__.rpartition(".")[0]


def needs_two_phases(participant: Participant | type[Participant]) -> bool:
    """True if the participant overrides a hook; of a coordinator also, if it has an order of its own."""
    return any(overrides(participant, name) for name in (*HOOKS, *_RULES))


def stated_version(found: Any) -> int | None:
    """The ``api_version`` that the code of ``found`` states itself; None if it states none.

    What a class of a plugin inherits from this room is the version of this broker, whatever the plugin was written for.
    """
    if not isinstance(found, type) or found.__module__.startswith(_ROOM + "."):
        return getattr(found, "api_version", None)
    own = (each for each in found.__mro__ if not each.__module__.startswith(_ROOM + "."))
    return next((vars(each)["api_version"] for each in own if "api_version" in vars(each)), None)


def overrides(participant: Participant | type[Participant], name: str) -> bool:
    """True if the method ``name`` of its class was written outside of this room."""
    method = getattr(participant if isinstance(participant, type) else type(participant), name, None)
    return method is not None and not method.__module__.startswith(_ROOM + ".")
