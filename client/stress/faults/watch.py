"""Watch: every broker's role and status over time, as ``/status`` says, asked several times a second."""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from understudy.client.runs.broker_group import DOWN, READY, BrokerView, GroupError
from understudy.client.runs.session import Address

ASK_EVERY_S: Final = 0.1
ANSWER_S: Final = 1.0
PAGE_S: Final = 20.0
SILENT: Final = "silent"
"""The status of a broker whose process is there and does not answer."""
READ_LIMIT: Final = 1 << 24


@attrs.frozen(kw_only=True)
class Moment:
    """From ``at_s`` (monotonic) on, ``broker`` was like this."""

    at_s: float
    broker: str
    role: str
    status: str
    epoch: int


class Watch:
    """Asks all brokers for their status, until cancelled.

    Args:
        pages: by broker, where it answers HTTP.
        login: user and password, for another host's pages.

    Attributes:
        views: each broker as it last said of itself.
        moments: every change, in order.
    """

    def __init__(
        self, pages: Mapping[str, Address], login: tuple[str, str], on_change: Callable[[BrokerView], None]
    ) -> None:
        self.views = {broker: BrokerView(broker=broker, status=DOWN) for broker in pages}
        self.moments: list[Moment] = []
        self._pages = pages
        self._login = b64encode(":".join(login).encode()).decode()
        self._on_change = on_change
        self._asked_s = dict.fromkeys(pages, 0.0)
        self._asked = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for broker in self._pages:
                tasks.create_task(self._ask_again_and_again(broker))

    async def _ask_again_and_again(self, broker: str) -> None:
        while True:
            began_s = time.monotonic()
            view = await self._view(broker)
            self._asked_s[broker] = began_s
            self._show(view)
            await asyncio.sleep(max(0.02, began_s + ASK_EVERY_S - time.monotonic()))

    async def _view(self, broker: str) -> BrokerView:
        try:
            page = await self.page(broker, "/status", ANSWER_S)
            return BrokerView(
                broker=broker,
                pid=page["pid"],
                port=page["port"] or 0,
                role=page["role"] or "-",
                status=page["status"],
                epoch=page["epoch"] or 0,
                in_sync=tuple(page["in_sync"]),
                blockers=tuple(page["blockers"]),
            )
        except TimeoutError:
            return attrs.evolve(self.views[broker], role="-", status=SILENT, in_sync=())
        except (GroupError, KeyError):
            return BrokerView(broker=broker, status=DOWN)

    def _show(self, view: BrokerView) -> None:
        before = self.views[view.broker]
        if view != before:
            self.views[view.broker] = view
            self._on_change(view)
        now = Moment(at_s=time.monotonic(), broker=view.broker, role=view.role, status=view.status, epoch=view.epoch)
        last = next((each for each in reversed(self.moments) if each.broker == view.broker), None)
        if last is None or (last.role, last.status, last.epoch) != (now.role, now.status, now.epoch):
            self.moments.append(now)
        self._asked.set()
        self._asked = asyncio.Event()

    async def page(self, broker: str, path: str, timeout_s: float = PAGE_S) -> dict[str, Any]:
        """A JSON page of one broker.

        Raises:
            GroupError: the broker has no such page, or does not listen.
            TimeoutError: it listens, and does not answer.
        """
        host, port = self._pages[broker]
        try:
            async with asyncio.timeout(timeout_s):
                return await _get(host, port, path, self._login)
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise GroupError(f"{broker} does not answer GET {path}: {type(error).__name__} {error}") from error

    # -- who is what ----------------------------------------------------------------------------------------------------

    @property
    def primary(self) -> BrokerView | None:
        """The broker that leads and serves, by the highest epoch."""
        return max((view for view in self.views.values() if view.leads), key=lambda view: view.epoch, default=None)

    def all_ready(self, since_s: float = 0.0) -> bool:
        """One broker is active, the others are ready, and all are in the in-sync set: as they said after ``since_s``."""
        primary = self.primary
        return (
            primary is not None
            and min(self._asked_s.values()) > since_s
            and set(primary.in_sync) == self.views.keys()
            and all(view is primary or view.status == READY for view in self.views.values())
        )

    async def wait_until(self, what: str, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait for a condition on what the brokers say.

        Raises:
            GroupError: it did not come true in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    await self._asked.wait()
        except TimeoutError:
            raise GroupError(f"not within {timeout_s:g} s: {what}; {self.describe()}") from None

    def describe(self) -> str:
        """All brokers in one line."""
        return "; ".join(
            f"{view.broker} {view.role} {view.status}" + (f" ({', '.join(view.blockers)})" if view.blockers else "")
            for view in self.views.values()
        )


async def _get(host: str, port: int, path: str, login: str) -> dict[str, Any]:
    reader, writer = await asyncio.open_connection(host, port, limit=READ_LIMIT)
    try:
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Basic {login}\r\nConnection: close\r\n\r\n".encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.read()
    finally:
        writer.close()
    code = head.split(b" ", 2)[1]
    if code != b"200":
        raise ValueError(f"status {code.decode()}")
    page: dict[str, Any] = json.loads(body)
    return page
