"""OutletDelivery: brings groups of units to Kafka, each once, whatever happens on the way.

When a connection breaks, the outlet does not know whether the transaction on it was committed. The position says it: it stands
in Kafka if, and only if, the messages before it do. So the outlet opens anew, which ends what was open, and reads the position.
Three are possible: the one that was on its way (it was committed), the one before (it was not, and is sent again), or another
outlet's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Final, Protocol

import attrs

from understudy.observers.kafka_refused import KafkaRefusedError
from understudy.observers.outlet.errors import KafkaAwayError, OutletFencedError, RecordRefusedError
from understudy.observers.outlet.reading.groups import GroupLimits
from understudy.observers.outlet.reading.units import SentPosition, Unit
from understudy.observers.outlet.sending.records import KafkaRecord, RecordMaker
from understudy.observers.outlet.sending.rules import OutletRules
from understudy.observers.outlet.sending.unsendable import STOP, OutletUnsendable, UnsendablePolicy

RETRY_S: Final = 1.0
SILENT_S: Final = 10.0
"""A Kafka transaction that takes longer is told of. It is not given up: a slow Kafka would never take a large one."""
PROGRESS_S: Final = 5.0


class Sink(Protocol):
    """`KafkaOutlet`, as this file needs it."""

    async def open(self) -> SentPosition | None: ...

    async def read_position(self) -> SentPosition | None: ...

    async def send(self, records: Iterator[KafkaRecord], position: SentPosition) -> None: ...

    def silence(self) -> str: ...

    def refuses(self, record: KafkaRecord) -> str: ...

    async def check_first_start(self) -> None: ...


@attrs.frozen(kw_only=True)
class OutletOptions:
    """Options of the outlet, for an operator to decide.

    Attributes:
        rules: which topic a queue's messages go to.
        limits: of one Kafka transaction.
        newest: a first start begins at the end of the journal; else with its first record.
        plain: messages that were published outside of transactions are sent, too.
        accept_gap: what the journal does not hold any more is passed over.
        hold: name under which the broker is asked to keep what was not sent; "": it is not.
        progress: say now and then how far the outlet has come, for an operator who watches.
        patient: Kafka is waited for at the start, too.
        unsendable: what becomes of a message that cannot be sent.
        begins_anew: without a position in Kafka it begins, though the topics hold records.
    """

    rules: OutletRules
    limits: GroupLimits = attrs.Factory(GroupLimits)
    newest: bool = False
    plain: bool = True
    accept_gap: bool = False
    hold: str = ""
    progress: bool = False
    patient: bool = False
    unsendable: UnsendablePolicy = attrs.Factory(UnsendablePolicy)
    begins_anew: bool = False


@attrs.define
class OutletCounts:
    """Counts of one run: units that it has sent, and gaps that it has passed over because an operator accepted them.

    ``records`` are those of messages; ``unsendable`` counts messages that went aside or were left out.
    """

    transactions: int = 0
    plain_messages: int = 0
    records: int = 0
    kafka_transactions: int = 0
    unsendable: int = 0
    passed_over: list[str] = attrs.Factory(list)


class OutletDelivery:
    """Of one run.

    Args:
        group: id of the group.
        sink: where units go.
        options: see there.
        say: told what an operator should read.

    Attributes:
        sent: the position that stands in Kafka.
        counts: of what was sent.
        moved_at: monotonic seconds of the last commit.
        stopping: Kafka is not waited for any more.
        waits: Kafka has not answered, and is asked again.
    """

    def __init__(self, group: str, sink: Sink, options: OutletOptions, say: Callable[[str], None]) -> None:
        self._sink = sink
        self._options = options
        self._say = say
        self._maker = maker = RecordMaker(group)
        self._unsendable = OutletUnsendable(options.unsendable, options.rules, maker, sink, say, time.monotonic)
        self._told_at = time.monotonic()
        self.sent: SentPosition | None = None
        self.counts = OutletCounts()
        self._tally = self.counts
        self.moved_at = 0.0
        self.stopping = False
        self.waits = False

    def stop(self) -> None:
        """Kafka is not waited for any more."""
        self.stopping = True

    async def open(self) -> SentPosition | None:
        """Begin; where the last outlet has ended, None if none has sent anything.

        Raises:
            KafkaAwayError: Kafka does not answer, and this run is not patient, or is to end.
            UnderstudyError: Kafka refuses.
        """
        self.sent = await (self._open_again() if self._options.patient else self._sink.open())
        if self.sent is None and not self._options.begins_anew:
            await self._sink.check_first_start()
        return self.sent

    async def commit(self, group: list[Unit], mark: SentPosition) -> None:
        """Send ``group`` with the position ``mark`` behind it; when this returns they are in Kafka, once.

        Raises:
            OutletFencedError: another outlet has taken over.
            KafkaAwayError: Kafka does not answer, and this run is to end.
            UnderstudyError: Kafka refuses.
        """
        while True:
            self._tally = attrs.evolve(self.counts)
            try:
                await self._send(group, mark)
                break
            except RecordRefusedError as error:
                await self._refused(error)
                continue
            except KafkaAwayError as error:
                self.waits = True
                self._say(f"{error}; the outlet tries again")
            if await self._was_committed(mark):
                break
        self.sent = mark
        self.waits = False
        self._unsendable.committed()
        self.counts = self._tally
        self.counts.kafka_transactions += 1
        self.moved_at = time.monotonic()
        if self._options.progress and self.moved_at - self._told_at >= PROGRESS_S:
            self._told_at = self.moved_at
            self._say(f"{self.counts.records} records sent, up to position {mark.position}")

    async def _refused(self, error: RecordRefusedError) -> None:
        """Nothing of the transaction is in Kafka; a producer that has met this is of no use any more."""
        if error.place is not None:
            if self._options.unsendable.on == STOP:
                raise KafkaRefusedError(str(error)) from error
            self._unsendable.refused(error.place, str(error))
        found = await self._open_again()
        if found != self.sent:
            raise OutletFencedError(_taken_over(found))

    async def _send(self, group: list[Unit], mark: SentPosition) -> None:
        """One attempt. aiokafka tries again by itself, in silence: this says so."""
        silent = False

        def tell() -> None:
            nonlocal silent
            silent = self.waits = True
            self._say(f"{self._sink.silence()}; the outlet waits")

        timer = asyncio.get_running_loop().call_later(SILENT_S, tell)
        try:
            await self._sink.send(self._records(group), mark)
        finally:
            timer.cancel()
        if silent:
            self._say("Kafka answers again")

    def _records(self, group: list[Unit]) -> Iterator[KafkaRecord]:
        """Records that are sent of ``group``; counts them in the tally, which holds when the group is committed."""
        maker, counts = self._maker, self._tally
        for unit in group:
            if not unit.tx and not self._options.plain:
                continue
            shared = maker.unit_headers(unit)
            records = counts.records
            for at in range(len(unit.messages)):
                record, unsendable = self._unsendable.record(unit, shared, at)
                counts.unsendable += unsendable
                if record is not None:
                    counts.records += not unsendable
                    yield record
            if counts.records > records:
                counts.transactions += bool(unit.tx)
                counts.plain_messages += not unit.tx

    async def _was_committed(self, mark: SentPosition) -> bool:
        """True if Kafka has committed the transaction of ``mark``, whose outcome was unknown.

        Raises:
            OutletFencedError: another outlet has taken over.
        """
        await self._check_own(mark)
        found = await self._open_again()
        if found == mark:
            return True
        if found != self.sent:
            raise OutletFencedError(_taken_over(found))
        return False

    async def _check_own(self, mark: SentPosition) -> None:
        """See which outlet sent last, before any is fenced."""
        while True:
            try:
                found = await self._sink.read_position()
            except KafkaAwayError:
                if self.stopping:
                    raise
                await asyncio.sleep(RETRY_S)
                continue
            if found not in (self.sent, mark):
                raise OutletFencedError(_taken_over(found))
            return

    async def _open_again(self) -> SentPosition | None:
        said = ""
        while True:
            try:
                found = await self._sink.open()
            except KafkaAwayError as error:
                self.waits = True
                if str(error) != said:
                    said = str(error)
                    self._say(f"{said}; the outlet waits")
                if self.stopping:
                    raise
                await asyncio.sleep(RETRY_S)
                continue
            if said:
                self._say("Kafka answers again")
            self.waits = False
            return found


def _taken_over(found: SentPosition | None) -> str:
    where = f"broker {found.broker!r}, at position {found.position}" if found is not None else "unknown"
    return f"another outlet of this group has taken over ({where}); this one has ended"
