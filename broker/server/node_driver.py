"""NodeDriver: runs the cores of one data directory, one after the other, and ends their turns.

**The turn.** Whatever arrives (bytes of a client, a message on a link, a finished fsync, an answer of the coordination store, a
tick) is fed to the core and asks for a turn. The turn runs once, when the event loop has handed out everything that was
ready, and does in this order: the core's end of turn (apply, answer, close one batch), one write per link, one write per
client (before the links, if nobody waits for what they would be sent), one journal group. If that was synced on the spot (a
small one is), a backup's acknowledgement goes out with it. Last comes what nobody waits for: a backup applies. So a commit
shares its fsync with all that came in the same moment, and nobody is answered early, because there is no other place that writes.

**Cores come and go.** A core that steps down is not turned into a backup: its clients are told, its journal is flushed and
closed, and a new core is recovered from it in the same process. The sockets stay open; who connects meanwhile meets the
*doorkeeper*, a broker without a state that refuses everybody at connection.open (320).

What the disk cannot do ends the process (``fatal``), and so does what the core should not have raised.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from typing import Final, NoReturn

import structlog

from understudy.broker.config import Config, milliseconds
from understudy.broker.core.broker import Broker
from understudy.broker.core.expiry_clock import ExpiryClock
from understudy.broker.core.let_go import let_go_in_slices
from understudy.broker.core.limits import Limits
from understudy.broker.core.node import BrokerNode
from understudy.broker.core.state import BrokerState
from understudy.broker.log.journal import Journal, JournalFailedError, JournalOptions
from understudy.broker.log.journal_gate import JournalGate
from understudy.broker.log.journal_recovery import recover
from understudy.broker.log.segment import JournalIdentity
from understudy.broker.security import UserDirectory
from understudy.broker.server import fatal
from understudy.broker.server.client_session import ClientSession
from understudy.broker.server.disk_size import reserve_bytes
from understudy.broker.server.edge_plugin import EdgePlugin
from understudy.broker.server.feed_hold import FeedHold
from understudy.broker.server.file_spill import FileSpill
from understudy.broker.server.file_storage import DirectoryGoneError, FileStorage
from understudy.broker.server.garbage import GarbageCollector
from understudy.broker.server.gate_port import GatePort
from understudy.broker.server.heap import Heap, glibc
from understudy.broker.server.journal_driver import JournalDriver
from understudy.broker.server.logins import Logins
from understudy.broker.server.memory_watch import MemoryWatch, ram_bytes
from understudy.broker.server.space_watch import SpaceWatch
from understudy.broker.server.time_text import time_text

TICK_S: Final = 0.05
EARLY_S: Final = 0.0005
"""A timer that is so much early is not set again: uvloop's are of whole milliseconds."""
HOUSEKEEPING_S: Final = 1.0
KEPT_BYTES: Final = 128 << 20
FAREWELL_S: Final = 1.0
NO_PROGRESS_S: Final = 1.0
"""A stopping broker gives up what got no nearer to being stable for so long: its backups are gone, or too few."""

_DONE: Final = object()
_log: Final = structlog.get_logger()


def limits_of(config: Config) -> Limits:
    """The core's bounds, as the configuration sets them."""
    return Limits(
        unstable_bytes=config.limits.unstable_bytes,
        unstable_bytes_per_connection=config.limits.unstable_bytes_per_connection,
        message_bytes=config.limits.message_bytes,
        connections=config.limits.connections,
        outgoing_bytes_per_client=config.limits.outgoing_bytes_per_client,
        tx_bytes=config.tx.max_bytes,
        tx_memory_bytes=config.tx.memory_bytes,
        hold_commits=config.group.min_wait_ms > 0,
        group_count=config.group.count,
        channel_max=config.amqp.channel_max,
        frame_max=config.amqp.frame_max,
        heartbeat_s=config.amqp.heartbeat_s,
        handshake_timeout_ms=milliseconds(config.amqp.handshake_timeout_s),
        tx_idle_timeout_ms=milliseconds(config.tx.idle_timeout_s),
        dtx_timeout_ms=milliseconds(config.dtx.timeout_s),
        outcome_ttl_ms=milliseconds(config.tx.outcome_ttl_s),
        outcome_limit=config.tx.outcome_limit,
    )


class _NoJournal:
    """The doorkeeper's: it never has anything to write."""

    def append(self, frame: bytes) -> None:
        raise AssertionError("a broker without a state appends nothing")

    def sync_now(self) -> None:
        pass

    def begin_anew(self, checkpoint: bytes) -> None:
        raise AssertionError("a broker without a state has nothing to let go")


class NodeDriver:
    """Everything here belongs to the event loop's thread; only recovery runs in another, on a core that nobody else has yet.

    Attributes:
        broker: who takes new clients now: the running core, or the doorkeeper.
        node: the running core; None before the first one and between two.
        journal, journal_driver, spill: the running core's.
        sessions: the sockets of all clients.
        stopping: no new work is read any more.
        cores: how many cores this process has run.
        expiry_clock: what times to live go by, in each core of this process.
        garbage: told of clients and cores that are gone.
        heap: of the process; what is free of it is given back.
    """

    def __init__(self, config: Config, storage: FileStorage, plugins: list[EdgePlugin]) -> None:
        self.limits = limits_of(config)
        self.users = Logins(UserDirectory(config, os.urandom(32)))
        self.node: BrokerNode | None = None
        self.journal: Journal | None = None
        self.journal_driver: JournalDriver | None = None
        self.sessions: set[ClientSession] = set()
        self.stopping = False
        self.cores = 0
        self.garbage = GarbageCollector()
        self.expiry_clock = ExpiryClock()
        self._jumps_told = 0
        self.heap = Heap(glibc())
        self.on_tick: Callable[[], None] | None = None
        self._config = config
        self._storage = storage
        self._plugins = plugins
        self._flushes = [plugin.flush for plugin in plugins]
        self._loop = asyncio.get_running_loop()
        self._doorkeeper = Broker(BrokerState(0), JournalGate(_NoJournal()), self.limits, os.urandom)
        self._doorkeeper.refusal = "the broker is restarting its core, try again"
        self.broker = self._doorkeeper
        self.spill: FileSpill | None = None
        self._port: GatePort | None = None
        self._space: SpaceWatch | None = None
        self._memory: MemoryWatch | None = None
        self._feed_hold = FeedHold(config.broker.data, config.feed.hold_bytes)
        self._memory_limit = int(config.limits.memory_ratio * ram_bytes())
        self._lazy_s = (config.group.min_wait_ms or config.group.max_wait_ms) / 1000
        self._woken: list[ClientSession] = []
        self._turn_due = self._another_due = False
        self._flush_due = False
        self._lazy: asyncio.TimerHandle | None = None
        self._left = False
        self._left_at = 0.0
        self._turned: list[asyncio.Future[None]] = []
        self._started = self._housekeeping_at = time.monotonic()
        self._loop.call_later(TICK_S, self._tick)

    # -- a core begins --------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Recover a core from the journal and run it.

        Raises:
            JournalError, UnderstudyError, OSError: the journal cannot be used; nothing was changed. If the disk fails while it
                is repaired the process ends (74).
        """
        assert self.node is None, "one core at a time"
        extension = None
        for plugin in self._plugins:
            extension = plugin.create_extension()
        # Without a plugin nobody asks for what has been sent before.
        kept_bytes = KEPT_BYTES if extension is not None else 0
        spill = FileSpill(self._config.broker.data)
        node = BrokerNode(
            self._config.broker.id, self.limits, os.urandom, extension, kept_bytes, spill, self.expiry_clock
        )
        port = GatePort(node)
        try:
            journal, doubt = await asyncio.to_thread(self._recover, node, port)
        except JournalFailedError as error:
            self._disk_failed(error)
        self.journal = journal
        self.journal_driver = JournalDriver(journal, self._loop, self._durable, self._disk_failed)
        port.connect(journal, self.journal_driver)
        self._port = port
        try:
            node.open(port, _now_ms(), _wall_ms(), doubt)
        except Exception as error:  # noqa: BLE001  # our own mistake: the journal was read and believed
            self.crashed("opening the recovered core", error)
        self.node = node
        self.spill = spill
        self.broker = node.broker
        self._space = SpaceWatch(str(self._storage), journal, node.disk_low)
        self._memory = MemoryWatch(self._memory_limit, node.memory_full, node.holds_what_goes, self.heap.give_back)
        self.cores += 1
        for plugin in self._plugins:
            plugin.opened()
        self._look_at_space()  # it may have had no room for the reserve: the first client hears of it

    def _recover(self, node: BrokerNode, port: GatePort) -> tuple[Journal, str]:
        """The journal, and what is doubtful about its end."""
        config = self._config
        started = time.perf_counter()
        journal, report = recover(
            self._storage,
            JournalIdentity(config.broker.group, config.broker.id),
            JournalOptions(
                segment_bytes=config.journal.segment_bytes,
                reserve_bytes=reserve_bytes(config.journal, self._storage.capacity_bytes()),
                salt=int.from_bytes(os.urandom(8), "big"),
            ),
            node.recovery,
            checkpoint=port.checkpoint,
            wall_ms=_wall_ms,
        )
        try:
            journal.reserve.hold()
        except OSError as error:
            raise JournalFailedError(f"{self._storage}: the reserve cannot be made: {error}") from error
        for warning in report.warnings:
            _log.warning("journal", warning=warning)
        if report.torn is not None:
            # Of a crash nothing of it was ever answered. Of a disk that has lost what was synced this is not known here.
            _log.warning("journal: torn tail cut", torn=str(report.torn), log_ends_at=report.last_offset)
        if report.doubt:
            _log.warning("journal: files may be missing at its end", doubt=report.doubt, log_ends_at=report.last_offset)
        _log.info(
            "recovered",
            batches=report.batches,
            bytes=report.bytes,
            last_offset=report.last_offset,
            seconds=round(time.perf_counter() - started, 3),
        )
        return journal, report.doubt

    # -- the turn -------------------------------------------------------------------------------------------------

    def request_turn(self, at_once: bool = False) -> None:
        """Something was fed to the core: end the turn when the loop has handed out what is ready.

        ``at_once`` (see `EdgeHost.turn`) ends it here and now on a broker that does not lead: it hears from nobody but its primary,
        so there is nothing else that could be ready and share the turn.
        """
        if self._turn_due:
            return
        self._turn_due = True
        if at_once and self.node is not None and not self.node.broker.leading:
            self._turn()
        else:
            self._loop.call_soon(self._turn)

    def woken(self, session: ClientSession) -> None:
        """A client has output, or is to be read or not to be read."""
        self._woken.append(session)
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        node = self.node
        try:
            if node is not None:
                self._end_turn(node)
        finally:
            # From here on a call of request_turn asks for another turn. What a core says in its own turn goes out in it.
            self._turn_due = self._another_due
            self._another_due = False
        if self._woken:
            self._flush_clients()
        # Last, because a small group is synced here and now: backups and clients have been written to.
        if self.journal_driver is not None:
            self.journal_driver.kick()
        if node is not None:
            try:
                node.after_turn()
            except Exception as error:  # noqa: BLE001  # as in _end_turn
                self.crashed(f"after a turn, log at {node.state.log.position}", error)
        if self._turned:
            turned, self._turned = self._turned, []
            for future in turned:
                if not future.done():
                    future.set_result(None)

    def _flush_clients(self) -> None:
        woken, self._woken = self._woken, []
        for session in woken:
            session.flush()

    def _end_turn(self, node: BrokerNode) -> None:
        try:
            node.answer()
            all_answered = bool(self._woken) and not node.urgent
        except Exception as error:  # noqa: BLE001  # nothing of a peer is looked at here: what comes is ours
            self.crashed(f"end of a turn, log at {node.state.log.position}", error)
        if all_answered:  # and nobody waits for what is left of the turn
            self._turn_due = False  # the core has answered: a client that takes more has it in the next one
            self._flush_clients()
            self._another_due, self._turn_due = self._turn_due, True
        try:
            left = node.gather(self._flush_due)
        except Exception as error:  # noqa: BLE001  # as above
            self.crashed(f"end of a turn, log at {node.state.log.position}", error)
        self._flush_due = False
        if not left:
            self._left = False
        elif not self._left or self._lazy is None:
            self._leave()
        for flush in self._flushes:
            flush()

    def _leave(self) -> None:
        """A turn was the first to leave something for later.

        One timer looks after it, and is not set anew by each turn: with one commit after the other it would be, all the time.
        """
        self._left = True
        self._left_at = self._loop.time()
        if self._lazy is None:
            self._lazy = self._loop.call_later(self._lazy_s, self._flush_lazy)

    def _flush_lazy(self) -> None:
        """What nobody waited for has waited long enough, if it is still there."""
        self._lazy = None
        if not self._left:
            return
        rest_s = self._left_at + self._lazy_s - self._loop.time()
        if rest_s > EARLY_S:
            self._lazy = self._loop.call_later(rest_s, self._flush_lazy)
        else:
            self._flush_due = True
            self.request_turn()

    async def turned(self) -> None:
        """Wait until a whole turn has been done."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._turned.append(future)
        self._flush_due = True
        self.request_turn()
        await future

    def _durable(self) -> None:
        node, port = self.node, self._port
        if node is None or port is None:
            return
        try:
            node.durable_to(port.durable_frames())
            due = node.broker.leading and node.due
        except Exception as error:  # noqa: BLE001  # as above
            self.crashed("a finished fsync", error)
        if self._space is not None and self._space.is_due:
            self._loop.call_soon(self._look_at_space)  # in a turn of its own: this may be the end of one
        if due:
            self.request_turn()
        else:  # a backup has acknowledged, and the primary waits for that; or a primary that is not due
            for flush in self._flushes:
                flush()
            os.sched_yield()  # on this CPU, perhaps, and what is left of this turn can wait

    def _tick(self) -> None:
        self._loop.call_later(TICK_S, self._tick)
        now_ms, wall_ms = _now_ms(), _wall_ms()
        node = self.node
        try:
            self._doorkeeper.tick(now_ms, wall_ms)
            if node is not None:
                node.tick(now_ms, wall_ms)
                self._tell_jump()
        except Exception as error:  # noqa: BLE001  # as above
            self.crashed("a tick of the clock", error)
        for plugin in self._plugins:
            plugin.tick(now_ms)
        self.request_turn()
        if self.on_tick is not None:
            self.on_tick()
        now_s = time.monotonic()
        if now_s >= self._housekeeping_at:
            self._housekeeping_at = now_s + HOUSEKEEPING_S
            self._look_after_journal()
        self.heap.look(now_s)
        self.garbage.look(now_s - self._started)

    def _tell_jump(self) -> None:
        """Warn of a jump of the wall clock, once."""
        clock = self.expiry_clock
        jump = clock.latest_jump
        if clock.jumps == self._jumps_told or jump is None:
            return
        self._jumps_told = clock.jumps
        _log.warning(
            "the wall clock jumped",
            old=time_text(jump.old_ms),
            new=time_text(jump.new_ms),
            by_s=(jump.new_ms - jump.old_ms) / 1_000,
            expiry_clock=time_text(clock.now_ms),
        )

    def _look_after_journal(self) -> None:
        """Once a second: is the directory there, is there room, and may old segments go?"""
        if self.node is None or self.journal_driver is None or self._port is None:
            return
        assert self._memory is not None
        try:
            self._storage.check_place()
        except DirectoryGoneError as error:
            self._disk_failed(error)
        self._look_at_space()
        try:
            self._memory.look()
        except Exception as error:  # noqa: BLE001  # as above
            self.crashed("a look at the memory", error)
        if self._port.checkpoint_offset:
            assert self.journal is not None
            hold = self._feed_hold.look(self.journal)
            self.journal_driver.drop_before(self.node.droppable_before(self._port.checkpoint_offset), hold)

    def _look_at_space(self) -> None:
        if self.node is None or self._space is None:
            return  # that core has ended meanwhile
        try:
            self._space.look()
        except Exception as error:  # noqa: BLE001  # as above
            self.crashed("a look at free disk space", error)
        self.request_turn()

    # -- a core ends ----------------------------------------------------------------------------------------------

    async def close(self, name: str, reason: str) -> None:
        """Turn the clients away (320 ``name - reason``), close the links, flush and close the journal, forget the core.

        Raises:
            JournalFailedError: the journal could not be flushed (the process is about to end then).
        """
        node, driver = self.node, self.journal_driver
        if node is None or driver is None:
            return
        self.broker = self._doorkeeper
        try:
            node.broker.close_clients(name, reason)
        except Exception as error:  # noqa: BLE001  # as above
            self.crashed(f"closing clients: {reason}", error)
        await self.turned()
        for session in list(self.sessions):
            if session.connection.broker is node.broker:
                session.close(FAREWELL_S)
        self.node = None
        self.garbage.dropped(node)
        for plugin in self._plugins:
            plugin.dropped(reason)
        await driver.stop()
        if self.spill is not None:
            self.spill.close()
        self.journal = self.journal_driver = self._port = self._space = self._memory = self.spill = None
        self._let_go(let_go_in_slices(node.state))

    def _let_go(self, slices: Iterator[None]) -> None:
        """Free the next slice of what a dropped core held; the loop has other things to do between two of them."""
        if next(slices, _DONE) is not _DONE:
            self._loop.call_soon(self._let_go, slices)

    async def drained(self, deadline: float) -> bool:
        """Wait until everything that was appended is stable and answered, but not for what does not get on.

        Args:
            deadline: monotonic seconds.

        Returns:
            Whether everything is answered.
        """
        node = self.node
        if node is None:
            return True
        await self.turned()
        log = node.state.log
        applied, moved_at = log.applied, time.monotonic()
        while log.applied < log.end and node.broker.leading:
            now = time.monotonic()
            if log.applied > applied:
                applied, moved_at = log.applied, now
            if now >= deadline or now - moved_at >= NO_PROGRESS_S:
                return False
            await asyncio.sleep(0.002)
            await self.turned()
        return True

    async def clients_gone(self, deadline: float) -> None:
        """Wait until the last socket is closed; at the ``deadline`` (monotonic seconds) tear down what is left."""
        while self.sessions and time.monotonic() < deadline:
            await self.turned()
            await asyncio.sleep(0.005)
        for session in list(self.sessions):
            session.abort()

    def crashed(self, event: str, error: BaseException) -> NoReturn:
        """The core raised what it should not. Does not return."""
        fatal.crashed(event, error)

    def _disk_failed(self, error: BaseException) -> NoReturn:
        fatal.disk_failed(self._storage, error)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
