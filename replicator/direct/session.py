"""LinkSession: one end of a link, without its socket, clock or chance.

A driver feeds it what arrives and the time, and writes what it gives out. It authenticates both ends (``handshake``), cuts the
stream into messages (``framing``), sends heartbeats, and notices that the other end is dead. It never raises over what a peer
sends: it finishes, and :attr:`LinkSession.reason` says why.

==============  ====  =====================  =============================================
frame           kind  from                   body
==============  ====  =====================  =============================================
HELLO           1     dialer                 JSON
ANSWER          2     acceptor (version 1)   JSON
PROOF           3     dialer                 32 octets
WELCOME         4     acceptor (version 1)   32 octets
REFUSE          5     both, for good         text: why there will be no link
MESSAGE         6     both, once open        whatever the core says
HEARTBEAT       7     both, once open        nothing
GOODBYE         8     both, once open        text: why the link ends
CHALLENGE       9     acceptor               16 to 64 octets
SEALED_WELCOME  10    acceptor               32 octets, JSON
CONFIRM         11    dialer                 32 octets, JSON
CARRY           12    dialer                 a client (``broker.core.clients.carrier_header``)
CARRIED         13    acceptor               nothing: the octets of AMQP follow, both ways
==============  ====  =====================  =============================================

A connection whose HELLO has the purpose "carry" is no link: it carries one client. CARRY follows CONFIRM, CARRIED or REFUSE
answers it, and then the session has done its part: whoever drives it takes the connection over.

Kinds 2 and 4 are not 1 and 3 seen from the other side: a TCP connection that has, by the accident of loopback port numbers,
reached itself, must not take its own HELLO for an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import ClassVar, Final

import attrs

from understudy.broker.log.frame import MAX_FRAME_BYTES
from understudy.broker.log.record import FORMAT_VERSION, OLDEST_FORMAT_VERSION, OLDEST_WRITTEN_VERSION
from understudy.broker.octets.chunks import as_chunks, flat
from understudy.replicator.direct import handshake
from understudy.replicator.direct.framing import (
    HEAD_BYTES,
    MESSAGE,
    FrameReader,
    FramingError,
    frame_head,
    large_frame_head,
)
from understudy.replicator.direct.handshake import HandshakeError, Hello, shown_text
from understudy.replicator.wire import OLDEST_WIRE_VERSION, WIRE_VERSION

HELLO: Final = 1
ANSWER: Final = 2
PROOF: Final = 3
WELCOME: Final = 4
REFUSE: Final = 5
HEARTBEAT: Final = 7
GOODBYE: Final = 8
CHALLENGE: Final = 9
SEALED_WELCOME: Final = 10
CONFIRM: Final = 11
CARRY: Final = 12
CARRIED: Final = 13

MAX_MESSAGE_BYTES: Final = MAX_FRAME_BYTES + (64 << 10)
"""The largest message by default: the largest batch that a journal takes, and what a link says around it."""

WIRE_VERSIONS: Final = (OLDEST_WIRE_VERSION, WIRE_VERSION)
RECORD_FORMATS: Final = (OLDEST_FORMAT_VERSION, FORMAT_VERSION, OLDEST_WRITTEN_VERSION)
"""What this program speaks, reads and writes: see :class:`LinkSession`."""

_MAX_REASON_CHARACTERS: Final = 1_000
_UNTOLD: Final = (
    "the shared secret (link.secret), or something else that must be the same at both ends, is not: see the log of the broker that"
    " refuses"
)
"""What an end is told that has not proved that it holds the secret."""


class _State(Enum):
    """Where the conversation stands: what is waited for."""

    HELLO = "a HELLO"
    ANSWER = "an ANSWER"
    PROOF = "a PROOF"
    WELCOME = "a WELCOME"
    CONFIRM = "a CONFIRM"
    CARRY = "a CARRY"
    CARRIED = "a CARRIED"
    OPEN = "messages"
    FINISHED = "nothing"


@attrs.frozen(kw_only=True)
class LinkStatistics:
    """Counts of one link since it began. ``waiting_bytes`` are queued here and not yet with the operating system."""

    peer: str
    messages_sent: int
    messages_received: int
    bytes_sent: int
    bytes_received: int
    waiting_bytes: int


SUSPECTED_HEARTBEATS: Final = 2
"""The other end sends one at least so often, so two that are missing are no accident of scheduling."""


class LinkSession:
    """One end of one link.

    Args:
        dialing: this end opened the connection.
        group, broker: ids of this end.
        peer: the broker that must be at the other end; only if dialing; "" for any of the group.
        secret: the group's; empty for none.
        nonce: at least 16 random bytes, never used before.
        agreed: settings that must be the same at both ends.
        now_ms: monotonic time, here and in all that follows.
        heartbeat_ms: after so long without anything sent, a heartbeat is.
        dead_after_ms: after so long without anything heard the link is dead.
        handshake_timeout_ms: within which the link must be open.
        max_message_bytes: the longest message, sent or received.
        wire_versions: oldest and newest that this end speaks.
        record_formats: of the log's records: oldest and newest that this end reads, and the oldest that it can confine itself to
            when it writes.
        carry: a dialer opens the connection to carry this client.

    Attributes:
        established: the other end is who it says and shares the secret; stays true when the session has finished.
        peer: id of the other end once it is established, "" before.
        wire_version: the newest that both ends speak, once established.
        newest_record_format: the newest that the other end reads, once established.
        finished: nothing more will be received; what :meth:`take_output` still gives is the last.
        reason: why it finished.
        remote_reason: what the other end gave as its reason, "" if it gave none.
        incompatible: it finished because the two ends may not talk; another attempt would end the same way.
        output_bytes: how much :meth:`take_output` would give.
        carried: body of the CARRY or CARRIED that has come; from then on the connection is not this session's. None before, and
            on a link.
    """

    def __init__(
        self,
        *,
        dialing: bool,
        group: str,
        broker: str,
        peer: str = "",
        secret: bytes,
        nonce: bytes,
        agreed: Mapping[str, str],
        now_ms: int,
        heartbeat_ms: int = 1_000,
        dead_after_ms: int = 5_000,
        handshake_timeout_ms: int = 10_000,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        wire_versions: tuple[int, int] = WIRE_VERSIONS,
        record_formats: tuple[int, int, int] = RECORD_FORMATS,
        carry: bytes | None = None,
    ) -> None:
        assert dialing or not peer, "who accepts expects nobody"
        assert dialing or carry is None, "only a dialer carries"
        self.established = False
        self.peer = ""
        self.wire_version = 0
        self.newest_record_format = 0
        self.finished = False
        self.reason = ""
        self.remote_reason = ""
        self.incompatible = False
        self.carried: bytes | None = None
        self._carry = carry
        self._dialing = dialing
        self._secret = secret
        self._heartbeat_ms = heartbeat_ms
        self._dead_after_ms = dead_after_ms
        self._handshake_timeout_ms = handshake_timeout_ms
        self._max_message_bytes = max_message_bytes
        self._began_ms = self._heard_ms = self._spoke_ms = now_ms
        self._spoke = False
        self._doubted = False
        self._reader = FrameReader(handshake.MAX_HELLO_BYTES)
        self._output: list[bytes] = []
        self.output_bytes = 0
        self._messages_sent = self._messages_received = self._bytes_taken = self._bytes_received = 0
        self._ours = Hello(
            group=group,
            broker=broker,
            peer=peer,
            oldest_wire=wire_versions[0],
            newest_wire=wire_versions[1],
            record_format=record_formats[2],
            oldest_record_format=record_formats[0],
            newest_record_format=record_formats[1],
            nonce=nonce,
            agreed=dict(agreed),
            purpose="" if carry is None else handshake.CARRIES,
            carries=True,
        )
        self._our_hello = handshake.encode_hello(self._ours.open_part())
        self._theirs: Hello | None = None
        self._their_hello = b""
        self._whole = b""
        self._sealed = False
        self._told = not self._ours.seals
        self._state = _State.ANSWER if dialing else _State.HELLO
        if dialing:
            self._put(HELLO, self._our_hello)

    # -- what the driver calls ------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now_ms: int) -> list[bytes]:
        """Take what has arrived, in any pieces.

        Returns:
            The messages that it completes. None comes before the session is established, and none after it has finished;
            look at :attr:`finished` afterwards.
        """
        if self.finished:
            return []
        self._heard_ms = now_ms
        self._doubted = False
        self._bytes_received += len(data)
        messages: list[bytes] = []
        reader = self._reader
        reader.add(data)
        try:
            while reader.more and (frame := reader.next_frame()) is not None:
                if frame[0] == MESSAGE and self.established:
                    messages.append(frame[1])
                    continue
                self._take(*frame)
                if self._state is _State.FINISHED:
                    break
        except HandshakeError as error:
            self.incompatible = True
            self._fail(str(error))
        except FramingError as error:
            self._fail(f"{error}{'' if self.established else ', before the other end has proved who it is'}")
        self._messages_received += len(messages)
        return messages

    def send(self, message: bytes) -> None:
        """Queue a message. The session must be established; after it has finished the message goes nowhere."""
        if self.finished:
            return
        assert self.established, "nothing is said before the other end has proved who it is"
        if len(message) > self._max_message_bytes:
            self.close(f"a message of {len(message)} bytes was to be sent, at most {self._max_message_bytes} may be")
            return
        self._messages_sent += 1
        chunks = as_chunks(message)
        if chunks is not None:
            self._output += (large_frame_head(chunks), *flat([message]))
        else:
            self._output += (frame_head(MESSAGE, message), message) if message else (frame_head(MESSAGE, message),)
        self.output_bytes += HEAD_BYTES + len(message)
        self._spoke = True

    def take_output(self) -> list[bytes]:
        """The octets to write now, in order. Messages come as they were given to :meth:`send`, uncopied."""
        output, self._output = self._output, []
        self._bytes_taken += self.output_bytes
        self.output_bytes = 0
        return output

    def take_rest(self) -> bytes:
        """Octets behind the frame that :attr:`carried` is of."""
        return self._reader.rest()

    def accept_carried(self) -> None:
        """Say that the client of CARRY is served here."""
        assert self.carried is not None, "there is no client to accept"
        self._put(CARRIED, b"")

    def refuse_carried(self, reason: str) -> None:
        """Say that the client of CARRY is not served here."""
        assert self.carried is not None, "there is no client to refuse"
        self._put(REFUSE, reason[:_MAX_REASON_CHARACTERS].encode(errors="replace"))
        self.reason = reason

    def tick(self, now_ms: int, *, suspected: bool = False) -> None:
        """Time passes: send a heartbeat, or give the other end up. Call it several times per ``heartbeat_ms``.

        ``suspected``: something else speaks against the other end: ``SUSPECTED_HEARTBEATS`` of silence are enough.
        """
        if self.finished:
            return
        if not self.established:
            if now_ms - self._began_ms >= self._handshake_timeout_ms:
                # The bound, not the time that it took: that differs each time, and a refusal is known by its reason.
                self._fail(
                    f"the handshake was not over after {self._handshake_timeout_ms} ms: still waits for {self._state.value}"
                )
            return
        if self._spoke:
            self._spoke = False
            self._spoke_ms = now_ms
        elif now_ms - self._spoke_ms >= self._heartbeat_ms:
            self._spoke_ms = now_ms
            self._put(HEARTBEAT, b"")
            self._spoke = False
        dead_after_ms = self._dead_after_ms
        if suspected:
            dead_after_ms = min(dead_after_ms, SUSPECTED_HEARTBEATS * self._heartbeat_ms)
        if now_ms - self._heard_ms >= dead_after_ms:
            self._doubt(now_ms)

    def _doubt(self, now_ms: int) -> None:
        """Give up at the second tick only: a process that was itself stopped finds, at the first, what came meanwhile unread."""
        if self._doubted:
            self._fail(f"nothing was heard from {self.peer} for {now_ms - self._heard_ms} ms")
        self._doubted = True

    def close(self, reason: str) -> None:
        """End the session from this side; the other end is told ``reason``. What was sent before still goes out first."""
        if not self.finished:
            self._fail(reason)

    def statistics(self) -> LinkStatistics:
        return LinkStatistics(
            peer=self.peer,
            messages_sent=self._messages_sent,
            messages_received=self._messages_received,
            bytes_sent=self._bytes_taken + self.output_bytes,
            bytes_received=self._bytes_received,
            waiting_bytes=self.output_bytes,
        )

    # -- frames ---------------------------------------------------------------------------------------------------------

    def _put(self, kind: int, body: bytes) -> None:
        self._output.append(frame_head(kind, body))
        if body:
            self._output.append(body)
        self.output_bytes += HEAD_BYTES + len(body)
        self._spoke = True

    def _take(self, kind: int, body: bytes) -> None:
        if kind == REFUSE:
            self._take_refuse(body)
            return
        move = self._MOVES.get((self._state, kind))
        if move is None:
            raise HandshakeError(
                f"the other end sent a frame of kind {kind}; what was waited for is {self._state.value}"
            )
        move(self, body)

    def _take_hello(self, body: bytes) -> None:
        self._theirs, self._their_hello = handshake.decode_hello(body), body
        self._state = _State.PROOF
        if self._ours.seals and self._theirs.seals:
            self._sealed = True
            self._our_hello = self._ours.nonce  # a stranger is told no more
            self._put(CHALLENGE, self._our_hello)
            return
        self.wire_version = handshake.check_agreement(self._theirs, self._ours)
        self._put(ANSWER, self._our_hello)

    def _take_answer(self, body: bytes) -> None:
        self._theirs, self._their_hello = handshake.decode_hello(body), body
        if self._ours.seals and self._theirs.seals:
            raise HandshakeError(f"{self._theirs.broker} answers as a broker of an older version does")
        self._check_carries(self._theirs)
        self.wire_version = handshake.check_agreement(self._ours, self._theirs)
        self._put(PROOF, handshake.proof(self._secret, handshake.DIALER, self._our_hello, body))
        self._state = _State.WELCOME

    def _take_challenge(self, body: bytes) -> None:
        if not self._ours.seals or not handshake.MIN_NONCE_BYTES <= len(body) <= handshake.MAX_NONCE_BYTES:
            raise HandshakeError(f"the other end sent a CHALLENGE of {len(body)} octets")
        self._sealed = True
        self._their_hello = body
        self._put(PROOF, handshake.sealed_proof(self._secret, handshake.DIALER, self._our_hello, body))
        self._state = _State.WELCOME

    def _take_proof(self, body: bytes) -> None:
        hellos = (self._their_hello, self._our_hello)
        if self._sealed:
            handshake.check_proof(handshake.sealed_proof(self._secret, handshake.DIALER, *hellos), body)
            self._whole = handshake.encode_hello(self._ours)
            seal = handshake.sealed_proof(self._secret, handshake.ACCEPTOR, *hellos, self._whole)
            self._put(SEALED_WELCOME, seal + self._whole)
            self._told = True
            self._state = _State.CONFIRM
            return
        handshake.check_proof(handshake.proof(self._secret, handshake.DIALER, *hellos), body)
        self._put(WELCOME, handshake.proof(self._secret, handshake.ACCEPTOR, *hellos))
        self._open()

    def _take_sealed_welcome(self, body: bytes) -> None:
        seal, whole = body[: handshake.PROOF_BYTES], body[handshake.PROOF_BYTES :]
        said = (self._our_hello, self._their_hello, whole)
        if not self._sealed:
            raise HandshakeError("the other end sent a SEALED_WELCOME without a CHALLENGE")
        handshake.check_proof(handshake.sealed_proof(self._secret, handshake.ACCEPTOR, *said), seal)
        self._told = True
        self._theirs = handshake.decode_hello(whole)
        self.wire_version = handshake.check_agreement(self._ours, self._theirs)
        self._check_carries(self._theirs)
        ours = handshake.encode_hello(self._ours)
        self._put(CONFIRM, handshake.sealed_proof(self._secret, handshake.SETTINGS, *said, ours) + ours)
        self._open()

    def _check_carries(self, theirs: Hello) -> None:
        if self._carry is not None and not theirs.carries:
            raise HandshakeError(f"{theirs.broker} is of an older version, to which no clients can be carried")

    def _take_confirm(self, body: bytes) -> None:
        seal, whole = body[: handshake.PROOF_BYTES], body[handshake.PROOF_BYTES :]
        said = (self._their_hello, self._our_hello, self._whole, whole)
        handshake.check_proof(handshake.sealed_proof(self._secret, handshake.SETTINGS, *said), seal)
        self._theirs = handshake.decode_hello(whole)
        self.wire_version = handshake.check_agreement(self._theirs, self._ours)
        self._open()

    def _take_welcome(self, body: bytes) -> None:
        if self._sealed:
            raise HandshakeError("the other end sent a WELCOME behind a CHALLENGE")
        expected = handshake.proof(self._secret, handshake.ACCEPTOR, self._our_hello, self._their_hello)
        handshake.check_proof(expected, body)
        self._open()

    def _open(self) -> None:
        assert self._theirs is not None
        self.peer = self._theirs.broker
        self.newest_record_format = self._theirs.reads[1]
        if self._dialing and self._carry is not None:
            self._put(CARRY, self._carry)
            self._state = _State.CARRIED
            return
        if not self._dialing and self._theirs.purpose:
            if self._theirs.purpose != handshake.CARRIES or not self._sealed:
                raise HandshakeError(f"{self.peer} opens a connection for {shown_text(self._theirs.purpose)!r}")
            self._state = _State.CARRY
            return
        self.established = True
        self._state = _State.OPEN
        self._reader.take_up_to(self._max_message_bytes)

    def _take_carried(self, body: bytes) -> None:
        """The handshake of a connection that carries a client is over."""
        self.carried = body
        self._finish("")

    def _take_heartbeat(self, body: bytes) -> None:
        """Take a heartbeat: that it came is all that it says."""

    def _take_goodbye(self, body: bytes) -> None:
        self.remote_reason = shown_text(body.decode(errors="replace"), _MAX_REASON_CHARACTERS)
        self._finish(f"{self.peer} ended the link: {self.remote_reason}")

    def _take_refuse(self, body: bytes) -> None:
        self.remote_reason = shown_text(body.decode(errors="replace"), _MAX_REASON_CHARACTERS)
        self.incompatible = self.remote_reason == _UNTOLD
        self._finish(f"refused by {self._other_end}: {self.remote_reason}")

    @property
    def _other_end(self) -> str:
        """The name of the other end, as far as that has been said, proved or not."""
        return self._theirs.broker if self._theirs is not None else self._ours.peer or "the other end"

    # -- the end --------------------------------------------------------------------------------------------------------

    def _fail(self, reason: str) -> None:
        """Finish, and say why to a peer that has spoken this protocol; a stranger gets no answer."""
        if self.established:
            self._put(GOODBYE, reason[:_MAX_REASON_CHARACTERS].encode(errors="replace"))
        elif self._theirs is not None:
            self._put(REFUSE, (reason if self._told else _UNTOLD)[:_MAX_REASON_CHARACTERS].encode(errors="replace"))
        self._finish(reason)

    def _finish(self, reason: str) -> None:
        self.finished = True
        self.reason = reason
        self._state = _State.FINISHED

    # Of functions, not of each session's bound methods: those would make the session a cycle.
    _MOVES: ClassVar[Mapping[tuple[_State, int], Callable[[LinkSession, bytes], None]]] = {
        (_State.HELLO, HELLO): _take_hello,
        (_State.ANSWER, ANSWER): _take_answer,
        (_State.PROOF, PROOF): _take_proof,
        (_State.WELCOME, WELCOME): _take_welcome,
        (_State.ANSWER, CHALLENGE): _take_challenge,
        (_State.WELCOME, SEALED_WELCOME): _take_sealed_welcome,
        (_State.CONFIRM, CONFIRM): _take_confirm,
        (_State.CARRY, CARRY): _take_carried,
        (_State.CARRIED, CARRIED): _take_carried,
        (_State.OPEN, HEARTBEAT): _take_heartbeat,
        (_State.OPEN, GOODBYE): _take_goodbye,
    }
