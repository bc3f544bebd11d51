"""HostedOrder: carries out what the coordinator of a plugin decides, and keeps its mistakes from the core.

The contract is that of ``broker/coordinators``. This is what enforces it:

* The host owns the requests. A coordinator that forgets one loses none: what is older than the bound is ordered here.
* ``run_prepare_ordered`` and ``run_commit_ordered`` are the only places where hooks of order run. No such hook can order anything.
* What a hook raises before PREPARE rolls back. What it raises afterwards is stored, counted, and told to ``unlog``.
* What the *core* raises under a call of the plugin ends the process as ever, whatever the plugin does with the exception.

A coordinator that overrides nothing is not hosted here: ``transactions/commit_order.py`` does the same without views.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from understudy.broker.coordinators.api import Coordinator, Participant, Trigger
from understudy.broker.coordinators.bases import HOOKS, overrides
from understudy.broker.coordinators.choice import CoordinatorChoice
from understudy.broker.core.commits.commit_request import CommitRequest, make_request
from understudy.broker.core.commits.coordinator_port import CoordinatorPort
from understudy.broker.core.commits.prior_waits import PriorWaits
from understudy.broker.plugin_api.plugin import PluginError
from understudy.broker.transactions.commit_order import CommitOrder, Decided, HookError
from understudy.broker.transactions.dtx_branch import BranchName
from understudy.broker.transactions.tx_buffer import TxBuffer

if TYPE_CHECKING:
    from understudy.broker.core.commits.transactions import Transactions

ERROR_CHARS: Final = 300
OFFER_MS: Final = 50
"""What is withheld is offered after that time at the latest, if a turn ends with ``flush``."""
OFFER_FLUSHES: Final = 32
"""While that time has not passed, at most so many turns with ``flush`` end without an offer."""


class CoordinatorRefusedError(PluginError):
    """A coordinator cannot be made; the message has its name and what it raised."""


class HostedOrder(CommitOrder):
    """The order of one core, as one coordinator object wants it.

    Args:
        transactions: of this core.
        choice: of which the coordinator is made.

    Attributes:
        name: of the coordinator.
        broker: the core.
        requests: asked for and neither ordered nor refused, by id as text, oldest first.
        priors: which of these wait for another transaction.
        hook: of order, that runs now; "" if none does.

    Raises:
        CoordinatorRefusedError: it cannot be made.
    """

    def __init__(self, transactions: Transactions, choice: CoordinatorChoice) -> None:
        super().__init__(transactions)
        self.name = choice.name
        self.broker = transactions.broker
        self._clock = transactions.broker.clock
        self.requests: dict[str, CommitRequest] = {}
        self.priors = PriorWaits(transactions, self.requests)
        self.hook = ""
        self._transactions = transactions
        self._bound_ms = choice.max_withheld_ms
        self._known: dict[int, CommitRequest] = {}
        """By transaction id, from the first question to the outcome."""
        self._committed: deque[CommitRequest] = deque()
        """Whose COMMIT is not stable yet, in the order of the log."""
        self._fresh = 0
        self._offered_ms = 0
        self._pause = 1
        """The next offer of what is withheld comes with the flush of this number; doubles while offers bring nothing."""
        self._flushes = 0
        """Turns with ``flush`` since the last offer."""
        self._crash: BaseException | None = None
        self._participants: list[Participant] = []
        self._coordinator = self._make(choice)
        self._hears = {hook: [each for each in self._participants if overrides(each, hook)] for hook in HOOKS}

    def _make(self, choice: CoordinatorChoice) -> Coordinator:
        try:
            coordinator = choice.coordinator(CoordinatorPort(self), choice.options)
            self._participants = [coordinator, *coordinator.participants()]
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise CoordinatorRefusedError(f"coordinator {choice.name!r} cannot be made: {text_of(error)}") from error
        names = [getattr(each, "name", "") for each in self._participants]
        if not all(isinstance(each, Participant) for each in self._participants) or len({*names, ""}) <= len(names):
            raise CoordinatorRefusedError(
                f"coordinator {choice.name!r} brings {names}: each has to be a Participant with a name of its own"
            )
        return coordinator

    # -- what the core asks -----------------------------------------------------------------------------------------

    def participants(self) -> list[str]:
        return [each.name for each in self._participants]

    def prepare(self, tx: TxBuffer, branch: BranchName) -> str:
        request = self._request(tx, branch)
        reason = self._vote(request)
        if reason:
            del self._known[tx.tx_id]
            self._run_rolled_back(request, request.agreed, reason)
        return reason

    def log_and_order(self, tx: TxBuffer, on_decided: Decided) -> None:
        tx.asks_commit(on_decided)
        branch = (tx.branch.vhost, tx.branch.xid) if tx.branch is not None else None
        request = self._known.get(tx.tx_id) or self._request(tx, branch)
        request.asks_commit(self._clock.now_ms)
        reason = "" if branch is not None else self._vote(request)
        if reason:
            self.roll_back(request, reason)
            return
        self.requests[request.view.tx_id] = request
        self._fresh += 1
        if not self._guarded("log_and_order", self._coordinator.log_and_order, request.view):
            self._give_up([request])

    def run_group(self, trigger: Trigger, flush: bool = False) -> None:
        self.tick()
        self._order_overdue()
        if not self.requests:
            self._fresh = 0
        elif self._fresh:
            self._pause = 1
            self._offer(trigger)
        elif flush and self._offer_due():
            self._pause = 1 if self._offer(Trigger.MAX_WAIT) else min(2 * self._pause, OFFER_FLUSHES)
        if self.hurried:
            self._force(list(self.requests.values()))

    def waiting(self) -> int:
        return len(self.requests)

    def fresh(self) -> int:
        return min(self._fresh, len(self.requests))

    def brings(self, queue_id: int) -> bool:
        return any(request.adds_to(queue_id) for request in self.requests.values())

    def rolled_back(self, tx: TxBuffer) -> None:
        request = self._known.pop(tx.tx_id, None)
        if request is not None:
            self._run_rolled_back(request, request.agreed, tx.reason)

    def tick(self) -> None:
        """Tell of what has a stable COMMIT. Nothing waits for that."""
        applied, committed = self.broker.log.applied, self._committed
        while committed and committed[0].unlogged_at <= applied:
            request = committed.popleft()
            errors = tuple(request.errors)
            for each in self._hears["unlog"]:
                self._run_hook(each, "unlog", request, each.unlog, request.view, errors)

    # -- what holds the order ---------------------------------------------------------------------------------------

    def order_requests(self, batch: Sequence[CommitRequest]) -> None:
        """Order ``batch``, each behind what it waits for; roll back what waits for something that was rolled back."""
        arranged = self.priors.arrange(batch)
        for request, reason in arranged.fallen:
            self.roll_back(request, reason)
        self.run_prepare_ordered([request.tx for request in arranged.now])

    def run_prepare_ordered(self, batch: list[TxBuffer]) -> None:
        if batch:
            self.group_sizes.observe(len(batch))
        for tx in batch:
            request = self._known[tx.tx_id]
            self._drop(request)  # one at a time: what ends this loop leaves the rest as requests
            self._core(self._transactions.prepare_ordered, tx)
            assert tx.prepare is not None, f"transaction {tx.tx_id} is ordered and has no PREPARE"
            request.take_place(tx.prepare.csn)
            for each in self._hears["prepare_ordered"]:
                self._run_hook(each, "prepare_ordered", request, each.prepare_ordered, request.view, request.csn)

    def run_commit_ordered(self, batch: list[TxBuffer]) -> None:
        for tx in batch:
            self._transactions.commit_ordered(tx)
            request = self._known.pop(tx.tx_id, None)
            if request is None:  # another core has prepared it, or has ordered it
                continue
            for each in self._hears["commit_ordered"]:
                self._run_hook(each, "commit_ordered", request, each.commit_ordered, request.view, request.csn)
            request.committed(tx.outcome_offset)
            self._committed.append(request)

    def roll_back(self, request: CommitRequest, reason: str) -> None:
        """Roll a transaction back that is not closed; its client is told ``reason``."""
        self._drop(request)
        self._known.pop(request.tx.tx_id, None)
        self._core(self._transactions.refuse, request.tx, reason)
        self._run_rolled_back(request, request.agreed, reason)

    # -- offers -----------------------------------------------------------------------------------------------------

    def _offer(self, trigger: Trigger) -> bool:
        """A group is due. Returns whether that has decided anything; if not, it counts as no group."""
        self._fresh = self._flushes = 0
        self._offered_ms = self._clock.now_ms
        before = len(self.requests)
        if not self._guarded("group_due", self._coordinator.group_due, trigger):
            self._give_up(list(self.requests.values()))
        decided = len(self.requests) < before
        self.triggers[trigger] += decided
        return decided

    def _offer_due(self) -> bool:
        """True if withheld requests are due for another offer. The clock of a core has no milliseconds: turns are counted, too."""
        self._flushes += 1
        return self._flushes >= self._pause or self._clock.now_ms - self._offered_ms >= OFFER_MS

    # -- what is not left to the coordinator ------------------------------------------------------------------------

    def _order_overdue(self) -> None:
        """Order every request that is older than the bound, whatever the coordinator says."""
        overdue = []
        for request in self.requests.values():
            if self._clock.now_ms - request.asked_ms < self._bound_ms:
                break
            overdue.append(request)
        self._force(overdue)

    def _force(self, batch: list[CommitRequest]) -> None:
        """Order ``batch`` without the coordinator. A request falls if the transaction that it waits for has not asked.

        A branch that must commit goes first, and what waits for that branch behind it. The longest chain of waits bounds the
        rounds: each round ends the wait of all first links.
        """
        if not batch:
            return
        self.forced += len(batch)
        self.order_requests(batch)
        while left := {each.view.tx_id: each for each in batch if each.view.tx_id in self.requests}:
            first = [each for each in left.values() if self.priors.of(each) not in left]
            held = [each for each in first if not each.view.refusable]
            for request in held:
                self.priors.forget(request)
            for request in () if held else first:
                reason = f"transaction {self.priors.of(request)}, for which it waits, was not committed in time"
                self.roll_back(request, reason)
            self.order_requests([each for each in left.values() if each.view.tx_id in self.requests])

    def _give_up(self, batch: list[CommitRequest]) -> None:
        """The coordinator has raised: nothing of what it left is durable, so it is rolled back."""
        assert self.newest_error is not None
        reason = (
            f"coordinator {self.name} failed: {self.newest_error.error}"  # a hook of a rollback may raise another error
        )
        left = [each for each in batch if each.view.tx_id in self.requests]
        for request in left:
            if request.view.refusable and request.view.tx_id in self.requests:
                self.roll_back(request, reason)
        self._force([each for each in left if each.view.tx_id in self.requests])

    # -- requests ---------------------------------------------------------------------------------------------------

    def _request(self, tx: TxBuffer, branch: BranchName | None) -> CommitRequest:
        request = self._known[tx.tx_id] = make_request(self.broker.state, tx, branch, self._clock.now_ms)
        return request

    def _drop(self, request: CommitRequest) -> None:
        """Forget a request."""
        self.requests.pop(request.view.tx_id, None)
        self.priors.forget(request)

    def _vote(self, request: CommitRequest) -> str:
        """The reason of the first participant that refuses; "" if all agree. Those that had agreed are told."""
        for each in self._hears["prepare"]:
            said: list[str] = []
            if not self._guarded(f"{each.name}.prepare", _ask, each, request, said):
                assert self.newest_error is not None
                said.append(self.newest_error.error)
            reason = said[0]
            if reason:
                return f"refused by participant {each.name}: {reason}"
            request.agreed.append(each)
        return ""

    def _run_rolled_back(self, request: CommitRequest, agreed: list[Participant], reason: str) -> None:
        for each in self._hears["rolled_back"]:
            if each in agreed or not overrides(each, "prepare"):
                self._run_hook(each, "rolled_back", request, each.rolled_back, request.view, reason)

    # -- calling ----------------------------------------------------------------------------------------------------

    def _run_hook(
        self, participant: Participant, hook: str, request: CommitRequest, call: Callable[..., None], *args: object
    ) -> None:
        """A hook of order: what it raises is kept with the request."""
        before, self.hook = self.hook, f"{participant.name}.{hook}"
        try:
            if not self._guarded(self.hook, call, *args):
                assert self.newest_error is not None
                request.errors.append(f"{self.newest_error.hook}: {self.newest_error.error}")
        finally:
            self.hook = before

    def _guarded(self, hook: str, call: Callable[..., object], *args: object) -> bool:
        """Call code of a plugin. False: it has raised, which is stored.

        That holds for each exception, ``asyncio.CancelledError`` and ``SystemExit`` too: none may end a broker, or cut a group
        short. A KeyboardInterrupt is the operator's and ends the process.
        """
        try:
            call(*args)
        except KeyboardInterrupt as error:
            self._crash = self._crash or error
        except BaseException as error:  # noqa: BLE001  # as the docstring says
            if self._crash is None:
                self._failed(hook, error)
            return self._past(False)
        return self._past(True)

    def _past(self, succeeded: bool) -> bool:
        """Raise again what the core raised under the call, whatever the plugin did with it."""
        if self._crash is not None:
            raise self._crash
        return succeeded

    def _core(self, call: Callable[..., None], *args: object) -> None:
        try:
            call(*args)
        except BaseException as error:
            self._crash = error
            raise

    def _failed(self, hook: str, error: BaseException) -> None:
        self.errors += 1
        self.newest_error = HookError(self._clock.wall_ms, hook, text_of(error))
        if self.on_error is not None:
            self.on_error(self.newest_error)


def _ask(participant: Participant, request: CommitRequest, said: list[str]) -> None:
    reason = participant.prepare(request.view)
    if not isinstance(reason, str):
        raise TypeError(f"prepare has returned {reason!r}; it returns a text, empty for yes")
    said.append(reason)


def text_of(error: BaseException) -> str:
    """For people. The text of an exception is code of the plugin, too."""
    try:
        return f"{type(error).__name__}: {error}"[:ERROR_CHARS]
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001  # as above
        return type(error).__name__
