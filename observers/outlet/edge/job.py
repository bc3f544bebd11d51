"""OutletJob: one run of the outlet as a configuration describes it: `OutletRun` with Kafka, rules and limits.

A command line (`outlet.edge.command`) and a broker (`outlet.edge.process`) ask for it alike.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from understudy.broker.config import KafkaConfig, OutletConfig
from understudy.broker.log.journal_tail import JournalTail
from understudy.broker.log.segment import JournalIdentity, NoJournalError
from understudy.broker.server.files.file_storage import FileStorage
from understudy.observers.feed.edge.journals import UnreadableError, has_journal
from understudy.observers.outlet.edge.delivery import OutletCounts, OutletOptions
from understudy.observers.outlet.edge.kafka import KafkaOutlet
from understudy.observers.outlet.edge.run import OutletRun
from understudy.observers.outlet.reading.groups import GroupLimits
from understudy.observers.outlet.sending.lag import Lag
from understudy.observers.outlet.sending.progress import STARTING, OutletProgress
from understudy.observers.outlet.sending.rules import OutletRule, OutletRules
from understudy.observers.outlet.sending.target import OutletTarget
from understudy.observers.outlet.sending.unsendable import UnsendablePolicy

NEWEST: Final = "newest"
LAG_S: Final = 0.05
"""So long the journal is read for the lag before what is to be sent has its turn again."""


class OutletJob:
    """Job of the outlet, as a command line or a broker asks for it, once.

    Args:
        data: of one broker.
        kafka: where it is.
        settings: section [outlet].
        rules: before those of ``settings``.
        accept_gap, hold, progress, patient, begins_anew: see `OutletOptions`.

    Raises:
        NoJournalError: there is none in ``data``.
        OutletRuleError: a rule cannot be used.

    Attributes:
        counts: of a run that has ended.
    """

    def __init__(
        self,
        data: Path,
        kafka: KafkaConfig,
        settings: OutletConfig,
        rules: Sequence[OutletRule] = (),
        *,
        accept_gap: bool = False,
        hold: str = "",
        progress: bool = False,
        patient: bool = False,
        begins_anew: bool = False,
    ) -> None:
        self._data = data
        self._kafka = kafka
        self.identity = identity_of(data)
        group = self.identity.group_id
        every = [*rules, *(OutletRule(each.queues, each.topic) for each in settings.rules)]
        table = OutletRules(group, every, settings.topic)
        self._options = OutletOptions(
            rules=table,
            limits=GroupLimits(messages=settings.group_messages, octets=settings.group_bytes),
            newest=settings.begin == NEWEST,
            plain=settings.plain,
            accept_gap=accept_gap,
            hold=hold,
            progress=progress,
            patient=patient,
            unsendable=UnsendablePolicy(settings.on_unsendable, settings.unsendable_topic.replace("{group}", group)),
            begins_anew=begins_anew or accept_gap,
        )
        self.target = OutletTarget(
            group=group,
            transactional_id=settings.transactional_id.replace("{group}", group),
            position_topic=settings.position_topic.replace("{group}", group),
            topics=tuple(table.fixed_topics()),
            topic_forms=tuple(table.topic_forms()),
            transaction_timeout_s=settings.transaction_timeout_s,
            max_message_bytes=settings.max_message_bytes,
            create=settings.create_topics,
        )
        self._running: OutletRun | None = None
        self.counts = OutletCounts()
        self._stopped = False

    def stop(self) -> None:
        """End after what is being sent."""
        self._stopped = True
        if self._running is not None:
            self._running.stop()

    def progress(self) -> OutletProgress:
        """How far it is. Reads on in the journal for a moment."""
        run = self._running
        if run is None:
            return OutletProgress(state=STARTING)
        lag = run.read_lag(LAG_S) or Lag(-1, -1)
        counts, moved_at = run.delivery.counts, run.delivery.moved_at
        return OutletProgress(
            state=run.state,
            transactions=counts.transactions,
            plain_messages=counts.plain_messages,
            records=counts.records,
            kafka_transactions=counts.kafka_transactions,
            unsendable=counts.unsendable,
            lag_transactions=lag.transactions,
            lag_bytes=lag.octets,
            rests_s=round(time.monotonic() - moved_at, 1) if moved_at else -1.0,
        )

    async def run(self, say: Callable[[str], None], *, follow: bool) -> dict[str, Any]:
        """Send; returns what was sent. ``say`` is told what an operator should read.

        Raises:
            UnderstudyError: see `OutletRun.to_end`.
        """
        # What aiokafka leaves behind when an attempt is given up is no news.
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        sink = KafkaOutlet(self._kafka, self.target)
        run = self._running = OutletRun(self._data, self.identity, sink, self._options, say)
        if self._stopped:
            run.stop()
        try:
            await (run.follow() if follow else run.to_end())
        except OSError as error:
            raise UnreadableError(self._data, error) from error
        finally:
            self._running = None
            self.counts = run.counts
            run.close()
            await sink.close()
        sent = run.sent
        position = {"epoch": sent.epoch, "offset": sent.offset, "csn": sent.csn}
        return {"group": sent.group, "broker": sent.broker, **attrs.asdict(run.counts), "position": position}


def identity_of(data: Path) -> JournalIdentity:
    """Whose journal is in ``data``.

    Raises:
        NoJournalError: none is.
    """
    if not data.is_dir() or not has_journal(data):
        raise NoJournalError(f"there is no journal in {data}; the outlet reads that of one broker")
    storage = FileStorage(data, read_only=True)
    tail = JournalTail(storage)
    try:
        next(tail.frames(), None)
        if tail.identity is None:
            raise NoJournalError(f"the journal in {data} has not begun yet")
        return tail.identity
    finally:
        tail.close()
        storage.close()
