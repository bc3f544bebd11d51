"""PartedBodies: puts large bodies into the log in parts, so that small messages do not wait behind them.

A record is stable when every broker that must have it has all of the log up to it on its disk. Behind a body of 250 MB in one
record that takes seconds. So a body of ``limits.parted_bytes`` or more that has come whole is appended in parts, between which
other clients' records stand (``docs/decisions/0032-large-bodies-stand-in-parts.md``).

    parts that are not stable < limits.parts_in_flight_bytes + limits.part_bytes

Bodies take turns, a part each. A body whose transaction has ended is given up. The records that are left end with the transaction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from understudy.broker.log import record
from understudy.broker.message import Message
from understudy.broker.transactions.body_parts import PartedBody
from understudy.broker.transactions.tx_buffer import TxBuffer, TxState

if TYPE_CHECKING:
    from understudy.broker.core.commits.port import CommitsPort
    from understudy.broker.core.queues.queue import Queue


class _Waiting:
    """A body of which parts are still to be appended, from ``start`` on."""

    __slots__ = ("body", "message", "over", "start", "tx")

    def __init__(self, tx: TxBuffer, message: Message, over: Callable[[bool], None]) -> None:
        self.tx = tx
        self.message = message
        self.over = over
        self.body: PartedBody | None = None
        self.start = 0


class PartedBodies:
    """The bodies that one broker is putting into the log.

    Attributes:
        waiting: bodies that are not all there, in the order of their turns.
    """

    def __init__(self, broker: CommitsPort) -> None:
        self._broker = broker
        self.waiting: deque[_Waiting] = deque()
        self._in_flight: deque[tuple[int, int]] = deque()
        self._in_flight_bytes = 0
        self._going_on = False

    def wanted(self, queues: list[Queue], message: Message) -> bool:
        """True if ``message``, which is large, is to stand in parts: a journal keeps it, and all brokers of the group read that."""
        journaled = message.persistent and any(queue.logged and queue.durable for queue in queues)
        return journaled and self._broker.log.may_hold(record.TX_ENQUEUE_PARTED)

    def begin(self, tx: TxBuffer, message: Message, over: Callable[[bool], None]) -> None:
        """Append the body of ``message`` in parts, as events of ``tx``.

        ``over`` is called once: with True when all parts are appended, and the record of the message is to follow at once; with
        False if ``tx`` has ended before. It may be called before this returns.
        """
        self.waiting.append(_Waiting(tx, message, over))
        self.go_on()

    def give_up(self, message: Message) -> None:
        """The channel on which ``message`` was published has ended, and so does its transaction."""
        for each in self.waiting:
            if each.message is message:
                self.waiting.remove(each)
                each.over(False)
                return

    def go_on(self) -> None:
        """Append what may be appended now."""
        if self._going_on:
            return  # what comes next on a channel that goes on: whoever appends already does the rest
        self._going_on = True
        try:
            self._note_stable()
            waiting = self.waiting
            while waiting and self._in_flight_bytes < self._broker.limits.parts_in_flight_bytes:
                each = waiting.popleft()
                if each.tx.state is not TxState.OPEN:
                    each.over(False)
                elif self._append_part(each):
                    each.over(True)
                else:
                    waiting.append(each)
        finally:
            self._going_on = False

    def _note_stable(self) -> None:
        stable = self._broker.log.stable
        in_flight = self._in_flight
        while in_flight and in_flight[0][0] <= stable:
            self._in_flight_bytes -= in_flight.popleft()[1]

    def _append_part(self, each: _Waiting) -> bool:
        """Append the next part. Returns whether it was the last."""
        broker = self._broker
        broker.batch.note_part()
        if each.body is None:
            each.body = broker.transactions.begin_body(each.tx, each.message)
        size = min(broker.limits.part_bytes, each.message.size - each.start)
        offset = broker.transactions.recorder.body_part(each.tx, each.body, each.start, size)
        each.start += size
        self._in_flight.append((offset, size))
        self._in_flight_bytes += size
        return each.start == each.message.size
