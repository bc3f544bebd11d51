"""The handshake of client and state server, and what a client that only reads may ask for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import get_args

import msgspec
import pytest

from tests.unit.xa.rig import hello
from understudy.xa.core.errors import AccessError
from understudy.xa.core.register.access import (
    NONCE_OCTETS,
    READ_ONLY,
    Acceptor,
    Access,
    Dialer,
    refusal,
    refused_line,
    unwanted,
)
from understudy.xa.core.register.wire import (
    Begin,
    Claim,
    Decide,
    Hello,
    List,
    Refused,
    Request,
    line_of,
    reply_of,
    request_of,
)

SECRET, READERS = b"the secret of all that change", b"the secret of all that read"
SECRETS = {Access.CHANGE: SECRET, Access.READ: READERS}


def nonce(number: int) -> bytes:
    return hashlib.sha256(bytes([number])).digest()[:NONCE_OCTETS]


def unchanged(_number: int, octets: bytes) -> bytes:
    return octets


def conversation(
    dialer: Dialer, acceptor: Acceptor, way: Callable[[int, bytes], bytes] = unchanged
) -> tuple[Access, Access]:
    """Run a handshake; both ends say what the client may do. ``way`` may change each line, by its number."""
    challenge = way(1, acceptor.challenge(way(0, dialer.knock)))
    access, proved = acceptor.admit(way(2, dialer.prove(challenge)))
    return access, dialer.admitted(proved)


@pytest.mark.parametrize("access", list(Access))
def test_both_ends_prove_the_secret_and_agree_on_what_the_client_may_do(access: Access) -> None:
    assert conversation(Dialer(SECRETS[access], nonce(1)), Acceptor(SECRETS, nonce(2))) == (access, access)


def test_a_client_with_another_secret_is_refused_before_the_server_proves_anything() -> None:
    dialer, acceptor = Dialer(b"a guess of 16 octets", nonce(1)), Acceptor(SECRETS, nonce(2))
    with pytest.raises(AccessError, match="the shared secret of the client is not one of this state server's"):
        acceptor.admit(dialer.prove(acceptor.challenge(dialer.knock)))


def test_a_server_with_another_secret_is_refused() -> None:
    """A false server has recorded the proof of the client, and takes its proof as good."""
    dialer, other = Dialer(SECRET, nonce(1)), Acceptor({Access.CHANGE: b"another one"}, nonce(2))
    challenge = other.challenge(dialer.knock)
    own = Dialer(b"another one", nonce(1))
    _, proved = other.admit(own.prove(challenge))
    dialer.prove(challenge)
    with pytest.raises(AccessError, match="does not have the shared secret of this client"):
        dialer.admitted(proved)


def test_the_server_does_not_raise_what_the_client_may_do() -> None:
    dialer, acceptor = Dialer(READERS, nonce(1)), Acceptor(SECRETS, nonce(2))
    _, proved = acceptor.admit(dialer.prove(acceptor.challenge(dialer.knock)))
    with pytest.raises(AccessError):
        dialer.admitted(proved.replace(b'"read"', b'"change"'))


def test_a_recorded_proof_is_of_no_use_in_another_conversation() -> None:
    dialer, first = Dialer(SECRET, nonce(1)), Acceptor(SECRETS, nonce(2))
    recorded = dialer.prove(first.challenge(dialer.knock))
    first.admit(recorded)
    second = Acceptor(SECRETS, nonce(3))
    second.challenge(dialer.knock)
    with pytest.raises(AccessError):
        second.admit(recorded)


def test_a_proof_is_of_no_use_to_its_maker() -> None:
    """A server without the secret sends the client's own proof back."""
    dialer, acceptor = Dialer(SECRET, nonce(1)), Acceptor(SECRETS, nonce(2))
    proof = msgspec.json.decode(dialer.prove(acceptor.challenge(dialer.knock)))["proof"]
    with pytest.raises(AccessError):
        dialer.admitted(msgspec.json.encode({"say": "proved", "proof": proof, "access": "change"}))


def test_a_line_that_was_changed_on_the_way_is_refused_at_every_octet() -> None:
    """Each octet of each of the three lines that a proof is over: one end or the other refuses."""
    dialer, acceptor = Dialer(SECRET, nonce(1)), Acceptor(SECRETS, nonce(2))
    challenge = acceptor.challenge(dialer.knock)
    lengths = [len(dialer.knock), len(challenge), len(dialer.prove(challenge))]
    for line, length in enumerate(lengths):
        for at in range(length - 1):

            def changed(number: int, octets: bytes, line: int = line, at: int = at) -> bytes:
                if number != line:
                    return octets
                return octets[:at] + bytes([octets[at] ^ 1]) + octets[at + 1 :]

            dialer, acceptor = Dialer(SECRET, nonce(1)), Acceptor(SECRETS, nonce(2))
            with pytest.raises(AccessError):
                conversation(dialer, acceptor, changed)


GARBAGE = [
    b"",
    b"\n",
    b"\xff\xfe\n",
    b"GET / HTTP/1.1\r\n",
    b"[" * 4000,
    b"{}",
    b'{"say":"knock"}',
    '{"say":"prove","proof":"ä"}'.encode(),
    b'{"say":"knock","version":1,"nonce":"\xff"}',
    b'{"say":"challenge","nonce":"\xff"}',
    b'{"say":"prove","proof":"\xff"}',
    b'{"say":"proved","proof":"\xff","access":"read"}',
    b'{"say":"refused","code":"\xff","text":""}',
    b'{"say":"hello","version":1,"job":"\xff","profile":"","fingerprint":""}',
]


@pytest.mark.parametrize("line", GARBAGE)
def test_garbage_is_refused_at_each_place(line: bytes) -> None:
    acceptor = Acceptor(SECRETS, nonce(2))
    with pytest.raises(AccessError, match="the first line is no handshake"):
        acceptor.challenge(line)
    acceptor.challenge(Dialer(SECRET, nonce(1)).knock)
    with pytest.raises(AccessError):
        acceptor.admit(line)
    dialer = Dialer(SECRET, nonce(1))
    with pytest.raises(AccessError, match="answers with no challenge"):
        dialer.prove(line)
    dialer.prove(Acceptor(SECRETS, nonce(2)).challenge(dialer.knock))
    with pytest.raises(AccessError):
        dialer.admitted(line)
    assert unwanted(line) == ""
    for read in (request_of, reply_of):
        with pytest.raises(msgspec.MsgspecError):
            read(line)


def test_each_end_of_another_version_is_told_why() -> None:
    with pytest.raises(AccessError, match="asks for a shared secret, and the client has none"):
        Acceptor(SECRETS, nonce(2)).challenge(line_of(hello()))
    knock = Dialer(SECRET, nonce(1)).knock
    with pytest.raises(AccessError, match="speaks version 1 of the handshake, the client 2"):
        Acceptor(SECRETS, nonce(2)).challenge(knock.replace(b'"version":1', b'"version":2'))
    assert "start it with --secret-file" in unwanted(knock)
    assert unwanted(line_of(hello())) == ""
    with pytest.raises(AccessError, match="of a version without handshake: the line is no request"):
        Dialer(SECRET, nonce(1)).prove(line_of(Refused("protocol", "the line is no request: ...")))
    with pytest.raises(AccessError, match=r"^not today$"):
        Dialer(SECRET, nonce(1)).prove(refused_line("not today"))


def test_a_client_that_reads_may_greet_and_list_and_nothing_else() -> None:
    """All kinds of requests, also those of the future."""
    made = {kind: kind(*[""] * len(kind.__struct_fields__)) for kind in get_args(Request)}
    allowed = {kind for kind, request in made.items() if refusal(Access.READ, request) is None}
    assert allowed == {Hello, List}
    for request in (Begin("a", []), Claim(), Decide("a")):
        refused = refusal(Access.READ, request)
        assert refused is not None
        assert (refused.code, type(request).__name__.lower() in refused.text) == (READ_ONLY, True)
        assert refusal(Access.CHANGE, request) is None
