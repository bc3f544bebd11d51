"""REPAIRED: the note by which a repair tells the next start that the journal was cut before damage.

A plugin that extends the core hears of it: other brokers may have been told of what was cut off.
A broker that runs alone begins an epoch above all that the damaged journal has seen: no id of a transaction is given twice.

Payload, all big-endian: ``format u8 | flags u8 | epoch u64 | kept u64 | lost u64``.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from understudy.broker.log.journal_gate import check_format

REPAIRED_FORMAT: Final = 1
_NOTE: Final = Struct(">BBQQQ")
_OF_GROUP: Final = 1
_SETTLED: Final = 2


class RepairedNote(NamedTuple):
    """A REPAIRED note.

    Attributes:
        epoch: the highest that was read before or behind the damage.
        kept: the last log offset before the damage.
        lost: the last log offset that was read behind the damage; ``kept`` if none was.
        of_group: notes of a plugin were read before or behind the damage.
        settled: an operator has made this broker the base of its group since: the earlier notes say nothing more.
    """

    epoch: int
    kept: int
    lost: int
    of_group: bool
    settled: bool = False

    def encode(self) -> bytes:
        """The payload."""
        flags = (_OF_GROUP if self.of_group else 0) | (_SETTLED if self.settled else 0)
        return _NOTE.pack(REPAIRED_FORMAT, flags, self.epoch, self.kept, self.lost)

    @classmethod
    def decode(cls, payload: bytes) -> RepairedNote:
        """The note with this payload.

        Raises:
            NoteFormatError: a newer program has written it.
        """
        check_format("note of a repair", payload[0], REPAIRED_FORMAT)
        _, flags, epoch, kept, lost = _NOTE.unpack_from(payload)
        return cls(epoch, kept, lost, bool(flags & _OF_GROUP), bool(flags & _SETTLED))
