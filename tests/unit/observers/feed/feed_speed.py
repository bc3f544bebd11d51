"""``python -m tests.unit.observers.feed.feed_speed``: how many records a second one core turns into events.

It makes a journal in a temporary directory as a broker under the load tx-32x10 writes it (batches of 32 transactions of ten
messages over ten queues, a commit for each, then acknowledgements) and reads it as the feed does. What is measured is CPU time,
so other work on the machine matters little.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import BinaryIO, Final

from understudy.broker.log import frame, record
from understudy.broker.log.journal import Journal, JournalOptions
from understudy.broker.log.journal_recovery import recover
from understudy.broker.log.segment import JournalIdentity
from understudy.broker.message import Message
from understudy.broker.server.files.file_storage import FileStorage
from understudy.observers.feed.edge.sink import JsonSink, TextSink
from understudy.observers.feed.feed import FeedSink
from understudy.observers.feed.reader import FeedReader

QUEUES: Final = 10
MESSAGES: Final = 10
GROUP: Final = 32
"""Transactions in one batch."""
EMPTY_TABLE: Final = b"\0\0\0\0"


class _Visitor:
    """Of an empty journal there is nothing to see."""

    def on_batch(self, header: frame.BatchHeader, frame: bytes) -> None: ...

    def on_note(self, kind: int, payload: bytes, place: int = 0) -> None: ...


def write_journal(directory: Path, transactions: int, body_bytes: int = 256, broker: str = "b1", salt: int = 0) -> int:
    """Fill ``directory`` with a journal; returns how many records it holds."""
    storage = FileStorage(directory)
    journal = recover(
        storage,
        JournalIdentity("speed", broker),
        JournalOptions(reserve_bytes=0, salt=salt),
        _Visitor(),
        wall_ms=lambda: 1,
    ).journal
    journal.checkpoint = None
    message = Message("", "q.0", b"\x10\0\2", b"x" * body_bytes, persistent=True)
    records = [
        record.encode_queue_declare(queue, "/", f"q.{queue}", record.DURABLE, EMPTY_TABLE) for queue in range(QUEUES)
    ]
    written = stable = csn = 0
    ids = 1 << 40
    for first in range(0, transactions, GROUP):
        here = range(first, min(first + GROUP, transactions))
        for number in here:
            records += _transaction(1 << 40 | number + 1, csn + number - first + 1, ids, message)
            ids += 1
        closed = written + len(records)
        written = _append(journal, records, written, stable)
        stable = closed
        records = [record.encode_commit(1 << 40 | number + 1, csn + number - first + 1, 1) for number in here]
        taken = tuple(range(ids - len(here), ids))
        records += [record.encode_dequeue(record.ACKNOWLEDGED, [(queue, taken)]) for queue in range(QUEUES)]
        csn += len(here)
    written = _append(journal, records, written, stable)
    journal.close()
    storage.close()
    return written


def _transaction(tx_id: int, csn: int, first_id: int, message: Message) -> list[bytes]:
    records = []
    for place in range(MESSAGES):
        head = record.encode_tx_enqueue(tx_id, [(place % QUEUES, place // QUEUES, 0)], message, transient=False)
        records.append(head + message.properties + message.content())
    first_ids = dict.fromkeys(range(QUEUES), (first_id, 1))
    prepare = record.Prepare(tx_id, csn, f"t{csn}", 1, first_ids, MESSAGES, 1, MESSAGES, 1)
    records.append(record.encode_prepare(prepare))
    return records


def _append(journal: Journal, records: list[bytes], written: int, stable: int) -> int:
    journal.append(frame.encode_batch(1, written + 1, len(records), stable, records))
    job = journal.begin_sync()
    assert job is not None
    job.run()
    journal.finish_sync(job)
    return written + len(records)


def read_journal(directory: Path, sink: FeedSink | None) -> tuple[int, float]:
    """(events, CPU seconds) of reading a whole journal into ``sink``."""
    storage = FileStorage(directory, read_only=True)
    reader = FeedReader(storage)
    count = 0
    began_s = time.process_time()
    for events in reader.events():
        count += len(events)
        if sink is not None:
            sink.take(events)
    took_s = time.process_time() - began_s
    reader.close()
    storage.close()
    return count, took_s


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=20_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Path("/dev/null").open("wb") as null:
        directory = Path(folder) / "b1"
        records = write_journal(directory, options.transactions)
        print(f"{records:,} records of {options.transactions:,} transactions")
        for name, sink in _sinks(null):
            events, took_s = read_journal(directory, sink)
            rate = records / took_s
            print(
                f"{name:8} {events:,} events in {took_s:.2f} s of CPU: {rate:,.0f} records/s, {events / took_s:,.0f} events/s"
            )


def _sinks(stream: BinaryIO) -> list[tuple[str, FeedSink | None]]:
    return [("events", None), ("json", JsonSink(stream)), ("text", TextSink(stream))]


if __name__ == "__main__":
    main()
