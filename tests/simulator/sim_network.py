"""The simulated network: ordered links between brokers.

A link begins with the agreement of the product's handshake. Then it behaves like TCP: in order, delayed, silent while the network
between its ends is cut (what was sent waits), dead after five seconds of silence, reset when a process dies. Streams between
clients and brokers are in `sim_client`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tests.simulator.story import describe_message
from tests.simulator.world import MS, World
from understudy.broker.log.frame import BATCH_HEADER_BYTES
from understudy.broker.octets.chunks import LargeBuffer, as_chunks, named_bytes
from understudy.replicator import wire
from understudy.replicator.direct.handshake import HandshakeError, check_agreement

if TYPE_CHECKING:
    from tests.simulator.sim_node import SimNode

DEAD_AFTER_MS = 5_000
DIAL_TIMEOUT_MS = 2_000


class Network:
    """The paths between brokers. A one-way cut stops only one direction.

    Attributes:
        cuts: (source, target) that do not pass, and for how many reasons.
        slow: (source, target) to microseconds that are added to every message.
        refused: dials that came to nothing because the two ends did not agree.
        on_sent: told of every message that a broker gives to a link (source, target, message).
        on_arrived: told of every message that arrives.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.stream("network")
        self.cuts: Counter[tuple[str, str]] = Counter()
        self.slow: dict[tuple[str, str], int] = {}
        self.pairs: list[LinkPair] = []
        self.refused = 0
        self.on_sent: Callable[[SimNode, SimNode, bytes], None] | None = None
        self.on_arrived: Callable[[SimNode, SimNode, bytes], None] | None = None

    def passes(self, source: str, target: str) -> bool:
        return not self.cuts or (source, target) not in self.cuts

    def cut(self, paths: Iterable[tuple[str, str]]) -> None:
        """Nothing passes there until each of those who have cut it mends it."""
        self.cuts.update(paths)

    def mend(self, paths: Iterable[tuple[str, str]]) -> None:
        """One reason why nothing passes there is over; if it was the last, what waited goes on its way."""
        for path in paths:
            left = self.cuts.pop(path, 0) - 1
            if left > 0:
                self.cuts[path] = left
        self.pump()

    def delay_us(self, source: str, target: str) -> int:
        delay_us = self.rng.randrange(100, 1_500)
        return delay_us + self.slow.get((source, target), 0) if self.slow else delay_us

    def pump(self) -> None:
        """A cut has ended: what waited goes on its way."""
        for pair in list(self.pairs):
            pair.ends[0].pump()
            pair.ends[1].pump()

    def heal(self) -> None:
        self.cuts.clear()
        self.slow.clear()
        self.pump()

    def dial(self, node: SimNode, target: SimNode) -> None:
        """Connect; the dialer hears within a moment, or after the dial's time-out."""
        self.world.at(self.delay_us(node.name, target.name), self._arrive, node, node.incarnation, target)

    def _arrive(self, node: SimNode, incarnation: int, target: SimNode) -> None:
        if node.incarnation != incarnation:
            return
        if not self.passes(node.name, target.name) or not self.passes(target.name, node.name):
            self.world.at(DIAL_TIMEOUT_MS * MS, self._failed, node, target, incarnation, "timed out", False)
        elif not target.up:
            self.world.at(
                self.delay_us(target.name, node.name), self._failed, node, target, incarnation, "refused", True
            )
        elif target.paused:
            self.world.at(
                DIAL_TIMEOUT_MS * MS, self._failed, node, target, incarnation, "no answer to the handshake", False
            )
        else:
            dialer = node.release.hello(node.config.group, node.name, target.name)
            acceptor = target.release.hello(target.config.group, target.name, "")
            try:
                version = check_agreement(dialer, acceptor)
            except HandshakeError as error:
                self.refused += 1
                self._failed(node, target, incarnation, str(error), False)
                return
            pair = LinkPair(self, node, target, version)
            self.pairs.append(pair)
            accepted, dialed = pair.ends[1], pair.ends[0]
            target.event(lambda ha: target.link_up(accepted, ha.link_accepted))
            if pair.broken:
                self._failed(node, target, incarnation, "refused by the peer", False)
            elif node.incarnation == incarnation:
                node.event(lambda ha: node.link_up(dialed, ha.dialed))

    @staticmethod
    def _failed(node: SimNode, target: SimNode, incarnation: int, reason: str, gone: bool) -> None:
        if node.incarnation == incarnation:
            node.event(lambda ha: ha.dial_failed(target.name, reason, gone))


def _as_it_arrives(message: bytes) -> bytes:
    """The form of a large message when it has been read from a socket (``replicator.direct.framing``)."""
    chunks = as_chunks(message)
    if chunks is None:
        return message
    if message[0] != wire.BATCH:
        return bytes(message)
    gathered = LargeBuffer(9 + BATCH_HEADER_BYTES)
    for chunk in chunks.chunks:
        gathered.take(chunk)
    return named_bytes(gathered)


class LinkEnd:
    """One broker's end of a link: implements ``replicator.fabric.Link``."""

    def __init__(self, pair: LinkPair, owner: SimNode, peer: SimNode) -> None:
        self._pair = pair
        self.newest_record_format = peer.release.record_formats[1]
        self.owner = owner
        self.peer_node = peer
        self.incarnation = owner.incarnation
        self.heard_ms = pair.network.world.now_ms
        self._to_peer = f"{owner.name} -> {peer.name}"
        self._outgoing: list[bytes] = []
        self._flying: deque[bytes] = deque()
        self._arriving_us = 0

    @property
    def peer(self) -> str:
        return self.peer_node.name

    @property
    def wire_version(self) -> int:
        return self._pair.wire_version

    @property
    def broken(self) -> bool:
        """True if one end has closed the link, or it was lost."""
        return self._pair.broken

    def send(self, message: bytes) -> None:
        if self._pair.broken:
            return
        message = _as_it_arrives(message)
        on_sent = self._pair.network.on_sent
        if on_sent is not None:
            on_sent(self.owner, self.peer_node, bytes(message))
        if not self._outgoing:
            self.owner.dirty_links.append(self)
        self._outgoing.append(message)

    def flush(self) -> None:
        """The owner's turn has ended."""
        self._flying.extend(self._outgoing)
        self._outgoing.clear()
        self.pump()

    def beat(self) -> None:
        """A heartbeat."""
        self._flying.append(b"")
        self.pump()

    def pump(self) -> None:
        """Start what waits on its way, if the network lets it."""
        network = self._pair.network
        source, target = self.owner.name, self.peer_node.name
        if self._pair.broken or not network.passes(source, target):
            return
        world = network.world
        while self._flying:
            message = self._flying.popleft()
            arrival = world.now_us + network.delay_us(source, target)
            if arrival < self._arriving_us:
                arrival = self._arriving_us
            self._arriving_us = arrival
            world.at(arrival - world.now_us, self._arrive, message)

    def _arrive(self, message: bytes) -> None:
        pair = self._pair
        other = pair.other(self)
        target = other.owner
        if pair.broken or target.incarnation != other.incarnation:
            return
        network = pair.network
        world = network.world
        other.heard_ms = world.now_ms
        if message:
            world.note_bytes(self._to_peer, bytes(message), describe_message)
            target.run(other._receive, message)
            if network.on_arrived is not None:
                network.on_arrived(self.owner, target, bytes(message))

    def _receive(self, message: bytes) -> bool:
        return self.owner.extension.ha.link_message(self, message)

    def close(self, reason: str) -> None:
        self._pair.break_by(self, reason)


class LinkPair:
    """A link: two ends, which have agreed on a version."""

    def __init__(self, network: Network, dialer: SimNode, acceptor: SimNode, wire_version: int) -> None:
        self.network = network
        self.wire_version = wire_version
        self.broken = False
        self.ends = (LinkEnd(self, dialer, acceptor), LinkEnd(self, acceptor, dialer))
        network.world.at(1_000 * MS, self._heartbeat)

    def other(self, end: LinkEnd) -> LinkEnd:
        return self.ends[1] if end is self.ends[0] else self.ends[0]

    def _heartbeat(self) -> None:
        if self.broken:
            return
        for end in self.ends:
            if end.owner.up and not end.owner.paused and end.owner.incarnation == end.incarnation:
                end.beat()
        for end in self.ends:
            silent_ms = self.network.world.now_ms - end.heard_ms
            if silent_ms >= DEAD_AFTER_MS and not end.owner.paused and not self.broken:
                self._found_dead_by(end)
        if not self.broken:
            self.network.world.at(1_000 * MS, self._heartbeat)

    def _found_dead_by(self, end: LinkEnd) -> None:
        self._break()
        self._tell(end, "dead: no heartbeat")
        other = self.other(end)
        if self.network.passes(end.owner.name, other.owner.name):
            self._tell(other, "closed by the peer")
        else:
            self.network.world.at(DEAD_AFTER_MS * MS, self._tell, other, "dead: no heartbeat")

    def _break(self) -> None:
        self.broken = True
        if self in self.network.pairs:
            self.network.pairs.remove(self)

    def break_by(self, end: LinkEnd, reason: str) -> None:
        """One end closes; the other hears of it."""
        if self.broken:
            return
        self._break()
        other = self.other(end)
        delay_us = self.network.delay_us(end.owner.name, other.owner.name)
        self.network.world.at(delay_us, self._tell, other, reason)

    def reset(self, reason: str) -> None:
        """Both ends lose it."""
        if self.broken:
            return
        self._break()
        for end in self.ends:
            self.network.world.at(self.network.delay_us(end.peer, end.owner.name), self._tell, end, reason)

    @staticmethod
    def _tell(end: LinkEnd, reason: str) -> None:
        if end.owner.incarnation == end.incarnation:
            end.owner.event(lambda ha: end.owner.link_lost(end, reason, ha.link_lost))
