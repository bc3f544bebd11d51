"""LinkSession under any split, any bytes, any order of events: whole messages in order, no exception, no stranger let in."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from understudy.replicator import wire
from understudy.replicator.direct.framing import frame_head
from understudy.replicator.direct.session import LinkSession

MAX_MESSAGE_BYTES = 200_000


def end(*, dialing: bool, secret: bytes = b"s") -> LinkSession:
    return LinkSession(
        dialing=dialing,
        group="g",
        broker="b1" if dialing else "b2",
        secret=secret,
        nonce=(b"d" if dialing else b"a") * 16,
        agreed={"k": "v"},
        now_ms=0,
        max_message_bytes=MAX_MESSAGE_BYTES,
    )


def linked() -> tuple[LinkSession, LinkSession]:
    one, other = end(dialing=True), end(dialing=False)
    for _ in range(3):
        other.receive(b"".join(one.take_output()), 0)
        one.receive(b"".join(other.take_output()), 0)
    assert one.established
    assert other.established
    return one, other


def pieces(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(edges)]


# The first octet of a batch decides what the checksum covers, so it is drawn often.
messages = st.one_of(
    st.binary(max_size=300),
    st.binary(max_size=300).map(lambda rest: bytes((wire.BATCH,)) + rest),
    st.integers(1, MAX_MESSAGE_BYTES).map(lambda size: b"m" * size),
)


@given(st.lists(messages, max_size=8), st.lists(st.integers(0, 1 << 30), max_size=30))
def test_messages_survive_any_split(sent: list[bytes], cuts: list[int]) -> None:
    one, other = linked()
    for message in sent:
        one.send(message)
    received = [m for piece in pieces(b"".join(one.take_output()), cuts) for m in other.receive(piece, 0)]
    assert received == sent
    assert not other.finished


@given(st.lists(st.integers(0, 1 << 30), max_size=30))
def test_a_handshake_survives_any_split(cuts: list[int]) -> None:
    one, other = end(dialing=True), end(dialing=False)
    for _ in range(3):
        for piece in pieces(b"".join(one.take_output()), cuts):
            other.receive(piece, 0)
        for piece in pieces(b"".join(other.take_output()), cuts):
            one.receive(piece, 0)
    assert one.established
    assert other.established


@given(st.lists(st.binary(max_size=200), max_size=10), st.booleans())
def test_any_bytes_of_a_stranger_raise_nothing_and_open_nothing(reads: list[bytes], dialing: bool) -> None:
    session = end(dialing=dialing)
    for data in reads:
        assert session.receive(data, 0) == []
    assert not session.established
    assert bool(session.reason) is session.finished


framed = st.builds(lambda kind, body: frame_head(kind, body) + body, st.integers(0, 255), st.binary(max_size=300))


@given(st.lists(framed, max_size=6), st.sampled_from(["dialer", "acceptor", "open"]))
def test_well_formed_frames_of_a_stranger_raise_nothing(stream: list[bytes], which: str) -> None:
    session = linked()[0] if which == "open" else end(dialing=which == "dialer")
    for data in stream:
        session.receive(data, 0)
    assert session.established is (which == "open")
    assert bool(session.reason) is session.finished


hello_like = st.dictionaries(
    st.sampled_from(
        [
            "group",
            "broker",
            "peer",
            "oldest_wire",
            "newest_wire",
            "record_format",
            "oldest_record_format",
            "newest_record_format",
            "nonce",
            "agreed",
            "x",
        ]
    ),
    st.one_of(
        st.none(),
        st.integers(),
        st.text(max_size=20),
        st.sampled_from(["g", "b1", "b2", "AAAAAAAAAAAAAAAAAAAAAA=="]),
        st.just(1),
        st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    ),
)


@given(hello_like, st.booleans())
def test_a_hello_of_any_shape_raises_nothing(hello: dict[str, object], dialing: bool) -> None:
    session = end(dialing=dialing)
    body = msgspec.json.encode(hello)
    session.receive(frame_head(2 if dialing else 1, body) + body, 0)
    assert not session.established


@given(st.data())
def test_a_handshake_with_one_bit_changed_on_the_way_opens_no_end_that_was_lied_to(data: st.DataObject) -> None:
    one, other = end(dialing=True), end(dialing=False)
    damaged_leg = data.draw(st.integers(0, 4))
    for leg in range(5):
        sender, receiver = (one, other) if leg % 2 == 0 else (other, one)
        output = bytearray(b"".join(sender.take_output()))
        if leg == damaged_leg and output:
            output[data.draw(st.integers(0, len(output) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        receiver.receive(bytes(output), 0)
    assert not other.established  # the acceptor hears the last word, so whichever was damaged, it has not opened
    if damaged_leg < 4:
        assert not one.established


class TwoEnds(RuleBasedStateMachine):
    """Both ends, a wire that cuts as it likes, time, and sooner or later a close."""

    @initialize(same_secret=st.booleans())
    def meet(self, same_secret: bool) -> None:
        self.ends = (end(dialing=True), end(dialing=False, secret=b"s" if same_secret else b"t"))
        self.same_secret = same_secret
        self.wires = (bytearray(), bytearray())  # from end 0, from end 1
        self.sent: tuple[list[bytes], list[bytes]] = ([], [])
        self.received: tuple[list[bytes], list[bytes]] = ([], [])  # by end 0, by end 1
        self.now_ms = 0

    @rule(who=st.integers(0, 1), amount=st.integers(1, 500))
    def carry(self, who: int, amount: int) -> None:
        """Some bytes of what ``who`` said reach the other end."""
        self.wires[who].extend(b"".join(self.ends[who].take_output()))
        data = bytes(self.wires[who][:amount])
        del self.wires[who][:amount]
        self.received[1 - who].extend(self.ends[1 - who].receive(data, self.now_ms))

    @rule(who=st.integers(0, 1), message=messages)
    def send(self, who: int, message: bytes) -> None:
        session = self.ends[who]
        if session.established:
            if not session.finished:
                self.sent[who].append(message)
            session.send(message)

    @rule(amount_ms=st.integers(1, 1_000))
    def pass_time(self, amount_ms: int) -> None:
        self.now_ms += amount_ms
        for session in self.ends:
            session.tick(self.now_ms)

    @precondition(lambda self: self.now_ms > 3_000)
    @rule(who=st.integers(0, 1))
    def close(self, who: int) -> None:
        self.ends[who].close("enough")

    @invariant()
    def what_is_received_is_the_beginning_of_what_was_sent(self) -> None:
        for who in (0, 1):
            received = self.received[1 - who]
            assert received == self.sent[who][: len(received)]

    @invariant()
    def nobody_opens_without_the_secret(self) -> None:
        if not self.same_secret:
            assert not any(session.established for session in self.ends)

    @invariant()
    def a_session_that_has_finished_says_why(self) -> None:
        for session in self.ends:
            assert bool(session.reason) is session.finished

    def teardown(self) -> None:
        """Check that, unless an end has finished, everything sent arrives once the wires run dry."""
        if not hasattr(self, "ends"):
            return
        while not any(session.finished for session in self.ends):
            before = (len(self.received[0]), len(self.received[1]), *(s.established for s in self.ends))
            for who in (0, 1):
                self.carry(who, 1 << 30)
            after = (len(self.received[0]), len(self.received[1]), *(s.established for s in self.ends))
            if before == after and not any(self.wires):
                assert (self.received[1], self.received[0]) == self.sent
                break


TestTwoEnds = TwoEnds.TestCase
TestTwoEnds.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
