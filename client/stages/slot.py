"""Slot: one place in a worker, with one delivery of one stage at a time. It does the steps that the decisions ask for."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Callable
from typing import Any, Final

from understudy.client.stages.channel import Arrival, TxChannel
from understudy.client.stages.clock import now_ms
from understudy.client.stages.connection import Connection, LostError, Pause
from understudy.client.stages.context import Context, current_sends
from understudy.client.stages.core import steps as do
from understudy.client.stages.core.handling import Steps, handle
from understudy.client.stages.database import DatabaseSession, in_thread
from understudy.client.stages.errors import DemarcationError
from understudy.client.stages.marker import Marker
from understudy.client.stages.points import AtPoint, Point
from understudy.client.stages.stage import Stage

_log = logging.getLogger("understudy.stages")


class Slot:
    """Takes deliveries of one stage until it is told to stop.

    Args:
        writer: held while a transaction of the database is open; None if transactions do not exclude each other.
        marker: takes envelopes out of the outbox, many at a time.
    """

    def __init__(
        self,
        stage: Stage[..., Any],
        connection: Connection,
        session: DatabaseSession | None,
        writer: asyncio.Lock | None,
        marker: Marker | None,
        at_point: AtPoint,
    ) -> None:
        self._stage = stage
        self._connection = connection
        self._session = session
        self._writer = writer
        self._marker = marker
        self._at_point = at_point
        self._holds = False
        self._stopping = asyncio.Event()
        self._performers: Final[dict[type, Callable[[Any, TxChannel, Arrival], Any]]] = {
            do.BeginDatabase: self._begin,
            do.Claim: self._claim,
            do.ReadUnsent: self._read_unsent,
            do.Call: self._call,
            do.Store: self._store,
            do.Probe: self._probe,
            do.CommitDatabase: self._commit,
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
        self._stopping.set()

    async def run(self) -> None:
        """Until `stop`. Losses of the connection end in another channel."""
        pause = Pause()
        while not self._stopping.is_set():
            channel: TxChannel | None = None
            try:
                channel = await TxChannel.open(self._connection)
                await self._connection.ensure(self._stage.queue)
                await channel.consume(self._stage.queue)
                pause.done()
                while (arrival := await self._next(channel)) is not None:
                    await self._handle(channel, arrival)
            except LostError as error:
                _log.warning("stages: %s lost its channel: %s", self._stage.name, error)
                await pause.wait()
            finally:
                if channel is not None:
                    await channel.close()

    async def _next(self, channel: TxChannel) -> Arrival | None:
        """The next delivery; None when told to stop."""
        stopped = asyncio.ensure_future(self._stopping.wait())
        arrived = asyncio.ensure_future(channel.next())
        try:
            await asyncio.wait([stopped, arrived], return_when=asyncio.FIRST_COMPLETED)
            return None if self._stopping.is_set() else arrived.result()
        finally:
            stopped.cancel()
            arrived.cancel()

    async def _handle(self, channel: TxChannel, arrival: Arrival) -> None:
        """One delivery. A loss of the broker rolls the database back and goes to the caller."""
        steps: Steps = handle(self._stage.rules, arrival.delivery)
        try:
            step = next(steps)
            while True:
                try:
                    answer = await self._performers[type(step)](step, channel, arrival)
                except LostError:
                    raise
                except Exception as error:  # noqa: BLE001  # the decisions know what it means
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration:
            pass
        finally:
            steps.close()
            await self._let_go()

    # -- the steps ------------------------------------------------------------------------------------------------------

    async def _begin(self, _: do.BeginDatabase, channel: TxChannel, arrival: Arrival) -> None:
        assert self._session is not None
        if self._writer is not None:
            await self._writer.acquire()
            self._holds = True
        await in_thread(self._session.begin)

    async def _claim(self, step: do.Claim, channel: TxChannel, arrival: Arrival) -> bool:
        assert self._session is not None
        claimed: bool = await in_thread(self._session.claim, step.stage, step.id, now_ms())
        return claimed

    async def _read_unsent(self, step: do.ReadUnsent, channel: TxChannel, arrival: Arrival) -> Any:
        assert self._session is not None
        return await in_thread(self._session.unsent, step.stage, step.id)

    async def _call(self, step: do.Call, channel: TxChannel, arrival: Arrival) -> object:
        stage, signature, session = self._stage, self._stage.signature, self._session
        named: dict[str, Any] = {}
        if signature.context is not None:
            named[signature.context] = Context(
                step.sends, attempt=step.attempt, redelivered=arrival.delivery.redelivered
            )
        if signature.database is not None and session is not None:
            named[signature.database] = session.argument(blocking=stage.blocking)
        token = current_sends.set(step.sends)
        try:
            if stage.blocking:
                # A copy of the context: the function finds in its thread what it would find here.
                result = await in_thread(contextvars.copy_context().run, stage.function, step.message, **named)
            else:
                result = await stage.function(step.message, **named)
        except Exception as error:
            self._check_open(error)
            raise
        finally:
            current_sends.reset(token)
        self._check_open(None)
        return result

    def _check_open(self, cause: Exception | None) -> None:
        if self._stage.rules.database and self._session is not None and (ended := self._session.ended_by_stage()):
            raise DemarcationError(
                f"stage {self._stage.name!r} ends the transaction of its database ({ended}): "
                f"the library commits when the stage returns, or rolls back if it raises"
            ) from cause

    async def _store(self, step: do.Store, channel: TxChannel, arrival: Arrival) -> None:
        assert self._session is not None
        await in_thread(self._session.store, step.stage, step.id, step.envelopes, now_ms())

    async def _probe(self, _: do.Probe, channel: TxChannel, arrival: Arrival) -> None:
        await channel.probe()

    async def _commit(self, _: do.CommitDatabase, channel: TxChannel, arrival: Arrival) -> None:
        assert self._session is not None
        if not channel.lives:
            raise LostError("the channel closed while the stage ran")
        self._at_point(Point.BEFORE_DATABASE_COMMIT, self._stage.name)
        await in_thread(self._session.commit)
        self._release()
        self._at_point(Point.AFTER_DATABASE_COMMIT, self._stage.name)

    async def _rollback(self, _: do.RollbackDatabase, channel: TxChannel, arrival: Arrival) -> None:
        await self._let_go()

    async def _settle(self, step: do.Settle, channel: TxChannel, arrival: Arrival) -> None:
        await channel.settle(step.envelopes, arrival.tag)
        self._at_point(Point.AFTER_BROKER_COMMIT, self._stage.name)

    async def _give_back(self, step: do.GiveBack, channel: TxChannel, arrival: Arrival) -> None:
        await self._let_go()
        _log.warning("stages: the database of %s cannot begin: %s", self._stage.name, step.reason)
        await asyncio.sleep(1)
        await channel.give_back(arrival.tag)

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
        await asyncio.sleep(step.ms / 1000)

    async def _now(self, _: do.Now, channel: TxChannel, arrival: Arrival) -> int:
        return now_ms()

    async def _let_go(self) -> None:
        """Roll back what is open; nothing if the database was committed."""
        if self._session is not None:
            await in_thread(self._session.rollback)
        self._release()

    def _release(self) -> None:
        if self._writer is not None and self._holds:
            self._holds = False
            self._writer.release()
