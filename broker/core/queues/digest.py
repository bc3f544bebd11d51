"""Digests of queues: what two brokers compare to know that they hold the same messages in the same order."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping
from hashlib import sha256
from itertools import chain
from struct import Struct
from typing import Final, Protocol

import attrs

from understudy.broker.core.queues.entry import Entry
from understudy.broker.core.queues.entry_index import Page
from understudy.broker.core.queues.packed_page import PackedPage, SeenIds
from understudy.broker.core.queues.queue import Queue
from understudy.broker.errors import UnderstudyError
from understudy.broker.log.paged_bodies import PagedBodies, contents_of
from understudy.broker.log.return_record import Returned
from understudy.broker.message import MESSAGE_BYTES

SLICE_BYTES: Final = 1 << 20
"""How much is digested at once: some milliseconds, of which a part goes to reading spilled bodies."""

QUEUE_BYTES: Final = 8192
"""An empty queue is as much work."""

_ENTRY: Final = Struct(">QQIIBB")
_RETURNED: Final = Struct(">IIQ")
_Seen = list[Entry] | SeenIds
"""A page of a queue as it was; of a packed one the ids."""
_Held = tuple[Queue, list[_Seen], dict[int, Returned]]


class HoldsQueues(Protocol):
    """A state with queues by id (``BrokerState``)."""

    @property
    def queues(self) -> Mapping[int, Queue]: ...


@attrs.frozen(kw_only=True)
class QueueDigest:
    """``digest`` covers all applied messages, in queue order: ids, deadlines, exchanges, routing keys, properties and bodies.

    Of a message that came back, or is delayed, it covers the counts and the due time, too.
    """

    vhost: str
    name: str
    messages: int
    digest: str


class DigestOutrunError(UnderstudyError):
    """A queue has let go of a message, whose body is not in memory, before the digest came to it."""

    def __init__(self, vhost: str, queue: str, entry_id: int) -> None:
        super().__init__(
            f"message {entry_id} has left queue '{queue}' in vhost '{vhost}' while the digest was taken: ask again later"
        )


def queue_digests(state: HoldsQueues) -> list[QueueDigest]:
    """One digest for each replicated queue, by vhost and name. Costs a pass over all bodies: for audits, not for polling."""
    slices = digests_in_slices(state)
    while True:
        try:
            next(slices)
        except StopIteration as done:
            digests: list[QueueDigest] = done.value
            return digests


def digests_in_slices(state: HoldsQueues) -> Generator[None, None, list[QueueDigest]]:
    """As :func:`queue_digests`, of what the queues hold at the first step, however they change between the steps.

    A pass over gigabytes in one go is a broker that looks dead to its peers. What is taken meanwhile stays in memory (or in its
    spill file) until the end.

    Raises:
        DigestOutrunError: a message has left its queue whose body is in the journal alone, and perhaps not there any more.
    """
    held: deque[_Held] = deque()
    for queue in sorted((q for q in state.queues.values() if q.logged), key=lambda q: (q.vhost, q.name, q.id)):
        queue.sort()
        known = dict(queue.returns.known) if queue.returns is not None else {}
        held.append((queue, [_seen(page) for page in queue.entries.pages.values()], known))
    digests = []
    in_slice = 0
    for queue, pages, known in _let_go(held):
        digest = sha256()
        messages = sum(map(len, pages))
        for entry, body in _with_bodies(queue, pages):
            message = entry.message
            exchange, routing_key = message.exchange.encode(), message.routing_key.encode()
            lengths = (len(message.properties), message.size, len(exchange), len(routing_key))
            digest.update(_ENTRY.pack(entry.id, entry.deadline_ms, *lengths))
            digest.update(exchange + routing_key)
            if known and entry.id in known:
                digest.update(_RETURNED.pack(*known[entry.id]))
            digest.update(message.properties)
            content = memoryview(body)
            in_slice += MESSAGE_BYTES  # many small ones are a slice, too
            for at in range(0, message.size, SLICE_BYTES):
                piece = content[at : at + SLICE_BYTES]
                digest.update(piece)
                in_slice += len(piece)
                if in_slice >= SLICE_BYTES:
                    in_slice = 0
                    yield
            if in_slice >= SLICE_BYTES:  # of messages without a body
                in_slice = 0
                yield
        in_slice += QUEUE_BYTES
        if in_slice >= SLICE_BYTES:  # of queues without a message
            in_slice = 0
            yield
        digests.append(QueueDigest(vhost=queue.vhost, name=queue.name, messages=messages, digest=digest.hexdigest()))
    return digests


def _seen(page: Page) -> _Seen:
    return page.seen() if isinstance(page, PackedPage) else list(page.values())


def _with_bodies(queue: Queue, pages: list[_Seen]) -> Iterator[tuple[Entry, bytes]]:
    """Each with the body; so many are read at once as a slice is long."""
    chunk: list[Entry] = []
    octets = 0
    seen: Iterator[Entry | int] = chain.from_iterable(pages)
    for each in seen:
        entry = _as_it_is(queue, each)
        chunk.append(entry)
        octets += MESSAGE_BYTES + entry.message.size
        if octets >= SLICE_BYTES:
            yield from zip(chunk, _bodies(chunk), strict=True)
            chunk, octets = [], 0
    yield from zip(chunk, _bodies(chunk), strict=True)


def _bodies(entries: list[Entry]) -> list[bytes]:
    return contents_of([entry.message for entry in entries])


def _as_it_is(queue: Queue, seen: Entry | int) -> Entry:
    """The message as it is now, if its body is not in memory: a compaction may have moved it, and its page may be packed by now."""
    if not isinstance(seen, int) and seen.message.body.__class__ is not PagedBodies:
        return seen
    entry_id = seen if isinstance(seen, int) else seen.id
    entry = queue.entries.get(entry_id)
    if entry is None:
        raise DigestOutrunError(queue.vhost, queue.name, entry_id)
    return entry


def _let_go(held: deque[_Held]) -> Iterator[_Held]:
    """One after the other; what is done with is not kept for the rest."""
    while held:
        yield held.popleft()
