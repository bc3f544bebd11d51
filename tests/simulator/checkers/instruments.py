"""Hooks the checkers into a node's core, without a word about simulation in the product.

Queues tell what comes and goes through overrides of some methods of `Queue`, in force while a cluster runs. Which node a
queue belongs to is found by the one object that all queues of a node share: its counter of live offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING
from zlib import crc32

from tests.simulator.checkers.reference import number_of, number_of_return
from understudy.broker.core.life.recovered_rows import RecoveredRows
from understudy.broker.core.life.recovery import Recovery
from understudy.broker.core.queues.packed_page import PackedPage
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.state import BrokerState
from understudy.broker.core.state.record_taking import RecordTaking
from understudy.broker.log import frame, record
from understudy.broker.log.again_note import AgainNote
from understudy.broker.log.kept_log import Batch
from understudy.broker.log.live_offsets import LiveOffsets
from understudy.broker.log.paged_bodies import PagedBodies
from understudy.broker.log.return_record import Returned
from understudy.broker.log.row_batch import Rows, message_of
from understudy.broker.message import Message
from understudy.broker.transactions.tx_buffer import TxBuffer

if TYPE_CHECKING:
    from tests.simulator.checkers import Checkers
    from tests.simulator.sim_node import SimNode


class WatchedLive(LiveOffsets):
    """A node's live-offset counter; here it also carries what the checkers keep of one core.

    Attributes:
        kept, all: digests of what the queues hold (`checkers.reference`).
        durable_offset, fresh, part: as they were when the node was looked at last.
        doubts_at: where in the log the branches that it lists were compared last.
        bodies: a checksum of the body of each message, by queue and id: it may have left the memory when the message goes.
        bases: how many of a catch-up it has taken, in its recovery too.
        again: messages come that were written again: older ones, in no order.
        hole_at: where the log that it received last had places whose transient records the sender had not kept.
        refilled_at: what a refill has brought may be of any place in the log up to here.
    """

    __slots__ = (
        "again",
        "all",
        "bases",
        "bodies",
        "doubts_at",
        "durable_offset",
        "fresh",
        "hole_at",
        "kept",
        "node",
        "part",
        "refilled_at",
    )

    def __init__(self, node: SimNode) -> None:
        super().__init__()
        self.node = node
        self.kept = 0
        self.all = 0
        self.durable_offset = 0
        self.fresh = True
        self.refilled_at = 0
        self.hole_at = 0
        self.doubts_at = -1
        self.part = False
        self.again = False
        self.bases = 0
        self.bodies: dict[tuple[int, int], int] = {}

    def flip(self, queue: Queue, entry_id: int, message: Message, deadline_ms: int, coming: int | None = None) -> None:
        """A message came or went. ``coming``: the checksum of its body, if that is known."""
        place = queue.id, entry_id
        body = self.bodies.pop(place, None)
        if body is None:
            body = self.bodies[place] = self._body(message) if coming is None else coming
        number = number_of(queue.id, entry_id, message, deadline_ms, body=body)
        self.all ^= number
        if message.persistent and queue.durable:
            self.kept ^= number

    def _body(self, message: Message) -> int:
        """The checksum of a body that comes into a queue; what has moved may share that of a message whose body is paged out."""
        if message.body.__class__ is PagedBodies:
            recovered: int | None = vars(self.node.node.state.taking).get("left_bodies", {}).get(message.offset)
            if recovered is not None and not message.moved and not message.place:
                return recovered
            for queue in self.node.node.state.queues.values():
                for entry in queue.entries.values():
                    if entry.message.body is message.body and _place(entry.message) == _place(message):
                        return self.bodies[queue.id, entry.id]
        return crc32(message.content())

    def flip_return(self, queue: Queue, entry_id: int) -> None:
        """Begin or end to count the knowledge of ``queue`` about a message that is there."""
        number = number_of_return(queue.id, entry_id, queue.returns.of(entry_id)) if queue.returns is not None else 0
        if number:
            self.all ^= number
            if queue.entries[entry_id].message.persistent and queue.durable:
                self.kept ^= number


def _place(message: Message) -> tuple[int, int]:
    return message.offset, message.place


def watch_core(checkers: Checkers, node: SimNode) -> None:
    """Watch a new core of ``node``, which has been recovered."""
    state = node.node.state
    broker = node.node.broker
    log = state.log
    lead = broker.lead
    apply_up_to, close_batch, receive_batch = log.apply_up_to, log.close_batch, state.taking.receive_batch

    def decided(tx: TxBuffer) -> None:
        checkers.replicas.decided(node, tx)

    def stable(offset: int, *most: int) -> bool:
        if offset > log.stable and state.applying.deciding and broker.role.leading:
            checkers.chosen.stable_at(node, offset)
        return apply_up_to(offset, *most)

    def closed() -> Batch | None:
        batch = close_batch()
        if batch is not None:
            checkers.reference.writes_at(broker.role.epoch, node.fair_time.ms)
            checkers.chosen.batch(node, bytes(batch.frame))
        return batch

    def received(data: bytes) -> None:
        octets = bytes(data)
        checkers.chosen.batch(node, octets)
        receive_batch(data)
        if state.taking.holes and any(
            kind == record.HOLE for kind, _, _ in record.records_of(octets, frame.BATCH_HEADER_BYTES)
        ):
            node.watched.hole_at = log.end

    def leads(epoch: int, name: str, transients_lost: bool) -> int:
        checkers.levels.holds_the_log_alone(node, "begins to lead")
        return lead(epoch, name, transients_lost)

    broker.lead = leads  # type: ignore[method-assign]
    state.applying.on_applied_tx.insert(0, decided)
    log.apply_up_to = stable  # type: ignore[method-assign, assignment]
    log.close_batch = closed  # type: ignore[method-assign]
    state.taking.receive_batch = received  # type: ignore[method-assign]
    broker.hooks.on_delivered.append(lambda queue, entry, redelivered: checkers.returns.handed_out(node, queue, entry))
    broker.hooks.on_delivered.append(
        lambda queue, entry, redelivered: checkers.order.handed_out(node, queue, entry, redelivered)
    )
    broker.hooks.on_delivered.append(lambda queue, entry, _: checkers.served.handed_out(node, queue, entry))


_put_before_log, _take_again = BrokerState.put_before_log, Recovery._take_again
_enqueue, _remove, _clear, _take_over = Queue.enqueue, Queue.remove, Queue.clear, Queue.take_over
_leave = Queue.leave
_take_enqueue_alone = RecordTaking._take_enqueue_alone
_take_rows, _extend = RecoveredRows.take, Queue._extend
_know, _forget_counts = Queue.know, Queue.forget_counts


def _watched_enqueue(self: Queue, entry_id: int, message: Message, deadline_ms: int) -> None:
    if entry_id not in self.entries:
        _comes(self, entry_id, message, deadline_ms)
    _enqueue(self, entry_id, message, deadline_ms)


def _comes(queue: Queue, entry_id: int, message: Message, deadline_ms: int) -> None:
    live = queue.live
    if isinstance(live, WatchedLive) and queue.logged:
        live.flip(queue, entry_id, message, deadline_ms)
        node = live.node
        if not live.again:
            node.checkers.order.enqueued(node, queue, entry_id, message.persistent and queue.durable)
        if deadline_ms:
            node.checkers.order.arrived(node, queue, entry_id)


def _watched_extend(self: Queue, page: PackedPage, rows: Rows, begin: int, end: int) -> None:
    """Messages come as rows of a packed page, in a recovery."""
    live = self.live
    if isinstance(live, WatchedLive):
        live.node.world.happened["messages are recovered as rows"] += end - begin
        bodies = live.node.node.state.paging.bodies
        assert bodies is not None
        for row in islice(rows.rows(), begin, end):
            _comes(self, row.entry_id, message_of(row, bodies), row.deadline_ms)
    _extend(self, page, rows, begin, end)


def _watched_remove(self: Queue, entry_id: int) -> bool:
    if not _is_leaving(self, entry_id):
        _flip_out(self, [entry_id])
    return _remove(self, entry_id)


def _watched_leave(self: Queue, ids: Sequence[int]) -> Iterator[None]:
    _flip_out(self, ids)
    if isinstance(self.live, WatchedLive):
        self.live.node.world.happened["dequeue in slices"] += 1
    return _leave(self, ids)


def _watched_clear(self: Queue) -> Iterator[None]:
    _flip_out(self, [entry_id for entry_id in self.entries if not _is_leaving(self, entry_id)])
    return _clear(self)


def _is_leaving(queue: Queue, entry_id: int) -> bool:
    """True if the message has been counted as gone, and is still in the index."""
    return any(entry_id in leaving.ids[leaving.at :] for leaving in queue.leaving)


def _flip_out(queue: Queue, ids: Iterable[int]) -> None:
    live = queue.live
    if not isinstance(live, WatchedLive) or not queue.logged:
        return
    for entry_id in ids:
        entry = queue.entries.get(entry_id)
        if entry is not None:
            live.flip(queue, entry_id, entry.message, entry.deadline_ms)
            live.flip_return(queue, entry_id)


def _watched_know(self: Queue, entry_id: int, returned: Returned) -> bool:
    live = self.live
    watched = isinstance(live, WatchedLive) and self.logged and entry_id in self.entries
    if watched:
        live.flip_return(self, entry_id)  # type: ignore[attr-defined]
    news = _know(self, entry_id, returned)
    if watched:
        live.flip_return(self, entry_id)  # type: ignore[attr-defined]
    return news


def _watched_forget_counts(self: Queue) -> None:
    live = self.live
    if not isinstance(live, WatchedLive) or not self.logged:
        _forget_counts(self)
        return
    for entry_id in self.entries:
        live.flip_return(self, entry_id)
    _forget_counts(self)
    for entry_id in self.entries:
        live.flip_return(self, entry_id)


def _watched_take_over(self: Queue, place: Queue) -> None:
    live = self.live
    place.settle()
    if isinstance(live, WatchedLive):
        for entry_id, entry in place.entries.items():
            body = live.bodies[place.id, entry_id]
            live.flip(place, entry_id, entry.message, entry.deadline_ms)
            live.flip(self, entry_id, entry.message, entry.deadline_ms, body)
            live.flip_return(place, entry_id)
    known = list(place.returns.known) if place.returns is not None else []
    _take_over(self, place)
    if isinstance(live, WatchedLive):
        for entry_id in known:  # what becomes known now has been counted
            live.flip_return(self, entry_id)


def _watch_taken_over(queue: Queue, ended: Queue) -> None:
    """Packed pages are taken over as they are; what is no object is not put into ``queue`` by `Queue.enqueue`."""
    live, before = queue.live, ended.live
    if isinstance(live, WatchedLive) and queue.logged:
        for page in ended.entries.packed():
            for entry_id, entry in page.items():
                body = before.bodies[ended.id, entry_id] if isinstance(before, WatchedLive) else None
                live.flip(queue, entry_id, entry.message, entry.deadline_ms, body)


def _watched_take_enqueue_alone(
    self: RecordTaking, buf: bytes, at: int, end: int, offset: int, transient: bool
) -> None:
    """A recovery leaves a body in the journal: its checksum is kept, by offset."""
    left: dict[int, int] = vars(self).setdefault("left_bodies", {})
    left[offset] = crc32(record.decode_enqueue(buf, at + 5, end)[1].content())
    _take_enqueue_alone(self, buf, at, end, offset, transient)


def _watched_take_rows(self: RecoveredRows, header: frame.BatchHeader, batch: bytes) -> bool:
    """Likewise, of all records of a batch."""
    taken = _take_rows(self, header, batch)
    if taken:
        left: dict[int, int] = vars(self._state.taking).setdefault("left_bodies", {})
        records = record.records_of(batch, frame.BATCH_HEADER_BYTES)
        for offset, (kind, at, end) in enumerate(records, header.first_offset):
            if kind == record.ENQUEUE:
                left[offset] = crc32(record.decode_enqueue(batch, at, end)[1].content())
    return taken


def _watched_put_before_log(self: BrokerState) -> None:
    live = self.live
    if isinstance(live, WatchedLive):
        live.bases += 1
    _put_before_log(self)


def _watched_take_again(self: Recovery, again: AgainNote) -> None:
    live = self._state.live
    if isinstance(live, WatchedLive):
        live.again = True
    _take_again(self, again)
    if isinstance(live, WatchedLive):
        live.again = False


@contextmanager
def watching_queues() -> Iterator[None]:
    """Watch every queue of every simulated node while this lasts."""
    BrokerState.put_before_log = _watched_put_before_log  # type: ignore[method-assign]
    Recovery._take_again = _watched_take_again  # type: ignore[method-assign]
    Queue.enqueue, Queue.remove = _watched_enqueue, _watched_remove  # type: ignore[method-assign]
    Queue.clear, Queue.take_over = _watched_clear, _watched_take_over  # type: ignore[method-assign]
    continue_from = Queue.continue_from  # a mutation, perhaps

    def watched_continue_from(self: Queue, ended: Queue) -> None:
        _watch_taken_over(self, ended)
        continue_from(self, ended)

    Queue.continue_from = watched_continue_from  # type: ignore[method-assign]
    Queue.leave = _watched_leave  # type: ignore[method-assign]
    RecordTaking._take_enqueue_alone = _watched_take_enqueue_alone  # type: ignore[method-assign]
    RecoveredRows.take, Queue._extend = _watched_take_rows, _watched_extend  # type: ignore[method-assign]
    Queue.know, Queue.forget_counts = _watched_know, _watched_forget_counts  # type: ignore[method-assign]
    try:
        yield
    finally:
        Queue.enqueue, Queue.remove = _enqueue, _remove  # type: ignore[method-assign]
        Queue.clear, Queue.take_over = _clear, _take_over  # type: ignore[method-assign]
        Queue.continue_from = continue_from  # type: ignore[method-assign]
        Queue.leave = _leave  # type: ignore[method-assign]
        RecordTaking._take_enqueue_alone = _take_enqueue_alone  # type: ignore[method-assign]
        RecoveredRows.take, Queue._extend = _take_rows, _extend  # type: ignore[method-assign]
        Queue.know, Queue.forget_counts = _know, _forget_counts  # type: ignore[method-assign]
        BrokerState.put_before_log = _put_before_log  # type: ignore[method-assign]
        Recovery._take_again = _take_again  # type: ignore[method-assign]
