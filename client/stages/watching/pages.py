"""Pages of a worker over HTTP: ``/livez``, ``/readyz``, ``/status`` and ``/metrics``.

The event loop of the stages answers: a stage that blocks it shows as a page that does not come.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable
from http import HTTPStatus
from typing import Any, Final

import attrs
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from understudy.client.stages.broker.clock import now_ms
from understudy.client.stages.databases.port import Database, in_thread
from understudy.client.stages.databases.tables import LEFT
from understudy.client.stages.errors import ConfigurationError
from understudy.client.stages.watching.watch import Watch

REQUEST_TIMEOUT_S: Final = 5.0
LONGEST_REQUEST: Final = 8192
OUTBOX_TIMEOUT_S: Final = 2.0
PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"

_STATES: Final = (
    ("in_flight", "gauge", "Messages that this worker has in hand."),
    ("oldest_message_age_seconds", "gauge", "Age of the oldest message in hand; time without a consumer counts."),
    ("consumers", "gauge", "Consumers of the stage's queue in this worker."),
    ("attempts_done", "counter", "Attempts that were committed."),
    ("attempts_failed", "counter", "Attempts that were rolled back."),
    ("retries", "counter", "Failed messages that come again."),
    ("dead_letters", "counter", "Messages that became dead letters."),
    ("processed_before", "counter", "Deliveries whose work was done before."),
    ("given_back", "counter", "Deliveries that went back because the database could not begin."),
    ("parked", "counter", "Messages of a key that wait behind one that has failed."),
    ("lost", "counter", "Deliveries whose connection was lost in the middle."),
    ("handled", "counter", "Deliveries that came to an end."),
    ("handling_seconds", "counter", "Seconds that these took, from the delivery to the broker's commit."),
)


@attrs.frozen
class Outbox:
    """Count of the messages in the outbox, and age of the oldest; both are -1 if the database does not answer."""

    messages: int
    oldest_age_s: float


class WorkerPages:
    """The pages of one worker.

    Args:
        application: its name.
        watch: of the worker.
        database: whose outbox is counted at each look; None: there is none.
    """

    def __init__(self, application: str, watch: Watch, database: Database | None) -> None:
        self._application = application
        self._watch = watch
        self._database = database

    @contextlib.asynccontextmanager
    async def served(self, host: str, port: int) -> AsyncIterator[int]:
        """Serve within a ``with``; gives the port.

        Raises:
            ConfigurationError: the port cannot be had.
        """
        try:
            server = await asyncio.start_server(self._answer, host, port)
        except OSError as error:
            raise ConfigurationError(f"--http {port}: {error.strerror or error}") from error
        async with server:
            yield server.sockets[0].getsockname()[1]

    @property
    def ready(self) -> bool:
        """Each stage has a consumer."""
        return all(self._watch.has_its_part(name) for name in self._watch.counts)

    async def status(self) -> dict[str, Any]:
        """The page ``/status``."""
        outbox = await self._outbox()
        return {
            "application": self._application,
            "ready": self.ready,
            "stages": {name: self._row(name) for name in self._watch.counts},
            "outbox": attrs.asdict(outbox) if outbox is not None else None,
        }

    async def metrics(self) -> bytes:
        """The page ``/metrics``."""
        registry = CollectorRegistry()
        registry.register(_Given(self._families(await self._outbox())))
        return generate_latest(registry)

    def _row(self, name: str) -> dict[str, float]:
        counts = self._watch.counts[name]
        return {
            "in_flight": self._watch.in_flight(name),
            "oldest_message_age_seconds": self._watch.oldest_age_s(name),
            "consumers": self._watch.serving[name],
            "attempts_done": counts.done,
            "attempts_failed": counts.failed,
            "retries": counts.retried,
            "dead_letters": counts.dead,
            "processed_before": counts.again,
            "given_back": counts.given_back,
            "parked": counts.parked,
            "lost": counts.lost,
            "handled": counts.finished,
            "handling_seconds": round(counts.seconds, 3),
        }

    def _families(self, outbox: Outbox | None) -> list[Metric]:
        rows = {name: self._row(name) for name in self._watch.counts}
        families: list[Metric] = []
        for key, kind, text in _STATES:
            family = (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(
                f"understudy_stages_{key}", text, labels=["application", "stage"]
            )
            for name, row in rows.items():
                family.add_metric([self._application, name], row[key])
            families.append(family)
        if outbox is not None:
            for key, text, value in (
                ("outbox_messages", "Messages in the outbox; -1: the database does not answer.", outbox.messages),
                ("outbox_oldest_age_seconds", "Age of the oldest of them.", outbox.oldest_age_s),
            ):
                gauge = GaugeMetricFamily(f"understudy_stages_{key}", text, labels=["application"])
                gauge.add_metric([self._application], value)
                families.append(gauge)
        return families

    async def _outbox(self) -> Outbox | None:
        if self._database is None:
            return None
        try:
            async with asyncio.timeout(OUTBOX_TIMEOUT_S):
                ((messages, stored_ms),) = await in_thread(self._database.look, LEFT)
        except Exception:  # noqa: BLE001  # a database that is away: the page says so
            return Outbox(-1, -1)
        return Outbox(messages, max(0, now_ms() - stored_ms) / 1000 if messages else 0)

    # -- HTTP -----------------------------------------------------------------------------------------------------------

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            status, kind, body = await self._page(head.split(b"\r\n", 1)[0].decode("latin-1"))
            writer.write(
                f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
                + body
            )
            await writer.drain()
        writer.close()

    async def _page(self, line: str) -> tuple[HTTPStatus, str, bytes]:
        method, _, rest = line.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        pages: dict[str, Callable[[], Any]] = {"/metrics": self.metrics, "/status": self.status}
        if method != "GET":
            return HTTPStatus.METHOD_NOT_ALLOWED, PLAIN, b"GET alone\n"
        if path == "/livez":
            return HTTPStatus.OK, PLAIN, b"alive\n"
        if path == "/readyz":
            found = [name for name in self._watch.counts if not self._watch.has_its_part(name)]
            if not found:
                return HTTPStatus.OK, PLAIN, b"ready\n"
            return HTTPStatus.SERVICE_UNAVAILABLE, PLAIN, f"no consumer: {', '.join(found)}\n".encode()
        if path not in pages:
            return HTTPStatus.NOT_FOUND, PLAIN, b"/livez, /readyz, /status, /metrics\n"
        made = await pages[path]()
        if isinstance(made, bytes):
            return HTTPStatus.OK, PLAIN, made
        return HTTPStatus.OK, "application/json", json.dumps(made, indent=1).encode() + b"\n"


class _Given(Collector):
    """Families that were made before."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
