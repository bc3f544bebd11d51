"""BrokerState: what one broker holds. Records change it, and nothing else.

A record is taken (`RecordTaking`), and waits in ``Log.pending`` until the stable position has passed; then it is applied
(`Applying`; `StateTopology` for queues, exchanges and bindings). All brokers apply by the same functions, in log order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Mapping
from typing import Any, Final

from understudy.broker.core.queues.arrival import Arrival
from understudy.broker.core.queues.id_windows import IdWindows
from understudy.broker.core.queues.messages_again import MessagesAgain
from understudy.broker.core.queues.paging import PAGING, Paging, PagingLimits
from understudy.broker.core.queues.put_off import PutOff
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.queues.queue_arguments import FROM_FORMAT_5
from understudy.broker.core.state.applying import Applying
from understudy.broker.core.state.record_taking import RecordTaking
from understudy.broker.core.state.state_topology import StateTopology
from understudy.broker.core.topology.policies import Policies
from understudy.broker.log import record
from understudy.broker.log.body_place import AT_OFFSET, NOWHERE, before_restart
from understudy.broker.log.handed_out_note import HandedOutNote
from understudy.broker.log.live_offsets import LiveOffsets
from understudy.broker.log.log import Log
from understudy.broker.log.paged_bodies import PagedBodies
from understudy.broker.message import Spill
from understudy.broker.transactions.tx_buffer import TxBuffer

TX_MEMORY_BYTES: Final = 16 << 20


class BrokerState:
    """Log, queues and transactions of one broker, and the three classes that change them.

    Attributes:
        applying: what stable records do.
        topology: which queues, exchanges and bindings there are.
        taking: decodes records.
        paging: lets bodies leave the memory.
        handed_out: what the journal says of a clean stop; None once this broker has led, or if it says nothing.
        put_off: what is left to do for records that are applied.
        purges: those that have not come to their records, which hold messages that are in no line of a queue. This and the next
            four are of a broker that leads.
        scheduled: queues that got something to hand out since the last dispatch.
        arrived: messages with a deadline that came into queues since `MessageExpiry.note_arrivals`.
        overfull: queues that hold more than they may.
        withhold: queues that withhold something since `Delays.look`.
        again: notes of messages that the journal holds twice for a while.
        id_windows: ids of messages that came, where duplicates are dropped.
    """

    def __init__(
        self,
        kept_bytes: int = 64 << 20,
        spill: Spill | None = None,
        tx_memory_bytes: int = TX_MEMORY_BYTES,
        policies: Policies | None = None,
        bodies: PagedBodies | None = None,
        paging: PagingLimits = PAGING,
    ) -> None:
        self.log = Log(kept_bytes)
        self.queues: dict[int, Queue] = {}
        self.transactions: dict[int, TxBuffer] = {}
        self.live = LiveOffsets()
        self.again = MessagesAgain()
        self.handed_out: HandedOutNote | None = None
        self.id_windows = IdWindows()
        self.put_off = PutOff()
        self.purges: deque[Any] = deque()
        self.paging = Paging(self, bodies, paging)
        self.scheduled: list[Queue] = []
        self.arrived: list[Arrival] = []
        self.overfull: list[Queue] = []
        self.withhold: list[Queue] = []
        self.applying = Applying(self)
        self.topology = StateTopology(self, self.applying, policies)
        self.taking = RecordTaking(self, self.applying, self.topology, spill, tx_memory_bytes)

    # -- what it is asked for -------------------------------------------------------------------------------------

    def schedule(self, queue: Queue) -> None:
        """``queue`` may have something for its consumers."""
        if queue.consumers and not queue.scheduled:
            queue.scheduled = True
            self.scheduled.append(queue)

    def take_handed_out(self, note: HandedOutNote) -> None:
        """The journal says this of a clean stop."""
        self.handed_out = note

    def handed_out_before(self, epoch: int) -> Mapping[int, int]:
        """By queue id: what was never handed out before ``epoch``, see `HandedOutNote.below`; empty if that is not known."""
        note, self.handed_out = self.handed_out, None
        if note is None or note.epoch + 1 != epoch or note.end != self.log.end:
            return {}
        return note.below

    def prepared_branches(self) -> list[TxBuffer]:
        """Branches whose DTX_PREPARE is applied and whose decision is not."""
        applied = self.log.applied
        return [tx for tx in self.transactions.values() if tx.branch is not None and tx.branch.offset <= applied]

    def takes_in_doubt(self, queue: Queue) -> bool:
        """True if a prepared branch that is not being committed has taken a message of ``queue``: it may return there."""
        return queue.acquired > 0 and any(
            queue_id == queue.id and any(entry_id in queue.entries for entry_id in ids)
            for tx in self.transactions.values()
            if tx.branch is not None and tx.prepare is None
            for _, message, groups in tx.events
            if message is None
            for queue_id, ids in groups
        )

    @property
    def record_format(self) -> int:
        """The format of the log in which what is held here can be told to others.

        A branch, or that one was completed, takes 2; a message in a transaction that lives from its commit on takes 3; a body in
        parts takes 4; a queue that was declared with dead letters, a limit or priorities takes 5, and so does an exchange that
        delays, and a message that has moved, comes late, or came back and was counted. An exchange bound to another takes 6.
        A policy alone takes nothing: what it asks for waits until all brokers of the group read it.
        """
        if self.topology.image.onward or any(vhost.onward for vhost in self.topology.registry.vhosts.values()):
            return record.EXCHANGE_BINDINGS_VERSION
        if (
            self.applying.has_moved
            or self.topology.registry.delaying
            or self.id_windows.exchanges
            or any(map(_takes_format_5, self.queues.values()))
        ):
            return record.MOVES_VERSION
        if any(tx.parts is not None for tx in self.transactions.values()):
            return record.PARTS_VERSION
        if any(tx.timed for tx in self.transactions.values()):
            return record.TIMED_VERSION
        branches = self.applying.completions or any(tx.branch is not None for tx in self.transactions.values())
        return record.BRANCHES_VERSION if branches else record.OLDEST_FORMAT_VERSION

    def holds_messages(self) -> bool:
        """True if there is a message in any queue, in a transaction, or on its way there."""
        return bool(self.transactions or self.log.pending) or any(queue.entries for queue in self.queues.values())

    def drop_transactions(self, kept: Container[int] = ()) -> None:
        """Forget all transaction content but of ``kept`` (a plugin brings it again)."""
        for tx in list(self.transactions.values()):
            if tx.tx_id not in kept:
                self.applying.discard(tx)

    def leave_log(self, cut: int) -> None:
        """The CUT at ``cut`` of the journal ends the log, and another begins: what is held stands in the journal before it."""
        start = self.log.start
        for queue in self.queues.values():
            if queue.live is not self.live:
                continue
            for page in queue.entries.packed():
                page.leave_log(cut, start)
            for entry in queue.entries.objects():
                message = entry.message
                if message.place == AT_OFFSET:
                    message.put_at(before_restart(cut, message.offset) if message.offset > start else NOWHERE)

    def put_before_log(self) -> None:
        """The log begins anew: what is held stands before it in the journal, whatever offset it had in the old one."""
        self.put_off.finish()  # its messages would be counted at places that are not theirs any more
        start = self.log.start
        for queue in self.queues.values():
            for page in queue.entries.packed():
                page.stand_at(start)
            for entry in queue.entries.objects():
                if entry.message.offset > start:
                    entry.message.stand_at(start)
        self.live.stand_at(start)
        self.again.log_begins_anew()

    def oldest_live_offset(self) -> int:
        """No record before this offset is needed by a queue, a transaction or the tail that is not applied."""
        return self.again.oldest_needed(min(self.live.oldest(self.log.end), self.first_unresolved()))

    def first_unresolved(self) -> int:
        """The first record that has not had its effect: it is not applied, or of a transaction that is not over."""
        opened = [tx.first_offset or tx.closing_offset for tx in self.transactions.values()]
        return min([self.log.applied + 1, *[offset for offset in opened if offset]])


def _takes_format_5(queue: Queue) -> bool:
    """True if records of format 5 may be written for ``queue``, or what it knows of messages came by one."""
    return queue.returns is not None or not FROM_FORMAT_5.isdisjoint(queue.arguments)
