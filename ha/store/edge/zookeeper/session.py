"""ZooKeeperSession: one session with an ensemble, for asyncio. The only file that imports kazoo.

kazoo has threads of its own: one that talks to a server and sends the session's heartbeats, two for callbacks. So a loop that is
busy does not lose its session. What these threads say hops to the loop (``call_soon_threadsafe``) and they return at once; nothing
is decided here.

**Order.** Requests of one session are carried out, and answered, in the order in which they were made, so they may be made without
waiting for each other. A request that is made while the session is not connected fails at once, rather than to be sent at some
later time.

**Reads.** A server may be behind the leader. A read that must not be stale follows a transaction of one check in the same session:
the check goes through the quorum, and no server shows this session anything older afterwards. (``sync`` does not: a leader that was
replaced and does not know it answers it.)

**A loop that hangs.** Its session must not go on for ever, or nobody would replace it. So the loop gives a sign three times a
session, and a thread that misses it for a whole session ends the session, and begins another one when the loop is back.

**A connection that ends by itself.** kazoo gives up where it did not expect an error, or where a server refuses the credentials.
The same thread begins to connect again, a third of a session later.

**Lost sessions.** kazoo tells SUSPENDED when the connection is gone, CONNECTED when it is back, and LOST between the two if the
servers had ended the session meanwhile: it learns that only when it reaches one. Then it begins another session by itself, and
``session_id`` differs.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

import attrs
from kazoo import exceptions as errors
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.interfaces import IAsyncResult
from kazoo.protocol.states import KazooState, WatchedEvent
from kazoo.retry import KazooRetry
from kazoo.security import ACL, READ_ACL_UNSAFE, make_digest_acl

from understudy.ha.store.coordination import StoreError
from understudy.ha.store.edge.zookeeper.access import Access
from understudy.ha.store.edge.zookeeper.tls import Trust
from understudy.ha.store.zookeeper_requests import (
    Change,
    Node,
    NodeExistsError,
    NoNodeError,
    RefusedError,
    UnreachedError,
    VersionError,
)

RETRY_MIN_S: Final = 0.05
RETRY_MAX_S: Final = 0.5
"""Pauses between attempts to reach a server: short, for a primary alone in its set waits for it."""

SIGNS_A_SESSION: Final = 3
"""So often a loop that does not hang gives a sign."""

_T = TypeVar("_T")


class ZooKeeperSession:
    """A session, on the loop that it is made on.

    Args:
        access: where and as whom.
        connected: told on the loop: True when the connection stands, False when it is lost.
        changed: told on the loop of a path that is watched and has changed, or may have. A watch fires once.
        wait_s: for how long a request may wait for its answer.
    """

    def __init__(
        self,
        access: Access,
        connected: Callable[[bool], None],
        changed: Callable[[str], None],
        *,
        wait_s: float,
    ) -> None:
        self.access = access
        self._loop = asyncio.get_running_loop()
        self._connected = connected
        self._changed = changed
        self._wait_s = wait_s
        self._sign_every_s = access.session_s / SIGNS_A_SESSION
        self._sign_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()  # who stops and starts kazoo's client: the watchdog, or stop()
        self._complaints = _Complaints()
        self._client = KazooClient(
            hosts=access.hosts,
            timeout=access.session_s,
            connection_retry=KazooRetry(max_tries=-1, delay=RETRY_MIN_S, max_delay=RETRY_MAX_S),
            auth_data=[("digest", f"{access.user}:{access.password}")] if access.user else None,
            default_acl=_acl(access),
            logger=self._complaints.logger,
            handler=_Handler(access.tls, self._complaints),
        )
        self._client.add_listener(self._state_changed)
        # One object: kazoo keeps watchers in a set, and a new bound method each time would be one more of them.
        self._watcher = self._watched

    def start(self) -> None:
        """Begin to connect; ``connected`` tells when that is done, be it long after."""
        self._give_sign()
        self._client.start_async()
        threading.Thread(target=self._watch_loop, name="coordination watchdog", daemon=True).start()

    async def stop(self) -> None:
        """End the session, so that its ephemeral nodes go at once."""
        if self._timer is not None:
            self._timer.cancel()
        self._ended.set()
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        with self._lock:
            self._end_session()
            with suppress(Exception):  # as below
                self._client.close()

    def _end_session(self) -> None:
        # kazoo raises what it likes where a server does not answer; the session ends by itself then.
        with suppress(Exception):
            self._client.stop()

    def _give_sign(self) -> None:
        """The loop runs."""
        self._sign_s = time.monotonic()
        self._timer = self._loop.call_later(self._sign_every_s, self._give_sign)

    def _watch_loop(self) -> None:
        """A thread of its own: see *A loop that hangs* and *A connection that ends by itself*, above."""
        let_go = False
        while not self._ended.wait(self._sign_every_s):
            hangs = time.monotonic() - self._sign_s > self.access.session_s
            with self._lock:
                if self._ended.is_set():
                    return
                if hangs and not let_go:
                    self._end_session()
                elif not hangs and self._has_no_connection_thread:
                    self._begin_session()
            let_go = hangs

    @property
    def _has_no_connection_thread(self) -> bool:
        """Nothing tries to connect: kazoo was stopped, or has given up. It says so nowhere else."""
        thread = self._client._connection._connection_routine  # noqa: SLF001
        return thread is None or not thread.is_alive()

    def _begin_session(self) -> None:
        # No stop() before: a close request that finds no connection would end the next one.
        try:
            self._client.start_async()
        except Exception as error:  # noqa: BLE001  # no thread, no socket: tried again a third of a session later
            self._complaints.add(error)

    @property
    def is_connected(self) -> bool:
        return bool(self._client.state == KazooState.CONNECTED)

    @property
    def session_id(self) -> int:
        """Of the session that holds, 0 for none."""
        client_id = self._client.client_id
        return int(client_id[0]) if client_id is not None else 0

    @property
    def complaint(self) -> str:
        """Why the last attempt to connect failed, as far as kazoo has said."""
        return self._complaints.last

    # -- requests -------------------------------------------------------------------------------------------------------

    def get(self, path: str, *, watch: bool = False) -> Awaitable[Node]:
        """Raises: StoreError, as every request here; NoNodeError: there is no such node."""
        result = self._ask(path, self._client.get_async, path, watch=self._watcher if watch else None)

        async def node() -> Node:
            value, stat = await result
            return Node(value, stat.version, stat.ephemeralOwner)

        return _Reply(node)

    def children(self, path: str, *, watch: bool = False) -> Awaitable[list[str]]:
        return self._ask(path, self._client.get_children_async, path, watch=self._watcher if watch else None)

    def exists(self, path: str, *, watch: bool = False) -> Awaitable[Any]:
        """A watch on a node that is not there tells when it is made."""
        return self._ask(path, self._client.exists_async, path, watch=self._watcher if watch else None)

    def make_folder(self, path: str) -> Awaitable[str]:
        """Make a node, and all above it, unless they are there."""
        return self._ask(path, self._client.ensure_path_async, path)

    def change(self, *changes: Change) -> Awaitable[list[Any]]:
        """Carry out all of these, or none.

        Raises:
            StoreError: the first that cannot be done, by its kind; its path stands in the message.
        """
        transaction = self._client.transaction()
        for each in changes:
            match each.kind:
                case "check":
                    transaction.check(each.path, each.version)
                case "create":
                    transaction.create(each.path, each.value, ephemeral=each.ephemeral, sequence=each.numbered)
                case "write":
                    transaction.set_data(each.path, each.value, version=each.version)
                case "delete":
                    transaction.delete(each.path, version=each.version)
        result = self._ask(changes[0].path, transaction.commit_async)

        async def done() -> list[Any]:
            answers: list[Any] = await result
            for each, answer in zip(changes, answers, strict=True):
                if isinstance(answer, Exception) and not isinstance(answer, _NOT_THE_CAUSE):
                    raise self._translated(each.path, answer) from answer
            return answers

        return _Reply(done)

    def _ask(self, path: str, call: Callable[..., IAsyncResult], *arguments: Any, **options: Any) -> Awaitable[Any]:
        """Make a request now; the answer may be awaited, at most once."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        if self.is_connected:
            call(*arguments, **options).rawlink(lambda result: self._hop(_settle, answer, result))
        else:
            answer.set_exception(errors.ConnectionLoss())
            answer.exception()  # as in _settle()

        async def waited() -> Any:
            try:
                async with asyncio.timeout(self._wait_s):
                    return await answer
            except TimeoutError as error:
                raise UnreachedError(
                    f"ZooKeeper {self.access.hosts}: no answer within {self._wait_s:g} s about {path}"
                ) from error
            except Exception as error:  # what else kazoo raises is no reason to end a broker either
                raise self._translated(path, error) from error

        return _Reply(waited)

    def _translated(self, path: str, error: Exception) -> StoreError:
        where = f"ZooKeeper {self.access.hosts}"
        match error:
            case errors.NoNodeError():
                return NoNodeError(f"{where}: {path} is not there")
            case errors.NodeExistsError():
                return NodeExistsError(f"{where}: {path} is there already")
            case errors.BadVersionError():
                return VersionError(f"{where}: {path} has changed meanwhile")
            case errors.NoAuthError() | errors.InvalidACLError() | errors.AuthFailedError():
                whom = f"user {self.access.user!r}" if self.access.user else "a client without credentials"
                return RefusedError(f"{where}: the ACL of {path} refuses {whom}")
            case errors.ConnectionLoss() | errors.SessionExpiredError() | errors.ConnectionClosedError():
                complaint = f": {self.complaint}" if self.complaint else ""
                return UnreachedError(f"{where} cannot be reached{complaint}")
            case _:
                return StoreError(f"{where}: {path}: {type(error).__name__}: {error}")

    # -- called by kazoo's threads ----------------------------------------------------------------------------------------

    def _state_changed(self, state: str) -> None:
        self._hop(self._connected, state == KazooState.CONNECTED)

    def _watched(self, event: WatchedEvent) -> None:
        if event.path is not None:  # None: the connection was lost, and all watches with it
            self._hop(self._changed, event.path)

    def _hop(self, call: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop was closed, and nothing is left to be told
            self._loop.call_soon_threadsafe(call, *arguments)


@attrs.frozen
class _Reply(Generic[_T]):
    """The answer to a request. It may be dropped, as where an earlier answer is an error: asyncio warns of a dropped coroutine."""

    wait: Callable[[], Coroutine[Any, Any, _T]]

    def __await__(self) -> Generator[Any, Any, _T]:
        return self.wait().__await__()


_NOT_THE_CAUSE: Final = (errors.RolledBackError, errors.RuntimeInconsistency)
"""What the other changes of a transaction that failed are answered."""


def _settle(answer: asyncio.Future[Any], result: Any) -> None:
    if answer.done():
        return  # nobody waits any more
    if result.exception is None:
        answer.set_result(result.value)
    else:
        answer.set_exception(result.exception)
        answer.exception()  # an answer that nobody waits for is no complaint of asyncio's


def _acl(access: Access) -> list[ACL] | None:
    """Of nodes that are made: the user may do everything, anybody may read. Without a user: anybody may do everything."""
    if not access.user:
        return None
    return [make_digest_acl(access.user, access.password, all=True), *READ_ACL_UNSAFE]


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """How kazoo connects, and what becomes of an error that ends one of its threads.

    Args:
        trust: for connections over TLS, None for plain ones.
        complaints: told of such an error.
    """

    def __init__(self, trust: Trust | None, complaints: _Complaints) -> None:
        super().__init__()
        self._trust = trust
        self._complaints = complaints

    def create_connection(
        self, address: tuple[str, int], hostname: str = "", timeout: float | None = None, **options: Any
    ) -> socket.socket:
        if self._trust is not None:
            return self._trust.connect(address, hostname, timeout)
        connection: socket.socket = super().create_connection(address, hostname=hostname, timeout=timeout, **options)
        return connection

    def spawn(self, func: Callable[..., None], *arguments: Any, **options: Any) -> threading.Thread:
        def run() -> None:
            try:
                func(*arguments, **options)
            except Exception as error:  # noqa: BLE001  # the watchdog starts another thread
                self._complaints.add(error)

        thread: threading.Thread = super().spawn(run)
        return thread


class _Complaints(logging.Handler):
    """Handler of kazoo's log. Keeps the last complaint alone, for the message that says why there is no connection."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""
        # Not of logging's tree: each session has one, and none of them is to print anything.
        self.logger = logging.Logger("understudy.zookeeper", logging.WARNING)  # noqa: LOG001
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):  # a text of kazoo's that does not fit its arguments
            self.last = record.getMessage().removeprefix("Connection dropped: ")

    def add(self, error: Exception) -> None:
        """Keep an error that kazoo has raised, not logged."""
        self.last = f"{type(error).__name__}: {error}"
