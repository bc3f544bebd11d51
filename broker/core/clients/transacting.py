"""Transactions on a channel: tx.select, commit, rollback, and the outcome query.

The channel keeps no publish buffer: queues hold what is published, embargoed. What it does keep is which deliveries
the open transaction has settled, for they return to the ledger if it is rolled back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from understudy.broker.amqp.methods import (
    TX_COMMIT,
    TX_COMMIT_OK,
    TX_ROLLBACK,
    TX_ROLLBACK_OK,
    TX_SELECT,
    TX_SELECT_OK,
)
from understudy.broker.amqp.properties import header
from understudy.broker.core.clients.delivery_ledger import Delivery
from understudy.broker.core.limits import TX_SIZE
from understudy.broker.core.queues.entry import ACQUIRED
from understudy.broker.core.requests.outcome_answers import answer_query
from understudy.broker.core.requests.precheck import PRECHECKS, answer_precheck, refusal
from understudy.broker.core.watching.told import Told
from understudy.broker.errors import PreconditionFailedError, ResourceErrorSoft
from understudy.broker.message import MESSAGE_BYTES, Message
from understudy.broker.transactions.outcome_query import NAME_BYTES, is_own_id, tx_id_text
from understudy.broker.transactions.outcomes import Outcome
from understudy.broker.transactions.tx_buffer import TxBuffer, TxState

if TYPE_CHECKING:
    from understudy.broker.core.clients.channel import Channel, Handler
    from understudy.broker.core.queues.queue import Queue
    from understudy.broker.core.requests.reply import Reply

TX_NAME_HEADER = "x-understudy-tx"
HEADERS_BIT = 0x20
FLUSH_ACCEPTS = 512
"""Acknowledgements of a transaction are recorded at the latest when that many have gathered (docs/decisions/0048)."""


TxPublish = Callable[[TxBuffer, "list[Queue]", Message, "int | None"], None]
"""Records a publish within a transaction."""


class Session:
    """One transaction of the channel, from its first operation to its decision.

    Attributes:
        opened_at: the log's end then: whoever asks for its name later, and is told "rolled back", must not be told another thing.
        name_known: whoever asks for its name finds it pending, since it has that name.
        name_barred: somebody may have asked before that.
        failed: tags of the deliveries in ``requeued`` whose processing has failed.
        unroutable: mandatory messages that come back at the commit; ``unroutable_bytes`` of them are held.
    """

    __slots__ = (
        "failed",
        "name_barred",
        "name_known",
        "opened_at",
        "requeued",
        "settled",
        "tx",
        "unrecorded",
        "unroutable",
        "unroutable_bytes",
    )

    def __init__(self, tx: TxBuffer, opened_at: int) -> None:
        self.tx = tx
        self.opened_at = opened_at
        self.name_known = self.name_barred = False
        self.settled: list[Delivery] = []
        self.requeued: list[Delivery] = []
        self.failed: set[int] = set()
        self.unrecorded: list[tuple[Queue, Any]] = []
        self.unroutable: list[Message] = []
        self.unroutable_bytes = 0


class Transacting:
    """The transactional side of a channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._broker = channel.broker
        self._clock = channel.broker.clock
        self._hooks = channel.broker.hooks
        self._complete = channel.broker.completions.complete
        self._applying = channel.broker.state.applying
        self.active = False
        self._tx_id = 0
        self._told_id = 0
        self._session: Session | None = None
        self._used_ms = 0

    def handlers(self) -> dict[int, Handler]:
        return {TX_SELECT: self._select, TX_COMMIT: self._commit, TX_ROLLBACK: self._rollback}

    def _select(self, args: tuple[Any, ...]) -> None:
        if self._channel.publishing.confirming:
            raise PreconditionFailedError("cannot switch from confirm to tx mode")
        if self._channel.distributed.selected:
            raise PreconditionFailedError("cannot switch from dtx to tx mode")
        if not self.active:
            self.active = True
            self._tx_id = self._broker.transactions.next_id()
        self._channel.send(TX_SELECT_OK)

    # -- operations -----------------------------------------------------------------------------------------------

    def _open(self) -> Session:
        """The running transaction; the first operation opens it."""
        session = self._session
        if session is None:
            tx = TxBuffer(self._tx_id, opened_ms=self._clock.now_ms)
            session = self._session = Session(tx, self._broker.log.end)
        self._used_ms = self._clock.running_ms
        return session

    def publish(
        self, queues: list[Queue], message: Message, expiration_ms: int | None, publish: TxPublish | None = None
    ) -> None:
        """A publish on a tx channel, already routed. ``publish`` records it, if `Transactions.publish` is not to."""
        broker = self._broker
        session = self._session
        if session is None:
            session = self._open()
        else:
            self._used_ms = self._clock.running_ms
        tx = session.tx
        if message.properties[0] & HEADERS_BIT:
            self._take_name(session, message.properties, queues)
        if not queues:
            return
        if session.unrecorded:
            self._record_accepts(session)
        limit = broker.limits.tx_bytes
        if tx.size_bytes + len(tx.events) * MESSAGE_BYTES > limit:  # tx.held_bytes, without a call for every message
            broker.work.count_limit(TX_SIZE)
            raise ResourceErrorSoft(
                f"transaction {tx_id_text(tx.tx_id)} holds {tx.held_bytes} bytes, the limit is {limit}"
            )
        (publish or broker.transactions.publish)(tx, queues, message, expiration_ms)
        if tx.name and not tx.first_offset:  # it was a duplicate: the log does not have the name
            session.name_known = False

    def keep_unroutable(self, message: Message) -> None:
        """Send a mandatory message back when the transaction is committed, and never if it is rolled back.

        Such messages are in memory alone: the transaction may have one of any size, or `Limits.tx_memory_bytes` of them.

        Raises:
            ResourceErrorSoft: this message is too much.
        """
        session = self._open()
        session.unroutable_bytes += message.held_bytes
        limit = self._broker.limits.tx_memory_bytes
        if session.unroutable and session.unroutable_bytes > limit:
            self._broker.work.count_limit(TX_SIZE)
            raise ResourceErrorSoft(
                f"transaction {tx_id_text(session.tx.tx_id)} holds {session.unroutable_bytes} bytes of mandatory messages "
                f"that no queue takes, the limit is {limit}"
            )
        session.unroutable.append(message)

    def _take_name(self, session: Session, properties: bytes, queues: list[Queue]) -> None:
        tx = session.tx
        name = header(properties, TX_NAME_HEADER)
        if name is None:
            return
        if isinstance(name, bytes):
            name = name.decode("utf-8", "surrogateescape")
        size = len(name.encode("utf-8", "surrogateescape")) if isinstance(name, str) else 0
        if not isinstance(name, str) or not 1 <= size <= NAME_BYTES or is_own_id(name):
            raise PreconditionFailedError(
                f"header {TX_NAME_HEADER} is {name!r}: it is a name of 1 to {NAME_BYTES} bytes that is not of the form "
                "number.number"
            )
        if tx.name and tx.name != name:
            raise PreconditionFailedError(f"transaction {tx_id_text(tx.tx_id)} is named {tx.name!r}, not {name!r}")
        if not tx.name:
            tx.named(name)
            session.name_known = tx.first_offset > 0 or any(queue.logged for queue in queues)
            session.name_barred = self._may_be_barred(session)

    def _may_be_barred(self, session: Session) -> bool:
        """True if its name is barred, or may have been since it was opened: bars are trimmed like all outcomes."""
        broker, name = self._broker, session.tx.name
        outcomes = self._applying.outcomes
        barred = outcomes.named(name) is Outcome.ROLLED_BACK or broker.name_bars.is_barred(name)
        return barred or outcomes.unbarred_upto > session.opened_at

    def settle(
        self, deliveries: list[Delivery], *, requeue: bool, rejected: bool = False, failed: bool = False
    ) -> None:
        """Acknowledgements and rejections within the transaction; they keep their prefetch slots.

        A message that is ``rejected`` enters the queues of its dead letters when the transaction commits. One that is to be
        requeued comes back then, and counts as ``failed`` then.
        """
        session = self._open()
        if requeue:
            session.requeued += deliveries
            if failed:
                session.failed.update(delivery.tag for delivery in deliveries)
            return
        session.settled += deliveries
        for delivery in deliveries:
            if rejected and delivery.queue.dead_letters is not None:
                self._record_accepts(session)
                named = f"transaction {tx_id_text(session.tx.tx_id)}"
                size = self._broker.moving.reject_within(session.tx, delivery.queue, delivery.entry, named)
                self._channel.connection.published(size)
            else:
                session.unrecorded.append((delivery.queue, delivery.entry))
        if len(session.unrecorded) >= FLUSH_ACCEPTS:
            self._record_accepts(session)

    def _record_accepts(self, session: Session) -> None:
        settled = session.unrecorded
        session.unrecorded = []
        self._broker.transactions.accept(session.tx, settled)

    # -- ending it ------------------------------------------------------------------------------------------------

    def _require_active(self) -> None:
        if not self.active:
            raise PreconditionFailedError("channel is not transactional")

    def _to_end(self) -> Session | None:
        """The transaction that is to end; without any operation it is one only if its id was told, and may be asked for."""
        return self._open() if self._session is None and self._tx_id == self._told_id else self._session

    def _commit(self, args: tuple[Any, ...]) -> None:
        self._require_active()
        session = self._to_end()
        broker = self._broker
        if session is None:
            self._channel.send(TX_COMMIT_OK)
            return
        refused = broker.commit_refused(session.tx)
        if refused:
            broker.work.count(refused)
            raise ResourceErrorSoft(refused)
        if session.unrecorded:
            self._record_accepts(session)
        tx = session.tx
        if tx.name:
            self._check_name_is_free(session)
        self._session = None
        self._tx_id = broker.transactions.next_id()
        self._channel.wait_for_outcome()
        # Nothing but requeues, or publishes that went nowhere; but a name may be asked for, or an id that was told.
        if not tx.events and not tx.name and tx.tx_id != self._told_id:
            broker.transactions.forget_id(tx.tx_id)
            self._complete(broker.batch.provable(), self._tell_committed, session)
            return
        if not tx.first_offset:  # the log knows nothing of it before PREPARE; its name is taken from now on
            broker.state.transactions[tx.tx_id] = tx
        if tx.ids:
            broker.deduplicating.claim(tx)
        broker.transactions.coordinator.log_and_order(tx, lambda decided: self._decided(session, decided))

    def _check_name_is_free(self, session: Session) -> None:
        if taken := self._name_taken(session):
            raise PreconditionFailedError(taken)

    def _name_taken(self, session: Session) -> str:
        """Why its name is taken; "" if it is free."""
        broker, tx = self._broker, session.tx
        outcome = self._applying.outcomes.named(tx.name)
        if outcome is not None:
            why = f"a transaction of that name is {outcome.text}"
        elif broker.name_bars.is_barred(tx.name):  # not stably yet: a broker that was replaced must not say more
            why = "somebody has asked what became of it"
        elif broker.transactions.named(tx.name, besides=tx) is not None:
            why = "a transaction of that name is under way"
        elif session.name_barred or (not session.name_known and self._may_be_barred(session)):
            why = "somebody may have asked, before the transaction had it, what became of it"
        else:
            return ""
        return f"transaction name {tx.name!r} is taken: {why}"

    def _decided(self, session: Session, tx: TxBuffer) -> None:
        channel = self._channel
        if tx.state is TxState.COMMITTED:
            self._tell_committed(session)
            return
        self._return_deliveries(session)
        if not channel.ended and not channel.closing:
            channel.outcome_is_known()
            channel.fail(
                PreconditionFailedError(f"transaction {tx_id_text(tx.tx_id)} rolled back: {tx.reason}"), TX_COMMIT
            )
            self._tell_outcome("channel.close", Outcome.ROLLED_BACK, tx)

    def _tell_committed(self, session: Session) -> None:
        channel = self._channel
        self._committed(session)
        if not channel.ended and not channel.closing:
            channel.outcome_is_known()
            for message in session.unroutable:
                channel.publishing.give_back(message)
            channel.send(TX_COMMIT_OK)
            self._tell_outcome("tx.commit-ok", Outcome.COMMITTED, session.tx)
            channel.resume()

    def _tell_outcome(self, answer: str, outcome: Outcome, tx: TxBuffer) -> None:
        if self._hooks.on_told:
            self._hooks.tell_outcome(Told(answer, outcome.text, self._channel, tx))

    def _committed(self, session: Session) -> None:
        if session.requeued:
            for delivery in session.requeued:
                self._broker.requeue(delivery.queue, delivery.entry, delivery.tag in session.failed)
            self._broker.returning.write_for(self._channel.connection)
        if not self._channel.ended:
            for delivery in session.settled + session.requeued:
                self._channel.consuming.free_slot(delivery)

    def _return_deliveries(self, session: Session) -> None:
        """Rolled back: the tags are unacked again on a living channel, the messages go home from a dead one.

        Those of a dead channel have failed, also those that it had acknowledged: its client may have died of the transaction.
        """
        deliveries = session.settled + session.requeued
        if self._channel.ended:
            for delivery in deliveries:
                if delivery.entry.state == ACQUIRED:
                    self._broker.requeue(delivery.queue, delivery.entry, failed=True)
        else:
            self._channel.consuming.ledger.restore(deliveries)

    def _rollback(self, args: tuple[Any, ...]) -> None:
        """Answered when every queue has let go of it: that is when ROLLBACK is applied."""
        self._require_active()
        session = self._to_end()
        offset = 0
        if session is not None:
            offset = self._abandon(session, "rolled back by the client")
            self._tx_id = self._broker.transactions.next_id()
        tx = session.tx if session is not None else None
        if offset:
            self._channel.answer_when_stable(offset, TX_ROLLBACK, lambda: self._tell_rolled_back(tx))
        else:
            self._tell_rolled_back(tx)

    def _tell_rolled_back(self, tx: TxBuffer | None) -> None:
        self._channel.send(TX_ROLLBACK_OK)
        if tx is not None:
            self._tell_outcome("tx.rollback-ok", Outcome.ROLLED_BACK, tx)

    def _abandon(self, session: Session, reason: str) -> int:
        """Roll it back. Returns the offset of its ROLLBACK; 0 if the log knows nothing of it, and its queues have let go."""
        self._session = None
        offset = self._broker.transactions.roll_back(session.tx, reason)
        self._broker.transactions.forget_id(session.tx.tx_id)
        self._return_deliveries(session)
        return offset

    def note_use(self) -> None:
        """The transaction is in use now: it is idle from here on."""
        self._used_ms = self._clock.running_ms

    def tick(self) -> None:
        """Roll back a transaction that its client does not use. What the broker itself holds up is not idle."""
        if self._channel.held:
            return
        timeout = self._broker.limits.tx_idle_timeout_ms
        if self._session is not None and self._clock.running_ms - self._used_ms >= timeout:
            tx_id = tx_id_text(self._session.tx.tx_id)
            raise PreconditionFailedError(f"transaction {tx_id} was idle for {timeout} ms and is rolled back")

    def end(self, reason: str) -> None:
        """The channel dies. A transaction that is being committed is decided without it."""
        if self._session is not None:
            self._abandon(self._session, f"its channel ended: {reason}")
        if self.active:
            self._broker.transactions.forget_id(self._tx_id)

    # -- outcome query --------------------------------------------------------------------------------------------

    def query(self, reply: Reply, body: bytes) -> None:
        """A question: never part of the transaction."""
        brings = PRECHECKS.get(body)
        if brings is not None:
            answer_precheck(self._broker, self, reply, brings=brings)
            return
        own = self._session.tx.tx_id if self._session is not None else self._tx_id
        own = own if self.active else 0
        self._told_id = own
        answer_query(self._broker, own, reply, body)

    @property
    def may_commit(self) -> bool:
        """True if the channel has transactions, or works on branches."""
        return self.active or self._channel.distributed.selected

    def would_refuse(self, *, brings: bool) -> str:
        """Why a commit would be refused now, "" if it would not; with ``brings`` more messages are to come before it."""
        session = self._session
        if session is None:
            return refusal(self._broker, None, brings=brings)
        named = self._name_taken(session) if session.tx.name else ""
        return refusal(self._broker, session.tx, brings=brings) or named
