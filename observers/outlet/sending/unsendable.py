"""OutletUnsendable: what becomes of a message that no record of Kafka can be.

A message cannot be sent if a rule makes no topic of its queue's name, if it is too large, if Kafka refuses its record, or if it is
a dead letter without its body. One such message must not stop all others for good. By `outlet.on_unsendable` it goes *aside*, into
a topic of its own, in the same Kafka transaction as what is sent beside it; or it is left out (*skip*); or the outlet ends
(*stop*). Each is counted, and told with position and reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import attrs
import msgspec

from understudy.broker.errors import UnderstudyError
from understudy.observers.kafka_refused import KafkaRefusedError
from understudy.observers.outlet.reading.units import Outgoing, Unit
from understudy.observers.outlet.sending.records import Header, KafkaRecord, RecordMaker, queue_key
from understudy.observers.outlet.sending.rules import OutletRuleError, OutletRules

ASIDE: Final = "aside"
SKIP: Final = "skip"
STOP: Final = "stop"
TELL_S: Final = 60.0
"""So often a queue is named whose messages cannot be sent."""
MAX_QUEUES: Final = 1_000
"""So many queues are remembered for that."""
_MAX_REASON: Final = 500
Place = tuple[int, int, int]


class BodilessError(UnderstudyError):
    """A dead letter whose body of ``size`` octets is not in the log again."""

    def __init__(self, size: int) -> None:
        super().__init__(
            f"it is a dead letter, and the log does not repeat its body of {size} octets: the primary then had no outlet for "
            "this queue in its configuration, or that body was larger than its outlet.max_message_bytes"
        )


class Judge(Protocol):
    """Kafka's side, as far as it knows beforehand."""

    def refuses(self, record: KafkaRecord) -> str:
        """Why Kafka takes no such record, "" if it may."""


@attrs.frozen
class UnsendablePolicy:
    """The operator's rule: ``on`` is one of ASIDE, SKIP, STOP; ``topic`` is for ASIDE."""

    on: str = STOP
    topic: str = ""


class OutletUnsendable:
    """Of one run.

    Args:
        policy: see there.
        rules, maker: make topics and records.
        judge: see there.
        say: told what an operator should read.
        clock_s: monotonic.
    """

    def __init__(
        self,
        policy: UnsendablePolicy,
        rules: OutletRules,
        maker: RecordMaker,
        judge: Judge,
        say: Callable[[str], None],
        clock_s: Callable[[], float],
    ) -> None:
        self._policy = policy
        self._rules = rules
        self._maker = maker
        self._judge = judge
        self._say = say
        self._clock_s = clock_s
        self._refused: dict[Place, tuple[str, int]] = {}
        self._told: dict[tuple[str, str], float] = {}

    def refused(self, place: Place, reason: str) -> None:
        """Kafka has refused the record of that place: the record that was made last of its message."""
        before, times = self._refused.get(place, ("", 0))
        self._refused[place] = (before or reason, times + 1)

    def committed(self) -> None:
        """Forget the refusals until now: they have been dealt with."""
        self._refused.clear()

    def record(self, unit: Unit, shared: list[Header], at: int) -> tuple[KafkaRecord | None, bool]:
        """The record of one message, None for none; and whether the message cannot be sent itself.

        Raises:
            KafkaRefusedError: it cannot be sent, and the outlet is to end; or it cannot go aside either.
        """
        outgoing = unit.messages[at]
        reason, times = self._refused.get((unit.epoch, unit.offset, at), ("", 0)) if self._refused else ("", 0)
        if not reason:
            try:
                topic = self._rules.topic(outgoing.vhost, outgoing.queue)
                if not topic:
                    return None, False
                if outgoing.bodiless:
                    raise BodilessError(outgoing.message.size)
                record = self._maker.record(unit, shared, at, topic)
            except (
                OutletRuleError,
                BodilessError,
                msgspec.MsgspecError,
                TypeError,
                ValueError,
                ArithmeticError,
                LookupError,
            ) as error:
                reason = str(error) or type(error).__name__
            else:
                reason = self._judge.refuses(record)
                if not reason:
                    return record, False
        return self._instead(unit, shared, at, reason[:_MAX_REASON], times), True

    def _instead(self, unit: Unit, shared: list[Header], at: int, reason: str, times: int) -> KafkaRecord | None:
        outgoing, policy = unit.messages[at], self._policy
        queue = queue_key(outgoing).decode()
        where = f"number {at} of the unit at position {unit.epoch}/{unit.offset}, for queue {queue!r}, cannot be sent: {reason}"
        if policy.on == STOP:
            raise KafkaRefusedError(f"a message, {where}; outlet.on_unsendable says what becomes of such messages")
        if policy.on == SKIP:
            self._tell(outgoing, f"a message is left out: {where}")
            return None
        for whole in (True, False)[max(0, times - 1) :]:
            record = self._maker.aside(unit, shared, at, policy.topic, reason, whole=whole)
            if not self._judge.refuses(record):
                self._tell(outgoing, f"a message goes to topic {policy.topic!r}: {where}")
                return record
        raise KafkaRefusedError(f"a message, {where}; topic {policy.topic!r} does not take it either")

    def _tell(self, outgoing: Outgoing, text: str) -> None:
        """Once in `TELL_S` for each queue."""
        queue, now = (outgoing.vhost, outgoing.queue), self._clock_s()
        if now - self._told.get(queue, -TELL_S) < TELL_S:
            return
        if len(self._told) >= MAX_QUEUES:
            self._told.clear()
        self._told[queue] = now
        self._say(text)
