"""Access: what a client of the state server may do, and how client and server prove to each other that they share a secret.

    client                          server
      knock   version, nonce  ->
              <-  challenge   nonce
      prove   hmac "client"   ->
              <-  proved      hmac "server", what the client may do    (or refused)

Each proof is HMAC-SHA256 over a label, the role of the end that proves, and all lines before it, octet for octet. So a proof is of
no use in another conversation (the nonces), cannot be sent back to its maker (the role), and no line can be changed on the way.
The client proves first: a stranger that reaches the port, but lacks the secret, gets nothing to try guesses on.

A server may have two secrets. The client does not say which one it has: the server tries both. `hello` and all that follows come
after the handshake. Lines are not authenticated one by one; against somebody who can write into the connection only TLS helps.

Refused: a password in `hello`. A server on a port that another user took first would get it.
"""

from __future__ import annotations

import enum
import hmac
from collections.abc import Mapping
from typing import Final

import msgspec

from understudy.xa.core.errors import AccessError
from understudy.xa.core.register.wire import Hello, List, Refused, Reply, Request, decoded, line_of, reply_of

HANDSHAKE_VERSION: Final = 1
NONCE_OCTETS: Final = 32
MAX_HANDSHAKE_OCTETS: Final = 4096
"""Of one line of the handshake."""
REFUSED: Final = "access"
"""Code of `Refused`: the client is not let in."""
READ_ONLY: Final = "read_only"
"""Code of `Refused`: the client may only read."""
_LABEL: Final = b"understudy state server"
_CLIENT: Final = b"client"
_SERVER: Final = b"server"
_ASKS: Final = (
    "this state server asks for a shared secret, and the client has none: its program, or its file of profiles, needs "
    "secret_file, and a version of understudy that knows it"
)


class Access(enum.StrEnum):
    """Rights of a client."""

    READ = "read"
    CHANGE = "change"


def refusal(access: Access, request: Request) -> Refused | None:
    """The reply to a request that the client may not make; None if it may."""
    if access is Access.CHANGE or isinstance(request, (Hello, List)):
        return None
    name = type(request).__name__.lower()
    return Refused(READ_ONLY, f"this client has the secret of clients that only read, and {name} changes the record")


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="say", tag=str.lower):
    pass


class Knock(_Line, frozen=True):
    """The first line of a client that has a secret.

    Attributes:
        nonce: 64 hexadecimal digits, never used before.
    """

    version: int
    nonce: str


class Challenge(_Line, frozen=True):
    """The server's answer, with a nonce of its own."""

    nonce: str


class Prove(_Line, frozen=True):
    """The client's proof: 64 hexadecimal digits."""

    proof: str


class Proved(_Line, frozen=True):
    """The server's proof, and what the client may do."""

    proof: str
    access: Access


_knocks: Final = msgspec.json.Decoder(Knock)
_challenges: Final = msgspec.json.Decoder(Challenge)
_proofs: Final = msgspec.json.Decoder(Prove)
_proveds: Final = msgspec.json.Decoder(Proved)
_hellos: Final = msgspec.json.Decoder(Hello)


class Acceptor:
    """The server's side of one handshake.

    Args:
        secrets: what a client may do to the secret that proves it; not empty.
        nonce: `NONCE_OCTETS` at random.
    """

    def __init__(self, secrets: Mapping[Access, bytes], nonce: bytes) -> None:
        assert secrets
        assert len(nonce) == NONCE_OCTETS
        self._secrets = secrets
        self._nonce = nonce
        self._said: list[bytes] = []

    def challenge(self, line: bytes) -> bytes:
        """The answer to the client's first line.

        Raises:
            AccessError: the line is no `Knock`; the text is for both sides.
        """
        try:
            knock = decoded(_knocks, line)
        except msgspec.MsgspecError:
            raise AccessError(_ASKS if _is_request(line) else "the first line is no handshake") from None
        if knock.version != HANDSHAKE_VERSION:
            raise AccessError(
                f"this state server speaks version {HANDSHAKE_VERSION} of the handshake, the client {knock.version}"
            )
        answer = _octets(Challenge(self._nonce.hex()))
        self._said = [line.rstrip(b"\n"), answer.rstrip(b"\n")]
        return answer

    def admit(self, line: bytes) -> tuple[Access, bytes]:
        """Rights of the client, and the last line of the handshake.

        Raises:
            AccessError: the line proves none of the secrets.
        """
        try:
            shown = decoded(_proofs, line).proof
        except msgspec.MsgspecError:
            raise AccessError("the second line of the handshake is no proof") from None
        fits = {access: _same(_mac(secret, _CLIENT, *self._said), shown) for access, secret in self._secrets.items()}
        for access, fit in fits.items():  # all are compared before
            if fit:
                said = (*self._said, line.rstrip(b"\n"), access.encode())
                return access, _octets(Proved(_mac(self._secrets[access], _SERVER, *said), access))
        raise AccessError("the shared secret of the client is not one of this state server's")


class Dialer:
    """The client's side of one handshake.

    Args:
        secret: that it shares with the server.
        nonce: `NONCE_OCTETS` at random.

    Attributes:
        knock: the line to begin with.
    """

    def __init__(self, secret: bytes, nonce: bytes) -> None:
        assert len(nonce) == NONCE_OCTETS
        self._secret = secret
        self.knock = _octets(Knock(HANDSHAKE_VERSION, nonce.hex()))
        self._said = [self.knock.rstrip(b"\n")]

    def prove(self, line: bytes) -> bytes:
        """The answer to the server's challenge.

        Raises:
            AccessError: the server refuses, or the line is no `Challenge`.
        """
        try:
            decoded(_challenges, line)
        except msgspec.MsgspecError:
            raise AccessError(_reason(line, "it answers with no challenge")) from None
        self._said.append(line.rstrip(b"\n"))
        answer = _octets(Prove(_mac(self._secret, _CLIENT, *self._said)))
        self._said.append(answer.rstrip(b"\n"))
        return answer

    def admitted(self, line: bytes) -> Access:
        """Rights that the server gives this client.

        Raises:
            AccessError: the server refuses, or does not prove that it has the secret.
        """
        try:
            proved = decoded(_proveds, line)
        except msgspec.MsgspecError:
            raise AccessError(_reason(line, "it gives no proof")) from None
        if not _same(_mac(self._secret, _SERVER, *self._said, proved.access.encode()), proved.proof):
            raise AccessError("it does not have the shared secret of this client: another server listens there")
        return proved.access


def unwanted(line: bytes) -> str:
    """Why a first line is refused by a server without secrets: it is a handshake; "" if it is none."""
    try:
        decoded(_knocks, line)
    except msgspec.MsgspecError:
        return ""
    return "this state server has no shared secret, and the client asks for a proof of one: start it with --secret-file"


def _reason(line: bytes, otherwise: str) -> str:
    """The server's reason."""
    try:
        reply: Reply = reply_of(line)
    except msgspec.MsgspecError:
        return f"{otherwise}: it is no state server, or of a version without handshake"
    if not isinstance(reply, Refused):
        return f"{otherwise}: it says {type(reply).__name__.lower()}"
    if reply.code == REFUSED:
        return reply.text
    return f"{otherwise}, and is of a version without handshake: {reply.text}"


def _is_request(line: bytes) -> bool:
    try:
        decoded(_hellos, line)
    except msgspec.MsgspecError:
        return False
    return True


def _octets(line: _Line) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def _mac(secret: bytes, *parts: bytes) -> str:
    mac = hmac.new(secret, digestmod="sha256")
    for part in (_LABEL, *parts):
        mac.update(len(part).to_bytes(4, "big"))
        mac.update(part)
    return mac.hexdigest()


def _same(expected: str, shown: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(expected.encode(), shown.encode())


def refused_line(text: str) -> bytes:
    """The line for a client that is not let in."""
    return line_of(Refused(REFUSED, text))
