"""BrokerPort: the leading broker as its rooms see it. `Broker` implements it; each room adds what it needs to a port of its own.

A room imports ports and rooms below it, never `Broker`: so no arrow between rooms runs up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from understudy.broker.core.limits import Limits
from understudy.broker.core.queues.consumer import Consumer
from understudy.broker.core.queues.entry import Entry
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.state import BrokerState
from understudy.broker.core.turn.clock import Clock
from understudy.broker.core.turn.completions import Completions
from understudy.broker.core.turn.counters import Counters
from understudy.broker.core.turn.name_bars import NameBars
from understudy.broker.core.turn.open_batch import OpenBatch
from understudy.broker.core.turn.role import Role
from understudy.broker.core.turn.work_refusals import WorkRefusals
from understudy.broker.log.log import Log
from understudy.broker.transactions.tx_buffer import TxBuffer


class BrokerPort(Protocol):
    """See ``Broker`` for each name."""

    @property
    def state(self) -> BrokerState: ...
    @property
    def log(self) -> Log: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def random_bytes(self) -> Callable[[int], bytes]: ...
    @property
    def role(self) -> Role: ...
    @property
    def counters(self) -> Counters: ...
    @property
    def work(self) -> WorkRefusals: ...
    @property
    def clock(self) -> Clock: ...

    @property
    def batch(self) -> OpenBatch: ...
    @property
    def completions(self) -> Completions: ...
    @property
    def name_bars(self) -> NameBars: ...

    def commit_refused(self, tx: TxBuffer, *, brings: bool = False) -> str: ...
    def expired(self, queue: Queue, entry: Entry) -> None: ...
    def requeue(self, queue: Queue, entry: Entry, failed: bool = False) -> None: ...
    def take(self, queue: Queue, consumer: Consumer | None = None) -> Entry | None: ...
    def delete_queue(self, queue: Queue) -> int: ...
