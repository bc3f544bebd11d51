"""Held: what the classes that change a state see of it."""

from __future__ import annotations

from typing import Protocol

from understudy.broker.core.queues.arrival import Arrival
from understudy.broker.core.queues.id_windows import IdWindows
from understudy.broker.core.queues.put_off import PutOff
from understudy.broker.core.queues.queue import Queue
from understudy.broker.log.live_offsets import LiveOffsets
from understudy.broker.log.log import Log
from understudy.broker.transactions.tx_buffer import TxBuffer


class Held(Protocol):
    """See ``BrokerState`` for each name."""

    live: LiveOffsets

    @property
    def log(self) -> Log: ...
    @property
    def queues(self) -> dict[int, Queue]: ...
    @property
    def transactions(self) -> dict[int, TxBuffer]: ...
    @property
    def id_windows(self) -> IdWindows: ...
    @property
    def put_off(self) -> PutOff: ...
    @property
    def scheduled(self) -> list[Queue]: ...
    @property
    def arrived(self) -> list[Arrival]: ...
    @property
    def overfull(self) -> list[Queue]: ...
    @property
    def withhold(self) -> list[Queue]: ...
