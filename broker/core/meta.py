"""Meta: everything of a broker's state that is not a message, as bytes. For checkpoints and catch-ups."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

import attrs

from understudy.broker.core.registry import TopologyImage
from understudy.broker.core.state import BrokerState
from understudy.broker.log import record
from understudy.broker.log.journal_gate import check_format
from understudy.broker.transactions.outcomes import Outcomes

META_FORMAT: Final = 1
"""Of the bytes that :meth:`Meta.encode` makes; their first."""

_HEAD: Final = Struct(">BQQHII")
_START: Final = Struct(">IQ")
_OWED: Final = Struct(">QQ")


@attrs.frozen(kw_only=True)
class Meta:
    """The applied state at ``offset``, less the messages. ``owed``: `BrokerState.owed`, as (transaction id, CSN)."""

    offset: int
    csn: int
    starts: tuple[tuple[int, int], ...]
    topology: tuple[bytes, ...]
    outcomes: Outcomes
    owed: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, state: BrokerState, *, whole_log: bool = False) -> Meta:
        """The state as it is applied now.

        With ``whole_log`` the epochs are those of the whole log, not only of what is applied: a checkpoint's, since the records
        between may go with older segments, and then nothing else says where their epochs began.
        """
        log = state.log
        starts = tuple(start for start in log.epochs.starts() if whole_log or start[1] <= log.applied)
        return cls(
            offset=log.applied,
            csn=state.csn,
            starts=starts,
            topology=tuple(state.image.records()),
            outcomes=state.outcomes,
            owed=tuple(state.owed.items()),
        )

    def encode(self) -> bytes:
        return b"".join(
            [
                _HEAD.pack(META_FORMAT, self.offset, self.csn, len(self.starts), len(self.topology), len(self.owed)),
                *[_START.pack(*start) for start in self.starts],
                *[_OWED.pack(*owed) for owed in self.owed],
                *self.topology,
                self.outcomes.encode(),
            ]
        )

    @classmethod
    def decode(cls, buf: bytes, at: int = 0) -> tuple[Meta, int]:
        """The meta at ``at``, and where it ends.

        Raises:
            NoteFormatError: it is of another format.
            UnknownKindError: it holds something else than topology, or topology of a newer kind.
        """
        check_format("state without messages", buf[at], META_FORMAT)
        _, offset, csn, starts, topology, owed_count = _HEAD.unpack_from(buf, at)
        at += _HEAD.size
        epochs = []
        for _ in range(starts):
            epochs.append(_START.unpack_from(buf, at))
            at += _START.size
        owed = tuple(_OWED.unpack_from(buf, at + _OWED.size * i) for i in range(owed_count))
        at += _OWED.size * owed_count
        records = []
        for _ in range(topology):
            kind, length = record.HEAD.unpack_from(buf, at)
            if kind & 0x7F not in record.TOPOLOGY:
                raise record.UnknownKindError(kind & 0x7F, "among the topology")
            records.append(buf[at : at + 5 + length])
            at += 5 + length
        outcomes, at = Outcomes.decode(buf, at)
        meta = cls(
            offset=offset,
            csn=csn,
            starts=tuple(epochs),
            topology=tuple(records),
            outcomes=outcomes,
            owed=owed,
        )
        return meta, at

    def install(self, state: BrokerState, later: Sequence[bytes] = ()) -> None:
        """Make topology and outcomes of ``state`` these; queues that are not in it go, with what they hold.

        ``later``: topology records behind this, which ``state`` has applied already.
        """
        state.image = TopologyImage()
        state.refilled_exchanges.clear()
        for raw in (*self.topology, *later):
            state.image.apply(raw[0] & 0x7F, bytes((raw[0] & 0x7F,)) + raw[1:])
        state.outcomes = self.outcomes
        state.owed = dict(self.owed)
        state.csn = max(state.csn, self.csn)
        state.rebuild_registry()
