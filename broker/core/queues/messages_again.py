"""MessagesAgain: the AGAIN notes of one broker's journal that are not settled, and what notes of either kind do to the queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import attrs

from understudy.broker.core.queues.queue import Queue
from understudy.broker.log.again_note import AgainNote, AgainTarget, SettledNote
from understudy.broker.log.return_record import NEVER, Returned
from understudy.broker.message import Message


@attrs.define
class Unsettled:
    """An AGAIN note that is not settled.

    Attributes:
        number: of the note.
        place: the offset at which its messages stand when it is settled; 0: they stay where they are.
        needs: segments with records behind this offset stay until it is settled.
        settled_after: see `AgainNote`.
        targets: its messages' places in queues, each with the place of the message in the journal.
        ending: its SETTLED note is written, and perhaps not durable.
    """

    number: int
    place: int
    needs: int
    settled_after: int
    targets: list[tuple[AgainTarget, int]]
    ending: bool = False

    def end(self) -> None:
        """Its SETTLED note is being written."""
        self.ending = True


class MessagesAgain:
    """Of one core.

    Attributes:
        unsettled: by number, oldest first.
        newest: the highest number that the journal has seen.
    """

    __slots__ = ("newest", "unsettled")

    def __init__(self) -> None:
        self.unsettled: dict[int, Unsettled] = {}
        self.newest = 0

    def note(self, again: AgainNote, places: Sequence[int]) -> None:
        """``again`` stands in the journal, and its messages at ``places`` of it (`body_place`)."""
        self.newest = max(self.newest, again.number)
        placed = zip(again.messages, places, strict=True)
        targets = [(target, place) for (_, targets), place in placed for target in targets]
        self.unsettled[again.number] = Unsettled(again.number, again.applied, again.needs, again.settled_after, targets)

    def continue_from(self, ended: MessagesAgain) -> None:
        """Another core of the same journal goes on: a SETTLED note of ``ended`` that it has not heard of is written again."""
        self.newest = ended.newest
        self.unsettled = {number: attrs.evolve(each, ending=False) for number, each in ended.unsettled.items()}

    def log_ends(self, end: int) -> None:
        """Let no note wait for what stood behind ``end`` when it was written: that is gone, or never was in the log."""
        for each in self.unsettled.values():
            each.settled_after = min(each.settled_after, end)

    def log_begins_anew(self) -> None:
        """Offsets of before mean nothing any more. What stood before the notes has had its effect, or never will."""
        for each in self.unsettled.values():
            each.place = each.needs = each.settled_after = 0

    def oldest_needed(self, end: int) -> int:
        """The oldest offset that a note needs which is not settled; at most ``end``."""
        return min([end, *[each.needs + 1 for each in self.unsettled.values()]])

    @staticmethod
    def end_of(unsettled: Unsettled, queues: Mapping[int, Queue], applied: int) -> SettledNote:
        """The note that settles ``unsettled`` now."""
        gone: list[tuple[int, int]] = []
        known: list[tuple[int, int, Returned]] = []
        for (queue_id, entry_id, _, before), _ in unsettled.targets:
            queue = queues.get(queue_id)
            if queue is None or entry_id not in queue.entries:
                gone.append((queue_id, entry_id))
            elif (now := _known(queue, entry_id)) != before:
                known.append((queue_id, entry_id, now))
        return SettledNote(unsettled.number, applied, gone, known)

    def settled(self, number: int, queues: Mapping[int, Queue]) -> None:
        """The SETTLED note of that number is durable: the messages stand at their new place."""
        unsettled = self.unsettled.pop(number, None)
        if unsettled is None or not unsettled.place:
            return
        place = unsettled.place
        moved: dict[int, tuple[Message, Message]] = {}
        for (queue_id, entry_id, _, _), body_place in unsettled.targets:
            queue = queues.get(queue_id)
            if queue is not None:
                queue.stand_again(entry_id, place, body_place, partial(_moved, moved, place, body_place))


def _moved(moved: dict[int, tuple[Message, Message]], place: int, body_place: int, before: Message) -> Message:
    """``before`` as it stands now; messages that several queues share are moved once."""
    return moved.setdefault(id(before), (before, before.again_at(place, body_place)))[1]


def take_again(queues: Mapping[int, Queue], again: AgainNote) -> bool:
    """Recovery: messages that are not in their queues come there. Returns whether one of them has moved."""
    moved = False
    for message, targets in again.messages:
        message.stand_at(again.applied)
        moved = moved or message.moved
        for queue_id, entry_id, deadline_ms, returned in targets:
            queue = queues.get(queue_id)
            if queue is None or entry_id in queue.entries:
                continue
            queue.enqueue(entry_id, message, deadline_ms)
            if returned != NEVER:
                queue.know(entry_id, returned)
    return moved


def take_settled(queues: Mapping[int, Queue], settled: SettledNote) -> None:
    """Recovery: what a SETTLED note says of messages."""
    for queue_id, entry_id in settled.gone:
        queue = queues.get(queue_id)
        if queue is not None:
            queue.remove(entry_id)
    for queue_id, entry_id, returned in settled.known:
        queue = queues.get(queue_id)
        if queue is not None:
            queue.know(entry_id, returned)


def _known(queue: Queue, entry_id: int) -> Returned:
    return queue.returns.of(entry_id) if queue.returns is not None else NEVER
