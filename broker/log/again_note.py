"""AGAIN and SETTLED: the notes by which one broker writes messages of old segments again, so that these may go.

An AGAIN note holds messages as they were applied when it was written, with the queues that hold them. A SETTLED note ends it: every
record that stands before the AGAIN note has had its effect by then, and the SETTLED note names the messages that have left their
queue meanwhile, and the counts that have changed. Why two notes: ``core/life/compaction.py``.

Both are local to a broker: they are in no batch, and on no link.

Payload of AGAIN, all big-endian:
``format u8 | number u64 | applied u64 | needs u64 | settled_after u64 | messages u32``, then for each message
``targets u32 | (queue id u64, entry id u64, deadline ms u64, failures u32, hand-outs u32, due ms u64) each | size u32 | message``.

Payload of SETTLED: ``format u8 | number u64 | applied u64 | gone u32 | known u32``, then for each that has gone
``queue id u64, entry id u64``, and for each whose counts have changed the same with ``failures u32, hand-outs u32, due ms u64``.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from understudy.broker.log import record
from understudy.broker.log.body_place import in_note
from understudy.broker.log.frame import NOTE_HEADER_BYTES
from understudy.broker.log.journal_gate import check_format
from understudy.broker.log.paged_bodies import contents_of
from understudy.broker.log.return_record import NEVER, Returned
from understudy.broker.message import Message
from understudy.broker.octets.chunks import flat

AGAIN_FORMAT: Final = 1
SETTLED_FORMAT: Final = 1

_APPLIED: Final = Struct(">BQQ")
_AGAIN: Final = Struct(">BQQQQI")
_TARGET: Final = Struct(">QQQIIQ")
_SETTLED: Final = Struct(">BQQII")
_ID: Final = Struct(">QQ")
_KNOWN: Final = Struct(">QQIIQ")
_U32: Final = Struct(">I")


def applied_of(payload: bytes) -> int:
    """The offset up to which the log was applied when the note with this payload was written, of either kind.

    Raises:
        NoteFormatError: a newer program has written it.
    """
    form, _, applied = _APPLIED.unpack_from(payload)
    check_format("note of messages written again", form, AGAIN_FORMAT)
    return int(applied)


class AgainTarget(NamedTuple):
    """The place of a message in one queue, and what the queue knows of it; `NEVER` if it has not come back."""

    queue_id: int
    entry_id: int
    deadline_ms: int
    returned: Returned = NEVER


class AgainNote(NamedTuple):
    """An AGAIN note.

    Attributes:
        number: of the note, ascending.
        applied: the offset up to which the log was applied when it was written; its messages stand there from then on.
        needs: records behind this offset may take back what the note says, until it is settled.
        settled_after: the log's end when the note was written: it is settled when everything up to there has had its effect.
        messages: each with its places, one at least.
    """

    number: int
    applied: int
    needs: int
    settled_after: int
    messages: list[tuple[Message, list[AgainTarget]]]

    def places(self, note: int) -> list[int]:
        """The places of its messages, in order, when its frame stands at ``note`` (`body_place`)."""
        at = NOTE_HEADER_BYTES + _AGAIN.size
        result = []
        for message, targets in self.messages:
            at += _U32.size + len(targets) * _TARGET.size + _U32.size
            size = len(record.message_head(message)) + len(message.properties) + message.size
            result.append(in_note(note, at, size))
            at += size
        return result

    def encode(self) -> bytes:
        """The payload."""
        parts = [
            _AGAIN.pack(AGAIN_FORMAT, self.number, self.applied, self.needs, self.settled_after, len(self.messages))
        ]
        bodies = contents_of([message for message, _ in self.messages])
        for (message, targets), body in zip(self.messages, bodies, strict=True):
            raw = [record.message_head(message), message.properties, body]
            parts.append(_U32.pack(len(targets)))
            parts += [_TARGET.pack(*target[:3], *target.returned) for target in targets]
            parts.append(_U32.pack(sum(map(len, raw))))
            parts += raw
        return b"".join(flat(parts))

    @classmethod
    def decode(cls, payload: bytes, place: int = 0) -> AgainNote:
        """The note with this payload. ``place``: of its frame, 0 if that is not known.

        Raises:
            NoteFormatError: a newer program has written it.
        """
        check_format("note of messages written again", payload[0], AGAIN_FORMAT)
        _, number, applied, needs, settled_after, count = _AGAIN.unpack_from(payload)
        at = _AGAIN.size
        messages = []
        for _ in range(count):
            (targets,) = _U32.unpack_from(payload, at)
            at += _U32.size
            places = []
            for _ in range(targets):
                queue_id, entry_id, deadline_ms, *returned = _TARGET.unpack_from(payload, at)
                places.append(AgainTarget(queue_id, entry_id, deadline_ms, Returned(*returned)))
                at += _TARGET.size
            (size,) = _U32.unpack_from(payload, at)
            at += _U32.size
            message, _ = record.decode_message(payload, at, at + size)
            if targets > 1:
                message.share()
            message.put_at(in_note(place, NOTE_HEADER_BYTES + at, size))
            messages.append((message, places))
            at += size
        return cls(number, applied, needs, settled_after, messages)


class SettledNote(NamedTuple):
    """A SETTLED note.

    Attributes:
        number: of the AGAIN note.
        applied: the offset up to which the log was applied when this was written.
        gone: (queue id, entry id) of those of its messages that have left.
        known: the same of those that have come back since, with what their queue knows of them.
    """

    number: int
    applied: int
    gone: Sequence[tuple[int, int]]
    known: Sequence[tuple[int, int, Returned]]

    def encode(self) -> bytes:
        """The payload."""
        return b"".join(
            (
                _SETTLED.pack(SETTLED_FORMAT, self.number, self.applied, len(self.gone), len(self.known)),
                *[_ID.pack(*each) for each in self.gone],
                *[_KNOWN.pack(queue_id, entry_id, *returned) for queue_id, entry_id, returned in self.known],
            )
        )

    @classmethod
    def decode(cls, payload: bytes) -> SettledNote:
        """The note with this payload.

        Raises:
            NoteFormatError: a newer program has written it.
        """
        check_format("note that settles messages written again", payload[0], SETTLED_FORMAT)
        _, number, applied, gone_count, known_count = _SETTLED.unpack_from(payload)
        at = _SETTLED.size
        gone = [_ID.unpack_from(payload, at + i * _ID.size) for i in range(gone_count)]
        at += gone_count * _ID.size
        known = []
        for i in range(known_count):
            queue_id, entry_id, *returned = _KNOWN.unpack_from(payload, at + i * _KNOWN.size)
            known.append((queue_id, entry_id, Returned(*returned)))
        return cls(number, applied, gone, known)
