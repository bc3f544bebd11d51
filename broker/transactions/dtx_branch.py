"""DtxBranch: what the log says of a transaction that has been prepared for a transaction manager.

A branch is a :class:`~understudy.broker.transactions.tx_buffer.TxBuffer` like any other until DTX_PREPARE stands behind its
events. From then on it has one of these, outlives its epoch, and ends by a PREPARE (which gives ids and CSN, and is the commit
record) or a ROLLBACK.
"""

from __future__ import annotations

import enum

import attrs

from understudy.broker.transactions.xid import Xid


class Owner(enum.IntEnum):
    """The decider of a transaction: exactly one, written into its PREPARE.

    LOCAL: the broker, at PREPARE (also of a branch that is committed in one phase). MANAGER: a transaction manager; the broker has
    prepared the branch and logs what it was told. OPERATOR: somebody has completed a prepared branch by hand.
    """

    LOCAL = 0
    MANAGER = 1
    OPERATOR = 2


@attrs.frozen(kw_only=True)
class DtxBranch:
    """A DTX_PREPARE record, and where it stands.

    Attributes:
        offset: of the record.
        time_ms: wall clock of the broker that led.
        events, digest, durable_events, durable_digest: as PREPARE states them of a local transaction.
    """

    vhost: str
    xid: Xid
    offset: int
    time_ms: int
    events: int
    digest: int
    durable_events: int
    durable_digest: int


@attrs.frozen(kw_only=True)
class Completion:
    """A branch that an operator has completed and nobody has forgotten.

    Attributes:
        offset: of the record that completed it.
        time_ms: wall clock of the broker that led.
    """

    committed: bool
    offset: int
    time_ms: int


BranchName = tuple[str, Xid]
"""(vhost, xid): what names a branch in a group."""
