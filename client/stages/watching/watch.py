"""Watch: counts, the age of the oldest message, log lines and spans of a worker.

A slot opens a `Handling` for each delivery and notes each step in it. Nothing here decides, waits, or does I/O.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Final, Self

import attrs

from understudy.client.stages.broker.clock import now_ms
from understudy.client.stages.core import envelope as headers
from understudy.client.stages.core import steps as do
from understudy.client.stages.core.envelope import DEAD_LETTERS, Delivery
from understudy.client.stages.watching.tracing import Tracing, carried_of

_log = logging.getLogger("understudy.stages")

STANDS_BY_MS: Final = 5_000
"""So long after the broker has said it, another worker is taken to be there."""


@attrs.define(kw_only=True)
class StageCounts:
    """Figures of one stage in this worker since its start.

    Attributes:
        done, failed: attempts, by how they ended.
        retried, dead: failed messages that were sent to come again, or made dead letters.
        again: deliveries whose work an earlier delivery had done.
        given_back: deliveries that went back because the database could not begin.
        parked: messages of a key that wait behind one that has failed.
        lost: deliveries whose channel was lost in the middle.
        seconds: that all finished deliveries took, from the delivery to the broker's commit.
        finished: how many these are.
    """

    done: int = 0
    failed: int = 0
    retried: int = 0
    dead: int = 0
    again: int = 0
    given_back: int = 0
    parked: int = 0
    lost: int = 0
    seconds: float = 0.0
    finished: int = 0


class Watch:
    """One of a worker.

    Attributes:
        counts: by the name of the stage.
        in_hand: deliveries that are worked on now, by the name of the stage.
        serving: how many slots of a stage have a channel with a consumer.
    """

    def __init__(self, stages: list[str], tracing: Tracing | None = None) -> None:
        self.counts: Final = {name: StageCounts() for name in stages}
        self.in_hand: Final[dict[str, dict[Handling, None]]] = {name: {} for name in stages}
        self.serving: Final[Counter[str]] = Counter()
        self._stood_by_ms: Final = dict.fromkeys(stages, 0)
        self.tracing = tracing
        self._alone_since_ms: Final = dict.fromkeys(stages, now_ms())

    def handling(self, stage: str, delivery: Delivery) -> Handling:
        """Opened for a delivery, and closed by ``with``."""
        return Handling(self, stage, delivery)

    @contextlib.contextmanager
    def consuming(self, stage: str) -> Iterator[None]:
        """A slot of a stage has a consumer within a ``with``."""
        self.serving[stage] += 1
        try:
            yield
        finally:
            self.serving[stage] -= 1
            self._alone_since_ms[stage] = now_ms()

    def stand_by(self, stage: str) -> None:
        """Another worker has the one consumer of a stage with a key; called each time that the broker says so."""
        self._stood_by_ms[stage] = self._alone_since_ms[stage] = now_ms()

    def has_its_part(self, stage: str) -> bool:
        """True if the stage has a consumer here, or this worker need not have it."""
        return self.serving[stage] > 0 or now_ms() - self._stood_by_ms[stage] < STANDS_BY_MS

    def in_flight(self, stage: str) -> int:
        return len(self.in_hand[stage])

    def oldest_age_s(self, stage: str) -> float:
        """Seconds since the oldest message that this worker has in hand was sent, or was due; 0 if it has none.

        A queue hands out its oldest message first, so no other message that is due is older, unless another worker has it. While
        the stage has no consumer here, the time since then counts.
        """
        at_ms = now_ms()
        ages = [at_ms - each.sent_ms for each in self.in_hand[stage]]
        if not self.has_its_part(stage):
            ages.append(at_ms - self._alone_since_ms[stage])
        return max(0, *ages) / 1000 if ages else 0.0


class Handling:
    """One delivery, from its arrival to its end.

    Attributes:
        stage: its name.
        sent_ms: when the message was sent or was to be due, in milliseconds since 1970; its arrival if nothing tells.
    """

    def __init__(self, watch: Watch, stage: str, delivery: Delivery) -> None:
        self._watch = watch
        self._counts = watch.counts[stage]
        self._token: Any = None
        self._began_ms = now_ms()
        self._fault: Exception | None = None
        self._called = self._parked = False
        self._span = watch.tracing.start(stage, delivery) if watch.tracing is not None else None
        self.stage = stage
        self.delivery = delivery
        self.attempt = delivery.failures + 1
        sent_ms = delivery.headers.get(headers.SENT)
        self.sent_ms = sent_ms if isinstance(sent_ms, int) else self._began_ms

    def __enter__(self) -> Self:
        self._watch.in_hand[self.stage][self] = None
        self._token = handling_here.set(self)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        handling_here.reset(self._token)
        del self._watch.in_hand[self.stage][self]
        if error is None:
            self._counts.finished += 1
            self._counts.seconds += (now_ms() - self._began_ms) / 1000
        else:
            self._counts.lost += 1
        if self._span is not None:
            self._span.end(self._fault or error)

    @contextlib.contextmanager
    def calling(self, step: do.Call) -> Iterator[None]:
        """The stage's function runs within a ``with``; what it sends carries the trace on."""
        self._called = True
        self.attempt = step.attempt
        self._fault = None
        if self._span is None:
            step.sends.carried.update(carried_of(self.delivery.headers))
            yield
            return
        step.sends.carried.update(self._span.carried())
        with self._span.current():
            yield

    def note(self, step: do.Step, error: Exception | None) -> None:
        """A step was done, or failed with an error."""
        if self._span is not None:
            self._span.note(type(step).__name__, error)
        if error is not None:
            if self._called:
                self._fault = error
            return
        if isinstance(step, do.GiveBack):
            self._counts.given_back += 1
        elif isinstance(step, do.Park):
            self._parked = True
        elif isinstance(step, do.Wait) and step.failed:
            self._failed()
            self._counts.retried += 1
        elif isinstance(step, do.CommitJointly):
            self._counts.done += 1
        elif isinstance(step, do.Settle):
            self._settled(step)

    def _settled(self, step: do.Settle) -> None:
        diverted = step.envelopes[0] if step.envelopes and step.envelopes[0].id == self.delivery.id else None
        if diverted is not None:
            self._failed()
            if diverted.queue.endswith(DEAD_LETTERS):
                self._counts.dead += 1
                kind, text = diverted.headers.get(headers.EXCEPTION), diverted.headers.get(headers.EXCEPTION_TEXT)
                _log.error("stages: %s: a dead letter after %d attempts: %s: %s", self.stage, self.attempt, kind, text)
            else:
                self._counts.retried += 1
        elif self._called:
            self._counts.done += 1
        elif self._parked:
            self._counts.parked += 1
        else:
            self._counts.again += 1

    def _failed(self) -> None:
        self._counts.failed += 1
        if (error := self._fault) is not None:
            kind = type(error).__name__
            _log.warning("stages: %s: attempt %d failed: %s: %s", self.stage, self.attempt, kind, error, exc_info=error)

    def ids(self) -> dict[str, object]:
        """The fields by which a log line names the delivery."""
        found: dict[str, object] = {
            "stage": self.stage,
            "message_id": self.delivery.id,
            "attempt": self.attempt,
            "transaction": f"{self.delivery.id}/{self.attempt}",
        }
        for key, header in (("flow", headers.FLOW), ("flow_id", headers.FLOW_ID), ("trace_id", headers.TRACE_ID)):
            if text := self.delivery.text(header):
                found[key] = text
        return found


handling_here: Final[ContextVar[Handling | None]] = ContextVar("understudy.stages.handling", default=None)
"""The delivery that is worked on in this context; log lines name it."""
