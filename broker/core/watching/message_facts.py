"""MessageFacts: what ``[feed] detail = "messages"`` tells: deliveries, requeues, publisher confirms, and told outcomes.

These facts are in no journal: a journal says what is durable, not what a client was told. An audit needs both. Each fact joins the
journal's events:

* ``deliver`` and ``requeue`` by queue id and replication id;
* ``confirm`` by offsets: one fact names consecutive publishes of one channel, by the offsets of their ENQUEUE records;
* ``told`` by transaction, and by the offset of its PREPARE or ROLLBACK.

A publisher's tag knows no queue and no id. The offset of its record does, since the ENQUEUE events at that offset name them.
Publishes of one read have consecutive offsets: a turn costs about one ``confirm`` a channel, and never more than one a message.

Nothing of this is asked for at detail "roles": the lists of listeners in `Broker` are empty then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from understudy.broker.core.queues.entry import Entry
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.watching.facts import Facts, Value
from understudy.broker.core.watching.told import Confirmed, Told, ToldChannel
from understudy.broker.transactions.outcome_query import tx_id_text
from understudy.broker.transactions.tx_buffer import TxBuffer

if TYPE_CHECKING:
    from understudy.broker.core.watching.port import WatchedPort


class Run(NamedTuple):
    """Consecutive tags whose records are consecutive as well; or consecutive tags that brought nothing to the log."""

    tag: int
    first: int
    last: int
    messages: int


def runs(confirmed: Iterable[Confirmed]) -> Iterator[Run]:
    """``confirmed``, in the order of its tags, as the fewest runs; ``tag`` is the last of each."""
    run: Run | None = None
    for tag, offset in confirmed:
        if run is not None:
            if tag == run.tag + 1 and offset == (run.last + 1 if run.last else 0):
                run = Run(tag, run.first, offset, run.messages + 1)
                continue
            yield run
        run = Run(tag, offset, offset, 1)
    if run is not None:
        yield run


class MessageFacts:
    """Listens to one core.

    Args:
        broker: of that core.
        facts: where it is told.
    """

    def __init__(self, broker: WatchedPort, facts: Facts) -> None:
        self._facts = facts
        self._log = broker.log
        broker.hooks.on_delivered.append(self._delivered)
        broker.hooks.on_requeued.append(self._requeued)
        broker.hooks.on_confirmed.append(self._confirmed)
        broker.hooks.on_told.append(self._told)

    def _delivered(self, queue: Queue, entry: Entry, again: bool) -> None:
        self._facts.tell(
            "deliver",
            queue=queue.name,
            id=entry.id,
            redelivered=again,
            vhost=queue.vhost,
            queue_id=queue.id,
            logged=queue.logged and queue.durable and entry.message.persistent,
            priority=queue.priority_of(entry.message),
        )

    def _requeued(self, queue: Queue, entry: Entry) -> None:
        self._facts.tell(
            "requeue",
            queue=queue.name,
            id=entry.id,
            vhost=queue.vhost,
            queue_id=queue.id,
            priority=queue.priority_of(entry.message),
        )

    def _confirmed(self, channel: ToldChannel, confirmed: list[Confirmed]) -> None:
        client, stable = channel.connection.name, self._log.stable
        for run in runs(confirmed):
            self._facts.tell(
                "confirm",
                client=client,
                channel=channel.number,
                tag=run.tag,
                first_offset=run.first,
                last_offset=run.last,
                count=run.messages,
                stable=stable,
            )

    def _told(self, told: Told) -> None:
        tx = told.tx
        prepare = tx.prepare if tx is not None else None
        self._facts.tell(
            "told",
            answer=told.answer,
            outcome=told.outcome,
            tx=self._facts.tx_text(tx_id_text(tx.tx_id)) if tx is not None else "",
            name=told.name or (tx.name if tx is not None else ""),
            csn=prepare.csn if prepare is not None else 0,
            decided_at=tx.outcome_offset if tx is not None else 0,
            prepare_offset=_prepare_offset(tx) if tx is not None else 0,
            client=told.channel.connection.name if told.channel is not None else "",
            channel=told.channel.number if told.channel is not None else 0,
            stable=self._log.stable,
            **_of_branches(told),
        )


def _of_branches(told: Told) -> dict[str, Value]:
    """The facts of a branch that is not there, or of a list of them."""
    return {"vhost": told.vhost, "known_at": told.known_at, "branches": told.branches} if told.vhost else {}


def _prepare_offset(tx: TxBuffer) -> int:
    """Of PREPARE, else of DTX_PREPARE; 0 if there is neither."""
    return tx.prepare_offset or (tx.branch.offset if tx.branch is not None else 0)
