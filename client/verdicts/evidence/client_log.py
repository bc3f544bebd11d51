"""ClientLog: what one client writes down, a JSON object a line, flushed before the client goes on.

The order is the contract. What a client does is written before its first frame leaves: ``began``, ``sent``, ``acknowledged``,
``commit_sent``. What a client is told is written after it was told. So a log never claims less than the brokers may have seen.
A log is flushed to the kernel and not fsynced: brokers are killed, the machine is not.

A client is one channel: its transactions follow one another, and its messages have one order. A program with several channels
writes one log for each, under a name of its own. Client names, transaction names and message ids are unique in a run.

A line stands for itself, so logs may be put together and read in any order; ``number`` restores each client's order. A last line
without its newline is left out: that client was killed before it went on. docs/verdicts.md lists the fields.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, NamedTuple, Self

import attrs
import msgspec

VERSION: Final = 1

BY_CLIENT: Final = "client"
BY_BROKER: Final = "broker"
BY_LOSS: Final = "loss"


class LogError(Exception):
    """A client's log is not as it should be: the client is wrong, not the brokers."""


class Event(StrEnum):
    """The kind of a line."""

    CONNECTED = "connected"
    LOST = "lost"
    BEGAN = "began"
    SENT = "sent"
    RECEIVED = "received"
    ACKNOWLEDGED = "acknowledged"
    COMMIT_SENT = "commit_sent"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    UNKNOWN = "unknown"
    RESOLVED = "resolved"
    CONFIRMED = "confirmed"
    REFUSED = "refused"


class Message(NamedTuple):
    """One message in one queue.

    Attributes:
        id: given once and never again; a message that is routed to several queues has one id and a place in each.
        queue: where it was published to, or lies.
        amount: what it is worth, for loads that move amounts; 0 outside of transactions.
    """

    id: str
    queue: str
    amount: int = 0


@attrs.frozen(kw_only=True)
class Entry:
    """One line.

    Attributes:
        number: the place in its client's log, from 0, without a gap.
        at_s: monotonic seconds of the client's host: for latencies. The verdict on delayed messages alone reads it.
        tx: the transaction's name; "" for what is outside of transactions.
        question: of ``began``: what the outcome query calls the transaction. None: as ``tx``; "": no broker was told a name.
        messages: of ``sent``, ``received``, ``acknowledged``, ``confirmed`` and ``refused``.
        redelivered: of ``received``: the flag of basic.deliver or basic.get-ok.
        outcome: of ``resolved``: the answer of the outcome query, ``committed``, ``rolled back`` or what else it says.
        questions: of ``resolved``: how often it was asked.
        by: of ``rolled_back``: ``client``, ``broker``, or ``loss`` of the connection before tx.commit was sent.
        why: of ``lost``, ``rolled_back``, ``unknown`` and ``refused``: for people.
        broker: of ``connected`` and ``began``: its address.
    """

    client: str
    number: int
    event: Event
    at_s: float = 0.0
    tx: str = ""
    question: str | None = None
    messages: tuple[Message, ...] = ()
    redelivered: bool = False
    outcome: str = ""
    questions: int = 0
    by: str = ""
    why: str = ""
    broker: str = ""


class _MessageLine(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A message, as a line has it."""

    id: str
    queue: str
    amount: int = 0


class _Line(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """An entry, as a line has it: a field that has its default is left out."""

    version: int
    client: str
    number: int
    event: Event
    at_s: float = 0.0
    tx: str = ""
    question: str | None = None
    messages: tuple[_MessageLine, ...] = ()
    redelivered: bool | None = None
    outcome: str = ""
    questions: int = 0
    by: str = ""
    why: str = ""
    broker: str = ""


class _Version(msgspec.Struct):
    version: int


_SAME: Final = tuple(name for name in _Line.__struct_fields__ if name not in ("version", "messages", "redelivered"))
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(_Line).decode
_version_of: Final = msgspec.json.Decoder(_Version).decode
_NEEDS_TX: Final = frozenset(
    {Event.BEGAN, Event.COMMIT_SENT, Event.COMMITTED, Event.ROLLED_BACK, Event.UNKNOWN, Event.RESOLVED}
)
_NEEDS_MESSAGES: Final = frozenset({Event.SENT, Event.RECEIVED, Event.ACKNOWLEDGED, Event.CONFIRMED, Event.REFUSED})


class ClientLog:
    """The log of one client.

    Args:
        path: the file, which is new.
        client: whose log it is; in every line.
        watch: told each entry after it has been written.
        clock: monotonic seconds, the same for all clients of a host.

    Raises:
        FileExistsError: a log is written once; a client that starts again takes a new name.
    """

    def __init__(
        self,
        path: Path,
        client: str,
        watch: Callable[[Entry], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client = client
        self._file: BinaryIO = path.open("xb")
        self._watch = watch
        self._clock = clock
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def _write(self, event: Event, **facts: Any) -> None:
        entry = Entry(client=self.client, number=self._number, event=event, at_s=round(self._clock(), 6), **facts)
        self._number += 1
        self._file.write(line_of(entry))
        self._file.flush()
        if self._watch is not None:
            self._watch(entry)

    # -- written before the client does it ------------------------------------------------------------------------------

    def began(self, tx: str, *, broker: str = "", question: str | None = None) -> None:
        self._write(Event.BEGAN, tx=tx, broker=broker, question=question)

    def sent(self, messages: Sequence[Message], tx: str = "") -> None:
        """A message that goes to several queues is named once for each."""
        if messages:
            self._write(Event.SENT, messages=tuple(messages), tx=tx)

    def acknowledged(self, messages: Sequence[Message], tx: str = "") -> None:
        """Taken for good: acknowledged, rejected without requeue, or got without acknowledgement."""
        if messages:
            self._write(Event.ACKNOWLEDGED, messages=tuple(messages), tx=tx)

    def commit_sent(self, tx: str) -> None:
        self._write(Event.COMMIT_SENT, tx=tx)

    # -- written when the client was told -------------------------------------------------------------------------------

    def connected(self, broker: str) -> None:
        self._write(Event.CONNECTED, broker=broker)

    def lost(self, why: str) -> None:
        """The connection is gone, or none came about."""
        self._write(Event.LOST, why=why)

    def received(self, message: Message, *, redelivered: bool) -> None:
        self._write(Event.RECEIVED, messages=(message,), redelivered=redelivered)

    def committed(self, tx: str) -> None:
        """commit-ok has come."""
        self._write(Event.COMMITTED, tx=tx)

    def rolled_back(self, tx: str, by: str, why: str) -> None:
        """By the client, on purpose; by the broker, which said so; or by the loss of the connection before tx.commit was sent."""
        self._write(Event.ROLLED_BACK, tx=tx, by=by, why=why)

    def unknown(self, tx: str, why: str) -> None:
        """tx.commit was sent, and the connection ended without an answer."""
        self._write(Event.UNKNOWN, tx=tx, why=why)

    def resolved(self, tx: str, outcome: str, questions: int = 1) -> None:
        """The answer of the outcome query."""
        self._write(Event.RESOLVED, tx=tx, outcome=outcome, questions=questions)

    def confirmed(self, messages: Sequence[Message]) -> None:
        """The publisher confirm of persistent messages, outside of transactions."""
        if messages:
            self._write(Event.CONFIRMED, messages=tuple(messages))

    def refused(self, messages: Sequence[Message], why: str) -> None:
        """Nacked or returned: these messages have entered no queue."""
        if messages:
            self._write(Event.REFUSED, messages=tuple(messages), why=why)


def line_of(entry: Entry) -> bytes:
    """The line, with its newline."""
    line = _Line(
        version=VERSION,
        messages=tuple(_MessageLine(*message) for message in entry.messages),
        redelivered=entry.redelivered if entry.event is Event.RECEIVED else None,
        **{name: getattr(entry, name) for name in _SAME},
    )
    return _encode(line) + b"\n"


def entry_of(text: bytes) -> Entry:
    """Read a line.

    Raises:
        LogError: it is no line of this version, or lacks what its event needs.
    """
    try:
        version = _version_of(text).version
        if version != VERSION:
            raise LogError(f"a client log of version {version}; this program reads version {VERSION}")
        line = _decode(text)
    except msgspec.MsgspecError as error:
        raise LogError(f"no line of a client log ({error}): {text[:200]!r}") from error
    event = line.event
    lacks = (event in _NEEDS_TX and not line.tx) or (event in _NEEDS_MESSAGES and not line.messages)
    if lacks or (event is Event.RECEIVED and line.redelivered is None):
        raise LogError(f"a line of a client log lacks what {event.value} needs: {text[:200]!r}")
    return Entry(
        messages=tuple(Message(each.id, each.queue, each.amount) for each in line.messages),
        redelivered=bool(line.redelivered),
        **{name: getattr(line, name) for name in _SAME},
    )


def read_logs(path: Path) -> Iterator[Entry]:
    """All entries of one log, or of all logs (``*.jsonl``) of a folder.

    Raises:
        LogError: a line cannot be read; the file and the number of the line are named.
    """
    for file in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    break  # torn: the client was killed while it wrote, so before it went on
                try:
                    yield entry_of(line)
                except LogError as error:
                    raise LogError(f"{file}:{number}: {error}") from error
