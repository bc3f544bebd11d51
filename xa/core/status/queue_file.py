"""QueueFile: the status of one shard as messages in a durable queue, engine `queue`.

Each sync adds one message with everything that was appended since the last one. Rotation is one transaction that adds an image
and takes away what was there before.

The answer to a sync may be lost: the broker fails, or a backup takes over. Then the queue is read again, and tells whether the
group is in it; if it is not, it is sent again. So no group is lost, and none is there twice.

The queue has one owner at a time: what reads it holds it exclusively, and reading ends with a mark of one's own, behind which
nothing of an earlier owner can come. An owner writes an image with its name when it starts. Another base than one's own, or
frames that one has not written, prove that another server owned the log meanwhile; then this one must not answer any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import attrs

from understudy.xa.core.errors import LogLostError, LogOwnedError, StatusFileError
from understudy.xa.core.register.entry import Entry, Record
from understudy.xa.core.status.journal_log import frame
from understudy.xa.core.status.queue_log import LogMessage, ReadLog, base_frame, read_log

ROTATE_OCTETS: Final = 1 << 20
"""A log that is longer, and more than twice its image, begins anew. The broker keeps it in memory, since it is handed out."""
TICK_S: Final = 1.0


class LogQueue(Protocol):
    """A durable queue of a group of brokers, held exclusively. One thread at a time.

    Attributes:
        name: for people.
        made: this object has made the queue; before it there was none.
    """

    name: str
    made: bool

    def read(self) -> list[LogMessage]:
        """Become the owner, and return all messages but marks, oldest first.

        Raises:
            LogOwnedError: another server has the queue.
            LogLostError: no broker serves, and `stop` was called.
        """

    def add(self, group: bytes, *, replacing: bool) -> None:
        """Add a message, in one transaction; with `replacing`, take away in it what was there before.

        Raises:
            LogLostError: it may have happened or not. `read` tells.
        """

    def tick(self) -> None:
        """Show that this client lives. LogLostError: the connection is gone."""

    def stop(self) -> None:
        """`read` gives up soon."""

    def close(self) -> None: ...


@attrs.frozen
class _Group:
    """The frames that one sync adds.

    Attributes:
        count: of frames.
        upto: sequence number of the last frame; if there is none, the one that is durable.
    """

    octets: bytes
    count: int
    upto: int
    replacing: bool


class QueueFile:
    """The records of one shard; see `status.journal_file.StatusStore`.

    Args:
        log: its queue.
        shard: from 0.
        owner: a name of this run of this server, which no other has or had.

    Attributes:
        sequence: of the last frame that was appended.
        durable: of the last frame that the group of brokers has committed.
    """

    shared = True
    tick_s = TICK_S

    def __init__(self, log: LogQueue, shard: int, owner: str, *, rotate_octets: int = ROTATE_OCTETS) -> None:
        self._log = log
        self._shard = shard
        self._owner = owner
        self._rotate_octets = rotate_octets
        self._frames: list[tuple[int, bytes]] = []
        self._base = 0
        self._replacing = False
        self._sure = True
        self._octets = 0
        self._image_octets = 0
        self.sequence = 0
        self.durable = 0
        self.notes: list[str] = []

    # -- the start ----------------------------------------------------------------------------------------------------

    def open(self) -> dict[str, Entry]:
        """Read the log, and become its owner by a new image.

        Raises:
            StatusFileError: a message is damaged or of a stranger; the queue is left as it is.
            LogOwnedError: another server has it.
        """
        while True:
            found = self._read()
            if not found.base and not self._log.made:
                raise StatusFileError(
                    f"{self._log.name} is there and holds no image: it was emptied, or its first start was cut short"
                )
            sequence = found.sequence + 1
            image = base_frame(sequence, self._shard, self._owner, list(found.entries.values()))
            try:
                self._log.add(image, replacing=True)
            except LogLostError:
                continue  # a second image does no harm
            self._frames.append((sequence, image))
            self._replacing = True
            self.sequence = sequence
            self._committed(self._next())
            return found.entries

    # -- the life -----------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[Record]) -> int:
        """Append a group of records, also an empty one; returns the sequence number to wait for."""
        self._frames.append((self.sequence + 1, frame(self.sequence + 1, self.durable, records)))
        self.sequence += 1
        return self.sequence

    @property
    def wants_rotation(self) -> bool:
        return self._octets > max(self._rotate_octets, 2 * self._image_octets)

    def rotate(self, entries: Sequence[Entry]) -> None:
        """The next sync writes an image of these entries in place of all that was appended before."""
        self.sequence += 1
        self._frames = [(self.sequence, base_frame(self.sequence, self._shard, self._owner, entries))]
        self._replacing = True

    def sync(self) -> None:
        """Have the group of brokers commit what has been appended; `append` may be called meanwhile.

        Raises:
            LogOwnedError: another server owns the log, or has owned it.
            StatusFileError: the log has lost what was committed.
            LogLostError: `stop` was called, and no broker serves.
        """
        group = self._next()
        while not self._settled(group):
            try:
                self._log.add(group.octets, replacing=group.replacing)
            except LogLostError:
                self._sure = False
            else:
                self._committed(group)

    def seal(self) -> None:
        """A group is what was appended when it is sent."""

    def tick(self) -> None:
        """Show the broker that this server lives; come back to the log if the connection is gone. Errors as `sync`."""
        try:
            self._log.tick()
        except LogLostError:
            self._sure = False
        if not self._sure:
            self.sync()

    def stop(self) -> None:
        self._log.stop()

    def close(self) -> None:
        self._log.close()

    # -- parts --------------------------------------------------------------------------------------------------------

    def _read(self) -> ReadLog:
        return read_log(self._log.read(), self._log.name, self._shard)

    def _next(self) -> _Group:
        frames = list(self._frames)
        upto = frames[-1][0] if frames else self.durable
        return _Group(b"".join(octets for _, octets in frames), len(frames), upto, self._replacing)

    def _settled(self, group: _Group) -> bool:
        """True if the log has the group. If an answer was lost, the log is read."""
        if not self._sure:
            if self._is_in(group):
                self._committed(group)
            self._sure = True
        return self.durable == group.upto

    def _is_in(self, group: _Group) -> bool:
        found = self._read()
        name, ours = self._log.name, (self._base, group.upto if group.replacing else self._base)
        if found.sequence < self.durable:
            raise StatusFileError(
                f"{name} has lost frames {found.sequence + 1} to {self.durable}, which were committed"
            )
        if found.owner != self._owner or found.base not in ours:
            raise LogOwnedError(f"{name}: another state server, {found.owner}, has owned the log meanwhile")
        if found.sequence == self.durable:
            return False
        if found.sequence != group.upto or found.last != group.octets:
            raise LogOwnedError(f"{name}: frame {found.sequence} is not of this state server, {self._owner}")
        return True

    def _committed(self, group: _Group) -> None:
        del self._frames[: group.count]
        self._octets += len(group.octets)
        if group.replacing:
            self._base, self._replacing = group.upto, False
            self._octets = self._image_octets = len(group.octets)
        self.durable = group.upto
