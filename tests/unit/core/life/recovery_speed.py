"""Processor time a record of a recovery: `python -m tests.unit.core.life.recovery_speed MESSAGES [--acks]`."""

from __future__ import annotations

import argparse
import gc
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.unit.log.journal_kit import Recorder
from understudy.broker.core.life.node import BrokerNode
from understudy.broker.core.limits import Limits
from understudy.broker.log import frame, record
from understudy.broker.log.journal import JournalOptions
from understudy.broker.log.journal_recovery import recover, sealed_octets
from understudy.broker.log.paged_bodies import PagedBodies
from understudy.broker.log.segment import JournalIdentity
from understudy.broker.message import Message
from understudy.broker.server.files.file_storage import FileStorage

IDENTITY = JournalIdentity("group", "b1")
OPTIONS = JournalOptions(reserve_bytes=0)
BATCH = 50
BODY_BYTES = 1_024
FIRST_ID = 1 << 44


def write(directory: Path, messages: int, acks: bool) -> int:
    """A journal of so many messages in one queue, in batches of 50, ten acks in each if so asked. Returns its last offset."""
    storage = FileStorage(directory)
    journal = recover(storage, IDENTITY, OPTIONS, Recorder()).journal
    message = Message("", "deep", b"\x10\0\x02", os.urandom(BODY_BYTES), True)
    end = 0

    def append(records: list[bytes]) -> None:
        nonlocal end
        journal.append(frame.encode_batch(1, end + 1, len(records), end, records))
        journal.sync_now()
        end += len(records)

    append([record.encode_epoch(1, "b1", False, 0)])
    append([record.encode_queue_declare(1, "/", "deep", record.DURABLE, bytes(4))])
    for first in range(FIRST_ID, FIRST_ID + messages, BATCH):
        records = [
            record.encode_enqueue([(1, each, 0)], message, False) + message.properties + message.content()
            for each in range(first, first + BATCH)
        ]
        if acks and first > FIRST_ID:
            records[7:7] = [record.encode_dequeue(record.ACKNOWLEDGED, [(1, range(first - BATCH, first - BATCH + 10))])]
        append(records)
    journal.close()
    storage.close()
    return end


def read(directory: Path) -> tuple[float, int]:
    """Processor time of a recovery, and how many messages it has found."""
    storage = FileStorage(directory)
    node = BrokerNode("b1", Limits(), bytes, bodies=PagedBodies())
    started = time.process_time()
    node.recovery.expect(sealed_octets(storage))
    recover(storage, IDENTITY, OPTIONS, node.recovery)
    node.recovery.finish()
    seconds = time.process_time() - started
    storage.close()
    return seconds, len(node.state.queues[1].entries)


def main() -> None:
    """The command."""
    ask = argparse.ArgumentParser(prog="python -m tests.unit.core.life.recovery_speed")
    ask.add_argument("messages", type=int)
    ask.add_argument("--acks", action="store_true", help="ten of each batch are acknowledged by the next one")
    given = ask.parse_args()
    gc.disable()
    with TemporaryDirectory() as name:
        records = write(Path(name), given.messages, given.acks)
        seconds, found = min(read(Path(name)) for _ in range(3))
    print(f"{found:,} messages, {records:,} records: {seconds:.2f} s, {seconds / records * 1e6:.2f} us a record")


if __name__ == "__main__":
    main()
