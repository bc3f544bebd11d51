"""Building: a broker is put together here, and nowhere else: its owners, then itself, then the parts that call it."""

from __future__ import annotations

from collections.abc import Callable

from understudy.broker.coordinators import CoordinatorChoice
from understudy.broker.core.branches.dtx_manager import DtxManager
from understudy.broker.core.broker import Broker
from understudy.broker.core.clients.consumer_timeouts import ConsumerTimeouts
from understudy.broker.core.clients.judged_publishes import JudgedPublishes
from understudy.broker.core.clients.reception import Reception
from understudy.broker.core.clients.unstable_bytes import UnstableBytes
from understudy.broker.core.commits.alone import AloneStability
from understudy.broker.core.commits.parted_bodies import PartedBodies
from understudy.broker.core.commits.transactions import Transactions
from understudy.broker.core.limits import Limits
from understudy.broker.core.moving.dead_letter_moves import Moving
from understudy.broker.core.moving.deduplicating import Deduplicating
from understudy.broker.core.moving.delays import Delays
from understudy.broker.core.moving.expiry import Expiry
from understudy.broker.core.moving.returning import Returning
from understudy.broker.core.owned import Owned
from understudy.broker.core.requests.admin import AdminCommands
from understudy.broker.core.state import BrokerState
from understudy.broker.core.turn.clock import Clock
from understudy.broker.core.turn.completions import Completions
from understudy.broker.core.turn.counters import Counters
from understudy.broker.core.turn.expiry_clock import ExpiryClock
from understudy.broker.core.turn.name_bars import NameBars
from understudy.broker.core.turn.open_batch import OpenBatch
from understudy.broker.core.turn.queue_declarations import QueueDeclarations
from understudy.broker.core.turn.role import Role
from understudy.broker.core.turn.work_refusals import WorkRefusals
from understudy.broker.core.watching.hooks import Hooks
from understudy.broker.core.watching.pause_watch import PauseWatch
from understudy.broker.log.journal_gate import JournalGate


def build_broker(
    state: BrokerState,
    gate: JournalGate,
    limits: Limits,
    random_bytes: Callable[[int], bytes],
    expiry_clock: ExpiryClock | None = None,
    coordinator: CoordinatorChoice | None = None,
) -> Broker:
    """Put together a broker that does not lead yet.

    Args:
        state: what it holds.
        gate: takes its batches.
        limits: bounds.
        random_bytes: so many octets of chance.
        expiry_clock: of the process; None: of its own.
        coordinator: of which it makes its own; None: group commit.

    Raises:
        CoordinatorRefusedError: the coordinator cannot be made.
    """
    broker = Broker(state, limits, random_bytes, _owned(state, gate, limits, Clock(expiry_clock)))
    broker.take_parts(
        parted_bodies=PartedBodies(broker),
        pauses=PauseWatch(broker),
        dtx=DtxManager(broker),
        admin=AdminCommands(broker),
        expiry=Expiry(broker),
        moving=Moving(broker),
        consumer_timeouts=ConsumerTimeouts(broker),
        returning=Returning(broker),
        delays=Delays(broker),
        deduplicating=Deduplicating(broker),
        judged=JudgedPublishes(broker),
    )
    broker.take_transactions(Transactions(broker, coordinator))
    return broker


def _owned(state: BrokerState, gate: JournalGate, limits: Limits, clock: Clock) -> Owned:
    role, counters, completions, reception = Role(), Counters(), Completions(), Reception()
    batch = OpenBatch(state, gate, AloneStability(state), clock, counters, completions)
    return Owned(
        clock=clock,
        role=role,
        work=WorkRefusals(),
        counters=counters,
        reception=reception,
        unstable=UnstableBytes(limits, clock, reception.recheck_paused),
        hooks=Hooks(state.applying.on_requeued),
        completions=completions,
        batch=batch,
        name_bars=NameBars(state.log, clock, batch.append_record),
        declarations=QueueDeclarations(batch, clock, role),
    )
