"""Notes that a member of a group writes to its journal, beside the group's log. Their kinds and octets never change.

=========== ==== ===========================================================================================
note        kind payload
=========== ==== ===========================================================================================
EPOCH_SEEN  16   u32 the highest epoch that this broker has seen | u64 founding of the group in which it was
NO          17   u64 transaction | u64 offset of its PREPARE | reason in UTF-8: this broker refuses it
NO_ENDED    18   u64 transaction | u64 offset of its PREPARE: the refusal is over
FOUNDING    20   u64 founding: this broker is about to found that group
PIECE       128  a message of a catch-up (`wire`): BASE, DROP, TRANSACTION, QUEUE or CAUGHT_UP
=========== ==== ===========================================================================================

The broker's own kinds are in ``broker.log.journal_gate``. PIECE is a bound kind (``broker.log.frame``): the log flows beside a
catch-up, so a batch that takes a message away may stand before the piece that brings it.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Final, NamedTuple

from understudy.broker.log import frame
from understudy.broker.log.journal_gate import NoteFormatError

EPOCH_SEEN: Final = frame.FIRST_OWNER_KIND
NO: Final = frame.FIRST_OWNER_KIND + 1
NO_ENDED: Final = frame.FIRST_OWNER_KIND + 2
FOUNDING: Final = frame.FIRST_OWNER_KIND + 4
PIECE: Final = frame.FIRST_BOUND_KIND
NAMES: Final[Mapping[int, str]] = {
    EPOCH_SEEN: "EPOCH_SEEN",
    NO: "NO",
    NO_ENDED: "NO_ENDED",
    FOUNDING: "FOUNDING",
    PIECE: "PIECE",
}

NOTES_FORMAT: Final = 2
"""Of the notes that name a founding, and of the plugin's part of a checkpoint. Format 1 had no founding."""

_EPOCH_SEEN: Final = Struct(">IQ")
_FOUNDING: Final = Struct(">Q")
_NO: Final = Struct(">QQ")


def _unpack(layout: Struct, payload: bytes) -> tuple[int, ...]:
    if len(payload) != layout.size:
        raise NoteFormatError("note of the ha plugin", 1, NOTES_FORMAT, NOTES_FORMAT)
    return layout.unpack(payload)


class EpochSeen(NamedTuple):
    """An EPOCH_SEEN note."""

    epoch: int
    founding: int

    def encode(self) -> bytes:
        """The payload."""
        return _EPOCH_SEEN.pack(*self)

    @classmethod
    def decode(cls, payload: bytes) -> EpochSeen:
        """The note with this payload.

        Raises:
            NoteFormatError: a program of another format has written it.
        """
        return cls(*_unpack(_EPOCH_SEEN, payload))


class No(NamedTuple):
    """A NO note, or the NO_ENDED that ends it; that has no reason."""

    tx_id: int
    offset: int
    reason: str = ""

    def encode(self) -> bytes:
        """The payload."""
        return _NO.pack(self.tx_id, self.offset) + self.reason.encode()

    @classmethod
    def decode(cls, payload: bytes, errors: str = "strict") -> No:
        """The note with this payload. ``errors``: for octets of the reason that are no UTF-8, as of `bytes.decode`.

        Raises:
            struct.error: the payload has fewer than 16 octets.
            UnicodeDecodeError: the reason is no UTF-8.
        """
        tx_id, offset = _NO.unpack_from(payload)
        return cls(tx_id, offset, payload[_NO.size :].decode("utf-8", errors))


def encode_founding(founding: int) -> bytes:
    """The payload of a FOUNDING note."""
    return _FOUNDING.pack(founding)


def decode_founding(payload: bytes) -> int:
    """The founding in a FOUNDING note.

    Raises:
        NoteFormatError: a program of another format has written it.
    """
    return _unpack(_FOUNDING, payload)[0]


class GroupNotes:
    """Implements ``broker.plugin_api.journal_notes.JournalNotes``."""

    kinds: Mapping[int, str] = NAMES
    after_repair = (
        "This broker does not lead, and its primary fills it again when it starts. If no other broker of the group can come back: "
        "`understudy promote --unclean`; see docs/configuration.md, A damaged journal."
    )

    @staticmethod
    def epoch_of(kind: int, payload: bytes) -> int:
        """The highest epoch that a note says to have been seen; 0 if the note is about none."""
        return EpochSeen.decode(payload).epoch if kind == EPOCH_SEEN else 0
