"""The port: what a coordinator is asked (`Coordinator`), what it may ask (`CoordinatorHost`), and who takes part (`Participant`).

The order of the calls stands in the head of this room (``broker/coordinators/__init__.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import ClassVar, Final, Protocol

import attrs

from understudy.broker.coordinators.view import TxView
from understudy.broker.errors import UnderstudyError

API_VERSION: Final = 1
ENTRY_POINT_GROUP: Final = "understudy.coordinators"


class CoordinatorMistakeError(UnderstudyError):
    """A coordinator asked for what the port does not allow: the message names the coordinator and the transaction."""


class Trigger(Enum):
    """Why a group is due now.

    TURN: a turn ends, and no waiting is configured (``group.min_wait_ms`` is 0).
    MIN_WAIT: the group was held open for ``group.min_wait_ms``.
    MAX_WAIT: no commit came, and what was withheld has waited for ``group.max_wait_ms`` (1 ms at least) since it was last offered,
        or longer: the wait doubles while offers bring nothing, up to some 50 ms.
    COUNT: ``group.count`` requests have come.
    BLOCKED: a client deletes a queue if it is empty, and has to know what the commits of this turn bring to it.
    """

    TURN = "turn"
    MIN_WAIT = "min_wait"
    MAX_WAIT = "max_wait"
    COUNT = "count"
    BLOCKED = "blocked"


@attrs.frozen
class Refused:
    """One transaction that is to be rolled back.

    Attributes:
        reason: for the client, which is told 406 with it; 200 characters of it are kept.
    """

    tx: TxView
    reason: str


@attrs.frozen
class Order:
    """The verdict on the transactions of one group. Each of the group stands in exactly one of the three.

    Attributes:
        now: these are committed, in this order.
        later: these are offered again with the next group, before all that come by then.
        refused: these are rolled back. Only a transaction that is ``refusable`` may stand here.
    """

    now: Sequence[TxView] = ()
    later: Sequence[TxView] = ()
    refused: Sequence[Refused] = ()


class CoordinatorHost(Protocol):
    """Calls of a coordinator to its broker, during any of its own calls but the four ordered hooks.

    Each method raises `CoordinatorMistakeError` if a transaction is named that is not in :meth:`requests`, or if it is called
    within ``prepare_ordered``, ``commit_ordered``, ``rolled_back`` or ``unlog``. It has changed nothing then.
    """

    @property
    def name(self) -> str:
        """Of the coordinator, as its entry point has it."""

    @property
    def now_ms(self) -> int:
        """A monotonic clock of some 50 ms resolution; views' ``requested_ms`` are of it."""

    def requests(self) -> Sequence[TxView]:
        """Transactions whose decision is requested and that are neither ordered nor refused, oldest first."""

    def run_prepare_ordered(self, batch: Sequence[TxView]) -> None:
        """Order these transactions, in this order. The one way to a commit.

        A transaction is preceded by what it waits for (:meth:`wait_for_prior`): the host moves that forward, in front of it. If
        that has not asked for its own commit yet, the transaction stays in :meth:`requests`.
        """

    def refuse(self, tx: TxView, reason: str) -> None:
        """Roll ``tx`` back. Its client is told 406 with ``reason``; a branch in one phase is answered RBROLLBACK.

        Raises:
            CoordinatorMistakeError: ``tx`` is not ``refusable``, or ``reason`` is no text.
        """

    def carry_out(self, order: Order) -> None:
        """Refuse and order what ``order`` says.

        Raises:
            CoordinatorMistakeError: ``order`` is no partition of :meth:`requests`, or a reason is no text.
        """

    def wait_for_prior(self, tx: TxView, prior: str) -> None:
        """``tx`` is not ordered before the transaction of the id ``prior`` is, whatever anybody orders.

        If ``prior`` is rolled back before ``tx`` is ordered, or does not ask for its commit within ``max_withheld_ms``, ``tx`` is
        rolled back too (if it is not ``refusable`` it is ordered without). If it is committed already, nothing changes.

        A transaction waits for one other. To name the same one again changes nothing.

        Raises:
            CoordinatorMistakeError: ``prior`` waits for ``tx``, directly or over others; or it is no id of a transaction; or ``tx``
                waits for another one already, and goes on to do so.
        """


class Participant:
    """One that takes part in each transaction: it may refuse it, and hears of it in the order of commits.

    A participant overrides what it wants to hear. What it does not override is not called. It counts as one that *needs two
    phases* if it overrides anything (`needs_two_phases`). All views of one transaction are the same object, from ``prepare`` on.

    What is decided by a recovery or by another broker of the group is not told: a core begins with what its log says.

    Attributes:
        name: for ``/status`` and errors; of a coordinator, that of its entry point.
    """

    name: str = ""

    def prepare(self, tx: TxView) -> str:
        """The verdict on ``tx``: "" to commit, else the reason for which it is rolled back. An exception counts as a refusal.

        Of a distributed branch it is asked when its manager prepares it: the manager is answered RBROLLBACK. A branch that another
        core has prepared was asked there.
        """
        return ""

    def prepare_ordered(self, tx: TxView, csn: int) -> None:
        """The place of ``tx`` in the order of commits is fixed; nothing is durable. It can still be rolled back.

        Args:
            tx: as `prepare` was shown it.
            csn: its commit sequence number. Ascends; a large message outside of transactions takes a number too.
        """

    def commit_ordered(self, tx: TxView, csn: int) -> None:
        """``tx`` is committed for good, and applied to all queues. Its client is answered after this. Ascends by ``csn``."""

    def rolled_back(self, tx: TxView, reason: str) -> None:
        """``tx``, to which this participant has agreed, is rolled back."""

    def unlog(self, tx: TxView, errors: Sequence[str]) -> None:
        """The COMMIT of ``tx`` is stable: recovery need not ask for it again. No client waits for this call, and no sync follows.

        Args:
            tx: as `prepare` was shown it.
            errors: what hooks have raised for ``tx`` since its decision, in their order; mostly none.
        """


class Coordinator(Participant):
    """Chooses the order of commits. Registered as the first participant, as MariaDB's binary log is.

    Attributes:
        api_version: of the port for which the class was written: `API_VERSION` of that time, as a number. Each plugin states it in
            its own code: what it inherits from this room does not count (`stated_version`). Another one is refused at the start.
        host: what it may ask of its broker.
        options: of ``[transactions.options]``, name to text.
    """

    api_version: ClassVar[int] = 0

    def __init__(self, host: CoordinatorHost, options: Mapping[str, str]) -> None:
        """Create a coordinator; an exception refuses the start, with its text. ``host`` has no requests yet."""
        self.host = host
        self.options = options
        self.name = host.name

    def participants(self) -> Sequence[Participant]:
        """Those that take part behind the coordinator itself, in this order. Asked once, after the construction."""
        return ()

    def log_and_order(self, tx: TxView) -> None:
        """All participants have prepared ``tx``: its decision is requested.

        What it raises refuses ``tx``, if ``tx`` is still to be ordered and refusable; else ``tx`` is ordered as it came.
        """
        raise NotImplementedError

    def group_due(self, trigger: Trigger) -> None:
        """A group is due: order, refuse, or leave each of the requests. Not called without requests.

        What it raises refuses all requests that are still to be ordered; what cannot be refused is ordered as it came.
        """
