"""StateLink: a transaction manager's connection to the state server. Blocking; one request at a time.

A link that has failed in any way, a late answer included, is closed and never used again: an answer that comes later could be
taken for that of the next request.
"""

from __future__ import annotations

import os
import secrets
import socket
import ssl
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from understudy.xa.core.errors import (
    AccessError,
    ConfigError,
    ReadOnlyError,
    StateServerError,
    StateServerLostError,
    WrongProfileError,
)
from understudy.xa.core.profiles.servers import NO_LOGIN, Login
from understudy.xa.core.register.access import NONCE_OCTETS, READ_ONLY, REFUSED, Access, Dialer
from understudy.xa.core.register.wire import (
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
from understudy.xa.sockets.peer import check_server, socket_path
from understudy.xa.sockets.secret_file import check_key_file, read_secret

TIMEOUT_S: Final = 5.0
_READ: Final = 65536
_AGAIN_S: Final = 0.02


class StateLink:
    """A connection that has said hello.

    Args:
        address: ``host:port`` or ``unix:/path``; or several with commas, of which the first one that answers is taken.
        timeout_s: to connect, and for each answer.
        login: what this program proves to the server.

    Attributes:
        access: what the server lets this program do.

    Raises:
        StateServerError: no server answers there, or it speaks another version.
        AccessError: the server and this program do not let each other in.
        WrongProfileError: the job's transactions were begun with other resource managers.
        ConfigError: a file of `login` cannot be used.
    """

    def __init__(
        self,
        address: str,
        *,
        job: str,
        profile: str,
        fingerprint: str,
        timeout_s: float = TIMEOUT_S,
        login: Login = NO_LOGIN,
    ) -> None:
        self.address = address
        self.access = Access.CHANGE
        self._login = login
        self._buffer = bytearray()
        hello = Hello(WIRE_VERSION, job, profile, fingerprint, f"{socket.gethostname()}:{os.getpid()}")
        reply = self._first_answer(hello, timeout_s)
        if not isinstance(reply, Ok):
            self.close()
            if isinstance(reply, Refused) and reply.code == "wrong_profile":
                raise WrongProfileError(reply.text)
            if isinstance(reply, Refused) and reply.code == REFUSED:
                raise AccessError(f"the state server at {address} refused: {reply.text}")
            raise StateServerError(f"the state server at {address} refused: {getattr(reply, 'text', reply)}")

    def _first_answer(self, hello: Hello, timeout_s: float) -> Reply:
        """Say hello to each address in turn; the answer of the first server that gives one."""
        reasons: list[str] = []
        addresses = self.address.split(",")
        for address in addresses:
            try:
                self._socket = _connected(address, timeout_s, self._login)
            except OSError as error:
                reasons.append(str(error) if len(addresses) == 1 else f"{address}: {error}")
                continue
            try:
                self._log_in(address)
                return self.ask(hello)
            except StateServerLostError as error:  # it is stopped, or a worker of it is killed at this moment
                if len(addresses) == 1:
                    raise
                reasons.append(f"{address}: {error}")
        raise StateServerError(f"no state server takes a connection at {self.address}: {'; '.join(reasons)}")

    def _log_in(self, address: str) -> None:
        """Prove to the server that this program has the secret, and let it prove the same."""
        if not self._login.secret_file:
            return
        try:
            dialer = Dialer(read_secret(self._login.secret_file, "secret_file"), secrets.token_bytes(NONCE_OCTETS))
            self._socket.sendall(dialer.knock)
            self._socket.sendall(dialer.prove(self._line()))
            self.access = dialer.admitted(self._line())
        except AccessError as error:
            self.close()
            raise AccessError(f"the state server at {address} and this client do not agree: {error}") from error
        except (OSError, EOFError) as error:
            self.close()
            reason = _reason(error, in_the_open=not (self._login.tls or address.startswith("unix:")))
            raise StateServerLostError(f"the state server at {address} does not end the handshake: {reason}") from error
        except BaseException:
            self.close()
            raise

    @property
    def closed(self) -> bool:
        return self._socket.fileno() < 0

    def ask(self, request: Request) -> Reply:
        """Send a request and wait for its reply.

        Raises:
            StateServerLostError: no reply came in time, or none that can be read. The link is closed.
            ReadOnlyError: this program may only read, and the request is a change. Nothing was changed.
        """
        if self.closed:
            raise StateServerLostError(f"the link to the state server at {self.address} is closed")
        try:
            self._socket.sendall(line_of(request))
            reply = reply_of(self._line())
        except (OSError, EOFError, msgspec.MsgspecError) as error:
            self.close()
            reason = _reason(error)
            raise StateServerLostError(f"the link to the state server at {self.address} is lost: {reason}") from error
        except BaseException:  # a signal between the request and the whole reply
            self.close()
            raise
        if isinstance(reply, Refused) and reply.code == READ_ONLY:
            raise ReadOnlyError(f"the state server at {self.address} refused: {reply.text}")
        return reply

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


def _reason(error: Exception, *, in_the_open: bool = False) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    hint = "; does it speak TLS? Then this client needs tls = true"
    return f"{error}{hint if in_the_open and isinstance(error, (EOFError, ConnectionError)) else ''}"


def _connected(address: str, timeout_s: float, login: Login) -> socket.socket:
    if address.startswith("unix:"):
        path = socket_path(address)
        unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        unix.settimeout(timeout_s)
        try:
            _connect_unix(unix, path, timeout_s)
            check_server(unix, path)
        except BaseException:
            unix.close()
            raise
        return unix
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    context = _tls_context(login) if login.tls else None
    tcp = socket.create_connection((host, int(port)), timeout_s)
    try:
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return tcp if context is None else context.wrap_socket(tcp, server_hostname=host)
    except BaseException:
        tcp.close()
        raise


def _connect_unix(unix: socket.socket, path: Path, timeout_s: float) -> None:
    """Connect; while the queue of the listener is full, again. The system waits for room with TCP alone."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            unix.connect(str(path))
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_AGAIN_S)
        else:
            return


def _tls_context(login: Login) -> ssl.SSLContext:
    """The server's certificate is always verified: there is no option to trust any server."""
    if login.tls_key:
        check_key_file(login.tls_key, "tls_key")
    try:
        context = ssl.create_default_context(cafile=login.tls_ca or None)
        if login.tls_cert:
            context.load_cert_chain(login.tls_cert, login.tls_key)
    except OSError as error:
        files = ", ".join(one for one in (login.tls_ca, login.tls_cert, login.tls_key) if one)
        raise ConfigError(f"TLS to the state server: {files} cannot be used: {error}") from error
    return context
