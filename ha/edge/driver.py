"""HaDriver: the edge of the HA plugin in one broker process. The store's session, the links, and the core they are fed to now.

Cores come and go inside one process (a primary that steps down is dropped); the session and the port stay. So what
arrives is passed to the core that runs, and to nobody while none does. An answer of the store to a request of a core that is
gone must not reach its successor, whose requests have the same numbers: :class:`CoreCoordination` keeps them apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import attrs
import structlog

from understudy.broker.config import Config, CoordinationConfig, milliseconds
from understudy.broker.config import TlsConfig as TlsSection
from understudy.broker.core.queues.replication_level import ReplicationLevel
from understudy.broker.errors import UnderstudyError
from understudy.broker.plugin_api.metrics import Family
from understudy.broker.plugin_api.plugin_commands import CommandRefusedError, CommandRequest, Commands
from understudy.broker.server.files.tls_files import TlsFiles
from understudy.broker.server.plugins.edge_plugin import EdgeHost
from understudy.ha.extension import HaExtension
from understudy.ha.ha_broker import HaBroker
from understudy.ha.operators.commands import COMMANDS
from understudy.ha.settings import LEAST_PAUSE_MS, HaSettings
from understudy.ha.showing.events import HaEvent
from understudy.ha.showing.feed_facts import HaFacts
from understudy.ha.showing.health import RECOVERING
from understudy.ha.showing.metrics import broker_families, link_families
from understudy.ha.status import BrokerStatus, explained
from understudy.ha.store.coordination import Answer, BrokerId, BrokerInfo, Coordination, GroupState, bar_text
from understudy.ha.store.edge.stores import CoordinationDriver, open_store
from understudy.ha.store.nodes import Paths
from understudy.replicator.direct.driver import DirectFabric, LinkSettings
from understudy.replicator.direct.link import DirectLink
from understudy.replicator.direct.unix_socket import SOCKET_NAME
from understudy.replicator.fabric import Link
from understudy.replicator.receiving.disk_claim import DiskClaim

__all__ = ["EdgeHost", "HaDriver", "LinkPortError"]

REQUEST_SHIFT: Final = 32
"""Requests of a core, as the store sees them: ``generation << 32 | request``."""


_log: Final = structlog.get_logger("understudy.ha")


class LinkPortError(UnderstudyError):
    """The link port cannot be listened on, or its certificate cannot be used."""


class CoreCoordination:
    """The store as one core sees it (``Coordination``)."""

    def __init__(self, coordination: Coordination, generation: int) -> None:
        self._coordination = coordination
        self._base = generation << REQUEST_SHIFT

    def found(self, request: int, group: GroupState) -> None:
        self._coordination.found(self._base | request, group)

    def replace(self, request: int, expected: GroupState, wanted: GroupState) -> None:
        self._coordination.replace(self._base | request, expected, wanted)

    def restore(self, request: int, shown: GroupState | None, wanted: GroupState) -> None:
        self._coordination.restore(self._base | request, shown, wanted)

    def read(self, request: int) -> None:
        self._coordination.read(self._base | request)

    def publish(self, info: BrokerInfo) -> None:
        self._coordination.publish(info)


class HaDriver:
    """Implements ``HaHost`` for the core, ``LinkListener`` for the fabric, ``CoordinationListener`` for the store.

    Args:
        config: of this broker; ``plugins.ha`` is on, so ``coordination`` says where the store is.
        host: the process around it.
    """

    def __init__(self, config: Config, host: EdgeHost) -> None:
        self._config = config
        self._host = host
        self._core_config = core_config(config)
        self._stack = contextlib.AsyncExitStack()
        self._coordination: CoordinationDriver | None = None
        self._fabric: DirectFabric | None = None
        self._extension: HaExtension | None = None
        self._ha: HaBroker | None = None
        self._generation = 0
        self._seen: tuple[GroupState | None, dict[BrokerId, BrokerInfo]] | None = None
        self._lost = False
        self._facts = HaFacts(host.facts)

    # -- the process's side ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen for links, open the store.

        Raises:
            UnderstudyError: the port, the certificate or the store cannot be used.
        """
        config = self._config
        tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
        tls = (
            TlsFiles("link.tls", config.link.tls, partial(_tls, config.link.tls))
            if config.link.tls is not None
            else None
        )
        sides = tls.made if tls is not None else (None, None)
        self._fabric = fabric = DirectFabric(link_settings(config, *sides), self, self._host.turn, tasks)
        if tls is not None:
            tls.give_to(lambda made: fabric.renew_tls(*made))
            self._host.watches(tls)
        fabric.give_carried_to(self._host.take_carried)
        self._host.carries(fabric.carry)
        try:
            await fabric.listen(config.link.host, config.link.port)
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno is not None and error.errno > 0:  # asyncio's own text says address and reason once more
                reason = os.strerror(error.errno)
            raise LinkPortError(f"link cannot listen on {config.link.host}:{config.link.port}: {reason}") from error
        if config.link.unix:
            await fabric.listen_unix(config.broker.data / SOCKET_NAME)
        store = open_store(config, self, self._host.turn, tasks)
        self._stack.push_async_callback(store.stop)
        await store.start()
        self._coordination = store

    @property
    def link_port(self) -> int:
        return self._fabric.port if self._fabric is not None else 0

    def create_extension(self) -> HaExtension:
        """For the core that is about to be recovered."""
        assert self._coordination is not None
        assert self._fabric is not None
        self._generation += 1
        coordination = CoreCoordination(self._coordination, self._generation)
        self._extension = HaExtension(self._core_config, coordination, self._fabric, self)
        return self._extension

    def opened(self) -> None:
        """Show the core, which runs now, the state of the store that it has missed."""
        assert self._extension is not None
        self._ha = ha = self._extension.ha
        if self._lost:
            ha.coordination_lost()
        if self._seen is not None:
            self._feed("the store, as it was last seen", lambda: ha.group_changed(*self._seen_now()))

    def _seen_now(self) -> tuple[GroupState | None, dict[BrokerId, BrokerInfo]]:
        assert self._seen is not None
        return self._seen

    def dropped(self, reason: str) -> None:
        """Forget the core and drop its links."""
        self._ha = self._extension = None
        if self._fabric is not None:
            self._fabric.drop_links(reason)

    def tick(self, now_ms: int) -> None:
        if self._fabric is not None:
            self._fabric.tick(now_ms)
        self._facts.look_at_links(_is_closed)
        ha = self._ha
        if ha is not None and ha.primary is not None and self._facts.is_due(now_ms):
            self._facts.look(ha.primary.readiness())

    @property
    def flush(self) -> Callable[[], None]:
        """Ends a turn: writes what it has said on links."""
        assert self._fabric is not None, "the driver has not been started"
        return self._fabric.flush

    async def stop(self) -> None:
        """Close links and store; wait for the last words."""
        fabric = self._fabric
        if fabric is not None:
            fabric.close()
            await fabric.wait_closed()
        await self._stack.aclose()

    # -- feeding the core -----------------------------------------------------------------------------------------------

    def _feed(self, event: str, call: Callable[[], None]) -> None:
        """Tell the core something; what it raises is our own mistake and ends the process."""
        try:
            call()
        except Exception as error:  # noqa: BLE001  # what peers do wrong is caught in HaBroker
            self._host.crashed(event, error)
        self._host.turn()

    # -- LinkListener ---------------------------------------------------------------------------------------------------

    def link_accepted(self, link: Link) -> None:
        self._facts.link_up(link)
        ha = self._ha
        if ha is None:
            link.close(f"{self._config.broker.id} is restarting its core")
        else:
            self._feed(f"a link of {link.peer}", lambda: ha.link_accepted(link))

    def dialed(self, link: Link) -> None:
        self._facts.link_up(link)
        ha = self._ha
        if ha is None:
            link.close(f"{self._config.broker.id} is restarting its core")
        else:
            self._feed(f"the link to {link.peer}", lambda: ha.dialed(link))

    def dial_failed(self, broker: str, reason: str, gone: bool) -> None:  # the port of the fabric
        ha = self._ha
        if ha is not None:
            self._feed(f"a dial failed: {reason}", lambda: ha.dial_failed(broker, reason, gone))

    def link_message(self, link: Link, message: bytes) -> bool:
        ha = self._ha
        if ha is None:
            return False
        try:  # not _feed: this is the hot path, and the fabric asks for the turn
            return ha.link_message(link, message)
        except Exception as error:  # as in _feed
            self._host.crashed(f"message of {len(message)} bytes, kind {message[:1].hex()}, from {link.peer}", error)
            raise

    def link_lost(self, link: Link, reason: str) -> None:
        self._facts.link_down(link, reason)
        ha = self._ha
        if ha is not None:
            self._feed(f"the link of {link.peer} is lost: {reason}", lambda: ha.link_lost(link, reason))

    # -- CoordinationListener -------------------------------------------------------------------------------------------

    def group_changed(self, group: GroupState | None, brokers: dict[BrokerId, BrokerInfo]) -> None:
        self._seen = (group, brokers)
        self._suspect(brokers)
        if group is not None:
            self._facts.founding(group.founding)
        ha = self._ha
        if ha is not None:
            self._feed(f"the store shows {group}", lambda: ha.group_changed(group, brokers))

    def answered(self, request: int, answer: Answer, group: GroupState | None) -> None:
        ha = self._ha
        if ha is None or request >> REQUEST_SHIFT != self._generation:
            return  # asked by a core that is gone
        number = request & ((1 << REQUEST_SHIFT) - 1)
        self._feed(f"the store answers {answer.value}: {group}", lambda: ha.answered(number, answer, group))

    def _suspect(self, brokers: Mapping[BrokerId, BrokerInfo]) -> None:
        """Links of those whose session or lease has ended may be silent for less long."""
        if self._fabric is not None:
            self._fabric.suspect([name for name, info in brokers.items() if not info.alive])

    def coordination_lost(self) -> None:
        self._lost = True
        self._suspect({})  # what was seen may be old by now
        if self._ha is not None:
            self._feed("the store is lost", self._ha.coordination_lost)

    def coordination_regained(self) -> None:
        self._lost = False
        if self._seen is not None:
            self._suspect(self._seen[1])
        if self._ha is not None:
            self._feed("the store is back", self._ha.coordination_regained)

    # -- HaHost ---------------------------------------------------------------------------------------------------------

    def restart_core(self, reason: str, *, handed_over: bool = False) -> None:
        if self._ha is not None and self._ha.primary is not None:
            self._facts.step_down(reason, self._ha.primary.hand_over.named)
        self._host.restart_core(reason, handed_over=handed_over)

    def refuse_to_run(self, reason: str) -> None:
        self._host.refuse_to_run(reason)

    def publish(
        self, status: BrokerStatus, position: int, blockers: str, since: str, claim: DiskClaim | None = None
    ) -> None:
        endpoints = self._host.endpoints
        assert self._coordination is not None
        assert self._fabric is not None
        self._coordination.publish(
            BrokerInfo(
                broker=self._config.broker.id,
                link=self._config.link.advertised or self._fabric.address(self._config.link.host),
                amqp=endpoints.amqp,
                http=endpoints.http,
                status=status.value,
                position=position,
                pid=os.getpid(),
                blockers=explained(blockers, since),
                claim=claim,
            )
        )

    def happened(self, event: HaEvent) -> None:
        level = getattr(event, "level", "info")
        if level != "debug":  # what only the feed tells
            tell = _log.error if level == "error" else _log.info
            tell(event.name, broker=self._config.broker.id, **attrs.asdict(event))
        group = self._ha.group if self._ha is not None else None
        self._facts.happened(event, group.min_insync if group is not None else 0)

    # -- commands of operators ----------------------------------------------------------------------------------------

    def commands(self) -> Commands:
        """For the core that is about to run; whichever runs when a command comes carries it out."""
        return {name: partial(self._carry_out, name) for name in COMMANDS}

    def _carry_out(self, command: str, request: CommandRequest) -> None:
        if self._ha is None:
            raise CommandRefusedError(RECOVERING)
        self._ha.carry_out(command, request)

    # -- showing --------------------------------------------------------------------------------------------------------

    @property
    def running(self) -> HaBroker | None:
        """The plugin's part of the core that runs now; None between two."""
        return self._ha

    def metrics(self) -> list[Family]:
        """Metrics of the group and its links for ``/metrics``."""
        families: list[Family] = []
        if self._fabric is not None:
            seen = self._fabric.statistics()
            families = link_families(seen.links, seen.lost, seen.refused, self._lost or bool(self._group_missing))
        return families + (broker_families(self._ha) if self._ha is not None else [])

    def status(self) -> Mapping[str, Any]:
        """Role, status, group, what blocks, how far behind each backup is."""
        ha = self._ha
        if ha is None:
            return {"blockers": [RECOVERING]}
        group = ha.group
        shown: dict[str, Any] = {
            "role": "primary" if ha.primary is not None else "backup",
            "status": ha.status.value,
            "epoch": group.epoch if group is not None else ha.replicator.epoch_seen,
            "primary": group.primary if group is not None else None,
            "in_sync": list(group.members) if group is not None else [],
            "min_insync": group.min_insync if group is not None else self._core_config.min_insync,
            "blockers": self._never_reached(group) or ha.blockers(),
            "since": ha.since or None,
            "coordination": "lost" if self._lost or ha.stored.missing else "connected",
            "coordination_trouble": self._store_trouble(ha) or None,
            "known_brokers": self._known_brokers(),
            "damaged": {each.broker: each.lacks for each in group.damaged} if group is not None else {},
            "barred": {each.broker: bar_text(each) for each in group.barred} if group is not None else {},
            "successor": group.successor or None if group is not None else None,
            "lag": {},
        }
        if ha.primary is not None:
            shown["record_format"] = ha.primary.log_format.written
            shown["lag"] = {
                each.broker: each.shown(ha.now_ms, ha.broker.clock.wall_ms) for each in ha.primary.readiness()
            }
        return shown

    @property
    def _group_missing(self) -> str:
        return self._ha.stored.missing if self._ha is not None else ""

    def _store_trouble(self, ha: HaBroker) -> str:
        driver = self._coordination.trouble if self._coordination is not None else ""
        return driver or ha.store_trouble

    def _never_reached(self, group: GroupState | None) -> list[str]:
        """The store that this broker waits for, and why; nothing once it has known its group."""
        if group is not None or not self._lost:
            return []
        section = self._config.coordination
        where = section.path if section.kind == "file" else f"ZooKeeper {','.join(section.hosts)}{section.chroot}"
        trouble = self._coordination.trouble if self._coordination is not None else ""
        what = trouble if str(where) in trouble else f"{where}: {trouble}" if trouble else str(where)
        return [f"the coordination store is lost: {what}"]

    def _known_brokers(self) -> dict[str, Any]:
        brokers = self._seen[1] if self._seen is not None else {}
        return {
            info.broker: {
                "amqp": info.amqp,
                "link": info.link,
                "http": info.http,
                "status": info.status,
                "pid": info.pid,
                "alive": info.alive,
                "blockers": info.blockers,
            }
            for info in brokers.values()
        }


def _is_closed(link: Link) -> bool:
    return isinstance(link, DirectLink) and not link.open


# -- settings -----------------------------------------------------------------------------------------------------------


def core_config(config: Config) -> HaSettings:
    """Settings of the plugin's core, taken from the configuration.

    ``ha.min_insync`` that is not given is 1: a broker that founds a group does not know how many will join it.
    """
    store = config.coordination
    store_waits_s = store.session_s if store.kind == "zookeeper" else store.lease_s
    return HaSettings(
        broker=config.broker.id,
        group=config.broker.group,
        founds=config.ha.found,
        min_insync=config.ha.min_insync or 1,
        backup_timeout_ms=milliseconds(config.ha.backup_timeout_s),
        expected_timeout_ms=milliseconds(config.ha.expected_timeout_s),
        reconnect_min_ms=milliseconds(config.ha.reconnect_min_s),
        reconnect_max_ms=milliseconds(config.ha.reconnect_max_s),
        link_unacknowledged_bytes=config.limits.link_unacknowledged_bytes,
        replicate=ReplicationLevel(config.ha.replicate),
        store_place=store_place(store, config.broker.group),
        pause_ms=max(LEAST_PAUSE_MS, milliseconds(store_waits_s) // 2),
    )


def store_place(section: CoordinationConfig, group: str) -> str:
    """Where a group stands in the coordination store, for people."""
    if section.kind == "file":
        return f"group {group!r} in {section.path}"
    return f"node {Paths(group, section.chroot).group} of ZooKeeper {','.join(section.hosts)}"


def link_settings(
    config: Config, server: ssl.SSLContext | None = None, client: ssl.SSLContext | None = None
) -> LinkSettings:
    """Settings that all links of this broker share; ``server`` and ``client`` are the two sides of their TLS, if they have any."""
    return LinkSettings(
        group=config.broker.group,
        broker=config.broker.id,
        secret=(config.link.secret or "").encode(),
        # What a client finds must not depend on who leads.
        agreed={"broker.vhosts": ", ".join(sorted(config.broker.vhosts))},
        heartbeat_ms=milliseconds(config.link.heartbeat_s),
        dead_after_ms=milliseconds(config.link.dead_after_s),
        unix=config.link.unix,
        server_tls=server,
        client_tls=client,
    )


def _tls(section: TlsSection) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The two sides of a link. Who is there the shared secret proves; ``ca`` adds that its certificate is of the group."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    client = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    client.check_hostname = False
    try:
        for context in (server, client):
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.load_cert_chain(section.cert, section.key, password="")
            if section.ca is not None:
                context.load_verify_locations(section.ca)
                context.verify_mode = ssl.CERT_REQUIRED
            else:
                context.verify_mode = ssl.CERT_NONE
    except OSError as error:
        reason = error.strerror or str(error)
        raise LinkPortError(f"link.tls: cert {section.cert} and key {section.key} cannot be used: {reason}") from error
    return server, client
