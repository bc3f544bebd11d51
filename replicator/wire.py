"""Messages between primary and backup, and their bytes: wire versions 1 and 2.

A message is one octet of kind and a payload; the fabric frames it. A batch travels as the very bytes that the journal keeps,
behind the stable position of the moment.

The order of a conversation: the backup says SYNC (what it has). The primary answers RESUME (keep your log up to here, the
rest follows) or CATCH_UP (tell me your ids), to which the backup says IDS and the primary BASE, then DROP, TRANSACTION and
QUEUE pieces beside the log, then CAUGHT_UP. BASE comes again, further on, if the log grew too long while the transactions were
sent. Meanwhile and ever after: BATCH, STABLE and STATUS one way, ACK, PIECE_ACK, NO and LOW_DISK the other.

A message that came after version 1 is sent only where ``Link.wire_version`` says that the other end knows it. What was added at
the end of SYNC, RESUME and CATCH_UP (the founding, decision 0024; what is stable, and the forced epoch, decision 0028) a program
that does not know it passes over, and lacking it is 0.
So it does with the bytes that a catch-up would bring, which end a CATCH_UP to a backup whose disk is nearly full.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

import attrs

from understudy.broker.errors import UnderstudyError, cut_text
from understudy.broker.log.record import read_short, short
from understudy.broker.octets.chunks import joined_to
from understudy.replicator.id_set import IdSet

WIRE_VERSION: Final = 2
"""The newest version this code speaks. Its messages are those of version 1; its handshake tells strangers nothing."""
OLDEST_WIRE_VERSION: Final = 1
"""The oldest one it understands: a rolling upgrade replaces backups first."""

SYNC: Final = 1
RESUME: Final = 2
CATCH_UP: Final = 3
IDS: Final = 4
BASE: Final = 5
DROP: Final = 6
TRANSACTION: Final = 7
QUEUE: Final = 8
CAUGHT_UP: Final = 9
BATCH: Final = 10
STABLE: Final = 11
ACK: Final = 12
PIECE_ACK: Final = 13
NO: Final = 14
STATUS: Final = 15
LOW_DISK: Final = 16
REASON_BYTES: Final = 200

_SYNC: Final = Struct(">IQQBHH")
_START: Final = Struct(">IQ")
_NO: Final = Struct(">QQ")
_RESUME: Final = Struct(">IQQ")
_U64: Final = Struct(">Q")
_U32: Final = Struct(">I")
_KEPT: Final = Struct(">QI")

FRESH: Final = 1
PART: Final = 2

BASE_NEW: Final = 0
BASE_OF_REFILL: Final = 1
BASE_AGAIN: Final = 2
"""Forms of a BASE, its second octet. NEW: what is held of transactions goes. OF_REFILL: the log goes on, only what is transient is
added. AGAIN: the log begins anew once more, and the transactions that are named stay."""
_LACKING: Final = 0x80
"""Added to the form."""


class WireError(UnderstudyError):
    """The peer said something that is not of this protocol; the link closes, nobody else stops."""


class UnknownMessageError(WireError):
    """The peer sent a message that this program does not know: it runs a newer one."""

    def __init__(self, kind: int) -> None:
        super().__init__(
            f"message of kind {kind} is not known to this program, which speaks wire versions {OLDEST_WIRE_VERSION} to "
            f"{WIRE_VERSION}"
        )


def misplaced(kind: int, role: str) -> WireError:
    """The error for a message of that kind, which a broker in ``role`` has no use for now."""
    if SYNC <= kind <= LOW_DISK:
        return WireError(f"message of kind {kind} is not for a {role}, or not now")
    return UnknownMessageError(kind)


@attrs.frozen(kw_only=True)
class Sync:
    """The state of a backup when it links.

    Attributes:
        epoch_seen: the highest epoch it knows, durably.
        log_start: its log holds everything after this offset (0, or the base of a catch-up).
        end: its last offset.
        starts: (epoch, first offset), oldest first.
        fresh: its process is new since it last heard from a primary, so transient messages are gone.
        part: a catch-up was broken off: what it holds is no state of the group.
        no_votes: (transaction id, offset of the PREPARE it says no to).
        low_disk: why it has no room for more, "" if it has.
        founding: of the group that its log belongs to, 0 if it holds nothing or does not say.
        stable: how far of what its log holds it knows to be stable; 0 if it does not say.
    """

    epoch_seen: int
    log_start: int
    end: int
    starts: tuple[tuple[int, int], ...]
    fresh: bool
    part: bool
    no_votes: tuple[tuple[int, int], ...]
    low_disk: str = ""
    founding: int = 0
    stable: int = 0

    @property
    def newest(self) -> int:
        """The epoch of its last record, 0 for an empty log."""
        return self.starts[-1][0] if self.starts else 0


def encode_sync(sync: Sync) -> bytes:
    flags = (FRESH if sync.fresh else 0) | (PART if sync.part else 0)
    return b"".join(
        [
            bytes((SYNC,)),
            _SYNC.pack(sync.epoch_seen, sync.log_start, sync.end, flags, len(sync.starts), len(sync.no_votes)),
            *[_START.pack(*start) for start in sync.starts],
            *[_NO.pack(*no) for no in sync.no_votes],
            short(cut_text(sync.low_disk, REASON_BYTES)),
            _U64.pack(sync.founding),
            _U64.pack(sync.stable),
        ]
    )


def _number_at(buf: bytes, at: int) -> int:
    """The number that later versions added to a message; 0 if it is not there."""
    return int(_U64.unpack_from(buf, at)[0]) if len(buf) >= at + _U64.size else 0


def decode_sync(buf: bytes) -> Sync:
    epoch_seen, log_start, end, flags, starts, no_votes = _SYNC.unpack_from(buf, 1)
    at = 1 + _SYNC.size
    no_votes_at = at + _START.size * starts
    low_disk, founding_at = read_short(buf, no_votes_at + _NO.size * no_votes)
    return Sync(
        epoch_seen=epoch_seen,
        log_start=log_start,
        end=end,
        starts=tuple(_START.unpack_from(buf, at + _START.size * i) for i in range(starts)),
        fresh=bool(flags & FRESH),
        part=bool(flags & PART),
        no_votes=tuple(_NO.unpack_from(buf, no_votes_at + _NO.size * i) for i in range(no_votes)),
        low_disk=low_disk,
        founding=_number_at(buf, founding_at),
        stable=_number_at(buf, founding_at + _U64.size),
    )


def encode_resume(epoch: int, common: int, stable: int, founding: int = 0, forced: int = 0) -> bytes:
    """Keep your log up to ``common``; what follows is sent. ``founding``, ``forced``: of the primary's group."""
    return bytes((RESUME,)) + _RESUME.pack(epoch, common, stable) + _U64.pack(founding) + _U64.pack(forced)


def decode_resume(buf: bytes) -> tuple[int, int, int]:
    return _RESUME.unpack_from(buf, 1)


def encode_catch_up(epoch: int, founding: int = 0, forced: int = 0, brings: int | None = None) -> bytes:
    """You are not listed, and your log cannot be continued; say which ids you hold.

    Args:
        epoch: of the primary.
        founding: of its group.
        forced: the newest epoch of the group that an operator has forced.
        brings: about how many bytes the catch-up of a backup that holds nothing would bring; None: it is not said.
    """
    said = _U64.pack(brings) if brings is not None else b""
    return bytes((CATCH_UP,)) + _U32.pack(epoch) + _U64.pack(founding) + _U64.pack(forced) + said


def decode_catch_up(buf: bytes) -> int:
    return int(_U32.unpack_from(buf, 1)[0])


def decode_brings(buf: bytes) -> int | None:
    """Of a CATCH_UP: see :func:`encode_catch_up`."""
    at = 1 + _U32.size + 2 * _U64.size
    return int(_U64.unpack_from(buf, at)[0]) if len(buf) >= at + _U64.size else None


def decode_founding(buf: bytes) -> int:
    """Of a RESUME or CATCH_UP: 0 if it does not say."""
    return _number_at(buf, _founding_position(buf))


def decode_forced(buf: bytes) -> int:
    """Of a RESUME or CATCH_UP: the newest epoch that an operator has forced, 0 if there is none or it does not say."""
    return _number_at(buf, _founding_position(buf) + _U64.size)


def _founding_position(buf: bytes) -> int:
    return 1 + (_RESUME.size if buf[0] == RESUME else _U32.size)


def encode_ids(held: Sequence[tuple[int, IdSet]]) -> bytes:
    """(queue id, ids held) of every queue."""
    return b"".join([bytes((IDS,)), _U32.pack(len(held)), *[_U64.pack(q) + ids.encode() for q, ids in held]])


def decode_ids(buf: bytes) -> dict[int, IdSet]:
    (count,) = _U32.unpack_from(buf, 1)
    at = 5
    held: dict[int, IdSet] = {}
    for _ in range(count):
        (queue_id,) = _U64.unpack_from(buf, at)
        held[queue_id], at = IdSet.decode(buf, at + 8)
    return held


def encode_base(form: int, meta: bytes, kept: Sequence[tuple[int, int]] = (), lacking: bool = False) -> bytes:
    """Everything that is not a message.

    Args:
        form: NEW, OF_REFILL or AGAIN.
        meta: a `Meta`, encoded.
        kept: of the form AGAIN: (transaction id, events sent of it so far).
        lacking: a closed transaction that is not decided lacks transient events, which the primary has lost by a restart;
            its EPOCH, which is not stable yet, says so to all. Nobody can be held to them.
    """
    names = [_U32.pack(len(kept)), *[_KEPT.pack(*each) for each in kept]] if form == BASE_AGAIN else []
    return b"".join([bytes((BASE, form | _LACKING if lacking else form)), meta, *names])


def base_form(buf: bytes) -> int:
    """NEW, OF_REFILL, AGAIN, or what this program does not know."""
    return buf[1] & ~_LACKING


def base_is_lacking(buf: bytes) -> bool:
    """See :func:`encode_base`."""
    return bool(buf[1] & _LACKING)


def decode_kept(buf: bytes, at: int) -> dict[int, int]:
    """The kept transactions at ``at``, behind the meta of a BASE of the form AGAIN: transaction id to events sent of it so far."""
    (count,) = _U32.unpack_from(buf, at)
    return dict(_KEPT.unpack_from(buf, at + 4 + _KEPT.size * i) for i in range(count))


def encode_drop(queue_id: int, ids: IdSet) -> bytes:
    """These ids are not in that queue any more."""
    return bytes((DROP,)) + _U64.pack(queue_id) + ids.encode()


def decode_drop(buf: bytes) -> tuple[int, IdSet]:
    return _U64.unpack_from(buf, 1)[0], IdSet.decode(buf, 9)[0]


def encode_batch(stable: int, frame: bytes) -> bytes:
    """A large frame is not copied (``broker.octets.chunks``)."""
    head = bytes((BATCH,)) + _U64.pack(stable)
    return head + frame if frame.__class__ is bytes else joined_to(head, frame)


def encode_stable(stable: int) -> bytes:
    return bytes((STABLE,)) + _U64.pack(stable)


def encode_ack(offset: int) -> bytes:
    """Everything up to ``offset`` is fsynced here, under the epoch of this link."""
    return bytes((ACK,)) + _U64.pack(offset)


def encode_piece_ack(count: int) -> bytes:
    """The first ``count`` pieces of this catch-up are fsynced here."""
    return bytes((PIECE_ACK,)) + _U64.pack(count)


def decode_number(buf: bytes) -> int:
    """The number of a STABLE, ACK or PIECE_ACK, or the stable position of a BATCH."""
    return int(_U64.unpack_from(buf, 1)[0])


def encode_no(tx_id: int, prepare_offset: int, reason: str) -> bytes:
    return bytes((NO,)) + _NO.pack(tx_id, prepare_offset) + short(cut_text(reason, REASON_BYTES))


def decode_no(buf: bytes) -> tuple[int, int, str]:
    tx_id, prepare_offset = _NO.unpack_from(buf, 1)
    return tx_id, prepare_offset, read_short(buf, 1 + _NO.size)[0]


def encode_status(status: str) -> bytes:
    """The primary tells a backup that it is listed ("ready"), or what is between it and that, for its own status page."""
    return bytes((STATUS,)) + status.encode()


def decode_status(buf: bytes) -> str:
    return buf[1:].decode()


def encode_low_disk(reason: str) -> bytes:
    """A backup tells the primary that its disk is nearly full, and why; "": there is room again."""
    return bytes((LOW_DISK,)) + short(cut_text(reason, REASON_BYTES))


def decode_text(buf: bytes) -> str:
    return read_short(buf, 1)[0]
