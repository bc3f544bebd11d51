"""Deduplicating: the broker that leads judges whether a message was published before, and drops it then.

**Outside of transactions** the answer is known when the message comes: its id is in the window, or a record brings it that is
appended, or neither. A duplicate is confirmed when all that stands before it is stable. If a transaction that is being committed
brings the id, the answer is not known yet: the channel waits (`Claim`).

**In a transaction** an id counts from the commit. A publish is dropped whose id is known by then, or stands in the same
transaction. What others publish meanwhile is found at the commit: the transaction is refused as a whole, and its client does it
again, when the id is known. Between its close and its decision a transaction claims its ids. A branch may be in doubt for days, so
a publish of such an id is refused instead of waiting.

The broker that leads decides alone. Other brokers see messages that are there and none that were dropped, so windows decide nothing
about what those hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from understudy.broker.amqp.properties import has_headers, header
from understudy.broker.core.queues.deduplication import ID_BYTES
from understudy.broker.core.queues.id_window import Claim, IdWindow
from understudy.broker.core.queues.queue import Queue
from understudy.broker.errors import PreconditionFailedError
from understudy.broker.log import record

if TYPE_CHECKING:
    from understudy.broker.core.moving.port import MovingPort
    from understudy.broker.message import Message
    from understudy.broker.transactions.tx_buffer import TxBuffer

MessageId = tuple[IdWindow, bytes]
"""An id, and which window it belongs to."""


class Judgement(NamedTuple):
    """The decision on one publish.

    Attributes:
        queues: take the message; the others have seen its id.
        ids: of the message, for :meth:`Deduplicating.published`.
        claim: the transaction that has to be decided first; the other attributes mean nothing then.
        whole: the message enters all of ``queues`` or none, since its exchange remembers its id.
    """

    queues: list[Queue]
    ids: list[MessageId]
    claim: Claim | None = None
    whole: bool = False


class Deduplicating:
    """One per broker; works only where the broker leads."""

    def __init__(self, broker: MovingPort) -> None:
        self._broker = broker
        self._clock = broker.clock
        self._count = broker.counters.count
        self._topology = broker.state.topology
        self._stated_ms = 0

    # -- publishes --------------------------------------------------------------------------------------------------------

    def judge(self, queues: list[Queue], message: Message, vhost: str) -> Judgement:
        """Judge a publish outside of transactions, which was routed to ``queues``.

        Raises:
            PreconditionFailedError: the header has a value that can be no id.
        """
        ids: list[MessageId] = []
        of_exchange = self._exchange_id(message, vhost)
        if of_exchange is not None:
            if claim := _claim(of_exchange):
                return Judgement(queues, [], claim)
            if self._known(of_exchange):
                return Judgement([], [])
            ids.append(of_exchange)
        fresh = []
        for queue in queues:
            of_queue = _queue_id(queue, message)
            if of_queue is not None:
                if claim := _claim(of_queue):
                    return Judgement(queues, [], claim)
                if self._known(of_queue):
                    continue
                ids.append(of_queue)
            fresh.append(queue)
        return Judgement(fresh, ids, None, of_exchange is not None)

    def state_time(self, ids: Iterable[MessageId]) -> None:
        """Before a message with these ``ids`` is published: state the time, if one of their windows needs it."""
        broker = self._broker
        granularities = [window.rule.granularity_ms for window, _ in ids if window.rule.ttl_ms is not None]
        if granularities and broker.log.may_hold(record.ID_TIME):
            now_ms = self._clock.expiry_now()
            if not 0 <= now_ms - self._stated_ms < min(granularities):
                self._stated_ms = now_ms
                broker.batch.append_record(record.encode_id_time(now_ms))

    def published(self, ids: Iterable[MessageId], queues: list[Queue], offset: int) -> None:
        """A message with these ``ids`` has been published to ``queues``; it has come when the log is applied up to ``offset``.

        Only the windows that note it then are told: an id that none takes away again would stay for ever, and stand for a message
        that is nowhere. An exchange notes nothing of queues outside of the log.
        """
        if offset <= self._broker.log.applied:
            return
        windows = [queue.window for queue in queues]
        logged = any(queue.logged for queue in queues)
        for window, octets in ids:
            if logged if window.of_exchange else window in windows:
                window.coming[octets] = offset

    # -- transactions -----------------------------------------------------------------------------------------------------

    def check(self, queues: list[Queue], message: Message, vhost: str) -> None:
        """Check the id of a publish within a transaction.

        Raises:
            PreconditionFailedError: the header has a value that can be no id.
        """
        self._exchange_id(message, vhost)
        for queue in queues:
            _queue_id(queue, message)

    def within(self, tx: TxBuffer, queues: list[Queue], message: Message) -> list[Queue]:
        """Judge a publish within ``tx``, which :meth:`check` has passed: the queues that take it, as is known before the commit."""
        known = tx.message_ids()
        of_exchange = _checked_id(self._exchange_window(message.exchange, queues[0].vhost), message)
        if of_exchange is not None:
            if of_exchange in known or self._known(of_exchange):
                return self._dropped([])
            known[of_exchange] = None
        fresh = []
        for queue in queues:
            of_queue = _checked_id(queue.window, message)
            if of_queue is not None:
                if of_queue in known or self._known(of_queue):
                    continue
                known[of_queue] = None
            fresh.append(queue)
        return fresh if len(fresh) == len(queues) else self._dropped(fresh)

    def _dropped(self, queues: list[Queue]) -> list[Queue]:
        self._count("deduplicated")
        return queues

    def conflict(self, tx: TxBuffer) -> str:
        """The reason why ``tx`` may not commit: another message with an id of ``tx`` came meanwhile. "" if none came."""
        for message_id in tx.ids or ():
            claim = _claim(message_id)
            if (claim is not None and claim.tx is not tx) or self._known(message_id):
                octets = message_id[1][1:]
                return (
                    f"a message with the id {octets.decode('utf-8', 'backslashreplace')!r} was published, or is being committed, "
                    "since the transaction published it: do the transaction again"
                )
        return ""

    def claim(self, tx: TxBuffer) -> None:
        """Claim the ids of ``tx``, which is to be committed or prepared: the decision says whether its messages came."""
        for window, octets in tx.ids or ():
            if octets not in window.claims:
                window.claims[octets] = Claim(tx)

    def release(self, tx: TxBuffer) -> None:
        """Give up the claims of ``tx``, which is decided; publishes that waited for that go on."""
        waiting: list[Callable[[], None]] = []
        for window, octets in tx.ids or ():
            claim = window.claims.get(octets)
            if claim is not None and claim.tx is tx:
                del window.claims[octets]
                waiting += claim.waiting
        tx.forget_ids()
        for go_on in waiting:
            go_on()

    def adopt(self, tx: TxBuffer) -> None:
        """Claim the ids of ``tx``, a branch in doubt that was prepared before this broker led."""
        queues = self._broker.state.queues
        ids = tx.message_ids()
        for _, message, targets in tx.events:
            if message is None or message.moved:
                continue
            for queue in [queues[target[0]] for target in targets if target[0] in queues]:
                for window in (queue.window, self._exchange_window(message.exchange, queue.vhost)):
                    message_id = _checked_id(window, message)
                    if message_id is not None:
                        ids[message_id] = None
        self.claim(tx)

    # -- ids --------------------------------------------------------------------------------------------------------------

    def _known(self, message_id: MessageId) -> bool:
        window, octets = message_id
        broker = self._broker
        return window.comes(octets, broker.log.applied) or (
            octets in window.noted and window.remembers(octets, self._clock.expiry_now())
        )

    def _exchange_window(self, exchange: str, vhost: str) -> IdWindow | None:
        """The window of an exchange that the newest records have."""
        found = self._topology.registry.vhost(vhost).exchanges.get(exchange)
        if found is None or found.deduplication is None:
            return None
        return self._broker.state.id_windows.exchanges.get((vhost, exchange))

    def _exchange_id(self, message: Message, vhost: str) -> MessageId | None:
        window = self._exchange_window(message.exchange, vhost)
        return _id(window, message, f"exchange '{message.exchange}' in vhost '{vhost}'")


def _claim(message_id: MessageId) -> Claim | None:
    window, octets = message_id
    return window.claims.get(octets)


def _checked_id(window: IdWindow | None, message: Message) -> MessageId | None:
    """The id of ``message`` in ``window``; None if it has none, or there is no window."""
    octets = window.rule.id_of(message.properties) if window is not None else None
    return None if window is None or octets is None else (window, octets)


def _queue_id(queue: Queue, message: Message) -> MessageId | None:
    return _id(queue.window, message, f"queue '{queue.name}' in vhost '{queue.vhost}'")


def _id(window: IdWindow | None, message: Message, of: str) -> MessageId | None:
    """The id of ``message`` in ``window``, which is ``of`` a queue or an exchange; None if it has none.

    Raises:
        PreconditionFailedError: the header is there, and its value can be no id.
    """
    if window is None or not has_headers(message.properties):
        return None
    message_id = _checked_id(window, message)
    name = window.rule.header
    value = header(message.properties, name) if message_id is None else None
    if value is None:
        return message_id
    raise PreconditionFailedError(
        f"invalid header '{name}' of a message to {of}: {str(value)[:100]!r} is no id, which is a text of 1 to {ID_BYTES} bytes or "
        "an integer"
    )
