"""One simulated broker process around the real core: disk, journal, turns, crashes, pauses.

It is to the product's `TurnEngine` what `broker.server.turn.node_driver` is: it feeds the core, does what a turn asks for, runs one
sync of the journal at a time, drops dead segments, and makes a new core when the old one steps down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs

from tests.simulator.checkers.fair_time import FairTime
from tests.simulator.checkers.instruments import WatchedLive
from tests.simulator.checkers.kept_bodies import KeptBodies
from tests.simulator.crash_points import points_of_refusal
from tests.simulator.knobs import Knobs
from tests.simulator.memory_spill import MemorySpill
from tests.simulator.release import THIS, Release
from tests.simulator.sim_network import LinkEnd, Network
from tests.simulator.sim_store import SimCoordination, SimStore
from tests.simulator.unruly_coordinator import unruly_choice
from tests.simulator.world import MS, World
from understudy.broker.core.broker import LAZY_MS
from understudy.broker.core.life import continuing
from understudy.broker.core.life.gate_port import GatePort
from understudy.broker.core.life.let_go import let_go_in_slices
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.core.life.recovery import Recovery
from understudy.broker.core.life.turn import TurnEngine
from understudy.broker.core.state import BrokerState
from understudy.broker.core.topology.policies import Policies
from understudy.broker.core.turn.expiry_clock import ExpiryClock
from understudy.broker.log.body_read import ReadJob, WantedBody
from understudy.broker.log.journal import Journal, JournalFailedError
from understudy.broker.log.journal_recovery import recover, scan, sealed_octets
from understudy.broker.log.paged_bodies import Fetched, PagedBodies
from understudy.broker.log.segment import (
    SEGMENT_HEADER_BYTES,
    JournalDamagedError,
    JournalIdentity,
    segment_number,
)
from understudy.broker.log.storage import StorageFullError, SyncJob
from understudy.ha.extension import HaExtension
from understudy.ha.following.lost_records import own_loss
from understudy.ha.ha_broker import HaBroker
from understudy.ha.settings import HaSettings
from understudy.ha.showing.events import BackupNotReady, HaEvent, TrackerAdded, TrackerCleared, TransactionRefused
from understudy.ha.status import BrokerStatus, explained, since_text
from understudy.ha.store.coordination import BrokerInfo
from understudy.replicator.receiving.broker_replicator import BrokerReplicator
from understudy.replicator.receiving.disk_claim import DiskClaim
from understudy.testing.coordinator_kit.kit_client import AnyUser
from understudy.testing.disk import MemoryStorage, PowerCutError

if TYPE_CHECKING:
    from tests.simulator.checkers import Checkers
    from tests.simulator.sim_client import Session
    from tests.simulator.sim_facts import SimFacts

TICK_US = 100 * MS
FETCH_US = (50, 20_000)
"""So long it takes until bodies are read from a journal."""
SHARED_TURN_US = (20, 600)
"""So long a turn is left open for others to share it."""
HOUSEKEEPING_TICKS = 5
COMPACTION_US = 500
"""At least so much time is between two slices of compaction."""
WALL_EPOCH_MS = 1_700_000_000_000
FILLED = "disk space in /data is below the reserve, for its own journal"
PLENTY_OF_ROOM = 1 << 40


class DiskFailedError(BaseException):
    """A disk has failed while the core waited for it. No Exception: the process ends there, and nobody goes on for it."""

    def __init__(self, error: JournalFailedError) -> None:
        super().__init__(error)
        self.error = error


class BlockingJournal:
    """The journal calls that wait for the disk, as the server's driver makes them: a failure is the end."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def sync_now(self) -> None:
        try:
            self._journal.sync_now()
        except JournalFailedError as error:
            raise DiskFailedError(error) from error

    def begin_anew(self, checkpoint: bytes) -> None:
        try:
            self._journal.begin_anew(checkpoint)
        except JournalFailedError as error:
            raise DiskFailedError(error) from error


class SimNode:
    """A broker process that can be killed, paused and started again.

    Attributes:
        incarnation: counts its lives and cores: whatever belongs to an older one is passed over.
        fair_time: the latest time that expiry of this process may go by.
        watched: what the checkers keep of the present core.
        wiped: its data directory was lost, and it has not begun anew since.
        lost_tail: its disk has lost synced records at its end, which it has not got back since. It had acknowledged them, perhaps
            to somebody who counts on that before they are chosen.
        had: the position up to which it held the log when that happened.
        robbed: that has happened at some time.
        knows_loss: what it finds on its disk after such a loss tells it so.
        whole_from: until it has applied so much its queues may lack messages that leave before that offset: its journal dropped
            a segment, or a catch-up read the primary's queues, when that was applied already, and a restart may go back behind it.
        told: what its lives have told its operators.
        facts: what it tells the event feed beside its journal; None if nobody reads that.
        release: the program that it runs, from its next start on.
        policies: of its configuration, from its next core on.
        fatal: why it refuses to run ("" if it does not).
        low_disk: why others fill its disk ("" if they do not).
        filled_by: the files of its own that fill its disk, as long as one of them is there.
        turns: ends the turns of the present core.
    """

    node: BrokerNode
    turns: TurnEngine
    journal: Journal
    extension: HaExtension
    watched: WatchedLive
    expiry_clock: ExpiryClock
    fair_time: FairTime

    def __init__(
        self,
        world: World,
        name: str,
        store: SimStore,
        network: Network,
        config: HaSettings,
        knobs: Knobs,
        checkers: Checkers,
    ) -> None:
        self.world = world
        self.name = name
        self.store = store
        self.network = network
        self.config = config
        self.knobs = knobs
        self._kept_bodies = KeptBodies(self)
        self.checkers = checkers
        self.storage = MemoryStorage(name)
        self.rng = world.stream(f"node {name}")
        self._pace = world.stream(f"compaction {name}")
        self._compacting = False
        self.users: Any = AnyUser()
        self.incarnation = 0
        self.up = False
        self.paused = False
        self.wiped = False
        self.lost_tail = self.robbed = self.knows_loss = False
        self.had = (0, 0)
        self.whole_from = 0
        self.on_death: Callable[[SimNode], None] = lambda _: None
        self.on_step_down: Callable[[SimNode], None] = lambda _: None
        self.before_loss: Callable[[SimNode], None] = lambda _: None
        self.fatal = ""
        self.told: list[HaEvent] = []
        self.facts: SimFacts | None = None
        self.release: Release = THIS
        self.policies: Policies | None = None
        self.dirty_links: list[LinkEnd] = []
        self.clients: list[Session] = []
        self.wall_offset_ms = 0
        self.low_disk = ""
        self.filled_by: frozenset[str] = frozenset()
        self.disk_hangs = False
        self._told_low = ""
        self._deferred: list[Callable[[], None]] = []
        self._job: SyncJob | None = None
        self._restart_reason = ""
        self._handed_over = False
        self._feeding = False
        self._shares_turns = knobs.shared_turns
        self._left_turn_of = 0
        self._ticks = 0
        self._life = 0
        self._fetch_times = world.stream(f"fetches {name}")
        self._open = False
        store.nodes[name] = self

    # -- life -----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process: recover the journal, open the node."""
        assert not self.up
        self.up = True
        self.paused = False
        self._life += 1
        self.expiry_clock = ExpiryClock()
        self.fair_time = FairTime(self.world.now_ms, self.wall_ms)
        if self.facts is not None:
            self.facts.start()
        try:
            self._open_core()
        except (OSError, StorageFullError, JournalFailedError, DiskFailedError) as error:  # during recovery
            self._disk_failed(error)
            return
        self.world.note(self.name, f"starts; its log ends at {self.node.state.log.end}")
        self.world.at(TICK_US, self._tick, self._life)

    def _open_core(self, ended: BrokerNode | None = None) -> None:
        """Begin a core, which goes on with what ``ended`` holds; without one with what the journal says."""
        self.incarnation += 1
        self._compacting = False
        self._restart_reason = self._told_low = ""
        if ended is None:
            self._job = None
        elif self._job is not None:  # it was begun for the core that ends
            self.world.at(self.rng.randrange(*self.knobs.fsync_us), self._sync_done, self.incarnation, self._job)
        self._deferred.clear()
        self.dirty_links.clear()
        self.store.renew(self.name)
        coordination = SimCoordination(self.store, self)
        config = attrs.evolve(self.config, newest_record_format=self.release.record_formats[1])
        self.extension = HaExtension(config, coordination, SimFabric(self), self)
        limits, kept_bytes = self.knobs.limits, self.knobs.kept_bytes
        if ended is None:
            self.spill = MemorySpill()
            self.bodies = PagedBodies()
        spill = self.spill
        coordinator = unruly_choice(self.knobs.unruly_commits, f"{self.knobs.journal.salt} {self.name}")
        self.node = BrokerNode(
            self.name,
            limits,
            self.rng.randbytes,
            self.extension,
            kept_bytes,
            spill,
            self.expiry_clock,
            coordinator,
            self.policies,
            self.bodies,
        )
        self.release.install(self.node.state)
        self.watched = self.node.state.live = WatchedLive(self)
        identity = JournalIdentity(group_id=self.config.group, broker_id=self.name)
        self._gate_port = port = GatePort(self.node)
        if ended is None:
            self.before_loss(self)  # a recovery removes what was let go of
            self.node.recovery.expect(sealed_octets(self.storage))
            recovered = recover(
                self.storage,
                identity,
                self.knobs.journal,
                self.node.recovery,
                checkpoint=self._checkpoint,
                wall_ms=lambda: self.wall_ms,
            )
            self.journal = recovered.journal
        else:
            self.node.continue_from(ended)
            for _ in let_go_in_slices(ended.state):
                pass
        port.connect(self.journal, BlockingJournal(self.journal))
        self.bodies.connect(self.journal, self._fetch, self._drop_segments)
        self.turns = TurnEngine(self, self.rng.randrange(100, LAZY_MS * MS))
        self.fair_time.pass_to(self.world.now_ms, self.wall_ms)
        if self.facts is not None:
            self.facts.opening()
        self.node.open(port, self.world.now_ms, self.wall_ms)
        self.node.broker.pauses.read_clock(lambda: self.world.now_ms)
        self.node.broker.clock.read_between_ticks(self._look_at_clock)
        if self.facts is not None:
            self.facts.opened()
        self.turns.opened(self.node, port)
        self._open = True
        self.checkers.opened(self)
        self.publish(BrokerStatus.JOINING, self.node.state.log.end, "starts", since_text(self.wall_ms))
        self.store.watch(self)
        if self.is_filled:  # others find out a tick later that they fill the disk
            self._look_at_disk()
        self.turns.end()

    def _checkpoint(self) -> bytes:
        self.world.happened["checkpoint"] += 1
        return self._gate_port.checkpoint()

    @property
    def wall_ms(self) -> int:
        return WALL_EPOCH_MS + self.world.now_ms + self.wall_offset_ms

    @property
    def ha(self) -> HaBroker:
        return self.extension.ha

    def _stop_cleanly(self) -> None:
        """The process has turned its clients away before it ends. A disk that refuses keeps nothing of that."""
        with suppress(JournalFailedError):
            self.node.note_handed_out()
            self.journal.sync_now()

    def crash(self, hard: bool) -> None:
        """The process dies (kill -9), or with ``hard`` the machine loses power."""
        if not self.up:
            return
        if self._open:
            if not hard and self._job is None and self.rng.random() < 0.5:
                self._stop_cleanly()
            self.on_death(self)
        self._leave_core()
        self.up = False
        self.paused = False
        self.incarnation += 1
        job = self._job if self.rng.random() < 0.5 else None  # it may just have been running
        if hard:
            if job is not None:
                self.storage.power_cut_in = self.rng.randrange(0, 4)
                with suppress(PowerCutError, OSError, StorageFullError):
                    job.run()
            self.storage.crash(self.rng)
        else:
            if job is not None:
                with suppress(OSError, StorageFullError):
                    job.run()
            self.storage.crash_soft()
        for pair in list(self.network.pairs):
            if self in (pair.ends[0].owner, pair.ends[1].owner):
                pair.reset(f"{self.name} died")
        self._drop_clients(f"{self.name} died")

    def _leave_core(self) -> None:
        if self._open:
            self.checkers.leaving(self)
        if self.facts is not None:
            self.facts.left()
        self._open = False

    def _drop_clients(self, reason: str) -> None:
        clients, self.clients = self.clients, []
        for session in clients:
            session.reset(reason)

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        if not self.paused:
            return
        self.world.note(self.name, "goes on")
        self.paused = False
        deferred, self._deferred = self._deferred, []
        for action in deferred:
            if self.up:
                action()

    def disk_goes_on(self) -> None:
        """Sync everything that waited for a disk that hung."""
        if self.disk_hangs:
            self.disk_hangs = False
            self.run(_nothing)

    def wipe(self) -> None:
        """The data directory is lost (only while down)."""
        assert not self.up
        self.before_loss(self)
        self.storage = MemoryStorage(self.name)
        if self.facts is not None:
            self.facts.lose_directory()
        self.whole_from = 0
        self.filled_by = frozenset()
        self.lost_tail = False
        self.wiped = True

    def lose_tail(self, octets: int, spared: Callable[[bool], bool]) -> bool:
        """The end of the journal, of so many octets, is lost (only while down); of a short newest segment the whole file.

        Args:
            octets: how many.
            spared: asked with whether the broker will know of its loss; if True, nothing is lost.

        Returns:
            Whether something was lost: not if nothing would be left, or if what is left is damaged in its midst.
        """
        assert not self.up
        left = self.storage.clone()
        newest = max((name for name in left.names() if segment_number(name) is not None), default="")
        if not newest:
            return False
        if len(left.content(newest).rstrip(b"\0")) - octets > SEGMENT_HEADER_BYTES:
            left.lose_end(newest, octets)
        else:
            left.lose_file(newest)
        state = BrokerState(0)
        replicator = BrokerReplicator(state)
        recovery = Recovery(state, replicator.replay_note, replicator.replay_extras)
        try:
            scan(left, recovery, JournalIdentity(group_id=self.config.group, broker_id=self.name))
        except JournalDamagedError:
            return False
        log = state.log
        info = self.store.infos.get(self.name)
        claim = info.claim if info is not None else None
        epoch_seen = max(replicator.epoch_seen, log.epochs.newest)
        knows = bool(own_loss(replicator.part, claim, epoch_seen, replicator.log_start, log.end))
        if not log.end or not epoch_seen or spared(knows):
            return False
        held = self.node.state.log
        self.had = held.epochs.epoch_at(held.durable), held.durable
        self.storage = left
        self.lost_tail = self.robbed = True
        self.knows_loss = knows
        return True

    def fill_disk(self) -> None:
        """Fill the disk: the journal's present files leave little room until all of them are gone."""
        self.filled_by = frozenset(self.storage.names())

    @property
    def is_filled(self) -> bool:
        if self.filled_by.isdisjoint(self.storage.names()):
            self.filled_by = frozenset()
        return bool(self.filled_by)

    # -- turns ----------------------------------------------------------------------------------------------------------

    def event(self, action: Callable[[HaBroker], None]) -> None:
        """Something for the HA core arrives."""
        self.run(self._feed_ha, action)

    def _feed_ha(self, action: Callable[[HaBroker], None]) -> None:
        action(self.extension.ha)

    def run(self, action: Callable[..., bool | None], *args: Any) -> None:
        """Feed the core with one thing, then end the turn; a paused process gets it when it goes on.

        No turn is ended for an ``action`` that returns False and has asked for none itself.
        """
        if not self.up:
            return
        if self.paused:
            incarnation = self.incarnation
            self._deferred.append(lambda: self.run(action, *args) if self.incarnation == incarnation else None)
            return
        self.checkers.touched(self)
        incarnation = self.incarnation
        try:
            self.node.broker.clock.now_ms = self.world.now_ms
            self._feeding = True
            try:
                due = action(*args)
                if due is not False and self.incarnation == incarnation and self.up:
                    self.turns.request()
            finally:
                self._feeding = False
            if self.incarnation == incarnation and self.up:
                self._end_turn()
        except (OSError, StorageFullError, JournalFailedError, DiskFailedError) as error:
            if isinstance(error, JournalFailedError) and self.journal.failure is None:
                raise
            self._disk_failed(error)

    def _end_turn(self) -> None:
        """End the turn if one is asked for and it is not left open."""
        if self.turns.asked and not (self._shares_turns and self._turn_is_left()):
            self.turns.end()

    def _turn_is_left(self) -> bool:
        """True if the turn is left open for what comes next: the real driver ends one when nothing more is ready."""
        if self._left_turn_of == self.incarnation:
            return True
        if self.rng.random() >= self._shares_turns:
            return False
        self._left_turn_of = self.incarnation
        self.world.at(self.rng.randrange(*SHARED_TURN_US), self._end_left_turn, self.incarnation)
        return True

    def _end_left_turn(self, incarnation: int) -> None:
        if self.incarnation == incarnation:
            self._left_turn_of = 0
            self.run(_nothing)

    def _disk_failed(self, failure: BaseException) -> None:
        """A disk that fails ends the process (exit code 74), and nothing is tried again."""
        error = failure.error if isinstance(failure, DiskFailedError) else failure
        kind = "disk-full" if "no room" in f"{error} {error.__cause__}" else "fsync-error"
        self.world.fault(kind, f"{self.name} exits: {error}")
        self.crash(hard=False)
        self.world.at(500 * MS, self.start_if_down)

    # -- what a turn asks for (TurnPort) --------------------------------------------------------------------------------

    def ask(self) -> None:
        if not self._feeding:  # else it is ended when the core has been fed
            self.world.at(0, self._asked, self.incarnation)

    def _asked(self, incarnation: int) -> None:
        if self.incarnation == incarnation:
            self.run(_nothing)

    def now_us(self) -> int:
        return self.world.now_us

    def wake_in(self, delay_us: int) -> None:
        self.world.at(delay_us, self._wake, self.incarnation)

    def _wake(self, incarnation: int) -> None:
        if self.incarnation == incarnation:
            self.run(self._woken)

    def _woken(self) -> bool:
        self.turns.wake()
        return False

    def flush_links(self) -> None:
        links, self.dirty_links = self.dirty_links, []
        for link in links:
            link.flush()

    def flush_clients(self) -> None:
        stirred = [session for session in self.clients if session.awake or session.unread]
        for session in stirred:
            session.flush()
        for session in stirred:  # all others that are woken meanwhile say so themselves
            if session.awake or session.unread:
                self.turns.woken = True

    def begin_group(self) -> None:
        if self._job is None and not self.disk_hangs:
            self._begin_sync()

    def turn_over(self) -> None:
        if self.facts is not None:
            self.facts.turn_over()
        if self.node.compaction.active and not self._compacting:
            self._compacting = True
            self._compact()
        if self._restart_reason:
            self._restart_core()

    def _compact(self) -> None:
        """A slice of compaction, and a turn for the next one."""
        unsettled = len(self.node.state.again.unsettled)
        if self.node.compaction.step():
            self.world.happened["compaction slice"] += 1
        if len(self.node.state.again.unsettled) > unsettled:
            self.world.happened["messages written again"] += 1
        self.world.at(
            self._pace.randrange(COMPACTION_US, self.knobs.compaction_pause_ms * MS), self._compact_on, self.incarnation
        )

    def _compact_on(self, incarnation: int) -> None:
        if self.incarnation == incarnation and self.up:
            self._compacting = False
            self.run(_nothing)

    def crashed(self, event: str, error: BaseException) -> None:
        """The error goes on its way: it is the end of the run, or of this process if its disk failed."""

    # -- the disk -------------------------------------------------------------------------------------------------------

    def _begin_sync(self) -> None:
        job = self.journal.begin_sync()
        if job is None:
            return
        self._job = job
        inline = self.knobs.inline_syncs
        if inline and self.rng.random() < inline:
            self.world.happened["inline sync"] += 1
            self._finish_sync(job)
            self.turns.durable()
        else:
            self.world.at(self.rng.randrange(*self.knobs.fsync_us), self._sync_done, self.incarnation, job)

    def _sync_done(self, incarnation: int, job: SyncJob) -> None:
        if self.incarnation != incarnation or not self.up:
            return
        if self.paused:
            self._deferred.append(lambda: self._sync_done(incarnation, job))
            return
        try:
            self._finish_sync(job)
        except (OSError, StorageFullError) as error:
            self._disk_failed(error)
        else:
            self.run(self.turns.durable)

    def _finish_sync(self, job: SyncJob) -> None:
        """
        Raises:
            OSError, StorageFullError: the disk fails.
        """
        job.run()
        self.journal.finish_sync(job)
        self._drop_segments()
        self._job = None

    def _drop_segments(self) -> None:
        drop = self.journal.begin_drop()
        if drop is not None:
            self.before_loss(self)
            drop.run()
            self.journal.finish_drop(drop)
            self.world.happened["dropped segment"] += len(drop.numbers)

    def _fetch(self, wanted: Iterable[WantedBody], told: Fetched) -> None:
        """Bodies are wanted: they are read, and told, a while later."""
        job = self.journal.begin_read(wanted)
        self.world.happened["fetch"] += 1
        self.world.at(self._fetch_times.randrange(*FETCH_US), self._fetched, self.journal, job, told)

    def _fetched(self, journal: Journal, job: ReadJob, told: Fetched) -> None:
        if journal is not self.journal or not self.up:
            return  # of a process that has died
        self._kept_bodies.run(journal, job)
        self.run(self._tell_fetched, job, told)

    def _tell_fetched(self, job: ReadJob, told: Fetched) -> None:
        self._drop_segments()
        told(job.bodies)

    def start_if_down(self) -> None:
        if not self.up:
            self.start()

    def _tick(self, life: int) -> None:
        if not self.up or self._life != life:
            return
        self.world.at(TICK_US + self.rng.randrange(MS), self._tick, life)
        if self.paused:
            return
        self._ticks += 1
        self.store.renew(self.name)
        if self.rng.random() < 0.1:
            self.store.watch(self)
        self.run(self._on_tick)

    def _on_tick(self) -> None:
        self._kept_bodies.tick()
        self._look_at_disk()
        self.fair_time.pass_to(self.world.now_ms, self.wall_ms)
        self.node.tick(self.world.now_ms, self.wall_ms)
        if self.facts is not None:
            self.facts.tick(self.world.now_ms)
        checkpoint_offset = self._gate_port.checkpoint_offset
        due = self._ticks % HOUSEKEEPING_TICKS == 0 and checkpoint_offset
        if due and self.journal.request_drop(self.node.droppable_before(checkpoint_offset)):
            self.whole_from = max(self.whole_from, self.node.state.log.applied)
        if due and self.node.compaction.look(self.journal.occupancy(), checkpoint_offset):
            self.world.happened["compaction"] += 1

    def _look_at_clock(self) -> int:
        """The core looks at the monotonic clock to judge a time to live."""
        self.fair_time.go_on_to(self.world.now_ms)
        return self.world.now_ms

    def _look_at_disk(self) -> None:
        """Do the work of a broker's SpaceWatch."""
        low, room = self.low_disk, -1
        if not low and self.is_filled:
            low, room = FILLED, PLENTY_OF_ROOM
        if low or self._told_low:
            self._told_low = low
            self.node.disk_low(low, room)

    # -- what the core asks of its process (HaHost) ---------------------------------------------------------------------

    def link_up(self, end: LinkEnd, hear: Callable[[LinkEnd], None]) -> None:
        """``hear``: of the core."""
        if self.facts is not None:
            self.facts.ha.link_up(end)
        hear(end)

    def link_lost(self, end: LinkEnd, reason: str, hear: Callable[[LinkEnd, str], None]) -> None:
        """``hear``: of the core."""
        if self.facts is not None:
            self.facts.ha.link_down(end, reason)
        hear(end, reason)

    def restart_core(self, reason: str, *, handed_over: bool = False) -> None:
        if self.facts is not None:
            self.facts.step_down(reason)
        self._restart_reason = reason
        self._handed_over = handed_over

    def _restart_core(self) -> None:
        """Step down: a new core from the same journal, or from what the old one holds, in the same process."""
        self.world.note(self.name, f"steps down: {self._restart_reason}")
        self.world.happened["step-down"] += 1
        self.on_step_down(self)
        for session in self.clients:
            session.connection.force_close("NOT_PRIMARY", self._restart_reason)
            session.flush()
        for pair in list(self.network.pairs):
            for end in pair.ends:
                if end.owner is self:
                    pair.break_by(end, "stepped down")
        self._leave_core()
        self.incarnation += 1
        self._drop_clients("stepped down")
        ended = self.node if self._handed_over and self.journal.failure is None else None
        why_not = continuing.why_not(ended.state) if ended is not None else "it was replaced"
        self.world.note(self.name, f"begins anew {'from its journal: ' + why_not if why_not else 'from its memory'}")
        if ended is not None:
            self.world.happened["read after hand-over" if why_not else "memory after hand-over"] += 1
        if why_not:
            ended = None
            self.journal.close()
        try:
            self._open_core(ended)
        except (OSError, StorageFullError, JournalFailedError, DiskFailedError) as error:  # during recovery
            self._disk_failed(error)

    def refuse_to_run(self, reason: str) -> None:
        self.fatal = reason
        self.world.note(self.name, f"refuses to run: {reason}")

    def publish(
        self, status: BrokerStatus, position: int, blockers: str, since: str, claim: DiskClaim | None = None
    ) -> None:
        info = BrokerInfo(
            broker=self.name,
            link=self.name,
            amqp=self.name,
            status=status.value,
            position=position,
            blockers=explained(blockers, since),
            claim=claim,
        )
        SimCoordination(self.store, self).publish(info)
        self.world.note(self.name, f"is {status.value} {blockers}".rstrip())
        self.checkers.shown(self, status, blockers)

    def happened(self, event: HaEvent) -> None:
        if isinstance(
            event, BackupNotReady | TrackerAdded | TrackerCleared
        ):  # it shows what is, and is no step of the story: the trace's hash is without it
            self.world.tell(self.name, f"tells: {event}")
        else:
            self.world.note(self.name, f"tells: {event}")
        self.told.append(event)
        if self.facts is not None:
            self.facts.happened(event)
        self.world.happened[event.name] += 1
        if isinstance(event, TransactionRefused):
            self.world.happened.update(points_of_refusal(self))


def _nothing() -> None:
    """Fed to a core that is to end a turn."""


class SimFabric:
    """``replicator.fabric.Fabric`` for one process."""

    def __init__(self, node: SimNode) -> None:
        self._node = node

    def dial(self, broker: str, address: str) -> None:
        self._node.network.dial(self._node, self._node.store.nodes[broker])
