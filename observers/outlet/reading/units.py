"""Units that the outlet sends, each of which is all or nothing, and positions between them.

A unit is one committed source transaction, or one message that was published outside of transactions. Units have the order of the
group's log, which is the order of commit sequence numbers (CSN), on every broker.
"""

from __future__ import annotations

from typing import Final

import attrs
import msgspec

from understudy.broker.errors import UnderstudyError
from understudy.broker.log.position import Position
from understudy.broker.message import Message

POSITION_VERSION: Final = 1


class PositionError(UnderstudyError):
    """The position that Kafka keeps is none that this program can use."""


@attrs.frozen(slots=True)
class Outgoing:
    """One message on its way into one queue.

    Attributes:
        vhost, queue: names.
        entry_id: replication id, 64 bits: its place in the queue.
        message: shared by all queues that it was routed to.
        bodiless: its body of ``message.size`` octets does not stand in the record that brings the message.
    """

    vhost: str
    queue: str
    entry_id: int
    message: Message
    bodiless: bool = False


@attrs.frozen(kw_only=True, slots=True)
class Unit:
    """One committed source transaction, or one message outside of transactions.

    Attributes:
        epoch, offset: position of its PREPARE record, else of its ENQUEUE record.
        csn: commit sequence number; 0 of a message outside of transactions.
        tx: ``<founding>/<epoch>.<number>``; "" outside of transactions.
        name: the client's name for it, or the xid of a branch; may be "".
        time_ms: wall clock of the primary that decided; 0 if the log does not say.
        messages: those that come to durable queues, in the client's order; there is one at least.
        unsent: operations that stand in no journal, because they are transient.
        first: offset of its first record; 0: not known.
    """

    epoch: int
    offset: int
    csn: int = 0
    tx: str = ""
    name: str = ""
    time_ms: int = 0
    messages: tuple[Outgoing, ...]
    unsent: int = 0
    first: int = 0

    @property
    def size_bytes(self) -> int:
        """Of bodies and properties, once for each queue: about what Kafka is sent."""
        return sum(each.message.size + len(each.message.properties) for each in self.messages)


class SentPosition(msgspec.Struct, frozen=True):
    """How far a group's log has been sent. It stands in Kafka, in the transaction that sends what is before it.

    Attributes:
        version: of this struct.
        group: id of the group.
        founding: of the group, in hexadecimal; "" of a broker without HA.
        epoch, offset: everything at or before this position of the log has been sent; offset 0: nothing.
        csn: of the last transaction before it; 0: none.
        needed: offset of the oldest record that a reader needs that goes on here: an open transaction begins there.
        reign: newest epoch in the log of the broker that sent it; a broker of an older one leaves Kafka alone.
        broker: id of that broker.
        session: names the run of the outlet that sent it.
    """

    version: int
    group: str
    founding: str
    epoch: int
    offset: int
    csn: int
    needed: int
    reign: int
    broker: str
    session: str

    @property
    def position(self) -> Position:
        """Of the log."""
        return Position(self.epoch, self.offset)

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


def decode_position(raw: bytes, group: str) -> SentPosition:
    """The position that stands in Kafka.

    Raises:
        PositionError: it is of a newer program, of another group, or none at all.
    """
    try:
        found = msgspec.json.decode(raw, type=SentPosition)
    except msgspec.MsgspecError as error:
        raise PositionError(f"the position in Kafka, {raw[:80]!r}, cannot be read: {error}") from error
    if found.version != POSITION_VERSION:
        raise PositionError(
            f"the position in Kafka is of version {found.version}; this program reads version {POSITION_VERSION}"
        )
    if found.group != group:
        raise PositionError(f"the position in Kafka is of group {found.group!r}, and this journal of {group!r}")
    return found
