"""Publishing on a channel: routing, the flags, publisher confirms."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from understudy.broker.amqp.encode import ack_frame, nack_frame, return_frames, with_large_body
from understudy.broker.amqp.methods import BASIC_PUBLISH, CONFIRM_SELECT, CONFIRM_SELECT_OK
from understudy.broker.amqp.properties import expiration, is_checked_persistent, user_id
from understudy.broker.core.clients import direct_reply
from understudy.broker.core.clients.judged_publishes import Publish
from understudy.broker.core.moving.delayed_publish import delayed
from understudy.broker.core.queues.queue_arguments import MAX_MS
from understudy.broker.core.requests.reply import Reply
from understudy.broker.core.requests.reserved_exchanges import RESERVED_EXCHANGES, ReservedExchange
from understudy.broker.core.topology.copies import MARK, copy_keys, route_all, without_bcc
from understudy.broker.core.topology.routing import route
from understudy.broker.errors import AccessRefusedError, NotFoundError, PreconditionFailedError, ResourceErrorSoft
from understudy.broker.log.body_place import AT_OFFSET
from understudy.broker.log.record import MAX_TARGETS
from understudy.broker.message import MESSAGE_BYTES, Message
from understudy.broker.octets.chunks import LARGE_BYTES
from understudy.broker.transactions.tx_buffer import TxBuffer

if TYPE_CHECKING:
    from understudy.broker.core.clients.association import Association
    from understudy.broker.core.clients.channel import Channel, Handler
    from understudy.broker.core.clients.transacting import Transacting
    from understudy.broker.core.moving.deduplicating import MessageId
    from understudy.broker.core.queues.queue import Queue
    from understudy.broker.core.watching.told import Confirmed

NO_ROUTE = 312
NO_CONSUMERS = 313
ROUTES_LIMIT = 4096

# Bits of the first two octets of the property flags (AMQP 0-9-1 section 4.2.6.1): asked before anything is decoded.
EXPIRATION_BIT = 0x01
HEADERS_BIT = 0x20
USER_ID_BIT = 0x10
REPLY_TO_BIT = 0x02
LOOKED_AT = EXPIRATION_BIT | HEADERS_BIT | REPLY_TO_BIT

_new = object.__new__


class Publishing:
    """The publishing half of a channel.

    ``demarcation`` takes what is published while it is ``active``: the channel's transaction, or the branch on which it works.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._connection = channel.connection
        self._broker = channel.broker
        self._work = channel.broker.work
        self._log = channel.broker.log
        self._batch = channel.broker.batch
        self._enqueue = channel.broker.batch.publish
        self._complete = channel.broker.completions.complete
        self._count = channel.broker.counters.count
        self._registry = channel.broker.state.topology.registry
        self.demarcation: Transacting | Association = channel.transacting
        self.confirming = False
        self._parted_bytes = channel.broker.limits.parted_bytes
        self._in_parts: tuple[TxBuffer, Message] | None = None
        self._next_tag = 0
        self._acked_tag = 0
        self._ack_upto = 0
        self._nacked: list[int] = []
        self._unconfirmed: deque[Confirmed] | None = deque() if channel.broker.hooks.on_confirmed else None

    def demarcate(self, demarcation: Transacting | Association) -> None:
        """Give ``demarcation`` what is published from now on, while it is active."""
        self.demarcation = demarcation

    def handlers(self) -> dict[int, Handler]:
        return {CONFIRM_SELECT: self._select}

    def publish(self, args: tuple[Any, ...], properties: bytes, body: bytes) -> None:  # noqa: C901, PLR0912, PLR0915  # hot: no call saves a line
        """basic.publish: ``args`` is (exchange, routing key, mandatory, immediate)."""
        exchange, routing_key, mandatory, immediate = args
        connection = self._connection
        registry = self._registry
        if connection.routes_version != registry.version:
            connection.renew_routes(registry.version)
        queues = connection.routes.get((exchange, routing_key))
        if queues is None:
            reserved = RESERVED_EXCHANGES.get(exchange)
            if reserved is not None:
                self._request(reserved, properties, body)
                return
            queues = self._route(exchange, routing_key, properties)
        persistent = is_checked_persistent(properties)
        expiration_ms = None
        if properties[0] & LOOKED_AT:
            if properties[0] & REPLY_TO_BIT and properties.find(direct_reply.MARK) >= 0:
                properties = self._channel.direct_reply.addressed(properties)
            if properties[0] & EXPIRATION_BIT:
                expiration_ms = self._expiration(properties)
            if properties.find(MARK) >= 0:  # two thirds of what "in" takes
                queues, properties = self._with_copies(exchange, routing_key, queues, properties)
        if properties[1] & USER_ID_BIT:
            self._check_user(properties)
        if self._work.reason and self._refused():
            return
        broker = self._broker
        # Message(...), without the call of the class: see Queue.enqueue.
        message = _new(Message)
        message.exchange = exchange
        message.routing_key = routing_key
        message.properties = properties
        message.body = body
        message.size = size = len(body)
        message.persistent = persistent
        message.offset = 0
        message.place = AT_OFFSET
        message.shared = False
        if registry.delaying:
            message = delayed(registry.vhost(connection.vhost), queues, message)
        if registry.judging and broker.judged.done(
            Publish(self._channel, message, expiration_ms, mandatory, immediate), queues
        ):
            return
        if not queues or immediate:
            queues = self.returned(message, queues, mandatory, immediate)
        if size >= self._parted_bytes and self._published_in_parts(queues, message, expiration_ms):
            return
        if self.demarcation.active:
            self.demarcation.publish(queues, message, expiration_ms)
            connection.published(MESSAGE_BYTES + len(routing_key) + size + len(properties))
            return
        if queues:
            connection.published_to = self._enqueue(queues, message, expiration_ms)
            if not self.confirming:
                connection.published_plainly = True
            connection.published(MESSAGE_BYTES + len(routing_key) + size + len(properties))
        if self.confirming:
            self._next_tag += 1
            if self._unconfirmed is not None:
                self._unconfirmed.append((self._next_tag, message.offset))
            self._complete(self._log.end, self._confirmed, self._next_tag)

    def _refused(self) -> bool:
        """New work is refused: a confirmed publish by a nack, one in a transaction by ending that.

        Others are taken, and their connection is not read any more (False). A transaction must not be made to wait like that: its
        rollback, which may be all that makes room, would not be read.
        """
        work = self._work
        if self.demarcation.active:
            work.count(work.reason)
            raise ResourceErrorSoft(work.reason)
        if self.confirming:
            work.count(work.reason)
            self.refuse()
        return self.confirming

    def refuse(self) -> None:
        """Tell the publisher no, if it has asked for confirms: the message never enters the log."""
        if self.confirming:
            self._next_tag += 1
            self._nacked.append(self._next_tag)
            self._connection.write(nack_frame(self._channel.number, self._next_tag, False))

    def confirm(self, offset: int, enqueued_at: int) -> None:
        """Confirm a publish, if that was asked for, when the log is applied up to ``offset``. ``enqueued_at``: 0 for nowhere."""
        if self.confirming:
            self._next_tag += 1
            if self._unconfirmed is not None:
                self._unconfirmed.append((self._next_tag, enqueued_at))
            self._complete(offset, self._confirmed, self._next_tag)

    # -- bodies in parts ------------------------------------------------------------------------------------------

    def _published_in_parts(self, queues: list[Queue], message: Message, expiration_ms: int | None) -> bool:
        """Publish ``message``, which is large, in parts. False if it is to stand in one record."""
        if not self._broker.parted_bodies.wanted(queues, message):
            return False
        if self.demarcation.active:
            self.demarcation.publish(queues, message, expiration_ms, self._publish_in_transaction)
        else:
            self._publish_own(queues, message, expiration_ms)
        return True

    def published_own_in_parts(
        self, queues: list[Queue], message: Message, expiration_ms: int | None, ids: Iterable[MessageId]
    ) -> bool:
        """Publish ``message``, outside of transactions, in parts. False if it is to stand in one record.

        ``ids`` are those that it brings to queues and exchanges which drop duplicates.
        """
        if message.size < self._parted_bytes or not self._broker.parted_bodies.wanted(queues, message):
            return False
        self._publish_own(queues, message, expiration_ms, ids)
        return True

    def _publish_own(
        self, queues: list[Queue], message: Message, expiration_ms: int | None, ids: Iterable[MessageId] = ()
    ) -> None:
        """Outside of transactions: the message is a transaction of its own."""
        broker = self._broker
        tx = TxBuffer(broker.transactions.next_id(), own=True)
        tx.message_ids().update(dict.fromkeys(ids))
        broker.deduplicating.claim(tx)
        limited = [queue.limits for queue in queues if queue.limits is not None]
        for limits in limited:
            limits.published(message.size)

        def over(_: None) -> None:
            for limits in limited:
                limits.applied(message.size)

        def record(living: list[Queue]) -> None:
            enqueued_at, decided_at = broker.transactions.publish_own(tx, living, message, expiration_ms)
            if limited:
                self._complete(decided_at, over, None)
            self._connection.published_to = decided_at
            if self.confirming:
                self._next_tag += 1
                if self._unconfirmed is not None:
                    self._unconfirmed.append((self._next_tag, enqueued_at))
                self._complete(decided_at, self._stored, (self._next_tag, tx))
            else:
                self._connection.published_plainly = True

        self._hold_for_parts(tx, queues, message, record, over)

    def _publish_in_transaction(
        self, tx: TxBuffer, queues: list[Queue], message: Message, expiration_ms: int | None
    ) -> None:
        transactions = self._broker.transactions

        def record(living: list[Queue]) -> None:
            transactions.publish(tx, living, message, expiration_ms, judged=True)
            self._channel.transacting.note_use()

        if fresh := transactions.fresh(tx, queues, message):  # parts of a duplicate are not to be in the log
            self._hold_for_parts(tx, fresh, message, record)

    def _hold_for_parts(
        self,
        tx: TxBuffer,
        queues: list[Queue],
        message: Message,
        record: Callable[[list[Queue]], None],
        abandoned: Callable[[None], None] | None = None,
    ) -> None:
        """Put the body into the log; then ``record`` the message, and let the channel take what comes next.

        Or ``abandoned`` is called.
        """
        channel, connection = self._channel, self._connection
        size = message.held_bytes
        awaited = channel.hold(BASIC_PUBLISH)
        connection.keeps(size)
        self._in_parts = (tx, message)

        def over(whole: bool) -> None:
            self._in_parts = None
            connection.keeps(-size)
            if whole:
                connection.published(size)
                # Of those outside the log nothing is left when they are deleted; of others their records tell.
                record([queue for queue in queues if queue.logged or not queue.deleted])
            elif abandoned is not None:
                abandoned(None)
            channel.answered(_nothing, awaited)

        self._broker.parted_bodies.begin(tx, message, over)

    def end(self, reason: str) -> None:
        """The channel dies. A message of which parts are missing in the log goes with it: its client may send it again."""
        if self._in_parts is None:
            return
        tx, message = self._in_parts
        self._broker.parted_bodies.give_up(message)
        if tx.own:
            self._broker.transactions.roll_back(tx, f"its channel ended: {reason}")
            self._broker.transactions.forget_id(tx.tx_id)

    def _stored(self, told: tuple[int, TxBuffer]) -> None:
        """The transaction that a message was is decided."""
        tag, tx = told
        if tx.commits:
            self._confirmed(tag)
            return
        self._nacked.append(tag)
        if self._unconfirmed is not None:
            self._unconfirmed = deque(each for each in self._unconfirmed if each[0] != tag)
        if not self._channel.ended and not self._channel.closing:
            self._connection.write(nack_frame(self._channel.number, tag, False))

    # -- routing --------------------------------------------------------------------------------------------------

    def _route(self, exchange: str, routing_key: str, properties: bytes) -> list[Queue]:
        connection = self._connection
        vhost = self._registry.vhost(connection.vhost)
        found = vhost.exchanges.get(exchange)
        if found is None:
            raise NotFoundError.exchange(exchange, connection.vhost)
        assert connection.user is not None
        connection.user.require(connection.vhost, "write", "exchange", exchange)
        if found.internal:
            raise AccessRefusedError(f"cannot publish to internal exchange '{exchange}' in vhost '{connection.vhost}'")
        if exchange == "":
            queue = vhost.queues.get(routing_key)
            queues = [queue] if queue is not None else []
        else:
            queues, by_headers = route(vhost.exchanges, found, (routing_key,), properties)
            self._check_targets(exchange, queues)
            if by_headers:
                return queues
        routes = connection.routes
        if len(routes) >= ROUTES_LIMIT:
            routes.clear()
        routes[(exchange, routing_key)] = queues
        return queues

    def _check_targets(self, exchange: str, queues: list[Queue]) -> None:
        if len(queues) > MAX_TARGETS:
            raise ResourceErrorSoft(
                f"a message to exchange '{exchange}' in vhost '{self._connection.vhost}' would go to {len(queues)} queues, "
                f"{MAX_TARGETS} are the most"
            )

    def _with_copies(
        self, exchange: str, routing_key: str, queues: list[Queue], properties: bytes
    ) -> tuple[list[Queue], bytes]:
        """Queues and properties of a message whose headers may have CC and BCC; ``queues`` are those of ``routing_key`` alone."""
        keys = copy_keys(properties)
        if keys:
            queues = route_all(self._registry.vhost(self._connection.vhost), exchange, [routing_key, *keys], properties)
            self._check_targets(exchange, queues)
        return queues, without_bcc(properties)

    def returned(self, message: Message, queues: list[Queue], mandatory: bool, immediate: bool) -> list[Queue]:
        """Judge mandatory and immediate now, inside a transaction too. Returns the queues that remain.

        With ``mandatory_at_commit`` the channel's transaction keeps an unroutable message until it is committed, as in RabbitMQ.
        """
        if not queues:
            self._count("unroutable")
        if not queues and mandatory:
            transacting = self._channel.transacting
            if self._broker.limits.mandatory_at_commit and transacting.active and self.demarcation is transacting:
                transacting.keep_unroutable(message)
            else:
                self.give_back(message)
        elif immediate:
            queues = [q for q in queues if q.has_taker()]
            if not queues:
                self.give_back(message, NO_CONSUMERS, "NO_CONSUMERS")
        if self.confirming and not queues:
            self._batch.provable()  # that it goes nowhere; what is enqueued has a record of its own
        return queues

    def give_back(self, message: Message, code: int = NO_ROUTE, text: str = "NO_ROUTE") -> None:
        """Send ``message`` back to its publisher: basic.return."""
        channel, properties, body = self._channel.number, message.properties, message.content()
        frame_max = self._connection.frame_max
        large = message.size >= LARGE_BYTES
        shown = b"" if large else body
        names = (message.exchange, message.routing_key)
        frames = return_frames(channel, code, text, *names, properties, shown, frame_max)
        self._connection.write(with_large_body(frames, channel, properties, body, frame_max) if large else frames)

    @staticmethod
    def _expiration(properties: bytes) -> int:
        text = expiration(properties) or ""
        if not text.isascii() or not text.isdigit():
            raise PreconditionFailedError(f"invalid expiration {text!r}: it is a number of milliseconds")
        expiration_ms = int(text)
        if expiration_ms > MAX_MS:  # a deadline has to fit into a record, whatever the clock says
            raise PreconditionFailedError(f"invalid expiration {text!r}: {MAX_MS} milliseconds are the most")
        return expiration_ms

    def _check_user(self, properties: bytes) -> None:
        claimed = user_id(properties)
        user = self._connection.user
        if user is not None and claimed is not None and claimed != user.name:
            raise PreconditionFailedError(
                f"user_id property set to '{claimed}' but authenticated user was '{user.name}'"
            )

    def _request(self, reserved: ReservedExchange, properties: bytes, body: bytes) -> None:
        """A message to a reserved exchange."""
        user, vhost = self._connection.user, self._connection.vhost
        assert user is not None
        reserved.permission(user, vhost)
        properties = self._channel.direct_reply.addressed(properties)
        reserved.take(self._channel, Reply(self._broker, vhost, reserved.name, properties), body)
        self._connection.published(MESSAGE_BYTES + len(body) + len(properties))
        if self.confirming:
            self._next_tag += 1
            if self._unconfirmed is not None:
                self._unconfirmed.append((self._next_tag, 0))
            self._complete(self._batch.provable(), self._confirmed, self._next_tag)

    # -- confirms -------------------------------------------------------------------------------------------------

    def _select(self, args: tuple[Any, ...]) -> None:
        if self._channel.transacting.active or self._channel.distributed.selected:
            mode = "tx" if self._channel.transacting.active else "dtx"
            raise PreconditionFailedError(f"cannot switch from {mode} to confirm mode")
        self.confirming = True
        if not args[0]:
            self._channel.send(CONFIRM_SELECT_OK)

    def _confirmed(self, tag: int) -> None:
        if self._ack_upto == self._acked_tag:
            self._broker.completions.after_release.append(self._send_acks)
        self._ack_upto = tag

    def _send_acks(self) -> None:
        """One basic.ack for everything that this release covered."""
        upto = self._ack_upto
        multiple = upto > self._acked_tag + 1
        self._count("confirmed", upto - self._acked_tag)
        if self._nacked:
            later = [tag for tag in self._nacked if tag > upto]
            self._count("confirmed", len(later) - len(self._nacked))
            self._nacked = later
        self._acked_tag = upto
        if not self._channel.ended and not self._channel.closing:
            self._connection.write(ack_frame(self._channel.number, upto, multiple))
            if self._unconfirmed is not None:
                self._tell_confirmed(self._unconfirmed, upto)

    def _tell_confirmed(self, unconfirmed: deque[Confirmed], upto: int) -> None:
        confirmed = []
        while unconfirmed and unconfirmed[0][0] <= upto:
            confirmed.append(unconfirmed.popleft())
        for told in self._broker.hooks.on_confirmed:
            told(self._channel, confirmed)


def _nothing() -> None:
    """A publish is not answered."""


__all__ = ["BASIC_PUBLISH", "Publishing"]
