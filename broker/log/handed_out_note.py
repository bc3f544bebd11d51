"""HANDED_OUT: the note by which a broker that stops cleanly keeps what it has handed out apart from what it has not.

After a crash every message that stands in a queue may have been delivered, and is handed out as redelivered. A broker that led
until it stopped knows better: consumers get messages in the order of ids, so that none was delivered from the first one on that is
still in line. The note counts only for the next epoch, and only if the log ends where it ended: nobody has led in between.

Payload, all big-endian: ``format u8 | epoch u64 | end u64 | queues u32``, then for each ``queue u64 | below u64``.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Final, NamedTuple

from understudy.broker.log.journal_gate import check_format

HANDED_OUT_FORMAT: Final = 1
_NOTE: Final = Struct(">BQQI")
_QUEUE: Final = Struct(">QQ")


class HandedOutNote(NamedTuple):
    """A HANDED_OUT note.

    Attributes:
        epoch: in which the broker led.
        end: of its log.
        below: by queue id: messages with this id or a higher one were never handed out.
    """

    epoch: int
    end: int
    below: Mapping[int, int]

    def encode(self) -> bytes:
        """The payload."""
        head = _NOTE.pack(HANDED_OUT_FORMAT, self.epoch, self.end, len(self.below))
        return b"".join([head, *(_QUEUE.pack(*each) for each in self.below.items())])

    @classmethod
    def decode(cls, payload: bytes) -> HandedOutNote:
        """The note with this payload.

        Raises:
            NoteFormatError: a newer program has written it.
        """
        check_format("note of what was handed out", payload[0], HANDED_OUT_FORMAT)
        _, epoch, end, count = _NOTE.unpack_from(payload)
        queues = _QUEUE.iter_unpack(payload[_NOTE.size : _NOTE.size + count * _QUEUE.size])
        return cls(epoch, end, dict(queues))
