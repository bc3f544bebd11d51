"""BrokerNode: what one broker process is made of, less its I/O: state, recovery, broker, and at most one extension.

A driver (``broker.server``, or the simulator) makes a node, shows its :attr:`recovery` the frames of the journal, calls
:meth:`open`, and then feeds facts and ends turns. A node that leads never follows later: it is dropped, and a new
one is recovered.
"""

from __future__ import annotations

from collections.abc import Callable

from understudy.broker.coordinators import CoordinatorChoice
from understudy.broker.core.broker import Broker
from understudy.broker.core.life.building import build_broker
from understudy.broker.core.life.compaction import Compaction
from understudy.broker.core.life.continuing import continue_state
from understudy.broker.core.life.recovery import Recovery, checkpoint_parts
from understudy.broker.core.limits import Limits
from understudy.broker.core.state import BrokerState
from understudy.broker.core.topology.policies import Policies
from understudy.broker.core.turn.expiry_clock import ExpiryClock
from understudy.broker.core.turn.role import Role
from understudy.broker.core.turn.work_refusals import DISK, MEMORY
from understudy.broker.log import frame, journal_gate
from understudy.broker.log.handed_out_note import HandedOutNote
from understudy.broker.log.journal_gate import JournalGate, JournalPort
from understudy.broker.log.paged_bodies import PagedBodies
from understudy.broker.message import Spill
from understudy.broker.plugin_api.core_extension import CoreExtension

KEPT_BYTES = 128 << 20


class BrokerNode:
    """One core.

    Attributes:
        recovery: the visitor for ``journal_recovery.recover``.
        broker, role, gate, compaction: there after :meth:`open`.
    """

    broker: Broker
    role: Role
    gate: JournalGate
    compaction: Compaction

    def __init__(
        self,
        name: str,
        limits: Limits,
        random_bytes: Callable[[int], bytes],
        extension: CoreExtension | None = None,
        kept_bytes: int = KEPT_BYTES,
        spill: Spill | None = None,
        expiry_clock: ExpiryClock | None = None,
        coordinator: CoordinatorChoice | None = None,
        policies: Policies | None = None,
        bodies: PagedBodies | None = None,
    ) -> None:
        """A core that is not open.

        ``spill``: where bodies of large transactions go; without one they stay in memory. ``expiry_clock``: of the process.
        ``coordinator``: of which the core makes its own; None: group commit. ``policies``: None for none. ``bodies``: those of
        the journal, for messages whose bodies leave the memory; None: all stay.
        """
        self.name = name
        self.state = BrokerState(kept_bytes, spill, limits.tx_memory_bytes, policies, bodies, limits.paging)
        self.extension = extension
        self._limits = limits
        self._random_bytes = random_bytes
        self._expiry_clock = expiry_clock
        self._coordinator = coordinator
        self._epoch_offset = 0
        if extension is not None:
            extension.attach(self.state)
            self.recovery = Recovery(self.state, extension.replay_note, extension.replay_extras)
        else:
            self.recovery = Recovery(self.state, None, None)

    def checkpoint(self) -> bytes:
        """The frame that begins a new segment: with it, everything in older segments but live messages may go."""
        extras = self.extension.extras() if self.extension is not None else b""
        return frame.encode_note_of_parts(journal_gate.CHECKPOINT, checkpoint_parts(self.state, extras))

    def continue_from(self, ended: BrokerNode) -> None:
        """Hold what the journal says, without reading it: instead of showing it to :attr:`recovery`. See ``core.life.continuing``.

        Args:
            ended: the core before this one, of which ``continuing.why_not`` says nothing. It must end no turn any more.
        """
        continue_state(ended.state, self.state)
        if self.extension is not None and ended.extension is not None:
            self.extension.replay_extras(ended.extension.extras(), 0)

    def open(self, journal: JournalPort, now_ms: int, wall_ms: int) -> None:
        """Recovery is over: begin to run. Alone, the broker leads at once, and serves when its EPOCH record is durable.

        Raises:
            CoordinatorRefusedError: the coordinator cannot be made. The journal has been read and not changed.
        """
        self.recovery.finish()
        self.state.put_off.begin()
        self.gate = JournalGate(journal, self.state.log.durable)
        self.compaction = Compaction(self.state, self.gate)
        self.broker = build_broker(
            self.state, self.gate, self._limits, self._random_bytes, self._expiry_clock, self._coordinator
        )
        self.role, self._batch = self.broker.role, self.broker.batch
        self.broker.tick(now_ms, wall_ms)
        if self.extension is not None:
            self.extension.opened(self.broker, self.gate)
        else:
            epoch = max(self.state.log.epochs.newest, self.recovery.epoch_seen) + 1
            self._epoch_offset = self.broker.lead(epoch, self.name, epoch > 1)

    def tick(self, now_ms: int, wall_ms: int) -> None:
        """Time passes; a turn must be ended after it."""
        self.broker.tick(now_ms, wall_ms)
        self.state.put_off.tick()
        self.state.paging.tick()
        if self.extension is not None:
            self.extension.tick(now_ms)

    def note_handed_out(self) -> None:
        """The process stops, and no client is left: keep what was handed out apart, if this broker leads and all is applied."""
        state, role = self.state, self.role
        log = state.log
        if role.leading and role.answering and log.applied == log.end == log.closed_end:
            below = {queue.id: queue.handed_out_below() for queue in state.queues.values() if queue.logged}
            self.gate.append_note(journal_gate.HANDED_OUT, HandedOutNote(log.epoch, log.end, below).encode())

    def disk_low(self, reason: str, room: int = -1) -> None:
        """The disk is nearly full, and why ("": there is room again). May be said again and again.

        ``room``: for how many bytes of log there would be room if everything that this journal holds were let go.
        """
        if self.extension is not None:
            self.extension.disk_low(reason, room)
        else:
            self.broker.refuse_work(DISK, reason)

    def memory_full(self, reason: str) -> None:
        """Messages fill the memory, and how far ("": there is room again). May be said again and again."""
        self.broker.refuse_work(MEMORY, reason)

    def holds_what_goes(self) -> bool:
        """True if refusing new work helps the memory: there are messages to take, or much that is not whole or not stable."""
        broker = self.broker
        return self.state.holds_messages() or broker.unstable.held > broker.limits.unstable_bytes_per_connection

    def durable_to(self, frames: int) -> None:
        """The first ``frames`` frames given to the journal are fsynced."""
        self.gate.durable_to(frames)
        if self.extension is not None:
            self.extension.durable()
        else:
            self.broker.durable(self.gate.durable_offset)
            if not self.role.answering and self.state.log.durable >= self._epoch_offset:
                self.broker.serve()

    @property
    def due(self) -> bool:
        """True if something has become stable since the last turn, which the next one would apply and answer.

        A broker that does not lead has nothing to end a turn for when it becomes durable: what it says then, it has said.
        """
        role = self.role
        if not role.leading:
            return False
        return not role.answering or self._batch.stability.stable_offset() > self.state.log.stable

    def answer(self) -> None:
        """The first half of a turn (``core.life.turn``): apply and answer what has become stable."""
        if self.role.leading:
            self.broker.advance()

    @property
    def urgent(self) -> bool:
        """True if the second half of the turn gives other brokers or the journal something that is waited for."""
        batch = self._batch
        return batch.eager or self.broker.transactions.coordinator.fresh() > 0 or batch.is_waited_for()

    @property
    def withholds(self) -> bool:
        """True if a coordinator has been offered commits, and has left them for later."""
        order = self.broker.transactions.coordinator
        return order.waiting() > order.fresh()

    def gather(self, flush: bool) -> bool:
        """The second half: close what the turn has gathered into a batch, and serve the links.

        Returns:
            Whether something was left for later because nobody waits for it: the driver ends another turn with ``flush``
            within ``broker.LAZY_MS``, unless one without comes first and returns False.
        """
        left = self.broker.gather(flush)
        if self.extension is not None:
            left = self.extension.end_turn(flush) or left
        return left

    def after_turn(self) -> bool:
        """Do what can wait: the turn's output is written, and its journal group is begun.

        Returns:
            True if another turn must be ended soon: more has been put off.
        """
        if self.extension is not None:
            self.extension.after_turn()
        self.state.paging.turn()
        put_off, purging = self.state.put_off, self.broker.moving.purging
        if purging.waiting:
            purging.step()
            return True
        if put_off.waiting and put_off.turn():
            return True
        return self.role.leading and self.state.log.short

    def droppable_before(self, checkpoint_offset: int) -> int:
        """Leading segments whose batches all end at or before this hold nothing that is needed.

        Args:
            checkpoint_offset: the applied offset that the newest durable checkpoint states.
        """
        state = self.state
        oldest = state.oldest_live_offset()
        if state.applying.deduplicates:
            oldest = state.id_windows.oldest_needed(checkpoint_offset, oldest)
        if oldest <= state.log.start:  # a message from before the log began: its segment is dead but for it
            return 0
        return min(oldest - 1, checkpoint_offset)
