"""Bugs of publisher deduplication: ids that are forgotten, remembered too early, or not heeded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from tests.simulator.mutations.mutation import Bug, mutation
from understudy.broker.core.broker import Broker
from understudy.broker.core.clients.publishing import Publishing
from understudy.broker.core.life.meta import Meta
from understudy.broker.core.moving.deduplicating import Deduplicating
from understudy.broker.core.queues.id_window import IdWindow
from understudy.broker.core.queues.id_windows import IdWindows
from understudy.broker.core.queues.queue import Queue
from understudy.broker.core.state import BrokerState
from understudy.broker.core.state.applying import Applying
from understudy.broker.log.record import Group
from understudy.broker.message import Message
from understudy.broker.transactions.tx_buffer import TxBuffer


@mutation("G1", "G2")
def a_new_primary_has_forgotten_ids(bug: Bug) -> None:
    """Ids are in the memory of the primary that was told them, and end with it."""
    real = Broker.lead

    def lead(self: Broker, epoch: int, name: str, transients_lost: bool) -> int:
        windows = [queue.window for queue in self.state.queues.values() if queue.window is not None]
        for window in (*windows, *self.state.id_windows.exchanges.values()):
            if window.noted:
                bug.strike()
            window.noted.clear()
        return real(self, epoch, name, transients_lost)

    bug.replace(Broker, "lead", lead)


@mutation("G1", "G2")
def a_catch_up_brings_no_ids(bug: Bug) -> None:
    """A broker that is brought up gets the messages that are there, and no ids of those that were."""
    real = vars(Meta)["of"].__func__

    def of(cls: type[Meta], state: BrokerState, *, whole_log: bool = False) -> Meta:
        meta: Meta = real(cls, state, whole_log=whole_log)
        if whole_log or not meta.message_ids:
            return meta
        bug.strike()
        return attrs.evolve(meta, message_ids=b"")

    bug.replace(Meta, "of", classmethod(of))


@mutation("G1", "G2")
def a_checkpoint_states_no_ids(bug: Bug) -> None:
    """Ids end with the segment in which their messages stood, when a journal drops it."""
    real = vars(Meta)["of"].__func__

    def of(cls: type[Meta], state: BrokerState, *, whole_log: bool = False) -> Meta:
        meta: Meta = real(cls, state, whole_log=whole_log)
        if not whole_log or not meta.message_ids:
            return meta
        bug.strike()
        return attrs.evolve(meta, message_ids=b"")

    bug.replace(Meta, "of", classmethod(of))


@mutation("G1", "G2")
def an_id_goes_with_its_message(bug: Bug) -> None:
    """A message that is acknowledged is forgotten, and what its client repeats is taken for new."""
    real = Applying.apply_dequeue

    def apply_dequeue(self: Applying, groups: list[Group]) -> None:
        for queue_id, ids in groups:
            queue = self.queues.get(queue_id)
            window = queue.window if queue is not None else None
            for entry in [queue.entries.get(entry_id) for entry_id in ids] if queue is not None else ():
                octets = window.rule.id_of(entry.message.properties) if window is not None and entry else None
                if window is not None and octets is not None and octets in window.noted:
                    bug.strike()
                    del window.noted[octets]
        real(self, groups)

    bug.replace(Applying, "apply_dequeue", apply_dequeue)


@mutation("G1")
def what_is_on_its_way_is_not_seen(bug: Bug) -> None:
    """An id counts when its message is applied: a repetition that comes before that is taken for new."""
    real = IdWindow.comes

    def comes(self: IdWindow, message_id: bytes, applied: int) -> bool:
        if real(self, message_id, applied):
            bug.strike()
        return False

    bug.replace(IdWindow, "comes", comes)


@mutation("G1")
def transactions_do_not_heed_each_other(bug: Bug) -> None:
    """A transaction is judged when its client publishes, and commits whatever others have published since."""
    real = Deduplicating.conflict

    def conflict(self: Deduplicating, tx: TxBuffer) -> str:
        if real(self, tx):
            bug.strike()
        return ""

    bug.replace(Deduplicating, "conflict", conflict)


@mutation("G4", "G8")
def an_id_counts_before_the_commit(bug: Bug) -> None:
    """A publish in a transaction counts at once; if that is rolled back, what its client repeats is dropped."""
    real = Deduplicating.within

    def within(self: Deduplicating, tx: TxBuffer, queues: list[Queue], message: Message) -> list[Queue]:
        fresh = real(self, tx, queues, message)
        for window, octets in tx.ids or ():
            if octets not in window.noted:
                bug.strike()
                window.noted[octets] = (self._broker.log.applied, 0, False)
        tx.ids = None  # or its commit would be refused
        return fresh

    bug.replace(Deduplicating, "within", within)


@mutation("G4")
def a_duplicate_is_confirmed_at_once(bug: Bug) -> None:
    """A repetition is confirmed while the first is not on the disks that it must be on."""
    real = Publishing.confirm

    def confirm(self: Publishing, offset: int, enqueued_at: int) -> None:
        if enqueued_at or not self.confirming or offset <= self._broker.log.applied:
            real(self, offset, enqueued_at)
            return
        bug.strike()
        self._next_tag += 1
        self._confirmed(self._next_tag)

    bug.replace(Publishing, "confirm", confirm)


@mutation("G1", "G2")
def ids_of_commits_are_not_noted(bug: Bug) -> None:
    """Only publishes outside of transactions leave their ids behind."""
    real = IdWindows.note

    def note(
        self: IdWindows, queues: Any, offset: int, targets: Sequence[Any], message: Message, time_ms: int | None = None
    ) -> None:
        if time_ms is None:
            real(self, queues, offset, list(targets), message)
        else:
            bug.strike()

    bug.replace(IdWindows, "note", note)
