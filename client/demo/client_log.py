"""ClientLog: what one client writes down, a JSON object a line, flushed before the client goes on.

The order is the contract: ``begun`` is written before the first frame of a transaction leaves, ``commit sent`` before tx.commit
does, and what a client was told, after it was told. So the log never claims less than the brokers may have seen. It is flushed to
the kernel and not fsynced: brokers are killed here, clients and machine are not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, NamedTuple, Self

import msgspec

GOT: Final = "got"
BEGUN: Final = "begun"
COMMIT_SENT: Final = "commit sent"
COMMITTED: Final = "committed"
ROLLED_BACK: Final = "rolled back"
UNKNOWN: Final = "unknown"
RESOLVED: Final = "resolved"
CONNECTED: Final = "connected"
LOST: Final = "lost"

BY_CLIENT: Final = "client"
BY_BROKER: Final = "broker"
BY_LOSS: Final = "loss"

Entry = Mapping[str, Any]


class Coin(NamedTuple):
    """A message of the demo. ``stamp`` (``transaction/number``) is given once and never again."""

    stamp: str
    account: str
    amount: int


class ClientLog:
    """The log of one client.

    Args:
        path: the file, appended to.
        client: whose log it is; in every line.
        watch: told each entry after it has been written: the live view counts them.
        clock: monotonic seconds, the same for everybody on this host.
    """

    def __init__(
        self, path: Path, client: str, watch: Callable[[Entry], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.client = client
        self._file: BinaryIO = path.open("ab")
        self._watch = watch
        self._clock = clock
        self._encode = msgspec.json.Encoder().encode

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, event: str, **facts: Any) -> None:
        entry = {"t": round(self._clock(), 6), "client": self.client, "event": event, **facts}
        self._file.write(self._encode(entry) + b"\n")
        self._file.flush()
        self._watch(entry)

    # -- the entries that the ledger reads ------------------------------------------------------------------------------

    def got(self, coin: Coin, *, fresh: bool) -> None:
        """A delivery. ``fresh``: the broker said redelivered=0, which it may say of a message once."""
        self.write(GOT, coin=coin, fresh=fresh)

    def begun(self, tx: str, takes: Sequence[Coin], makes: Sequence[Coin], broker: str) -> None:
        self.write(BEGUN, tx=tx, takes=takes, makes=makes, broker=broker)

    def commit_sent(self, tx: str) -> None:
        self.write(COMMIT_SENT, tx=tx)

    def committed(self, tx: str) -> None:
        """commit-ok has come."""
        self.write(COMMITTED, tx=tx)

    def rolled_back(self, tx: str, by: str, why: str) -> None:
        """``by``: the client, on purpose; the broker, which said so; or the loss of the connection before tx.commit was sent."""
        self.write(ROLLED_BACK, tx=tx, by=by, why=why)

    def unknown(self, tx: str, why: str) -> None:
        """tx.commit was sent, and the connection ended without an answer."""
        self.write(UNKNOWN, tx=tx, why=why)

    def resolved(self, tx: str, outcome: str, questions: int) -> None:
        """The answer of the outcome query, ``committed`` or ``rolled back``, after so many questions."""
        self.write(RESOLVED, tx=tx, outcome=outcome, questions=questions)


def read_logs(folder: Path) -> Iterator[Entry]:
    """All entries of all logs of a folder, each log in its own order."""
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as file:
            for line in file:
                yield msgspec.json.decode(line)
