"""Distributed transactions (class 100, docs/dtx.md) for an unmodified pika: the methods, and a channel that waits for the answers.

The layouts are written down a second time here, and nothing is imported from the broker: what both got wrong in the same way would
pass. pika finds a method's class by its number in ``pika.spec.methods``, and takes methods without content from any class.
"""

from __future__ import annotations

import struct
from typing import Any, ClassVar, Final, NamedTuple

import pika.amqp_object
import pika.exceptions
import pika.spec

OK: Final = 0
RBROLLBACK: Final = 1
RBTIMEOUT: Final = 2
HEURHAZ: Final = 3

PREPARED: Final = 0
COMPLETED_BY_COMMIT: Final = 1
COMPLETED_BY_ROLLBACK: Final = 2

CLASS_ID: Final = 100
RECOVER_OK_OVERHEAD: Final = 8 + 4 + 1 + 4
"""Octets of a frame of recover-ok beside the list: frame, method, ``more``, the length of the list."""


class Xid(NamedTuple):
    """The name of a branch."""

    format_id: int
    global_id: bytes
    branch_id: bytes

    def octets(self) -> bytes:
        """As ``recover`` takes and gives it."""
        format_id, global_id, branch_id = self
        return struct.pack(">IB", format_id, len(global_id)) + global_id + struct.pack(">B", len(branch_id)) + branch_id


class InDoubt(NamedTuple):
    """One branch as ``recover`` lists it."""

    state: int
    xid: Xid


def read_in_doubt(octets: bytes) -> list[InDoubt]:
    """The list in one recover-ok."""
    found = []
    at = 0
    while at < len(octets):
        state, format_id = struct.unpack_from(">BI", octets, at)
        at += 5
        ids = []
        for _ in range(2):
            end = at + 1 + octets[at]
            ids.append(octets[at + 1 : end])
            assert len(ids[-1]) == octets[at], f"cut off: {octets!r}"
            at = end
        found.append(InDoubt(state, Xid(format_id, *ids)))
    return found


class DtxMethod(pika.amqp_object.Method):  # type: ignore[misc]  # pika has no types
    """One method of class 100, encoded and decoded by its ``FIELDS``: (name, domain)."""

    INDEX: ClassVar[int]
    NAME: ClassVar[str]
    FIELDS: ClassVar[tuple[tuple[str, str], ...]]
    synchronous: ClassVar[bool]

    def __init__(self, *values: Any) -> None:
        self.values = values

    def encode(self) -> list[bytes]:
        pieces: list[bytes] = []
        bits: list[bool] = []
        for (_, domain), value in zip(self.FIELDS, self.values, strict=True):
            if domain == "long":
                pieces.append(struct.pack(">I", value))
            elif domain == "longstr":
                pieces.append(struct.pack(">I", len(value)) + value)
            else:
                bits.append(value)
        if bits:  # the last fields of every method that a client sends, in one octet, the first one lowest
            pieces.append(bytes((sum(bit << place for place, bit in enumerate(bits)),)))
        return pieces

    def decode(self, encoded: bytes, offset: int = 0) -> DtxMethod:
        values: list[Any] = []
        for _, domain in self.FIELDS:
            if domain == "bit":  # recover-ok has the only one
                values.append(bool(encoded[offset] & 1))
                offset += 1
            elif domain == "longstr":
                (length,) = struct.unpack_from(">I", encoded, offset)
                offset += 4 + length
                values.append(bytes(encoded[offset - length : offset]))
            elif domain == "unread":  # a short string
                offset += 1 + encoded[offset]
            else:
                layout = {"short": ">H", "long": ">I"}[domain]
                values += struct.unpack_from(layout, encoded, offset)
                offset += struct.calcsize(layout)
        assert offset == len(encoded), f"{self.NAME}: {len(encoded) - offset} octets too many"
        self.values = tuple(values)
        return self


def _define(number: int, name: str, layout: str = "", *, answer: str = "status:short") -> tuple[type, type]:
    """Tell pika of a method that clients send and of its answer; both classes."""
    made = []
    for method_id, its_name, its_layout in ((number, name, layout), (number + 1, f"{name}-ok", answer)):
        about = {
            "INDEX": CLASS_ID << 16 | method_id,
            "NAME": f"dtx.{its_name}",
            "FIELDS": tuple(tuple(field.split(":")) for field in its_layout.split()),
            "synchronous": method_id == number,
        }
        made.append(type(its_name, (DtxMethod,), about))
        pika.spec.methods[about["INDEX"]] = made[-1]
    return made[0], made[1]


_XID = "format_id:long global_id:longstr branch_id:longstr"
SELECT: Final = _define(10, "select", answer="")
START: Final = _define(20, "start", f"{_XID} join:bit resume:bit")
END: Final = _define(30, "end", f"{_XID} fail:bit suspend:bit")
PREPARE: Final = _define(40, "prepare", _XID, answer="status:short transaction:unread")
COMMIT: Final = _define(50, "commit", f"{_XID} one_phase:bit")
ROLLBACK: Final = _define(60, "rollback", _XID)
RECOVER: Final = _define(70, "recover", "after:longstr", answer="more:bit in_doubt:longstr")
FORGET: Final = _define(80, "forget", _XID)
GET_TIMEOUT: Final = _define(90, "get-timeout", _XID, answer="timeout:long")
SET_TIMEOUT: Final = _define(100, "set-timeout", f"{_XID} timeout:long")
COMPLETE: Final = _define(110, "complete", f"{_XID} commit:bit")


class Pending:
    """A method that has been sent; its answer when the I/O of its connection has run."""

    def __init__(self, channel: Any, method: tuple[type, type], values: tuple[Any, ...]) -> None:
        self._channel = channel
        self._answers: list[Any] = []
        self._raise_if_closed()
        channel._impl._rpc(method[0](*values), lambda frame: self._answers.append(frame.method), [method[1]])

    @property
    def answered(self) -> bool:
        """True if the answer has been read, or instead of it that the broker has closed the channel."""
        return bool(self._answers) or isinstance(self._channel._closing_reason, pika.exceptions.ChannelClosedByBroker)

    def wait(self) -> tuple[Any, ...]:
        """The fields of the answer; ChannelClosedByBroker instead if the broker closes the channel."""
        self._raise_if_closed()
        self._channel._flush_output(lambda: bool(self._answers))
        values: tuple[Any, ...] = self._answers[0].values
        return values

    def _raise_if_closed(self) -> None:
        """Why, if the broker did it meanwhile: pika says that only to who waits while it happens."""
        reason = self._channel._closing_reason
        if self._channel.is_closed and isinstance(reason, pika.exceptions.ChannelClosedByBroker):
            raise reason


class DtxChannel:
    """A channel of a ``pika.BlockingConnection`` with the methods of class 100; each returns when it is answered.

    Attributes:
        channel: the channel itself, for everything else.
    """

    def __init__(self, channel: Any) -> None:
        self.channel = channel

    def send(self, method: tuple[type, type], *values: Any) -> Pending:
        """Send a method and do not wait yet."""
        return Pending(self.channel, method, values)

    def _status(self, method: tuple[type, type], *values: Any) -> int:
        (status,) = self.send(method, *values).wait()
        return int(status)

    def select(self) -> DtxChannel:
        self.send(SELECT).wait()
        return self

    def start(self, xid: Xid, *, join: bool = False, resume: bool = False) -> int:
        return self._status(START, *xid, join, resume)

    def end(self, xid: Xid, *, fail: bool = False, suspend: bool = False) -> int:
        return self._status(END, *xid, fail, suspend)

    def prepare(self, xid: Xid) -> int:
        return self._status(PREPARE, *xid)

    def commit(self, xid: Xid, *, one_phase: bool = False) -> int:
        return self._status(COMMIT, *xid, one_phase)

    def rollback(self, xid: Xid) -> int:
        return self._status(ROLLBACK, *xid)

    def recover(self) -> list[InDoubt]:
        """All pages."""
        return [row for page in self.recover_pages() for row in read_in_doubt(page)]

    def recover_pages(self, after: bytes = b"") -> list[bytes]:
        """As they came; each non-empty, in order, and behind the one before."""
        pages = []
        while True:
            more, in_doubt = self.send(RECOVER, after).wait()
            pages.append(in_doubt)
            keys = [row.xid.octets() for row in read_in_doubt(in_doubt)]
            assert keys == sorted(set(keys)), "a page is not in order"
            assert not keys or after < keys[0], f"{keys[0]!r} is not behind {after!r}"
            if not more:
                return pages
            after = keys[-1]

    def forget(self, xid: Xid) -> int:
        return self._status(FORGET, *xid)

    def get_timeout(self, xid: Xid) -> int:
        """Seconds."""
        return self._status(GET_TIMEOUT, *xid)

    def set_timeout(self, xid: Xid, timeout_s: int) -> int:
        return self._status(SET_TIMEOUT, *xid, timeout_s)

    def complete(self, xid: Xid, *, commit: bool) -> int:
        return self._status(COMPLETE, *xid, commit)
