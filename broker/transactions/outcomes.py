"""Outcomes of transactions, kept so that a client whose commit went unanswered can ask.

Outcomes are part of the log: a COMMIT or ROLLBACK record carries one, an OUTCOME record bars a client-made name. Every
broker therefore holds the same table. Of own ids only commits are kept: ids are ordered and carry the epoch that opened
them, so an id that is not here, not open and above the low-water mark was rolled back. Names have no order: of those that
committed and are no longer kept, ``forgotten`` knows enough not to call them rolled back.
"""

from __future__ import annotations

import enum
from heapq import merge
from itertools import islice, starmap, takewhile
from struct import Struct
from typing import Final

from understudy.broker.log.record import read_short, short
from understudy.broker.transactions.forgotten_names import ForgottenNames


class Outcome(enum.IntEnum):
    """The answers of the outcome query. PENDING and EXPIRED are never stored."""

    COMMITTED = 1
    ROLLED_BACK = 2
    PENDING = 3
    EXPIRED = 4

    @property
    def text(self) -> str:
        return self.name.lower().replace("_", " ")


_ID: Final = Struct(">QQ")
_NAME: Final = Struct(">BQQ")
_COUNTS: Final = Struct(">QII")


def _encoded_name(name: str, outcome: Outcome, tx_id: int, offset: int) -> bytes:
    return _NAME.pack(outcome, tx_id, offset) + short(name)


class Outcomes:
    """Outcomes by transaction id and by client-made name, oldest first, which is by offset: they are applied in log order.

    There may be a million, and each checkpoint states them: so their bytes are kept, encoded when they come, and a trim takes from
    the front. (Encoding half a million that have names took 0.7 s, at every segment, on every broker; encoding only
    those that came since the last segment, and finding where they begin, 5 ms.)

    Attributes:
        low_water: of own ids up to this one it is not known any more whether they committed.
        forgotten: names that committed and are not kept any more.
        unbarred_upto: offset of the newest outcome that barred a name and was trimmed since this table was made. In memory only: it
            concerns transactions that were open then, and these do not survive their epoch.
    """

    def __init__(self) -> None:
        self.low_water = 0
        self.unbarred_upto = 0
        self.forgotten = ForgottenNames()
        self._committed: dict[int, int] = {}
        self._named: dict[str, tuple[Outcome, int, int]] = {}
        self._ids_encoded = bytearray()
        self._names_encoded = bytearray()

    def __len__(self) -> int:
        return len(self._committed) + len(self._named)

    def committed(self, tx_id: int, name: str, offset: int) -> None:
        """``offset`` is that of the record that decided it, here and everywhere."""
        if tx_id not in self._committed:
            self._committed[tx_id] = offset
            self._ids_encoded += _ID.pack(tx_id, offset)
        if name:
            self._add_name(name, Outcome.COMMITTED, tx_id, offset)

    def rolled_back(self, tx_id: int, name: str, offset: int) -> None:
        """``tx_id`` 0: the name was barred before any transaction of that name closed."""
        if name:
            self._add_name(name, Outcome.ROLLED_BACK, tx_id, offset)

    def _add_name(self, name: str, outcome: Outcome, tx_id: int, offset: int) -> None:
        if name not in self._named:
            self._named[name] = (outcome, tx_id, offset)
            self._names_encoded += _encoded_name(name, outcome, tx_id, offset)

    def named(self, name: str) -> Outcome | None:
        """The outcome under a client-made name, None if nothing is known."""
        found = self._named.get(name)
        return found[0] if found is not None else None

    def of_id(self, tx_id: int, newest_id: int) -> Outcome | None:
        """The outcome of an own id that is not open; None for an id above ``newest_id``, which nobody has given out."""
        if tx_id in self._committed:
            return Outcome.COMMITTED
        if tx_id > newest_id:
            return None
        return Outcome.EXPIRED if tx_id <= self.low_water else Outcome.ROLLED_BACK

    def decided_at(self, tx_id: int) -> int:
        """Offset of the record that committed an own id, 0 if it is not known to be committed."""
        return self._committed.get(tx_id, 0)

    def trim_point(self, upto_offset: int, limit: int) -> tuple[int, int] | None:
        """(offset, low-water id) of the trim that is due, None if none is.

        Args:
            upto_offset: outcomes decided at or before it have been kept long enough. An offset, not a time: a clock that
                jumps must not make an outcome unknown.
            limit: no more than this many are kept, however young.
        """
        surplus = len(self) - limit
        if surplus > 0:
            by_offset = merge(self._committed.values(), (found[2] for found in self._named.values()))
            upto_offset = max(upto_offset, next(islice(by_offset, surplus - 1, None)))
        ids = self._ids_upto(upto_offset)
        if not ids and not self._names_upto(upto_offset):
            return None
        return upto_offset, max([self.low_water, *ids])

    def trim(self, upto_offset: int, low_water: int) -> None:
        """Apply an OUTCOMES_TRIMMED record."""
        self.low_water = max(self.low_water, low_water)
        for tx_id in self._ids_upto(upto_offset):
            del self._committed[tx_id]
            del self._ids_encoded[: _ID.size]
        encoded = 0
        for name in self._names_upto(upto_offset):
            outcome, _, offset = self._named.pop(name)
            encoded += _NAME.size + len(short(name))
            if outcome is Outcome.COMMITTED:
                self.forgotten.add(name)
            else:
                self.unbarred_upto = offset
        del self._names_encoded[:encoded]

    def _ids_upto(self, offset: int) -> list[int]:
        return [tx_id for tx_id, _ in takewhile(lambda item: item[1] <= offset, self._committed.items())]

    def _names_upto(self, offset: int) -> list[str]:
        return [name for name, _ in takewhile(lambda item: item[1][2] <= offset, self._named.items())]

    def add(self, later: Outcomes) -> None:
        """Add what another table of the same log knows of later records."""
        self.low_water = max(self.low_water, later.low_water)
        self.forgotten.merge(later.forgotten)
        for tx_id, offset in later._committed.items():
            self._committed.setdefault(tx_id, offset)
        for name, found in later._named.items():
            self._named.setdefault(name, found)
        self._committed = dict(sorted(self._committed.items(), key=lambda item: item[1]))
        self._named = dict(sorted(self._named.items(), key=lambda item: item[1][2]))
        self._ids_encoded = bytearray().join(starmap(_ID.pack, self._committed.items()))
        self._names_encoded = bytearray().join([_encoded_name(name, *found) for name, found in self._named.items()])

    # -- snapshots ------------------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """The table as bytes, for checkpoints and catch-ups."""
        return b"".join(self.parts())

    def parts(self) -> list[bytes | bytearray]:
        """The same in pieces, to be joined at once: large ones are this table's own."""
        counts = _COUNTS.pack(self.low_water, len(self._committed), len(self._named))
        return [counts, self._ids_encoded, self._names_encoded, self.forgotten.encode()]

    @classmethod
    def decode(cls, buf: bytes, at: int = 0) -> tuple[Outcomes, int]:
        """The table at ``at``, and where it ends."""
        table = cls()
        table.low_water, ids, names = _COUNTS.unpack_from(buf, at)
        at += _COUNTS.size
        for _ in range(ids):
            tx_id, offset = _ID.unpack_from(buf, at)
            table.committed(tx_id, "", offset)
            at += _ID.size
        for _ in range(names):
            outcome, tx_id, offset = _NAME.unpack_from(buf, at)
            name, at = read_short(buf, at + _NAME.size)
            table._add_name(name, Outcome(outcome), tx_id, offset)
        table.forgotten, at = ForgottenNames.decode(buf, at)
        return table, at
