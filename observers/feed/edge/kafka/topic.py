"""KafkaFeed: the feed as messages of a Kafka topic, each event once, however often feed and Kafka are killed.

A message is one event as JSON, as in files. Its key is ``broker/incarnation``, so an incarnation is in one partition, in order.

Events are gathered in memory until they are due by size or by age. Then:

1. the state file gets the new place with a new mark, and is fsynced (`feed.edge.kafka.state`);
2. one Kafka transaction takes the events, and the mark as metadata of the group's offset.

The commit of that transaction is the commit of the feed. A feed that is killed before it is told again from the older place: the
same events with the same numbers. When a feed starts, Kafka ends the transaction of the one before it, which has the same
transactional id, and says whose mark it has. So nothing is lost, and a reader that reads committed messages sees nothing twice.
The same way ends an attempt of which no answer came: a new producer, and the question whose mark Kafka has.

The cursors are not kept in Kafka itself: they may be larger than the metadata of an offset (4 KiB). To read the last event of each
partition back was refused: a late request of a killed producer without transactions may still arrive behind that event, and an
event `gap` has no number to know it by.

**A Kafka that is slow, absent, full or choosing leaders** delays the feed and nothing else. The step is tried again every
`RETRY_S`; nothing more is read before it is done; and the feed says so once. What only an operator can mend (an ACL, a message
that is too large, a state file that is not the last one) ends the feed, and so does anything that is wrong at its start.

A producer with its loop is a `FeedSession`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import msgspec

from understudy.broker.config import KafkaConfig
from understudy.observers.edge.kafka_connection import ClientLog, KafkaRefusedError, Purpose, explained, must_be_mended
from understudy.observers.events_schema import Event
from understudy.observers.feed.complaint import PASSING, Complaint
from understudy.observers.feed.edge.kafka.session import FAILURES, FeedSession, Limit, Message
from understudy.observers.feed.edge.kafka.state import StateFile
from understudy.observers.feed.reader import CursorError

ROLL_BYTES: Final = 1 << 20
ROLL_S: Final = 0.2
IDLE_S: Final = 1.0
RETRY_S: Final = 1.0


class KafkaFeed:
    """Implements `feed.FeedSink` and `feed.FeedCursors`.

    Args:
        config: which Kafka.
        topic: must be there.
        state: the state file; is made if it is not there.
        roll_bytes: a transaction is due when so much is gathered. It may get somewhat larger: the feed asks after each round.
        roll_s: a transaction is due when its first event is so old.

    Raises:
        KafkaRefusedError: Kafka cannot be used; says why.
        CursorError: the state file cannot be used.
    """

    with_events = True

    def __init__(
        self, config: KafkaConfig, topic: str, state: Path, roll_bytes: int = ROLL_BYTES, roll_s: float = ROLL_S
    ) -> None:
        self._roll_bytes = roll_bytes
        self._roll_s = roll_s
        self._messages: list[Message] = []
        self._bytes = 0
        self._first_s = 0.0
        self._saved_s = time.monotonic()
        self._failed_s = 0.0
        self._owed = False
        self._encode = msgspec.json.Encoder().encode
        self._path = state
        self._file = StateFile(state, topic, f"{config.client_id}.feed.")
        self._log = ClientLog()
        feed = self._file.state.feed
        self._purpose = Purpose(config=config, topic=topic, transactional_id=feed, group=feed)
        self._kafka_waits = False
        self._kafka = Complaint(f"topic {topic!r}", "the feed waits", "Kafka takes events again")
        self._disk = Complaint(str(state), "the feed waits", "it can be written again")
        self._session: FeedSession | None = None
        self._limit = Limit()
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        try:
            self._connect()
        except FAILURES as error:
            raise KafkaRefusedError(explained(error, self._purpose, self._log.last)) from error
        except KafkaRefusedError as error:
            raise KafkaRefusedError(explained(error, self._purpose)) from error
        state = self._file.state
        assert self._session is not None
        if state.begun is not None and state.done.mark and not self._session.mark:
            self._kafka.note(
                "it has forgotten this feed (offsets.retention.minutes): the last events may be told again"
            )
        state.give_up()

    def _connect(self) -> None:
        """Start a producer, and see what became of the transaction that was begun last."""
        self._session = FeedSession(self._purpose, self._limit)
        mark, state = self._session.mark, self._file.state
        if state.begun is not None and mark == state.begun.mark:
            state.settle()
        elif mark not in ("", state.done.mark):
            raise CursorError(
                f"{self._path} is not the last state of feed {state.feed!r}: Kafka has a later one; was a copy of it used?"
            )

    # -- FeedSink -------------------------------------------------------------------------------------------------------

    def take(self, events: list[Event]) -> None:
        assert not self._owed, "what was given before is not kept yet"
        if not self._messages:
            self._first_s = time.monotonic()
        encode = self._encode
        for event in events:
            value = encode(event)
            self._messages.append((f"{event.broker}/{event.incarnation}".encode(), value))
            self._bytes += len(value)

    def flush(self) -> None:
        """Nothing: what is taken is kept with the cursors that stand behind it (`save`)."""

    def close(self) -> None:
        """Let go of Kafka and of the file. What was not saved is told again by the next feed."""
        if self._session is not None:
            self._session.close()
            self._session = None
        self._file.close()
        self._log.close()

    # -- FeedCursors ----------------------------------------------------------------------------------------------------

    def load(self) -> dict[str, str]:
        return dict(self._file.state.done.cursors)

    def hurry(self) -> None:
        self._limit.hurry()

    def due(self, now_s: float) -> bool:
        if self._owed:
            return now_s - self._failed_s >= RETRY_S
        if not self._messages:  # events that are not wanted were read: then the cursors go on alone
            return now_s - self._saved_s >= IDLE_S
        return self._bytes >= self._roll_bytes or now_s - self._first_s >= self._roll_s

    def save(self, cursors: dict[str, str]) -> bool:
        """Put what was taken into Kafka as one transaction, with the mark of ``cursors``.

        Raises:
            KafkaRefusedError: an operator has to change something.
            CursorError: the state file is not the last one, or cannot be written.
        """
        state = self._file.state
        if state.begun is None:
            if not self._messages and cursors == state.done.cursors:
                self._saved_s = time.monotonic()
                return True
            state.begin(cursors)
        if self._written() and self._sent():
            self._kept()
            return True
        self._owed = True
        self._failed_s = time.monotonic()
        return False

    def _written(self) -> bool:
        try:
            self._file.write()
        except OSError as error:
            if error.errno not in PASSING:
                raise CursorError(f"{self._path}: {error.strerror or error}") from error
            self._disk.say(error)
            return False
        self._disk.end()
        return True

    def _sent(self) -> bool:
        """One attempt. The transaction that was begun may be in Kafka already, by an attempt of which no answer came."""
        state = self._file.state
        try:
            if self._session is None:
                self._connect()
            assert self._session is not None
            if state.begun is not None:
                self._session.commit(state.begun.mark, state.begun.number, self._messages)
        except (*FAILURES, KafkaRefusedError) as error:
            self._failed(error)
            return False
        return True

    def _failed(self, error: Exception) -> None:
        text = explained(error, self._purpose, self._log.last)
        if self._session is not None:
            self._session.close()
            self._session = None
        if must_be_mended(error) and not isinstance(error, KafkaRefusedError):
            raise KafkaRefusedError(text) from error
        if not self._kafka_waits:
            self._kafka_waits = True
            self._kafka.say(text)

    def _kept(self) -> None:
        self._file.state.settle()
        self._messages.clear()
        self._bytes = 0
        self._owed = self._kafka_waits = False
        self._saved_s = time.monotonic()
        self._kafka.end()
