"""Small journals on a simulated disk."""

from __future__ import annotations

from understudy.broker.log import frame as frames
from understudy.broker.log.frame import BatchHeader
from understudy.broker.log.journal import CheckpointSource, Journal, JournalOptions
from understudy.broker.log.journal_recovery import FrameVisitor, Recovered, recover
from understudy.broker.log.segment import JournalIdentity
from understudy.broker.log.storage import Storage

IDENTITY = JournalIdentity("group-1", "broker-1")

SMALL = JournalOptions(segment_bytes=8192, alignment_bytes=512, index_interval_bytes=512, reserve_bytes=0, salt=7)

KIND = frames.FIRST_OWNER_KIND + 60
"""Of no plugin, and not of the broker."""

CHECKPOINT = frames.encode_note(KIND + 1, b"checkpoint")


class Recorder:
    """Keeps what a recovery shows, as whole frames."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def on_batch(self, header: BatchHeader, frame: bytes) -> None:
        assert frames.verify_batch(frame) == header
        self.frames.append(frame)

    def on_note(self, kind: int, payload: bytes, place: int = 0) -> None:
        self.frames.append(frames.encode_note(kind, payload))

    @property
    def batches(self) -> list[bytes]:
        return [frame for frame in self.frames if frame.startswith(frames.BATCH_MAGIC)]


def batch(first: int, count: int = 1, size: int = 100, epoch: int = 1) -> bytes:
    """A batch whose payload tells it from every other."""
    seed = b"%d/%d/%d." % (epoch, first, count)
    return frames.encode_batch(epoch, first, count, first - 1, [(seed * (size // len(seed) + 1))[:size]])


def note(text: str) -> bytes:
    return frames.encode_note(KIND, text.encode())


def open_journal(
    storage: Storage,
    options: JournalOptions = SMALL,
    checkpoint: CheckpointSource | None = lambda: CHECKPOINT,
    visitor: FrameVisitor | None = None,
) -> tuple[Recorder, Recovered]:
    """Recover what is there; ``visitor`` sees it in place of the recorder."""
    recorder = Recorder()
    return recorder, recover(storage, IDENTITY, options, visitor or recorder, checkpoint=checkpoint)


def new_journal(
    storage: Storage, options: JournalOptions = SMALL, checkpoint: CheckpointSource | None = lambda: CHECKPOINT
) -> Journal:
    return open_journal(storage, options, checkpoint)[1].journal


def fill(journal: Journal, groups: int, *, first: int = 1, size: int = 400) -> list[bytes]:
    """Append and sync `groups` batches of one offset each."""
    result = [batch(offset, size=size) for offset in range(first, first + groups)]
    for frame in result:
        journal.append(frame)
        journal.sync_now()
    return result
