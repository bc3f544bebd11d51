"""PagedBodies: the bodies of messages that have left the memory, as one journal gives them back.

A message whose body is paged out has this object as its body, so it costs nothing more. All such messages of a process have the
same one: it goes with the journal, and stays when another core goes on with that.

Two ways back: :meth:`fetch` reads ahead in another thread, and :meth:`read` at once, on the caller's. A queue that serves consumers
fetches. Rare work that needs a body in the midst of a step reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from understudy.broker.log.body_read import ReadJob, WantedBody
from understudy.broker.message import Message

Fetched = Callable[[Mapping[int, bytes]], None]
"""Gets bodies, see `ReadJob.bodies`."""


class BodySource(Protocol):
    """The part of `Journal` from which bodies are read."""

    def begin_read(self, wanted: Iterable[WantedBody]) -> ReadJob: ...

    def finish_read(self, job: ReadJob) -> bool: ...


class PagedBodies:
    """Implements ``SpilledBody`` for all messages whose bodies are in the journal alone.

    Attributes:
        read_at_once: how many bodies :meth:`read` and :meth:`contents` have read.
        fetched: how many :meth:`fetch` has brought back.
    """

    def __init__(self) -> None:
        self._source: BodySource | None = None
        self._fetch: Callable[[Iterable[WantedBody], Fetched], None] | None = None
        self._on_room: Callable[[], None] = _nothing
        self.read_at_once = self.fetched = 0

    def connect(
        self,
        source: BodySource,
        fetch: Callable[[Iterable[WantedBody], Fetched], None],
        on_room: Callable[[], None],
    ) -> None:
        """Read from ``source`` from now on.

        Args:
            source: the journal, recovered.
            fetch: reads bodies and tells them later (`BodyReader.read`).
            on_room: called when a segment may be removed that was being read.
        """
        self._source = source
        self._fetch = fetch
        self._on_room = on_room

    def read(self, message: Message) -> bytes:
        """The body of ``message``, read at once.

        Raises:
            JournalError: the journal does not give it back.
            OSError: the disk does not.
        """
        return self._read([_wanted(message)])[message.place or message.offset]

    def contents(self, messages: Sequence[Message]) -> list[bytes]:
        """The bodies of ``messages``, in order; all that are paged out are read at once, in one go. Raises as :meth:`read`."""
        paged = [_wanted(message) for message in messages if message.body is self]
        bodies = self._read(paged) if paged else {}
        return [
            bodies[message.place or message.offset] if message.body is self else message.content()
            for message in messages
        ]

    def _read(self, wanted: Sequence[WantedBody]) -> Mapping[int, bytes]:
        assert self._source is not None, f"a body is wanted at offset {wanted[0].offset} before the journal is open"
        job = self._source.begin_read(wanted)
        try:
            job.run()
        finally:
            if self._source.finish_read(job):
                self._on_room()
        self.read_at_once += len(wanted)
        return job.bodies

    def fetch(self, messages: Sequence[Message], then: Callable[[], None]) -> None:
        """Bring the bodies of ``messages``, which are paged out, back to memory; ``then`` is called when that is done.

        A disk that does not give them back ends the process, and ``then`` is not called.
        """
        assert self._fetch is not None, "bodies are fetched before the journal is open"
        keys = [message.place or message.offset for message in messages]

        def told(bodies: Mapping[int, bytes]) -> None:
            for message, key in zip(messages, keys, strict=True):
                message.page_in(bodies[key])
            self.fetched += len(keys)
            then()

        self._fetch(map(_wanted, messages), told)


def contents_of(messages: Sequence[Message]) -> list[bytes]:
    """The bodies of ``messages``, in order. Those that are paged out are read at once, in one go. Raises as `PagedBodies.read`."""
    for message in messages:
        body = message.body
        if body.__class__ is PagedBodies:
            assert isinstance(body, PagedBodies)
            return body.contents(messages)
    return [message.content() for message in messages]


def _wanted(message: Message) -> WantedBody:
    return WantedBody(message.offset, message.size, message.place)


def _nothing() -> None:
    pass
