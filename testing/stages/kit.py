"""StagesKit: one application in one test, with a broker and a database of its own.

A worker runs in the test's own process, so a debugger, coverage and replaced functions see the stages. `StagesKit.crash_at` has
another worker run in a child process before it, which ends itself with SIGKILL: no clean-up of Python runs there.

Time that a delay or a retry takes is skipped: the clock of the broker for delays, and that of the library, are moved on when
nothing else is left to do. Messages lie in the broker meanwhile, as they do without a test.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Final, TypeVar

import attrs

from understudy.client.stages import Flow, Stage, Stages
from understudy.client.stages.application.worker import Worker
from understudy.client.stages.broker import clock
from understudy.client.stages.broker.arrival import arrival_of
from understudy.client.stages.broker.connection import Connection, close_channel, errors_as_ours
from understudy.client.stages.core import envelope as headers
from understudy.client.stages.core.envelope import DEAD_LETTERS, Delivery
from understudy.client.stages.watching.points import Point
from understudy.testing.stages.beside import BrokerBeside, Look
from understudy.testing.stages.crash import Crash, crashed
from understudy.testing.stages.databases import DatabaseBeside
from understudy.testing.stages.shuffling import PREFETCH, shuffled
from understudy.testing.stages.skipping import SkippingClock

T = TypeVar("T")

TIMEOUT_S: Final = 60.0
"""A test that has work left for so long fails."""
POLL_S: Final = 0.005
GRACE_S: Final = 0.2
LEASE_S: Final = 1.0
GET_EMPTY: Final = "Basic.GetEmpty"


@attrs.frozen(kw_only=True)
class DeadLetter:
    """A message that has become a dead letter.

    Attributes:
        stage: the stage that failed.
        message: as the stage takes it; octets if they do not decode.
        exception: the exception's type, with its module.
        text: the exception's message.
        attempts: how many have failed.
        refused: no further attempt could help.
    """

    id: str
    stage: str
    message: object
    exception: str
    text: str
    attempts: int
    refused: bool


class StagesKit:
    """Made by the fixture ``stages_kit``.

    Args:
        stages: the application; its broker and its database are replaced until the test ends.
        broker: the broker beside the tests.
        database: of this test; None if the application has none.
        shuffle: a seed: each worker takes the messages of a queue in an order by chance. None: in the queue's order.

    Attributes:
        stages: the application.
        clock: that of the library.
    """

    def __init__(
        self, stages: Stages, broker: BrokerBeside, database: DatabaseBeside | None, *, shuffle: int | None = None
    ) -> None:
        self.stages = stages
        self.clock = SkippingClock()
        self._broker = broker
        self._vhost = broker.vhost()
        self._database = database
        self._chance = random.Random(shuffle) if shuffle is not None else None
        self._crashes: list[Crash] = []

    @property
    def address(self) -> str:
        """The URL of the broker, for other programs of the test."""
        return self._broker.address(self._vhost)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Replace broker, database and clock within a ``with``."""
        database = self._database.database if self._database is not None else None
        before = clock.use(self.clock)
        try:
            with self.stages.elsewhere(broker=self.address, database=database):
                yield
        finally:
            clock.use(before)

    # -- what a test does -----------------------------------------------------------------------------------------------

    def send(
        self,
        to: Stage[..., Any] | Flow,
        message: object,
        *,
        after: timedelta | float | None = None,
        name: str | None = None,
    ) -> str:
        """Send one message, in an initiation of its own. Returns the id that ``to.send`` gives."""

        async def begin() -> str:
            async with self.stages.begin(name=name):
                return to.send(message, after=after)

        return self.call(begin())

    def call(self, coroutine: Coroutine[Any, Any, T], *, working: bool = False) -> T:
        """Run a coroutine that begins initiations, to its end; with ``working`` beside a worker, as to await a reply needs it.

        Another event loop runs it than that of a test that is ``async def``.
        """

        async def run() -> T:
            worker = self._worker() if working else None
            task = asyncio.create_task(worker.run()) if worker is not None else None
            try:
                return await coroutine
            finally:
                await self.stages.close()
                if worker is not None and task is not None:
                    worker.stop()
                    await task

        return _run(run())

    def crash_at(self, point: str | Point, stage: str = "") -> None:
        """Have the next `run` or `work` begin with a worker that is killed at a point; after it another one goes on.

        Args:
            point: one of `Point`, for example "after database commit".
            stage: the name of the stage; "": any.

        Raises:
            ValueError: there is no such point or stage.
        """
        if stage and stage not in self.stages.stages:
            raise ValueError(f"stage {stage!r}: the application has {', '.join(self.stages.stages)}")
        try:
            self._crashes.append(Crash(Point(point), stage))
        except ValueError:
            raise ValueError(f"point {point!r}: there are {', '.join(each.value for each in Point)}") from None

    def crash(self) -> None:
        """Run the workers of `crash_at` until they are killed, and no other after them."""
        while self._crashes:
            crashed(self._crashes.pop(0), self._worker, lambda: not self._is_left(self._look(), skipping=False))

    def run(self) -> None:
        """Work until nothing is left: no message waits, for a stage or for its time. Delays and retries are skipped."""
        self._work(skipping=True)

    def work(self) -> None:
        """Work until nothing is left that is due now."""
        self._work(skipping=False)

    def skip(self, seconds: float) -> None:
        """Let time pass, and work until nothing is left that is due then."""
        self._skip(round(seconds * 1000))
        self.work()

    # -- what a test sees -----------------------------------------------------------------------------------------------

    def script(self, sql: str) -> None:
        """Statements for the database of the test, each ended by a semicolon; committed at once."""
        self._of_test().script(sql)

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """One statement for the database of the test, and all rows that it gives."""
        return self._of_test().rows(sql, parameters)

    def waiting(self, stage: Stage[..., Any] | str) -> int:
        """How many messages the queue of a stage, or a queue, has, whether due or not."""
        name = stage if isinstance(stage, str) else stage.queue
        queues = self._broker.look(self._vhost).queues
        own = (name, *(each for each in queues if each.startswith(f"{name}.wait.")))
        return sum(queues[each][key] for each in own if each in queues for key in ("ready", "acquired", "withheld"))

    def dead_letters(self) -> list[DeadLetter]:
        """All dead letters of the application. They stay where they are."""
        return _run(self._dead_letters())

    # -- inside ---------------------------------------------------------------------------------------------------------

    def _of_test(self) -> DatabaseBeside:
        if self._database is None:
            raise ValueError(f"the application {self.stages.name!r} has no database")
        return self._database

    def _skip(self, ms: int) -> None:
        self.clock.skip(ms)
        self._broker.skip(ms)

    def _work(self, *, skipping: bool) -> None:
        self.crash()
        _run(self._worked(skipping=skipping))

    def _worker(self, at_point: Callable[[Point, str], None] | None = None) -> Worker:
        options: dict[str, Any] = {"at_point": at_point} if at_point is not None else {}
        if self._chance is not None:
            options["open_channel"] = shuffled(self._chance)
        return Worker(self.stages, relay_grace_s=GRACE_S, relay_lease_s=LEASE_S, **options)

    async def _worked(self, *, skipping: bool) -> None:
        worker = self._worker()
        task = asyncio.create_task(worker.run())
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while not task.done():
                    look = self._look()
                    if not self._is_left(look, skipping=skipping):
                        break
                    if skipping and (due_ms := self._rests_for(look)) is not None:
                        self._skip(due_ms + 1)
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise AssertionError(f"work is left after {TIMEOUT_S:g} s: {self._look()}") from None
        finally:
            worker.stop()
            await task

    def _look(self) -> Look:
        return self._broker.look(self._vhost)

    def _is_left(self, look: Look, *, skipping: bool) -> bool:
        """True if messages wait for a stage, or the outbox holds some; with ``skipping`` also if messages wait for their time."""
        if any(not look.queues.get(name, {}).get("consumers") for name in self.stages.stages):
            return True  # the worker begins
        if look.ready or look.acquired > (0 if skipping else self._held_while_waiting):
            return True
        return (skipping and look.due_in_ms is not None) or self._outbox()

    def _rests_for(self, look: Look) -> int | None:
        """Milliseconds until the next message is due, if nothing is to do before; else None."""
        if look.ready or look.acquired > self._held_while_waiting:
            return None
        due = [each for each in (look.due_in_ms, self.clock.due_in_ms) if each is not None]
        return min(due) if due else None

    @property
    def _held_while_waiting(self) -> int:
        """How many messages the slots hold that let time pass, at most."""
        return self.clock.waiting * (PREFETCH if self._chance is not None else 1)

    def _outbox(self) -> bool:
        if self._database is None:
            return False
        # A worker has made the table: its stages have consumers by now.
        return bool(self._database.rows("SELECT 1 FROM understudy_outbox LIMIT 1"))

    async def _dead_letters(self) -> list[DeadLetter]:
        connection = Connection(self.stages.addresses, "the test")
        found: list[DeadLetter] = []
        try:
            channel = await connection.channel()
            for stage in self.stages.stages.values():
                await connection.ensure(stage.queue + DEAD_LETTERS)
                async with errors_as_ours():
                    while (got := await channel.basic_get(stage.queue + DEAD_LETTERS)).delivery.name != GET_EMPTY:
                        found.append(_dead_letter(stage, arrival_of(got).delivery))
            await close_channel(channel)  # all of them go back
        finally:
            await connection.close()
        return found


def _dead_letter(stage: Stage[..., Any], delivery: Delivery) -> DeadLetter:
    message: object = delivery.body
    with contextlib.suppress(ValueError):
        message = stage.codec.decode(delivery.body)
    return DeadLetter(
        id=delivery.id,
        stage=stage.name,
        message=message,
        exception=delivery.text(headers.EXCEPTION),
        text=delivery.text(headers.EXCEPTION_TEXT),
        attempts=delivery.failures,
        refused=delivery.headers.get(headers.REFUSED) is True,
    )


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end; in a thread if an event loop runs here."""
    if not _a_loop_runs():
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def _a_loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
