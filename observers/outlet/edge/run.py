"""OutletRun: reads one broker's journal and sends what is committed, from the position that stands in Kafka.

    Kafka's position  ->  OutletReader  ->  Grouping  ->  OutletDelivery  ->  the next position, in the same Kafka transaction

While Kafka is away nothing is read, so the journal waits: the outlet asks its broker to keep what was not sent (`OutletHold`).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from understudy.broker.errors import UnderstudyError
from understudy.broker.log.position import Position
from understudy.broker.log.segment import JournalIdentity
from understudy.broker.server.files.file_spill import FileSpill
from understudy.broker.server.files.file_storage import FileStorage
from understudy.observers.outlet.edge.delivery import OutletCounts, OutletDelivery, OutletOptions, Sink
from understudy.observers.outlet.edge.facts import RestingLog
from understudy.observers.outlet.edge.hold import OutletHold
from understudy.observers.outlet.errors import BehindError, OtherFoundingError, OutletGapError, RewrittenLogError
from understudy.observers.outlet.reading.groups import Grouping
from understudy.observers.outlet.reading.reader import NOTHING, OutletReader
from understudy.observers.outlet.reading.segments import JournalSegments
from understudy.observers.outlet.reading.units import POSITION_VERSION, SentPosition, Unit
from understudy.observers.outlet.sending.lag import Lag, OutletLag
from understudy.observers.outlet.sending.progress import SENDING, STARTING, WAITING

POLL_S: Final = 0.05
IDLE_POSITION_S: Final = 10.0
"""So often the position is moved over records that bring no message."""
HOLD_S: Final = 5.0
LOOK_S: Final = 1.0
"""So often it looks for damage where nothing more comes."""
BREATH_FRAMES: Final = 16
"""So many frames are read before Kafka's connections get a turn."""


class OutletRun:
    """One run over one journal.

    Args:
        data: the broker's data directory.
        identity: of the journal: which group's and which broker's it is.
        sink: where units go.
        options: see there.
        say: told what an operator should read.

    Attributes:
        delivery: where units go.
    """

    def __init__(
        self, data: Path, identity: JournalIdentity, sink: Sink, options: OutletOptions, say: Callable[[str], None]
    ) -> None:
        self._group, self._broker = identity.group_id, identity.broker_id
        self._options = options
        self._say = say
        self._session = secrets.token_hex(8)
        self._storage = FileStorage(data, read_only=True)
        self._segments = JournalSegments(self._storage)
        self._hold = OutletHold(data, self._storage, options.hold)
        self._spill = FileSpill(data)
        self._resting = RestingLog(data)
        self._grouping = Grouping(options.limits)
        self._reader: OutletReader | None = None
        self._lag: OutletLag | None = None
        self._held_at = 0.0
        self.delivery = OutletDelivery(self._group, sink, options, say)

    @property
    def counts(self) -> OutletCounts:
        """Of what was sent."""
        return self.delivery.counts

    @property
    def sent(self) -> SentPosition:
        """The position that stands in Kafka; not before the run has begun."""
        sent = self.delivery.sent
        assert sent is not None
        return sent

    def stop(self) -> None:
        """`follow` ends after this round, and Kafka is not waited for any more."""
        self.delivery.stop()

    @property
    def state(self) -> str:
        """One of `outlet.progress.STATES`."""
        if self.delivery.waits:
            return WAITING
        return SENDING if self._lag is not None else STARTING

    def read_lag(self, limit_s: float) -> Lag | None:
        """How far the run is behind its journal, as far as the journal can be read in ``limit_s``; None: not known."""
        lag = self._lag
        if lag is None:
            return None
        until_s = time.monotonic() + limit_s
        with contextlib.suppress(UnderstudyError, OSError):  # the run meets the same, and says so
            for _ in lag.read_on():
                if time.monotonic() > until_s:
                    break
        lag.passed(self.sent.offset)
        return lag.now

    # -- the whole ----------------------------------------------------------------------------------------------------

    async def to_end(self) -> None:
        """Send everything up to the end of the journal.

        Raises:
            KafkaAwayError: Kafka does not answer at the start. Later it is waited for.
            OutletGapError: the journal does not hold everything behind the position.
            OutletFencedError: another outlet has taken over.
            UnderstudyError: Kafka refuses, or the journal cannot be read.
        """
        await self._begin()
        await self._round(last=True)
        self._now().find_damage()

    async def follow(self) -> None:
        """Go on until `stop`.

        Raises:
            UnderstudyError: as `to_end`.
        """
        await self._begin()
        looked_at = time.monotonic()
        while not self.delivery.stopping:
            if not await self._round():
                await asyncio.sleep(POLL_S)
            if time.monotonic() - looked_at >= LOOK_S:
                looked_at = time.monotonic()
                self._now().find_damage()
                self._storage.check_place()
        await self._send_rest(last=True)

    def close(self) -> None:
        """Close the journal."""
        for each in (self._reader, self._lag):
            if each is not None:
                each.close()
        self._resting.close()
        self._spill.close()
        self._storage.close()

    def _now(self) -> OutletReader:
        assert self._reader is not None
        return self._reader

    # -- beginning ----------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        found = await self.delivery.open()
        founding = found.founding if found is not None else ""
        if found is None:
            position, founding, needed = self._first_position()
        elif self._options.accept_gap:
            position, founding, needed = self._accepted(found)
        else:
            position, needed = found.position, found.needed
        self._reader = self._read_from(position, founding, needed)
        claim = SentPosition(
            version=POSITION_VERSION,
            group=self._group,
            founding=founding,
            epoch=position.epoch,
            offset=position.offset,
            csn=found.csn if found is not None else 0,
            needed=needed,
            reign=found.reign if found is not None else 0,
            broker=self._broker,
            session=self._session,
        )
        await self.delivery.commit([], claim)
        place = self._segments.place_of(position.offset + 1)
        self._lag = OutletLag(self._storage, place, position.offset)

    def _read_from(self, position: Position, founding: str, needed: int) -> OutletReader:
        return OutletReader(
            self._storage,
            position,
            founding,
            self._segments.place_of(needed) if needed else None,
            self._spill,
            accept_gaps=self._options.accept_gap,
        )

    def _first_position(self) -> tuple[Position, str, int]:
        """Where a first start begins: (position, founding, offset of the oldest record that is needed)."""
        reader = OutletReader(self._storage, NOTHING, accept_gaps=True)
        try:
            for _ in reader.units():
                pass
            log = reader.log
            begin = log.covered_from - 1
            if self._options.newest:
                return log.applied, log.context.founding, log.needed
            return Position(log.history.epoch_at(begin), begin), log.context.founding, begin + 1
        finally:
            reader.close()

    def _accepted(self, found: SentPosition) -> tuple[Position, str, int]:
        """``found``, or where this journal goes on instead, if it is of another log."""
        reader = self._read_from(found.position, found.founding, found.needed)
        try:
            for _ in reader.units():
                if reader.log.context.applied >= found.offset:
                    break
        except OtherFoundingError as error:
            self._accept(error)
            return self._first_position()
        except RewrittenLogError as error:
            self._accept(error)
            return error.fork, found.founding, min(found.needed, error.fork.offset + 1)
        finally:
            reader.close()
        if reader.log.context.end < found.offset:
            self._accept(BehindError(found.position, reader.log.context.end))
            return self._first_position()
        return found.position, found.founding, found.needed

    def _accept(self, error: OutletGapError) -> None:
        self.counts.passed_over.append(str(error))
        self._say(f"passed over: {error}")

    # -- a round ------------------------------------------------------------------------------------------------------

    async def _round(self, *, last: bool = False) -> bool:
        """Send what the journal has now; returns whether there was anything."""
        reader, fact = self._now(), self._resting.newest()
        before = self.counts.kafka_transactions
        for count, units in enumerate(reader.units()):
            await self._add(units)
            if not count % BREATH_FRAMES:
                await asyncio.sleep(0)
            if self.delivery.stopping:
                return True
        self._check_not_behind(reader)
        if fact is not None:
            await self._add(reader.applied_upto(*fact))
        await self._send_rest(last)
        self._tell_passed_over(reader)
        if time.monotonic() - self._held_at >= HOLD_S:
            self._held_at = time.monotonic()
            self._hold.ask(self.sent.needed)
        return self.counts.kafka_transactions > before

    def _check_not_behind(self, reader: OutletReader) -> None:
        """Of a journal that was read to its end."""
        end = reader.log.context.end
        if end < self.sent.offset:
            raise BehindError(self.sent.position, end)

    async def _add(self, units: list[Unit]) -> None:
        groups = self._grouping.add(units)
        for at, group in enumerate(groups):
            later = [unit.first for each in groups[at + 1 :] for unit in each]
            end = group[-1]
            await self._send(group, Position(end.epoch, end.offset), later)

    async def _send_rest(self, last: bool) -> None:
        """Send the group that is open. Without one, move the position now and then."""
        group, position = self._grouping.close(), self._now().log.applied
        moved = position.offset > self.sent.offset
        due = last or time.monotonic() - self.delivery.moved_at >= IDLE_POSITION_S
        if group or (moved and due):
            await self._send(group, position)

    async def _send(self, group: list[Unit], position: Position, later: Sequence[int] = ()) -> None:
        """Commit a group; ``position`` is behind it. ``later``: where units begin that are committed next."""
        log, sent, waiting = self._now().log, self.sent, self._grouping.oldest
        needed = min(log.needed, position.offset + 1, *later, *([waiting] if waiting else []))
        mark = msgspec.structs.replace(
            sent,
            epoch=position.epoch,
            offset=position.offset,
            csn=max((unit.csn for unit in group), default=0) or sent.csn,
            needed=needed,
            founding=log.context.founding or sent.founding,
            reign=max(log.history.newest, sent.reign),
        )
        await self.delivery.commit(group, mark)

    def _tell_passed_over(self, reader: OutletReader) -> None:
        passed_over = reader.log.take_passed_over()
        for text in passed_over:
            self._say(f"passed over: {text}")
        self.counts.passed_over.extend(passed_over)
