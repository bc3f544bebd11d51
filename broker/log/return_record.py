"""The RETURN record: messages come back to their queues, with how often each has failed there and when each is due again.

Counts are totals, not steps. So a record that a later state has overtaken is told from a newer one, and passed over: `hand_outs`
grows with each return of a message.

Payload: ``queues u32 | (queue id u64, messages u32, (id u64, failures u32, hand-outs u32, due ms u64) each) each``.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from understudy.broker.log.record import HEAD, RETURN, TRANSIENT

_COUNT: Final = Struct(">I")
_GROUP: Final = Struct(">QI")
_ENTRY: Final = Struct(">QIIQ")
MOST: Final = 10_000
"""So many messages one record names: it is short, and applying it takes no long step."""
MOST_COUNTED: Final = (1 << 32) - 1
"""A count stays there."""


class Returned(NamedTuple):
    """Counts and due time of a message that came back to its queue, or was published to come late.

    Attributes:
        failures: how often its processing has failed, in this queue.
        hand_outs: how often it was handed out and came back; never less than ``failures``.
        due_ms: no client gets it before, in ms since 1970; 0 if it is not withheld.
    """

    failures: int = 0
    hand_outs: int = 0
    due_ms: int = 0


NEVER: Final = Returned()
"""Of a message that has not come back."""
ReturnGroup = tuple[int, list[tuple[int, Returned]]]
"""(queue id, [(id, what is known)])."""


def encode_return(groups: Sequence[ReturnGroup], transient: bool) -> bytes:
    """A whole RETURN. It is transient if no queue of ``groups`` is durable."""
    body = [_COUNT.pack(len(groups))]
    for queue_id, entries in groups:
        body.append(_GROUP.pack(queue_id, len(entries)))
        body += [_ENTRY.pack(entry_id, *returned) for entry_id, returned in entries]
    raw = b"".join(body)
    return HEAD.pack(RETURN | TRANSIENT if transient else RETURN, len(raw)) + raw


def decode_return(buf: bytes, at: int) -> list[ReturnGroup]:
    """``at`` is where the payload begins."""
    groups: list[ReturnGroup] = []
    (count,) = _COUNT.unpack_from(buf, at)
    at += _COUNT.size
    for _ in range(count):
        queue_id, n = _GROUP.unpack_from(buf, at)
        at += _GROUP.size
        entries = []
        for _ in range(n):
            entry_id, failures, hand_outs, due_ms = _ENTRY.unpack_from(buf, at)
            entries.append((entry_id, Returned(failures, hand_outs, due_ms)))
            at += _ENTRY.size
        groups.append((queue_id, entries))
    return groups
