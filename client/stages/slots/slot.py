"""Slot: one place in a worker, with one delivery of one stage at a time. It does the steps that the decisions ask for."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from understudy.client.stages.broker.arrival import Arrival
from understudy.client.stages.broker.channel import OtherConsumerError, TxChannel
from understudy.client.stages.broker.clock import now_ms, wait
from understudy.client.stages.broker.connection import Connection, LostError, Pause
from understudy.client.stages.core import steps as do
from understudy.client.stages.core.handling import REFUSED_PAUSE_MS, Steps, handle
from understudy.client.stages.databases import lines
from understudy.client.stages.databases.port import DatabaseSession, in_thread
from understudy.client.stages.definitions.context import Context, current_sends
from understudy.client.stages.definitions.stage import Stage
from understudy.client.stages.errors import DemarcationError
from understudy.client.stages.slots.marker import Marker
from understudy.client.stages.watching.points import AtPoint, Point
from understudy.client.stages.watching.watch import Handling, Watch

OpenChannel = Callable[[Connection], Awaitable[TxChannel]]

STANDBY_S: Final = 1.0
"""Between two tries to become the one consumer of a stage with a key."""

_log = logging.getLogger("understudy.stages")


class Slot:
    """Takes deliveries of one stage until it is told to stop.

    Args:
        writer: held while a transaction of the database is open; None if transactions do not exclude each other.
        marker: takes envelopes out of the outbox, many at a time.
        open_channel: makes its channels.
        watch: is told of each delivery.
    """

    def __init__(
        self,
        stage: Stage[..., Any],
        connection: Connection,
        session: DatabaseSession | None,
        writer: asyncio.Lock | None,
        marker: Marker | None,
        at_point: AtPoint,
        *,
        open_channel: OpenChannel = TxChannel.open,
        watch: Watch | None = None,
    ) -> None:
        self._stage = stage
        self._connection = connection
        self._session = session
        self._writer = writer
        self._marker = marker
        self._at_point = at_point
        self._open_channel = open_channel
        self._watch = watch or Watch([stage.name])
        self._handling: Handling | None = None
        self._task: asyncio.Task[Any] | None = None
        self._stopping = False
        self._busy = False
        self._open = False
        self._committed = False
        self._holds = False
        self._refused: do.Settle | None = None
        self._away = Pause()
        self._performers: Final[dict[type, Callable[[Any, TxChannel, Arrival], Any]]] = {
            do.BeginDatabase: self._begin,
            do.Claim: self._claim,
            do.ReadUnsent: self._read_unsent,
            do.Call: self._call,
            do.Store: self._store,
            do.Precheck: self._precheck,
            do.Line: self._line,
            do.Park: self._park,
            do.Block: self._block,
            do.Release: self._release_next,
            do.CommitDatabase: self._commit,
            do.CommitJointly: self._commit_jointly,
            do.RollbackDatabase: self._rollback,
            do.Settle: self._settle,
            do.GiveBack: self._give_back,
            do.Mark: self._mark,
            do.RunHooks: self._run_hooks,
            do.Wait: self._wait,
            do.Now: self._now,
        }

    def stop(self) -> None:
        """Finish the delivery in hand and take no other."""
        self._stopping = True
        if not self._busy and self._task is not None:
            self._task.cancel()

    async def run(self) -> None:
        """Until `stop`. Losses of the connection end in another channel."""
        self._task = asyncio.current_task()
        pause = Pause()
        try:
            while not self._stopping:
                try:
                    await self._serve(pause)
                except OtherConsumerError:
                    self._watch.stand_by(self._stage.name)
                    await asyncio.sleep(STANDBY_S)
                except LostError as error:
                    _log.warning("stages: %s lost its channel: %s", self._stage.name, error)
                    await pause.wait()
        except asyncio.CancelledError:
            if not self._stopping:
                raise

    async def _serve(self, pause: Pause) -> None:
        """Deliveries of one channel, until it is lost or `stop` is called."""
        channel = await self._open_channel(self._connection)
        try:
            await self._connection.ensure(self._stage.queue)
            await self._until_it_takes(channel)
            await channel.consume(self._stage.queue, alone=self._stage.key is not None)
            with self._watch.consuming(self._stage.name):
                await self._take(channel, pause)
        finally:
            await channel.close()

    async def _until_it_takes(self, channel: TxChannel) -> None:
        """After a commit that was lost, or refused: take no message before the broker takes commits again.

        A message that comes and goes is counted as one that ends its worker.
        """
        if self._refused is None:
            return
        told = ""
        while reason := await channel.precheck(brings=bool(self._refused.envelopes)):
            if reason != told:
                _log.warning("stages: %s waits, the broker would refuse its commit: %s", self._stage.name, reason)
                told = reason
            await wait(REFUSED_PAUSE_MS)
        self._refused = None

    async def _take(self, channel: TxChannel, pause: Pause) -> None:
        while not self._stopping:
            arrival = await channel.next()
            self._busy = True
            try:
                await self._handle(channel, arrival)
            finally:
                self._busy = False
            pause.done()

    async def _handle(self, channel: TxChannel, arrival: Arrival) -> None:
        """One delivery. A loss of the broker rolls the database back and goes to the caller."""
        with self._watch.handling(self._stage.name, arrival.delivery) as self._handling:
            await self._do(channel, arrival, self._handling)

    async def _do(self, channel: TxChannel, arrival: Arrival, handling: Handling) -> None:
        steps: Steps = handle(self._stage.rules, arrival.delivery)
        self._committed = False
        try:
            step = next(steps)
            while True:
                try:
                    answer = await self._performers[type(step)](step, channel, arrival)
                except LostError:
                    self._tell_window(step, arrival)
                    raise
                except Exception as error:  # noqa: BLE001  # the decisions know what it means
                    handling.note(step, error)
                    step = steps.throw(error)
                else:
                    handling.note(step, None)
                    step = steps.send(answer)
        except StopIteration:
            pass
        finally:
            steps.close()
            await self._let_go()

    def _tell_window(self, step: do.Step, arrival: Arrival) -> None:
        """Name the one case in which work of the database is done twice."""
        if self._committed and isinstance(step, do.Settle) and not self._stage.once:
            _log.error(
                "stages: %s: the database is committed, and the broker's commit is lost; message %s may be processed again "
                "(once=True prevents it)",
                self._stage.name,
                arrival.delivery.id,
            )

    # -- the steps ------------------------------------------------------------------------------------------------------

    async def _begin(self, _: do.BeginDatabase, channel: TxChannel, arrival: Arrival) -> None:
        assert self._session is not None
        if self._writer is not None:
            await self._writer.acquire()
            self._holds = True
        self._open = True
        await self._session.begin()

    async def _claim(self, step: do.Claim, channel: TxChannel, arrival: Arrival) -> bool:
        assert self._session is not None
        claimed: bool = await self._session.claim(step.stage, step.id, now_ms())
        return claimed

    async def _read_unsent(self, step: do.ReadUnsent, channel: TxChannel, arrival: Arrival) -> Any:
        assert self._session is not None
        return await self._session.unsent(step.stage, step.id)

    async def _call(self, step: do.Call, channel: TxChannel, arrival: Arrival) -> object:
        stage, session = self._stage, self._session
        if step.target is not None:
            stage = cast("Stage[..., Any]", step.target)  # of the same application
            stage.check_joins(self._stage)
        signature = stage.signature
        named: dict[str, Any] = {}
        if signature.context is not None:
            named[signature.context] = Context(
                step.sends, attempt=step.attempt, redelivered=arrival.delivery.redelivered
            )
        if signature.database is not None and session is not None:
            named[signature.database] = session.argument()
        token = current_sends.set(step.sends)
        assert self._handling is not None
        try:
            with self._handling.calling(step):
                if stage.blocking:
                    result = await in_thread(_called, stage.function, step.message, named)
                else:
                    result = await stage.function(step.message, **named)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise RuntimeError(f"stage {stage.name!r} was cancelled by itself") from error
        except Exception as error:
            self._check_open(error)
            raise
        finally:
            current_sends.reset(token)
        self._check_open(None)
        return result

    def _check_open(self, cause: Exception | None) -> None:
        if not self._stage.rules.database or self._session is None:
            return
        if ended := self._session.ended_by_stage(failed=cause is not None):
            raise DemarcationError(
                f"stage {self._stage.name!r} ends the transaction of its database ({ended}): "
                f"the library commits when the stage returns, or rolls back if it raises"
            ) from cause

    async def _store(self, step: do.Store, channel: TxChannel, arrival: Arrival) -> None:
        assert self._session is not None
        await self._session.store(step.stage, step.id, step.envelopes, now_ms())

    async def _line(self, step: do.Line, channel: TxChannel, arrival: Arrival) -> str:
        assert self._session is not None
        return await lines.head_of(self._session, step.stage, step.key)

    async def _park(self, step: do.Park, channel: TxChannel, arrival: Arrival) -> None:
        assert self._session is not None
        await lines.park(self._session, step.stage, step.key, step.delivery, now_ms())

    async def _block(self, step: do.Block, channel: TxChannel, arrival: Arrival) -> bool:
        assert self._session is not None
        return await lines.block(self._session, step.stage, step.key, step.delivery, now_ms())

    async def _release_next(self, step: do.Release, channel: TxChannel, arrival: Arrival) -> Any:
        assert self._session is not None
        return await lines.release(self._session, step.stage, step.key, step.id, self._stage.queue)

    async def _precheck(self, step: do.Precheck, channel: TxChannel, arrival: Arrival) -> str:
        reason = await channel.precheck(brings=step.brings)
        if reason and self._open:
            _log.warning("stages: %s waits, the broker would refuse its commit: %s", self._stage.name, reason)
        return reason

    async def _commit(self, _: do.CommitDatabase, channel: TxChannel, arrival: Arrival) -> None:
        assert self._session is not None
        if not channel.lives:
            raise LostError("the channel closed while the stage ran")
        self._at_point(Point.BEFORE_DATABASE_COMMIT, self._stage.name)
        await self._session.commit()
        self._open = False
        self._committed = True
        self._release()
        self._at_point(Point.AFTER_DATABASE_COMMIT, self._stage.name)

    async def _commit_jointly(self, step: do.CommitJointly, channel: Any, arrival: Arrival) -> None:
        session: Any = self._session
        name = self._stage.name
        self._at_point(Point.BEFORE_DATABASE_COMMIT, name)

        def part(branch: Any) -> Any:
            return channel.join(
                branch, step.envelopes, arrival.tag, before_end=lambda: self._at_point(Point.BEFORE_BROKER_COMMIT, name)
            )

        self._refused = do.Settle(step.envelopes)  # until it is done, or the database has refused
        try:
            await session.commit(part)
        except LostError:
            raise
        except Exception:
            self._refused = None
            raise
        self._open = False
        self._note_done()
        self._at_point(Point.AFTER_BROKER_COMMIT, name)

    async def _rollback(self, _: do.RollbackDatabase, channel: TxChannel, arrival: Arrival) -> None:
        await self._let_go()

    async def _settle(self, step: do.Settle, channel: TxChannel, arrival: Arrival) -> None:
        self._refused = step  # until it is done
        await channel.settle(
            step.envelopes,
            arrival.tag,
            surely=step.surely,
            before_commit=lambda: self._at_point(Point.BEFORE_BROKER_COMMIT, self._stage.name),
        )
        self._note_done()
        self._at_point(Point.AFTER_BROKER_COMMIT, self._stage.name)

    def _note_done(self) -> None:
        """Broker and database take commits."""
        self._refused = None
        self._away.done()

    async def _give_back(self, step: do.GiveBack, channel: TxChannel, arrival: Arrival) -> None:
        await self._let_go()
        _log.warning("stages: the database of %s cannot begin: %s", self._stage.name, step.reason)
        await self._away.wait()
        self._refused = do.Settle(())
        await channel.give_back(arrival.tag)
        self._refused = None

    async def _mark(self, step: do.Mark, channel: TxChannel, arrival: Arrival) -> None:
        assert self._marker is not None
        self._marker.add(step.ids)

    async def _run_hooks(self, step: do.RunHooks, channel: TxChannel, arrival: Arrival) -> None:
        for hook in step.sends.hooks:
            try:
                result = hook()
                if inspect.isawaitable(result):
                    await result
            except Exception:  # noqa: BLE001  # both commits are done: nothing can fail any more
                _log.exception("stages: a hook after the commit of %s failed", self._stage.name)

    async def _wait(self, step: do.Wait, channel: TxChannel, arrival: Arrival) -> None:
        self._busy = False  # a stop need not wait for it
        await wait(step.ms)
        self._busy = True

    async def _now(self, _: do.Now, channel: TxChannel, arrival: Arrival) -> int:
        return now_ms()

    async def _let_go(self) -> None:
        """Roll back what is open; nothing if the database was committed."""
        if self._session is not None and self._open:
            await self._session.rollback()
            self._open = False
        self._release()

    def _release(self) -> None:
        if self._writer is not None and self._holds:
            self._holds = False
            self._writer.release()


def _called(function: Callable[..., Any], message: object, named: dict[str, Any]) -> object:
    """Call a stage's function in a thread. No future can carry a StopIteration: the caller would wait for ever."""
    try:
        return function(message, **named)
    except StopIteration as error:
        raise RuntimeError(f"{function.__qualname__} raised StopIteration") from error
