"""LinkSession: two ends meet or refuse each other, messages pass whole and in order, silence ends a link, garbage only that."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import attrs
import pytest

from understudy.replicator import wire
from understudy.replicator.direct import framing, handshake, session
from understudy.replicator.direct.framing import FrameReader, FramingError, frame_head
from understudy.replicator.direct.session import LinkSession

SECRET = b"a secret"
DIALER_NONCE = b"d" * 16
ACCEPTOR_NONCE = b"a" * 16


def dialer(**changes: Any) -> LinkSession:
    arguments: dict[str, Any] = {
        "dialing": True,
        "group": "g",
        "broker": "b1",
        "peer": "b2",
        "secret": SECRET,
        "nonce": DIALER_NONCE,
        "agreed": {},
        "now_ms": 0,
    }
    return LinkSession(**(arguments | changes))


def acceptor(**changes: Any) -> LinkSession:
    arguments: dict[str, Any] = {
        "dialing": False,
        "group": "g",
        "broker": "b2",
        "secret": SECRET,
        "nonce": ACCEPTOR_NONCE,
        "agreed": {},
        "now_ms": 0,
    }
    return LinkSession(**(arguments | changes))


def talk(one: LinkSession, other: LinkSession, now_ms: int = 0) -> tuple[list[bytes], list[bytes]]:
    """Carry bytes both ways until neither has anything to say; returns what each received."""
    received: tuple[list[bytes], list[bytes]] = ([], [])
    while True:
        there, back = b"".join(one.take_output()), b"".join(other.take_output())
        if not there and not back:
            return received
        received[1].extend(other.receive(there, now_ms) if there else [])
        received[0].extend(one.receive(back, now_ms) if back else [])


def linked(**changes: Any) -> tuple[LinkSession, LinkSession]:
    one, other = dialer(**changes), acceptor(**changes)
    talk(one, other)
    assert one.established
    assert other.established
    return one, other


def has_finished(session: LinkSession) -> bool:
    return session.finished  # a call, since mypy takes an attribute for unchanged over a tick


def frames(data: bytes) -> list[tuple[int, bytes]]:
    reader = FrameReader(1 << 30)
    reader.add(data)
    found = []
    while (frame := reader.next_frame()) is not None:
        found.append(frame)
    return found


def framed(kind: int, body: bytes) -> bytes:
    return frame_head(kind, body) + body


# ------------------------------------------------------------------------------------------------------------ strangers

SETTINGS = {"broker.vhosts": "/,hidden-vhost"}


def answered_to(said: bytes, **changes: Any) -> bytes:
    """All that an acceptor says to a stranger that says this."""
    other = acceptor(**({"group": "hidden-group", "broker": "hidden-broker", "agreed": SETTINGS} | changes))
    other.receive(said, 0)
    return b"".join(other.take_output())


def hello_of(**changes: Any) -> bytes:
    return b"".join(dialer(**changes).take_output())


@pytest.mark.parametrize(
    "said",
    [
        hello_of(),
        hello_of(group="hidden-group", peer="hidden-broker", agreed=SETTINGS),
        hello_of(wire_versions=(1, 1)),
        hello_of(wire_versions=(1, 1), group="hidden-group"),
        hello_of(wire_versions=(2, 9)),
        hello_of(wire_versions=(7, 9)),
        hello_of() + framed(session.PROOF, bytes(32)),
        hello_of() + framed(session.CONFIRM, bytes(32)),
        hello_of() + framed(framing.MESSAGE, b"x"),
        framed(session.HELLO, b"{}"),
    ],
)
def test_a_stranger_is_told_nothing_of_the_broker(said: bytes) -> None:
    """A link told whoever connected its group, its broker's id, its versions and the names of all virtual hosts."""
    told = answered_to(said)
    assert b"hidden" not in told
    assert b"wire" not in told
    assert b"speaks" not in told
    assert frames(told) == [] or frames(told)[0][0] in (session.CHALLENGE, session.REFUSE)


def test_a_peer_of_an_older_version_is_told_ids_and_versions_and_no_settings() -> None:
    told = answered_to(hello_of(wire_versions=(1, 1), group="hidden-group", peer="hidden-broker", agreed=SETTINGS))
    ((kind, body),) = frames(told)
    hello = json.loads(body)
    assert kind == session.ANSWER
    assert (hello["group"], hello["broker"], hello["agreed"]) == ("hidden-group", "hidden-broker", {})


def test_a_dialer_tells_no_settings_before_the_other_end_has_proved_itself() -> None:
    assert b"hidden-vhost" not in hello_of(agreed=SETTINGS)


@pytest.mark.parametrize(("dials", "accepts"), [((1, 1), (1, 2)), ((1, 2), (1, 1))])
def test_ends_of_both_versions_link_and_compare_their_settings(
    dials: tuple[int, int], accepts: tuple[int, int]
) -> None:
    one, other = dialer(wire_versions=dials, agreed=SETTINGS), acceptor(wire_versions=accepts, agreed=SETTINGS)
    talk(one, other)
    assert (one.established, one.wire_version, other.wire_version) == (True, 1, 1)
    one = dialer(wire_versions=dials, agreed={"broker.vhosts": "/"})
    other = acceptor(wire_versions=accepts, agreed=SETTINGS)
    talk(one, other)
    assert not one.established
    assert not other.established
    assert "broker.vhosts differs" in (other.reason if accepts == (1, 2) else one.reason)


def test_a_confirm_that_was_changed_on_the_way_opens_nothing() -> None:
    one, other = dialer(agreed=SETTINGS), acceptor(agreed=SETTINGS)
    for _ in range(2):
        other.receive(b"".join(one.take_output()), 0)
        one.receive(b"".join(other.take_output()), 0)
    ((kind, body),) = frames(b"".join(one.take_output()))
    assert kind == session.CONFIRM
    other.receive(framed(kind, body.replace(b"hidden", b"hiddem")), 0)
    assert not other.established
    assert "link.secret" in other.reason


# ------------------------------------------------------------------------------------------------------------ meeting


def test_two_ends_of_a_group_authenticate_each_other() -> None:
    one, other = dialer(), acceptor()
    assert not one.established
    assert one.peer == ""
    talk(one, other)
    assert (one.established, one.peer, one.wire_version) == (True, "b2", wire.WIRE_VERSION)
    assert (other.established, other.peer, other.wire_version) == (True, "b1", wire.WIRE_VERSION)
    assert not one.finished
    assert not other.finished


def test_the_acceptor_waits_for_a_hello_and_says_nothing_first() -> None:
    assert acceptor().take_output() == []


def test_messages_pass_both_ways_whole_and_in_order() -> None:
    one, other = linked()
    for message in (b"", b"first", b"x" * 100_000, bytes((wire.BATCH,)) + b"\0" * 50):
        one.send(message)
    other.send(b"back")
    there, back = talk(one, other)[::-1]
    assert there == [b"", b"first", b"x" * 100_000, bytes((wire.BATCH,)) + b"\0" * 50]
    assert back == [b"back"]


def test_a_message_behind_the_welcome_in_one_read_is_received() -> None:
    one, other = dialer(wire_versions=(1, 1)), acceptor()
    other.receive(b"".join(one.take_output()), 0)
    one.receive(b"".join(other.take_output()), 0)
    other.receive(b"".join(one.take_output()), 0)
    other.send(b"y" * 70_000)  # longer than anything that is taken before the welcome
    assert one.receive(b"".join(other.take_output()), 0) == [b"y" * 70_000]


def test_a_message_behind_the_confirm_in_one_read_is_received() -> None:
    one, other = dialer(), acceptor()
    for _ in range(2):
        other.receive(b"".join(one.take_output()), 0)
        one.receive(b"".join(other.take_output()), 0)
    assert not other.established
    one.send(b"y" * 70_000)
    assert other.receive(b"".join(one.take_output()), 0) == [b"y" * 70_000]


def test_any_broker_may_answer_who_expects_none() -> None:
    one, other = dialer(peer=""), acceptor()
    talk(one, other)
    assert one.peer == "b2"


def test_an_empty_secret_is_one_that_must_be_empty_at_both_ends() -> None:
    one, other = dialer(secret=b""), acceptor(secret=b"")
    talk(one, other)
    assert one.established
    assert other.established
    refused_dialer, refusing = dialer(secret=b""), acceptor()
    talk(refused_dialer, refusing)
    assert not refused_dialer.established
    assert not refusing.established


# ----------------------------------------------------------------------------------------------------------- refusals


REFUSALS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"group": "g1"}, {"group": "g2"}, "group differs: b1 has 'g1', b2 has 'g2'"),
    ({"peer": "b3"}, {}, "b1 looks for broker 'b3', and found 'b2'"),
    ({"broker": "b2"}, {}, "both ends are broker 'b2'"),
    (
        {"wire_versions": (1, 2)},
        {"wire_versions": (3, 4)},
        "b1 speaks 1 to 2, b2 speaks 3 to 4; upgrade b1 (the backups first, the primary last)",
    ),
    (
        {"record_formats": (1, 2, 2)},
        {"record_formats": (1, 4, 3)},
        "record formats do not meet: b2 writes 3 or newer and reads 1 to 4, b1 writes 2 or newer and reads 1 to 2; upgrade b1",
    ),
    (
        {"record_formats": (3, 4, 4)},
        {"record_formats": (1, 2, 2)},
        "record formats do not meet: b2 writes 2 or newer and reads 1 to 2, b1 writes 4 or newer and reads 3 to 4; upgrade b2",
    ),
    ({"agreed": {"x": "1"}}, {"agreed": {"x": "2"}}, "x differs: b1 has '1', b2 has '2'"),
    ({"agreed": {"x": "1"}}, {}, "x differs: b1 has '1', b2 has none"),
    ({"agreed": {"b": "1", "a": "1"}}, {"agreed": {"b": "2", "a": "2"}}, "a differs"),
    ({"group": "g1", "agreed": {"a": "1"}}, {"group": "g2"}, "group differs"),
]


@pytest.mark.parametrize(("dialer_has", "acceptor_has", "reason"), REFUSALS)
def test_the_first_difference_is_refused_at_both_ends_naming_both_values(
    dialer_has: dict[str, Any], acceptor_has: dict[str, Any], reason: str
) -> None:
    one, other = dialer(**dialer_has), acceptor(**acceptor_has)
    talk(one, other)
    assert one.finished
    assert other.finished
    assert not one.established
    assert not other.established
    assert reason in other.reason
    assert reason in one.reason
    assert reason in other.remote_reason, "the dialer looks first"


def test_the_dialer_checks_for_itself() -> None:
    """An acceptor that overlooks a difference (an older program, say) is refused by the dialer."""
    one, other = dialer(agreed={"x": "1"}), acceptor(agreed={"x": "1"}, wire_versions=(1, 1))
    other.receive(b"".join(one.take_output()), 0)
    answer = json.loads(frames(b"".join(other.take_output()))[0][1])
    answer["agreed"] = {"x": "2"}
    one.receive(framed(session.ANSWER, json.dumps(answer).encode()), 0)
    assert one.finished
    assert "x differs: b1 has '1', b2 has '2'" in one.reason
    ((kind, told),) = frames(b"".join(one.take_output()))
    assert kind == session.REFUSE
    assert b"x differs" not in told, "the other end has proved nothing"


def test_a_backup_of_a_newer_program_may_follow_a_primary_of_an_older_one() -> None:
    """A rolling upgrade replaces backups first: what they would write, nobody has to read yet."""
    one, other = dialer(record_formats=(1, 2, 2)), acceptor(record_formats=(1, 1, 1))
    talk(one, other)
    assert one.established
    assert other.established


def test_a_peer_that_says_only_what_it_writes_reads_nothing_else() -> None:
    """A program from before there were ranges."""
    one = dialer(record_formats=(1, 2, 2), wire_versions=(1, 1))
    other = acceptor(record_formats=(1, 2, 2), wire_versions=(1, 1))
    hello = json.loads(frames(b"".join(one.take_output()))[0][1])
    assert (hello["record_format"], hello["oldest_record_format"], hello["newest_record_format"]) == (2, 1, 2)
    del hello["oldest_record_format"], hello["newest_record_format"]
    hello["record_format"] = 1
    other.receive(framed(session.HELLO, json.dumps(hello).encode()), 0)
    assert "b2 writes 2 or newer and reads 1 to 2, b1 writes 1 or newer and reads 1 to 1; upgrade b1" in other.reason


@pytest.mark.parametrize("versions", [(1, 2), (1, 3)])
def test_a_setting_that_one_version_alone_knows_is_not_compared(versions: tuple[int, int]) -> None:
    """Programs of one version must both have it."""
    one, other = dialer(agreed={"x": "1", "new": "1"}, wire_versions=versions), acceptor(agreed={"x": "1"})
    talk(one, other)
    assert one.established is other.established is (versions == (1, 3))
    assert other.remote_reason == ("" if versions == (1, 3) else "new differs: b1 has '1', b2 has none")
    one, other = dialer(agreed={"x": "2", "new": "1"}, wire_versions=versions), acceptor(agreed={"x": "1"})
    talk(one, other)
    assert not one.established


def test_the_newest_version_that_both_speak_is_spoken() -> None:
    one, other = dialer(wire_versions=(1, 3)), acceptor(wire_versions=(2, 5))
    talk(one, other)
    assert one.wire_version == other.wire_version == 3


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b"\xff", b'{"group": 1}', b'{"x":' + b"[" * 60_000, b'{"group":"\xff"}', b"1e999"]
)
def test_a_hello_that_is_none_is_refused_without_an_answer(body: bytes) -> None:
    one = acceptor()
    one.receive(framed(session.HELLO, body), 0)
    assert one.finished
    assert "no hello of this protocol" in one.reason
    assert one.take_output() == []


def test_unknown_keys_of_a_newer_hello_are_passed_over() -> None:
    one = acceptor()
    hello = json.loads(frames(b"".join(dialer().take_output()))[0][1]) | {"compression": ["zstd"]}
    one.receive(framed(session.HELLO, json.dumps(hello).encode()), 0)
    assert not one.finished
    assert frames(b"".join(one.take_output()))[0][0] == session.CHALLENGE


# ------------------------------------------------------------------------------------------------------------- secrets


def test_a_wrong_secret_is_refused_at_both_ends() -> None:
    one, other = dialer(secret=b"wrong"), acceptor()
    talk(one, other)
    for end in (one, other):
        assert end.finished
        assert not end.established
        assert end.peer == ""
        assert "link.secret" in end.reason
        assert "wrong" not in end.reason
        assert "a secret" not in end.reason


def test_an_acceptor_that_cannot_prove_itself_is_refused() -> None:
    one, other = dialer(), acceptor()
    other.receive(b"".join(one.take_output()), 0)
    one.receive(b"".join(other.take_output()), 0)
    one.take_output()
    one.receive(framed(session.SEALED_WELCOME, b"\0" * 32 + b"{}"), 0)
    assert one.finished
    assert not one.established
    assert "link.secret" in one.reason


def test_who_lacks_the_secret_gets_nothing_made_with_it() -> None:
    """The acceptor's proof comes only after the dialer's: a stranger has nothing to try guesses on."""
    one, other = dialer(secret=b"wrong"), acceptor()
    said = bytearray()
    for _ in range(4):
        other.receive(b"".join(one.take_output()), 0)
        output = b"".join(other.take_output())
        said += output
        one.receive(output, 0)
    kinds = [kind for kind, _ in frames(bytes(said))]
    assert kinds == [session.CHALLENGE, session.REFUSE]
    for role in (handshake.DIALER, handshake.ACCEPTOR):
        hello, answer = handshake_hellos()
        assert handshake.proof(SECRET, role, hello, answer) not in said


def handshake_hellos() -> tuple[bytes, bytes]:
    one, other = dialer(wire_versions=(1, 1)), acceptor(wire_versions=(1, 1))
    hello = b"".join(one.take_output())
    other.receive(hello, 0)
    return frames(hello)[0][1], frames(b"".join(other.take_output()))[0][1]


def test_a_proof_is_bound_to_role_and_to_both_hellos() -> None:
    hello, answer = handshake_hellos()
    proof = handshake.proof(SECRET, handshake.DIALER, hello, answer)
    assert proof != handshake.proof(SECRET, handshake.ACCEPTOR, hello, answer)
    assert proof != handshake.proof(SECRET, handshake.DIALER, answer, hello)
    assert proof != handshake.proof(SECRET, handshake.DIALER, hello + answer[:1], answer[1:])


@pytest.mark.parametrize("version", [1, 2])
def test_a_reflected_proof_opens_nothing(version: int) -> None:
    """A stranger that knows no secret answers each frame with what the acceptor itself has said."""
    versions = (1, version)
    victim = acceptor(wire_versions=versions)
    stranger = dialer(secret=b"", wire_versions=versions)
    victim.receive(b"".join(stranger.take_output()), 0)
    challenge = b"".join(victim.take_output())
    stranger.receive(challenge, 0)
    # The victim dials as well: the stranger has it prove itself there, to the very same hellos if it can.
    calling = dialer(broker="b2", peer="b1", wire_versions=versions)
    answer = json.loads(frames(b"".join(dialer(broker="b1", peer="b2", wire_versions=versions).take_output()))[0][1])
    calling.take_output()
    if version == 1:
        calling.receive(framed(session.ANSWER, json.dumps(answer | {"peer": ""}).encode()), 0)
    else:
        calling.receive(challenge, 0)
    stolen = frames(b"".join(calling.take_output()))[0]
    assert stolen[0] == session.PROOF
    victim.receive(framed(*stolen), 0)
    assert victim.finished
    assert not victim.established
    assert "link.secret" in victim.reason


@pytest.mark.parametrize("changed", [{"oldest_wire": 0}, {"nonce": "b" * 24}, {"more": 1}])
@pytest.mark.parametrize(("version", "forged_leg"), [(1, session.HELLO), (1, session.ANSWER), (2, session.HELLO)])
def test_a_hello_that_was_changed_on_the_way_opens_nothing(
    changed: dict[str, Any], version: int, forged_leg: int
) -> None:
    one, other = forged_on_the_way((1, version), forged_leg, changed)
    assert "link.secret" in one.reason
    assert "link.secret" in other.reason


def test_a_downgrade_on_the_way_opens_nothing() -> None:
    """Both ends speak version 2, and somebody between them has the acceptor believe that the dialer speaks 1 alone."""
    one, _ = forged_on_the_way((1, 2), session.HELLO, {"newest_wire": 1})
    assert one.reason == "b2 answers as a broker of an older version does"


def forged_on_the_way(
    versions: tuple[int, int], forged_leg: int, changed: dict[str, Any]
) -> tuple[LinkSession, LinkSession]:
    """Both ends, when somebody has changed a frame of this kind."""
    one, other = dialer(wire_versions=versions), acceptor(wire_versions=versions)
    for _ in range(2):
        for sender, receiver in ((one, other), (other, one)):
            for kind, body in frames(b"".join(sender.take_output())):
                if kind == forged_leg:
                    body = json.dumps(json.loads(body) | changed).encode()  # noqa: PLW2901
                receiver.receive(framed(kind, body), 0)
    assert not one.established
    assert not other.established
    return one, other


def test_a_replayed_conversation_opens_nothing() -> None:
    one, other = dialer(), acceptor()
    recorded = []
    for _ in range(3):
        recorded.append(b"".join(one.take_output()))
        other.receive(recorded[-1], 0)
        one.receive(b"".join(other.take_output()), 0)
    assert other.established
    again = acceptor(nonce=b"n" * 16)
    for data in recorded:
        again.receive(data, 0)
    assert again.finished
    assert not again.established


def test_a_session_that_has_reached_itself_does_not_take_its_hello_for_an_answer() -> None:
    one = dialer()
    one.receive(b"".join(one.take_output()), 0)
    assert one.finished
    assert not one.established


def test_a_short_nonce_and_a_long_name_are_our_own_mistakes() -> None:
    with pytest.raises(ValueError, match="nonce"):
        dialer(nonce=b"short")
    with pytest.raises(ValueError, match="broker"):
        dialer(broker="b" * 65)


# ------------------------------------------------------------------------------------------------------------ the end


def test_close_tells_the_peer_and_what_was_sent_before_still_arrives() -> None:
    one, other = linked()
    one.send(b"last")
    one.close("no longer wanted")
    one.send(b"after")
    assert one.finished
    assert one.reason == "no longer wanted"
    assert talk(one, other)[1] == [b"last"]
    assert other.finished
    assert other.remote_reason == "no longer wanted"
    assert other.reason == "b1 ended the link: no longer wanted"


def test_nothing_is_received_after_the_end() -> None:
    one, other = linked()
    other.send(b"m")
    data = b"".join(other.take_output())
    one.close("enough")
    assert one.receive(data, 0) == []


def test_messages_in_front_of_a_goodbye_in_one_read_are_received() -> None:
    one, other = linked()
    other.send(b"m")
    other.close("bye")
    assert one.receive(b"".join(other.take_output()), 0) == [b"m"]
    assert one.finished


def test_the_first_reason_stays() -> None:
    one, _ = linked()
    one.close("first")
    one.close("second")
    one.tick(1_000_000)
    assert one.reason == "first"


def test_a_stranger_gets_no_answer_to_garbage() -> None:
    one = acceptor()
    assert one.receive(b"GET / HTTP/1.1\r\n\r\n", 0) == []
    assert one.finished
    assert "at most 65536" in one.reason
    assert "has proved who it is" in one.reason
    assert one.take_output() == []


@pytest.mark.parametrize("kind", range(10))
def test_a_frame_out_of_turn_finishes_the_session(kind: int) -> None:
    for end in (dialer(), acceptor(), *linked()):
        allowed = {session.HEARTBEAT, session.GOODBYE, framing.MESSAGE} if end.established else set()
        end.receive(framed(kind, b""), 0)
        if kind not in allowed:
            assert end.finished
            assert end.reason


def test_a_reason_of_a_peer_is_fit_for_a_log() -> None:
    one, other = linked()
    other.close("\x1b[2J\n" + "z" * 5_000 + "\xff")
    talk(other, one)
    assert one.remote_reason.startswith("?[2J?zzz")
    assert len(one.remote_reason) <= 1_000
    assert one.remote_reason.isprintable()


def test_a_message_that_is_too_long_ends_the_link_and_raises_nothing() -> None:
    one, other = linked(max_message_bytes=1_000)
    one.send(b"z" * 1_001)
    assert one.finished
    assert "1001 bytes" in one.reason
    talk(one, other)
    assert other.finished


def test_a_message_that_is_too_long_is_refused_before_it_is_gathered() -> None:
    one, other = linked()
    other._reader.limit = 1_000
    one.send(b"z" * 1_001)
    head = one.take_output()[0]
    other.receive(head, 0)
    assert other.finished
    assert "a frame of 1001 bytes, at most 1000" in other.reason


# ----------------------------------------------------------------------------------------------------------- checksums


def corrupted(chunks: Sequence[bytes], at: int) -> bytes:
    data = bytearray(b"".join(chunks))
    data[at] ^= 0x10
    return bytes(data)


@pytest.mark.parametrize("at", [3, 4, 8, 9, 12])
def test_a_flipped_bit_in_a_message_ends_the_link(at: int) -> None:
    one, other = linked()
    one.send(b"hello, this is ACK or so")
    one.send(b"z" * 40)  # so that a damaged length finds enough bytes
    assert other.receive(corrupted(one.take_output(), at), 0) == []
    assert other.finished
    assert other.reason


def test_of_a_batch_kind_and_stable_position_are_covered_and_the_journals_frame_is_left_to_its_own_checksum() -> None:
    for offset, noticed in ((0, True), (1, True), (8, True), (9, False), (30, False)):
        one, other = linked()
        one.send(wire.encode_batch(77, b"a frame with a checksum of its own"))
        received = other.receive(corrupted(one.take_output(), framing.HEAD_BYTES + offset), 0)
        assert other.finished is noticed
        assert len(received) == (0 if noticed else 1)


def test_the_layout_of_a_frame() -> None:
    assert frame_head(7, b"") == b"\0\0\0\0" + crc32(b"\0\0\0\0\x07").to_bytes(4, "big") + b"\x07"
    body = b"\x0cabc"
    assert frame_head(6, body) == b"\0\0\0\x04" + crc32(b"\0\0\0\x04\x06" + body).to_bytes(4, "big") + b"\x06"


# ---------------------------------------------------------------------------------------------------------------- time


def test_an_idle_end_sends_heartbeats_and_a_busy_one_does_not() -> None:
    one, other = linked(heartbeat_ms=100, dead_after_ms=10_000)
    heartbeats = 0
    for now_ms in range(0, 1_000, 10):
        one.tick(now_ms)
        output = b"".join(one.take_output())
        heartbeats += sum(kind == session.HEARTBEAT for kind, _ in frames(output))
        other.receive(output, now_ms)
    assert 8 <= heartbeats <= 10
    for now_ms in range(1_000, 2_000, 10):
        one.send(b"work")
        one.tick(now_ms)
        assert {kind for kind, _ in frames(b"".join(one.take_output()))} == {framing.MESSAGE}
    for now_ms in range(2_000, 2_090, 10):  # and idle again, but not for long enough
        one.tick(now_ms)
        assert one.take_output() == []


def test_heartbeats_keep_a_link_alive_and_deliver_nothing() -> None:
    one, other = linked(heartbeat_ms=100, dead_after_ms=500)
    for now_ms in range(0, 5_000, 50):
        one.tick(now_ms)
        other.tick(now_ms)
        assert talk(one, other, now_ms) == ([], [])
    assert not one.finished
    assert not other.finished


def test_silence_ends_a_link() -> None:
    one, _ = linked(heartbeat_ms=100, dead_after_ms=500)
    for now_ms in range(0, 500, 20):
        one.tick(now_ms)
    assert not has_finished(one)
    for now_ms in range(500, 600, 20):
        one.tick(now_ms)
    assert has_finished(one)
    assert one.reason == "nothing was heard from b2 for 520 ms"
    assert frames(b"".join(one.take_output()))[-1][0] == session.GOODBYE


def test_two_heartbeats_of_silence_end_the_link_of_a_broker_that_is_suspected() -> None:
    one, other = linked(heartbeat_ms=100, dead_after_ms=500)
    for now_ms in range(0, 1_000, 20):
        one.tick(now_ms, suspected=True)
        other.tick(now_ms)
        one.receive(b"".join(other.take_output()), now_ms)
        other.receive(b"".join(one.take_output()), now_ms)
    assert not has_finished(one)
    for now_ms in range(1_000, 1_260, 20):
        one.tick(now_ms, suspected=True)
    assert has_finished(one)


def test_a_process_that_slept_reads_before_it_judges() -> None:
    """After SIGSTOP and SIGCONT the first tick may come before the read of what arrived meanwhile."""
    one, other = linked(heartbeat_ms=100, dead_after_ms=500)
    one.tick(10)
    one.tick(60_000)
    assert not one.finished
    other.send(b"I was here")
    assert one.receive(b"".join(other.take_output()), 60_001) == [b"I was here"]
    one.tick(60_100)
    assert not one.finished


def test_a_long_message_on_its_way_counts_as_heard() -> None:
    one, other = linked(heartbeat_ms=100, dead_after_ms=500)
    other.send(b"z" * 100)
    data = b"".join(other.take_output())
    for index in range(len(data) - 1):
        one.receive(data[index : index + 1], index * 50)
        one.tick(index * 50)
        assert not one.finished


def test_a_handshake_that_is_never_finished_times_out() -> None:
    one, other = dialer(handshake_timeout_ms=1_000), acceptor(handshake_timeout_ms=1_000)
    other.receive(b"".join(one.take_output()), 0)
    for end, waits_for in ((one, "ANSWER"), (other, "PROOF")):
        end.tick(999)
        assert not has_finished(end)
        end.tick(1_000)
        assert has_finished(end)
        assert "1000 ms" in end.reason
        assert waits_for in end.reason


# -------------------------------------------------------------------------------------------------------------- bytes


def one_by_one(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


@pytest.mark.parametrize("split", [lambda data: [data], one_by_one])
def test_frames_come_out_however_they_were_cut(split: Callable[[bytes], list[bytes]]) -> None:
    bodies = [b"", b"a", b"bc" * 500, b"", b"d"]
    reader = FrameReader(10_000)
    found = []
    for piece in split(b"".join(framed(6, body) for body in bodies)):
        reader.add(piece)
        while (frame := reader.next_frame()) is not None:
            found.append(frame)
    assert found == [(6, body) for body in bodies]


def test_a_frame_reader_that_is_asked_again_waits() -> None:
    reader = FrameReader(10_000)
    data = framed(6, b"x" * 100)
    for piece in (data[:4], data[4:9], data[9:50], data[50:]):
        assert reader.next_frame() is None
        reader.add(piece)
    assert reader.next_frame() == (6, b"x" * 100)
    assert reader.next_frame() is None


def test_a_limit_that_is_raised_counts_for_what_is_already_here() -> None:
    reader = FrameReader(10)
    reader.add(framed(6, b"short") + framed(6, b"longer than ten"))
    assert reader.next_frame() == (6, b"short")
    reader.limit = 20
    assert reader.next_frame() == (6, b"longer than ten")
    reader.limit = 10
    reader.add(framed(6, b"longer than ten"))
    with pytest.raises(FramingError, match="15 bytes, at most 10"):
        reader.next_frame()


def test_a_session_goes_without_a_garbage_collector() -> None:
    """The broker's collects rarely: a session was a cycle, and with it everything that waited to be written."""
    gc.disable()
    try:
        one, other = linked()
        one.send(b"never written")
        other.close("test")
        gone = [weakref.ref(one), weakref.ref(other)]
        del one, other
        assert [session() for session in gone] == [None, None]
    finally:
        gc.enable()


def test_a_message_is_not_copied_on_its_way_out() -> None:
    one, _ = linked()
    message = b"z" * 1_000_000
    one.send(message)
    assert any(chunk is message for chunk in one.take_output())


def test_a_long_message_in_many_reads_costs_linear_work() -> None:
    """Nothing is joined before the last piece is there: the pieces held are the very objects that were received."""
    one, other = linked()
    one.send(b"z" * 4_000_000)
    data = b"".join(one.take_output())
    pieces = [data[i : i + 1_000] for i in range(0, len(data), 1_000)]
    for piece in pieces[:-1]:
        assert other.receive(piece, 0) == []
    held = other._reader._pieces
    assert all(mine is theirs for mine, theirs in zip(held[1:], pieces[1:-1], strict=True))
    assert other.receive(pieces[-1], 0) == [b"z" * 4_000_000]


def test_statistics_count_messages_and_bytes() -> None:
    one, other = linked()
    before = one.statistics()
    one.send(b"12345")
    assert one.statistics().waiting_bytes == framing.HEAD_BYTES + 5
    talk(one, other)
    after = one.statistics()
    assert (after.peer, after.messages_sent, after.waiting_bytes) == ("b2", 1, 0)
    assert after.bytes_sent == before.bytes_sent + framing.HEAD_BYTES + 5
    assert other.statistics().messages_received == 1
    assert other.statistics().bytes_received == after.bytes_sent


# ------------------------------------------------------------------------------------------------ clients that are carried


def test_a_connection_that_carries_a_client_is_no_link() -> None:
    one, other = dialer(carry=b"a client"), acceptor()
    assert talk(one, other) == ([], [])
    assert (one.established, other.established) == (False, False)
    assert (other.carried, other.peer, has_finished(other)) == (b"a client", "b1", True)
    assert one.carried is None
    other.accept_carried()
    one.receive(b"".join(other.take_output()) + b"octets of AMQP", 0)
    assert [one.take_rest(), one.take_rest()] == [b"octets of AMQP", b""]
    one.tick(1_000_000)
    other.tick(1_000_000)
    assert one.take_output() == other.take_output() == []


def test_a_refusal_of_a_client_may_be_another_ones_luck() -> None:
    one, other = dialer(carry=b"a client"), acceptor()
    talk(one, other)
    other.refuse_carried("it does not lead")
    talk(one, other)
    assert (one.reason, one.incompatible) == ("refused by b2: it does not lead", False)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"group": "other"}, "group differs: b1 has 'g', b2 has 'other'"),
        ({"secret": b"another"}, "refused by b2: the shared secret"),
        ({"broker": "b3"}, "b1 looks for broker 'b2', and found 'b3'"),
    ],
)
def test_a_client_is_carried_to_nobody_but_the_primary_of_the_group(changes: dict[str, Any], said: str) -> None:
    one, other = dialer(carry=b"a client"), acceptor(**changes)
    talk(one, other)
    assert one.reason.startswith(said)
    assert one.incompatible
    assert other.carried is None


def test_a_broker_of_an_older_version_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = dialer(carry=b"a client"), acceptor()
    monkeypatch.setattr(other, "_ours", attrs.evolve(other._ours, carries=False))
    talk(one, other)
    assert one.reason == "b2 is of an older version, to which no clients can be carried"
    assert (one.incompatible, has_finished(other)) == (True, True)


def test_a_connection_for_what_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = dialer(), acceptor()
    monkeypatch.setattr(one, "_ours", attrs.evolve(one._ours, purpose="to dance"))
    talk(one, other)
    assert other.reason == "b1 opens a connection for 'to dance'"


def test_who_proves_nothing_carries_nobody() -> None:
    """CARRY before the proof, or on a link, ends the conversation."""
    other = acceptor()
    other.receive(framed(session.CARRY, b"a client"), 0)
    assert other.reason == "the other end sent a frame of kind 12; what was waited for is a HELLO"
    mine, theirs = linked()
    theirs.receive(framed(session.CARRY, b"a client"), 0)
    assert (theirs.carried, has_finished(theirs)) == (None, True)
    assert mine.established


def test_a_connection_that_carries_nobody_in_time_is_given_up() -> None:
    one, other = dialer(carry=b"a client"), acceptor()
    talk(one, other)
    one.tick(10_000)
    assert "still waits for a CARRIED" in one.reason
