"""The delivery ledger: which messages a channel has been given and has not settled, by delivery tag."""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from typing import NamedTuple

from understudy.broker.core.queues.consumer import Consumer
from understudy.broker.core.queues.entry import Entry
from understudy.broker.core.queues.queue import Queue
from understudy.broker.errors import PreconditionFailedError

SETTLED_TAGS = 1024
"""So many settled ones, and as many as are outstanding, are left between outstanding ones."""
OVERDUE_TAGS = 1024
"""So many deliveries that were taken back are known one by one."""


class Delivery(NamedTuple):
    """One handed-out message; ``consumer`` is None for basic.get."""

    tag: int
    queue: Queue
    entry: Entry
    consumer: Consumer | None


class DeliveryLedger:
    """Outstanding deliveries of one channel, in tag order.

    A dict alone would make ``multiple`` slow: taking from its front walks over everything taken before. The deque of tags
    beside it is walked once. Tags that were settled one by one stay in it behind one that was not, until they are too many.

    ``_lapsed`` is the highest tag of a delivery that was taken back. Its client may still settle that, which means nothing then.
    ``_overdue`` has those tags of which the client has said nothing since: a transaction may not count on them. If a client settles
    nothing, it would grow for ever. So the lowest of more than `OVERDUE_TAGS` are known together: up to ``_overdue_upto`` each tag
    that is not outstanding counts as overdue, until the client settles all of them at once.
    """

    __slots__ = ("_by_tag", "_lapsed", "_order", "_overdue", "_overdue_upto", "next_tag")

    def __init__(self) -> None:
        self._lapsed = self._overdue_upto = 0
        self._overdue: set[int] = set()
        self._by_tag: dict[int, Delivery] = {}
        self._order: deque[int] = deque()
        self.next_tag = 1

    @property
    def outstanding(self) -> bool:
        """True if a delivery is not settled."""
        return bool(self._by_tag)

    def __len__(self) -> int:
        return len(self._by_tag)

    def add(self, queue: Queue, entry: Entry, consumer: Consumer | None) -> int:
        """Note a delivery; returns its tag."""
        tag = self.next_tag
        self.next_tag = tag + 1
        self._by_tag[tag] = Delivery(tag, queue, entry, consumer)
        self._order.append(tag)
        return tag

    def skip_tag(self) -> int:
        """A tag for a delivery that needs no acknowledgement."""
        tag = self.next_tag
        self.next_tag = tag + 1
        return tag

    def settle(self, tag: int, multiple: bool, *, within: bool = False) -> list[Delivery]:
        """Take out the delivery ``tag``, or with ``multiple`` all up to it (tag 0: all), in tag order.

        Args:
            tag: as the client says it.
            multiple: so is this.
            within: a transaction or branch acknowledges or rejects them: all or none.

        Raises:
            PreconditionFailedError: no such delivery is outstanding, or one was taken back and this is ``within``.
        """
        by_tag = self._by_tag
        order = self._order
        if self._overdue or self._overdue_upto:
            self._hear_of_overdue(tag, multiple, within)
        if not multiple:
            delivery = by_tag.pop(tag, None)
            if delivery is None:
                if 0 < tag <= self._lapsed:
                    return []
                raise PreconditionFailedError.unknown_delivery_tag(tag)
            while order and order[0] not in by_tag:  # as `_tidy`, without its call: each acknowledgement comes here
                order.popleft()
            if len(order) > 2 * len(by_tag) + SETTLED_TAGS:
                self._tidy()
            return [delivery]
        if tag >= self.next_tag:
            raise PreconditionFailedError.unknown_delivery_tag(tag)
        taken = []
        while order and (tag == 0 or order[0] <= tag):
            delivery = by_tag.pop(order.popleft(), None)
            if delivery is not None:
                taken.append(delivery)
        if not taken and tag > self._lapsed:
            raise PreconditionFailedError.unknown_delivery_tag(tag)
        return taken

    def _tidy(self) -> None:
        """Forget tags that are not outstanding, at the front, or if there are too many behind one that is."""
        by_tag, order = self._by_tag, self._order
        while order and order[0] not in by_tag:
            order.popleft()
        if len(order) > 2 * len(by_tag) + SETTLED_TAGS:
            self._order = deque(each for each in order if each in by_tag)

    def oldest_tag(self) -> int:
        """The tag of the oldest outstanding delivery, or of the next one."""
        by_tag, order = self._by_tag, self._order
        while order and order[0] not in by_tag:
            order.popleft()
        return order[0] if order else self.next_tag

    def before(self, tag: int) -> list[Delivery]:
        """The outstanding deliveries with lower tags than ``tag``, in order."""
        by_tag = self._by_tag
        return [by_tag[each] for each in takewhile(tag.__gt__, self._order) if each in by_tag]

    def lapse(self, delivery: Delivery) -> None:
        """Take an outstanding delivery out, whatever its client says of it later."""
        del self._by_tag[delivery.tag]
        self._tidy()
        self._lapsed = max(self._lapsed, delivery.tag)
        overdue = self._overdue
        overdue.add(delivery.tag)
        if len(overdue) > OVERDUE_TAGS:
            ordered = sorted(overdue)
            half = len(ordered) // 2
            self._overdue_upto = max(self._overdue_upto, ordered[half - 1])
            self._overdue = set(ordered[half:])

    def _hear_of_overdue(self, tag: int, multiple: bool, within: bool) -> None:
        """The client settles ``tag``: deliveries that were taken back may be among what it means."""
        overdue, upto = self._overdue, self._overdue_upto
        meant = {each for each in overdue if each <= tag or not tag} if multiple else overdue & {tag}
        if within and (meant or (upto and (multiple or (0 < tag <= upto and tag not in self._by_tag)))):
            first = min(meant, default=min(tag, upto) or upto)
            raise PreconditionFailedError(
                f"delivery {first} has timed out and was taken back: no transaction can settle it"
            )
        overdue -= meant
        if multiple and (tag >= upto or not tag):
            self._overdue_upto = 0

    def restore(self, deliveries: list[Delivery]) -> None:
        """Put deliveries back that a rolled-back transaction had settled; tag order is kept."""
        for delivery in deliveries:
            self._by_tag[delivery.tag] = delivery
        self._order = deque(sorted(self._by_tag))

    def take_all(self) -> list[Delivery]:
        """Empty the ledger, in tag order."""
        return self.settle(0, True)
