"""Transaction coordinators: the port through which a plugin orders, delays and refuses commits.

This room is all that a plugin imports. The core that hosts a coordinator is ``broker/core/commits/hosted_order.py``; what
stands in this room knows nothing of it. ``docs/coordinators.md`` shows plugins from their first line to their installation.

**What a coordinator is.** A class named by an entry point of the group ``understudy.coordinators``. Exactly one is active in a
broker: ``[transactions] coordinator = "NAME"``. A core makes its own object; a core that is recovered anew makes a new one.

**The life of a commit.**

1. A client says commit. Each participant is asked to ``prepare``, in the order of registration: the coordinator itself is the
   first, those of :meth:`Coordinator.participants` follow. The first that refuses rolls the transaction back.
2. All have agreed: the host calls :meth:`Coordinator.log_and_order`. That *requests a decision*. The transaction stands in
   :meth:`CoordinatorHost.requests` until it is ordered or refused.
3. A group is due (:class:`Trigger`): the host calls :meth:`Coordinator.group_due`. The coordinator orders some with
   :meth:`CoordinatorHost.run_prepare_ordered`, refuses some with :meth:`CoordinatorHost.refuse`, and leaves the rest.
4. ``run_prepare_ordered`` gives each transaction its commit sequence number (CSN) and its one record, PREPARE, and then runs
   every participant's ``prepare_ordered``. One append and one fsync carry the whole group.
5. PREPARE is stable: the transaction is decided, and all queues change. The host runs every participant's ``commit_ordered``, in
   the order of the CSN, and answers the client. Another broker of a group may refuse instead: ``rolled_back``.
6. The record COMMIT is stable, whenever that is: nobody needs the PREPARE any more. The host calls ``unlog``.

**Who decides what.** A coordinator chooses the order, the time and refusals. It cannot commit what a participant has refused,
undo what is ordered, or hold anything for ever: what is older than ``[transactions] max_withheld_ms`` is ordered by the host.

**What hooks raise.** Before the decision (``prepare``, ``log_and_order``, ``group_due``) it rolls back the transactions that
are concerned. Afterwards (``prepare_ordered``, ``commit_ordered``, ``rolled_back``, ``unlog``) it changes nothing: it is
stored, counted, shown in ``/status``, and told to ``unlog``. Neither ends the process.

All of it runs on the event loop's thread, within a turn. A hook returns within some ten microseconds and waits for nothing.
"""

from understudy.broker.coordinators.api import (
    API_VERSION,
    ENTRY_POINT_GROUP,
    Coordinator,
    CoordinatorHost,
    CoordinatorMistakeError,
    Order,
    Participant,
    Refused,
    Trigger,
)
from understudy.broker.coordinators.bases import (
    GroupCommitCoordinator,
    NullCoordinator,
    UnorderedCoordinator,
    needs_two_phases,
    overrides,
    stated_version,
)
from understudy.broker.coordinators.choice import GROUP_COMMIT, NULL, UNORDERED, CoordinatorChoice, find_coordinator
from understudy.broker.coordinators.view import TxView
from understudy.broker.plugin_api.views import QueueName

__all__ = [
    "API_VERSION",
    "ENTRY_POINT_GROUP",
    "GROUP_COMMIT",
    "NULL",
    "UNORDERED",
    "Coordinator",
    "CoordinatorChoice",
    "CoordinatorHost",
    "CoordinatorMistakeError",
    "GroupCommitCoordinator",
    "NullCoordinator",
    "Order",
    "Participant",
    "QueueName",
    "Refused",
    "Trigger",
    "TxView",
    "UnorderedCoordinator",
    "find_coordinator",
    "needs_two_phases",
    "overrides",
    "stated_version",
]
