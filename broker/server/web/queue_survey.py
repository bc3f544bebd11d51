"""QueueSurvey: the names of all queues in order, and what the queues hold in sum: looked at in slices, and not too often.

Names and sums are kept here, and no queue: what a row of a page shows is read from the queue itself, when the page is made.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from operator import itemgetter
from typing import Final

import attrs

from understudy.broker.core.state import BrokerState
from understudy.broker.plugin_api.pages import Steps
from understudy.broker.server.web.slices import sorted_in_steps

FEW: Final = 500
"""A survey of so many queues takes less than a slice: it is made whenever it is asked for."""
AGE_S: Final = 1.0
"""A survey of more queues is used for so long."""
_CHUNK: Final = 100

QueueName = tuple[str, str]
"""vhost and name."""
FIRST: Final[QueueName] = ("", "")
"""Before every queue."""


@attrs.frozen(kw_only=True)
class Survey:
    """The findings of a survey; queues may have come and gone since.

    Attributes:
        names: of all queues, in order.
        totals: sums over all queues of ``ready``, ``acquired``, ``uncommitted`` and ``consumers``.
        made_at: monotonic seconds.
    """

    names: list[QueueName]
    totals: dict[str, int]
    made_at: float

    def after(self, last: QueueName, most: int) -> list[QueueName]:
        """The first ``most`` names behind ``last``, which itself need not be there (any more)."""
        at = bisect_right(self.names, last)
        return self.names[at : at + most]


class QueueSurvey:
    """One per core. Whoever asks while a look is under way goes on with that look, instead of beginning another.

    Args:
        state: of the core. Its registry is asked for anew each time: a broker that follows gets another one with each cut of its
            log.
    """

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._newest: Survey | None = None
        self._looking: Steps[Survey] | None = None

    def newest(self) -> Steps[Survey]:
        """Steps to a survey: of this moment if there are few queues, else at most ``AGE_S`` old."""
        asked_at = time.monotonic()
        oldest = asked_at if self._state.topology.registry.count_queues() <= FEW else asked_at - AGE_S
        while self._newest is None or self._newest.made_at < oldest:
            if self._looking is None:
                self._looking = self._look()
            try:
                next(self._looking)
            except StopIteration as done:
                self._newest, self._looking = done.value, None
            yield
        return self._newest

    def _look(self) -> Steps[Survey]:
        state = self._state
        names: list[QueueName] = []
        for vhost in list(state.topology.registry.vhosts.values()):
            in_vhost = list(vhost.queues)
            for at in range(0, len(in_vhost), _CHUNK):
                names += [(vhost.name, name) for name in in_vhost[at : at + _CHUNK]]
                yield
        ordered = yield from sorted_in_steps(names, itemgetter(0, 1))
        ready = acquired = withheld = uncommitted = consumers = 0
        for number, (vhost_name, name) in enumerate(ordered):
            queue = state.topology.registry.find_queue(vhost_name, name)
            if queue is not None:
                ready += queue.depth
                acquired += queue.held
                withheld += queue.withheld
                uncommitted += queue.uncommitted
                consumers += len(queue.consumers)
            if number % _CHUNK == 0:
                yield
        totals = {
            "ready": ready,
            "acquired": acquired,
            "withheld": withheld,
            "uncommitted": uncommitted,
            "consumers": consumers,
        }
        return Survey(names=ordered, totals=totals, made_at=time.monotonic())
