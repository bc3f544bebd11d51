"""Bugs of compaction: messages that a broker writes again, so that old segments of its journal may go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.simulator.mutations.mutation import Bug, mutation
from understudy.broker.core.life.compaction import Compaction
from understudy.broker.core.queues.messages_again import MessagesAgain, Unsettled
from understudy.broker.core.queues.queue import Queue
from understudy.broker.log import again_note
from understudy.broker.log.again_note import AgainNote, AgainTarget, SettledNote
from understudy.broker.log.body_place import NOWHERE
from understudy.broker.log.return_record import NEVER
from understudy.broker.message import Message


@mutation("G1", "G2", "G4", "G5")
def again_counts_before_it_is_durable(bug: Bug) -> None:
    """Messages count at their new place as soon as they are written again, so that their old segments may go with that group."""
    real = MessagesAgain.note

    def note(self: MessagesAgain, again: AgainNote, places: Sequence[int]) -> None:
        real(self, again, places)
        bug.strike()

    def write(self: Compaction, messages: list[tuple[Message, list[AgainTarget]]]) -> None:
        real_write(self, messages)
        again = self._state.again
        again.settled(again.newest, self._state.queues)

    real_write = Compaction._write
    bug.replace(MessagesAgain, "note", note)
    bug.replace(Compaction, "_write", write)


@mutation("G1", "G2", "G4", "G5")
def gone_messages_are_not_named(bug: Bug) -> None:
    """A SETTLED note does not name the messages that have left since they were written again: a restart brings them back."""
    real = MessagesAgain.end_of

    def end_of(unsettled: Unsettled, queues: Mapping[int, Queue], applied: int) -> SettledNote:
        settled = real(unsettled, queues, applied)
        if settled.gone:
            bug.strike()
        return settled._replace(gone=[])

    bug.replace(MessagesAgain, "end_of", staticmethod(end_of))


@mutation("G1", "G2", "G4", "G5")
def settled_at_once(bug: Bug) -> None:
    """A note of messages written again is settled though records before it have had no effect yet."""
    real = Compaction._settle

    def settle(self: Compaction) -> bool:
        first = self._state.first_unresolved()
        for unsettled in self._state.again.unsettled.values():
            if unsettled.settled_after >= first:
                bug.strike()
                unsettled.settled_after = 0
        return real(self)

    bug.replace(Compaction, "_settle", settle)


@mutation("G1", "G2", "G3", "G4", "G5")
def again_includes_what_has_left(bug: Bug) -> None:
    """Messages are written again that have left their queue since the queue was looked through."""
    real = Compaction._take

    def take(
        self: Compaction,
        places: list[tuple[Queue, object]],
        limit: int,
        messages: list[tuple[Message, list[AgainTarget]]],
    ) -> int:
        for queue, entry in places:
            if queue.entries.get(entry.id) is None and entry.message.persistent and queue.durable:  # type: ignore[attr-defined]
                bug.strike()
                messages.append((entry.message, [AgainTarget(queue.id, entry.id, entry.deadline_ms)]))  # type: ignore[attr-defined]
        return real(self, places, limit, messages)  # type: ignore[arg-type]

    bug.replace(Compaction, "_take", take)


@mutation("G1", "G2", "G4", "G5")
def again_in_one_queue_alone(bug: Bug) -> None:
    """Of a message that is in several queues, one place alone is written again."""
    real = Compaction._write

    def write(self: Compaction, messages: list[tuple[Message, list[AgainTarget]]]) -> None:
        again: MessagesAgain = self._state.again
        real(self, [(message, targets[:1]) for message, targets in messages])
        for _, targets in messages:
            if len(targets) > 1:
                bug.strike()
                again.unsettled[again.newest].targets.extend((target, NOWHERE) for target in targets[1:])

    bug.replace(Compaction, "_write", write)


@mutation("G1", "G5")
def again_without_a_deadline(bug: Bug) -> None:
    """Messages that are written again live for ever."""
    real = AgainNote.encode

    def encode(self: AgainNote) -> bytes:
        messages = []
        for message, targets in self.messages:
            if any(target.deadline_ms for target in targets):
                bug.strike()
            messages.append((message, [target._replace(deadline_ms=0) for target in targets]))
        return real(self._replace(messages=messages))

    bug.replace(again_note.AgainNote, "encode", encode)


@mutation("G1", "G5", "returns")
def again_without_counts(bug: Bug) -> None:
    """Of messages that are written again, a restart no longer knows how often they have failed."""
    real = AgainNote.encode

    def encode(self: AgainNote) -> bytes:
        messages = []
        for message, targets in self.messages:
            if any(target.returned != NEVER for target in targets):
                bug.strike()
            messages.append((message, [target._replace(returned=NEVER) for target in targets]))
        return real(self._replace(messages=messages))

    bug.replace(again_note.AgainNote, "encode", encode)


@mutation("G1", "G2", "AssertionError")
def again_while_something_waits(bug: Bug) -> None:
    """Messages are written again while records are stable and not applied: a restart that applies them is further than the note."""
    real = Compaction.step

    def step(self: Compaction) -> bool:
        log = self._state.log
        if log.applied < min(log.stable, log.end):
            bug.strike()
        stable, once = log.stable, log.once_stable
        log.stable, log.once_stable = min(stable, log.applied), 0
        try:
            return real(self)
        finally:
            log.stable, log.once_stable = stable, once

    bug.replace(Compaction, "step", step)
