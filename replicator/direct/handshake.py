"""The agreement of two brokers before a link carries anything, and the proof of each that it holds the group's secret.

    dialer                                    acceptor
      HELLO   ids, versions, a nonce    ->
              <-  CHALLENGE  a nonce
      PROOF   hmac "dialer"             ->
              <-  SEALED_WELCOME  hmac "acceptor", what it is    (or REFUSE: the secret differs)
      CONFIRM hmac "settings", what it is  ->                    (or REFUSE: the first thing in which the two differ)

An acceptor tells a stranger nothing: its ids, its versions and the values that must agree (the names of its virtual hosts among
them) come with a proof, and after the dialer's. A dialer tells the address that the store has for a broker its ids and versions,
so that brokers of older versions understand it, and no values.

Each proof is HMAC-SHA256 over a label, the role of the end that proves, and all that was said before it, byte for byte. So nothing
that was said in the open can have been changed on the way (no downgrade), a proof is of no use in another conversation (the
nonces), and cannot be sent back to its maker (the role). The dialer proves first: a stranger that can reach the port but lacks the
secret gets nothing to try guesses on at home. An empty secret proves nothing, and is allowed by the configuration on loopback only.

Wire version 1 knew another handshake, which a peer of that version still gets:

      HELLO   what it is, a nonce       ->
              <-  ANSWER  what it is, a nonce       (or REFUSE)
      PROOF   hmac "dialer"             ->
              <-  WELCOME hmac "acceptor"           (or REFUSE)

There an acceptor tells its ids and versions before it knows who asks. It leaves out the values that must agree, compares the
dialer's with its own, and does not tell a dialer that has proved nothing what the difference is; its log says that.

After that, frames are not authenticated one by one. Against somebody who can write into the connection only TLS helps.

A hello is JSON, because brokers of different versions must be able to read each other's: unknown keys are passed over, and
the reason for a refusal can name both sides.
"""

from __future__ import annotations

import hmac
from typing import Final

import attrs
import msgspec

from understudy.broker.errors import UnderstudyError

DIALER: Final = b"dialer"
ACCEPTOR: Final = b"acceptor"
SETTINGS: Final = b"settings"
PROOF_BYTES: Final = 32
CARRIES: Final = "carry"
SEALED_SINCE: Final = 2
"""The first wire version of which an end tells what it is with a proof only."""
MIN_NONCE_BYTES: Final = 16
MAX_NONCE_BYTES: Final = 64
MAX_HELLO_BYTES: Final = 64 << 10
"""The longest frame that is taken from somebody who has not proved anything."""

_LABEL: Final = b"understudy link"
_SEALED_LABEL: Final = b"understudy link, sealed"
_SHOWN_CHARACTERS: Final = 100


class HandshakeError(UnderstudyError):
    """The two ends may not be linked. The message is meant for the operators of both, and names who has what."""


def _name(_: object, attribute: attrs.Attribute[str], value: str) -> None:
    if not 1 <= len(value) <= 64 or not value.isprintable():
        raise ValueError(f"{attribute.name} is not a name of 1 to 64 characters")


def _nonce(_: object, attribute: attrs.Attribute[bytes], value: bytes) -> None:
    if len(value) < MIN_NONCE_BYTES:
        raise ValueError(f"{attribute.name} has {len(value)} bytes, at least {MIN_NONCE_BYTES} are wanted")


@attrs.frozen(kw_only=True)
class Hello:
    """The ids, versions and settings of one end.

    Attributes:
        group, broker: its ids.
        peer: the broker that a dialer wants to reach; "" for whoever answers.
        oldest_wire, newest_wire: the wire versions it speaks, both included.
        record_format: the oldest version of the log's records that it can confine itself to when it leads. (It writes newer ones
            when all whom it leads read them, which they say here.)
        oldest_record_format, newest_record_format: those it reads, both included; 0 (a program that does not say): only the one
            it writes.
        nonce: never used before.
        agreed: settings that must be the same at both ends.
        purpose: of the connection that a dialer opens: "" for a link, `CARRIES` to carry a client.
        carries: it takes clients that another broker carries to it.
    """

    group: str = attrs.field(validator=_name)
    broker: str = attrs.field(validator=_name)
    peer: str = ""
    oldest_wire: int
    newest_wire: int
    record_format: int
    oldest_record_format: int = 0
    newest_record_format: int = 0
    nonce: bytes = attrs.field(validator=_nonce)
    agreed: dict[str, str]
    purpose: str = ""
    carries: bool = False

    @property
    def seals(self) -> bool:
        """True if this end tells what it is with a proof only."""
        return self.newest_wire >= SEALED_SINCE

    def open_part(self) -> Hello:
        """The part of the hello that is told before the other end has proved anything."""
        return attrs.evolve(self, agreed={}) if self.seals else self

    @property
    def reads(self) -> tuple[int, int]:
        """The record formats that it reads, both included."""
        return self.oldest_record_format or self.record_format, self.newest_record_format or self.record_format


_decoder: Final = msgspec.json.Decoder(Hello)


def encode_hello(hello: Hello) -> bytes:
    encoded = msgspec.json.encode(hello)
    assert len(encoded) <= MAX_HELLO_BYTES - PROOF_BYTES, f"a hello of {len(encoded)} bytes"
    return encoded


def decode_hello(buf: bytes) -> Hello:
    """Read a peer's hello.

    Raises:
        HandshakeError: these bytes are no hello.
    """
    try:
        return _decoder.decode(buf)
    except (ValueError, RecursionError) as error:
        raise HandshakeError(f"the other end sent no hello of this protocol: {shown_text(str(error))}") from error


def proof(secret: bytes, role: bytes, dialer_hello: bytes, acceptor_hello: bytes) -> bytes:
    """The proof in ``role`` that an end has ``secret``, in the conversation of version 1 that began with these two hellos."""
    return _mac(secret, _LABEL, role, dialer_hello, acceptor_hello)


def sealed_proof(secret: bytes, role: bytes, *said: bytes) -> bytes:
    """The same of a conversation in which this was ``said`` so far, in order."""
    return _mac(secret, _SEALED_LABEL, role, *said)


def _mac(secret: bytes, *parts: bytes) -> bytes:
    mac = hmac.new(secret, digestmod="sha256")
    for part in parts:
        mac.update(len(part).to_bytes(4, "big"))
        mac.update(part)
    return mac.digest()


def check_proof(expected: bytes, shown: bytes) -> None:
    """Compare in constant time.

    Raises:
        HandshakeError: they differ; where, is not told.
    """
    if not hmac.compare_digest(expected, shown):
        raise HandshakeError("the shared secret (link.secret) is not the same at both ends")


def check_agreement(dialer: Hello, acceptor: Hello) -> int:
    """Check all that must agree, in a fixed order.

    Returns:
        The wire version to be spoken: the newest that both know.

    Raises:
        HandshakeError: the first difference, with its name and both values. The text is the same at both ends.
    """
    version = min(dialer.newest_wire, acceptor.newest_wire)
    if version < max(dialer.oldest_wire, acceptor.oldest_wire):
        raise HandshakeError(
            f"wire versions do not meet: {dialer.broker} speaks {dialer.oldest_wire} to {dialer.newest_wire}, "
            f"{acceptor.broker} speaks {acceptor.oldest_wire} to {acceptor.newest_wire}; "
            + _advice(dialer if dialer.newest_wire < acceptor.newest_wire else acceptor)
        )
    if dialer.group != acceptor.group:
        raise _difference("group", dialer, dialer.group, acceptor, acceptor.group)
    if dialer.broker == acceptor.broker:
        raise HandshakeError(f"both ends are broker {dialer.broker!r}: an id belongs to one broker of the group")
    if dialer.peer and dialer.peer != acceptor.broker:
        raise HandshakeError(f"{dialer.broker} looks for broker {_shown(dialer.peer)}, and found {acceptor.broker!r}")
    oldest, newest = dialer.reads
    if not oldest <= acceptor.record_format <= newest:  # who dials is the backup: it takes what the other writes
        older = dialer if newest < acceptor.record_format else acceptor
        raise HandshakeError(f"record formats do not meet: {_formats(acceptor)}, {_formats(dialer)}; {_advice(older)}")
    keys = dialer.agreed.keys() | acceptor.agreed.keys()
    if dialer.newest_wire != acceptor.newest_wire:  # a setting may have come, or gone, with a version
        keys = dialer.agreed.keys() & acceptor.agreed.keys()
    for key in sorted(keys):
        ours, theirs = dialer.agreed.get(key), acceptor.agreed.get(key)
        if ours != theirs:
            raise _difference(shown_text(key), dialer, ours, acceptor, theirs)
    return version


def _difference(
    key: str, dialer: Hello, dialer_value: object, acceptor: Hello, acceptor_value: object
) -> HandshakeError:
    return HandshakeError(
        f"{key} differs: {dialer.broker} has {_shown(dialer_value)}, {acceptor.broker} has {_shown(acceptor_value)}"
    )


def _formats(hello: Hello) -> str:
    oldest, newest = hello.reads
    return f"{hello.broker} writes {hello.record_format} or newer and reads {oldest} to {newest}"


def _advice(older: Hello) -> str:
    return f"upgrade {older.broker} (the backups first, the primary last)"


def _shown(value: object) -> str:
    return "none" if value is None else shown_text(repr(value))


def shown_text(text: str, limit: int = _SHOWN_CHARACTERS) -> str:
    """Text of a peer, made fit for a log line: nothing that a terminal obeys, and not without end."""
    plain = "".join([c if c.isprintable() else "?" for c in text[: limit + 1]])
    return plain if len(plain) <= limit else plain[: limit - 3] + "..."
