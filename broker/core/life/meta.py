"""Meta: everything of a broker's state that is not a message, as bytes. For checkpoints and catch-ups."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

import attrs

from understudy.broker.core.state import BrokerState
from understudy.broker.log import record
from understudy.broker.log.journal_gate import check_format
from understudy.broker.transactions.dtx_branch import BranchName, Completion
from understudy.broker.transactions.outcomes import Outcomes
from understudy.broker.transactions.xid import Xid

META_FORMAT: Final = 3
"""The newest format of the bytes that :meth:`Meta.encode` makes; their first. 2 adds completions at the end, 3 adds ids of messages
behind them. The oldest is written that has room for what is there: only a log of record format 2 brings completions, one of format
5 such ids, and an older program reads an older format."""

_HEAD: Final = Struct(">BQQHII")
_START: Final = Struct(">IQ")
_OWED: Final = Struct(">QQ")
_COUNT: Final = Struct(">I")
_COMPLETION: Final = Struct(">BQQ")


@attrs.frozen(kw_only=True)
class Meta:
    """The applied state at ``offset``, less the messages and the transactions.

    ``owed``: `Applying.owed`, as (transaction id, CSN). ``completions``: `Applying.completions`. ``message_ids``: what
    `IdWindows.encode` says.
    """

    offset: int
    csn: int
    starts: tuple[tuple[int, int], ...]
    topology: tuple[bytes, ...]
    outcomes: Outcomes
    owed: tuple[tuple[int, int], ...] = ()
    completions: dict[BranchName, Completion] = attrs.field(factory=dict)
    message_ids: bytes = b""

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
            csn=state.applying.csn,
            starts=starts,
            topology=tuple(state.topology.image.records()),
            outcomes=state.applying.outcomes,
            owed=tuple(state.applying.owed.items()),
            completions=dict(state.applying.completions),
            message_ids=state.id_windows.encode(state.queues) if state.applying.deduplicates else b"",
        )

    def encode(self) -> bytes:
        return b"".join(self.parts())

    def parts(self) -> list[bytes | bytearray]:
        """The same in pieces, to be joined at once."""
        ids = self.message_ids
        completions = self._encode_completions() if self.completions or ids else b""
        return [
            _HEAD.pack(
                3 if ids else 2 if completions else 1,
                self.offset,
                self.csn,
                len(self.starts),
                len(self.topology),
                len(self.owed),
            ),
            *[_START.pack(*start) for start in self.starts],
            *[_OWED.pack(*owed) for owed in self.owed],
            *self.topology,
            *self.outcomes.parts(),
            completions,
            *([_COUNT.pack(len(ids)), ids] if ids else []),
        ]

    def _encode_completions(self) -> bytes:
        rows = [
            _COMPLETION.pack(each.committed, each.offset, each.time_ms) + record.short(vhost) + xid.encode()
            for (vhost, xid), each in self.completions.items()
        ]
        return _COUNT.pack(len(rows)) + b"".join(rows)

    @staticmethod
    def _decode_completions(buf: bytes, at: int) -> tuple[dict[BranchName, Completion], int]:
        (count,) = _COUNT.unpack_from(buf, at)
        at += _COUNT.size
        found: dict[BranchName, Completion] = {}
        for _ in range(count):
            committed, offset, time_ms = _COMPLETION.unpack_from(buf, at)
            vhost, at = record.read_short(buf, at + _COMPLETION.size)
            xid, at = Xid.decode(buf, at)
            found[(vhost, xid)] = Completion(committed=bool(committed), offset=offset, time_ms=time_ms)
        return found, at

    @classmethod
    def decode(cls, buf: bytes, at: int = 0) -> tuple[Meta, int]:
        """The meta at ``at``, and where it ends.

        Raises:
            NoteFormatError: it is of another format.
            UnknownKindError: it holds something else than topology, or topology of a newer kind.
        """
        check_format("state without messages", buf[at], META_FORMAT)
        meta_format, offset, csn, starts, topology, owed_count = _HEAD.unpack_from(buf, at)
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
        completions: dict[BranchName, Completion] = {}
        if meta_format > 1:
            completions, at = cls._decode_completions(buf, at)
        message_ids = b""
        if meta_format > 2:
            at += _COUNT.size
            end = at + _COUNT.unpack_from(buf, at - _COUNT.size)[0]
            message_ids, at = bytes(buf[at:end]), end
        meta = cls(
            offset=offset,
            csn=csn,
            starts=tuple(epochs),
            topology=tuple(records),
            outcomes=outcomes,
            owed=owed,
            completions=completions,
            message_ids=message_ids,
        )
        return meta, at

    def install(self, state: BrokerState, later: Sequence[bytes] = ()) -> None:
        """Make topology and outcomes of ``state`` these; queues that are not in it go, with what they hold.

        ``later``: topology records behind this, which ``state`` has applied already.
        """
        state.topology.install((*self.topology, *later))
        state.applying.install(self.outcomes, dict(self.owed), self.completions, self.csn)
        state.topology.rebuild_registry()
        state.id_windows.install(state.queues, self.message_ids)
