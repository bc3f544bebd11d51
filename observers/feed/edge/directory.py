"""FeedDirectory: all journals of a directory as one feed, from their beginning or from where an earlier one stopped.

It knows which journals are open (`feed.edge.journals`), and writes the holds that ask brokers to keep what was not read yet
(``broker/server/files/feed_hold.py``).

Cursors are kept (`FeedCursors`) after the events before them have left (`FeedSink.flush`). What a hold asks for is what stands
behind the cursors that are kept, since that is where the feed goes on if it is killed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from understudy.broker.server.files.feed_hold import HOLD_SUFFIX
from understudy.broker.server.files.file_storage import FileStorage
from understudy.observers.events_schema import Event
from understudy.observers.feed.complaint import Complaint
from understudy.observers.feed.edge.cursor_file import CursorFile, replace_file
from understudy.observers.feed.edge.fact_reader import FactReader
from understudy.observers.feed.edge.journals import OpenJournal, UnreadableError, has_journal, journals_in, named_in
from understudy.observers.feed.edge.pace import ROUND_EVENTS, FeedPace, age_s
from understudy.observers.feed.feed import FeedCursors, FeedSink, Selection, merged
from understudy.observers.feed.reader import FeedReader

FACTS: Final = "/facts"
"""Behind a directory's name: the cursor of its facts."""
POLL_S: Final = 0.05
LOOK_S: Final = 1.0
"""So often it looks for journals of brokers that were not there before, and for damage where nothing more comes."""
HOLD_S: Final = 5.0


class FeedDirectory:
    """All journals of a directory.

    Args:
        directory: of a cluster, or of one broker.
        cursors: keeps cursors by directory name; without it the feed begins at the beginning.
        hold: name under which brokers are asked to keep what was not read; "": they are not.
        pace: leaves the CPU to the brokers while `follow` goes on; None: what is there is read at once.

    Attributes:
        stopping: `follow` ends after this round, with its cursors kept.
    """

    def __init__(
        self, directory: Path, cursors: FeedCursors | None = None, hold: str = "", pace: FeedPace | None = None
    ) -> None:
        self._directory = directory
        self._pace = pace
        self._hold = hold
        self.stopping = False
        self._cursors: FeedCursors = cursors if cursors is not None else CursorFile(None)
        self._cursor_of = self._cursors.load()
        self._owed = False
        self._open: dict[str, OpenJournal] = {}
        self._refused: dict[str, UnreadableError] = {}
        self._told: dict[str, str] = {}
        self._complaints: dict[Path, Complaint] = {}
        self._look()

    def stop(self) -> None:
        """End soon, with the cursors kept if that is possible. A signal handler may call it."""
        self.stopping = True
        self._cursors.hurry()

    def _look(self) -> None:
        """Open journals that were not there before, and those of directories that were replaced."""
        for name, each in list(self._open.items()):
            if each.gone:
                self._note_cursor(name, each)
                each.close()
                del self._open[name]
        for path in journals_in(self._directory):
            if path.name not in self._open:
                self._open_journal(path)

    def _open_journal(self, path: Path) -> None:
        """Open a journal. One that cannot be read is noted; a later look may read it."""
        name = path.name
        try:
            storage = FileStorage(path, read_only=True)
            has_journal(path)
        except (OSError, UnreadableError) as error:
            self._refused[name] = error if isinstance(error, UnreadableError) else UnreadableError(path, error)
            return
        self._refused.pop(name, None)
        reader = FeedReader(storage, self._kept(name))
        facts = FactReader(path, self._kept(name + FACTS))
        self._open[name] = OpenJournal(path, storage, reader, facts, [reader, facts])

    def _kept(self, name: str) -> bytes | None:
        kept = self._cursor_of.get(name)
        return kept.encode() if kept else None

    def read(self, sink: FeedSink, selection: Selection) -> None:
        """Up to the end of each journal, in one order.

        Raises:
            UnderstudyError: a journal could not be read to its end; all others have been.
        """
        for events in merged(stream for each in self._open.values() for stream in each.streams()):
            self._give(sink, selection, events)
        self._say_ends(sink, selection)
        sink.flush()
        while not self._save(now=True):
            time.sleep(POLL_S)
        for each in self._open.values():
            each.find_damage()
        self._raise_first()

    def read_in_rounds(self, sink: FeedSink, selection: Selection) -> None:
        """The same for a sink that keeps the cursors, and asks for them in between. The order is that of `follow`.

        Raises:
            UnderstudyError: as `read`.
        """
        while not self.stopping and (self._round(sink, selection) or self._owed):
            if self._owed:
                time.sleep(POLL_S)
        self._say_ends(sink, selection)
        while not (self._save(now=True, last=self.stopping) or self.stopping):
            time.sleep(POLL_S)
        for each in self._open.values():
            each.find_damage()
        self._raise_first()

    def follow(self, sink: FeedSink, selection: Selection) -> None:
        """Until `stopping` is set. Each round takes what every journal has, and puts that in one order.

        Raises:
            UnderstudyError: a journal could not be read on. That is said at once, and raised when the others have ended too.
        """
        looked_at = time.monotonic()
        while not self.stopping:
            self._rest(self._round(sink, selection))
            if time.monotonic() - looked_at >= LOOK_S:
                self._look()
                for each in self._open.values():
                    if each.idle:
                        each.find_damage()
                self._tell_errors()
                looked_at = time.monotonic()
        self._say_ends(sink, selection)
        sink.flush()
        self._save(last=True)
        self._raise_first()

    def _round(self, sink: FeedSink, selection: Selection) -> int:
        """Take what there is, up to a bound. Nothing is read while what was read before is owed to the sink.

        Returns:
            How many events the source had that had most; 0: there was nothing to do.
        """
        if self._owed:
            self._ask_to_keep()
            return int(self._save())
        rounds = []
        most = 0
        bound = self._pace.round_events if self._pace is not None else ROUND_EVENTS
        for each in self._open.values():
            found = [_taken(stream, bound) for stream in each.streams()]
            each.note_round(idle=not any(found))
            most = max(most, *(sum(map(len, lists)) for lists in found))
            rounds += found
        for events in merged(rounds):
            self._give(sink, selection, events)
        due = self._cursors.due(time.monotonic())  # asked once: what is saved then has its ends
        if due and self._cursors.with_events:
            self._say_ends(sink, selection)
        sink.flush()
        if due:
            self._save(last=True)
        self._ask_to_keep()
        return most

    def _say_ends(self, sink: FeedSink, selection: Selection) -> None:
        """Say where each source ends, if all of it is said, and the sink takes anything now."""
        if selection.everything and not self._owed:
            ends = [end for each in self._open.values() for end in each.ends()]
            if ends:
                sink.take(ends)

    def _rest(self, taken: int) -> None:
        pause_s = 0.0 if taken else POLL_S
        if self._pace is not None:
            behind_s = max((age_s(each.reader.at_ms) for each in self._open.values() if not each.idle), default=0.0)
            pause_s = self._pace.after_round(taken=taken, behind_s=behind_s)
        if pause_s and not self.stopping:
            time.sleep(pause_s)

    def _tell_errors(self) -> None:
        for name, each in self._open.items():
            if each.error is not None and each.sources:
                _say(str(each.error))
                self._told[name] = str(each.error)
                each.sources.clear()
        for name, error in self._refused.items():
            if self._told.get(name) != str(error):
                self._told[name] = str(error)
                _say(f"{error}; the feed goes on without it, and looks again")
        if not any(each.sources for each in self._open.values()):
            self._raise_first()

    def _raise_first(self) -> None:
        errors = [each.error for each in self._open.values() if each.error is not None]
        for error in (*errors, *self._refused.values()):
            raise error

    @staticmethod
    def _give(sink: FeedSink, selection: Selection, events: list[Event]) -> None:
        wanted = selection.of(events)
        if wanted:
            sink.take(wanted)

    def _save(self, *, now: bool = False, last: bool = False) -> bool:
        """Keep the cursors, if that is due; what they stand behind has been flushed. Returns whether nothing is owed.

        Args:
            now: also if it is not due, unless an attempt has failed: the next one is due later.
            last: in any case. The feed ends, and no attempt follows.
        """
        due = last or self._cursors.due(time.monotonic())
        if not due and (self._owed or not now):
            return not self._owed
        for name, each in self._open.items():
            self._note_cursor(name, each)
        self._owed = not self._cursors.save(self._cursor_of)
        if not self._owed:
            for each in self._open.values():
                each.note_saved()
        return not self._owed

    def _note_cursor(self, name: str, each: OpenJournal) -> None:
        for key, found in ((name, each.reader.cursor()), (name + FACTS, each.facts.cursor())):
            if found is not None:
                self._cursor_of[key] = found.decode()

    def _ask_to_keep(self) -> None:
        """Write into each data directory from which segment on it has to be kept."""
        now = time.monotonic()
        for each in self._open.values() if self._hold else ():
            if segment := each.to_be_kept(now, HOLD_S):
                complaint = self._complaints.setdefault(
                    each.path, Complaint(f"{each.path}", "its broker keeps nothing")
                )
                try:
                    replace_file(each.path / f"{self._hold}{HOLD_SUFFIX}", json.dumps({"segment": segment}).encode())
                except OSError as error:
                    complaint.say(error)
                else:
                    complaint.end()

    def transactions_named(self, name: str) -> frozenset[str]:
        """The ``tx`` of each transaction that a client named ``name``; reads all journals once."""
        found: set[str] = set()
        for path in journals_in(self._directory):
            if path.name not in self._refused:
                found |= named_in(path, name)
        return frozenset(found)

    def close(self) -> None:
        """Close all files."""
        for each in self._open.values():
            each.close()


def _say(text: str) -> None:
    print(f"understudy: {text}", file=sys.stderr)  # noqa: T201  # a command prints


def _taken(stream: Iterator[list[Event]], bound: int) -> list[list[Event]]:
    """Lists of events that one source has now; the list that reaches ``bound`` events is the last."""
    found: list[list[Event]] = []
    count = 0
    for events in stream:
        found.append(events)
        count += len(events)
        if count >= bound:
            break
    return found
