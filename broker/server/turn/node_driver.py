"""NodeDriver: runs the cores of one data directory, one after the other, and ends their turns.

**The turn.** When it is ended and in which order is decided by ``broker.core.life.turn``. This driver feeds the core, ends the turn
when the event loop has handed out everything that was ready, and does the I/O that the turn asks for. No other place writes.

**Cores come and go.** A core that steps down does not begin to follow: its clients are told, its journal is flushed and
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
from attrs import asdict

from understudy.broker.config import Config, milliseconds
from understudy.broker.core.clients.connection import Phase
from understudy.broker.core.clients.secret_update import renew_user
from understudy.broker.core.life import continuing
from understudy.broker.core.life.building import build_broker
from understudy.broker.core.life.gate_port import GatePort
from understudy.broker.core.life.let_go import let_go_in_slices
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.core.life.turn import TurnEngine
from understudy.broker.core.limits import Limits
from understudy.broker.core.queues.moved_bodies import NO_BODIES, MovedBodies
from understudy.broker.core.queues.paging import PagingLimits
from understudy.broker.core.state import BrokerState
from understudy.broker.core.topology.policies import Policies, Policy
from understudy.broker.core.turn.expiry_clock import ExpiryClock
from understudy.broker.core.watching.applied_facts import AppliedFacts
from understudy.broker.core.watching.facts import Facts
from understudy.broker.core.watching.message_facts import MessageFacts
from understudy.broker.log.journal import Journal, JournalFailedError, JournalOptions
from understudy.broker.log.journal_damage import with_loss
from understudy.broker.log.journal_gate import JournalGate
from understudy.broker.log.journal_recovery import recover, sealed_octets
from understudy.broker.log.paged_bodies import PagedBodies
from understudy.broker.log.segment import JournalDamagedError, JournalIdentity
from understudy.broker.plugin_api.plugin import PluginError
from understudy.broker.security import UserDirectory
from understudy.broker.server.files.directory_id import directory_id
from understudy.broker.server.files.disk_size import reserve_bytes
from understudy.broker.server.files.fact_log import FactLog
from understudy.broker.server.files.feed_hold import FeedHold
from understudy.broker.server.files.file_spill import FileSpill
from understudy.broker.server.files.file_storage import DirectoryGoneError, FileStorage
from understudy.broker.server.files.space_watch import SpaceWatch
from understudy.broker.server.plugins.plugins import Plugins
from understudy.broker.server.process import fatal
from understudy.broker.server.process.coordinator_choice import HookErrorLog, choice_of, take_over
from understudy.broker.server.process.garbage import GarbageCollector
from understudy.broker.server.process.heap import Heap, glibc
from understudy.broker.server.process.memory_watch import MemoryWatch, ram_bytes
from understudy.broker.server.sockets.carriage import Carriage
from understudy.broker.server.sockets.carried_client import CarrierDial
from understudy.broker.server.sockets.client_session import ClientSession
from understudy.broker.server.sockets.client_warnings import ClientWarnings
from understudy.broker.server.sockets.logins import Logins
from understudy.broker.server.turn.body_reader import BodyReader
from understudy.broker.server.turn.compaction_pace import CompactionPace
from understudy.broker.server.turn.journal_driver import JournalDriver
from understudy.broker.server.web.time_text import time_text

TICK_S: Final = 0.05
_BOOT_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
HOUSEKEEPING_S: Final = 1.0
KEPT_BYTES: Final = 128 << 20
LEAST_KEPT_BYTES: Final = 16 << 20
FAREWELL_S: Final = 1.0
NO_PROGRESS_S: Final = 1.0
"""A stopping broker gives up what got no nearer to being stable for so long: the brokers that it waits for are gone."""

_DONE: Final = object()
_log: Final = structlog.get_logger()


def kept_log_bytes(config: Config) -> int:
    """How much of the log stays in memory for brokers that come back: half of what bodies may take, within bounds."""
    return min(KEPT_BYTES, max(LEAST_KEPT_BYTES, config.limits.queue_memory_bytes // 2))


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
        mandatory_at_commit=config.amqp.mandatory_in_tx == "commit",
        tx_idle_timeout_ms=milliseconds(config.tx.idle_timeout_s),
        dtx_timeout_ms=milliseconds(config.dtx.timeout_s),
        consumer_timeout_ms=milliseconds(config.limits.consumer_timeout_s),
        outcome_ttl_ms=milliseconds(config.tx.outcome_ttl_s),
        outcome_limit=config.tx.outcome_limit,
        moved_bodies=moved_bodies_of(config),
        paging=PagingLimits(watermark_bytes=config.limits.queue_memory_bytes),
    )


def moved_bodies_of(config: Config) -> MovedBodies:
    """The queues whose dead letters an outlet sends."""
    outlet = config.outlet
    if not (outlet.dead_letters or config.plugins.get("outlet", False)) or not outlet.plain:
        return NO_BODIES
    rules = [(rule.queues, bool(rule.topic)) for rule in outlet.rules]
    return MovedBodies(rules, otherwise=bool(outlet.topic), max_bytes=outlet.max_message_bytes)


def policies_of(config: Config) -> Policies:
    """The policies of the configuration, as the core wants them."""
    return Policies(Policy(**asdict(each, recurse=False)) for each in config.policy)


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
        journal, journal_driver, spill, bodies: the running core's.
        policies: of the configuration; the same for each core.
        sessions: the sockets of all clients that this broker serves or refuses.
        carriage: those of clients that another broker serves; None if none is carried.
        stopping: no new work is read any more.
        cores: how many cores this process has run.
        expiry_clock: what times to live go by, in each core of this process.
        garbage: told of clients and cores that are gone.
        heap: of the process; what is free of it is given back.
        fact_log: writes what this process tells the event feed beside its journal.
        compaction_pace: paces compaction, and counts what it does.
    """

    def __init__(self, config: Config, storage: FileStorage, plugins: Plugins, facts: Facts | None = None) -> None:
        self.limits = limits_of(config)
        self.client_tls = config.amqp.tls
        self.policies = policies_of(config)
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
        self._choice = choice_of(config, plugins.extending is not None)
        self._hook_errors = HookErrorLog()
        self._client_warnings = ClientWarnings()
        self._flushes = [plugins.extending.flush] if plugins.extending is not None else []
        self._loop = asyncio.get_running_loop()
        self._doorkeeper = build_broker(BrokerState(0), JournalGate(_NoJournal()), self.limits, os.urandom)
        self._doorkeeper.reception.belongs_to(config.broker.group)
        self._doorkeeper.reception.refuse("the broker is restarting its core, try again")
        self.carriage: Carriage | None = None
        self.broker = self._doorkeeper
        self.spill: FileSpill | None = None
        self.bodies: PagedBodies | None = None
        self._body_reader: BodyReader | None = None
        self._port: GatePort | None = None
        self._space: SpaceWatch | None = None
        self._memory: MemoryWatch | None = None
        self._facts = facts = facts or Facts(_wall_ms, 0)
        self.fact_log = FactLog(config.broker.data, config.broker.group, config.broker.id, facts)
        self._applied_facts: AppliedFacts | None = None
        self._feed_hold = FeedHold(config.broker.data, config.feed.hold_bytes)
        self._memory_limit = int(config.limits.memory_ratio * ram_bytes())
        self.turns = TurnEngine(self, int((config.group.min_wait_ms or config.group.max_wait_ms) * 1_000))
        self.compaction_pace = CompactionPace(self._loop.call_later, self.request_turn, self._let_segments_go)
        self._checkpoint_offset = 0
        self._woken: list[ClientSession] = []
        self._turned: list[asyncio.Future[None]] = []
        self._started = self._housekeeping_at = time.monotonic()
        self._loop.call_later(TICK_S, self._tick)

    def renew_users(self, users: UserDirectory) -> None:
        """Know these users from now on; clients that are connected get their rights, or are closed if their user is gone."""
        known = self.users.renew(users)
        for session in list(self.sessions):
            connection = session.connection
            before = connection.user
            if before is None:
                continue
            user = users.named(before.name)
            if not users.has_password_of(before.name, known):
                connection.expect_secret()
            if user is None:
                connection.force_close("CONNECTION_FORCED", f"user '{before.name}' was deleted")
            elif user != before and connection.phase is Phase.RUNNING:
                connection.guard(0, 0, renew_user, connection, user)
            else:
                connection.serve_as(user)
        self.request_turn()

    def tell_ticks(self, told: Callable[[], None]) -> None:
        """Call ``told`` in each tick."""
        self.on_tick = told

    def stop_taking(self) -> None:
        """The process stops: take no clients from now on."""
        self.stopping = True

    def carry_by(self, dial: CarrierDial, has_room: Callable[[], bool]) -> None:
        """Clients that reach a core which serves none are carried by ``dial``, if the configuration allows it.

        Args:
            dial: opens one connection.
            has_room: tells whether there is a file descriptor to spare for it.
        """
        if self._config.amqp.on_backup == "carry":
            self.carriage = Carriage(self, dial, has_room, self._config.amqp.carry)
            self._doorkeeper.reception.carried_by(self.carriage.carrying)

    # -- a core begins --------------------------------------------------------------------------------------------

    async def open(self, ended: BrokerNode | None = None) -> None:
        """Recover a core from the journal and run it.

        Args:
            ended: what :meth:`hand_on` has returned: the core goes on with what that one holds, and the journal is not read.

        Raises:
            JournalError, UnderstudyError, OSError: the journal cannot be used; nothing was changed. If the disk fails while it
                is repaired the process ends (74).
            PluginError: the coordinator cannot be made, or may not take over from another one.
        """
        assert self.node is None, "one core at a time"
        extending = self._plugins.extending
        extension = extending.create_extension() if extending is not None else None
        # Without a plugin nobody asks for what has been sent before.
        kept_bytes = kept_log_bytes(self._config) if extension is not None else 0
        spill = FileSpill(self._config.broker.data) if self.spill is None else self.spill
        bodies = PagedBodies() if self.bodies is None else self.bodies
        node = BrokerNode(
            self._config.broker.id,
            self.limits,
            os.urandom,
            extension,
            kept_bytes,
            spill,
            self.expiry_clock,
            self._choice,
            self.policies,
            bodies,
        )
        port = GatePort(node)
        if ended is None:
            await self._read_journal(node, port)
            self._read_bodies(bodies)
        else:
            await self._continue(node, port, ended)
        journal, driver = self.journal, self.journal_driver
        assert journal is not None
        assert driver is not None
        self._port = port
        self._facts.follow(node.state.log)
        try:
            node.open(port, _now_ms(), _wall_ms())
        except PluginError:
            await driver.stop()
            raise
        except Exception as error:  # noqa: BLE001  # our own mistake: the journal was read and believed
            self.crashed("opening the recovered core", error)
        self._attend(node, founded_here=extension is None)
        if extension is None:
            self._facts.tell("role", role="standalone")
        self.node = node
        self.turns.opened(node, port)
        self.spill = spill
        self.bodies = bodies
        self.broker = node.broker
        self._space = SpaceWatch(str(self._storage), journal, node.disk_low)
        self._memory = MemoryWatch(self._memory_limit, node.memory_full, node.holds_what_goes, self.heap.give_back)
        self.cores += 1
        for plugin in self._plugins:
            plugin.opened()
        self._look_at_space()  # it may have had no room for the reserve: the first client hears of it
        if ended is not None:
            self._let_go(let_go_in_slices(ended.state))

    def _attend(self, node: BrokerNode, founded_here: bool) -> None:
        """Hear what the core of ``node``, which is open, tells, and give it clocks. ``founded_here``: the broker is alone."""
        broker = node.broker
        node.state.paging.tell_fetched(self.request_turn)
        broker.transactions.coordinator.tell_errors(self._hook_errors.told)
        broker.pauses.read_clock(_awake_ms)
        broker.clock.read_between_ticks(_now_ms)
        self._client_warnings.listen(broker)
        self._plugins.listen(broker)
        broker.work.on_change.append(self._facts.work)
        broker.reception.carried_by(self._doorkeeper.reception.carrying)
        founding = directory_id(self._config.broker.data) if founded_here else ""
        broker.reception.belongs_to(self._config.broker.group, founding)
        self._applied_facts = AppliedFacts(node.state, self._facts) if self._facts.kept else None
        if self._config.feed.detail == "messages":
            MessageFacts(broker, self._facts)

    async def _read_journal(self, node: BrokerNode, port: GatePort) -> None:
        """Fill a core with what the journal says, and open the journal."""
        try:
            journal = await asyncio.to_thread(self._recover, node, port)
        except JournalFailedError as error:
            self._disk_failed(error)
        await take_over(node.state, self._config.broker.data, self._choice)
        self.journal = journal
        self.journal_driver = JournalDriver(journal, self._loop, self._durable, self._disk_failed)
        port.connect(journal, self.journal_driver)

    def _read_bodies(self, bodies: PagedBodies) -> None:
        """Let ``bodies`` be read from the journal, which has been recovered."""
        assert self.journal is not None
        assert self.journal_driver is not None
        on_room = self.journal_driver.look_after_space
        self._body_reader = BodyReader(self.journal, self._loop, self._disk_failed, on_room)
        bodies.connect(self.journal, self._body_reader.read, on_room)

    async def _continue(self, node: BrokerNode, port: GatePort, ended: BrokerNode) -> None:
        """Fill a core with what ``ended`` holds, in another thread: queues may be long, and connections have heartbeats."""
        assert self.journal is not None
        assert self.journal_driver is not None
        self.journal.take_checkpoints(port.checkpoint)
        port.connect(self.journal, self.journal_driver)
        started = time.perf_counter()
        try:
            await asyncio.to_thread(node.continue_from, ended)
        except Exception as error:  # noqa: BLE001  # our own mistake
            self.crashed("going on with what the core before held", error)
        log = node.state.log
        _log.info("goes on from memory", last_offset=log.end, seconds=round(time.perf_counter() - started, 3))

    def _recover(self, node: BrokerNode, port: GatePort) -> Journal:
        config = self._config
        started = time.perf_counter()
        node.recovery.expect(sealed_octets(self._storage))
        try:
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
        except JournalDamagedError as error:
            raise with_loss(self._storage, error) from error
        try:
            journal.reserve.hold()
        except OSError as error:
            raise JournalFailedError(f"{self._storage}: the reserve cannot be made: {error}") from error
        for warning in report.warnings:
            _log.warning("journal", warning=warning)
        repaired = node.recovery.repaired
        if repaired is not None and repaired.kept == report.last_offset:  # the first start since then
            _log.warning("journal: repaired", log_ends_at=repaired.kept, lost_up_to=repaired.lost)
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
        return journal

    # -- the turn -------------------------------------------------------------------------------------------------

    def request_turn(self, at_once: bool = False) -> None:
        """Something was fed to the core: end the turn when the loop has handed out what is ready; see `TurnEngine.request`."""
        self.turns.request(at_once)

    def woken(self, session: ClientSession) -> None:
        """A client has output, or is to be read or not to be read."""
        self._woken.append(session)
        self.turns.wake_clients()

    # What the turn asks for (`TurnPort`).

    def ask(self) -> None:
        self._loop.call_soon(self.turns.end)

    def now_us(self) -> int:
        return time.monotonic_ns() // 1_000

    def wake_in(self, delay_us: int) -> None:
        self._loop.call_later(delay_us / 1_000_000, self.turns.wake)

    def flush_links(self) -> None:
        for flush in self._flushes:
            flush()

    def flush_clients(self) -> None:
        woken, self._woken = self._woken, []
        for session in woken:
            session.flush()

    def begin_group(self) -> None:
        if self.journal_driver is not None:
            self.journal_driver.kick()

    def turn_over(self) -> None:
        if self._facts.waiting:
            self.fact_log.write()
        if self.node is not None:
            try:
                self.compaction_pace.turn_over(self.node)
            except Exception as error:  # noqa: BLE001  # as above
                self.crashed("a slice of compaction", error)
        if self._turned:
            turned, self._turned = self._turned, []
            for future in turned:
                if not future.done():
                    future.set_result(None)

    async def turned(self) -> None:
        """Wait until a whole turn has been done."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._turned.append(future)
        self.turns.request_flush()
        await future

    def _durable(self) -> None:
        due = self.turns.durable()
        if self._space is not None and self._space.is_due:
            self._loop.call_soon(self._look_at_space)  # in a turn of its own: this may be the end of one
        if self._port is not None and self._port.checkpoint_offset != self._checkpoint_offset:
            self._checkpoint_offset = self._port.checkpoint_offset
            self._loop.call_soon(self._let_segments_go)
        if not due:  # a follower has acknowledged, and the leader waits for that; or a leader that is not due
            os.sched_yield()  # on this CPU, perhaps, and what is left of this turn can wait

    def _tick(self) -> None:
        self._loop.call_later(TICK_S, self._tick)
        now_ms, wall_ms = _now_ms(), _wall_ms()
        node = self.node
        try:
            self._doorkeeper.tick(now_ms, wall_ms)
            if node is not None:
                node.tick(now_ms, wall_ms)
                if self._applied_facts is not None:
                    self._applied_facts.look(now_ms)
                self._tell_jump()
        except Exception as error:  # noqa: BLE001  # as above
            self.crashed("a tick of the clock", error)
        for plugin in self._plugins:
            plugin.tick(now_ms)
        if self.carriage is not None:
            self.carriage.look(now_ms)
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
        self._let_segments_go()

    def _let_segments_go(self) -> None:
        """Drop the oldest segments if nothing in them lives; write what lives there again if it is little."""
        port, node, driver = self._port, self.node, self.journal_driver
        if port is None or node is None or driver is None or not port.checkpoint_offset:
            return
        assert self.journal is not None
        hold = self._feed_hold.look(self.journal)
        driver.drop_before(node.droppable_before(port.checkpoint_offset), hold)
        if self.compaction_pace.look(node, self.journal, port.checkpoint_offset):
            self.request_turn()

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
        node = await self._end(name, reason)
        if node is not None:
            try:
                node.note_handed_out()
            finally:  # a journal that has failed takes no note, and is closed nevertheless
                await self._give_up(node)

    async def hand_on(self, name: str, reason: str) -> BrokerNode | None:
        """As :meth:`close`, of a broker that has handed over.

        Returns:
            The core that has ended, if the next one can go on with what it holds (``core.life.continuing``): for :meth:`open`. The
            journal is open then.
        """
        node = await self._end(name, reason)
        if node is None:
            return None
        why_not = continuing.why_not(node.state)
        if not why_not:
            return node
        _log.info("the journal is to be read again", because=why_not)
        await self._give_up(node)
        return None

    async def _end(self, name: str, reason: str) -> BrokerNode | None:
        """End the core, if one runs: turn its clients away, close the links. Its journal stays open."""
        node = self.node
        if node is None or self.journal_driver is None:
            return None
        self.broker = self._doorkeeper
        try:
            node.broker.close_clients(name, reason)
        except Exception as error:  # noqa: BLE001  # as above
            self.crashed(f"closing clients: {reason}", error)
        await self.turned()
        for session in list(self.sessions):
            if session.connection.broker is node.broker:
                session.close(FAREWELL_S)
        self.node = self._applied_facts = None
        self._facts.follow(None)
        self.turns.dropped()
        self.garbage.dropped(node)
        for plugin in self._plugins:
            plugin.dropped(reason)
        self._port = self._space = self._memory = None
        return node

    async def _give_up(self, node: BrokerNode) -> None:
        """Flush and close the journal of a core that has ended, and forget the core."""
        if self._body_reader is not None:
            await self._body_reader.stop()
        if self.journal_driver is not None:
            await self.journal_driver.stop()
        if self.spill is not None:
            self.spill.close()
        self.journal = self.journal_driver = self.spill = None
        self.bodies = self._body_reader = None
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
        node.broker.transactions.coordinator.hurry()
        await self.turned()
        log = node.state.log
        applied, moved_at = log.applied, time.monotonic()
        while log.applied < log.end and node.broker.role.leading:
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


def _awake_ms() -> int:
    """A clock that goes on while the machine is suspended, where there is one."""
    return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
