"""IdWindows: all windows of one broker, which records note ids in, and what a state without messages says of them.

A queue has its window itself (`Queue.window`), for it ends with the queue. Windows of exchanges are kept here, by name: the
registry is made anew with each cut.

**The time.** A commit has one. An ENQUEUE has none: a broker that publishes to a window with a time to live states the time
before, by a record ID_TIME, if the last one is too old. Of an epoch without one the time is not known; what came then is remembered
until it is one of too many. A time in each ENQUEUE was refused: it would be another kind, with eight octets for each message, and
only such windows need it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from struct import Struct
from typing import TYPE_CHECKING, Final, Protocol

from understudy.broker.amqp.properties import has_headers
from understudy.broker.core.queues.id_window import IdWindow, Noted, decode_noted
from understudy.broker.log.record import read_short, short
from understudy.broker.message import Message

if TYPE_CHECKING:
    from understudy.broker.core.queues.deduplication import DeduplicationRule
    from understudy.broker.core.queues.queue import Queue
    from understudy.broker.log.record import Target

_HEAD: Final = Struct(">QQI")
_QUEUE: Final = Struct(">BQ")
_OF_QUEUE: Final = 0
_OF_EXCHANGE: Final = b"\x01"

ExchangeName = tuple[str, str]
"""(vhost, name)."""
_Recorded = tuple[int, int, list["Target"], str, bytes, bool]
"""(offset, time in ms, targets, exchange, properties, persistent)."""


class Windowed(Protocol):
    """An exchange, as far as windows go. See ``Exchange``."""

    vhost: str
    name: str
    deduplication: DeduplicationRule | None


class IdWindows:
    """Those of one `BrokerState`.

    Attributes:
        exchanges: by name, of exchanges that drop duplicates.
        time_ms: of messages that are published now; 0 if it is not known.
        time_at: offset of the record that has said so.
        checkpoint: the newest one states what was applied up to this offset.

    A commit stands behind the records of its messages, and a checkpoint may have been written in between. Until the next one the
    journal keeps these records, though no message of them lives (:meth:`oldest_needed`): a restart reads their ids.
    """

    def __init__(self) -> None:
        self.exchanges: dict[ExchangeName, IdWindow] = {}
        self.time_ms = self.time_at = self.checkpoint = 0
        self._recorded: list[_Recorded] | None = None
        self._commits: deque[tuple[int, int]] = deque()

    # -- topology ---------------------------------------------------------------------------------------------------------

    def registered(self, exchange: Windowed) -> bool:
        """``exchange`` is declared by the newest records; returns whether it has a window."""
        rule = exchange.deduplication
        if rule is not None:
            self.exchanges.setdefault((exchange.vhost, exchange.name), IdWindow(rule, of_exchange=True))
        return rule is not None

    def declared(self, name: ExchangeName, rule: DeduplicationRule | None, *, anew: bool, since: int) -> None:
        """The declaration of an exchange is applied; ``anew``: another one of that name is gone.

        ``since``: the place of the declaration, 0 if the exchange was there.
        """
        window = self.exchanges.get(name)
        if rule is None:
            self.exchanges.pop(name, None)
            return
        if window is None or anew or window.rule != rule:
            window = self._replace(name, rule)
        window.begin_at(since)

    def deleted(self, name: ExchangeName, newest: Windowed | None) -> None:
        """An exchange is gone; ``newest`` is the one of that name that the newest records have."""
        if name not in self.exchanges:
            return
        if newest is not None and newest.deduplication is not None:
            self._replace(name, newest.deduplication)
        else:
            del self.exchanges[name]

    def _replace(self, name: ExchangeName, rule: DeduplicationRule) -> IdWindow:
        """An empty window. What is on its way comes to it."""
        before = self.exchanges.get(name)
        self.exchanges[name] = window = IdWindow(rule, of_exchange=True)
        if before is not None:
            window.expect_as(before)
        return window

    def keep_only(self, names: set[ExchangeName]) -> None:
        """No other exchange is there any more."""
        for name in self.exchanges.keys() - names:
            del self.exchanges[name]

    # -- records ----------------------------------------------------------------------------------------------------------

    def note(
        self,
        queues: Mapping[int, Queue],
        offset: int,
        targets: list[Target],
        message: Message,
        time_ms: int | None = None,
    ) -> None:
        """A message has come to ``targets``, by the record at ``offset``; 0 for queues outside the log.

        ``time_ms``: of its commit; None if it was published outside of transactions.
        """
        if message.moved or not has_headers(message.properties):
            return
        noted_ms = self.time_ms if time_ms is None else time_ms
        if self._recorded is not None and offset:
            self._recorded.append((offset, noted_ms, targets, message.exchange, message.properties, message.persistent))
        self._note(queues, offset, noted_ms, targets, message.exchange, message.properties, message.persistent)

    def _note(
        self,
        queues: Mapping[int, Queue],
        offset: int,
        time_ms: int,
        targets: list[Target],
        exchange: str,
        properties: bytes,
        persistent: bool,
    ) -> None:
        vhost: str | None = None
        durable = False
        for target in targets:
            queue = queues.get(target[0])
            if queue is None:
                continue
            vhost = queue.vhost
            durable = durable or queue.durable
            if queue.window is not None:
                _put(queue.window, properties, (offset, time_ms, not persistent))
        window = self.exchanges.get((vhost, exchange)) if vhost is not None and offset else None
        if window is not None:
            _put(window, properties, (offset, time_ms, not (persistent and durable)))

    def committed(self, offset: int, first_offset: int) -> None:
        """The transaction is applied whose PREPARE stands at ``offset``, and whose events begin at ``first_offset``."""
        if first_offset <= self.checkpoint:  # else the next checkpoint is older than none of its records
            self._commits.append((offset, first_offset))

    def checkpointed(self, offset: int) -> None:
        """A checkpoint states what was applied up to ``offset``."""
        self.checkpoint = offset

    def oldest_needed(self, checkpoint: int, end: int) -> int:
        """The oldest record whose id no checkpoint states, if one states what was applied up to ``checkpoint``; at most ``end``."""
        commits = self._commits
        while commits and commits[0][0] <= checkpoint:
            commits.popleft()
        return min([end, *[first for _, first in commits]])

    def time(self, offset: int, time_ms: int) -> None:
        """The record at ``offset`` states the time; 0: an epoch begins."""
        self.time_ms, self.time_at = time_ms, offset

    def drop_transients(self, queues: Mapping[int, Queue], before: int) -> None:
        """See `IdWindow.drop_transients`."""
        for _, window in self._all(queues):
            window.drop_transients(before)

    # -- a gap of a journal -----------------------------------------------------------------------------------------------

    def begin_gap(self) -> None:
        """Records are missing which may have declared windows: keep what is noted behind them, until a checkpoint says more."""
        self.time_ms = self.time_at = 0
        if self._recorded is None:
            self._recorded = []

    def end_gap(self, queues: Mapping[int, Queue], offset: int, time: tuple[int, int]) -> None:
        """Note the ids that were applied behind ``offset``, whose state is installed. ``time``: as it was known before."""
        recorded, self._recorded = self._recorded or [], None
        if time[1] > offset:
            self.time_ms, self.time_at = time
        elif self.time_ms:  # what came since the gap came at the time that was stated in it
            recorded = [(each[0], each[1] or self.time_ms, *each[2:]) for each in recorded]
        for each in recorded:
            if each[0] > offset:
                self._note(queues, *each)

    def drop_recorded(self) -> None:
        """No gap is open any more, or none that a checkpoint fills."""
        self._recorded = None

    # -- all of it --------------------------------------------------------------------------------------------------------

    def _all(self, queues: Mapping[int, Queue]) -> Iterator[tuple[bytes, IdWindow]]:
        """Each window of something that the log declares, and its key."""
        for queue in queues.values():
            if queue.window is not None and queue.logged:
                yield _QUEUE.pack(_OF_QUEUE, queue.id), queue.window
        for (vhost, name), window in self.exchanges.items():
            yield _OF_EXCHANGE + short(vhost) + short(name), window

    def encode(self, queues: Mapping[int, Queue]) -> bytes:
        """All that is noted; b"" if that is nothing, or there is no window: a program that knows of none may be told the rest."""
        there = list(self._all(queues))
        windows = [key + window.encode() for key, window in there if window.noted]
        if not there or not (windows or self.time_ms):
            return b""
        return _HEAD.pack(self.time_ms, self.time_at, len(windows)) + b"".join(windows)

    def install(self, queues: Mapping[int, Queue], encoded: bytes) -> None:
        """Hold what ``encoded`` says, and nothing else."""
        for _, window in self._all(queues):
            window.noted.clear()
        self.merge(queues, encoded)
        self.time_ms, self.time_at, _ = _HEAD.unpack_from(encoded, 0) if encoded else (0, 0, 0)

    def merge(self, queues: Mapping[int, Queue], encoded: bytes) -> None:
        """Note what ``encoded`` says, of the same log; what has no window here is passed over.

        The time stays: records that are still to be applied came before the time that ``encoded`` states.

        Raises:
            struct.error, IndexError, UnicodeDecodeError: it cannot be read.
        """
        if not encoded:
            return
        _, _, count = _HEAD.unpack_from(encoded, 0)
        at = _HEAD.size
        for _ in range(count):
            window, at = self._window_at(queues, encoded, at)
            noted, at = decode_noted(encoded, at)
            if window is not None:
                window.merge(noted)

    def _window_at(self, queues: Mapping[int, Queue], encoded: bytes, at: int) -> tuple[IdWindow | None, int]:
        if encoded[at] == _OF_QUEUE:
            queue = queues.get(_QUEUE.unpack_from(encoded, at)[1])
            return (None if queue is None else queue.window), at + _QUEUE.size
        vhost, at = read_short(encoded, at + 1)
        name, at = read_short(encoded, at)
        return self.exchanges.get((vhost, name)), at


def _put(window: IdWindow, properties: bytes, noted: Noted) -> None:
    message_id = window.rule.id_of(properties)
    if message_id is not None:
        window.note(message_id, noted)
