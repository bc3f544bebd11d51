"""``understudy journal check``: what is in a journal, and whether it may be believed. Errors of the journal send operators here.

It reads and takes no lock, so it may look at the directory of a broker that runs; the end of that one is in motion.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from understudy.broker.errors import UnderstudyError
from understudy.broker.log.frame import BatchHeader
from understudy.broker.log.journal_recovery import scan
from understudy.broker.log.segment import JournalDamagedError
from understudy.broker.server.file_storage import FileStorage


class DamageFoundError(UnderstudyError):
    """What the check was asked to look for."""


class _Nobody:
    """Whom the frames are shown to."""

    def on_batch(self, header: BatchHeader, frame: bytes) -> None:
        pass

    def on_note(self, kind: int, payload: bytes) -> None:
        pass


def checked(directory: Path) -> Iterator[str]:
    """Read the journal there; lines for people.

    Raises:
        DamageFoundError: something that was once synced is not what it was.
        JournalFormatError, WrongIdentityError: of a newer program; of more than one broker.
        OSError: it cannot be read.
    """
    storage = FileStorage(directory, read_only=True)
    try:
        report = scan(storage, _Nobody())
    except JournalDamagedError as error:
        raise DamageFoundError(
            f"{directory}: {error.file} is damaged at byte {error.position}: {error.reason}. No broker starts with it. "
            "If others of its group hold the data: move the directory away, and the broker is caught up by them"
        ) from error
    finally:
        storage.close()
    yield (
        f"{directory}: segments {report.segments}, bytes {report.bytes}, groups {report.groups}, batches {report.batches}, "
        f"notes {report.notes}, log {report.first_offset or '-'}..{report.last_offset}"
    )
    yield from report.warnings
    if report.torn is None:
        yield "undamaged, its end is clean"
    else:
        yield f"undamaged, but {report.torn}"
        yield "the next start cuts that (has cut it, if the broker runs): nothing of it was ever answered"
