"""StateLink: a transaction manager's connection to the state server. Blocking; one request at a time.

A link that has failed in any way, a late answer included, is closed and never used again: an answer that comes later could be
taken for that of the next request.
"""

from __future__ import annotations

import os
import socket
from types import TracebackType
from typing import Final, Self

import msgspec

from understudy.xa.core.errors import StateServerError, StateServerLostError, WrongProfileError
from understudy.xa.core.wire import (
    MAX_LINE_OCTETS,
    WIRE_VERSION,
    Hello,
    List,
    Listing,
    Ok,
    Refused,
    Reply,
    Request,
    Shown,
    line_of,
    reply_of,
)

TIMEOUT_S: Final = 5.0
_READ: Final = 65536


class StateLink:
    """A connection that has said hello.

    Args:
        address: ``host:port`` or ``unix:/path``; or several with commas, of which the first one that answers is taken.
        timeout_s: to connect, and for each answer.

    Raises:
        StateServerError: no server answers there, or it speaks another version.
        WrongProfileError: the job's transactions were begun with other resource managers.
    """

    def __init__(self, address: str, *, job: str, profile: str, fingerprint: str, timeout_s: float = TIMEOUT_S) -> None:
        self.address = address
        self._buffer = bytearray()
        hello = Hello(WIRE_VERSION, job, profile, fingerprint, f"{socket.gethostname()}:{os.getpid()}")
        reply = self._first_answer(hello, timeout_s)
        if not isinstance(reply, Ok):
            self.close()
            if isinstance(reply, Refused) and reply.code == "wrong_profile":
                raise WrongProfileError(reply.text)
            raise StateServerError(f"the state server at {address} refused: {getattr(reply, 'text', reply)}")

    def _first_answer(self, hello: Hello, timeout_s: float) -> Reply:
        """Say hello to each address in turn; the answer of the first server that gives one."""
        reasons: list[str] = []
        addresses = self.address.split(",")
        for address in addresses:
            try:
                self._socket = _connected(address, timeout_s)
            except OSError as error:
                reasons.append(str(error) if len(addresses) == 1 else f"{address}: {error}")
                continue
            try:
                return self.ask(hello)
            except StateServerLostError as error:  # it is stopped, or a worker of it is killed at this moment
                if len(addresses) == 1:
                    raise
                reasons.append(f"{address}: {error}")
        raise StateServerError(f"no state server takes a connection at {self.address}: {'; '.join(reasons)}")

    @property
    def closed(self) -> bool:
        return self._socket.fileno() < 0

    def ask(self, request: Request) -> Reply:
        """Send a request and wait for its reply.

        Raises:
            StateServerLostError: no reply came in time, or none that can be read. The link is closed.
        """
        if self.closed:
            raise StateServerLostError(f"the link to the state server at {self.address} is closed")
        try:
            self._socket.sendall(line_of(request))
            return reply_of(self._line())
        except (OSError, EOFError, msgspec.MsgspecError) as error:
            self.close()
            reason = "no answer in time" if isinstance(error, TimeoutError) else str(error)
            raise StateServerLostError(f"the link to the state server at {self.address} is lost: {reason}") from error
        except BaseException:  # a signal between the request and the whole reply
            self.close()
            raise

    def entries(self, job: str = "") -> tuple[list[Shown], int]:
        """All entries of a job, or of all jobs; and the server's clock in milliseconds."""
        found: list[Shown] = []
        while True:
            reply = self.ask(List(after=found[-1].entry.gid if found else "", job=job))
            if not isinstance(reply, Listing):
                raise StateServerError(f"the state server at {self.address} gives no list: {reply}")
            found += reply.entries
            if not reply.more:
                return found, reply.now_ms

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\n")) < 0:
            received = self._socket.recv(_READ)
            if not received:
                raise EOFError("it ended the connection")
            self._buffer += received
            if len(self._buffer) > MAX_LINE_OCTETS:
                raise EOFError(f"it sent a line of more than {MAX_LINE_OCTETS} octets")
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line


def _connected(address: str, timeout_s: float) -> socket.socket:
    if address.startswith("unix:"):
        unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        unix.settimeout(timeout_s)
        try:
            unix.connect(address.removeprefix("unix:"))
        except BaseException:
            unix.close()
            raise
        return unix
    host, _, port = address.rpartition(":")
    tcp = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return tcp
