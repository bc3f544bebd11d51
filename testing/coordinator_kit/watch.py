"""Watch: what a coordinator is asked, what it asks for, and what participants hear, in one sequence."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from itertools import product
from typing import Any, Final, NamedTuple, cast

from understudy.broker.coordinators import (
    Coordinator,
    CoordinatorHost,
    CoordinatorMistakeError,
    Order,
    Participant,
    Trigger,
    TxView,
)
from understudy.testing.coordinator_kit.call_times import CallTimes

COORDINATOR: Final = "coordinator"
ORDERED: Final = frozenset({"prepare_ordered", "commit_ordered", "rolled_back", "unlog"})
"""Hooks of which none is called within another."""


class Kind(Enum):
    """The kind of an event."""

    PREPARE = "prepare"
    SAID_NO = "prepare, refused"
    REQUESTED = "log_and_order"
    GROUP_DUE = "group_due"
    SAID_NOW = "order, now"
    SAID_LATER = "order, later"
    SAID_REFUSED = "order, refused"
    ASKED_TO_ORDER = "run_prepare_ordered"
    ASKED_TO_REFUSE = "refuse"
    MISPLACED = "order, misplaced"
    MISTAKE = "mistake"
    RAISED = "raised"
    PREPARE_ORDERED = "prepare_ordered"
    COMMIT_ORDERED = "commit_ordered"
    ROLLED_BACK = "rolled_back"
    UNLOG = "unlog"


SAID: Final = frozenset({Kind.SAID_NOW, Kind.SAID_LATER, Kind.SAID_REFUSED})


class Seen(NamedTuple):
    """One thing that happened.

    Attributes:
        who: the participant; `COORDINATOR` for the one under test.
        tx: the name that its client has given to the transaction; "" if it concerns none.
        csn: commit sequence number; 0 where there is none yet.
        durable: the offset up to which the log was fsynced at that moment.
        syncs: how many syncs the disk had done.
        now_ms: the broker's clock.
        text: a reason, an error, a trigger.
        within: True if it happened before an ordered hook of the coordinator had returned.
    """

    kind: Kind
    who: str
    tx: str
    csn: int
    durable: int
    syncs: int
    now_ms: int
    text: str
    within: bool


class Watch:
    """Keeps names and numbers, and no view of a transaction.

    Args:
        clock: gives (durable offset, syncs, now ms) of the broker, from its start on.
        times: of the calls of the coordinator; None: they are not timed.

    Attributes:
        seen: all that happened, over all lives of the broker.
        prior: name of a transaction to the name of the one that it is to wait for, as soon as it is requested.
        ids: name to id of each transaction.
        views: weak references to each view, of what is refused too.
    """

    def __init__(self, clock: Callable[[], tuple[int, int, int]], times: CallTimes | None = None) -> None:
        self.seen: list[Seen] = []
        self.prior: dict[str, str] = {}
        self.ids: dict[str, str] = {}
        self.views: list[weakref.ref[TxView]] = []
        self._clock = clock
        self._times = times
        self._depth = 0

    def note(self, kind: Kind, who: str, tx: TxView | None = None, csn: int = 0, text: str = "") -> None:
        """Add one thing."""
        durable, syncs, now_ms = self._clock()
        name = tx.name if isinstance(tx, TxView) else ""
        self.seen.append(Seen(kind, who, name, csn, durable, syncs, now_ms, text, self._depth > 0))

    def hook(self, call: Callable[[], Any], who: str, what: str) -> Any:
        """Call something of the coordinator, and note what it raises."""
        self._depth += what in ORDERED
        try:
            with self.timed(what):
                return call()
        except Exception as error:
            kind = Kind.MISTAKE if isinstance(error, CoordinatorMistakeError) else Kind.RAISED
            self.note(kind, who, text=f"{what}: {type(error).__name__}: {error}")
            raise
        finally:
            self._depth -= what in ORDERED

    def timed(self, what: str) -> AbstractContextManager[None]:
        """Time the body, a call of the coordinator's method ``what``, if calls are timed."""
        return nullcontext() if self._times is None else self._times.call(what)

    def of(self, kind: Kind, who: str = "") -> list[Seen]:
        """Everything of a kind; of one participant if ``who`` is given."""
        return [each for each in self.seen if each.kind is kind and who in ("", each.who)]

    def names(self, kind: Kind, who: str = "") -> list[str]:
        """The transactions of :meth:`of`, in that order."""
        return [each.tx for each in self.of(kind, who)]

    def coordinator_class(self, plain: type[Coordinator], participants: Sequence[Participant]) -> type[Coordinator]:
        """``plain`` under watch, with ``participants`` behind its own."""

        def __init__(self: Coordinator, host: CoordinatorHost, options: Mapping[str, str]) -> None:  # noqa: N807
            with watch.timed("__init__"):
                plain.__init__(self, cast("CoordinatorHost", WatchedHost(host, watch)), options)

        watch = self
        members: dict[str, Any] = {"__init__": __init__, "watch": self, "behind": tuple(participants)}
        return cast("type[Coordinator]", type(plain.__name__, (_Watched, plain), members))


class WatchedHost:
    """Stands between a coordinator and its host."""

    def __init__(self, host: CoordinatorHost, watch: Watch) -> None:
        self._host = host
        self._watch = watch

    @property
    def name(self) -> str:
        return self._host.name

    @property
    def now_ms(self) -> int:
        return self._host.now_ms

    def requests(self) -> Sequence[TxView]:
        return self._host.requests()

    def run_prepare_ordered(self, batch: Sequence[TxView]) -> None:
        for tx in batch:
            self._watch.note(Kind.ASKED_TO_ORDER, COORDINATOR, tx)
        self._host.run_prepare_ordered(batch)

    def refuse(self, tx: TxView, reason: str) -> None:
        self._watch.note(Kind.ASKED_TO_REFUSE, COORDINATOR, tx, text=reason)
        self._host.refuse(tx, reason)

    def carry_out(self, order: Order) -> None:
        for tx in order.now:
            self._watch.note(Kind.ASKED_TO_ORDER, COORDINATOR, tx)
        for refused in order.refused:
            self._watch.note(Kind.ASKED_TO_REFUSE, COORDINATOR, refused.tx, text=refused.reason)
        self._host.carry_out(order)

    def wait_for_prior(self, tx: TxView, prior: str) -> None:
        self._host.wait_for_prior(tx, prior)


class _Watched(Coordinator):
    """Stands before the coordinator's own class, and notes each call."""

    watch: Watch
    behind: tuple[Participant, ...]

    def participants(self) -> Sequence[Participant]:
        with self.watch.timed("participants"):
            return [*super().participants(), *self.behind]

    def log_and_order(self, tx: TxView) -> None:
        watch = self.watch
        watch.note(Kind.REQUESTED, COORDINATOR, tx)
        watch.ids[tx.name] = tx.tx_id
        prior = watch.prior.get(tx.name)
        if prior is not None:
            self.host.wait_for_prior(tx, watch.ids[prior])
        watch.hook(lambda: super(_Watched, self).log_and_order(tx), COORDINATOR, "log_and_order")

    def order(self, batch: Sequence[TxView]) -> Order:
        """Only of a coordinator that has an ``order``; else nothing calls this."""
        rule = cast("Any", super()).order
        said: Order = self.watch.hook(lambda: rule(batch), COORDINATOR, "order")
        refused = [each.tx for each in said.refused]
        for kind, views in ((Kind.SAID_NOW, said.now), (Kind.SAID_LATER, said.later), (Kind.SAID_REFUSED, refused)):
            for tx in views:
                self.watch.note(kind, COORDINATOR, tx)
        places = Counter([*said.now, *said.later, *refused])
        for tx in dict.fromkeys((*batch, *places)):
            if places[tx] != (tx in batch):
                text = f"{tx.name} is offered {int(tx in batch)} times and placed {places[tx]} times"
                self.watch.note(Kind.MISPLACED, COORDINATOR, tx, text=text)
        return said

    def group_due(self, trigger: Trigger) -> None:
        self.watch.note(Kind.GROUP_DUE, COORDINATOR, text=trigger.value)
        self.watch.hook(lambda: super(_Watched, self).group_due(trigger), COORDINATOR, "group_due")

    def prepare(self, tx: TxView) -> str:
        self.watch.note(Kind.PREPARE, COORDINATOR, tx)
        self.watch.views.append(weakref.ref(tx))
        reason: str = self.watch.hook(lambda: super(_Watched, self).prepare(tx), COORDINATOR, "prepare")
        if reason:
            self.watch.note(Kind.SAID_NO, COORDINATOR, tx, text=reason)
        return reason

    def prepare_ordered(self, tx: TxView, csn: int) -> None:
        self.watch.note(Kind.PREPARE_ORDERED, COORDINATOR, tx, csn)
        self.watch.hook(lambda: super(_Watched, self).prepare_ordered(tx, csn), COORDINATOR, "prepare_ordered")

    def commit_ordered(self, tx: TxView, csn: int) -> None:
        self.watch.note(Kind.COMMIT_ORDERED, COORDINATOR, tx, csn)
        self.watch.hook(lambda: super(_Watched, self).commit_ordered(tx, csn), COORDINATOR, "commit_ordered")

    def rolled_back(self, tx: TxView, reason: str) -> None:
        self.watch.note(Kind.ROLLED_BACK, COORDINATOR, tx, text=reason)
        self.watch.hook(lambda: super(_Watched, self).rolled_back(tx, reason), COORDINATOR, "rolled_back")

    def unlog(self, tx: TxView, errors: Sequence[str]) -> None:
        self.watch.note(Kind.UNLOG, COORDINATOR, tx, text="; ".join(errors))
        self.watch.hook(lambda: super(_Watched, self).unlog(tx, errors), COORDINATOR, "unlog")


class KitParticipant(Participant):
    """A participant of the kit: notes what it hears, refuses and raises where a check wants it.

    Attributes:
        refuses: name of a transaction to the reason.
        raises: (hook, name of a transaction) at which it raises.
    """

    def __init__(self, name: str, watch: Watch) -> None:
        self.name = name
        self.refuses: dict[str, str] = {}
        self.raises: set[tuple[str, str]] = set()
        self._watch = watch

    def plan_refusals(self, reasons: Mapping[str, str]) -> None:
        """Refuse the PREPARE of these transactions, by name, each with its reason."""
        self.refuses.update(reasons)

    def plan_errors(self, kinds: Iterable[Kind], names: Iterable[str]) -> None:
        """Raise in the hooks ``kinds`` of the transactions ``names``."""
        self.raises.update(product((kind.value for kind in kinds), names))

    def prepare(self, tx: TxView) -> str:
        self._hear(Kind.PREPARE, tx)
        reason = self.refuses.get(tx.name, "")
        if reason:
            self._watch.note(Kind.SAID_NO, self.name, tx, text=reason)
        return reason

    def prepare_ordered(self, tx: TxView, csn: int) -> None:
        self._hear(Kind.PREPARE_ORDERED, tx, csn)

    def commit_ordered(self, tx: TxView, csn: int) -> None:
        self._hear(Kind.COMMIT_ORDERED, tx, csn)

    def rolled_back(self, tx: TxView, reason: str) -> None:
        self._hear(Kind.ROLLED_BACK, tx, text=reason)

    def unlog(self, tx: TxView, errors: Sequence[str]) -> None:
        self._hear(Kind.UNLOG, tx, text="; ".join(errors))

    def _hear(self, kind: Kind, tx: TxView, csn: int = 0, text: str = "") -> None:
        self._watch.note(kind, self.name, tx, csn, text)
        if (kind.value, tx.name) in self.raises:
            raise OSError(f"{self.name} stumbles at {kind.value} of {tx.name}")
