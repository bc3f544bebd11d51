"""Takes the messages out of a core that was dropped.

Such a core is a reference cycle, and what hangs on it would stay until a collector looks at everything alive: its successor,
which has the same messages again, included. What is taken out goes by its reference count.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.state import BrokerState

SLICE: Final = 1_000
"""Messages, or events of transactions, that are freed at once: a millisecond."""
BATCHES: Final = 16
"""Kept batches that are freed at once: most are some KiB, few some MiB."""


def let_go_in_slices(state: BrokerState) -> Iterator[None]:
    """Free what a dropped core held: messages, kept batches, transactions. Other turns may run between the steps.

    The core still answers: connections that have not gone yet find empty queues, and deliveries whose message is GONE.
    """
    for purge in state.purges:
        purge.slices.close()  # frees no message: all of them are in the indexes of their queues
    state.purges.clear()
    while state.put_off.waiting:
        state.put_off.step()
        yield
    for queue in list(state.queues.values()):  # what connections leave behind ends between the steps
        yield from _let_go_of(queue)
    log = state.log
    while log.pending:
        for _ in range(min(SLICE, len(log.pending))):
            log.pending.popleft()
        yield
    while log.kept.drop_oldest(BATCHES):
        yield
    for tx in list(state.transactions.values()):
        while tx.events:
            del tx.events[-SLICE:]
            yield
        if tx.parts is not None:
            tx.forget_bodies()


def _let_go_of(queue: Queue) -> Iterator[None]:
    entries = queue.entries
    while entries:
        for _ in range(min(SLICE, len(entries))):
            queue.let_go_last()
        yield
    known = queue.returns.known if queue.returns is not None else {}
    while known:
        for _ in range(min(SLICE, len(known))):
            known.popitem()
        yield
    for line in queue.lines():
        while line:
            for _ in range(min(SLICE, len(line))):
                line.pop()
            yield
    queue.emptied()
