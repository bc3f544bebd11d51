"""BrokerServer: one broker process, from its ports to its last byte.

The start: ports (so that one in use stops it before anything is touched), the data directory's lock, HTTP, plugins,
``ports.json``, recovery, and only then clients. The end, for SIGTERM or SIGINT: no new clients, no new work, what is stable is
answered, clients get connection.close 320, links and journal are closed; all within ``shutdown.grace_s``.

In between it waits for one of three wishes: stop, restart the core (a plugin's), refuse to run (a plugin's).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import ssl
import sys
import time
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple

import attrs
import structlog

from understudy.broker.config import Config, TlsConfig, is_loopback_host
from understudy.broker.core.clients.login import PasswordCheck
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.core.watching.facts import LIMIT, Facts
from understudy.broker.errors import UnderstudyError
from understudy.broker.security import UserDirectory
from understudy.broker.server.files.disk_size import check_disk
from understudy.broker.server.files.file_storage import FileStorage
from understudy.broker.server.files.ports_file import PORTS_NAME, write_ports
from understudy.broker.server.files.tls_files import TlsFiles
from understudy.broker.server.files.watched_files import LOOK_S, WatchedFiles
from understudy.broker.server.plugins.edge_plugin import Endpoints
from understudy.broker.server.plugins.plugins import Plugins, make_plugins
from understudy.broker.server.process import fatal
from understudy.broker.server.process.exit_codes import ExitCode
from understudy.broker.server.process.supervisor_pipe import SupervisorPipe
from understudy.broker.server.sockets.carriage import take_carried
from understudy.broker.server.sockets.carried_client import CarrierDial
from understudy.broker.server.sockets.client_session import ClientSession
from understudy.broker.server.sockets.listener import Listener, tls_context
from understudy.broker.server.turn.node_driver import FAREWELL_S, NodeDriver
from understudy.broker.server.web.http_server import HttpSession
from understudy.broker.server.web.status_report import StatusReport

SHUTDOWN_TEXT: Final = "the broker is shutting down"
LATE_S: Final = 0.5

_log: Final = structlog.get_logger()


class RefusedToRunError(UnderstudyError):
    """A plugin found that this broker must not run: its data and the group's store contradict each other."""


class _Wish(Enum):
    STOP = "stop"
    RESTART = "restart"
    REFUSE = "refuse"


class _Wanted(NamedTuple):
    wish: _Wish
    reason: str
    handed_over: bool = False


class BrokerServer:
    """Implements ``EdgeHost`` for its plugins.

    Args:
        config: of this broker.
        supervised: somebody reads our standard output, a JSON object for each change of the status, and the end of our standard
            input means that he is gone.
        watched: the file of that configuration: changed users come into force, all else with the next start.
    """

    def __init__(
        self, config: Config, *, supervised: bool = False, watched: WatchedFiles[Config] | None = None
    ) -> None:
        self._config = config
        self._watched = watched
        if watched is not None:
            watched.give_to(self._take_users)
        self._supervised = supervised
        self.facts = Facts(lambda: time.time_ns() // 1_000_000, LIMIT if config.feed.facts else 0)
        self._wanted: asyncio.Queue[_Wanted] = asyncio.Queue()
        self._starting = True
        self._told: dict[str, Any] = {}
        self._supervisor: SupervisorPipe | None = None
        self._amqp: Listener | None = None
        self._amqps: Listener | None = None
        self._http: Listener | None = None
        self._plugins = Plugins()
        self._driver: NodeDriver | None = None
        self._report: StatusReport | None = None
        self._carrier: CarrierDial | None = None
        self._tls: list[TlsFiles[Any]] = []
        self._next_look: asyncio.TimerHandle

    async def run(self) -> None:
        """Serve until asked to stop.

        Raises:
            UnderstudyError, OSError: the start was refused; nothing was changed.
        """
        loop = asyncio.get_running_loop()
        fatal.watch_loop(loop)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        async with contextlib.AsyncExitStack() as stack:
            await self._start(stack)
            while (wanted := await self._wanted.get()).wish is not _Wish.STOP:
                if wanted.wish is _Wish.REFUSE:
                    raise RefusedToRunError(wanted.reason)
                await self._restart(wanted.reason, handed_over=wanted.handed_over)
            await self._shut_down(wanted.reason)

    # -- the start ------------------------------------------------------------------------------------------------

    async def _start(self, stack: contextlib.AsyncExitStack) -> None:
        config = self._config
        started = time.monotonic()
        tls = self._tls_files("amqp.tls", config.amqp.tls)
        http_tls = self._tls_files("http.tls", config.http.tls)
        # A stack of its own: a group would wrap what ends the broker, and it has to come through as it is.
        handshakes = contextlib.AsyncExitStack()
        stack.push_async_callback(handshakes.aclose)
        self._amqp = amqp = Listener("amqp", config.amqp.host, config.amqp.port)
        stack.callback(amqp.close)
        if config.amqp.tls is not None and config.amqp.tls.port is not None:
            self._amqps = Listener("amqp.tls", config.amqp.tls.host or config.amqp.host, config.amqp.tls.port)
            stack.callback(self._amqps.close)
        self._http = http = Listener("http", config.http.host, config.http.port)
        stack.callback(http.close)
        storage = FileStorage(config.broker.data)
        stack.callback(storage.close)
        check_disk(storage, config.journal)
        self._plugins = make_plugins(config)
        for plugin in self._plugins:
            stack.push_async_callback(plugin.stop)
            await plugin.start(self)
        ports = self._ports(amqp, http)
        self._report = report = StatusReport(config, ports, self._plugins, self._tls, self._watched)
        self._look_at_files()
        stack.callback(self._stop_looking)
        pages = report.pages()
        await self._accept_http(http, lambda: HttpSession(pages, self._users), http_tls, handshakes)
        if not write_ports(config.broker.data, ports):
            _log.warning(f"no room for {PORTS_NAME}: who knows only the directory does not find this broker", **ports)
        self._driver = driver = NodeDriver(config, storage, self._plugins, self.facts)
        if self._carrier is not None:
            driver.carry_by(self._carrier, amqp.has_room)
        stack.callback(driver.fact_log.close)
        stack.callback(driver.users.close)
        report.show(driver)
        if self._supervised:
            self._watch_supervisor()
            driver.tell_ticks(self._announce)
            self._announce()
        await self._open(driver)
        while (
            self._plugins.extending is None and not driver.broker.role.answering
        ):  # the EPOCH record of this start is being fsynced
            await driver.turned()
        if tls is None or self._amqps is not None:
            await amqp.accept(lambda: ClientSession(driver))
        if tls is not None:
            tasks = await handshakes.enter_async_context(asyncio.TaskGroup())
            secure = self._amqps or amqp
            secure.accept_tls(lambda: ClientSession(driver), tls.made, config.amqp.handshake_timeout_s, tasks)
            tls.give_to(secure.renew_tls)
        _log.info("serving", **{key: ports[key] for key in ports if key not in ("broker", "group", "started")},
                  seconds=round(time.monotonic() - started, 3))  # fmt: skip

    async def _accept_http(
        self,
        http: Listener,
        session: Callable[[], HttpSession],
        tls: TlsFiles[ssl.SSLContext] | None,
        handshakes: contextlib.AsyncExitStack,
    ) -> None:
        config = self._config
        if tls is None:
            if not is_loopback_host(config.http.host):
                _log.warning("passwords for the HTTP port are sent in the clear: see http.tls", host=config.http.host)
            await http.accept(session)
        else:
            tasks = await handshakes.enter_async_context(asyncio.TaskGroup())
            http.accept_tls(session, tls.made, config.amqp.handshake_timeout_s, tasks)
            tls.give_to(http.renew_tls)

    def _tls_files(self, section: str, config: TlsConfig | None) -> TlsFiles[ssl.SSLContext] | None:
        if config is None:
            return None
        files = TlsFiles(section, config, lambda: tls_context(section, config))
        self.watches(files)
        return files

    def _stop_looking(self) -> None:
        self._next_look.cancel()

    def _look_at_files(self) -> None:
        for files in self._tls:
            files.look()
        if self._watched is not None and self._driver is not None:
            self._watched.look()
        self._next_look = asyncio.get_running_loop().call_later(LOOK_S, self._look_at_files)

    def _take_users(self, changed: Config) -> None:
        """Bring the users of a changed file of the configuration into force.

        Raises:
            UnderstudyError: the virtual hosts have changed, too, in which the users have their rights.
        """
        before, users = self._config, attrs.evolve(self._config, users=changed.users)
        others = [
            each.name for each in attrs.fields(Config) if getattr(changed, each.name) != getattr(users, each.name)
        ]
        if others:
            _log.warning("changed sections come into force with the next start", sections=others)
        if users.users == before.users:
            return
        if changed.broker.vhosts != before.broker.vhosts:
            raise UnderstudyError(
                f"broker.vhosts is {list(changed.broker.vhosts)}, and {list(before.broker.vhosts)} is in force: "
                "users come into force with it at the next start"
            )
        assert self._driver is not None
        self._config = users
        self._driver.renew_users(UserDirectory(users, os.urandom(32)))

    def _users(self) -> PasswordCheck | None:
        return self._driver.users if self._driver is not None else None

    def _ports(self, amqp: Listener, http: Listener) -> dict[str, Any]:
        ports: dict[str, Any] = {
            "broker": self._config.broker.id,
            "group": self._config.broker.group,
            "pid": os.getpid(),
            "started": round(time.time(), 3),
            "host": self._config.amqp.host,
            "amqp": amqp.port,
            "http": http.port,
            "http_host": http.host,
            "http_tls": self._config.http.tls is not None,
        }
        if self._config.amqp.tls is not None:
            ports["amqp_tls"] = (self._amqps or amqp).port
        for plugin in self._plugins:
            ports |= plugin.ports()
        return ports

    async def _open(self, driver: NodeDriver, ended: BrokerNode | None = None) -> None:
        self._starting = True
        await driver.open(ended)
        self._starting = False

    # -- EdgeHost -------------------------------------------------------------------------------------------------

    @property
    def endpoints(self) -> Endpoints:
        assert self._amqp is not None
        assert self._http is not None
        return Endpoints(amqp=self._amqp.endpoint, http=self._http.endpoint)

    def turn(self, at_once: bool = False) -> None:
        if self._driver is not None:
            self._driver.request_turn(at_once)

    def restart_core(self, reason: str, *, handed_over: bool = False) -> None:
        self._wanted.put_nowait(_Wanted(_Wish.RESTART, reason, handed_over))

    def watches(self, files: TlsFiles[Any]) -> None:
        self._tls.append(files)

    def carries(self, dial: CarrierDial) -> None:
        self._carrier = dial

    def take_carried(self, carrier: str, client: bytes) -> str | Callable[[asyncio.Transport], None]:
        if self._driver is None or self._amqp is None:
            return "this broker is starting"
        return take_carried(self._driver, carrier, client, self._amqp.has_room)

    def refuse_to_run(self, reason: str) -> None:
        self._wanted.put_nowait(_Wanted(_Wish.REFUSE, reason))

    def crashed(self, event: str, error: BaseException) -> None:
        fatal.crashed(event, error)

    # -- wishes ---------------------------------------------------------------------------------------------------

    async def _restart(self, reason: str, *, handed_over: bool) -> None:
        driver = self._driver
        assert driver is not None
        _log.warning("the core steps down, and begins anew", reason=reason)
        ended = None
        if handed_over:
            ended = await driver.hand_on(driver.broker.reception.refusal_name, reason)
        else:
            await driver.close(driver.broker.reception.refusal_name, reason)
        await self._open(driver, ended)

    async def _shut_down(self, reason: str) -> None:
        """Flush, answer what is stable, say goodbye."""
        driver = self._driver
        assert driver is not None
        assert self._amqp is not None
        deadline = time.monotonic() + self._config.shutdown.grace_s
        asyncio.get_running_loop().call_later(self._config.shutdown.grace_s + LATE_S, _grace_is_over)
        _log.info("stopping", reason=reason, clients=len(driver.sessions))
        driver.stop_taking()
        self._stopping("stopping")
        self._amqp.close()
        if self._amqps is not None:
            self._amqps.close()
        for session in list(driver.sessions):
            session.stop_reading()
        if driver.carriage is not None:
            await driver.carriage.farewell(self._config.broker.id)
        stable = await driver.drained(deadline - FAREWELL_S)
        self._stopping("stopped")
        await driver.close("CONNECTION_FORCED", SHUTDOWN_TEXT)
        await driver.clients_gone(deadline)
        _log.info("stopped", all_answered=stable)

    def _stopping(self, phase: str) -> None:
        assert self._report is not None
        self._report.stops(phase)
        if self._supervised:
            self._announce()

    def _signalled(self, number: int) -> None:
        reason = signal.Signals(number).name
        if self._starting:
            # Nothing has been answered, and recovery may be interrupted anywhere: to wait for a long journal helps nobody.
            _log.info("stopped before it had started", reason=reason)
            os._exit(ExitCode.OK)
        if self._report is not None and self._report.stopping:
            _log.warning("stopped without waiting any longer", reason=reason)
            os._exit(ExitCode.OK)
        self._wanted.put_nowait(_Wanted(_Wish.STOP, reason))

    # -- the supervisor -------------------------------------------------------------------------------------------

    def _watch_supervisor(self) -> None:
        loop = asyncio.get_running_loop()
        self._supervisor = SupervisorPipe(sys.stdout.fileno())
        descriptor = sys.stdin.fileno()

        def readable() -> None:
            if not os.read(descriptor, 4096):
                loop.remove_reader(descriptor)
                self._wanted.put_nowait(_Wanted(_Wish.STOP, "the supervisor is gone"))

        loop.add_reader(descriptor, readable)

    def _announce(self) -> None:
        """Tell the supervisor, if anything that he shows has changed."""
        assert self._report is not None
        assert self._supervisor is not None
        if self._told.get("status") == "stopped":
            return  # what is taken apart from here on is nobody's concern
        brief = self._report.brief()
        if brief == self._told:
            self._supervisor.flush()
        elif self._supervisor.tell(json.dumps(brief)):
            self._told = brief


def _grace_is_over() -> None:
    """A disk, a peer or a plugin does not let go. Everything that was ever answered is on the disk: that is what counts."""
    _log.warning("shutdown.grace_s is over, stopped without waiting any longer")
    os._exit(ExitCode.OK)
