"""``understudy journal dump`` and ``understudy journal stats``: the journal of one broker, record by record and segment by segment.

Both only read; the broker may run. They are here, and not beside ``journal check``, since a journal holds what the HA plugin wrote.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import attrs
import msgspec
import typer

from understudy.broker.log.segment import NoJournalError
from understudy.broker.printable import escaped
from understudy.broker.server.files.file_storage import FileStorage
from understudy.observers.feed.edge.command import ending_cleanly
from understudy.observers.feed.feed import Selection
from understudy.observers.feed.reader import FeedReader
from understudy.observers.journal.stats import JournalStats, journal_stats

_DIRECTORY = Annotated[Path, typer.Argument(help="A broker's data directory; the broker may run.", show_default=False)]


def dump(
    directory: _DIRECTORY,
    tx: Annotated[str, typer.Option(metavar="ID", help="Only this transaction, as epoch.number.")] = "",
    queue: Annotated[str, typer.Option(help="Only this queue: name, or vhost/name.")] = "",
    segment: Annotated[int, typer.Option(help="Only this segment.", show_default=False)] = 0,
    start: Annotated[int, typer.Option("--from", help="Only from this offset of the log on.", show_default=False)] = 0,
) -> None:
    """Print what a journal holds, one JSON object a line: the events of the feed, with file and byte of the frame they are from."""
    encode = msgspec.json.Encoder().encode
    selection = Selection(txs=frozenset((tx,)) if tx else None, queue=queue)
    out = sys.stdout.buffer
    with ending_cleanly(out):
        storage = _open(directory)
        reader = FeedReader(storage)
        try:
            for events in reader.events():
                if segment and reader.segment != segment:
                    continue
                place = b'{"file_segment":%d,"byte":%d,' % (reader.segment, reader.frame_at)
                for event in selection.of(events):
                    if event.offset >= start:
                        out.write(place + encode(event)[1:] + b"\n")
            reader.find_damage()
        finally:
            reader.close()
            storage.close()
            out.flush()


def stats(
    directory: _DIRECTORY,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show what of each segment lives, what keeps it from being let go of, and what compaction has written again."""
    with ending_cleanly(sys.stdout.buffer):
        storage = _open(directory)
        try:
            found = journal_stats(storage)
        finally:
            storage.close()
        print(json.dumps(_as_json(directory, found)) if as_json else stats_text(directory, found), flush=True)  # noqa: T201  # a command prints


def _open(directory: Path) -> FileStorage:
    if not directory.is_dir():
        raise NoJournalError(f"{directory} is {'no directory' if directory.exists() else 'not there'}")
    return FileStorage(directory, read_only=True)


def _as_json(directory: Path, found: JournalStats) -> dict[str, Any]:
    return {"directory": str(directory), **attrs.asdict(found)}


def stats_text(directory: Path, stats: JournalStats) -> str:
    """A row a segment, the sums, and what compaction did."""
    found = stats.segments
    lines = [
        f"journal {directory}",
        f"{'SEGMENT':>8} {'SIZE':>14} {'LIVE':>14} {'DEAD':>14} {'NOTES':>12} {'AGAIN':>12}  KEPT BY",
    ]
    lines += [
        f"{each.number:>8} {each.size_bytes:>14,} {each.live_bytes:>14,} {each.dead_bytes:>14,} {each.note_bytes:>12,}"
        f" {each.again_bytes:>12,}  {escaped(each.pinned_by)}"
        for each in found
    ]
    names = ("size_bytes", "live_bytes", "dead_bytes", "note_bytes", "again_bytes")
    sums = [sum(getattr(each, name) for each in found) for name in names]
    lines.append(f"{len(found):>8} {sums[0]:>14,} {sums[1]:>14,} {sums[2]:>14,} {sums[3]:>12,} {sums[4]:>12,}  in all")
    if stats.again_notes:
        again, live = (sum(getattr(each, name) for each in found) for name in ("again_messages", "again_live_messages"))
        lines.append(
            f"compaction wrote {again:,} messages again in {stats.again_notes:,} notes ({sums[4]:,} bytes); {live:,} live there; "
            f"{stats.unsettled_notes:,} notes are not settled; the first segment is {found[0].number}"
        )
    return "\n".join(lines)
