"""IdWindow: the ids of messages that came to one queue, or through one exchange.

What it remembers follows from the log: an id is noted where the record of its message is applied, in log order, on every broker.
So a new leader forgets nothing. Nothing is forgotten because time passes, for clocks differ: the leader asks whether an id is still
young enough. That keeps windows equal, and a broker that is brought ids merges what it gets.

Beside that the leader keeps which ids are on their way (``coming``, ``claims``). They are in no record.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from struct import Struct
from typing import TYPE_CHECKING, Final

from understudy.broker.core.queues.deduplication import DeduplicationRule

if TYPE_CHECKING:
    from understudy.broker.transactions.tx_buffer import TxBuffer

_COUNT: Final = Struct(">I")
_ENTRY: Final = Struct(">QQBH")

Noted = tuple[int, int, bool]
"""(offset of the record that was applied, time in ms, whether the message was in no journal); time 0 is not known."""


class Claim:
    """An id of a transaction that is being committed: its message may come, or not.

    Attributes:
        tx: the transaction.
        waiting: are called when that is known.
    """

    __slots__ = ("tx", "waiting")

    def __init__(self, tx: TxBuffer) -> None:
        self.tx = tx
        self.waiting: list[Callable[[], None]] = []


class IdWindow:
    """The newest ids, at most ``rule.size``.

    Attributes:
        of_exchange: the window is an exchange's; else a queue's.
        since: offset of the record that began the window; 0 if it is not known. An older id is of another exchange of that name.
        noted: id to where and when it came, the oldest first.
        coming: id to the offset of the record that brings it, which is not applied yet (leading).
        claims: id to the transaction that brings it (leading).
    """

    __slots__ = ("claims", "coming", "noted", "of_exchange", "rule", "since")

    def __init__(self, rule: DeduplicationRule, *, of_exchange: bool = False) -> None:
        self.rule = rule
        self.of_exchange = of_exchange
        self.since = 0
        self.noted: OrderedDict[bytes, Noted] = OrderedDict()
        self.coming: dict[bytes, int] = {}
        self.claims: dict[bytes, Claim] = {}

    def begin_at(self, since: int) -> None:
        """The record that began the window stands at ``since``, or later."""
        self.since = max(self.since, since)

    def expect_as(self, before: IdWindow) -> None:
        """Have come what was on its way to ``before``."""
        self.coming, self.claims = before.coming, before.claims

    def note(self, message_id: bytes, noted: Noted) -> None:
        """A message with that id came."""
        self.coming.pop(message_id, None)
        self.noted.pop(message_id, None)
        self.noted[message_id] = noted
        if len(self.noted) > self.rule.size:
            self.noted.popitem(last=False)

    def remembers(self, message_id: bytes, now_ms: int) -> bool:
        """True if a message with that id came, and not too long ago."""
        noted = self.noted.get(message_id)
        if noted is None:
            return False
        ttl_ms, time_ms = self.rule.ttl_ms, noted[1]
        return ttl_ms is None or not time_ms or now_ms < time_ms + ttl_ms + self.rule.granularity_ms

    def comes(self, message_id: bytes, applied: int) -> bool:
        """True if a record that is appended and not applied brings that id."""
        return self.coming.get(message_id, 0) > applied

    def merge(self, others: Iterable[tuple[bytes, Noted]]) -> None:
        """Note what another broker has noted of the same log. Of one id the newer place counts."""
        found = dict(self.noted)
        for message_id, noted in others:
            if noted[0] > max(self.since, found[message_id][0] if message_id in found else 0):
                found[message_id] = noted
        newest = sorted(found.items(), key=lambda item: item[1][0])[-self.rule.size :]
        self.noted = OrderedDict(newest)

    def drop_transients(self, before: int) -> None:
        """Forget the transient messages that came before offset ``before``, and have ended: a client may publish them again."""
        for message_id in [each for each, noted in self.noted.items() if noted[2] and noted[0] < before]:
            del self.noted[message_id]

    def encode(self) -> bytes:
        """The noted ids, oldest first."""
        rows = [
            _ENTRY.pack(offset, time_ms, transient, len(message_id)) + message_id
            for message_id, (offset, time_ms, transient) in self.noted.items()
        ]
        return _COUNT.pack(len(rows)) + b"".join(rows)


def decode_noted(buf: bytes, at: int) -> tuple[list[tuple[bytes, Noted]], int]:
    """The ids that :meth:`IdWindow.encode` has put at ``at``, and where they end."""
    (count,) = _COUNT.unpack_from(buf, at)
    at += _COUNT.size
    found = []
    for _ in range(count):
        offset, time_ms, transient, size = _ENTRY.unpack_from(buf, at)
        at += _ENTRY.size
        found.append((bytes(buf[at : at + size]), (offset, time_ms, bool(transient))))
        at += size
    return found, at
